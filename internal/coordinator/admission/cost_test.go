package admission_test

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// costs are what is asked of a store.
type costs struct {
	reads, lists, commits    int
	conditions, writes, size int // of the commits; bytes of keys and values
}

func (c costs) String() string {
	return fmt.Sprintf("%d reads, %d lists, %d commits with %d conditions and %d writes of %d bytes", c.reads, c.lists, c.commits,
		c.conditions, c.writes, c.size)
}

// countingStore counts what is asked of it.
type countingStore struct {
	store.Store

	mu  sync.Mutex
	all costs // guarded by mu
}

func (s *countingStore) count(f func(*costs)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.all)
}

// taken returns the costs since it was asked last.
func (s *countingStore) taken() (c costs) {
	s.count(func(all *costs) { c, *all = *all, costs{} })
	return c
}

func (s *countingStore) Get(ctx context.Context, key string) (store.Entry, error) {
	s.count(func(c *costs) { c.reads++ })
	return s.Store.Get(ctx, key)
}

func (s *countingStore) List(ctx context.Context, prefix string) (store.Listing, error) {
	s.count(func(c *costs) { c.lists++ })
	return s.Store.List(ctx, prefix)
}

func (s *countingStore) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	s.count(func(c *costs) {
		c.commits, c.conditions, c.writes = c.commits+1, c.conditions+len(tx.If), c.writes+len(tx.Put)+len(tx.Delete)
		for _, w := range tx.Put {
			c.size += len(w.Key) + len(w.Value)
		}
	})
	return s.Store.Commit(ctx, tx)
}

// countedDesk is a desk whose store counts.
func countedDesk(t *testing.T, entries string) (*coordinatortest.Desk, *countingStore) {
	t.Helper()
	var counted *countingStore
	d := coordinatortest.ReadyDeskWith(t, entries, func(c *coordinator.Config) {
		counted = &countingStore{Store: c.Store}
		c.Store = counted
	})
	return d, counted
}

// renewals are certificate requests of one member, each for the key after the last.
type renewals struct {
	d    *coordinatortest.Desk
	peer identity.Peer
	csrs [][]byte
	keys []*ecdsa.PrivateKey
}

func newRenewals(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, n int) *renewals {
	t.Helper()
	r := &renewals{d: d, peer: identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: coordinatortest.KeyOf(t, m.Key)}}
	for range n {
		key, err := coordinatortest.NewKey()
		coordinatortest.WantOnlyNil(t, err)
		r.keys, r.csrs = append(r.keys, key), append(r.csrs, coordinatortest.MustCSR(t, key))
	}
	return r
}

// next renews with the next key, over a connection that was made with the last.
func (r *renewals) next(t *testing.T) {
	t.Helper()
	if _, err := coordinatortest.RenewOver(t.Context(), r.d.C, r.peer, r.csrs[0]); err != nil {
		t.Fatal(err)
	}
	r.peer.Key = coordinatortest.KeyOf(t, r.keys[0])
	r.csrs, r.keys = r.csrs[1:], r.keys[1:]
}

// What a join and a renewal ask of the store, and how much they allocate, is written down here: one
// that asks for more shows. Reads that the conditions of the commit make again come from memory.
//
// A join writes the member, the use of the token, the token, and a line of the audit log; also the count of
// the entry, where that has a maximum. Its conditions are on the head and the record lock, on what it writes but the
// line, and on two bans that are not there. A renewal writes the member, whose record grows by a key.
func TestWhatAJoinAndARenewalCost(t *testing.T) {
	d, counted := countedDesk(t, coordinatortest.PoolEntries+"  - {name: large, kind: data, match: [\"token:large\"], max_members: 1000}\n")
	defer d.C.Close()
	pool := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 200})
	large := d.Token(&fealtyv1.CreateTokenRequest{Entry: "large", Uses: 200})
	join := func(tok proof.JoinToken) func() {
		var waiting []*coordinatortest.Attempt
		for range 40 {
			waiting = append(waiting, coordinatortest.AttemptAt(d, d.C, tok))
		}
		return func() {
			a := waiting[0]
			waiting = waiting[1:]
			if a.Make(); a.Err != nil {
				t.Fatal(a.Err)
			}
		}
	}
	m := d.Joined("a")
	r := newRenewals(t, d, m, 40)
	for _, tt := range []struct {
		what   string
		do     func()
		first  costs // of the first one, which learns of the token
		then   costs // of each other, at most
		allocs float64
	}{
		{"a join", join(pool), costs{1, 0, 1, 7, 4, 1520}, costs{0, 0, 1, 7, 4, 1520}, 790},
		{"a join under an entry with a maximum", join(large), costs{2, 1, 1, 8, 5, 1600}, costs{0, 0, 1, 8, 5, 1600}, 800},
		{"a renewal", func() { r.next(t) }, costs{0, 0, 1, 5, 1, 700}, costs{0, 0, 1, 5, 1, 1050}, 590},
	} {
		check := func(which string, got, want costs) {
			t.Helper()
			t.Logf("%s, %s: %v", tt.what, which, got)
			most := want
			if most.size = got.size; got != most || got.size > want.size {
				t.Errorf("%s, %s: %v, want %v at most", tt.what, which, got, want)
			}
		}
		counted.taken()
		tt.do()
		check("the first", counted.taken(), tt.first)
		for range 3 {
			tt.do()
			check("another", counted.taken(), tt.then)
		}
		allocs := testing.AllocsPerRun(20, tt.do)
		t.Logf("%s: %v allocations", tt.what, allocs)
		if allocs > tt.allocs {
			t.Errorf("%s: %v allocations, want at most %v", tt.what, allocs, tt.allocs)
		}
	}
	// Whoever publishes is told of whom joined, and not that somebody renewed.
	roster := d.C.Parts().Membership.Roster()
	roster.TakeTouched()
	r.next(t)
	if got := roster.TakeTouched(); len(got) != 0 {
		t.Errorf("a renewal has %v published anew", got)
	}
}

// Memory that is behind the store renews nobody whom the store would refuse, and refuses nobody whom it would renew.
func TestRenewalByMemoryThatIsBehind(t *testing.T) {
	write := func(t *testing.T, d *coordinatortest.Desk, w store.Write) { d.Store.Write(w.Key, w.Value) }
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine)
		want   errcode.Code
	}{
		{"banned elsewhere", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			write(t, d, seal(d, t, record.BanIDKey(identity.Data, "a"), record.Ban{Reason: "x", By: "y", At: d.Clock()}))
		}, errcode.JoinBanned},
		{"its new key banned elsewhere", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			write(t, d, seal(d, t, record.BanKeyKey(coordinatortest.KeyOf(t, m.Key)), record.Ban{Reason: "x", By: "y", At: d.Clock()}))
		}, errcode.JoinBanned},
		{"removed elsewhere", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			d.Store.Alter(record.MemberKey(identity.Data, "a"), func([]byte) []byte { return nil })
		}, errcode.RenewEntryGone},
		{"replaced elsewhere", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			rec := d.Record(identity.Data, "a").Value
			rec.State = record.Replacing
			write(t, d, seal(d, t, record.MemberKey(identity.Data, "a"), rec))
		}, errcode.RenewEntryGone},
		{"altered", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			d.Store.Write(record.MemberKey(identity.Data, "a"), []byte("forged"))
		}, errcode.StoreForged},
		{"renewed elsewhere by another machine", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			for range 2 {
				rec := d.Record(identity.Data, "a").Value
				key, err := coordinatortest.NewKey()
				coordinatortest.WantOnlyNil(t, err)
				rec.Rekey(coordinatortest.KeyOf(t, key), m.Leaf.NotAfter, d.Clock(), record.Stretch)
				write(t, d, seal(d, t, record.MemberKey(identity.Data, "a"), rec))
			}
		}, errcode.RenewOlderKey},
		{"drained elsewhere", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			rec := d.Record(identity.Data, "a").Value
			rec.State, rec.Drain = record.Draining, record.DrainMark{At: d.Clock(), By: "y"}
			write(t, d, seal(d, t, record.MemberKey(identity.Data, "a"), rec))
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			defer d.C.Close()
			m := d.Joined("a")
			next, err := coordinatortest.NewKey()
			coordinatortest.WantOnlyNil(t, err)
			peer := identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: coordinatortest.KeyOf(t, m.Key)}
			tt.change(t, d, &coordinatortest.Machine{Desk: d, Key: next, ID: m.ID, Leaf: m.Leaf})
			before := d.Store.Snapshot()
			chain, err := coordinatortest.RenewOver(t.Context(), d.C, peer, coordinatortest.MustCSR(t, next))
			coordinatortest.WantOnly(t, "the renewal", err, tt.want)
			after := d.Store.Snapshot()
			if tt.want != "" {
				if len(chain) > 0 {
					t.Error("it got a certificate")
				}
				for key, e := range after {
					if !strings.HasPrefix(key, "audit") && e.Version != before[key].Version {
						t.Errorf("%s was written", key)
					}
				}
				return
			}
			if rec := d.Record(identity.Data, "a").Value; rec.Key != coordinatortest.KeyOf(t, next) || rec.State != record.Draining {
				t.Errorf("the record is %+v: what was done elsewhere is lost", rec)
			}
		})
	}
	// One that renewed elsewhere comes here with its new key.
	d := coordinatortest.PoolDesk(t)
	defer d.C.Close()
	m := d.Joined("a")
	key, err := coordinatortest.NewKey()
	coordinatortest.WantOnlyNil(t, err)
	rec := d.Record(identity.Data, "a").Value
	rec.Rekey(coordinatortest.KeyOf(t, key), m.Leaf.NotAfter, d.Clock(), record.Stretch)
	write(t, d, seal(d, t, record.MemberKey(identity.Data, "a"), rec))
	next, err := coordinatortest.NewKey()
	coordinatortest.WantOnlyNil(t, err)
	_, err = coordinatortest.RenewOver(t.Context(), d.C, identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: coordinatortest.KeyOf(t, key)},
		coordinatortest.MustCSR(t, next))
	coordinatortest.WantOnly(t, "of one that renewed elsewhere", err, "")
}

// A ban that is in force here refuses a renewal at once, also over a connection that was let in before.
func TestRenewalOfABannedMemberOverAnOpenConnection(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	if err := n.Renew(true); err != nil {
		t.Fatal(err)
	}
	conn, err := n.Dial(f)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	renew := func() error {
		key, err := coordinatortest.NewKey()
		if err != nil {
			return err
		}
		_, err = fealtyv1.NewAdmissionServiceClient(conn).Renew(f.Context(), &fealtyv1.RenewRequest{Name: "node-a",
			Csr: coordinatortest.MustCSR(t, key)})
		return err
	}
	// Its connection stands: a request that is none is looked at.
	_, err = fealtyv1.NewAdmissionServiceClient(conn).Renew(f.Context(), &fealtyv1.RenewRequest{Name: "node-a"})
	coordinatortest.WantCode(t, err, errcode.JoinBadCSR)
	if _, err := f.Local().Member.BanMember(f.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "node-a", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	if err := renew(); err == nil {
		t.Error("a banned member got a certificate")
	}
	e, err := f.Store.Get(f.Context(), record.MemberKey(identity.Data, "node-a"))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	if err := renew(); err == nil {
		t.Error("a banned member got a certificate")
	}
	if again, err := f.Store.Get(f.Context(), record.MemberKey(identity.Data, "node-a")); again.Version != e.Version {
		t.Errorf("the record of a banned member was written: %v", err)
	}
}
