package proof

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"testing"
)

func newRecoveryTranscript(t testing.TB) RecoveryTranscript {
	t.Helper()
	return RecoveryTranscript{Cluster: "prod.example", Attempt: random32(t)[:16], Binding: random32(t), Recipient: "age1test", Head: random32(t)}
}

// The value was computed by another program from the documentation.
func TestGoldenRecoveryDigest(t *testing.T) {
	d, err := RecoveryTranscript{"prod.example", sequence(0, 16), sequence(32, 32), "age1recipient", sequence(64, 32)}.Digest()
	const want = "abe0505421d17867c683c0712eb7ad08bb6c312dc491eb5b7752cc1a64c61a3b3c0555d4beae900f8309ad87cf1d3e9f93ccb0ba721f2c3576522a5122e52c26"
	if err != nil || hex.EncodeToString(d[:]) != want {
		t.Errorf("RecoveryTranscript: %x, %v; want %s", d, err, want)
	}
}

// A proof over one transcript is none over any other, and by one key none by
// another.
func TestRecoveryProof(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tr := newRecoveryTranscript(t)
	claim, evidence, err := ProveRecovery(key, tr)
	if err != nil {
		t.Fatal(err)
	}
	selector, err := VerifyRecovery(tr, claim, evidence)
	if want := "key:" + KeyClaim(key.Public().(ed25519.PublicKey)); err != nil || selector != want {
		t.Fatalf("proved %q, %v; want %q", selector, err, want)
	}
	changes(t, &tr, func(field, change string) {
		if _, err := VerifyRecovery(tr, claim, evidence); err == nil {
			t.Errorf("accepted over another %s (%s)", field, change)
		}
	})
	other, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyRecovery(tr, KeyClaim(other), evidence); !errors.Is(err, ErrRefused) {
		t.Errorf("claimed by another key: %v", err)
	}
	for name, claim := range map[string]string{"blank": "", "no key": "ed25519:", "low order": KeyClaim(make([]byte, 32)), "long": KeyClaim(make([]byte, 1000))} {
		if _, err := VerifyRecovery(tr, claim, evidence); !errors.As(err, new(*FormatError)) {
			t.Errorf("claim %s: %v", name, err)
		}
	}
	for _, bad := range [][]byte{nil, evidence[:63], append([]byte{0}, evidence...)} {
		if _, err := VerifyRecovery(tr, claim, bad); !errors.Is(err, ErrRefused) {
			t.Errorf("evidence of %d bytes: %v", len(bad), err)
		}
	}
}

// A signature of the same key elsewhere is no proof of a recovery, and the reverse:
// a recovering coordinator cannot be made to sign its own admission.
func TestRecoveryProofIsOfItsOwnKind(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tr := newTranscript(t)
	e, err := NewKeyProver(key).Prove(context.Background(), tr)
	if err != nil {
		t.Fatal(err)
	}
	rec := RecoveryTranscript{Cluster: tr.Cluster, Attempt: tr.Nonce[:16], Binding: tr.Binding, Recipient: "age1test", Head: tr.Nonce}
	if _, err := VerifyRecovery(rec, e.Claim, e.Evidence); !errors.Is(err, ErrRefused) {
		t.Errorf("a key proof passed as one of a recovery: %v", err)
	}
	claim, evidence, err := ProveRecovery(key, rec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewKeyVerifier().Verify(context.Background(), tr, Evidence{Type: TypeKey, Claim: claim, Evidence: evidence}); !errors.Is(err, ErrRefused) {
		t.Errorf("a proof of a recovery passed as a key proof: %v", err)
	}
}
