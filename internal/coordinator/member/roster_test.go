package member_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
)

func rec(kind identity.Kind, name string, orgs ...string) record.Member {
	return record.Member{Kind: kind, Name: name, State: record.Active, Organizations: orgs}
}

// The index shows what the store holds, however late and often notices come.
func TestFollowsTheStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := member.NewRoster()
		type event struct {
			rev    store.Revision
			path   string
			record *record.Member // nil: removed
		}
		var log []event
		truth := make(map[string]record.Member)
		followed := 0 // events that the follower has told
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				r := rec(rapid.SampledFrom([]identity.Kind{identity.Data, identity.Shard}).Draw(t, "kind"),
					name.Draw(t, "name"))
				r.State = rapid.SampledFrom([]string{record.Active, record.Draining, record.Replacing}).Draw(t, "state")
				rev := store.Revision(len(log) + 1)
				log = append(log, event{rev, r.Path(), &r})
				truth[r.Path()] = r
				if rapid.Bool().Draw(t, "told by the handler") {
					x.Put(r, rev)
				}
			},
			"remove": func(t *rapid.T) {
				path := "data/" + name.Draw(t, "name")
				if _, ok := truth[path]; ok {
					log = append(log, event{store.Revision(len(log) + 1), path, nil})
					delete(truth, path)
				}
			},
			"late notice": func(t *rapid.T) {
				if len(log) == 0 {
					return
				}
				if e := rapid.SampledFrom(log).Draw(t, "event"); e.record != nil {
					x.Put(*e.record, e.rev)
				}
			},
			"follow": func(t *rapid.T) {
				for ; followed < len(log); followed++ {
					if e := log[followed]; e.record != nil {
						x.Put(*e.record, e.rev)
					} else {
						x.Remove(e.path, e.rev)
					}
					x.Seen(log[followed].rev)
				}
			},
			"list again": func(*rapid.T) {
				var recs []record.Versioned[record.Member]
				for path, r := range truth {
					version := store.Revision(0)
					for _, e := range log {
						if e.path == path {
							version = e.rev
						}
					}
					recs = append(recs, record.Versioned[record.Member]{Value: r, Version: version})
				}
				x.Fill(recs, store.Revision(len(log)))
				followed = len(log)
			},
			"": func(t *rapid.T) {
				if followed < len(log) {
					return
				}
				active := 0
				for path, want := range truth {
					if got, ok := x.Find(path); !ok || got.State != want.State {
						t.Fatalf("%s is %v (%v), want %v", path, got.State, ok, want.State)
					}
					if want.Kind == identity.Data && want.State == record.Active {
						active++
					}
				}
				if len(x.All()) != len(truth) || len(x.Paths()) != len(truth) {
					t.Fatalf("%d members in view (%d sorted), want %d", len(x.All()), len(x.Paths()), len(truth))
				}
				if got := x.Count(identity.Data); got != active {
					t.Fatalf("%d active data members, want %d", got, active)
				}
			},
		})
	})
}

func TestVisibleTo(t *testing.T) {
	x := member.NewRoster()
	lost := rec(identity.Data, "lost")
	lost.NarrowTo = []string{"gone"} // its token's organization left the entry
	all := []record.Member{
		rec(identity.Admin, "person"), rec(identity.Data, "a", "acme"), rec(identity.Data,
			"ag", "acme", "globex"), rec(identity.Data, "g", "globex"),
		rec(identity.Data, "plain"), rec(identity.Witness, "w"), lost,
	}
	for i, r := range all {
		x.Put(r, store.Revision(i+1))
	}
	for _, tc := range []struct {
		self record.Member
		want string
	}{
		{all[1], "data/a data/ag"},
		{all[2], "data/ag data/g data/a"},
		{all[4], "data/plain witness/w"},
		{lost, "data/lost"},
	} {
		var got []string
		for _, m := range x.VisibleTo(tc.self, 100) {
			got = append(got, m.Path())
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%s sees %q, want %q", tc.self.Path(), s, tc.want)
		}
	}
	if n := len(x.VisibleTo(all[2], 2)); n != 2 {
		t.Errorf("%d members shown, the limit was 2", n)
	}
}

// Whoever publishes is told of a change that others are told of, and of a renewal only where that is waited for.
func TestRenewalsTouchNobody(t *testing.T) {
	x := member.NewRoster()
	a := rec(identity.Data, "a", "acme")
	touched := func(what string, want bool) {
		t.Helper()
		if got := x.TakeTouched()[a.Path()]; got != want {
			t.Errorf("%s: touched %v, want %v", what, got, want)
		}
	}
	version := store.Revision(1)
	put := func() {
		version++
		x.Put(a, version)
	}
	renew := func() {
		var key identity.KeyID
		rand.Read(key[:])
		a.Rekey(key, time.Now().Add(time.Hour), time.Now(), time.Hour)
		a.MeshKey = key
		put()
	}
	put()
	touched("it joined", true)
	renew()
	touched("it renewed", false)
	if got := x.Recorded(a.Path()); got.Version != version || got.Value.Key != a.Key {
		t.Errorf("recorded is %v at %d, want the renewed one at %d", got.Value.Key, got.Version, version)
	}
	if !x.Has(a.Path(), version) || x.Has(a.Path(), version-1) || x.Has("data/b", 0) {
		t.Error("it has another record than the last")
	}
	for what, change := range map[string]func(){
		"it drains":              func() { a.State = record.Draining },
		"another entry":          func() { a.Entry = "other" },
		"another role":           func() { a.Roles = []manifest.Role{"egress"} },
		"another organization":   func() { a.Organizations = []string{"globex"} },
		"it enrolled anew":       func() { a.Incarnation[0]++ },
		"another label":          func() { a.Labels = []string{"rack=7"} },
		"it shows something new": func() { a.Selectors = []string{"x509:subject:CN=a"} },
	} {
		change()
		renew()
		touched(what, true)
	}
	x.Await(a.Path(), version)
	touched("it is waited for", false)
	renew()
	touched("it renewed while it was waited for", true)
	renew()
	touched("it renewed after that", false)
	x.Await(a.Path(), version-1)
	touched("what is waited for is here", true)

	x.Forge(a.Path(), version)
	if x.Recorded(a.Path()).Exists() || x.Has(a.Path(), version) {
		t.Error("a record that was altered in the store is decided on")
	}
	renew()
	touched("it is as it was", true)
	if !x.Recorded(a.Path()).Exists() {
		t.Error("it is not known again")
	}
	x.Remove(a.Path(), version+1)
	touched("it is gone", true)
}

// A listing removes who is not in it, but for those that came after it.
func TestCatchUpRemovesWhoIsNotListed(t *testing.T) {
	t.Parallel()
	x := member.NewRoster()
	for name, version := range map[string]store.Revision{"a": 1, "b": 2, "c": 9, "d": 3, "e": 4} {
		x.Put(rec(identity.Data, name), version)
	}
	x.CatchUp([]string{"data/b", "data/bb", "data/d"}, []record.Versioned[record.Member]{{Value: rec(identity.Data, "bb"), Version: 5}},
		nil, 5)
	if got := strings.Join(x.Paths(), " "); got != "data/b data/bb data/c data/d" {
		t.Errorf("in the view are %s", got)
	}
}
