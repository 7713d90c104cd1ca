package history_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
)

// withoutManifests is h as a stranger is shown it.
func withoutManifests(h *history.History, but ...manifest.Hash) *history.History {
	out := *h
	out.Manifests = maps.Clone(h.Manifests)
	maps.DeleteFunc(out.Manifests, func(hash manifest.Hash, _ []byte) bool { return !slices.Contains(but, hash) })
	return &out
}

// A fault that breaks a link breaks it without the manifests too, and what stands in a
// manifest is not judged without it: exactly these rules.
func TestOutlineRefuses(t *testing.T) {
	needManifest := map[string]bool{
		"manifest-blob": true, "epoch-with-authority": true, "same-cluster": true, "reshare-seed-only": true, "threshold": true,
		"shares-of-owners": true, "shares-with-seed": true, "signatures": true, "signers-threshold": true, "reseed-keys": true,
	}
	for _, tc := range spoiledHistories() {
		t.Run(tc.rule+"/"+tc.name, func(t *testing.T) {
			k := newTesters(t)
			h := tc.build(newChain(t, k, base))
			o, err := history.VerifyOutline(withoutManifests(h), k.public(), history.SeenHead{})
			if err == nil {
				if !needManifest[tc.rule] || o.Current() == nil {
					t.Fatalf("accepted, with %d links", len(o.Links()))
				}
				return
			}
			if refused, ok := errors.AsType[*history.VerifyError](err); !ok || o != nil || refused.Rule != tc.rule {
				t.Fatalf("VerifyOutline = %v, %v, want a refusal by %s", o, err, tc.rule)
			}
		})
		// A verifier that knows all manifests refuses all of them, by the same rule.
		t.Run(tc.rule+"/"+tc.name+"/all known", func(t *testing.T) {
			k := newTesters(t)
			h := tc.build(newChain(t, k, base))
			_, err := history.VerifyOutline(h, k.public(), history.SeenHead{})
			refused, ok := errors.AsType[*history.VerifyError](err)
			if tc.rule == "manifest-blob" && tc.name == "missing" {
				return // nobody can say that one is missing
			}
			if !ok || refused.Rule != tc.rule {
				t.Fatalf("VerifyOutline = %v, want a refusal by %s", err, tc.rule)
			}
		})
	}
}

// A first look takes the transaction key's word for who signed; a later one asks the
// signers that it remembers, and knows again what a manifest that it has says.
func TestOutline(t *testing.T) {
	k := newTesters(t)
	c := newChain(t, k, base)
	more := base
	more.nodes = 1
	first := c.verified().Seen()
	c.add(history.KindSet, more)
	c.add(history.KindRekey, more)
	moved := more
	moved.coord = 1
	c.add(history.KindSet, moved)
	c.add(history.KindReseed, moved)
	restore := c.verified().Restore(time.Unix(1_800_000_000, 0), history.Hash{1})
	c.fill(restore, moved, true)
	c.links, c.manifests = append(c.links, restore), append(c.manifests, c.manifests[len(c.manifests)-1])

	whole := c.history()
	in := k.manifest(t, moved)
	for _, tc := range []struct {
		name     string
		known    []manifest.Hash
		seen     history.SeenHead
		unsigned int
	}{
		{"first look", []manifest.Hash{in.Hash()}, history.SeenHead{}, 2},               // both sets
		{"nothing known", nil, history.SeenHead{}, 4},                                   // reseed and restore too
		{"later look", []manifest.Hash{in.Hash()}, first, 1},                            // the second set follows a manifest that it never saw
		{"looked just before", []manifest.Hash{in.Hash()}, c.verifiedUpTo(3).Seen(), 1}, // the first set was before that
		{"all manifests", slices.Collect(maps.Keys(whole.Manifests)), history.SeenHead{}, 0},
	} {
		o, err := history.VerifyOutline(withoutManifests(whole, tc.known...), k.public(), tc.seen)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if o.Unsigned() != tc.unsigned || o.Current().Hash != c.verified().Current().Hash || !bytes.Equal(o.TransactionKey(), c.verified().TransactionKey()) ||
			len(o.Reseeds()) != 1 || o.Head().Hash != o.Current().Hash {
			t.Errorf("%s: %d links nobody signed, want %d", tc.name, o.Unsigned(), tc.unsigned)
		}
		if _, err := o.Accepts(first); err != nil {
			t.Errorf("%s: the first head is not on the way: %v", tc.name, err)
		}
	}
	other := first
	other.Hash[0]++
	o, err := history.VerifyOutline(withoutManifests(whole), k.public(), first)
	if err != nil {
		t.Fatal(err)
	}
	if restored, err := o.Accepts(other); !restored || err != nil {
		t.Errorf("a restore by the same signers does not stand for a head that it replaced: %v, %v", restored, err)
	}

	// The first link after what was seen has to have its signers.
	d := newChain(t, k, base)
	seen := d.verified().Seen()
	d.add(history.KindSet, more)
	d.last().Signatures = nil
	if _, err := history.VerifyOutline(withoutManifests(d.history()), k.public(), history.SeenHead{}); err != nil {
		t.Errorf("a first look knows no signers: %v", err)
	}
	_, err = history.VerifyOutline(withoutManifests(d.history()), k.public(), seen)
	if refused, ok := errors.AsType[*history.VerifyError](err); !ok || refused.Rule != "signers-threshold" {
		t.Errorf("a set that nobody signed follows what was seen: %v", err)
	}
	d.last().Signatures = newTesters(t).sign(d.last().Statement(), 0)
	_, err = history.VerifyOutline(withoutManifests(d.history()), k.public(), seen)
	if refused, ok := errors.AsType[*history.VerifyError](err); !ok || refused.Rule != "signatures" {
		t.Errorf("a set that strangers signed follows what was seen: %v", err)
	}
	if _, err := history.VerifyOutline(withoutManifests(d.history()), nil, seen); !errors.Is(err, history.ErrUnverified) {
		t.Errorf("without a key: %v", err)
	}
}
