package admission // inside: a table of decisions, of which a whole outage shows a few

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
)

// Each way in which a member is not to be certified again in an outage.
func TestRecertified(t *testing.T) {
	pub, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := manifest.NewKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Parse(fmt.Appendf(nil, `cluster: prod
seed: {threshold: 1, owners: [{name: host, keeper: "file:/keeper/key"}]}
signers: {threshold: 1, keys: [{name: alice, key: "%[1]s"}]}
admit:
  - {name: coordinator-1, kind: coordinator, match: ["key:%[1]s"]}
  - {name: pool, kind: data, match: ["token:pool"]}
  - {name: ops, kind: admin, match: ["token:ops"]}
`, signer))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	keys := [4]identity.KeyID{{1}, {2}, {3}, {4}}
	last, older, oldest, other := keys[0], keys[1], keys[2], keys[3]
	rec := record.Member{Kind: identity.Data, Name: "a", State: record.Active,
		Shown: proof.Shown{Selectors: []string{"token:pool"}}, Entry: "pool", Key: last, NotAfter: now.Add(time.Hour),
		Older: []record.OlderKey{{Key: older, NotAfter: now.Add(time.Minute)},
			{Key: oldest, NotAfter: now.Add(time.Minute)}}}
	with := func(f func(*record.Member)) record.Member {
		r := rec
		f(&r)
		return r
	}
	id, err := identity.New(m.Cluster, identity.Data, "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name            string
		rec             record.Member
		presented, next identity.KeyID
		want            error
		until           time.Duration // from now
	}{
		{"its recorded key", rec, last, last, nil, 2 * time.Hour},
		{"the answer to the last renewal was lost", rec, older, last, nil, 2 * time.Hour},
		{"a record that ends late", with(func(r *record.Member) { r.NotAfter = now.Add(1000 * time.Hour) }), last, last,
			nil, 1000 * time.Hour},
		{"certified by an outage before", with(func(r *record.Member) { r.NotAfter = now.Add(-time.Minute) }), last,
			last, nil, time.Hour - time.Minute},
		{"certified by an outage for as long as can be",
			with(func(r *record.Member) { r.NotAfter = now.Add(-time.Hour) }), last, last, errNotRecorded, 0},
		{"drains", with(func(r *record.Member) { r.State = record.Draining }), last, last, nil, 2 * time.Hour},
		{"a new key", rec, last, other, errNotRecorded, 0},
		{"a key that is not known, of a later renewal", rec, other, other, errNotRecorded, 0},
		{"a later key for the recorded one", rec, other, last, errNotRecorded, 0},
		{"an older key", rec, older, older, errcode.RenewOlderKey, 0},
		{"an older key for a new one", rec, older, other, errcode.RenewOlderKey, 0},
		{"the oldest key for the recorded one", rec, oldest, last, errcode.RenewOlderKey, 0},
		{"the recorded key for an older one", rec, last, older, errNotRecorded, 0},
		{"no member any more", with(func(r *record.Member) { r.State = record.Replacing }), last, last,
			errcode.RenewEntryGone, 0},
		{"no entry admits it", with(func(r *record.Member) { r.Selectors = []string{"token:gone"} }), last, last,
			errcode.RenewEntryGone, 0},
		{"its entry is of another kind", with(func(r *record.Member) { r.Selectors = []string{"token:ops"} }), last,
			last, errcode.JoinKindMismatch, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			until, entry, err := recertified(m, tt.rec, id, tt.presented, tt.next, now, time.Hour)
			if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Fatalf("%v, want %v", err, tt.want)
			}
			if err != nil {
				return
			}
			want := now.Add(min(tt.until, entry.SVIDTTL)).Truncate(time.Second)
			if !until.Equal(want) || entry.Name != "pool" {
				t.Errorf("until %v by %s, want %v", until, entry.Name, want)
			}
		})
	}
}

// Nothing is certified again under a head that is not in force any more: the newer manifest may
// not admit the member.
func TestNothingIsRecertifiedUnderAnOlderHead(t *testing.T) {
	a := New(Config{Head: authority.NewHead(authority.HeadConfig{}), Readers: new(ratelimit.Readers)})
	cause := errcode.New(errcode.StoreUnreachable, "what", "the renewal", "cause", "it is away")
	chain, err := a.recertify(t.Context(), &authority.State{}, identity.Peer{}, renewRequest{}, record.Member{},
		time.Hour, nil, cause)
	if !errors.Is(err, errcode.HeadNotFollowed) || chain != nil {
		t.Errorf("%v", err)
	}
}
