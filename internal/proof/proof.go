// Package proof decides whether a candidate showed what it claims to be, over
// the very connection that it speaks on.
//
// Both ends of a TLS 1.3 connection compute its [Binding] by themselves. The
// seed sends a fresh nonce, and the candidate signs the digest of a
// [Transcript]: its role, the cluster, the nonce, the binding and the key that it
// wants certified. Change one of them and the signature is void:
//
//	binding    a relay has another one on each of its two legs
//	nonce      an earlier answer on the same connection does not count
//	role       what a seed signed cannot be sent back to it, and the reverse
//	cluster    a proof for one cluster says nothing to another
//	key        who carries a proof along cannot have its own key certified
//
// A [Verifier] turns evidence into a [Proven] value: the selectors that the
// manifest is matched against. Only the verifiers of this package make one that
// holds anything, so what takes a Proven cannot be reached without a proof.
//
// Left to the caller: to make the nonce ([NonceBytes] random bytes, for one
// stream, for at most [MaxAge]), to compute the transcript from its own side of
// the connection and never from what the peer sends, to look at expiry, use
// counts and bans after a proof verified, and to certify no other key than
// [Proven.PublicKey].
package proof

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
)

// Bounds of what a peer may send, in bytes; the API repeats them.
const (
	MaxTypeBytes      = 32
	MaxClaimBytes     = 512
	MaxEvidenceBytes  = 16 << 10
	MaxPublicKeyBytes = 1 << 10
)

// MaxAge is how long a seed waits for the answer to its nonce.
const MaxAge = 30 * time.Second

// Evidence is what travels: one proof, as its prover made it.
type Evidence struct {
	// Type names the kind of proof, such as [TypeToken]. At most MaxTypeBytes.
	Type string
	// Claim is what the evidence speaks for: a token's id, "ed25519:<base64>", or
	// "<kind>/<name>"; empty for x509, where a certificate says it. At most
	// MaxClaimBytes.
	Claim string
	// Evidence is the signature over the digest of the transcript; for x509 the
	// certificates come before it. At most MaxEvidenceBytes.
	Evidence []byte
	// PublicKey is the DER SubjectPublicKeyInfo that made the evidence, where the
	// verifier must be told (svid); empty otherwise. At most MaxPublicKeyBytes.
	PublicKey []byte
}

// checkSize refuses what is larger than the API allows, before anything is
// looked up or verified.
func (e Evidence) checkSize() error {
	for _, part := range []struct {
		name     string
		got, max int
	}{
		{"type", len(e.Type), MaxTypeBytes},
		{"claim", len(e.Claim), MaxClaimBytes},
		{"evidence", len(e.Evidence), MaxEvidenceBytes},
		{"public key", len(e.PublicKey), MaxPublicKeyBytes},
	} {
		if part.got > part.max {
			return &TooLargeError{Part: part.name, Got: part.got, Max: part.max}
		}
	}
	return nil
}

// Prover makes evidence over transcripts.
type Prover interface {
	// Prove signs t. It fails if t has a part that is missing or malformed
	// ([*TranscriptError]), or is one that this prover must not sign.
	Prove(ctx context.Context, t Transcript) (Evidence, error)
}

// Verifier checks evidence of one type.
type Verifier interface {
	// Type is the type of evidence that Verify takes. It never changes.
	Type() string

	// Verify checks e against t, which the caller computed from its own side of
	// the connection. Errors:
	//
	//	[*TranscriptError]  the caller's own transcript is incomplete
	//	[*FormatError]      the evidence has not the shape of its type
	//	[*LookupError]      what it names could not be looked up; try again
	//	[ErrRefused]        matched by every other refusal
	Verify(ctx context.Context, t Transcript, e Evidence) (Proven, error)
}

// Proven is a proof that verified. The zero value proves nothing: it has no
// selectors, and admits nobody.
type Proven struct {
	typ       string
	selectors []string // sorted
	tokenID   string
	kind      identity.Kind
	name      string
	keyID     identity.KeyID
	cluster   string
	publicKey string // of the transcript, DER; a string so that nobody can write to it
}

// Shown is what remains of a proof once it was checked. Its fields stand in the record of a member.
type Shown struct {
	ProofType string   `json:"proof_type"`
	Selectors []string `json:"selectors"` // sorted
}

// IsZero reports whether p proves nothing.
func (p Proven) IsZero() bool { return p.typ == "" }

// Type is the type of the proof, or "".
func (p Proven) Type() string { return p.typ }

// Selectors are the facts that were proven, sorted, such as "token:edge-pool".
func (p Proven) Selectors() []string { return slices.Clone(p.selectors) }

// TokenID is the id of the join token, for proof token; "" for the others.
func (p Proven) TokenID() string { return p.tokenID }

// Member is the member that proved itself, for proof svid; empty for the others.
func (p Proven) Member() (identity.Kind, string) { return p.kind, p.name }

// KeyID names the key that signed the proof.
func (p Proven) KeyID() identity.KeyID { return p.keyID }

// Cluster is the cluster that the proof was made for.
func (p Proven) Cluster() string { return p.cluster }

// PublicKey is the key that the proof was made for, DER SubjectPublicKeyInfo:
// the only one that may be certified on the strength of it.
func (p Proven) PublicKey() []byte { return []byte(p.publicKey) }

// Registry holds one verifier for each type of proof. It is immutable.
type Registry struct {
	verifiers map[string]Verifier
}

// NewRegistry returns a registry of vs. It panics if two have the same type, or
// one has none: which proofs a program accepts is written in its source.
func NewRegistry(vs ...Verifier) *Registry {
	r := &Registry{verifiers: make(map[string]Verifier, len(vs))}
	for _, v := range vs {
		if v.Type() == "" || len(v.Type()) > MaxTypeBytes || r.verifiers[v.Type()] != nil {
			panic(fmt.Sprintf("proof: NewRegistry: %q is not a type of its own", v.Type()))
		}
		r.verifiers[v.Type()] = v
	}
	return r
}

// Types returns the known types, sorted.
func (r *Registry) Types() []string {
	types := make([]string, 0, len(r.verifiers))
	for t := range r.verifiers {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}

// Verify checks the size of e, then has the verifier of its type check it
// against t. Errors: [*TooLargeError], [*UnknownTypeError], and those of
// [Verifier].
func (r *Registry) Verify(ctx context.Context, t Transcript, e Evidence) (Proven, error) {
	if err := e.checkSize(); err != nil {
		return Proven{}, err
	}
	v, ok := r.verifiers[e.Type]
	if !ok {
		return Proven{}, &UnknownTypeError{Type: e.Type, Known: r.Types()}
	}
	p, err := v.Verify(ctx, t, e)
	if err != nil {
		return Proven{}, err
	}
	// A verifier that forgot to say what it proved, or that passes on a proof it
	// did not make over t, must not look like success.
	if p.typ != e.Type || p.cluster != t.Cluster || !bytes.Equal([]byte(p.publicKey), t.PublicKey) {
		return Proven{}, fmt.Errorf("proof of type %q was accepted but proves nothing over this channel: the verifier is broken", e.Type)
	}
	return p, nil
}

// newProven is the only maker of a Proven that holds anything.
func newProven(t Transcript, typ string, signer identity.KeyID, selectors ...string) Proven {
	return Proven{
		typ:       typ,
		selectors: slices.Sorted(slices.Values(selectors)),
		keyID:     signer,
		cluster:   t.Cluster,
		publicKey: string(t.PublicKey),
	}
}

// ErrRefused is matched by every refusal of evidence that was understood, looked
// up and found wanting. Sending the same again cannot help.
var ErrRefused = errors.New("proof refused")

// ErrNotFound is what lookups return for a token or a member that does not exist.
var ErrNotFound = errors.New("not found")

// refusal is the type of the fixed refusals: one value for each type of proof,
// so that two causes that must look the same are the same.
type refusal struct{ text string }

func (r *refusal) Error() string        { return r.text }
func (r *refusal) Is(target error) bool { return target == ErrRefused }

// TooLargeError says which part of evidence exceeds its limit.
type TooLargeError struct {
	Part     string
	Got, Max int // bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the proof's %s has %d bytes, at most %d are accepted", e.Part, e.Got, e.Max)
}

// UnknownTypeError says that no verifier takes this type of proof.
type UnknownTypeError struct {
	Type  string   // as sent, at most MaxTypeBytes
	Known []string // sorted
}

func (e *UnknownTypeError) Error() string {
	return fmt.Sprintf("proof type %q is not known here: use one of %s", e.Type, strings.Join(e.Known, ", "))
}

// FormatError says that evidence has not the shape of its type. Shapes are
// public: the error tells nothing about what exists.
type FormatError struct {
	Type   string // the type of proof
	Part   string // "claim", "evidence" or "public key"
	Detail string // what is wrong with it, and what is wanted
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("the %s of the %s proof is malformed: %s", e.Part, e.Type, e.Detail)
}

// LookupError says that a proof could not be judged, because what it names could
// not be looked up. It is not a refusal: the same proof may pass later.
type LookupError struct {
	Type string
	Err  error
}

func (e *LookupError) Error() string {
	return fmt.Sprintf("the %s proof could not be checked, try again: %v", e.Type, e.Err)
}

// Unwrap returns the cause.
func (e *LookupError) Unwrap() error { return e.Err }
