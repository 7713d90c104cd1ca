package proof

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"testing"
)

// A signature over one attempt is none over any other, by one key none by another,
// and no proof over a connection.
func TestAttemptProof(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tr := AttemptTranscript{Cluster: "prod.example", Attempt: random32(t)[:16], Recipient: "age1test", Head: random32(t), Ends: 1_800_000_000}
	claim, evidence, err := ProveAttempt(key, tr)
	if err != nil {
		t.Fatal(err)
	}
	selector, err := VerifyAttempt(tr, claim, evidence)
	if want := "key:" + KeyClaim(key.Public().(ed25519.PublicKey)); err != nil || selector != want {
		t.Fatalf("proved %q, %v; want %q", selector, err, want)
	}
	tr.Ends++
	if _, err := VerifyAttempt(tr, claim, evidence); !errors.Is(err, ErrRefused) {
		t.Errorf("over another end: %v", err)
	}
	tr.Ends--
	for name, change := range map[string]func(*AttemptTranscript){
		"cluster":   func(t *AttemptTranscript) { t.Cluster = "other.example" },
		"attempt":   func(t *AttemptTranscript) { t.Attempt = sequence(0, 16) },
		"recipient": func(t *AttemptTranscript) { t.Recipient = "age1other" },
		"head":      func(t *AttemptTranscript) { t.Head = sequence(0, 32) },
	} {
		other := tr
		change(&other)
		if _, err := VerifyAttempt(other, claim, evidence); !errors.Is(err, ErrRefused) {
			t.Errorf("over another %s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*AttemptTranscript){
		"cluster":   func(t *AttemptTranscript) { t.Cluster = "" },
		"attempt":   func(t *AttemptTranscript) { t.Attempt = nil },
		"recipient": func(t *AttemptTranscript) { t.Recipient = string(make([]byte, MaxRecipientBytes+1)) },
		"head":      func(t *AttemptTranscript) { t.Head = t.Head[:31] },
	} {
		other := tr
		change(&other)
		if _, err := VerifyAttempt(other, claim, evidence); !errors.As(err, new(*TranscriptError)) {
			t.Errorf("with a malformed %s: %v", name, err)
		}
	}
	other, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyAttempt(tr, KeyClaim(other), evidence); !errors.Is(err, ErrRefused) {
		t.Errorf("claimed by another key: %v", err)
	}
	for name, claim := range map[string]string{"blank": "", "low order": KeyClaim(make([]byte, 32)), "long": KeyClaim(make([]byte, 1000))} {
		if _, err := VerifyAttempt(tr, claim, evidence); !errors.As(err, new(*FormatError)) {
			t.Errorf("claim %s: %v", name, err)
		}
	}
	for _, bad := range [][]byte{nil, evidence[:63], append([]byte{0}, evidence...)} {
		if _, err := VerifyAttempt(tr, claim, bad); !errors.Is(err, ErrRefused) {
			t.Errorf("evidence of %d bytes: %v", len(bad), err)
		}
	}
	rec := RecoveryTranscript{Cluster: tr.Cluster, Attempt: tr.Attempt, Binding: random32(t), Recipient: tr.Recipient, Head: tr.Head}
	if _, err := VerifyRecovery(rec, claim, evidence); !errors.Is(err, ErrRefused) {
		t.Errorf("it passed as a proof over a connection: %v", err)
	}
	_, evidence, err = ProveRecovery(key, rec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyAttempt(tr, claim, evidence); !errors.Is(err, ErrRefused) {
		t.Errorf("a proof over a connection passed as one of an attempt: %v", err)
	}
}
