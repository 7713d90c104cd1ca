package pemfile_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/pki/pemfile"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

var most = pemfile.Limits{Bytes: 64 << 10, Blocks: 8}

// texts are certificates and keys as people's tools write them.
type texts struct {
	root, other, leaf, key, public string
	certs                          map[string]*x509.Certificate
	secret                         string // a piece of the key's text
}

func newTexts(t testing.TB) texts {
	p, q, key := pkitest.NewPKI(t, "corp", nil), pkitest.NewPKI(t, "lab", nil), pkitest.NewKey(t)
	leaf := p.Issue(t, key, nil)[0]
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	w := texts{
		root: string(pkitest.PEM(p.Root.Cert)), other: string(pkitest.PEM(q.Root.Cert)), leaf: string(pkitest.PEM(leaf)),
		key: string(pkitest.KeyPEM(t, key)), public: string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})),
		certs: map[string]*x509.Certificate{"root": p.Root.Cert, "other": q.Root.Cert, "leaf": leaf},
	}
	w.secret = strings.Split(w.key, "\n")[1][20:50]
	return w
}

func TestCertificates(t *testing.T) {
	w := newTexts(t)
	block := func(kind string, body []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: body}))
	}
	const preamble = "Certificate:\n    Data:\n        Version: 3 (0x2)\n    Signature Algorithm: ecdsa-with-SHA256\n        X509v3 extensions:\n"
	lines := strings.SplitAfter(w.root, "\n")
	for _, tc := range []struct {
		name, text string
		beside     pemfile.Beside
		want       string // names of certificates
		problem    string // in the error
		cause      error
	}{
		{"one", w.root, pemfile.Nothing, "root", "", nil},
		{"comments and blank lines", "# our roots\n\n" + w.root + "\n# of the lab ------\n" + w.other + "as of 2026\n", pemfile.Nothing, "root other", "", nil},
		{"openssl x509 -text", preamble + w.root + preamble + w.other, pemfile.Nothing, "root other", "", nil},
		{"openssl pkcs12", "Bag Attributes\n    friendlyName: corp\nsubject=CN = corp\nissuer=CN = corp\n" + w.root, pemfile.Nothing, "root", "", nil},
		{"a byte order mark", "\ufeff" + w.root, pemfile.Nothing, "root", "", nil},
		{"lines of Windows", strings.ReplaceAll("# roots\n"+w.root, "\n", "\r\n"), pemfile.Nothing, "root", "", nil},
		{"no line feed at the end", strings.TrimSpace(w.root), pemfile.Nothing, "root", "", nil},
		{"twice", w.root + w.other + w.root, pemfile.Nothing, "root other", "", nil},
		{"one that is commented out", "# " + strings.TrimSuffix(strings.ReplaceAll(w.other, "\n", "\n# "), "# ") + w.root, pemfile.Nothing, "root", "", nil},
		{"words of a manual", "paste it from -----BEGIN CERTIFICATE----- on:\n" + w.root, pemfile.Nothing, "root", "", nil},
		{"a key beside", w.leaf + w.key, pemfile.Keys, "leaf", "", nil},
		{"another block beside", w.leaf + block("VOUCHER", []byte("v")), pemfile.Blocks, "leaf", "", nil},

		{"nothing", "", pemfile.Nothing, "", "it holds no certificate", nil},
		{"comments alone", "# to come\n", pemfile.Nothing, "", "it holds no certificate", nil},
		{"a key alone", w.key, pemfile.Keys, "", "it holds no certificate", nil},
		{"a key where none belongs", w.root + w.key, pemfile.Nothing, "", "replace that key pair", pemfile.ErrPrivateKey},
		{"another block", w.root + block("CERTIFICATE REQUEST", []byte("x")), pemfile.Keys, "", `a block of type "CERTIFICATE REQUEST"`, nil},
		{"a form of openssl", block("TRUSTED CERTIFICATE", []byte("x")), pemfile.Nothing, "", "openssl x509 -in FILE", nil},
		{"PKCS #7", block("PKCS7", []byte("x")), pemfile.Nothing, "", "openssl pkcs7 -print_certs", nil},
		{"headers", strings.Replace(w.root, "-----\n", "-----\nA: b\n\n", 1), pemfile.Nothing, "", "has headers", nil},
		{"bytes behind the certificate", block("CERTIFICATE", append(bytes.Clone(w.certs["root"].Raw), 0)), pemfile.Nothing, "", "line 1: the certificate that begins here cannot be read", nil},
		{"no base64", w.root + strings.Replace(w.other, "MI", "M!", 1), pemfile.Nothing, "", "the block that begins here is cut short or damaged", nil},
		{"a damaged one before a good one", "-----BEGIN CERTIFICATE-----\n!\n" + w.root, pemfile.Nothing, "", "line 1: the block that begins here", nil},
		{"cut within a block", w.root + w.other[:len(w.other)/2], pemfile.Nothing, "", "cut short", nil},
		{"cut in a first line", w.root + "-----BEGIN CERT", pemfile.Nothing, "", "cut short", nil},
		{"cut in the word", w.root + "-----BEG", pemfile.Nothing, "", "cut short", nil},
		{"the first lines are gone", strings.Join(lines[1:], ""), pemfile.Nothing, "", "no", nil},
		{"the last line is gone", strings.Join(lines[:len(lines)-2], "") + w.other, pemfile.Nothing, "", "line 1: the block that begins here", nil},
		{"four dashes", w.root + strings.ReplaceAll(w.other, "-----", "----"), pemfile.Nothing, "", "looks as if a block began", nil},
		{"dashes of an editor", w.root + strings.ReplaceAll(w.other, "-----", "———"), pemfile.Nothing, "", "looks as if a block began", nil},
		{"an indented block", "  " + w.root, pemfile.Nothing, "", "line 1: the line looks as if a block began", nil},
		{"no line feed between two", strings.TrimSpace(w.root) + w.other, pemfile.Nothing, "", "line 1: the block that begins here", nil},
		{"DER", string(w.certs["root"].Raw), pemfile.Nothing, "", "DER and not PEM", nil},
		{"UTF-16", "\xff\xfe" + w.root, pemfile.Nothing, "", "UTF-16", nil},
		{"too long", w.root + strings.Repeat("\n", most.Bytes), pemfile.Nothing, "", "at most 65536 are read", nil},
		{"too many", strings.Repeat(w.root, most.Blocks+1), pemfile.Nothing, "", "9 blocks begin in it, and at most 8", nil},
	} {
		got, _, err := pemfile.Certificates([]byte(tc.text), most, tc.beside)
		var want []*x509.Certificate
		for _, name := range strings.Fields(tc.want) {
			want = append(want, w.certs[name])
		}
		same := len(got) == len(want)
		for i := range want {
			same = same && got[i].Equal(want[i])
		}
		problem := ""
		if err != nil {
			problem = err.Error()
		}
		if !same || (err != nil) != (tc.problem != "") || !strings.Contains(problem, tc.problem) || tc.cause != nil && !errors.Is(err, tc.cause) {
			t.Errorf("%s: %d certificates, %v, want %q and %q", tc.name, len(got), err, tc.want, tc.problem)
		}
		if strings.Contains(problem, w.secret) {
			t.Errorf("%s: it shows the key: %v", tc.name, err)
		}
		if tc.want == "" {
			continue
		}
		if plain := pemfile.Plain([]byte(tc.text)); plain != (tc.name == "one" || tc.name == "no line feed at the end" || tc.beside != pemfile.Nothing) {
			t.Errorf("%s: told as plain: %t", tc.name, plain)
		}
	}
	if _, keys, err := pemfile.Certificates([]byte(w.leaf+w.key), most, pemfile.Keys); keys != 1 || err != nil {
		t.Errorf("%d keys beside, %v", keys, err)
	}
}

// An error names the line, which editors show.
func TestErrorsNameTheLine(t *testing.T) {
	w := newTexts(t)
	text := "# one\n" + w.root + "# two\n" + w.key
	_, _, err := pemfile.Certificates([]byte(text), most, pemfile.Nothing)
	e, ok := errors.AsType[*pemfile.Error](err)
	if want := strings.Count(text[:strings.Index(text, "-----BEGIN PRIVATE")], "\n") + 1; !ok || e.Line != want {
		t.Errorf("%v, want line %d", err, want)
	}
}

func TestPrivateKey(t *testing.T) {
	w := newTexts(t)
	block := func(kind string, headers map[string]string, body []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Headers: headers, Bytes: body}))
	}
	for name, tc := range map[string]struct {
		text, problem string
		cause         error
	}{
		"one":                      {w.key, "", nil},
		"with its certificate":     {"# of node-a\n" + w.leaf + w.key, "", nil},
		"none":                     {w.leaf, "it holds no private key", nil},
		"two":                      {w.key + w.key, "a second private key", nil},
		"the public half":          {w.public, "a public key, and the private one is wanted", nil},
		"encrypted":                {block("ENCRYPTED PRIVATE KEY", nil, []byte("x")), "passphrase", pemfile.ErrEncrypted},
		"encrypted as before 1998": {block("EC PRIVATE KEY", map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"}, []byte("x")), "passphrase", pemfile.ErrEncrypted},
		"of OpenSSH":               {block("OPENSSH PRIVATE KEY", nil, []byte("x")), "openssl genpkey", nil},
		"damaged":                  {block("PRIVATE KEY", nil, []byte(w.secret)), "cannot be read", nil},
		"cut short":                {w.key[:60], "cut short", nil},
	} {
		key, err := pemfile.PrivateKey([]byte(tc.text), most)
		if tc.problem == "" {
			if _, ok := key.(*ecdsa.PrivateKey); !ok || err != nil {
				t.Errorf("%s: %T, %v", name, key, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tc.problem) || tc.cause != nil && !errors.Is(err, tc.cause) || strings.Contains(err.Error(), w.secret) {
			t.Errorf("%s: %v, want %q", name, err, tc.problem)
		}
	}
}

func TestKeyPair(t *testing.T) {
	w := newTexts(t)
	pair, _, err := pemfile.KeyPair([]byte("\ufeff# chain\n"+w.leaf+w.root), []byte(w.key), most)
	if err != nil || len(pair.Certificate) != 2 || !pair.Leaf.Equal(w.certs["leaf"]) {
		t.Errorf("%d certificates, %v", len(pair.Certificate), err)
	}
	if _, ofKey, err := pemfile.KeyPair([]byte(w.root), []byte(w.key), most); !ofKey || !errors.Is(err, pemfile.ErrOtherKey) {
		t.Errorf("another's key: %v", err)
	}
	if _, ofKey, err := pemfile.KeyPair([]byte(w.key), []byte(w.key), most); ofKey || err == nil {
		t.Errorf("no certificate: %v", err)
	}
	if _, ofKey, err := pemfile.KeyPair([]byte(w.leaf), nil, most); !ofKey || err == nil {
		t.Errorf("no key: %v", err)
	}
}

func TestPublicKeys(t *testing.T) {
	w := newTexts(t)
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	second := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	got, err := pemfile.PublicKeys([]byte("# this epoch\n"+w.public+"# the next\n"+second+w.public), most)
	if err != nil || len(got) != 2 || !bytes.Equal(got[1].DER, der) || !private.Public().(ed25519.PublicKey).Equal(got[1].Key) {
		t.Errorf("%v, %v", got, err)
	}
	for name, tc := range map[string]struct {
		text  string
		cause error
	}{
		"none": {"", nil}, "a certificate": {w.leaf, nil}, "a private key": {w.key, pemfile.ErrPrivateKey},
		"damaged": {string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: append(bytes.Clone(der), 0)})), nil},
	} {
		_, err := pemfile.PublicKeys([]byte(tc.text), most)
		if err == nil || tc.cause != nil && !errors.Is(err, tc.cause) || strings.Contains(err.Error(), w.secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever somebody writes: what is taken has a certificate for each block that begins, and
// nothing is taken twice.
func FuzzCertificates(f *testing.F) {
	w := newTexts(f)
	for _, text := range []string{w.root, "# a\n" + w.root + w.other, w.root + w.root, w.leaf + w.key, "\ufeff" + w.root, w.root[:100], "----- BEGIN CERTIFICATE", ""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, keys, err := pemfile.Certificates(text, most, pemfile.Keys)
		if err != nil {
			return
		}
		if begun := bytes.Count(text, []byte("-----BEGIN ")); len(got) == 0 || len(got) > begun || len(got)+keys > most.Blocks {
			t.Errorf("%d certificates and %d keys of %d blocks", len(got), keys, begun)
		}
		for i, c := range got {
			for _, d := range got[:i] {
				if c.Equal(d) {
					t.Error("one certificate twice")
				}
			}
		}
	})
}
