package enroll_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
)

func TestJoinByCertificateFiles(t *testing.T) {
	f := nodetest.New(t)
	f.Pki = pkitest.NewPKI(t, "corp", f.Clock)
	paths, write := nodetest.TLSFiles(t, f.Pki)
	write("node-k")
	files, err := enterprise.Open(credential.FilesConfig{Paths: paths, Now: f.Clock, Log: nodetest.Quiet()})
	f.Must(err)
	n := nodetest.NewMachine(f)
	r, err := n.Join(f.ByX509(files))
	if err != nil || r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED {
		t.Fatalf("%+v, %v", r, err)
	}
	// The proof is made with what the files hold now, by the same source.
	write("node-k")
	p := f.ByX509(files)
	cfg := n.JoinConfig(p)
	cfg.Rejoin = true
	again, err := enroll.Join(t.Context(), cfg)
	if err != nil || again.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER || again.ID != r.ID {
		t.Fatalf("%+v, %v", again, err)
	}
	write("node-k")
	if err := os.WriteFile(paths.Key, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := enroll.Join(t.Context(), cfg); err != nil {
		t.Errorf("a file that is being written: %v", err)
	}
	if out := p.String(); strings.Contains(out, "PRIVATE") || !strings.Contains(out, "node-k") {
		t.Errorf("named %s", out)
	}
}

// A join that is repeated with the next certificate of the same name is the same
// request; another name is another request.
func TestCertificatePurpose(t *testing.T) {
	f := nodetest.New(t)
	f.Pki = pkitest.NewPKI(t, "corp", f.Clock)
	paths, write := nodetest.TLSFiles(t, f.Pki)
	var got []string
	for _, name := range []string{"node-k", "node-k", "node-l"} {
		write(name)
		files, err := enterprise.Open(credential.FilesConfig{Paths: paths, Now: f.Clock, Log: nodetest.Quiet()})
		f.Must(err)
		got = append(got, f.ByX509(files).Purpose(identity.Data))
	}
	if got[0] != got[1] || got[1] == got[2] {
		t.Errorf("purposes %q", got)
	}
}

func TestJoinByAForeignCertificate(t *testing.T) {
	f := nodetest.New(t)
	f.Pki = pkitest.NewPKI(t, "corp", f.Clock)
	paths, write := nodetest.TLSFiles(t, pkitest.NewPKI(t, "corp", f.Clock))
	write("node-k")
	files, err := enterprise.Open(credential.FilesConfig{Paths: paths, Now: f.Clock, Log: nodetest.Quiet()})
	f.Must(err)
	if _, err := nodetest.NewMachine(f).Join(f.ByX509(files)); !errors.Is(err, errcode.JoinUnauthorized) {
		t.Errorf("join: %v", err)
	}
}

func TestByX509Values(t *testing.T) {
	f := nodetest.New(t)
	f.Pki = pkitest.NewPKI(t, "corp", f.Clock)
	paths, write := nodetest.TLSFiles(t, f.Pki)
	write("node-k")
	files, err := enterprise.Open(credential.FilesConfig{Paths: paths, Now: f.Clock, Log: nodetest.Quiet()})
	f.Must(err)
	trust, err := credential.NewMaterial(credential.MaterialConfig{Bundle: f.BundleLocked(), Now: f.Clock})
	f.Must(err)
	pin := identity.KeyOf(f.Root)
	for name, tc := range map[string]struct {
		cluster   string
		addresses []string
		pin       identity.KeyID
		source    credential.Source
		want      error
	}{
		"no cluster":    {"", []string{signedtest.Coordinator}, pin, files, errcode.BadValue},
		"no address":    {signedtest.Cluster, nil, pin, files, errcode.BadValue},
		"bad address":   {signedtest.Cluster, []string{"c1"}, pin, files, errcode.BadValue},
		"no pin":        {signedtest.Cluster, []string{signedtest.Coordinator}, identity.KeyID{}, files, errcode.BadValue},
		"no material":   {signedtest.Cluster, []string{signedtest.Coordinator}, pin, credential.Static(nil), credential.ErrNoMaterial},
		"trust, no key": {signedtest.Cluster, []string{signedtest.Coordinator}, pin, credential.Static(trust), errcode.BadValue},
	} {
		if _, err := enroll.ByX509(t.Context(), tc.cluster, tc.addresses, tc.pin, tc.source); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// failing is a source that has its material once, and then none.
type failing struct {
	credential.Source
	asked int
}

func (s *failing) Current(ctx context.Context) (*credential.Material, error) {
	if s.asked++; s.asked > 1 {
		return nil, errors.New("the token with the key was pulled out")
	}
	return s.Source.Current(ctx)
}

// A proof that this machine cannot make is no coordinator that cannot be reached.
func TestLocalFaultIsNoNetworkFault(t *testing.T) {
	f := nodetest.New(t)
	f.Pki = pkitest.NewPKI(t, "corp", f.Clock)
	paths, write := nodetest.TLSFiles(t, f.Pki)
	write("node-k")
	files, err := enterprise.Open(credential.FilesConfig{Paths: paths, Now: f.Clock, Log: nodetest.Quiet()})
	f.Must(err)
	_, err = nodetest.NewMachine(f).Join(f.ByX509(&failing{Source: files}))
	if e := errcode.Of(err); !errors.Is(err, errcode.CredentialUnusable) || !strings.Contains(e.Why, "was pulled out") {
		t.Errorf("%v", err)
	}
}
