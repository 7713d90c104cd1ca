package owner_test

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// Owners send shares to a coordinator that the manifest admits by x509, wherever they
// reach it, and to no other.
func TestSharesGoToNoOtherCertificate(t *testing.T) {
	t.Parallel()
	pki, f, rs, files := coordinatortest.CorpFleet(t, 1)
	r := rs[0]
	share := f.People.ShareFile(f.Store, "alice")
	files[1].Write(pkitest.NewPKI(t, "corp", nil), "coordinator-b")
	r.Start()
	f.Kill() // nobody holds the seed any more
	if _, err := coordinatortest.BringTo(t, r.Addr, share, recovery.Options{}); err == nil ||
		errcode.Of(err).Code != errcode.CoordinatorCertificateForeign {
		t.Errorf("one whose certificate is foreign asks for shares: %v", err)
	}
	// One that asks all the same is not believed.
	_, _, claimed, err := r.C.Parts().Head.ClaimedHistory(r.Context())
	coordinatortest.WantOnlyNil(t, err)
	loaded := coordinatortest.Loaded(r)
	head := &recovery.Head{Hash: sha256.Sum256(loaded.Links[len(loaded.Links)-1]), Cluster: coordinatortest.Cluster}
	open := recovery.Open{Attempt: recovery.ID{1}, Cluster: coordinatortest.Cluster, Head: head.Hash,
		Recipient: f.People.Keys["alice"].Recipient().String(), Ends: time.Now().Add(time.Minute),
		Key: r.C.EnrolmentKey()}
	for _, tc := range []struct {
		name string
		cert *enterprise.Certificate
		ok   bool
	}{
		{"none", nil, false},
		{"foreign", coordinatortest.NewCorpFiles(t, pkitest.NewPKI(t, "corp", nil), "coordinator-b").Certificate(),
			false},
		{"of an entry", coordinatortest.NewCorpFiles(t, pki, "coordinator-b").Certificate(), true},
	} {
		raw, err := open.Sign(r.Key, func(said [64]byte) ([]byte,
			error) {
			return tc.cert.Vouch(r.C.EnrolmentKey(), said)
		})
		coordinatortest.WantOnlyNil(t, err)
		_, err = recovery.ReadOpen(raw, recovery.Claimed{Head: head, Manifest: claimed},
			r.C.EnrolmentKey(),
			time.Now())
		if (err == nil) != tc.ok {
			t.Errorf("an attempt with certificate %s: %v", tc.name, err)
		}
	}
	r.Stop()
	files[1].Write(pki, "coordinator-b")
	r.Start()
	got, err := coordinatortest.BringTo(t, r.Addr, share, recovery.Options{})
	coordinatortest.WantOnlyNil(t, err)
	if s := r.State(); !got.Recovered || s.Phase != authority.Ready {
		t.Fatalf("%+v, and it is %v", got, s.Phase)
	}
}
