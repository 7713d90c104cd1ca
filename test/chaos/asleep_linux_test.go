package chaos_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fealty-io/fealty/test/chaos"
	"github.com/fealty-io/fealty/test/testlane"
)

// The whole fleet is stopped, the store too, for longer than every certificate of it, and
// then goes on: its processes had no chance to do anything in time. Nobody does anything
// for it afterwards, and it works again.
func TestFleetAsleep(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	f := newFleet(t, onPostgres(t, 3), 3, 3)
	f.sleep(f.asleep)
}

// The same with everything killed, and started when all certificates are over.
func TestFleetSwitchedOff(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	f := newFleet(t, onPostgres(t, 3), 3, 3)
	f.sleep(func() (func() error, error) {
		start := f.killed(append(f.coords[:len(f.coords):len(f.coords)], f.nodes...)...)
		store, err := f.storeAway(f.store.kill, f.store.start)()
		return func() error { return all(store, start) }, err
	})
}

// sleep has the fleet away until its certificates are over: those of members and
// coordinators, and in a long run that of the mesh CA too, with the trust bundles.
func (f *fleet) sleep(away func() (back func() error, err error)) {
	f.t.Helper()
	w := writer{f: f, name: "w1", r: rand.New(rand.NewPCG(1, 1))}
	for _, p := range f.coords {
		w.config(f.t.Context(), p)
		w.set(f.t.Context(), p)
	}
	f.settled()
	longest := time.Now().Add(svidTTL + 2*time.Second)
	if testlane.Rounds(false, true) {
		st, err := f.status(f.coords[0])
		if err != nil {
			f.t.Fatal(err)
		}
		// A bundle lasts as long as the certificate of the mesh CA.
		for _, end := range []time.Time{st.GetMeshCaNotAfter().AsTime(), time.Now().Add(2 * svidTTL)} {
			if end = end.Add(2 * time.Second); end.After(longest) {
				longest = end
			}
		}
	}
	f.t.Logf("%s: all are away until %s", clock(), longest.Format("15:04:05.000"))
	back, err := away()
	if err != nil {
		f.t.Fatal(err)
	}
	time.Sleep(time.Until(longest)) // it is what is done, no wait for something
	if err := back(); err != nil {
		f.t.Fatal(err)
	}
	began := time.Now()
	f.ready()
	f.settled()
	f.t.Logf("%s: all are back after %v", clock(), time.Since(began).Round(time.Millisecond))
	for i, p := range f.coords {
		f.await(p.m.name+" to present a certificate that is good", func() error { return presents(f.t.Context(), f.listens[i]) })
		w.config(f.t.Context(), p)
	}
	if last := f.written(); last[len(last)-1].Outcome != chaos.Acknowledged {
		f.t.Errorf("a write failed: %v", last[len(last)-1])
	}
	f.unwatch()
	f.kept(f.written())
	f.judge()
}

// presents fails if a coordinator presents a certificate that is over.
func presents(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, cert := range conn.(*tls.Conn).ConnectionState().PeerCertificates {
		if !cert.NotAfter.After(time.Now()) {
			return fmt.Errorf("that of %s ended at %v", cert.Subject, cert.NotAfter)
		}
	}
	return nil
}
