package proof

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/identity"
)

// TypeToken is the proof by a join token: a signature by the key that derives
// from its secret. The secret itself never travels.
const TypeToken = "token"

// NewTokenProver returns a prover for token, which [NewJoinToken] or
// [ParseJoinToken] made. It signs as candidate of the
// token's own cluster only: shown to another one, a token would do no harm, but
// its holder was sent there by somebody.
func NewTokenProver(token JoinToken) Prover { return tokenProver{token} }

type tokenProver struct{ token JoinToken }

func (p tokenProver) Prove(_ context.Context, t Transcript) (Evidence, error) {
	if t.Role != Candidate {
		return Evidence{}, &TranscriptError{"role", "is not that of a candidate, and a token proves nothing else"}
	}
	if t.Cluster != p.token.Cluster {
		return Evidence{}, &TranscriptError{"cluster", fmt.Sprintf("is %q, and the token is for %q", t.Cluster, p.token.Cluster)}
	}
	d, err := t.Digest()
	if err != nil {
		return Evidence{}, err
	}
	return Evidence{Type: TypeToken, Claim: p.token.ID, Evidence: ed25519.Sign(p.token.privateKey(), d[:])}, nil
}

// TokenLookup returns the public key of the token id and the entry of the
// manifest that it names. It answers for spent, expired and revoked tokens too:
// which of these it is may be told only to who proved the secret, so the caller
// looks after the proof. An error that matches [ErrNotFound] means that there is
// no such token, any other that nobody can tell now.
type TokenLookup func(ctx context.Context, id string) (key ed25519.PublicKey, entry string, err error)

// NewTokenVerifier returns the verifier of [TypeToken]; the selector is
// "token:<entry>". It panics without a lookup.
func NewTokenVerifier(lookup TokenLookup) Verifier {
	if lookup == nil {
		panic("proof: NewTokenVerifier without a lookup")
	}
	dummy, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return &tokenVerifier{lookup: lookup, dummy: dummy}
}

// errTokenRefused is the one answer to an unknown token and to a wrong
// signature: who cannot prove a secret learns nothing about which tokens exist.
var errTokenRefused = &refusal{"the token proof is not accepted: the token is not one of this cluster, or its secret was not proven over this channel; ask an admin for a new one (fealty token create), and connect without a proxy that terminates TLS"}

type tokenVerifier struct {
	lookup TokenLookup
	dummy  ed25519.PublicKey // stands in for the key of a token that does not exist
}

func (*tokenVerifier) Type() string { return TypeToken }

func (v *tokenVerifier) Verify(ctx context.Context, t Transcript, e Evidence) (Proven, error) {
	d, err := t.Digest()
	if err != nil {
		return Proven{}, err
	}
	if err := e.checkShape(TypeToken); err != nil {
		return Proven{}, err
	}
	if !ValidTokenID(e.Claim) {
		return Proven{}, &FormatError{TypeToken, "claim", "a token's id has 16 characters of a-z and 2-7"}
	}
	key, entry, err := v.lookup(ctx, e.Claim)
	known := err == nil
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Proven{}, &LookupError{TypeToken, err}
	}
	if known && (len(key) != ed25519.PublicKeySize || entry == "") {
		return Proven{}, &LookupError{TypeToken, errors.New("the token's record is damaged")}
	}
	if !known {
		// The work of a verification is done in either case, so that the time of
		// the answer does not tell what its text conceals.
		key = v.dummy
	}
	valid := ed25519.Verify(key, d[:], e.Evidence)
	if !known || !valid || t.Role != Candidate {
		return Proven{}, errTokenRefused
	}
	id, err := identity.KeyOfPublic(key)
	if err != nil {
		return Proven{}, err
	}
	p := newProven(t, TypeToken, id, "token:"+entry)
	p.tokenID = e.Claim
	return p, nil
}
