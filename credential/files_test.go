package credential_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// folder is a folder with the three files of one process.
type folder struct {
	t     testing.TB
	dir   string
	pki   *pkitest.PKI
	paths credential.FilePaths

	mu    sync.Mutex
	log   bytes.Buffer        // guarded by mu
	told  []credential.Reason // guarded by mu
	extra func(*credential.FilesConfig)
}

func newFolder(t testing.TB) *folder {
	t.Helper()
	dir := t.TempDir()
	return &folder{t: t, dir: dir, pki: pkitest.NewPKI(t, "corp", nil), paths: credential.FilePaths{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt"),
	}}
}

func (d *folder) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

func (d *folder) reasons() []credential.Reason {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.told)
}

// pair is one content of the three files.
type pair struct {
	leaf           *x509.Certificate
	key            crypto.Signer
	cert, pkey, ca []byte
}

func sans(uris ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		for _, s := range uris {
			u, err := url.Parse(s)
			if err != nil {
				panic(err)
			}
			c.URIs = append(c.URIs, u)
		}
	}
}

const me = "spiffe://prod.example/provider/aws"

// issue makes a certificate of the folder's PKI for me, with what edits do to it.
func (d *folder) issue(edits ...func(*x509.Certificate)) pair {
	d.t.Helper()
	if edits == nil {
		edits = append(edits, sans(me))
	}
	key := pkitest.NewKey(d.t)
	chain := d.pki.Issue(d.t, key, func(c *x509.Certificate) {
		for _, e := range edits {
			e(c)
		}
	})
	return pair{chain[0], key, pkitest.PEM(chain...), pkitest.KeyPEM(d.t, key), pkitest.PEM(d.pki.Root.Cert)}
}

// put writes a file in place, as careless tools do.
func (d *folder) put(path string, data []byte) {
	d.t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *folder) write(p pair) {
	d.t.Helper()
	d.put(d.paths.Cert, p.cert)
	d.put(d.paths.Key, p.pkey)
	d.put(d.paths.CA, p.ca)
}

func (d *folder) config() credential.FilesConfig {
	cfg := credential.FilesConfig{
		Paths: d.paths, Log: slog.New(slog.NewTextHandler(d, nil)),
		OnFailure: func(r credential.Reason) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.told = append(d.told, r)
		},
	}
	if d.extra != nil {
		d.extra(&cfg)
	}
	return cfg
}

func (d *folder) open() *credential.Files {
	d.t.Helper()
	f, err := credential.NewFiles(d.config())
	if err != nil {
		d.t.Fatal(err)
	}
	return f
}

func current(t testing.TB, s credential.Source) *credential.Material {
	t.Helper()
	m, err := s.Current(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func presents(t testing.TB, s credential.Source, p pair) bool {
	t.Helper()
	m := current(t, s)
	return m.Chain()[0].Equal(p.leaf) && m.Key().Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(p.key.Public())
}

// Some of the three files are an error that names the others.
func TestFilePathsAreAllOrNone(t *testing.T) {
	for _, tc := range []struct {
		paths   credential.FilePaths
		missing []string
	}{
		{credential.FilePaths{}, nil},
		{credential.FilePaths{Cert: "a", Key: "b", CA: "c"}, nil},
		{credential.FilePaths{Cert: "a"}, []string{"Key", "CA"}},
		{credential.FilePaths{Key: "b"}, []string{"Cert", "CA"}},
		{credential.FilePaths{CA: "c"}, []string{"Cert", "Key"}},
		{credential.FilePaths{Cert: "a", Key: "b"}, []string{"CA"}},
		{credential.FilePaths{Cert: "a", CA: "c"}, []string{"Key"}},
		{credential.FilePaths{Key: "b", CA: "c"}, []string{"Cert"}},
	} {
		if got := tc.paths.Missing(); !slices.Equal(got, tc.missing) {
			t.Errorf("%+v: missing %q, want %q", tc.paths, got, tc.missing)
		}
		if tc.missing == nil && !tc.paths.IsZero() {
			continue
		}
		_, err := credential.NewFiles(credential.FilesConfig{Paths: tc.paths})
		if err == nil {
			t.Errorf("%+v: accepted", tc.paths)
		}
		for _, flag := range tc.missing {
			if err != nil && !strings.Contains(err.Error(), flag) {
				t.Errorf("%+v: %v does not name %s", tc.paths, err, flag)
			}
		}
	}
}

// spoiled are contents that are refused: at the start, and in place of a good one.
type spoiled struct {
	name   string
	reason credential.Reason
	write  func(d *folder, good pair)
}

func spoiledFiles(t testing.TB) []spoiled {
	t.Helper()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	cert := func(f func(d *folder, good pair) []byte) func(*folder, pair) {
		return func(d *folder, good pair) { d.write(good); d.put(d.paths.Cert, f(d, good)) }
	}
	keyFile := func(f func(d *folder, good pair) []byte) func(*folder, pair) {
		return func(d *folder, good pair) { d.write(good); d.put(d.paths.Key, f(d, good)) }
	}
	caFile := func(f func(d *folder, good pair) []byte) func(*folder, pair) {
		return func(d *folder, good pair) { d.write(good); d.put(d.paths.CA, f(d, good)) }
	}
	whole := func(edits ...func(*x509.Certificate)) func(*folder, pair) {
		return func(d *folder, _ pair) { d.write(d.issue(edits...)) }
	}
	block := func(typ string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: b}) }
	return []spoiled{
		{"certificate missing", credential.Unreadable, func(d *folder, good pair) { d.write(good); os.Remove(d.paths.Cert) }},
		{"key missing", credential.Unreadable, func(d *folder, good pair) { d.write(good); os.Remove(d.paths.Key) }},
		{"CA missing", credential.Unreadable, func(d *folder, good pair) { d.write(good); os.Remove(d.paths.CA) }},
		{"key is a folder", credential.Unreadable, func(d *folder, good pair) {
			d.write(good)
			os.Remove(d.paths.Key)
			os.Mkdir(d.paths.Key, 0o700)
		}},
		{"certificate too large", credential.Unreadable, cert(func(*folder, pair) []byte { return make([]byte, 65<<10) })},
		{"certificate empty", credential.Malformed, cert(func(*folder, pair) []byte { return nil })},
		{"certificate garbage", credential.Malformed, cert(func(*folder, pair) []byte { return []byte("certificate") })},
		{"certificate cut in the leaf", credential.Malformed, cert(func(_ *folder, p pair) []byte { return p.cert[:200] })},
		{"certificate cut in the intermediate", credential.Malformed, cert(func(_ *folder, p pair) []byte { return p.cert[:len(p.cert)-40] })},
		{"certificate damaged", credential.Malformed, cert(func(*folder, pair) []byte { return block("CERTIFICATE", []byte{1, 2, 3}) })},
		{"certificate without its intermediate", credential.Untrusted, cert(func(_ *folder, p pair) []byte { return pkitest.PEM(p.leaf) })},
		{"certificate is the key", credential.Malformed, cert(func(_ *folder, p pair) []byte { return p.pkey })},
		{"new certificate with the old key", credential.KeyMismatch, cert(func(d *folder, _ pair) []byte { return d.issue().cert })},
		{"new key with the old certificate", credential.KeyMismatch, keyFile(func(d *folder, _ pair) []byte { return d.issue().pkey })},
		{"key empty", credential.Malformed, keyFile(func(*folder, pair) []byte { return nil })},
		{"key cut", credential.Malformed, keyFile(func(_ *folder, p pair) []byte { return p.pkey[:len(p.pkey)-30] })},
		{"key damaged", credential.Malformed, keyFile(func(*folder, pair) []byte { return block("PRIVATE KEY", []byte{1, 2, 3}) })},
		{"key encrypted", credential.Malformed, keyFile(func(*folder, pair) []byte { return block("ENCRYPTED PRIVATE KEY", []byte{1}) })},
		{"key is the certificate", credential.Malformed, keyFile(func(_ *folder, p pair) []byte { return p.cert })},
		{"two keys", credential.Malformed, keyFile(func(_ *folder, p pair) []byte { return append(slices.Clone(p.pkey), p.pkey...) })},
		{"key of another type", credential.KeyMismatch, keyFile(func(*folder, pair) []byte { return pkitest.KeyPEM(t, rsaKey) })},
		{"CA empty", credential.Malformed, caFile(func(*folder, pair) []byte { return nil })},
		{"CA cut", credential.Malformed, caFile(func(d *folder, p pair) []byte {
			return append(slices.Clone(p.ca), p.ca[:len(p.ca)/2]...)
		})},
		{"CA file holds a key", credential.Malformed, caFile(func(_ *folder, p pair) []byte { return append(slices.Clone(p.ca), p.pkey...) })},
		{"CA is none", credential.Incomplete, caFile(func(_ *folder, p pair) []byte { return pkitest.PEM(p.leaf) })},
		{"another CA of the same name", credential.Untrusted, caFile(func(d *folder, _ pair) []byte {
			return pkitest.PEM(pkitest.NewPKI(t, "corp", nil).Root.Cert)
		})},
		{"expired", credential.Expired, whole(sans(me), func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) })},
		{"not yet valid", credential.Expired, whole(sans(me), func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) })},
		{"for servers only", credential.Untrusted, whole(sans(me), func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })},
	}
}

// noIdentity are refused as an identity, and not as a proof.
func noIdentity() []spoiled {
	whole := func(edits ...func(*x509.Certificate)) func(*folder, pair) {
		return func(d *folder, _ pair) { d.write(d.issue(edits...)) }
	}
	return []spoiled{
		{"no SPIFFE id", credential.NoIdentity, whole(func(c *x509.Certificate) { c.Subject.CommonName = "node-c" })},
		{"two SPIFFE ids", credential.NoIdentity, whole(sans(me, "spiffe://prod.example/provider/gcp"))},
		{"one SPIFFE id twice", credential.NoIdentity, whole(sans(me, me))},
		{"another scheme", credential.NoIdentity, whole(sans("https://prod.example/provider/aws"))},
		{"for clients only", credential.Untrusted, whole(sans(me), func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })},
	}
}

// Bad material at the start is an error: there is nothing to keep.
func TestFilesRefuseBadMaterialAtTheStart(t *testing.T) {
	for _, tc := range append(spoiledFiles(t), noIdentity()...) {
		t.Run(tc.name, func(t *testing.T) {
			d := newFolder(t)
			tc.write(d, d.issue())
			f, err := credential.NewFiles(d.config())
			e, ok := errors.AsType[*credential.MaterialError](err)
			if !ok || e.Reason != tc.reason || f != nil {
				t.Fatalf("NewFiles = %v, %v; want reason %s", f, err, tc.reason)
			}
			if len(d.reasons()) != 0 {
				t.Errorf("counted as a failed reload: %v", d.reasons())
			}
		})
	}
}

// The last good material stays in use, whatever takes the place of good files; that is
// said once, and good files are later adopted without help.
func TestFilesKeepTheLastGood(t *testing.T) {
	other := spoiled{"another identity", credential.OtherIdentity, func(d *folder, _ pair) { d.write(d.issue(sans("spiffe://prod.example/provider/gcp"))) }}
	for _, tc := range append(append(spoiledFiles(t), noIdentity()...), other) {
		t.Run(tc.name, func(t *testing.T) {
			d := newFolder(t)
			good := d.issue()
			d.write(good)
			f := d.open()
			before, changed := current(t, f), f.Changed()
			tc.write(d, good)
			for range 3 {
				if m := current(t, f); m != before {
					t.Fatalf("adopted %v", m)
				}
			}
			if got := d.reasons(); !slices.Equal(got, []credential.Reason{tc.reason}) {
				t.Fatalf("told %v, want %s once", got, tc.reason)
			}
			if n := strings.Count(d.log.String(), "not adopted"); n != 1 {
				t.Errorf("the log says it %d times:\n%s", n, d.log.String())
			}
			if e, ok := errors.AsType[*credential.MaterialError](f.Failure()); !ok || e.Reason != tc.reason {
				t.Errorf("Failure = %v", f.Failure())
			}
			select {
			case <-changed:
				t.Error("Changed, and nothing did")
			default:
			}
			os.Remove(d.paths.Key) // where it is a folder
			next := d.issue()
			d.write(next)
			if !presents(t, f, next) || f.Failure() != nil {
				t.Fatalf("mended files are not adopted: %v", f.Failure())
			}
			select {
			case <-changed:
			default:
				t.Error("not Changed after the files were mended")
			}
			tc.write(d, next)
			current(t, f)
			if n := len(d.reasons()); n != 2 {
				t.Errorf("the same mistake again was told %d times in all, want 2", n)
			}
			if strings.Contains(d.log.String(), "PRIVATE KEY") || strings.Contains(d.log.String(), string(good.pkey[40:80])) {
				t.Error("the log shows a key")
			}
		})
	}
}

// The reason is kept when one mistake follows another, and the good files that come
// back are the same material.
func TestFilesTellEachChange(t *testing.T) {
	d := newFolder(t)
	good := d.issue()
	d.write(good)
	f := d.open()
	before, changed := current(t, f), f.Changed()
	d.put(d.paths.Cert, d.issue().cert)
	current(t, f)
	d.put(d.paths.Cert, []byte("x"))
	current(t, f)
	d.put(d.paths.Cert, d.issue().cert)
	current(t, f)
	if want := []credential.Reason{credential.KeyMismatch, credential.Malformed, credential.KeyMismatch}; !slices.Equal(d.reasons(), want) {
		t.Fatalf("told %v, want %v", d.reasons(), want)
	}
	d.write(good)
	if current(t, f) != before || f.Failure() != nil {
		t.Fatalf("the old files are back, and %v is in use: %v", current(t, f), f.Failure())
	}
	select {
	case <-changed:
		t.Error("Changed, and the material is what it was")
	default:
	}
}

// The next look sees a change of files, whatever way it was made.
func TestFilesSeeEveryChange(t *testing.T) {
	rename := func(d *folder, path string, data []byte) {
		d.put(path+".new", data)
		if err := os.Rename(path+".new", path); err != nil {
			d.t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name   string
		change func(d *folder, p pair)
	}{
		{"rewritten in place", func(d *folder, p pair) { d.write(p) }},
		{"renamed over", func(d *folder, p pair) {
			rename(d, d.paths.Cert, p.cert)
			rename(d, d.paths.Key, p.pkey)
		}},
		{"key and certificate in one file", func(d *folder, p pair) {
			both := append(slices.Clone(p.pkey), p.cert...)
			d.put(d.paths.Cert, both)
			d.put(d.paths.Key, both)
		}},
		{"with text around", func(d *folder, p pair) {
			d.put(d.paths.Cert, append([]byte("Subject: x\nIssuer: y\n"), p.cert...))
			d.put(d.paths.Key, p.pkey)
		}},
		{"removed, and made again", func(d *folder, p pair) {
			os.Remove(d.paths.Cert)
			os.Remove(d.paths.Key)
			d.write(p)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newFolder(t)
			d.write(d.issue())
			f := d.open()
			next := d.issue()
			tc.change(d, next)
			if !presents(t, f, next) {
				t.Fatalf("not adopted: %v", f.Failure())
			}
			if len(d.reasons()) != 0 {
				t.Errorf("told %v", d.reasons())
			}
		})
	}
}

// As Kubernetes does it: the files are links through a link to a folder, which is
// swapped in one step.
func TestFilesFollowASwappedLink(t *testing.T) {
	d := newFolder(t)
	swap := func(name string, p pair) {
		t.Helper()
		inner := &folder{t: t, dir: filepath.Join(d.dir, name)}
		if err := os.Mkdir(inner.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		inner.paths = credential.FilePaths{Cert: filepath.Join(inner.dir, "tls.crt"), Key: filepath.Join(inner.dir, "tls.key"), CA: filepath.Join(inner.dir, "ca.crt")}
		inner.write(p)
		tmp := filepath.Join(d.dir, "..data_tmp")
		if err := os.Symlink(name, tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(d.dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	first := d.issue()
	swap("..2026_1", first)
	for _, p := range []string{d.paths.Cert, d.paths.Key, d.paths.CA} {
		if err := os.Symlink(filepath.Join("..data", filepath.Base(p)), p); err != nil {
			t.Fatal(err)
		}
	}
	f := d.open()
	if !presents(t, f, first) {
		t.Fatal("links are not followed")
	}
	for i := range 3 {
		next := d.issue()
		swap(fmt.Sprintf("..2026_%d", i+2), next)
		if !presents(t, f, next) {
			t.Fatalf("the swapped folder was not seen: %v", f.Failure())
		}
	}
}

// A rewrite of the same size, with its time set back, on the same inode, and so soon
// that the file system's clock did not move: nothing but the content tells.
func TestFilesSeeARewriteWithinATick(t *testing.T) {
	d := newFolder(t)
	pairs := []pair{d.issue(), d.issue()}
	size := 8 << 10
	for i := range pairs {
		pairs[i].cert = append(pairs[i].cert, bytes.Repeat([]byte("\n"), size-len(pairs[i].cert))...)
		pairs[i].pkey = append(pairs[i].pkey, bytes.Repeat([]byte("\n"), size-len(pairs[i].pkey))...)
	}
	when := time.Now().Add(-time.Hour)
	put := func(p pair) {
		d.write(p)
		for _, path := range []string{d.paths.Cert, d.paths.Key, d.paths.CA} {
			if err := os.Chtimes(path, when, when); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(pairs[0])
	f := d.open()
	for i := range 300 {
		p := pairs[(i+1)%2]
		put(p)
		if !presents(t, f, p) {
			t.Fatalf("rewrite %d was not seen", i)
		}
	}
}

// A file that is cut anywhere is never adopted.
func TestFilesRefuseEveryCut(t *testing.T) {
	d := newFolder(t)
	good := d.issue()
	// Two roots, of which the first alone would verify.
	good.ca = append(good.ca, pkitest.PEM(pkitest.NewPKI(t, "next", nil).Root.Cert)...)
	d.write(good)
	f := d.open()
	before := current(t, f)
	next := d.issue()
	next.ca = good.ca
	for path, data := range map[string][]byte{d.paths.Cert: next.cert, d.paths.Key: next.pkey, d.paths.CA: next.ca} {
		for cut := range data {
			if cut%7 != 0 && cut > 64 && len(data)-cut > 64 {
				continue
			}
			d.write(next)
			d.put(path, data[:cut])
			m := current(t, f)
			// Without its last line break a file is whole, and between two roots it is
			// a file of one.
			if m != before && !bytes.Equal(bytes.TrimSpace(data[:cut]), bytes.TrimSpace(data)) && !bytes.HasSuffix(bytes.TrimSpace(data[:cut]), []byte("-----END CERTIFICATE-----")) {
				t.Fatalf("adopted %v from %s cut at %d of %d", m, filepath.Base(path), cut, len(data))
			}
			if m != before {
				d.write(good)
				before = current(t, f)
			}
		}
	}
}

// Files that were just written are read each time that they are asked for, also when they were
// refused: another write within the same tick of the file system's clock leaves no other trace. Files
// that are older, and refused, are read again after a while.
func TestFilesThatAreNewAreReadEachTime(t *testing.T) {
	for _, tc := range []struct {
		name string
		bad  bool
	}{{"good", false}, {"refused", true}} {
		t.Run(tc.name, func(t *testing.T) {
			d := newFolder(t)
			d.write(d.issue())
			synctest.Test(t, func(t *testing.T) {
				real := d.pki.Root.Cert.NotBefore.Add(time.Hour)
				d.extra = func(c *credential.FilesConfig) { c.Now = func() time.Time { return real } }
				f := d.open()
				reads := 0
				f.BeforeRead(func(string) { reads++ })
				if tc.bad {
					d.put(d.paths.Cert, []byte("no certificate"))
				}
				// The bubble's clock is behind that of the files, so they are new.
				for range 3 {
					before := reads
					if current(t, f); reads == before {
						t.Fatal("files that are new were not read again")
					}
					if (f.Failure() != nil) != tc.bad {
						t.Fatalf("failure: %v", f.Failure())
					}
				}
				// To where the files are old.
				time.Sleep(time.Until(real.Add(time.Hour)))
				current(t, f)
				before := reads
				current(t, f)
				if reads != before {
					t.Error("files that are old, and were just looked into, were read again at once")
				}
				time.Sleep(time.Minute)
				current(t, f)
				if again := reads != before; again != tc.bad {
					t.Errorf("a minute later they were read again: %v, want %v", again, tc.bad)
				}
			})
		})
	}
}

// A certificate that has not begun yet is adopted when it has, although its file does
// not change.
func TestFilesTryAgain(t *testing.T) {
	d := newFolder(t)
	d.write(d.issue())
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now := time.Now
		d.extra = func(c *credential.FilesConfig) {
			c.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now() }
		}
		real := d.pki.Root.Cert.NotBefore.Add(time.Hour) // the bubble's clock begins elsewhere
		now = func() time.Time { return real.Add(time.Minute) }
		// To where the files are old, and are not read again for being new.
		time.Sleep(time.Until(real.Add(time.Hour)))
		f := d.open()
		later := d.issue(sans(me), func(c *x509.Certificate) { c.NotBefore, c.NotAfter = real.Add(time.Hour), real.Add(24*time.Hour) })
		d.write(later)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		changed := f.Changed()
		time.Sleep(time.Minute)
		if presents(t, f, later) || !slices.Equal(d.reasons(), []credential.Reason{credential.Expired}) {
			t.Fatalf("told %v", d.reasons())
		}
		mu.Lock()
		now = func() time.Time { return real.Add(2 * time.Hour) }
		mu.Unlock()
		<-changed // Run alone sees to it
		if !presents(t, f, later) {
			t.Fatal("not adopted")
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
	})
}

// Files that are replaced between two reads are read again, rather than judged as a
// mixture of old and new.
func TestFilesThatChangeMeanwhile(t *testing.T) {
	d := newFolder(t)
	d.write(d.issue())
	f := d.open()
	before := current(t, f)
	next := d.issue()
	var busy bool // a writer that never stops
	once, writes := true, 0
	f.BeforeRead(func(name string) {
		if name == d.paths.Key && (once || busy) {
			once = false
			next = d.issue()
			writes++ // each of another size: two writes may leave one time
			next.cert = append(next.cert, bytes.Repeat([]byte("\n"), 100*writes)...)
			d.write(next)
		}
	})
	d.write(d.issue())
	current(t, f)
	if !presents(t, f, next) || len(d.reasons()) != 0 {
		t.Fatalf("told %v: %v", d.reasons(), f.Failure())
	}
	busy = true
	d.write(d.issue())
	kept := current(t, f)
	if kept == before || f.Failure() == nil || len(d.reasons()) != 0 {
		t.Errorf("a writer that does not stop: %v in use, told %v, failure %v", kept, d.reasons(), f.Failure())
	}
	busy = false
	if !presents(t, f, next) || f.Failure() != nil {
		t.Errorf("the writer stopped: %v", f.Failure())
	}
}

// While files are rotated under many readers, each gets a pair that belongs together.
func TestFilesUnderConcurrentUse(t *testing.T) {
	d := newFolder(t)
	d.write(d.issue())
	f := d.open()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				m, err := f.Current(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				if !m.Key().Public().(*ecdsa.PublicKey).Equal(m.Chain()[0].PublicKey) {
					t.Error("key and certificate of different pairs")
					return
				}
			}
		})
	}
	var last pair
	for range 30 {
		last = d.issue()
		d.write(last)
	}
	close(stop)
	wg.Wait()
	if !presents(t, f, last) {
		t.Errorf("the last pair is not in use: %v", f.Failure())
	}
}

// Files are of whoever the certificate identifies, or of the one that is asked for alone.
func TestFilesIdentity(t *testing.T) {
	d := newFolder(t)
	first, next := d.issue(), d.issue()
	d.write(first)
	id, err := identity.Parse(me)
	if err != nil {
		t.Fatal(err)
	}
	live, err := credential.NewFiles(credential.FilesConfig{Paths: d.paths, ID: id})
	if err != nil || live.Changed() == nil {
		t.Fatalf("NewFiles = %v, %v", live, err)
	}
	if m := current(t, live); m.ID() != id || m.Bundle().Cluster() != "prod.example" {
		t.Errorf("material %v of %s", m, m.Bundle().Cluster())
	}
	d.write(next)
	if !presents(t, live, next) {
		t.Error("it did not follow")
	}
	gcp, err := identity.Parse("spiffe://prod.example/provider/gcp")
	if err != nil {
		t.Fatal(err)
	}
	_, err = credential.NewFiles(credential.FilesConfig{Paths: d.paths, ID: gcp})
	if e, ok := errors.AsType[*credential.MaterialError](err); !ok || e.Reason != credential.OtherIdentity {
		t.Errorf("somebody else's files: %v", err)
	}
}

// Keys as openssl writes them.
func TestFilesKeyForms(t *testing.T) {
	d := newFolder(t)
	ec := pkitest.NewKey(t)
	ecDER, err := x509.MarshalECPrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	block := func(typ string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: b}) }
	params := block("EC PARAMETERS", []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7})
	for name, tc := range map[string]struct {
		key  crypto.Signer
		file []byte
	}{
		"SEC 1":              {ec, block("EC PRIVATE KEY", ecDER)},
		"SEC 1 with a curve": {ec, append(params, block("EC PRIVATE KEY", ecDER)...)},
		"PKCS #1":            {rsaKey, block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey))},
		"PKCS #8 RSA":        {rsaKey, pkitest.KeyPEM(t, rsaKey)},
		"PKCS #8 P-384":      {p384, pkitest.KeyPEM(t, p384)},
		"PKCS #8 Ed25519":    {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.key == nil {
				tc.key = pkitest.NewEd25519Key(t)
				tc.file = pkitest.KeyPEM(t, tc.key)
			}
			d.put(d.paths.Cert, pkitest.PEM(d.pki.Issue(t, tc.key, sans(me))...))
			d.put(d.paths.Key, tc.file)
			d.put(d.paths.CA, pkitest.PEM(d.pki.Root.Cert))
			m := current(t, d.open())
			// The key is good for a handshake with itself on both sides.
			out := shake(t, credential.ServerTLS(credential.Static(m), credential.ServerOptions{}), clientTLS(t, m, credential.ExactID(m.ID())))
			if out.server != nil || out.client != nil {
				t.Errorf("server: %v, client: %v", out.server, out.client)
			}
		})
	}
}

// Files for a proof are judged by the clock that the config names, as all others are.
func TestFilesForAProofByTheirClock(t *testing.T) {
	d := newFolder(t)
	p := d.issue(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	d.write(p)
	for at, want := range map[time.Time]credential.Reason{p.leaf.NotAfter.Add(-time.Second): "", p.leaf.NotAfter.Add(time.Second): credential.Expired} {
		d.extra = func(c *credential.FilesConfig) {
			c.Proof = true
			c.Now = func() time.Time { return at }
		}
		_, err := credential.NewFiles(d.config())
		if e, _ := errors.AsType[*credential.MaterialError](err); want == "" && err != nil || want != "" && (e == nil || e.Reason != want) {
			t.Errorf("%v after its end: %v, want %q", at.Sub(p.leaf.NotAfter), err, want)
		}
	}
}

// Files for a proof need no SPIFFE id, and make no connection.
func TestFilesForAProof(t *testing.T) {
	d := newFolder(t)
	d.extra = func(c *credential.FilesConfig) { c.Proof = true }
	node := func(name string) pair {
		return d.issue(func(c *x509.Certificate) {
			c.Subject.CommonName = name
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		})
	}
	first, next := node("node-c"), node("node-c")
	d.write(first)
	f := d.open()
	if !presents(t, f, first) {
		t.Fatal("not adopted")
	}
	m := current(t, f)
	if !m.ID().IsZero() || m.Bundle() != nil || m.TrustOnly() != nil || len(m.Chain()) != 2 || m.NotAfter().IsZero() {
		t.Errorf("material %v", m)
	}
	if _, err := credential.ClientTLS(credential.Static(m), credential.AnyOfKind(identity.Coordinator), credential.ClientOptions{}); !errors.Is(err, credential.ErrNoMaterial) {
		t.Errorf("ClientTLS = %v", err)
	}
	if out := shake(t, credential.ServerTLS(f, credential.ServerOptions{}), rawClient(first.leafAlone(), first.key)); out.server == nil || out.client == nil {
		t.Errorf("a server was made of it: %v", out)
	}
	for _, issued := range []*credential.Issued{credential.NewIssued(nil), credential.NewIssued(material(t, pkitest.NewAuthority(t, cluster), identity.Data, "n1"))} {
		if err := issued.Adopt(m); err == nil {
			t.Error("adopted as an issued identity")
		}
	}
	d.write(next)
	if !presents(t, f, next) || current(t, f).Fingerprint() == m.Fingerprint() {
		t.Error("rotation was not adopted")
	}
	if out := fmt.Sprintf("%v %+v %#v", m, m, m); strings.Contains(out, "PRIVATE") || !strings.Contains(out, "certificate key") {
		t.Errorf("printed as %s", out)
	}
	for _, tc := range spoiledFiles(t) {
		t.Run(tc.name, func(t *testing.T) {
			s := newFolder(t)
			s.extra = d.extra
			tc.write(s, s.issue())
			f, err := credential.NewFiles(s.config())
			if e, ok := errors.AsType[*credential.MaterialError](err); !ok || e.Reason != tc.reason {
				t.Fatalf("NewFiles = %v, %v; want reason %s", f, err, tc.reason)
			}
		})
	}
	for _, tc := range noIdentity() {
		t.Run(tc.name, func(t *testing.T) {
			s := newFolder(t)
			s.extra = d.extra
			tc.write(s, pair{})
			if _, err := credential.NewFiles(s.config()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func (p pair) leafAlone() []*x509.Certificate { return []*x509.Certificate{p.leaf} }

// Adopted material is whole and good, whatever the three files hold: the key is the
// leaf's, and the chain verifies by the CA file. A refusal is of a known type, names a
// known reason, and holds nothing of the key file.
func FuzzFiles(f *testing.F) {
	d := newFolder(f)
	good, other := d.issue(), d.issue()
	f.Add(good.cert, good.pkey, good.ca)
	f.Add(append(slices.Clone(good.pkey), good.cert...), good.pkey, append(slices.Clone(good.ca), good.ca...))
	f.Add(good.cert, other.pkey, good.ca)
	f.Add(good.cert[:len(good.cert)/2], good.pkey, good.ca)
	f.Add(good.cert, good.pkey[:len(good.pkey)-20], good.ca)
	f.Add(good.ca, good.pkey, good.cert)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), []byte{})
	f.Add(good.cert, []byte("-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END EC PRIVATE KEY-----\n"), good.ca)
	reasons := []credential.Reason{
		credential.Incomplete, credential.KeyMismatch, credential.Expired, credential.Untrusted, credential.NoIdentity, credential.Unreadable, credential.Malformed,
	}
	f.Fuzz(func(t *testing.T, cert, key, ca []byte) {
		d := &folder{t: t, dir: d.dir, pki: d.pki, paths: d.paths}
		d.write(pair{cert: cert, pkey: key, ca: ca})
		for _, proof := range []bool{false, true} {
			cfg := d.config()
			cfg.Proof = proof
			files, err := credential.NewFiles(cfg)
			if err != nil {
				refused, ok := errors.AsType[*credential.MaterialError](err)
				if !ok || !slices.Contains(reasons, refused.Reason) {
					t.Fatalf("error %T: %v", err, err)
				}
				if b, _ := pem.Decode(key); b != nil && len(b.Bytes) > 16 && strings.Contains(err.Error(), string(b.Bytes)) {
					t.Fatal("the error holds the key")
				}
				continue
			}
			m := current(t, files)
			leaf := m.Chain()[0]
			if !leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(m.Key().Public()) {
				t.Fatalf("adopted %v with another key", m)
			}
			blocks, _ := pem.Decode(ca)
			if blocks == nil || time.Now().After(leaf.NotAfter) || leaf.IsCA {
				t.Fatalf("adopted %v of %d bytes of CA", m, len(ca))
			}
		}
	})
}

// Files keep what every source keeps.
func TestFilesAreASource(t *testing.T) {
	pkitest.Run(t, func(t *testing.T) *pkitest.Subject {
		d := newFolder(t)
		good := d.issue()
		d.write(good)
		f := d.open()
		s := &pkitest.Subject{
			Source: f, Failure: f.Failure, Asks: true,
			Rotate: func(testing.TB) *x509.Certificate {
				os.Remove(d.paths.Key) // where it is a folder
				good = d.issue()
				d.write(good)
				return good.leaf
			},
			Restate: func(testing.TB) { d.write(good) },
			Log: func() string {
				d.mu.Lock()
				defer d.mu.Unlock()
				return d.log.String()
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = f.Run(ctx) }()
		s.Stop = func() { cancel(); <-ended }
		t.Cleanup(s.Stop)
		for _, bad := range append(spoiledFiles(t), noIdentity()...) {
			s.Bad = append(s.Bad, pkitest.Bad{Name: bad.name, Reason: bad.reason,
				Put: func(testing.TB) { bad.write(d, good) }})
		}
		return s
	})
}
