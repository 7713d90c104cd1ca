package snapshot

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/go-json-experiment/json/jsontext"
)

// Whichever byte of an encoded snapshot of any scope flips, in whichever way and
// wherever it is cut, whole or as an increment or detached, nothing is accepted, and
// nothing panics.
func TestEveryFlipAndTruncationIsRefused(t *testing.T) {
	f := newFleet(t)
	whole := func(trust Trust) func(*Signed) error {
		return func(s *Signed) error {
			_, err := Verify(s, trust, Marks{}, f.now)
			return err
		}
	}
	type flipped struct {
		name   string
		signed *Signed
		take   func(*Signed) error
	}
	cases := []flipped{
		{"ed25519", f.signedBundle(t), whole(f.trust())},
		{"ed25519-tree", f.sized(t, 512), whole(f.trust())}, // with a proof of ten hashes
		{"node_runtime", f.publishAmong(must(Compose(f.bootstrapHeader(), f.runtimeContent())), 3), whole(f.trust())},
	}
	for _, s := range f.samples(t) {
		scope, trust := s.content.scope(), f.trustOf(s)
		l := f.line(s)
		first := l.publish(s.content)
		cases = append(cases, flipped{s.name, first, whole(trust)})
		active := f.mustVerify(t, first, trust)
		detached := *first
		detached.Content = nil
		cases = append(cases, flipped{s.name + ", detached", &detached, func(s *Signed) error {
			c, err := VerifyHeader(s, trust, Marks{}, f.now)
			if err == nil && (len(s.Content) > 0 || len(s.Patch) > 0) {
				return errors.New("it has a content now")
			}
			if err == nil {
				_, err = c.Complete([]byte(active.ContentJSON()))
			}
			return err
		}})
		if !ruleOf(scope).increments {
			continue
		}
		// The next version is without the last part.
		parts := partsOf(t, scope, first.Content)
		less := ruleOf(scope).content()
		must(decode(string(contentOf(ruleOf(scope), parts[:len(parts)-1])), less))
		sent := asPatch(t, scope, l.publish(less), first.Content)
		cases = append(cases, flipped{s.name + ", increment", sent, func(s *Signed) error {
			c, err := VerifyHeader(s, trust, Marks{}, f.now)
			if err == nil {
				_, _, err = c.CompletePatch(active, s.Patch)
			}
			return err
		}})
	}
	for _, c := range cases {
		try := func(data []byte) error {
			s, err := Unmarshal(data)
			if err != nil {
				if !errors.Is(err, ErrMalformed) {
					return fmt.Errorf("Unmarshal: %w, which is not ErrMalformed", err)
				}
				return nil
			}
			if err := c.take(s); err == nil {
				return errors.New("accepted")
			} else if !errors.Is(err, ErrRejected) {
				return err
			}
			return nil
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			data := must(c.signed.Marshal())
			if err := c.take(must(Unmarshal(data))); err != nil {
				t.Fatalf("as it is: %v", err)
			}
			for i := range data {
				masks := []byte{1 << (i % 8)}
				if i < 8 {
					masks = []byte{1, 2, 4, 8, 16, 32, 64, 128, 0xff}
				}
				for _, mask := range masks {
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
			[]string{"/companions missing", "/degraded missing", "/degraded/allow empty", "/degraded/max_seconds empty", "/degraded/route_ttl_seconds empty", "/entry float", "/entry negative"}},
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
						Signatures: must(signAll(snapshot.PAE(snapshot.TypePublication, testCluster, text), snapshot.AlgorithmTree, boot.keys))}}
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

// The same for the contents that are made of records, and their headers. The
// mutations that may pass are in a file: each line was looked at.
func TestEveryFieldMutationOfRecordsIsRefused(t *testing.T) {
	f := newFleet(t)
	valid := map[string]bool{}
	for line := range strings.Lines(string(must(os.ReadFile("testdata/valid_mutations.txt")))) {
		if !strings.HasPrefix(line, "#") {
			valid[strings.TrimSpace(line)] = true
		}
	}
	for _, s := range f.samples(t) {
		g := &forge{header: f.headerOf(s), record: f.record(), cluster: testCluster, keys: []crypto.Signer{f.keys[0]}}
		g.header.ScopeIDs = []string{"rack-1"}
		if ruleOf(s.content.scope()).increments {
			g.header.Base = &Base{6, Digest{5}}
		}
		d, trust := must(Compose(g.header, s.content)), f.trustOf(s)
		for _, c := range []struct {
			name string
			text []byte
			sign func([]byte) *Signed
		}{
			{"header", d.HeaderBytes(), func(text []byte) *Signed { return g.signBytes(text, d.ContentBytes()) }},
			{"content", d.ContentBytes(), func(text []byte) *Signed {
				h := d.Header()
				h.ContentHash, h.ContentSize = DigestOf(text), len(text)
				return g.signBytes(must(encode(&h)), text)
			}},
		} {
			f.mustVerify(t, c.sign(c.text), trust)
			for _, at := range sites(t, c.text) {
				for _, m := range mutations {
					bent := m.bend(c.text, at)
					if bent == nil || bytes.Equal(bent, c.text) {
						continue
					}
					what := fmt.Sprintf("%s %s %s %s", s.name, c.name, at.path, m.name)
					_, err := Verify(c.sign(bent), trust, Marks{}, f.now)
					if valid[what] && err != nil {
						t.Errorf("%s: %v, but it is another valid value", what, err)
					}
					if !valid[what] && !errors.Is(err, ErrRejected) {
						t.Errorf("%s: got %v, want a refusal\n%.400s", what, err, bent)
					}
					delete(valid, what)
				}
			}
		}
	}
	for what := range valid {
		t.Errorf("%s does not happen", what)
	}
}
