package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/recovery"
)

// blackHoles returns n addresses that take a connection and then swallow all that is
// said, and what is sent on for each connection.
func blackHoles(t testing.TB, n int) (addrs []string, reached <-chan struct{}) {
	t.Helper()
	seen := make(chan struct{}, 1024)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var conns []net.Conn
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				conns = append(conns, c)
				select {
				case seen <- struct{}{}:
				default:
				}
			}
		})
		t.Cleanup(func() {
			l.Close()
			wg.Wait()
			for _, c := range conns {
				c.Close()
			}
		})
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, seen
}

// A ready peer behind many that swallow everything is reached, wherever it stands among
// them; and the next round reaches it first.
func TestReadyPeerBehindBlackHoles(t *testing.T) {
	f, rs := peerFleet(t, 1, nil)
	r := rs[0]
	holes, _ := blackHoles(t, 20)
	r.Link.Lie(hideReplicas) // it is known by configuration alone
	r.Config = func(c *coordinator.Config) { c.Peers = append(holes, f.Addr) }
	began := time.Now()
	r.Start()
	r.AwaitHead(f)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	peers, failed := r.C.Rooms().PeerRecovery.Peers(t.Context(), f.C.Rooms().Head.State().Manifest)
	if len(failed) > 0 || len(peers) != 21 || peers[0] == holes[0] ||
		slices.Index(peers, f.Addr) > 20-coordinator.PeersDialed {
		t.Errorf("next time it would ask %v (%v)", peers, failed)
	}
	if n := len(audited(f, "seed.given")); n != 1 {
		t.Errorf("the seed was given %d times", n)
	}
}

// Who said that it is ready is asked before those that are configured and swallow
// everything.
func TestReadyPeerIsAskedFirst(t *testing.T) {
	f, rs := peerFleet(t, 1, nil)
	r := rs[0]
	holes, _ := blackHoles(t, 1)
	r.Config = func(c *coordinator.Config) { c.Peers = holes }
	r.Start()
	r.AwaitHead(f)
	peers, _ := r.C.Rooms().PeerRecovery.Peers(t.Context(), f.C.Rooms().Head.State().Manifest)
	if !slices.Equal(peers, []string{f.Addr, holes[0]}) {
		t.Errorf("it asks %v", peers)
	}
}

// An owner who brings the share that is missing does not wait until a round of asking
// peers, all of which swallow everything, is over.
func TestOwnersDoNotWaitForPeers(t *testing.T) {
	f, rs := peerFleet(t, 1, nil)
	r := rs[0]
	file := f.People.ShareFile(f.Store, "alice")
	holes, reached := blackHoles(t, coordinator.MaxPeers)
	r.Link.Lie(hideReplicas)
	r.Config = func(c *coordinator.Config) { c.Peers = holes }
	f.Stop()
	r.Start()
	<-reached // a round has begun
	began := time.Now()
	got, err := coordinatortest.BringTo(t, r.Addr, file, recovery.Options{})
	wantOnly(t, "bring", err, "")
	if took := time.Since(began); !got.Recovered || took > coordinator.LastLook+3*time.Second {
		t.Errorf("recovered is %v, after %v", got.Recovered, took)
	}
}

// Several are asked at once, and no more than that; the first that succeeds ends the
// others; those that hang cost no more than their time, however many there are.
func TestFirstOf(t *testing.T) {
	type answer struct {
		who int
		err error
	}
	const hangs = 2 * time.Second
	run := func(t *testing.T, n, good int) (results []answer, found int, took time.Duration) {
		t.Helper()
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		var mu sync.Mutex
		now, most := 0, 0
		count := func(d int) {
			mu.Lock()
			defer mu.Unlock()
			now += d
			most = max(most, now)
		}
		began := time.Now()
		results, found = coordinator.FirstOf(t.Context(), 4, all, func(ctx context.Context, who int) (answer, bool) {
			count(1)
			defer count(-1)
			if who == good {
				return answer{who, nil}, true
			}
			ctx, cancel := context.WithTimeout(ctx, hangs)
			defer cancel()
			<-ctx.Done()
			return answer{who, ctx.Err()}, false
		})
		if most > 4 || now != 0 {
			t.Errorf("%d at once, and %d are left", most, now)
		}
		return results, found, time.Since(began)
	}
	for _, tc := range []struct {
		n, good int
		want    time.Duration
	}{{0, -1, 0}, {1, 0, 0}, {4, 3, 0}, {5, 4, hangs}, {64, 63, 15 * hangs}, {64, -1, 16 * hangs}} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				results, found, took := run(t, tc.n, tc.good)
				if took != tc.want {
					t.Errorf("it took %v, want %v", took, tc.want)
				}
				if (found >= 0) != (tc.good >= 0) || found >= 0 && results[found].who != tc.good ||
					len(results) > tc.n {
					t.Fatalf("found %d of %v", found, results)
				}
				for i, r := range results {
					if i != found && !errors.Is(r.err, context.Canceled) &&
						!errors.Is(r.err, context.DeadlineExceeded) {
						t.Errorf("%d: %v", r.who, r.err)
					}
				}
			})
		})
	}
}

// What was asked under is over with the asking: a search goes on for as long as the
// coordinator is in recovery mode, and must not gather a context for each step.
func TestAskingEnds(t *testing.T) {
	y := new(coordinator.Yields)
	asking, asked := y.Begin(t.Context())
	if asking.Err() != nil {
		t.Fatal("it ended before an owner came")
	}
	asked()
	if asking.Err() == nil {
		t.Error("what was asked under goes on after it")
	}
}
