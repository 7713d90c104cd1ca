// Package challenge is what a candidate signs to prove who it is: a fresh nonce, and the TLS
// connection that it proves it over.
package challenge

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/proof"
)

// Life bounds the age of a challenge.
const Life = 30 * time.Second

// nonceBytes is the size of a nonce.
const nonceBytes = 32

// Challenge is one connection's side of a proof: what the candidate must sign.
type Challenge struct {
	Nonce   []byte // 32 random bytes
	Binding []byte // of the connection: see [proof.Binding]

	opened time.Time // monotonic
}

// New returns a challenge with a fresh nonce over the connection with the binding.
func New(binding []byte) Challenge {
	nonce := make([]byte, nonceBytes)
	rand.Read(nonce)
	return Challenge{Nonce: nonce, Binding: binding, opened: time.Now()}
}

// Open takes the binding of the stream's own connection and makes a fresh nonce. Without a
// binding there is no call: a proof could come from anywhere. The error is
// [explain.JoinNoBinding].
func Open(ctx context.Context) (Challenge, error) {
	cs, ok := proof.ConnectionState(ctx)
	if !ok {
		return Challenge{}, explain.New(explain.JoinNoBinding, "problem", "the call came over no TLS connection")
	}
	binding, err := proof.Binding(cs)
	if err != nil {
		return Challenge{}, explain.Wrap(err, explain.JoinNoBinding, "problem", err.Error())
	}
	return New(binding), nil
}

// Stale is [explain.ProofStale] if an answer to the challenge comes too late.
func (ch Challenge) Stale() error {
	if age := time.Since(ch.opened); age > Life {
		return explain.New(explain.ProofStale, "age", age.Round(time.Second).String(), "limit", Life.String())
	}
	return nil
}
