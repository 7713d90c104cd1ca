package coordinator

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/lifetimes"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
)

func testKey(n int) identity.KeyID {
	return identity.KeyID(sha256.Sum256(fmt.Appendf(nil, "key %d", n)))
}

var epoch0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func TestRenewEvery(t *testing.T) {
	for _, ttl := range []time.Duration{manifest.MinSVIDTTL, 6 * time.Minute, time.Hour, 8 * time.Hour, 25 * time.Hour, 72 * time.Hour, manifest.MaxSVIDTTL} {
		every := lifetimes.RenewEvery(ttl)
		if every <= 0 || every > ttl/2 {
			t.Errorf("svid_ttl %v renews every %v, want at most half of it", ttl, every)
		}
		if n := ttl / every; n > record.MaxLiveKeys {
			t.Errorf("svid_ttl %v renews every %v: %d certificates are valid at once, and a record remembers %d", ttl, every, n, record.MaxLiveKeys)
		}
		if n := (ttl + lifetimes.StretchOf(ttl)) / every; n > record.MaxOlderKeys-8 {
			t.Errorf("svid_ttl %v renews every %v: over %d keys a certificate may be valid at once, and a record remembers %d", ttl, every, n, record.MaxOlderKeys)
		}
	}
	if got := lifetimes.RenewEvery(25 * time.Hour); got != 30*time.Minute {
		t.Errorf("the default svid_ttl renews every %v, want 30m", got)
	}
}

func rec(kind identity.Kind, name string, orgs ...string) record.Member {
	return record.Member{Kind: kind, Name: name, State: record.Active, Organizations: orgs}
}

// The index shows what the store holds, however late and often notices come.
func TestMemberIndexFollowsTheStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newMemberIndex()
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
				r := rec(rapid.SampledFrom([]identity.Kind{identity.Data, identity.Shard}).Draw(t, "kind"), name.Draw(t, "name"))
				r.State = rapid.SampledFrom([]string{record.Active, record.Draining, record.Replacing}).Draw(t, "state")
				rev := store.Revision(len(log) + 1)
				log = append(log, event{rev, r.Path(), &r})
				truth[r.Path()] = r
				if rapid.Bool().Draw(t, "told by the handler") {
					x.put(r, rev)
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
					x.put(*e.record, e.rev)
				}
			},
			"follow": func(t *rapid.T) {
				for ; followed < len(log); followed++ {
					if e := log[followed]; e.record != nil {
						x.put(*e.record, e.rev)
					} else {
						x.remove(e.path, e.rev)
					}
					x.seen(log[followed].rev)
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
				x.fill(recs, store.Revision(len(log)))
				followed = len(log)
			},
			"": func(t *rapid.T) {
				if followed < len(log) {
					return
				}
				active := 0
				for path, want := range truth {
					if got, ok := x.get(path); !ok || got.State != want.State {
						t.Fatalf("%s is %v (%v), want %v", path, got.State, ok, want.State)
					}
					if want.Kind == identity.Data && want.State == record.Active {
						active++
					}
				}
				if len(x.members) != len(truth) || len(x.sorted) != len(truth) {
					t.Fatalf("%d members in view (%d sorted), want %d", len(x.members), len(x.sorted), len(truth))
				}
				if got := x.count(identity.Data); got != active {
					t.Fatalf("%d active data members, want %d", got, active)
				}
			},
		})
	})
}

func TestVisibleMembers(t *testing.T) {
	x := newMemberIndex()
	lost := rec(identity.Data, "lost")
	lost.NarrowTo = []string{"gone"} // its token's organization left the entry
	all := []record.Member{
		rec(identity.Admin, "person"), rec(identity.Data, "a", "acme"), rec(identity.Data, "ag", "acme", "globex"), rec(identity.Data, "g", "globex"),
		rec(identity.Data, "plain"), rec(identity.Witness, "w"), lost,
	}
	for i, r := range all {
		x.put(r, store.Revision(i+1))
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
		for _, m := range x.visible(tc.self, 100) {
			got = append(got, m.Path())
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%s sees %q, want %q", tc.self.Path(), s, tc.want)
		}
	}
	if n := len(x.visible(all[2], 2)); n != 2 {
		t.Errorf("%d members shown, the limit was 2", n)
	}
}

func TestBootstrapTurns(t *testing.T) {
	id, err := identity.New(testCluster, identity.Data, "a")
	if err != nil {
		t.Fatal(err)
	}
	l := liveMembers{members: make(map[identity.ID]*liveMember)}
	l.opened(id, "")
	for want := time.Duration(0); want <= maxBootstrapWait; want += bootstrapPause {
		if w, err := l.bootstrapWait(id, epoch0); w != want || err != nil {
			t.Fatalf("a turn waits %v (%v), want %v", w, err, want)
		}
	}
	for range 100 { // however often it asks, no turn comes for free
		_, err := l.bootstrapWait(id, epoch0)
		wantCode(t, err, explain.RateLimited)
	}
	if w, err := l.bootstrapWait(id, epoch0.Add(bootstrapPause)); w != maxBootstrapWait || err != nil {
		t.Fatalf("the turn after a refusal waits %v (%v)", w, err)
	}
	if w, err := l.bootstrapWait(id, epoch0.Add(-24*time.Hour)); w != 0 || err != nil {
		t.Fatalf("after the clock went back it waits %v (%v)", w, err)
	}
	l.closed(id, nil, true)
	if l.message(id) == nil {
		t.Fatal("a member was forgotten with its stream")
	}
	l.forget(id)
	l.opened(id, "")
	l.closed(id, nil, false)
	if len(l.members) != 0 {
		t.Fatal("who is no member is remembered after its stream")
	}
}

// A manifest may name its signers in any order; the bundle sorts them by key.
func TestManySigners(t *testing.T) {
	d := newDesk(t)
	var list strings.Builder
	for i := range 6 {
		pub, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		key, err := manifest.NewKey(pub)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&list, ", {name: signer-%d, key: %q}", i, key)
	}
	m := strings.Replace(string(d.manifest(poolEntries)), "\"}]\nadmit", "\"}"+list.String()+"]\nadmit", 1)
	if _, err := d.c.authority.set(t.Context(), d.request([]byte(m)), true); err != nil {
		t.Fatal(err)
	}
	if phase, reason := d.c.Phase(); phase != "ready" {
		t.Fatalf("the coordinator is in %s: %s", phase, reason)
	}
}
