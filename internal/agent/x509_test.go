package agent

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/identity/identitytest"
	"github.com/fealty-io/fealty/internal/explain"
)

// tlsFiles are the three files of a machine with a certificate of the operator's PKI.
func tlsFiles(t *testing.T, pki *identitytest.PKI) (credential.FilePaths, func(commonName string)) {
	t.Helper()
	dir := t.TempDir()
	p := credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	return p, func(name string) {
		t.Helper()
		key := identitytest.NewKey(t)
		chain := pki.Issue(t, key, func(c *x509.Certificate) { c.Subject.CommonName = name })
		for path, data := range map[string][]byte{p.Cert: identitytest.PEM(chain...), p.Key: identitytest.KeyPEM(t, key), p.CA: identitytest.PEM(pki.Root.Cert)} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (f *fleet) byX509(source credential.Source) Proof {
	f.tb.Helper()
	p, err := ByX509(f.tb.Context(), testCluster, []string{coordinator}, identity.KeyOf(f.root), source)
	f.must(err)
	return p
}

func TestJoinByCertificateFiles(t *testing.T) {
	f := newFleet(t)
	f.pki = identitytest.NewPKI(t, "corp", f.clock)
	paths, write := tlsFiles(t, f.pki)
	write("node-k")
	files, err := TLSFiles(credential.FilesConfig{Paths: paths, Now: f.clock, Log: quiet()})
	f.must(err)
	n := newNode(f)
	r, err := n.join(f.byX509(files))
	if err != nil || r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED {
		t.Fatalf("%+v, %v", r, err)
	}
	// The proof is made with what the files hold now, by the same source.
	write("node-k")
	p := f.byX509(files)
	cfg := n.joinConfig(p)
	cfg.Rejoin = true
	again, err := Join(t.Context(), cfg)
	if err != nil || again.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER || again.ID != r.ID {
		t.Fatalf("%+v, %v", again, err)
	}
	write("node-k")
	if err := os.WriteFile(paths.Key, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Join(t.Context(), cfg); err != nil {
		t.Errorf("a file that is being written: %v", err)
	}
	if out := p.what; strings.Contains(out, "PRIVATE") || !strings.Contains(out, "node-k") {
		t.Errorf("named %s", out)
	}
}

// Whoever repeats a join with the next certificate of the same name repeats the same
// request; another name is another request.
func TestCertificatePurpose(t *testing.T) {
	f := newFleet(t)
	f.pki = identitytest.NewPKI(t, "corp", f.clock)
	paths, write := tlsFiles(t, f.pki)
	var got []string
	for _, name := range []string{"node-k", "node-k", "node-l"} {
		write(name)
		files, err := TLSFiles(credential.FilesConfig{Paths: paths, Now: f.clock, Log: quiet()})
		f.must(err)
		got = append(got, f.byX509(files).purpose(identity.Data))
	}
	if got[0] != got[1] || got[1] == got[2] {
		t.Errorf("purposes %q", got)
	}
}

func TestJoinByAForeignCertificate(t *testing.T) {
	f := newFleet(t)
	f.pki = identitytest.NewPKI(t, "corp", f.clock)
	paths, write := tlsFiles(t, identitytest.NewPKI(t, "corp", f.clock))
	write("node-k")
	files, err := TLSFiles(credential.FilesConfig{Paths: paths, Now: f.clock, Log: quiet()})
	f.must(err)
	if _, err := newNode(f).join(f.byX509(files)); !errors.Is(err, explain.JoinUnauthorized) {
		t.Errorf("join: %v", err)
	}
}

func TestByX509Values(t *testing.T) {
	f := newFleet(t)
	f.pki = identitytest.NewPKI(t, "corp", f.clock)
	paths, write := tlsFiles(t, f.pki)
	write("node-k")
	files, err := TLSFiles(credential.FilesConfig{Paths: paths, Now: f.clock, Log: quiet()})
	f.must(err)
	trust, err := credential.NewMaterial(credential.MaterialConfig{Bundle: f.bundleLocked(), Now: f.clock})
	f.must(err)
	pin := identity.KeyOf(f.root)
	for name, tc := range map[string]struct {
		cluster   string
		addresses []string
		pin       identity.KeyID
		source    credential.Source
		want      error
	}{
		"no cluster":    {"", []string{coordinator}, pin, files, explain.BadValue},
		"no address":    {testCluster, nil, pin, files, explain.BadValue},
		"bad address":   {testCluster, []string{"c1"}, pin, files, explain.BadValue},
		"no pin":        {testCluster, []string{coordinator}, identity.KeyID{}, files, explain.BadValue},
		"no material":   {testCluster, []string{coordinator}, pin, credential.Static(nil), credential.ErrNoMaterial},
		"trust, no key": {testCluster, []string{coordinator}, pin, credential.Static(trust), explain.BadValue},
	} {
		if _, err := ByX509(t.Context(), tc.cluster, tc.addresses, tc.pin, tc.source); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Some of the three flags are an error that names the missing ones, and none of the
// three is left to say nothing.
func TestTLSFiles(t *testing.T) {
	for _, tc := range []struct {
		paths   credential.FilePaths
		code    explain.Code
		missing string
	}{
		{credential.FilePaths{Cert: "a"}, explain.TLSFilesIncomplete, "--tls-key and --tls-ca"},
		{credential.FilePaths{Key: "a", CA: "b"}, explain.TLSFilesIncomplete, "--tls-cert"},
		{credential.FilePaths{Cert: "a", Key: "b"}, explain.TLSFilesIncomplete, "--tls-ca"},
		{credential.FilePaths{}, explain.CredentialUnusable, ""},
		{credential.FilePaths{Cert: "/nowhere/a", Key: "/nowhere/b", CA: "/nowhere/c"}, explain.CredentialUnusable, "/nowhere/a is missing"},
	} {
		_, err := TLSFiles(credential.FilesConfig{Paths: tc.paths})
		if !errors.Is(err, tc.code) || !strings.Contains(err.Error(), tc.missing) {
			t.Errorf("%+v: %v", tc.paths, err)
		}
	}
}

// A node that was away for longer than any grace comes back by the operator's
// certificate, as the member that it was.
func TestReenrol(t *testing.T) {
	f := newFleet(t)
	f.pki = identitytest.NewPKI(t, "corp", f.clock)
	paths, write := tlsFiles(t, f.pki)
	write("node-k")
	files, err := TLSFiles(credential.FilesConfig{Paths: paths, Now: f.clock, Log: quiet()})
	f.must(err)
	n := newNode(f)
	if _, _, err := Reenrol(t.Context(), n.joinConfig(Proof{}), files); !errors.Is(err, explain.NodeNotJoined) {
		t.Errorf("a machine that never joined: %v", err)
	}
	first, err := n.join(f.byX509(files))
	f.must(err)
	if _, done, err := Reenrol(t.Context(), n.joinConfig(Proof{}), files); done || err != nil {
		t.Fatalf("a node with a good certificate: %v, %v", done, err)
	}
	f.shift.Store(int64(20 * time.Hour))
	write("node-k")
	f.shift.Store(int64(30 * time.Hour))
	again, done, err := Reenrol(t.Context(), n.joinConfig(Proof{}), files)
	if err != nil || !done || again.ID != first.ID || again.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
		t.Fatalf("%+v, %v, %v", again, done, err)
	}
	a := n.mustOpen()
	defer a.Close()
	if reason := a.unready(); reason != "" {
		t.Errorf("not ready: %s", reason)
	}
}

// With the certificate of another member it does not become that one.
func TestReenrolAsAnother(t *testing.T) {
	f := newFleet(t)
	f.pki = identitytest.NewPKI(t, "corp", f.clock)
	paths, write := tlsFiles(t, f.pki)
	n := newNode(f)
	before := n.mustJoin() // by a token, under another name than a certificate gives here
	f.shift.Store(int64(30 * time.Hour))
	write("node-k")
	files, err := TLSFiles(credential.FilesConfig{Paths: paths, Now: f.clock, Log: quiet()})
	f.must(err)
	if _, done, err := Reenrol(t.Context(), n.joinConfig(Proof{}), files); done || !errors.Is(err, explain.NodeWrong) {
		t.Fatalf("%v, %v", done, err)
	}
	a := n.mustOpen()
	defer a.Close()
	if a.me.ID != before.ID {
		t.Errorf("the node is %s, was %s", a.me.ID, before.ID)
	}
}
