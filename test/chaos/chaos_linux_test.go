package chaos_test

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/test/testlane"
)

// The runs start the program as processes on machines of their own, hurt them for a
// while, and then look at what is left of what was promised. All but one short run wait for the
// nightly lane: the judges are held to their promise by tests of their own (chaos_test.go), and what a
// store or a coordinator does when it is hurt in one way by the tests of its package.
//
//	CHAOS_TIME   how long each run hurts its fleet, in the nightly lane; make chaos sets it

// chaosTime is how long to hurt a fleet.
func chaosTime(t *testing.T) time.Duration {
	t.Helper()
	full := 10 * time.Minute
	if text := os.Getenv("CHAOS_TIME"); text != "" {
		var err error
		if full, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	return testlane.Rounds(15*time.Second, full)
}

// Three coordinators on PostgreSQL, and six nodes.
func TestChaosOnPostgres(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	r := rand.New(rand.NewPCG(testlane.Seed(t), 1))
	f := newFleet(t, onPostgres(t, 3), 3, 6)
	f.endure(r, chaosTime(t))
}

// Three coordinators on etcd, and three nodes.
func TestChaosOnEtcd(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	r := rand.New(rand.NewPCG(testlane.Seed(t), 2))
	f := newFleet(t, onEtcd(t, 3), 3, 3)
	f.endure(r, chaosTime(t))
}

// One coordinator on SQLite, whose disk is small, and three nodes.
func TestChaosOnSQLite(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(testlane.Seed(t), 3))
	f := newFleet(t, onSQLite(t, 1), 1, 3)
	f.endure(r, chaosTime(t))
}

// endure hurts a fleet while people write, has it heal, and judges.
func (f *fleet) endure(r *rand.Rand, d time.Duration) {
	f.t.Helper()
	if f.coords[0].m.holder == nil {
		f.t.Log("there are no mount namespaces here, so no disk gets full, and all machines share one key of the keeper")
	}
	f.t.Logf("%s: all run after %v", clock(), time.Since(f.began).Round(time.Millisecond))
	stop := f.people(r)
	defer stop()
	f.hurt(r, time.Now().Add(d))
	f.ready()
	f.settled()
	stop()
	f.ready()
	f.settled()
	f.unwatch()
	f.kept(f.written())
	f.judge()
}

// people write, until they are told to stop.
func (f *fleet) people(r *rand.Rand) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var writers sync.WaitGroup
	for _, name := range []string{"w1", "w2", "w3"} {
		w := &writer{f: f, name: name, r: rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))}
		writers.Go(func() { w.run(ctx) })
	}
	return sync.OnceFunc(func() { cancel(); writers.Wait() })
}
