package coordinator_test

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/manifest"
)

// asking returns a request for a transition of kind, signed as one of signedAs.
func (d *desk) asking(kind, signedAs history.Kind, m []byte) *fealtyv1.SetManifestRequest {
	d.t.Helper()
	parsed, err := manifest.Parse(m)
	if err != nil {
		d.t.Fatal(err)
	}
	key, err := manifest.NewKey(d.signer.Public().(ed25519.PublicKey))
	if err != nil {
		d.t.Fatal(err)
	}
	head := d.state().Head.Hash
	return &fealtyv1.SetManifestRequest{Manifest: m, Reason: "test", Kind: string(kind), CurrentTransition: head[:],
		Signatures: []*fealtyv1.ManifestSignature{
			{Key: key.String(), Signature: ed25519.Sign(d.signer, history.StatementOf(signedAs, parsed.Hash(), head))},
		}}
}

// reshare gives the seed other owners.
func (d *desk) reshare(seed string) (*fealtyv1.SetManifestResponse, error) {
	d.t.Helper()
	was := d.seed
	d.seed = seed
	resp, err := d.c.Rooms().Authority.Set(d.t.(*testing.T).Context(),
		d.asking(history.KindReshare, history.KindReshare, d.manifest(d.extra)), false)
	if err != nil {
		d.seed = was
	}
	return resp, err
}

// committed reports whether the head commits to share.
func (d *desk) committed(share keyring.Share) bool {
	got := share.Commitment(testCluster, d.state().Head.SeedEpoch)
	return slices.ContainsFunc(d.state().Head.ShareCommitments,
		func(c history.ShareCommitment) bool { return c.Hash == got })
}

// Other people, another threshold and another keeper of the same seed.
func TestReshare(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	before, after := newOwners(t, "alice", "bob"), newOwners(t, "carol", "alice", "dave")
	after[1] = before[0]
	d.seed = seedOf(2, before, "host", "stays")
	resp, err := d.c.Rooms().Authority.Set(t.Context(), d.request(d.manifest(poolEntries)), true)
	if err != nil {
		t.Fatal(err)
	}
	d.extra = poolEntries
	old, seed := d.wantShares(t, before, resp.GetShares()), d.state().Secrets
	node := d.joined("node-a")

	resp, err = d.reshare(seedOf(2, after, "stays", "new"))
	if err != nil {
		t.Fatal(err)
	}
	s := d.state()
	if s.Head.Kind != history.KindReshare || s.Head.AuthorityEpoch != 2 || s.Head.SeedEpoch != 1 ||
		!s.Secrets.Same(seed) {
		t.Fatalf("%s, epoch %d, seed epoch %d: want another epoch of the same seed", s.Head.Kind,
			s.Head.AuthorityEpoch, s.Head.SeedEpoch)
	}
	d.wantShares(t, after, resp.GetShares())
	d.wantShares(t, after, d.storedShares(t))
	for _, share := range old {
		if d.committed(share) {
			t.Error("the head commits to a share of before")
		}
	}
	wantOnly(t, "renew", node.renew(), "")
	d.lead(d.c)
	if err := d.c.Rooms().Authority.DropSecrets(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for _, k := range d.store.keys("") {
		if strings.HasSuffix(k, "/host") || strings.HasSuffix(k, "/bob") {
			t.Errorf("%s is still in the store", k)
		}
	}
	// One who needs nobody, and one who was there before.
	for _, keeper := range []string{"stays", "new"} {
		e := d.store.snapshot()
		for _, k := range d.store.keys(sealed.Prefix) {
			if strings.HasSuffix(k, "/stays") || strings.HasSuffix(k, "/new") {
				if !strings.HasSuffix(k, "/"+keeper) {
					d.store.alter(k, func([]byte) []byte { return nil })
				}
			}
		}
		d.restart()
		d.wantPhase("ready", "")
		d.wantShares(t, after, d.storedShares(t))
		d.store.revert(e)
	}

	// The same owners once more: new shares, and nothing else.
	resp, err = d.reshare(d.seed)
	if err != nil {
		t.Fatal(err)
	}
	if d.state().Head.AuthorityEpoch != 2 {
		t.Errorf("the epoch is %d", d.state().Head.AuthorityEpoch)
	}
	d.wantShares(t, after, resp.GetShares())
	// Keepers alone, and back.
	if _, err := d.reshare(seedOf(1, nil, "stays")); err != nil || len(d.storedShares(t)) > 0 {
		t.Fatalf("keepers alone: %v, %d shares", err, len(d.storedShares(t)))
	}
	if resp, err = d.reshare(seedOf(1, before, "stays")); err != nil {
		t.Fatal(err)
	}
	d.wantShares(t, before, resp.GetShares())
}

// What is not a reshare is not done by one, and the reverse; and the consent to
// one is not the consent to the other.
func TestReshareAndSetAreTwoThings(t *testing.T) {
	people := newOwners(t, "alice", "bob")
	for name, tc := range map[string]struct {
		kind, signedAs history.Kind
		seed, extra    string
		want           explain.Code
	}{
		"a set of other owners": {history.KindSet, history.KindSet, seedOf(1, people, "host"), poolEntries,
			explain.ManifestOtherKind},
		"a reshare with an entry more": {history.KindReshare, history.KindReshare, seedOf(1, people, "host"),
			poolEntries + "  - {name: more, kind: data, match: [\"token:more\"]}\n", explain.ManifestOtherKind},
		"a reshare of nothing": {history.KindReshare, history.KindReshare, seedOf(1, nil, "host"),
			poolEntries, explain.ManifestOtherKind},
		"another keeper of the same name": {history.KindReshare, history.KindReshare,
			strings.Replace(seedOf(1, people, "host"), "/host/key", "/else/key",
				1), poolEntries, explain.ManifestOtherKind},
		"a reshare signed as a set": {history.KindReshare, history.KindSet, seedOf(1, people, "host"),
			poolEntries, explain.ManifestMissigned},
		"a set signed as a reshare": {history.KindSet, history.KindReshare, seedOf(1, nil, "host"), poolEntries,
			explain.ManifestMissigned},
		"a kind that cannot be asked for": {history.KindRekey, history.KindRekey, seedOf(1, nil, "host"), poolEntries,
			explain.RequestField},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.seed = seedOf(1, nil, "host")
			wantOnly(t, "first set", d.set(poolEntries), "")
			keys := d.store.keys("")
			d.seed = tc.seed
			_, err := d.c.Rooms().Authority.Set(t.Context(), d.asking(tc.kind, tc.signedAs, d.manifest(tc.extra)), false)
			wantCode(t, err, tc.want)
			if now := d.store.keys(""); !slices.Equal(now, keys) {
				t.Errorf("it left %v", now)
			}
		})
	}
	d := newDesk(t)
	d.seed = seedOf(1, people)
	req := d.request(d.manifest(poolEntries))
	req.Kind = string(history.KindReshare)
	_, err := d.c.Rooms().Authority.Set(t.Context(), req, true)
	wantCode(t, err, explain.HistoryUninitialized)
}

// A reshare that dies anywhere leaves the old owners or the new ones, each with
// shares that fit, and a keeper that brings the seed back.
func TestReshareDiesAnywhere(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	before, after := newOwners(t, "alice", "bob"), newOwners(t, "bob", "carol", "dave")
	start := func(t *testing.T) (d *desk, from history.Hash) {
		d = newDesk(t)
		d.seed = seedOf(2, before, "host", "gone")
		wantOnly(t, "first set", d.set(poolEntries), "")
		return d, d.state().Head.Hash
	}
	settled := func(t *testing.T, d *desk, from history.Hash, failed error) {
		t.Helper()
		d.c.Rooms().Authority.Look(t.Context())
		d.restart()
		d.wantPhase("ready", "")
		moved := d.state().Head.Hash != from
		if failed == nil && !moved {
			t.Fatal("a reshare was acknowledged and did not happen")
		}
		d.lead(d.c)
		if err := d.c.Rooms().Authority.DropSecrets(t.Context(), d.state()); err != nil {
			t.Fatal(err)
		}
		people := before
		if moved {
			people = after
		}
		d.wantShares(t, people, d.storedShares(t))
		// And on: a reshare after it finds its way.
		if !moved {
			d.seed = seedOf(2, before, "host", "gone")
		}
		d.restart()
		d.wantPhase("ready", "")
		if _, err := d.reshare(seedOf(3, after, "host", "last")); err != nil {
			t.Fatal(err)
		}
		d.wantShares(t, after, d.storedShares(t))
		d.restart()
		d.wantPhase("ready", "")
		d.joined("after")
	}
	for _, point := range []string{"set.after-share", "set.after-shares", "set.before-swap", "set.after-swap",
		"adopt.begin", "adopt.before-identity"} {
		t.Run("at "+point, func(t *testing.T) {
			d, from := start(t)
			d.faults.FailNext(point, 1, crash)
			_, err := d.reshare(seedOf(2, after, "host", "new"))
			settled(t, d, from, err)
		})
	}
	for n := range 14 {
		for _, how := range losses(n) {
			t.Run(fmt.Sprintf("write %d, %d", n, how), func(t *testing.T) {
				d, from := start(t)
				d.store.lose(append(slices.Repeat([]lostAnswer{answered}, n), how)...)
				_, err := d.reshare(seedOf(2, after, "host", "new"))
				d.store.lose()
				settled(t, d, from, err)
			})
		}
	}
}

// Of a set and a reshare for one head, one wins.
func TestSetAndReshareHaveOneWinner(t *testing.T) {
	d := newDesk(t)
	people := newOwners(t, "alice", "bob")
	d.seed = seedOf(1, people[:1], "host")
	wantOnly(t, "first set", d.set(poolEntries), "")
	set := d.asking(history.KindSet, history.KindSet, d.manifest(poolEntries+coordinatorEntry(t, 2)))
	d.seed = seedOf(2, people, "host")
	share := d.asking(history.KindReshare, history.KindReshare, d.manifest(poolEntries))
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, req := range []*fealtyv1.SetManifestRequest{set, share} {
		wg.Go(func() { _, errs[i] = d.c.Rooms().Authority.Set(t.Context(), req, false) })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("the set: %v; the reshare: %v", errs[0], errs[1])
	}
	for _, err := range errs {
		if err != nil {
			wantCode(t, err, explain.ManifestStale)
		}
	}
	if d.state().Head.Index != 2 {
		t.Errorf("the head is at index %d", d.state().Head.Index)
	}
	d.wantShares(t, people[:d.state().Manifest.Seed.Threshold], d.storedShares(t))
}
