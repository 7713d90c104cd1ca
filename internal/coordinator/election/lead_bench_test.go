//go:build linux

package election_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/test/wait"
)

// BenchmarkFailover measures, from the end of a leader, how long it takes until the term
// of the next is in force (term-…), and until the store took the first write that only a
// leader makes (write-…): the publication of a member that joined before. Of a leader that
// is stopped also when the store had that it hands over. Run it with -benchtime 100x for
// the figures of docs/reference/benchmarks.md.
func BenchmarkFailover(b *testing.B) {
	for _, engine := range []string{"sqlite", "postgres", "etcd"} {
		for _, how := range []string{"killed", "stopped"} {
			b.Run(engine+"/"+how, func(b *testing.B) { failover(b, coordinatortest.OpenOn(b, engine)(b), how == "killed") })
		}
	}
}

var errHeld = errors.New("held for a measurement")

// leaderWrites hears when the store took what leaders write.
type leaderWrites struct {
	mu   sync.Mutex
	seen []leaderWrite // guarded by mu
}

type leaderWrite struct {
	what string
	at   time.Time
}

// The writes of leaders that are told apart.
const (
	writeHandOver  = "handed-over"
	writeTakeover  = "term"
	writePublished = "write"
)

// leaderStore tells leaderWrites what went through it.
type leaderStore struct {
	store.Store
	told *leaderWrites
}

func (s leaderStore) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	r, err := s.Store.Commit(ctx, tx)
	if err != nil {
		return r, err
	}
	puts := func(key string) bool {
		return slices.ContainsFunc(tx.Put, func(w store.Write) bool { return w.Key == key })
	}
	switch {
	case puts(election.TermKey) && puts(election.BeatKey):
		s.told.add(writeTakeover)
	case puts(election.TermKey):
		s.told.add(writeHandOver)
	case puts(publication.StateKey):
		s.told.add(writePublished)
	}
	return r, nil
}

func (l *leaderWrites) add(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, leaderWrite{what, time.Now()})
}

// after forgets what it heard, and returns how long after began the first of each was.
func (l *leaderWrites) after(began time.Time) map[string]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := make(map[string]time.Duration)
	for _, w := range l.seen {
		if _, ok := first[w.what]; !ok && w.at.After(began) {
			first[w.what] = w.at.Sub(began)
		}
	}
	l.seen = nil
	return first
}

func failover(b *testing.B, open func() store.Store, killed bool) {
	told := new(leaderWrites)
	all := coordinatortest.CoordinatorsWith(b, open, func(cfg *coordinator.Config) { cfg.Store = leaderStore{cfg.Store, told} })
	took := make(map[string][]time.Duration)
	for n := 0; b.Loop(); n++ {
		leader, _, others := coordinatortest.AwaitLeader(b, all...)
		// A member waits to be told of: the leader cannot do that any more.
		leader.Link.Hold(func(tx store.Tx) error {
			if slices.ContainsFunc(tx.Put, func(w store.Write) bool { return w.Key == publication.StateKey }) {
				return errHeld
			}
			return nil
		})
		name := fmt.Sprintf("n%d", n)
		others[0].Member(name)
		for _, f := range others {
			wait.Until(b, "the member is in the roster", func() bool {
				return f.C.Parts().Membership.Roster().Get("data/"+name).Version != 0
			})
		}
		began, ended := time.Now(), make(chan struct{})
		if killed {
			leader.Link.Cut(coordinatortest.ErrKilled)
		}
		go func() { leader.Stop(); close(ended) }()
		next, _, _ := coordinatortest.AwaitLeader(b, others...)
		coordinatortest.AwaitTold(next, "data/"+name)
		for what, d := range told.after(began) {
			took[what] = append(took[what], d)
		}
		<-ended
		leader.Link.Cut(nil)
		leader.Link.Hold(nil)
		leader.Start()
		leader.Await(authority.Ready)
	}
	for what, d := range took {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds())/1e3, what+"-median-ms")
		b.ReportMetric(float64(d[(len(d)*99+99)/100-1].Microseconds())/1e3, what+"-p99-ms")
	}
	b.ReportMetric(0, "ns/op")
}
