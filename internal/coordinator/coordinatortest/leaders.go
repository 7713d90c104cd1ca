package coordinatortest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/test/wait"
)

// OpenOn starts a server of an engine, and returns what makes a new database there, and
// that what opens it; nil for SQLite.
func OpenOn(t testing.TB, engine string) (database func(testing.TB) func() store.Store) {
	t.Helper()
	opens := func(t testing.TB, open func(context.Context) (store.Store, error)) func() store.Store {
		return func() store.Store {
			st, err := open(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			return st
		}
	}
	switch engine {
	case "sqlite":
		return func(testing.TB) func() store.Store { return nil }
	case "postgres":
		server := pgtest.New(t)
		return func(t testing.TB) func() store.Store {
			url := server.URL(server.Database(t))
			return opens(t,
				func(ctx context.Context) (store.Store, error) { return postgres.Open(ctx, url, postgres.Options{}) })
		}
	case "etcd":
		server := etcdtest.New(t, etcdtest.Options{})
		return func(t testing.TB) func() store.Store {
			url := server.URL(server.Prefix())
			return opens(t,
				func(ctx context.Context) (store.Store, error) { return etcd.Open(ctx, url, etcd.Options{}) })
		}
	}
	t.Fatalf("no engine %s", engine)
	return nil
}

// Coordinators returns three that are ready, one of which leads.
func Coordinators(t testing.TB, open func() store.Store) []*Fleet {
	t.Helper()
	return CoordinatorsWith(t, open,
		func(cfg *coordinator.Config) {
			cfg.Timing.Lease, cfg.Timing.Beat = election.DefaultLease/2, election.DefaultBeat/2
		})
}

// CoordinatorsWith is [Coordinators] with a config of their own.
func CoordinatorsWith(t testing.TB, open func() store.Store,
	config func(*coordinator.Config)) []*Fleet {
	t.Helper()
	f := NewFleetOn(t, open, config)
	NewReplica(t, f)
	NewReplica(t, f)
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatalf("first set: %v", err)
	}
	all := append([]*Fleet{f}, f.Replicas...)
	for _, r := range f.Replicas {
		r.Start()
		r.Await(authority.Ready)
	}
	AwaitLeader(t, all...)
	for _, r := range all {
		AwaitSeen(r, func(l *fealtyv1.Leader) bool { return l.GetTerm() != 0 })
	}
	return all
}

// AwaitLeader waits until one of these leads, and returns it, its term, and the others.
func AwaitLeader(t testing.TB, fs ...*Fleet) (leader *Fleet, term uint64,
	others []*Fleet) {
	t.Helper()
	wait.Until(t, "one of them leads", func() bool {
		for _, f := range fs {
			var ok bool
			if term, _, ok = f.C.Parts().Election.Leading(); ok {
				leader = f
				return true
			}
		}
		return false
	})
	return leader, term, slices.DeleteFunc(slices.Clone(fs), func(o *Fleet) bool { return o == leader })
}

// AwaitSeen waits until f knows this of who leads.
func AwaitSeen(f *Fleet, want func(*fealtyv1.Leader) bool) *fealtyv1.Leader {
	f.T.Helper()
	var known *fealtyv1.Leader
	wait.UntilNil(f.T, "it knows this of the leader", func() error {
		if known = f.C.Parts().Election.Message(); !want(known) {
			return fmt.Errorf("it knows %v", known)
		}
		return nil
	})
	return known
}

// AwaitAgreed waits until all of these know that the same one of them leads, under a term
// that comes after this one.
func AwaitAgreed(t testing.TB, after uint64, fs ...*Fleet) {
	t.Helper()
	wait.UntilNil(t, "they agree on who leads", func() error {
		terms, selves := make(map[uint64]bool), 0
		var known []string
		for _, f := range fs {
			l := f.C.Parts().Election.Message()
			known = append(known, fmt.Sprintf("%s knows %v", f.Addr, l))
			terms[l.GetTerm()] = true
			if l.GetSelf() && l.GetTerm() > after {
				selves++
			}
		}
		if len(terms) != 1 || selves != 1 {
			return errors.New(strings.Join(known, "; "))
		}
		return nil
	})
}

// WantOneLeader fails if two of these lead at one moment.
func WantOneLeader(t testing.TB, fs ...*Fleet) {
	t.Helper()
	for _, a := range fs {
		for _, b := range fs {
			before, _, first := a.C.Parts().Election.Leading()
			_, _, second := b.C.Parts().Election.Leading()
			after, _, still := a.C.Parts().Election.Leading()
			if a != b && first && second && still && before == after {
				t.Error("two lead at one moment")
			}
		}
	}
}

// LeaderClient is a client for what the coordinator knows of who leads.
func LeaderClient(f *Fleet) fealtyv1.LeaderServiceClient {
	return fealtyv1.NewLeaderServiceClient(f.LocalConn())
}

// AwaitTold waits until the members of f are told something of this member.
func AwaitTold(f *Fleet, member string) {
	f.T.Helper()
	wait.Until(f.T, "something is published for "+member, func() bool {
		p := f.C.Parts().Publication.View()
		if !p.Serves() {
			return false
		}
		_, ok := p.Find(publication.RuntimePath(member))
		return ok
	})
}

// Forgets starts the coordinator again without these files of its data directory.
func Forgets(d *Desk, names ...string) {
	d.T.Helper()
	if err := d.C.Close(); err != nil {
		d.T.Fatal(err)
	}
	for _, name := range names {
		if err := d.Disk.FS().Remove("/coordinator/" + name); err != nil {
			d.T.Fatal(err)
		}
	}
	d.Open()
}
