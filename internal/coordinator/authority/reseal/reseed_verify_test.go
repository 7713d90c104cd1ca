package reseal_test

import (
	"crypto/ed25519"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/proof"
)

// A data owner who saw a cluster before its seed was replaced goes on from there by the
// signers' word alone: the root of before is refused, whoever shows it, and so is the
// history of before once the new one was seen.
func TestVerifyFollowsAReseed(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	old := f.State()
	former, oldHistory := keep(f), coordinatortest.Loaded(f)
	found, err := coordinatortest.VerifyAt(t, f.Addr, recovery.Expected{Manifest: old.Manifest})
	coordinatortest.WantOnly(t, "verify", err, "")
	coordinatortest.ReseedIn(f)
	f.AwaitState("the new seed",
		func(s *authority.State) bool { return s.Phase == authority.Ready && s.RootPin != old.RootPin })
	s := f.State()
	seen := recovery.Expected{Manifest: s.Manifest, Seen: found.Mark()}
	now, err := coordinatortest.VerifyAt(t, f.Addr, seen)
	coordinatortest.WantOnly(t, "verify after the reseed", err, "")
	if got := now.Mark(); got.Root != s.RootPin || string(got.TransactionKey) == string(seen.Seen.TransactionKey) {
		t.Errorf("the mark is %+v", got)
	}
	// claim is what the coordinator's own key vouches for, as altered.
	claim := func(h *history.History, alter func(*proof.VerifyTranscript)) string {
		return (&coordinatortest.Impostor{Answer: func(nonce, binding []byte) (*fealtyv1.VerifyClaim, *history.History,
			error) {
			tr := proof.VerifyTranscript{
				Cluster: coordinatortest.Cluster, Nonce: nonce, Binding: binding, Head: s.Head.Hash[:], Ready: true,
				Root: s.Root.Raw, MeshCA: s.MeshCA().Certificate().Raw, TransactionKey: s.Secrets.TransactionKey(),
			}
			alter(&tr)
			key, evidence, err := proof.ProveVerify(f.C.Parts().Self.PrivateKey(), tr)
			return &fealtyv1.VerifyClaim{
				Cluster: tr.Cluster, Ready: tr.Ready, Head: tr.Head, Root: tr.Root, MeshCa: tr.MeshCA,
				TransactionKey: tr.TransactionKey, Key: key, Evidence: evidence,
			}, h, err
		}}).Serve(t)
	}
	underOld, err := pki.RenewMeshCA(old.Root, former.keys.RootCA(), s.MeshCA(), coordinatortest.Cluster, time.Hour,
		f.Clock())
	coordinatortest.WantOnly(t, "certify", err, "")
	oldRoot := claim(coordinatortest.Loaded(f), func(tr *proof.VerifyTranscript) {
		tr.Root, tr.MeshCA = old.Root.Raw,
			underOld.Certificate().Raw
	})
	for name, want := range map[string]recovery.Expected{
		"never seen": {Manifest: s.Manifest}, "seen before the reseed": seen, "seen after it": {Manifest: s.Manifest,
			Seen: now.Mark()},
	} {
		_, err := coordinatortest.VerifyAt(t, oldRoot, want)
		if err == nil || errcode.Of(err).Code != errcode.VerifyAuthority {
			t.Errorf("the root of before, %s: %v", name, err)
		}
	}
	oldKey := claim(coordinatortest.Loaded(f), func(tr *proof.VerifyTranscript) {
		tr.TransactionKey = former.keys.Transaction().Public().(ed25519.PublicKey)
	})
	_, err = coordinatortest.VerifyAt(t, oldKey, seen)
	coordinatortest.WantCode(t, err, errcode.VerifyHistory)
	back := claim(oldHistory, func(tr *proof.VerifyTranscript) {
		tr.Head, tr.Root, tr.MeshCA = old.Head.Hash[:], old.Root.Raw, old.MeshCA().Certificate().Raw
		tr.TransactionKey = former.keys.Transaction().Public().(ed25519.PublicKey)
	})
	// Under the key that was seen its head does not verify any more.
	_, err = coordinatortest.VerifyAt(t, back, recovery.Expected{Manifest: s.Manifest, Seen: now.Mark()})
	coordinatortest.WantCode(t, err, errcode.VerifyHistory)
	_, err = coordinatortest.VerifyAt(t, back, recovery.Expected{Manifest: s.Manifest, Seen: found.Mark()})
	coordinatortest.WantOnly(t, "who saw no more", err, "")
	_, err = coordinatortest.VerifyAt(t, claim(coordinatortest.Loaded(f), func(*proof.VerifyTranscript) {}), seen)
	coordinatortest.WantOnly(t, "the truth", err, "")
}
