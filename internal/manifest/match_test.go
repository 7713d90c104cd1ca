package manifest_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/manifest"
)

func TestMatch(t *testing.T) {
	d := newDoc(t)
	key := newKey(t)
	d.admit += `  - {name: pool, kind: data, match: ["x509:dns:*.pool.example", "tpm:ek:` + strings.Repeat("AB", 32) + `"]}
  - {name: special, kind: data, match: ["x509:dns:s1.pool.example"]}
  - {name: keyed, kind: shard, match: ["key:ed25519:` + hex.EncodeToString(key[:]) + `"]}
  - {name: pods, kind: data, match: ["k8s:sa:prod/agent-*"]}
`
	m := mustAccept(t, d.String())
	for _, tc := range []struct {
		name        string
		kind        identity.Kind
		selectors   []string
		entry, as   string // empty: nobody
		token       bool
		kindsListed []identity.Kind
	}{
		{"entry's own name", identity.Data, []string{"x509:subject:CN=node-c"}, "node-c", "node-c", false, []identity.Kind{identity.Data}},
		{"captured name", identity.Coordinator, []string{"x509:subject:CN=coordinator-eu.1"}, "coordinators", "eu.1", false, []identity.Kind{identity.Coordinator}},
		{"token has no name of its own here", identity.Data, []string{"token:edge-pool"}, "edge-pool", "", true, []identity.Kind{identity.Data}},
		{"exact goes before glob", identity.Data, []string{"x509:dns:s1.pool.example"}, "special", "special", false, []identity.Kind{identity.Data}},
		{"glob beside it", identity.Data, []string{"x509:dns:s2.pool.example"}, "pool", "s2", false, []identity.Kind{identity.Data}},
		{"DNS names are compared in lower case", identity.Data, []string{"x509:dns:S2.pool.EXAMPLE"}, "pool", "s2", false, []identity.Kind{identity.Data}},
		{"hash in another case, no glob", identity.Data, []string{"tpm:ek:" + strings.Repeat("ab", 32)}, "pool", "pool", false, []identity.Kind{identity.Data}},
		{"key in base64", identity.Shard, []string{"key:" + key.String()}, "keyed", "keyed", false, []identity.Kind{identity.Shard}},
		{"pod", identity.Data, []string{"k8s:sa:prod/agent-7"}, "pods", "7", false, []identity.Kind{identity.Data}},
		{"several selectors, one matches", identity.Data, []string{"x509:dns:x", "x509:subject:CN=node-c"}, "node-c", "node-c", false, []identity.Kind{identity.Data}},
		{"earlier entry of two", identity.Data, []string{"token:edge-pool", "x509:subject:CN=node-c"}, "node-c", "node-c", false, []identity.Kind{identity.Data}},
		{"two kinds by two selectors", identity.Admin, []string{"x509:subject:CN=alice", "token:edge-pool"}, "alice", "alice", false, []identity.Kind{identity.Data, identity.Admin}},
		{"another kind", identity.Data, []string{"x509:subject:CN=alice"}, "", "", false, []identity.Kind{identity.Admin}},
		{"nothing shown", identity.Data, nil, "", "", false, nil},
		{"unknown", identity.Data, []string{"x509:subject:CN=node-d"}, "", "", false, nil},
		{"nothing captured", identity.Coordinator, []string{"x509:subject:CN=coordinator-"}, "", "", false, nil},
		{"captured path", identity.Coordinator, []string{"x509:subject:CN=coordinator-a/b"}, "", "", false, nil},
		{"captured dots", identity.Coordinator, []string{"x509:subject:CN=coordinator-.."}, "", "", false, nil},
		{"captured more of the subject", identity.Coordinator, []string{"x509:subject:CN=coordinator-a,O=x"}, "", "", false, nil},
		{"captured space", identity.Coordinator, []string{"x509:subject:CN=coordinator-a b"}, "", "", false, nil},
		{"captured too much", identity.Coordinator, []string{"x509:subject:CN=coordinator-" + strings.Repeat("x", 129)}, "", "", false, nil},
		{"a pattern is no selector", identity.Coordinator, []string{"x509:subject:CN=coordinator-*"}, "", "", false, nil},
		{"other family with the same value", identity.Data, []string{"x509:dns:CN=node-c"}, "", "", false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := m.Match(tc.kind, tc.selectors)
			if ok != (tc.entry != "") || ok && (got.Entry.Name != tc.entry || got.Name != tc.as || got.Token != tc.token) {
				t.Errorf("Match = %+v, %v, want entry %q as %q", got, ok, tc.entry, tc.as)
			}
			if ok {
				if again, ok := m.Match(tc.kind, []string{got.Selector}); !ok || again != got {
					t.Errorf("the recorded selector %q matches %+v, %v", got.Selector, again, ok)
				}
			}
			if kinds := m.KindsFor(tc.selectors); !slices.Equal(kinds, tc.kindsListed) {
				t.Errorf("KindsFor = %v, want %v", kinds, tc.kindsListed)
			}
		})
	}
}

// The promise of the parser: in an accepted manifest no selector is of two
// kinds, and every pattern can be chosen.
func TestNoSelectorHasTwoKinds(t *testing.T) {
	base := newDoc(t)
	words := []string{"", "a", "b", "ab", "ba", "aab", "-a", "a-"}
	rapid.Check(t, func(t *rapid.T) {
		d := base
		word := rapid.SampledFrom(words)
		n := rapid.IntRange(1, 4).Draw(t, "entries")
		type written struct{ prefix, star, suffix string }
		var patterns []written
		for i := range n {
			kind := rapid.SampledFrom([]string{"data", "witness", "shard"}).Draw(t, "kind")
			p := written{word.Draw(t, "prefix"), rapid.SampledFrom([]string{"*", ""}).Draw(t, "star"), word.Draw(t, "suffix")}
			if p.prefix+p.star+p.suffix == "" {
				p.prefix = "x"
			}
			patterns = append(patterns, p)
			d.admit += fmt.Sprintf("  - {name: e%d, kind: %s, match: [\"x509:dns:%s%s%s\"]}\n", i, kind, p.prefix, p.star, p.suffix)
		}
		m, err := manifest.Parse([]byte(d.String()))
		if err != nil {
			invalid, _ := errors.AsType[*manifest.InvalidError](err)
			for _, p := range invalid.Problems {
				if p.Rule != "two-kinds" && p.Rule != "shadowed-selector" {
					t.Fatalf("refused for another reason: %v", p)
				}
			}
			return
		}
		// Selectors that a pair of patterns could meet in: each pattern filled with
		// each other's text.
		for i, p := range patterns {
			chosen := false
			for _, fill := range []string{"z", "a", "b", "ab", "ba", "a-", "-a", "aa"} {
				for _, q := range patterns {
					for _, s := range []string{fill, q.prefix + fill, fill + q.suffix, q.prefix + fill + q.suffix} {
						selector := "x509:dns:" + p.prefix
						if p.star != "" {
							selector += s
						}
						selector += p.suffix
						if kinds := m.KindsFor([]string{selector}); len(kinds) > 1 {
							t.Fatalf("%s is of kinds %v in\n%s", selector, kinds, d.admit)
						}
						for _, k := range manifest.Kinds() {
							match, ok := m.Match(k, []string{selector})
							chosen = chosen || ok && match.Entry.Name == fmt.Sprintf("e%d", i)
						}
					}
				}
			}
			if !chosen {
				t.Fatalf("pattern %+v of entry e%d is never chosen in\n%s", p, i, d.admit)
			}
		}
	})
}

// A name that Match returns always makes an identity.
func TestCapturedNamesAreNames(t *testing.T) {
	m := mustParse(t, newDoc(t).String())
	rapid.Check(t, func(t *rapid.T) {
		captured := rapid.OneOf(rapid.StringMatching(`[a-zA-Z0-9./%_ -]{0,6}`), rapid.String()).Draw(t, "captured")
		match, ok := m.Match(identity.Coordinator, []string{"x509:subject:CN=coordinator-" + captured})
		id, err := identity.New(m.Cluster, identity.Coordinator, captured)
		if ok != (err == nil && len(captured) <= 128) {
			t.Fatalf("%q: matched %v, identity: %v", captured, ok, err)
		}
		if ok && (match.Name != captured || id.Name() != captured) {
			t.Fatalf("%q: named %q", captured, match.Name)
		}
	})
}

func TestKey(t *testing.T) {
	k := newKey(t)
	for _, s := range []string{k.String(), "ed25519:" + hex.EncodeToString(k[:]), "ed25519:" + strings.ToUpper(hex.EncodeToString(k[:]))} {
		if got, err := manifest.ParseKey(s); err != nil || got != k {
			t.Errorf("ParseKey(%q) = %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "ed25519:", k.String() + "\n", " " + k.String(), strings.ToUpper(k.String()[:8]) + k.String()[8:],
		k.String()[:20] + "\n" + k.String()[20:], otherPadding(k.String())} {
		if got, err := manifest.ParseKey(s); !errors.Is(err, manifest.ErrBadKey) {
			t.Errorf("ParseKey(%q) = %v, %v, want ErrBadKey", s, got, err)
		}
	}
	if _, err := manifest.NewKey(make(ed25519.PublicKey, 31)); !errors.Is(err, manifest.ErrBadKey) {
		t.Errorf("NewKey took 31 bytes: %v", err)
	}
	text, err := k.MarshalText()
	var back manifest.Key
	if err != nil || back.UnmarshalText(text) != nil || back != k {
		t.Errorf("text %q gives %v", text, back)
	}
}

// otherPadding changes bits of the last character that stand for no byte.
func otherPadding(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	at := len(s) - 2
	return s[:at] + string(alphabet[strings.IndexByte(alphabet, s[at])+1]) + s[at+1:]
}

// For a key of small order the all-zero scalar with a torsion point signs some
// messages: crypto/ed25519 takes the signature, so the key must be refused.
func TestSmallOrderKeysAreRefused(t *testing.T) {
	forgeable := func(key ed25519.PublicKey) bool {
		signature := make([]byte, ed25519.SignatureSize)
		signature[0] = 1 // R: the neutral element; S: 0
		for i := range 256 {
			if ed25519.Verify(key, []byte{byte(i)}, signature) {
				return true
			}
		}
		return false
	}
	for _, s := range []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0000000000000000000000000000000000000000000000000000000000000080",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000080",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
	} {
		key, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		if !forgeable(key) {
			t.Errorf("%s is no key of small order: the list is wrong", s)
		}
		if _, err := manifest.NewKey(key); !errors.Is(err, manifest.ErrBadKey) {
			t.Errorf("NewKey(%s) = %v, want ErrBadKey", s, err)
		}
	}
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil || forgeable(public) {
		t.Errorf("the test calls an honest key forgeable (%v)", err)
	}
}

// Whether two patterns overlap does not depend on which is asked, and patterns
// that match one selector between them do overlap.
func TestOverlaps(t *testing.T) {
	text := rapid.StringMatching(`[ab]{0,3}\*?[ab]{0,3}`).Filter(func(s string) bool { return s != "" })
	rapid.Check(t, func(t *rapid.T) {
		p, err1 := manifest.ParsePattern("x509:dns:" + text.Draw(t, "p"))
		q, err2 := manifest.ParsePattern("x509:dns:" + text.Draw(t, "q"))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if manifest.Overlaps(p, q) != manifest.Overlaps(q, p) {
			t.Fatalf("%v and %v overlap one way only", p, q)
		}
		selector := "x509:dns:" + rapid.StringMatching(`[ab]{1,9}`).Draw(t, "value")
		_, inP := p.Capture(selector)
		_, inQ := q.Capture(selector)
		if inP && inQ && !manifest.Overlaps(p, q) {
			t.Fatalf("%s matches %v and %v, which do not overlap", selector, p, q)
		}
		if manifest.Covers(p, q) && inQ && !inP {
			t.Fatalf("%v covers %v, and %s matches the second only", p, q, selector)
		}
	})
	p, err := manifest.ParsePattern("x509:dns:a*b")
	if err != nil {
		t.Fatal(err)
	}
	if captured, ok := p.Capture("x509:dns:ab"); ok {
		t.Errorf("a * captured %q", captured)
	}
}
