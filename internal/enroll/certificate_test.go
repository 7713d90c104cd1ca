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
	"github.com/fealty-io/fealty/internal/authortest"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/fleettest"
	"github.com/fealty-io/fealty/internal/identitytest"
	"github.com/fealty-io/fealty/internal/tlsfiles"
)

func TestJoinByCertificateFiles(t *testing.T) {
	f := fleettest.New(t)
	f.Pki = identitytest.NewPKI(t, "corp", f.Clock)
	paths, write := fleettest.TLSFiles(t, f.Pki)
	write("node-k")
	files, err := tlsfiles.Open(credential.FilesConfig{Paths: paths, Now: f.Clock, Log: fleettest.Quiet()})
	f.Must(err)
	n := fleettest.NewMachine(f)
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
	f := fleettest.New(t)
	f.Pki = identitytest.NewPKI(t, "corp", f.Clock)
	paths, write := fleettest.TLSFiles(t, f.Pki)
	var got []string
	for _, name := range []string{"node-k", "node-k", "node-l"} {
		write(name)
		files, err := tlsfiles.Open(credential.FilesConfig{Paths: paths, Now: f.Clock, Log: fleettest.Quiet()})
		f.Must(err)
		got = append(got, f.ByX509(files).Purpose(identity.Data))
	}
	if got[0] != got[1] || got[1] == got[2] {
		t.Errorf("purposes %q", got)
	}
}

func TestJoinByAForeignCertificate(t *testing.T) {
	f := fleettest.New(t)
	f.Pki = identitytest.NewPKI(t, "corp", f.Clock)
	paths, write := fleettest.TLSFiles(t, identitytest.NewPKI(t, "corp", f.Clock))
	write("node-k")
	files, err := tlsfiles.Open(credential.FilesConfig{Paths: paths, Now: f.Clock, Log: fleettest.Quiet()})
	f.Must(err)
	if _, err := fleettest.NewMachine(f).Join(f.ByX509(files)); !errors.Is(err, explain.JoinUnauthorized) {
		t.Errorf("join: %v", err)
	}
}

func TestByX509Values(t *testing.T) {
	f := fleettest.New(t)
	f.Pki = identitytest.NewPKI(t, "corp", f.Clock)
	paths, write := fleettest.TLSFiles(t, f.Pki)
	write("node-k")
	files, err := tlsfiles.Open(credential.FilesConfig{Paths: paths, Now: f.Clock, Log: fleettest.Quiet()})
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
		"no cluster":    {"", []string{authortest.Coordinator}, pin, files, explain.BadValue},
		"no address":    {authortest.Cluster, nil, pin, files, explain.BadValue},
		"bad address":   {authortest.Cluster, []string{"c1"}, pin, files, explain.BadValue},
		"no pin":        {authortest.Cluster, []string{authortest.Coordinator}, identity.KeyID{}, files, explain.BadValue},
		"no material":   {authortest.Cluster, []string{authortest.Coordinator}, pin, credential.Static(nil), credential.ErrNoMaterial},
		"trust, no key": {authortest.Cluster, []string{authortest.Coordinator}, pin, credential.Static(trust), explain.BadValue},
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
	f := fleettest.New(t)
	f.Pki = identitytest.NewPKI(t, "corp", f.Clock)
	paths, write := fleettest.TLSFiles(t, f.Pki)
	write("node-k")
	files, err := tlsfiles.Open(credential.FilesConfig{Paths: paths, Now: f.Clock, Log: fleettest.Quiet()})
	f.Must(err)
	_, err = fleettest.NewMachine(f).Join(f.ByX509(&failing{Source: files}))
	if e := explain.Of(err); !errors.Is(err, explain.CredentialUnusable) || !strings.Contains(e.Why, "was pulled out") {
		t.Errorf("%v", err)
	}
}
