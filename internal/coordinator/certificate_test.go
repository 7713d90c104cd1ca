package coordinator_test

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/test/wait"
)

// Coordinators that the manifest admits by x509 alone found a cluster, recover from each
// other after a loss, prepare each other for the next head, find each other by their
// records, and are verified by data owners.
func TestCoordinatorsProveCertificates(t *testing.T) {
	t.Parallel()
	pki, f, rs, _ := coordinatortest.CorpFleet(t, 1)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	if a, b := f.State(), r.State(); !a.Secrets.Same(b.Secrets) ||
		a.MeshKey != b.MeshKey {
		t.Error("it is ready with other secrets")
	}
	given, received := coordinatortest.Audited(f, "seed.given"), coordinatortest.Audited(f, "seed.received")
	if len(given) != 1 || given[0].Target != "coordinator/b" ||
		given[0].Actor != "spiffe://test.example/coordinator/a" ||
		given[0].Fields["shown"] != "x509:subject:CN=coordinator-b" || given[0].Fields["x509"] == "" {
		t.Errorf("the audit log says of the giver %+v", given)
	}
	if len(received) != 1 || received[0].Fields["from"] != "a" {
		t.Errorf("the audit log says of the taker %+v", received)
	}
	coordinatortest.AwaitReplica(r, func(x peer.Record) bool { return x.Phase == "ready" })
	all, err := coordinatortest.DirectoryOf(f.Store, f.Clock).Newest(f.Context(), f.State().Manifest)
	if err != nil || len(all) != 2 || all[0].Name != "a" || all[1].Name != "b" {
		t.Fatalf("the records show %+v, %v", all, err)
	}
	// A set at one prepares the other: it has the key before the head moves.
	next := coordinatortest.WithSeed(coordinatortest.ByCertificate(f.Manifest(""), pki), f.People.Seed(1, ""))
	next = []byte(strings.Replace(string(next), "match: [\"x509:subject:CN=coordinator-*\"]",
		"match: [\"x509:subject:CN=coordinator-*\", \"x509:dns:*.c.example\"]", 1))
	coordinatortest.WantOnlyNil(t, f.Set(next))
	r.AwaitHead(f)
	if got := coordinatortest.Audited(f, "mesh.prepared"); len(got) != 1 || got[0].Fields["from"] != "a" ||
		got[0].Fields["shown"] != "x509:subject:CN=coordinator-a" {
		t.Errorf("prepared: %+v", got)
	}
	// After a loss of both of its secrets each gets them from the other.
	f.Stop()
	f.Start()
	f.AwaitHead(r)
	s := f.State()
	got, err := coordinatortest.VerifyAt(t, f.Addr, recovery.Expected{Manifest: s.Manifest, Pin: s.RootPin})
	if err != nil || got.Coordinator != "a" {
		t.Errorf("verified %+v, %v", got, err)
	}
	other := pkitest.NewPKI(t, "other", nil)
	expected, err := manifest.Parse(coordinatortest.ByCertificate(f.Manifest(""), other))
	coordinatortest.WantOnlyNil(t, err)
	if _, err := coordinatortest.VerifyAt(t, f.Addr, recovery.Expected{Manifest: expected}); !errors.Is(err,
		errcode.VerifyUnproven) {
		t.Errorf("under the roots of another PKI: %v", err)
	}
}

// A coordinator whose certificate no entry admits says so, with the entry, and is ready
// as soon as its files are mended. A ready one takes new files only if it stays
// who it is by them.
func TestCoordinatorFollowsItsFiles(t *testing.T) {
	t.Parallel()
	pki, f, rs, files := coordinatortest.CorpFleet(t, 1)
	r, own := rs[0], files[1]
	foreign := pkitest.NewPKI(t, "corp", nil)
	own.Write(foreign, "coordinator-b")
	r.Start()
	// status looks at the files, as the coordinator itself does every few seconds.
	says := func(parts ...string) {
		t.Helper()
		wait.UntilNil(t, "status says it", func() error {
			resp, err := r.Local().Status.GetStatus(r.Context(), &fealtyv1.GetStatusRequest{})
			coordinatortest.WantOnlyNil(t, err)
			text := resp.GetPhase() + " " + resp.GetPhaseReason()
			for _, x := range resp.GetFindings() {
				text += "\n" + x.GetCode() + " " + x.GetSummary()
			}
			for _, p := range parts {
				if no, is := strings.CutPrefix(p, "!"); is == strings.Contains(text, no) {
					return fmt.Errorf("not %q:\n%s", p, text)
				}
			}
			return nil
		})
	}
	says("recovery", "leads to a root of the manifest, and this one does not",
		"coordinators (x509:subject:CN=coordinator-*)")
	own.Write(pki, "node-b")
	says("recovery", "it shows x509:subject:CN=node-b", "coordinators (x509:subject:CN=coordinator-*)")
	own.Write(pki, "coordinator-b")
	says("ready")
	r.AwaitHead(f)
	if got := len(coordinatortest.Audited(f, "seed.given")); got != 1 {
		t.Errorf("the seed was given %d times", got)
	}

	// Ready: what would make another one of it, or none, is not taken.
	shown := func() string { return string(r.C.Parts().Self.Certificate().Certificates("")[0]) }
	before := shown()
	own.Write(pki, "coordinator-z")
	says("ready", string(errcode.CoordinatorCertificateRenames))
	own.Write(foreign, "coordinator-b")
	says("ready", string(errcode.CoordinatorCertificateForeign))
	own.Put(own.Paths.Key, []byte("torn"))
	says("ready", string(errcode.CredentialUnusable))
	if shown() != before {
		t.Error("what was refused is shown")
	}
	own.Write(pki, "coordinator-b")
	says("ready", "!FE-H12", "!FE-C1")
	if shown() == before {
		t.Error("the new certificate is not shown")
	}
	// And by it the other one recovers, which lost everything in memory.
	f.Stop()
	f.Start()
	f.AwaitHead(r)

	// A manifest that would leave it out is refused where it is set.
	m := coordinatortest.ByCertificate(f.Manifest(""), foreign)
	coordinatortest.WantCode(t, f.Set(coordinatortest.WithSeed(m, f.People.Seed(1, ""))),
		errcode.CoordinatorCertificateForeign)
	coordinatortest.WantCode(t, f.Set(
		coordinatortest.WithSeed([]byte(strings.ReplaceAll(string(coordinatortest.ByCertificate(f.Manifest(""), pki)),
			"CN=coordinator-*",
			"CN=control-*")), f.People.Seed(1, ""))), errcode.CoordinatorCertificateOther)
}

// Without the files a coordinator says which entry wants them.
func TestCoordinatorWithoutItsCertificate(t *testing.T) {
	t.Parallel()
	_, _, rs, _ := coordinatortest.CorpFleet(t, 1)
	r := rs[0]
	r.Config = nil
	r.Start()
	r.AwaitState("the reason", func(s *authority.State) bool {
		return s.Phase == authority.Recovery && strings.Contains(s.Reason,
			"coordinators (x509:subject:CN=coordinator-*)") && strings.Contains(s.Reason, "no certificate")
	})
	// Files that hold nothing usable, or some of three flags, are told at the start.
	for name, tc := range map[string]struct {
		spoil func(*coordinatortest.CorpFiles) credential.FilePaths
		want  errcode.Code
	}{
		"some flags": {func(own *coordinatortest.CorpFiles) credential.FilePaths {
			return credential.FilePaths{Cert: own.Paths.Cert}
		},
			errcode.TLSFilesIncomplete},
		"another key": {func(own *coordinatortest.CorpFiles) credential.FilePaths {
			own.Put(own.Paths.Key, pkitest.KeyPEM(t, pkitest.NewKey(t)))
			return own.Paths
		}, errcode.CredentialMismatch},
		"out of date": {func(own *coordinatortest.CorpFiles) credential.FilePaths {
			own.Edit(pkitest.NewPKI(t, "corp", nil), func(c *x509.Certificate) {
				coordinatortest.CommonName("coordinator-b")(c)
				c.NotAfter = time.Now().Add(-time.Second)
			})
			return own.Paths
		}, errcode.CredentialExpired},
	} {
		own := coordinatortest.NewCorpFiles(t, pkitest.NewPKI(t, "corp", nil), "coordinator-b")
		cfg := *r.C.Cfg()
		cfg.TLS, cfg.DataDir, cfg.Monitoring.Registry = tc.spoil(own), t.TempDir(), nil
		if c, err := coordinator.New(t.Context(), cfg); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
			if c != nil {
				c.Close()
			}
		}
	}
}

// The PKI of coordinators moves from one root to another and back while people verify each of them all the time, and
// none fails. What has the root of before alone is refused in the end, also to a coordinator that starts.
func TestOwnPKIRotatesUnderLoad(t *testing.T) {
	t.Parallel()
	corp, f, rs, files := coordinatortest.CorpFleet(t, 1)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	next := pkitest.NewPKI(t, "corp", nil)
	set := func(first *pkitest.PKI, more ...*pkitest.PKI) recovery.Expected {
		t.Helper()
		m := coordinatortest.ByCertificate(f.Manifest(""), first)
		for _, one := range more {
			m = append(m, "      "+strings.ReplaceAll(strings.TrimSpace(string(pkitest.PEM(one.Root.Cert))), "\n", "\n      ")+"\n"...)
		}
		coordinatortest.WantOnlyNil(t, f.Set(coordinatortest.WithSeed(m, f.People.Seed(1, ""))))
		r.AwaitHead(f)
		s := f.State()
		return recovery.Expected{Manifest: s.Manifest, Pin: s.RootPin}
	}
	both := set(corp, next)
	var counts [2]atomic.Int64
	var over atomic.Bool
	var people sync.WaitGroup
	defer people.Wait()
	defer over.Store(true)
	for i, addr := range []string{f.Addr, r.Addr} {
		people.Go(func() {
			for !over.Load() && !t.Failed() {
				if _, err := coordinatortest.VerifyAt(t, addr, both); err != nil {
					t.Errorf("while the PKI is replaced: %v", err)
				}
				counts[i].Add(1)
			}
		})
	}
	for _, pki := range []*pkitest.PKI{next, corp, next} {
		for i, one := range []*coordinatortest.Fleet{f, r} {
			before := string(one.C.Parts().Self.Certificate().Certificates("")[0])
			files[i].Write(pki, "coordinator-"+string(rune('a'+i)))
			wait.Until(t, "the new certificate is shown", func() bool {
				// status looks at the files, as the coordinator itself does every few seconds.
				_, err := one.Local().Status.GetStatus(one.Context(), &fealtyv1.GetStatusRequest{})
				coordinatortest.WantOnlyNil(t, err)
				return string(one.C.Parts().Self.Certificate().Certificates("")[0]) != before
			})
			n := counts[i].Load()
			wait.Until(t, "people verified it", func() bool { return counts[i].Load() > n+2 || t.Failed() })
		}
	}
	over.Store(true)
	people.Wait()

	only := set(next)
	for _, addr := range []string{f.Addr, r.Addr} {
		if _, err := coordinatortest.VerifyAt(t, addr, only); err != nil {
			t.Errorf("with the new root alone: %v", err)
		}
	}
	old, err := manifest.Parse(coordinatortest.WithSeed(coordinatortest.ByCertificate(f.Manifest(""), corp), f.People.Seed(1, "")))
	coordinatortest.WantOnlyNil(t, err)
	if _, err := coordinatortest.VerifyAt(t, r.Addr, recovery.Expected{Manifest: old}); !errors.Is(err, errcode.VerifyUnproven) {
		t.Errorf("to who believes the old root alone: %v", err)
	}
	r.Stop()
	files[1].Write(corp, "coordinator-b")
	r.Start()
	wait.Until(t, "the old certificate is refused", func() bool {
		resp, err := r.Local().Status.GetStatus(r.Context(), &fealtyv1.GetStatusRequest{})
		coordinatortest.WantOnlyNil(t, err)
		return resp.GetPhase() == "recovery" && strings.Contains(resp.GetPhaseReason(), "leads to a root of the manifest, and this one does not")
	})
	files[1].Write(next, "coordinator-b")
	r.AwaitHead(f)
}
