package snapshot

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// Whichever byte of an encoded snapshot flips, in one bit or in all, and wherever
// it is cut, nothing is accepted, and nothing panics.
func TestEveryFlipAndTruncationIsRefused(t *testing.T) {
	f := newFleet(t)
	trust := f.trust()
	trust.Bundle = f.bundle
	try := func(data []byte) error {
		s, err := Unmarshal(data)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				return fmt.Errorf("Unmarshal: %w, which is not ErrMalformed", err)
			}
			return nil
		}
		if _, err := Verify(s, trust, Marks{}, f.now); err == nil {
			return errors.New("accepted")
		} else if !errors.Is(err, ErrRejected) {
			return err
		}
		return nil
	}
	small := f.sized(t, 512) // with a proof of ten hashes
	runtime := f.publishAmong(must(Compose(f.bootstrapHeader(), f.runtimeContent())), 3)
	for name, s := range map[string]*Signed{"ed25519": f.signedBundle(t), "ed25519-tree": small, "node_runtime": runtime} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := must(s.Marshal())
			f.mustVerify(t, must(Unmarshal(data)), trust)
			for i := range data {
				for _, mask := range []byte{1 << (i % 8), 0xff} {
					data[i] ^= mask
					if err := try(data); err != nil {
						t.Fatalf("byte %d of %d, flipped by %#x: %v", i, len(data), mask, err)
					}
					data[i] ^= mask
				}
			}
			for n := range data {
				if err := try(data[:n]); err != nil {
					t.Fatalf("cut to %d of %d bytes: %v", n, len(data), err)
				}
			}
			if err := try(append(data, 0)); err != nil {
				t.Fatalf("with a byte behind: %v", err)
			}
		})
	}
}

// site is a member of an object somewhere in a JSON text.
type site struct {
	path       string
	start, end int // of `"name":value`, without commas
	value      int // where the value starts
}

// sites returns all members of all objects in text.
func sites(tb testing.TB, text []byte) []site {
	tb.Helper()
	var out []site
	var walk func(d *jsontext.Decoder)
	walk = func(d *jsontext.Decoder) {
		switch t := must(d.ReadToken()); t.Kind() {
		case '{':
			for d.PeekKind() != '}' {
				name := must(d.ReadToken()).String()
				s := site{path: string(d.StackPointer()), value: int(d.InputOffset()) + 1}
				s.start = s.value - len(name) - 3
				walk(d)
				s.end = int(d.InputOffset())
				out = append(out, s)
			}
			must(d.ReadToken())
		case '[':
			for d.PeekKind() != ']' {
				walk(d)
			}
			must(d.ReadToken())
		}
	}
	walk(jsontext.NewDecoder(bytes.NewReader(text)))
	return out
}

// mutations bend one member. An empty result means that the mutation does not
// apply.
var mutations = []struct {
	name string
	bend func(text []byte, s site) []byte
}{
	{"missing", func(text []byte, s site) []byte {
		cut, rest := text[:s.start], text[s.end:]
		switch {
		case rest[0] == ',':
			rest = rest[1:]
		case cut[len(cut)-1] == ',':
			cut = cut[:len(cut)-1]
		}
		return slices.Concat(cut, rest)
	}},
	{"duplicate", func(text []byte, s site) []byte {
		return slices.Concat(text[:s.end], []byte(","), text[s.start:s.end], text[s.end:])
	}},
	{"renamed", func(text []byte, s site) []byte {
		return slices.Concat(text[:s.start+1], []byte("A"), text[s.start+1:])
	}},
	{"unknown before", func(text []byte, s site) []byte {
		return slices.Concat(text[:s.start], []byte(`"admin":true,`), text[s.start:])
	}},
	{"null", replaced(func(jsontext.Kind, string) string { return "null" })},
	{"wrong type", replaced(func(k jsontext.Kind, v string) string {
		switch k {
		case '"':
			return "123"
		case '0':
			return `"` + v + `"`
		case '[':
			return `"x"`
		case '{':
			return "[]"
		}
		return "0"
	})},
	{"wrapped", replaced(func(_ jsontext.Kind, v string) string { return "[" + v + "]" })},
	{"float", replaced(func(k jsontext.Kind, v string) string {
		switch k {
		case '0':
			return v + ".0"
		case '"':
			return strings.TrimSuffix(v, `"`) + `.5"`
		}
		return ""
	})},
	{"negative", replaced(func(k jsontext.Kind, v string) string {
		switch k {
		case '0':
			return "-" + v
		case '"':
			return `"-` + v[1:]
		}
		return ""
	})},
	{"leading zero", replaced(func(k jsontext.Kind, v string) string {
		if k == '0' {
			return "0" + v
		}
		if k == '"' && len(v) > 2 && strings.Trim(v[1:len(v)-1], "0123456789") == "" {
			return `"0` + v[1:]
		}
		return ""
	})},
	{"space", replaced(func(_ jsontext.Kind, v string) string { return " " + v })},
	{"escaped", replaced(func(k jsontext.Kind, v string) string {
		if k != '"' || len(v) < 3 {
			return ""
		}
		return fmt.Sprintf(`"\u%04x%s`, v[1], v[2:])
	})},
	{"huge", replaced(func(k jsontext.Kind, v string) string {
		switch k {
		case '"':
			return `"` + strings.Repeat("9", 5000) + `"`
		case '0':
			return strings.Repeat("9", 400)
		case '[':
			return "[" + strings.Repeat(`"a",`, 1500) + `"a"]`
		}
		return ""
	})},
	{"empty", replaced(func(k jsontext.Kind, v string) string {
		switch k {
		case '"':
			return `""`
		case '0':
			return "0"
		case '[':
			return "[]"
		case '{':
			return "{}"
		}
		return ""
	})},
}

func replaced(value func(kind jsontext.Kind, v string) string) func([]byte, site) []byte {
	return func(text []byte, s site) []byte {
		old := text[s.value:s.end]
		v := value(jsontext.Value(old).Kind(), string(old))
		if v == "" {
			return nil
		}
		return slices.Concat(text[:s.value], []byte(v), text[s.end:])
	}
}

// Every member of everything that is signed, bent in every way, and signed as
// it is, is refused. Only what means nothing or is another valid value passes.
func TestEveryFieldMutationIsRefused(t *testing.T) {
	f := newFleet(t)
	trust := f.trust()
	boot := &forge{header: f.bootstrapHeader(), record: f.record(), cluster: testCluster, keys: []crypto.Signer{f.keys[0]}}
	boot.header.ScopeIDs = []string{"rack-1"}
	bundle := &forge{header: f.bundleHeader(), cluster: testCluster, root: true, keys: []crypto.Signer{f.root}}
	bundle.header.Roles, bundle.header.OrganizationIDs = []string{"ingress"}, []string{"acme"}
	bundleDraft := must(Compose(bundle.header, f.bundleContent()))
	bootDraft := must(Compose(boot.header, f.bootstrapContent()))
	runtimeDraft := must(Compose(boot.header, f.runtimeContent()))

	resigned := func(g *forge, d *Draft, content []byte) *Signed {
		h := d.Header()
		h.ContentHash, h.ContentSize = DigestOf(content), len(content)
		return g.signBytes(must(encode(&h)), content)
	}
	for _, c := range []struct {
		name  string
		text  []byte
		sign  func(text []byte) *Signed
		valid []string // path + " " + mutation
	}{
		{"node_bootstrap header", bootDraft.HeaderBytes(),
			func(text []byte) *Signed { return boot.signBytes(text, bootDraft.ContentBytes()) },
			[]string{"/scope_ids empty", "/snapshot_id negative", "/snapshot_id float"}},
		{"trust_bundle header", bundleDraft.HeaderBytes(),
			func(text []byte) *Signed { return bundle.signBytes(text, bundleDraft.ContentBytes()) },
			[]string{"/scope_ids empty", "/roles empty", "/organization_ids empty", "/snapshot_id negative", "/snapshot_id float"}},
		{"record", must(encode(&boot.record)), nil, nil},
		{"node_bootstrap content", bootDraft.ContentBytes(),
			func(text []byte) *Signed { return resigned(boot, bootDraft, text) },
			[]string{"/members empty", "/degraded/allow empty", "/degraded/max_seconds empty", "/degraded/route_ttl_seconds empty",
				"/resilience/data_members empty", "/resilience/required empty", "/entry float", "/entry negative", "/members/0/id float", "/members/1/id float"}},
		{"node_runtime header", runtimeDraft.HeaderBytes(),
			func(text []byte) *Signed { return boot.signBytes(text, runtimeDraft.ContentBytes()) },
			[]string{"/scope_ids empty", "/snapshot_id negative", "/snapshot_id float"}},
		{"node_runtime content", runtimeDraft.ContentBytes(),
			func(text []byte) *Signed { return resigned(boot, runtimeDraft, text) },
			[]string{"/degraded missing", "/degraded/allow empty", "/degraded/max_seconds empty", "/degraded/route_ttl_seconds empty", "/entry float", "/entry negative"}},
		{"trust_bundle content", bundleDraft.ContentBytes(),
			func(text []byte) *Signed { return resigned(bundle, bundleDraft, text) },
			[]string{"/banned_ids empty", "/banned_keys empty", "/mesh_keys empty", "/config_keys empty", "/config_keys/0/scopes empty",
				"/config_keys/1/scopes empty", "/config_keys/0/algorithm float", "/config_keys/0/algorithm negative",
				"/config_keys/1/algorithm float", "/config_keys/1/algorithm negative", "/signers/keys/0/name float", "/signers/keys/0/name negative"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.sign == nil {
				boot := *boot
				header := bootDraft.HeaderBytes()
				boot.record.Root, boot.record.TreeSize = LeafOf(testCluster, header), 1
				c.text = must(encode(&boot.record))
				c.sign = func(text []byte) *Signed {
					return &Signed{Header: header, Content: bootDraft.ContentBytes(), Publication: &Publication{Record: text,
						Signatures: must(signAll(PAE(TypePublication, testCluster, text), AlgorithmTree, boot.keys))}}
				}
			}
			f.mustVerify(t, c.sign(c.text), trust)
			all := sites(t, c.text)
			if len(all) < 5 {
				t.Fatalf("only %d members found", len(all))
			}
			for _, s := range all {
				for _, m := range mutations {
					bent := m.bend(c.text, s)
					if bent == nil || bytes.Equal(bent, c.text) {
						continue
					}
					what := s.path + " " + m.name
					_, err := Verify(c.sign(bent), trust, Marks{}, f.now)
					if slices.Contains(c.valid, what) {
						if err != nil {
							t.Errorf("%s: %v, but it is another valid value", what, err)
						}
						continue
					}
					if !errors.Is(err, ErrRejected) {
						t.Errorf("%s: got %v, want a refusal\n%.400s", what, err, bent)
					}
				}
			}
		})
	}
}
