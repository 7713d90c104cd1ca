package peer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
)

// A ready peer behind many that swallow everything is reached, wherever it stands among
// them; and the next round reaches it first.
func TestReadyPeerBehindBlackHoles(t *testing.T) {
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	holes, _ := coordinatortest.BlackHoles(t, 20)
	r.Link.Lie(coordinatortest.HideReplicas) // it is known by configuration alone
	r.Config = func(c *coordinator.Config) { c.Peers = append(holes, f.Addr) }
	r.Start()
	r.AwaitHead(f) // what it costs is told by TestFirstOf, in virtual time
	peers, failed := r.C.Parts().Secrets.PeerRecovery.Peers(t.Context(), f.State().Manifest)
	if len(failed) > 0 || len(peers) != 21 || peers[0] != f.Addr {
		t.Errorf("next time it would ask %v (%v)", peers, failed)
	}
	if n := len(coordinatortest.Audited(f, "seed.given")); n != 1 {
		t.Errorf("the seed was given %d times", n)
	}
}

// A coordinator that said it was ready is asked before those that are configured and swallow
// everything.
func TestReadyPeerIsAskedFirst(t *testing.T) {
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	holes, _ := coordinatortest.BlackHoles(t, 1)
	r.Config = func(c *coordinator.Config) { c.Peers = holes }
	r.Start()
	r.AwaitHead(f)
	peers, _ := r.C.Parts().Secrets.PeerRecovery.Peers(t.Context(), f.State().Manifest)
	if !slices.Equal(peers, []string{f.Addr, holes[0]}) {
		t.Errorf("it asks %v", peers)
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
		results, found = peer.FirstOf(t.Context(), 4, all, func(ctx context.Context, who int) (answer, bool) {
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

// Exchanges with callers who have proven nothing are bounded as the constant says, but where the config says
// otherwise.
func TestLimitInForce(t *testing.T) {
	for config, want := range map[int]int{0: peer.MaxAsking, 7: 7} {
		if got := peer.New(peer.Config{MaxAsking: config}).Limits().Most; got != want {
			t.Errorf("with %d in the config %d exchanges are taken, want %d", config, got, want)
		}
	}
}
