package fence_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/fence"
	internalsigned "github.com/fealty-io/fealty/internal/signed"
	"github.com/fealty-io/fealty/internal/signed/order"
)

func termOf(cluster string, term int64, authorityEpoch uint64) fence.TermStatement {
	return fence.TermStatement{Cluster: cluster, Term: term, AuthorityEpoch: authorityEpoch}
}

func grantOf(cluster, holder string, number uint32, authorityEpoch uint64) fence.Grant {
	return fence.Grant{Cluster: cluster, Holder: holder, Number: number, AuthorityEpoch: authorityEpoch}
}

func assignmentOf(cluster, domain, holder string, ownership, authorityEpoch uint64) fence.Assignment {
	return fence.Assignment{Cluster: cluster, Domain: domain, Holder: holder, Ownership: ownership,
		AuthorityEpoch: authorityEpoch}
}

// plan is the kind of the documents of these tests.
const plan = "shard-plan"

func documentOf(cluster, kind string, version, authorityEpoch uint64) order.Document {
	return order.Document{Cluster: cluster, Kind: kind, Version: version, Digest: sha256.Sum256([]byte("a plan")),
		AuthorityEpoch: authorityEpoch}
}

// opened returns what each kind of statement says, "" if it is refused as untrusted or
// malformed.
func opened(t *testing.T, a fence.Authority, kind, text string) (any, error) {
	t.Helper()
	var v any
	var ok bool
	var err error
	switch kind {
	case "term":
		var s fence.Verified[fence.TermStatement]
		s, err = a.OpenTerm(text)
		v, ok = s.Get()
	case "grant":
		var s fence.Verified[fence.Grant]
		s, err = a.OpenGrant(text)
		v, ok = s.Get()
	case "assignment":
		var s fence.Verified[fence.Assignment]
		s, err = a.OpenAssignment(text)
		v, ok = s.Get()
	case "instruction":
		v, err = order.OpenInstruction(a, text)
		ok = err == nil
	case "document":
		v, err = order.OpenDocument(a, plan, text)
		ok = err == nil
	}
	if ok != (err == nil) {
		t.Errorf("%s %q: there is one: %v, and %v", kind, text, ok, err)
	}
	if err != nil && !errors.Is(err, fence.ErrMalformed) && !errors.Is(err, fence.ErrUntrusted) {
		t.Errorf("%s %q: %v matches neither", kind, text, err)
	}
	return v, err
}

func statements(t *testing.T, a authority) map[string]struct {
	is   any
	text string
} {
	t.Helper()
	term := fence.TermStatement{Cluster: cluster, Term: 1<<53 + 1, AuthorityEpoch: 4}
	grant := fence.Grant{Cluster: cluster, Holder: "spiffe://test.example/shard/a", Number: 1<<32 - 1,
		AuthorityEpoch: 4}
	assignment := fence.Assignment{Cluster: cluster, Domain: "rack-1", Holder: "spiffe://test.example/shard/a",
		Ownership: 1<<64 - 1, AuthorityEpoch: 4}
	instruction := order.Instruction{Cluster: cluster, Member: "spiffe://test.example/shard/a", ID: "one", Kind: "pause",
		Term: 1<<53 + 1, NotAfter: time.Unix(1<<34, 0).UTC(), AuthorityEpoch: 4}
	document := documentOf(cluster, plan, 1<<64-1, 4)
	return map[string]struct {
		is   any
		text string
	}{
		"document":    {document, must(document.Sign(a.key))},
		"instruction": {instruction, must(instruction.Sign(a.key))},
		"term":        {term, must(term.Sign(a.key))},
		"grant":       {grant, must(grant.Sign(a.key))},
		"assignment":  {assignment, must(assignment.Sign(a.key))},
	}
}

func TestStatements(t *testing.T) {
	a := newAuthority(t)
	for kind, s := range statements(t, a) {
		if got, err := opened(t, a.Authority, kind, s.text); err != nil || got != s.is {
			t.Errorf("%s: %v, %v", kind, got, err)
		}
		if len(s.text) > internalsigned.MaxStatement {
			t.Errorf("%s: %d bytes", kind, len(s.text))
		}
		// No byte of it may be another one, and none may be missing.
		for i := range len(s.text) {
			for _, b := range []byte{s.text[i] ^ 1, s.text[i] ^ 32, 'A', '.', 0} {
				if changed := s.text[:i] + string(b) + s.text[i+1:]; b < 0x80 && changed != s.text {
					if got, err := opened(t, a.Authority, kind, changed); err == nil {
						t.Fatalf("%s with byte %d as %q: %v", kind, i, b, got)
					}
				}
			}
			// The decoder of base64 skips these.
			for _, more := range []string{"\n", "\r", "=", " "} {
				if got, err := opened(t, a.Authority, kind, s.text[:i]+more+s.text[i:]); err == nil {
					t.Fatalf("%s with %q at %d: %v", kind, more, i, got)
				}
			}
			if got, err := opened(t, a.Authority, kind, s.text[:i]); err == nil {
				t.Fatalf("%s cut at %d: %v", kind, i, got)
			}
		}
		if got, err := opened(t, a.Authority, kind, s.text+"\n"); err == nil {
			t.Errorf("%s with a line end: %v", kind, got)
		}
		for other := range statements(t, a) {
			if got, err := opened(t, a.Authority, other, s.text); (err == nil) != (other == kind) {
				t.Errorf("a %s read as a %s: %v, %v", kind, other, got, err)
			}
		}
		// Of another cluster, whose key it is too; by a key that is not the authority's any
		// more; and of an authority that is over.
		elsewhere, without, later := a.Authority, a.Authority, a.Authority
		elsewhere.Cluster = "other.example"
		without.Key = func(string) (ed25519.PublicKey, bool) { return nil, false }
		later.NotBefore = 5
		for name, authority := range map[string]fence.Authority{"another cluster": elsewhere, "no key": without,
			"a later epoch": later} {
			if got, err := opened(t, authority, kind, s.text); !errors.Is(err, fence.ErrUntrusted) {
				t.Errorf("%s, %s: %v, %v", kind, name, got, err)
			}
		}
		// A key under an id that is not its own.
		another := a.Authority
		another.Key = func(string) (ed25519.PublicKey, bool) { return a.key.Public().(ed25519.PublicKey), true }
		parts := strings.Split(s.text, ".")
		if got, err := opened(t, another, kind, parts[0]+".0000000000000000."+parts[2]); !errors.Is(err, fence.ErrUntrusted) {
			t.Errorf("%s under another key's id: %v, %v", kind, got, err)
		}
		later.NotBefore = 4
		if _, err := opened(t, later, kind, s.text); err != nil {
			t.Errorf("%s of the lowest epoch that counts: %v", kind, err)
		}
	}
}

// A statement that no receiver takes is not signed, and one that was signed all the same is
// not taken.
func TestStatementsThatSayNothing(t *testing.T) {
	a := newAuthority(t)
	long := strings.Repeat("x", internalsigned.MaxName+1)
	for name, sign := range map[string]func() (string, error){
		"no cluster":         func() (string, error) { return grantOf("", "s1", 1, 1).Sign(a.key) },
		"no authority epoch": func() (string, error) { return grantOf(cluster, "s1", 1, 0).Sign(a.key) },
		"term 0":             func() (string, error) { return termOf(cluster, 0, 1).Sign(a.key) },
		"a negative term":    func() (string, error) { return termOf(cluster, -1, 1).Sign(a.key) },
		"grant 0":            func() (string, error) { return grantOf(cluster, "s1", 0, 1).Sign(a.key) },
		"a grant of nobody":  func() (string, error) { return grantOf(cluster, "", 1, 1).Sign(a.key) },
		"a holder of two lines": func() (string, error) {
			return grantOf(cluster, "s1\ngrant 9", 1,
				1).Sign(a.key)
		},
		"a long holder": func() (string, error) { return grantOf(cluster, long, 1, 1).Sign(a.key) },
		"no domain": func() (string, error) {
			return assignmentOf(cluster, "", "s1", 1,
				1).Sign(a.key)
		},
		"a long domain": func() (string, error) {
			return assignmentOf(cluster, long, "s1", 1,
				1).Sign(a.key)
		},
		"ownership 0": func() (string, error) {
			return assignmentOf(cluster, "d", "s1", 0,
				1).Sign(a.key)
		},
		"a domain with a blank": func() (string, error) {
			return assignmentOf(cluster, "d e", "s1", 1,
				1).Sign(a.key)
		},
		"an instruction of nobody": func() (string, error) {
			return order.Instruction{Cluster: cluster, ID: "i", Kind: "k", Term: 1, NotAfter: time.Unix(1, 0),
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"an instruction without an id": func() (string, error) {
			return order.Instruction{Cluster: cluster, Member: "s1", Kind: "k", Term: 1, NotAfter: time.Unix(1, 0),
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"an instruction to do nothing": func() (string, error) {
			return order.Instruction{Cluster: cluster, Member: "s1", ID: "i", Term: 1, NotAfter: time.Unix(1, 0),
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"an instruction of no term": func() (string, error) {
			return order.Instruction{Cluster: cluster, Member: "s1", ID: "i", Kind: "k", NotAfter: time.Unix(1, 0),
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"an instruction without an end": func() (string, error) {
			return order.Instruction{Cluster: cluster, Member: "s1", ID: "i", Kind: "k", Term: 1,
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"an instruction that ends within a second": func() (string, error) {
			return order.Instruction{Cluster: cluster, Member: "s1", ID: "i", Kind: "k", Term: 1, NotAfter: time.Unix(1, 1),
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"a holder that is no ASCII": func() (string, error) {
			return assignmentOf(cluster, "d", "s\u00e9", 1,
				1).Sign(a.key)
		},
		"a document of no cluster": func() (string, error) { return documentOf("", plan, 1, 1).Sign(a.key) },
		"a document of no authority epoch": func() (string, error) {
			return documentOf(cluster, plan, 1, 0).Sign(a.key)
		},
		"a document of no kind":     func() (string, error) { return documentOf(cluster, "", 1, 1).Sign(a.key) },
		"a document of a long kind": func() (string, error) { return documentOf(cluster, long, 1, 1).Sign(a.key) },
		"a document of a kind with a blank": func() (string, error) {
			return documentOf(cluster, "shard plan", 1, 1).Sign(a.key)
		},
		"a document of a kind of two lines": func() (string, error) {
			return documentOf(cluster, "shard-plan\nversion 9", 1, 1).Sign(a.key)
		},
		"a document of version 0": func() (string, error) { return documentOf(cluster, plan, 0, 1).Sign(a.key) },
	} {
		if text, err := sign(); !errors.Is(err, fence.ErrMalformed) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if text, err := assignmentOf(cluster, "d", "", 1, 1).Sign(a.key); err != nil {
		t.Errorf("taken from everybody: %q, %v", text, err)
	}
	other := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	if text, err := grantOf(cluster, "s1", 1, 1).Sign(other); err == nil {
		t.Errorf("a key of another kind: %q", text)
	}
	for name, payload := range map[string]string{
		"grant 0":         "cluster test.example\nauthority-epoch 1\nholder s1\ngrant 0\n",
		"a leading zero":  "cluster test.example\nauthority-epoch 1\nholder s1\ngrant 01\n",
		"a sign":          "cluster test.example\nauthority-epoch 1\nholder s1\ngrant +1\n",
		"33 bits":         "cluster test.example\nauthority-epoch 1\nholder s1\ngrant 4294967296\n",
		"a line more":     "cluster test.example\nauthority-epoch 1\nholder s1\ngrant 1\ngrant 2\n",
		"a line missing":  "cluster test.example\nauthority-epoch 1\ngrant 1\n",
		"another order":   "cluster test.example\nholder s1\nauthority-epoch 1\ngrant 1\n",
		"no end":          "cluster test.example\nauthority-epoch 1\nholder s1\ngrant 1",
		"another cluster": "cluster other.example\nauthority-epoch 1\nholder s1\ngrant 1\n",
		"a control":       "cluster test.example\nauthority-epoch 1\nholder s1\r\ngrant 1\n",
		"nothing":         "",
	} {
		if got, err := a.OpenGrant(signed(a.key, fence.TypeGrant, payload)); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	if _, err := a.OpenGrant(signed(a.key, fence.TypeGrant,
		"cluster test.example\nauthority-epoch 1\nholder s1\ngrant 1\n")); err != nil {
		t.Errorf("what this test signs: %v", err)
	}
}

// signed signs a payload as the package documents it, whatever it says.
func signed(key ed25519.PrivateKey, typ, payload string) string {
	signature := ed25519.Sign(key, []byte(pae(typ, cluster, payload)))
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(payload)) + "." + fence.KeyID(key.Public().(ed25519.PublicKey)) + "." + encode(signature)
}

// pae is written here once more, so that a change of what is signed shows.
func pae(parts ...string) string {
	text := "FealtyPAEv1"
	for _, part := range parts {
		text += fmt.Sprintf(" %d %s", len(part), part)
	}
	return text
}

func FuzzOpen(f *testing.F) {
	a := newAuthority(f)
	f.Add(must(grantOf(cluster, "s1", 1, 1).Sign(a.key)))
	f.Add("..")
	f.Add("cluster test.example\nauthority-epoch 1\nholder s1\ngrant 1\n")
	f.Add("cluster test.example\nauthority-epoch 1\nkind shard-plan\nversion 1\nsha256 " +
		strings.Repeat("0a", 32) + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		// Everything signed reads as one spelling alone.
		payload := text
		v, err := a.OpenGrant(signed(a.key, fence.TypeGrant, payload))
		if grant, ok := v.Get(); ok != (err == nil) || ok && must(grant.Sign(a.key)) != signed(a.key,
			fence.TypeGrant, payload) {
			t.Errorf("%q reads as %v, %v", payload, grant, err)
		}
		const typ = "fealty/document/v1"
		d, err := order.OpenDocument(a.Authority, plan, signed(a.key, typ, payload))
		if err == nil && must(d.Sign(a.key)) != signed(a.key, typ, payload) {
			t.Errorf("%q reads as %v", payload, d)
		}
		if _, err := a.OpenTerm(text); err == nil {
			t.Errorf("%q was believed", text)
		}
	})
}
