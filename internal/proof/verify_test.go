package proof

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"testing"
)

// The statement that a coordinator signs for its verifier covers all that it
// claims, the nonce and the connection, and passes for nothing else.
func TestVerifyProof(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tr := VerifyTranscript{
		Cluster: "prod.example", Nonce: random32(t), Binding: random32(t), Head: random32(t), Ready: true,
		Root: []byte("root"), MeshCA: []byte("mesh"), TransactionKey: random32(t),
	}
	claim, evidence, err := ProveVerify(key, tr)
	if err != nil {
		t.Fatal(err)
	}
	if selector, err := CheckVerify(tr, claim, evidence); err != nil || selector != "key:"+KeyClaim(key.Public().(ed25519.PublicKey)) {
		t.Fatalf("proved %q, %v", selector, err)
	}
	for name, change := range map[string]func(*VerifyTranscript){
		"cluster":         func(t *VerifyTranscript) { t.Cluster = "other.example" },
		"nonce":           func(t *VerifyTranscript) { t.Nonce = sequence(0, 32) },
		"binding":         func(t *VerifyTranscript) { t.Binding = sequence(0, 32) },
		"head":            func(t *VerifyTranscript) { t.Head = sequence(0, 32) },
		"phase":           func(t *VerifyTranscript) { t.Ready, t.Root, t.MeshCA, t.TransactionKey = false, nil, nil, nil },
		"root":            func(t *VerifyTranscript) { t.Root = []byte("other") },
		"mesh CA":         func(t *VerifyTranscript) { t.MeshCA = []byte("other") },
		"transaction key": func(t *VerifyTranscript) { t.TransactionKey = sequence(0, 32) },
	} {
		other := tr
		change(&other)
		if _, err := CheckVerify(other, claim, evidence); !errors.Is(err, ErrRefused) {
			t.Errorf("over another %s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*VerifyTranscript){
		"cluster":      func(t *VerifyTranscript) { t.Cluster = "" },
		"nonce":        func(t *VerifyTranscript) { t.Nonce = nil },
		"binding":      func(t *VerifyTranscript) { t.Binding = t.Binding[:31] },
		"head":         func(t *VerifyTranscript) { t.Head = nil },
		"certificates": func(t *VerifyTranscript) { t.Root = make([]byte, maxShownCertificate+1) },
		"authority":    func(t *VerifyTranscript) { t.Ready = false },
		"no root":      func(t *VerifyTranscript) { t.Root = nil },
		"no mesh CA":   func(t *VerifyTranscript) { t.MeshCA = nil },
		"a short key":  func(t *VerifyTranscript) { t.TransactionKey = t.TransactionKey[:31] },
	} {
		other := tr
		change(&other)
		if _, err := CheckVerify(other, claim, evidence); !errors.As(err, new(*TranscriptError)) {
			t.Errorf("malformed %s: %v", name, err)
		}
	}
	for name, claim := range map[string]string{"blank": "", "low order": KeyClaim(make([]byte, 32)), "long": KeyClaim(make([]byte, 1000))} {
		if _, err := CheckVerify(tr, claim, evidence); !errors.As(err, new(*FormatError)) {
			t.Errorf("claim %s: %v", name, err)
		}
	}
	if _, err := CheckVerify(tr, claim, evidence[:63]); !errors.Is(err, ErrRefused) {
		t.Errorf("short evidence: %v", err)
	}
	rec := RecoveryTranscript{Cluster: tr.Cluster, Attempt: tr.Nonce[:16], Binding: tr.Binding, Recipient: "age1test", Head: tr.Head}
	if _, err := VerifyRecovery(rec, claim, evidence); !errors.Is(err, ErrRefused) {
		t.Errorf("it passed as the proof of a recovery: %v", err)
	}
}
