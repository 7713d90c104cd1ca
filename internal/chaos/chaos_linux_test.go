package chaos_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// The runs start the program as processes on machines of their own, hurt them for a
// while, and then look at what is left of what was promised.
//
//	CHAOS_TIME   how long each run hurts its fleet; make chaos sets it
//	CHAOS_SEED   the schedule of faults; it is printed

// chaosTime is how long to hurt a fleet.
func chaosTime(t *testing.T, short time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("CHAOS_TIME")
	if text == "" {
		return short
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func chaosSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64N(1_000_000)
	if text := os.Getenv("CHAOS_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("CHAOS_SEED=%d", seed)
	return seed
}

// Three coordinators on PostgreSQL, and six nodes.
func TestChaosOnPostgres(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(chaosSeed(t), 1))
	f := newFleet(t, onPostgres(t, 3), 3, 6)
	f.endure(r, chaosTime(t, 45*time.Second))
}

// Three coordinators on etcd, and three nodes.
func TestChaosOnEtcd(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(chaosSeed(t), 2))
	f := newFleet(t, onEtcd(t, 3), 3, 3)
	f.endure(r, chaosTime(t, 30*time.Second))
}

// One coordinator on SQLite, whose disk is small, and three nodes.
func TestChaosOnSQLite(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(chaosSeed(t), 3))
	f := newFleet(t, onSQLite(t, 1), 1, 3)
	f.endure(r, chaosTime(t, 30*time.Second))
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
