package proof

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/fealty-io/fealty/internal/errcode"
)

// ChallengeLife bounds the age of a challenge.
const ChallengeLife = 30 * time.Second

// nonceBytes is the size of a nonce.
const nonceBytes = 32

// Challenge is one connection's side of a proof: what the candidate must sign.
type Challenge struct {
	Nonce   []byte // 32 random bytes
	Binding []byte // of the connection: see [Binding]

	opened time.Time // monotonic
}

// NewChallenge returns a challenge with a fresh nonce over the connection with the binding.
func NewChallenge(binding []byte) Challenge {
	nonce := make([]byte, nonceBytes)
	rand.Read(nonce)
	return Challenge{Nonce: nonce, Binding: binding, opened: time.Now()}
}

// OpenChallenge takes the binding of the stream's own connection and makes a fresh nonce. Without a
// binding there is no call: a proof could come from anywhere. The error is
// [errcode.JoinNoBinding].
func OpenChallenge(ctx context.Context) (Challenge, error) {
	cs, ok := ConnectionState(ctx)
	if !ok {
		return Challenge{}, errcode.New(errcode.JoinNoBinding, "problem", "the call came over no TLS connection")
	}
	binding, err := Binding(cs)
	if err != nil {
		return Challenge{}, errcode.Wrap(err, errcode.JoinNoBinding, "problem", err.Error())
	}
	return NewChallenge(binding), nil
}

// Stale is [errcode.ProofStale] if an answer to the challenge comes too late.
func (ch Challenge) Stale() error {
	if age := time.Since(ch.opened); age > ChallengeLife {
		return errcode.New(errcode.ProofStale, "age", age.Round(time.Second).String(), "limit", ChallengeLife.String())
	}
	return nil
}
