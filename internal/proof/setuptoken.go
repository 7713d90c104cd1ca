package proof

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/fealty-io/fealty/identity"
)

func setupForm() lineForm {
	return lineForm{name: "setup token", prefix: "fealtysetup1_", use: "fealty manifest set", get: "restart the uninitialized coordinator, which writes one"}
}

// SetupToken lets a person set the first manifest of a cluster from another
// machine. The coordinator makes one at start while it has no manifest, keeps its
// public key in memory, and forgets it when it has one. It shows itself as its
// first four characters, however it is printed.
type SetupToken struct {
	// Addresses are those of the coordinator, host:port, 1 to MaxAddresses.
	Addresses []string
	// KeyHash is the key of the certificate that the coordinator serves until it
	// has an identity: it authenticates the coordinator.
	KeyHash identity.KeyID
	// Secret is what the token proves.
	Secret Secret
}

// NewSetupToken returns t with a secret of its own, made from random; nil means
// crypto/rand. It fails if t has a secret already, if another field is not
// acceptable, or if all of them do not fit a line.
func NewSetupToken(random io.Reader, t SetupToken) (SetupToken, error) {
	if random == nil {
		random = rand.Reader
	}
	if !t.Secret.IsZero() {
		return SetupToken{}, errors.New("setup token: the secret is made here, and was given")
	}
	secret, err := newSecret(random)
	if err != nil {
		return SetupToken{}, err
	}
	t.Secret = secret
	t.Addresses = slices.Clone(t.Addresses)
	if err := t.check(); err != nil {
		return SetupToken{}, fmt.Errorf("setup token: %w", err)
	}
	return t, nil
}

// Line returns the one line to paste. Its fields, in this order:
//
//	addresses 1+(1+n)… · key hash 32 · secret 32 · CRC-32 4
//
// in bytes, where 1+ is a length. It panics if [NewSetupToken] or
// [ParseSetupToken] did not make t.
func (t SetupToken) Line() string {
	if err := t.check(); err != nil {
		panic("proof: SetupToken.Line: " + err.Error())
	}
	return setupForm().encode(t.fields())
}

// fields encodes what has passed the checks of each field.
func (t SetupToken) fields() []byte {
	b := appendTexts(nil, t.Addresses)
	b = append(b, t.KeyHash[:]...)
	return append(b, t.Secret.reveal()...)
}

// ParseSetupToken reads what [SetupToken.Line] returns, with white space around
// it at most. The error is a [*TokenFormatError].
func ParseSetupToken(line string) (SetupToken, error) {
	form := setupForm()
	fields, err := form.decode(line)
	if err != nil {
		return SetupToken{}, err
	}
	c := cursor{rest: fields}
	t := SetupToken{
		Addresses: c.texts(),
		KeyHash:   identity.KeyID(c.take(len(identity.KeyID{}))),
		Secret:    secretOf([secretBytes]byte(c.take(secretBytes))),
	}
	if !c.done() {
		err = errors.New("it has too few or too many fields")
	} else {
		err = t.check()
	}
	if err != nil {
		return SetupToken{}, form.problem(ProblemContent, "it was not made by this release: "+form.get, "%v", err)
	}
	return t, nil
}

// check refuses what no usable token holds. The error begins with the field.
func (t SetupToken) check() error {
	if err := checkAddresses(t.Addresses); err != nil {
		return err
	}
	switch {
	case t.KeyHash.IsZero():
		return errors.New("key hash: the key of the coordinator's certificate is missing")
	case t.Secret.IsZero():
		return errors.New("secret: it is missing")
	}
	return setupForm().checkFits(t.fields())
}

// PublicKey returns the key that the coordinator keeps of the token. It derives
// from secret and key hash: a token says nothing to another coordinator. It
// panics if [NewSetupToken] or [ParseSetupToken] did not make t.
func (t SetupToken) PublicKey() ed25519.PublicKey {
	return t.privateKey().Public().(ed25519.PublicKey)
}

func (t SetupToken) privateKey() ed25519.PrivateKey {
	return deriveKey(t.Secret, "fealty-setup-token-v1/"+t.KeyHash.String())
}

// String returns the first four characters of the line.
func (t SetupToken) String() string               { return redact(setupForm().prefix) }
func (t SetupToken) GoString() string             { return t.String() }
func (t SetupToken) Format(f fmt.State, _ rune)   { io.WriteString(f, t.String()) }
func (t SetupToken) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
func (t SetupToken) LogValue() slog.Value         { return slog.StringValue(t.String()) }

// SetupTranscript is what a setup token signs. It is a kind of its own and not a
// [Transcript] with parts left out: before the first manifest there is no cluster
// to name and no key to certify, and a Transcript without them must stay
// impossible. Its label keeps the two apart.
type SetupTranscript struct {
	// Nonce is the coordinator's challenge, NonceBytes long.
	Nonce []byte
	// Binding is the connection's [Binding], BindingBytes long.
	Binding []byte
	// Manifest holds the exact bytes that are to be set. They are part of what is
	// signed, so that a proof authorizes this manifest and no other.
	Manifest []byte
	// Hash is their SHA-256, for who has not got them yet. Then Manifest is empty.
	Hash []byte
}

// Digest returns what is signed: SHA-512 over the parts
//
//	SetupTranscriptLabel, "candidate", Nonce, Binding, SHA-256 of Manifest
//
// each preceded by its length as in [Transcript.Digest]. It fails with a
// [*TranscriptError] if a part is missing or has a wrong size.
func (t SetupTranscript) Digest() ([64]byte, error) {
	if err := checkChannel(t.Nonce, t.Binding); err != nil {
		return [64]byte{}, err
	}
	manifest := sha256.Sum256(t.Manifest)
	switch {
	case len(t.Manifest) == 0 && len(t.Hash) == 0:
		return [64]byte{}, &TranscriptError{"manifest", "is empty"}
	case len(t.Manifest) == 0 && len(t.Hash) != sha256.Size:
		return [64]byte{}, &TranscriptError{"hash", fmt.Sprintf("has %d bytes, want %d", len(t.Hash), sha256.Size)}
	case len(t.Manifest) == 0:
		manifest = [sha256.Size]byte(t.Hash)
	case len(t.Hash) != 0:
		return [64]byte{}, &TranscriptError{"hash", "is there, and the manifest too"}
	}
	return digest([]byte(SetupTranscriptLabel), []byte(Candidate), t.Nonce, t.Binding, manifest[:]), nil
}

// Prove signs s with the token's key: the evidence of a first set. It fails with
// a [*TranscriptError], and panics if [NewSetupToken] or [ParseSetupToken] did not
// make t.
func (t SetupToken) Prove(s SetupTranscript) ([]byte, error) {
	d, err := s.Digest()
	if err != nil {
		return nil, err
	}
	return ed25519.Sign(t.privateKey(), d[:]), nil
}

// errSetupRefused is the one answer to every wrong setup proof.
var errSetupRefused = &refusal{"the setup token is not accepted: it is not the one that this coordinator wrote at its last start, or it was not proven over this channel for this manifest; read it again where the coordinator wrote it, and connect without a proxy that terminates TLS"}

// VerifySetup checks evidence that [SetupToken.Prove] made, against the public
// key that the coordinator kept and a transcript of its own. Errors:
// [*TranscriptError] if s is incomplete; otherwise one that matches [ErrRefused],
// also when key is nil because there is no token any more.
func VerifySetup(key ed25519.PublicKey, s SetupTranscript, evidence []byte) error {
	d, err := s.Digest()
	if err != nil {
		return err
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, d[:], evidence) {
		return errSetupRefused
	}
	return nil
}
