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
	"github.com/fealty-io/fealty/internal/fenceform"
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

func documentOf(cluster, kind string, version, authorityEpoch uint64) fence.Document {
	return fence.Document{Cluster: cluster, Kind: kind, Version: version, Digest: sha256.Sum256([]byte("a plan")),
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
		var s fence.Verified[fence.Instruction]
		s, err = a.OpenInstruction(text)
		v, ok = s.Get()
	case "document":
		var s fence.Verified[fence.Document]
		s, err = a.OpenDocument(plan, text)
		v, ok = s.Get()
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
	instruction := fence.Instruction{Cluster: cluster, Member: "spiffe://test.example/shard/a", ID: "one", Kind: "pause",
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
		if len(s.text) > fenceform.MaxStatement {
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
	long := strings.Repeat("x", fenceform.MaxName+1)
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
			return fence.Instruction{Cluster: cluster, ID: "i", Kind: "k", Term: 1, NotAfter: time.Unix(1, 0),
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"an instruction without an id": func() (string, error) {
			return fence.Instruction{Cluster: cluster, Member: "s1", Kind: "k", Term: 1, NotAfter: time.Unix(1, 0),
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"an instruction to do nothing": func() (string, error) {
			return fence.Instruction{Cluster: cluster, Member: "s1", ID: "i", Term: 1, NotAfter: time.Unix(1, 0),
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"an instruction of no term": func() (string, error) {
			return fence.Instruction{Cluster: cluster, Member: "s1", ID: "i", Kind: "k", NotAfter: time.Unix(1, 0),
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"an instruction without an end": func() (string, error) {
			return fence.Instruction{Cluster: cluster, Member: "s1", ID: "i", Kind: "k", Term: 1,
				AuthorityEpoch: 1}.Sign(a.key)
		},
		"an instruction that ends within a second": func() (string, error) {
			return fence.Instruction{Cluster: cluster, Member: "s1", ID: "i", Kind: "k", Term: 1, NotAfter: time.Unix(1, 1),
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

// A document is what it was signed as: of the kind that its reader wants, of a version, and of one
// digest in one spelling. The payload is written here once more, so that a change of it shows.
func TestDocuments(t *testing.T) {
	a := newAuthority(t)
	is := documentOf(cluster, plan, 7, 3)
	const of, epoch, kind, version = "cluster test.example\n", "authority-epoch 3\n", "kind shard-plan\n", "version 7\n"
	digest := fmt.Sprintf("%x", is.Digest)
	sum := "sha256 " + digest + "\n"
	head := of + epoch + kind + version
	good := signed(a.key, "fealty/document/v1", head+sum)
	if got, err := a.OpenDocument(plan, good); err != nil || said(got) != is {
		t.Fatalf("what the format says: %v, %v", got, err)
	}
	if text := must(is.Sign(a.key)); text != good {
		t.Errorf("it is signed as %q, want %q", text, good)
	}
	for _, tc := range []struct{ name, says, payload string }{
		{"version 0", "version 0", of + epoch + kind + "version 0\n" + sum},
		{"a version with a leading zero", "no number in its line version", of + epoch + kind + "version 07\n" + sum},
		{"a version with a sign", "no number in its line version", of + epoch + kind + "version +7\n" + sum},
		{"a version below zero", "no number in its line version", of + epoch + kind + "version -7\n" + sum},
		{"a version of 65 bits", "no number in its line version",
			of + epoch + kind + "version 18446744073709551616\n" + sum},
		{"a version that is no number", "no number in its line version", of + epoch + kind + "version new\n" + sum},
		{"authority epoch 0", "authority epoch 0", of + "authority-epoch 0\n" + kind + version + sum},
		{"another kind", "another kind than shard-plan", of + epoch + "kind shard-plans\n" + version + sum},
		{"a kind in capitals", "another kind than shard-plan", of + epoch + "kind Shard-Plan\n" + version + sum},
		{"no kind", "another kind than shard-plan", of + epoch + "kind \n" + version + sum},
		{"a digest in capitals", "another spelling", head + "sha256 " + strings.ToUpper(digest) + "\n"},
		{"a digest with one capital", "another spelling", head + "sha256 " + oneCapital(t, digest) + "\n"},
		{"a digest that is a byte short", "no SHA-256 in its line sha256", head + "sha256 " + digest[2:] + "\n"},
		{"a digest that is a byte long", "no SHA-256 in its line sha256", head + "sha256 " + digest + "00\n"},
		{"a digest with half a byte", "no SHA-256 in its line sha256", head + "sha256 " + digest[1:] + "\n"},
		{"a digest of a letter that is no digit", "no SHA-256 in its line sha256",
			head + "sha256 " + digest[:63] + "g\n"},
		{"a digest with a prefix", "no SHA-256 in its line sha256", head + "sha256 0x" + digest[2:] + "\n"},
		{"a digest with a blank after it", "no SHA-256 in its line sha256", head + "sha256 " + digest + " \n"},
		{"a digest with blanks before it", "no SHA-256 in its line sha256", head + "sha256  " + digest + "\n"},
		{"no digest", "no SHA-256 in its line sha256", head + "sha256 \n"},
		{"no line of the digest", "no line sha256", head},
		{"no line of the version", "no line version", of + epoch + kind + sum},
		{"no line of the kind", "no line kind", of + epoch + version + sum},
		{"a digest of another function", "no line sha256", head + "sha512 " + digest + "\n"},
		{"another order", "no line kind", of + epoch + version + kind + sum},
		{"a line more", "another spelling than its own, or more than it says", head + sum + sum},
		{"no end", "no line sha256", head + strings.TrimSuffix(sum, "\n")},
		{"a carriage return", "no SHA-256 in its line sha256", head + strings.TrimSuffix(sum, "\n") + "\r\n"},
	} {
		if got, err := a.OpenDocument(plan, signed(a.key, fence.TypeDocument, tc.payload)); !errors.Is(err,
			fence.ErrMalformed) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, %v", tc.name, got, err)
		}
	}
	other := signed(a.key, fence.TypeDocument, "cluster other.example\n"+epoch+kind+version+sum)
	if got, err := a.OpenDocument(plan, other); !errors.Is(err, fence.ErrUntrusted) {
		t.Errorf("another cluster: %v, %v", got, err)
	}
	for _, wanted := range []string{"", "shard", "shard-plans", "Shard-Plan"} {
		if got, err := a.OpenDocument(wanted, good); !errors.Is(err, fence.ErrMalformed) {
			t.Errorf("a reader of kind %q: %v, %v", wanted, got, err)
		}
	}
	if text := must(documentOf(cluster, "other", 7, 3).Sign(a.key)); said(must(a.OpenDocument("other",
		text))).Kind != "other" {
		t.Errorf("a reader of kind other does not get its own")
	}
	// The longest one there is still travels.
	longest := a.Authority
	longest.Cluster = strings.Repeat("c", fenceform.MaxName)
	long := documentOf(longest.Cluster, strings.Repeat("k", fenceform.MaxName), 1<<64-1, 1<<64-1)
	if got, err := longest.OpenDocument(long.Kind, must(long.Sign(a.key))); err != nil || said(got) != long {
		t.Errorf("the longest document: %v", err)
	}
}

func said(v fence.Verified[fence.Document]) fence.Document {
	s, _ := v.Get()
	return s
}

// oneCapital makes the first letter of a digest a capital.
func oneCapital(t *testing.T, digest string) string {
	t.Helper()
	i := strings.IndexAny(digest, "abcdef")
	if i < 0 {
		t.Fatalf("%s has no letter", digest)
	}
	return digest[:i] + strings.ToUpper(digest[i:i+1]) + digest[i+1:]
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
		d, err := a.OpenDocument(plan, signed(a.key, fence.TypeDocument, payload))
		if document, ok := d.Get(); ok != (err == nil) || ok && must(document.Sign(a.key)) != signed(a.key,
			fence.TypeDocument, payload) {
			t.Errorf("%q reads as %v, %v", payload, document, err)
		}
		if _, err := a.OpenTerm(text); err == nil {
			t.Errorf("%q was believed", text)
		}
	})
}
