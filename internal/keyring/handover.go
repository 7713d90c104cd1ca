package keyring

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"

	"filippo.io/age"
)

// ErrHandover is matched when what a coordinator handed over does not open, is
// malformed, or was meant for something else.
var ErrHandover = errors.New("not what was to be handed over")

// Handover is what secrets on their way from one coordinator to another are bound to.
type Handover struct {
	Purpose  string   // "recover" or "prepare". Required
	Cluster  string   // the cluster's id. Required
	From, To string   // enrolment keys, "ed25519:…". Required
	Head     [32]byte // the head of the history whose secrets they are
}

func (h Handover) check() error {
	if h.Cluster == "" || len(h.Cluster) > 255 {
		return errors.New("keyring: a handover has a cluster of at most 255 bytes")
	}
	for _, part := range []string{h.Purpose, h.From, h.To} {
		if part == "" || len(part) > 64 {
			return errors.New("keyring: a handover has a purpose and two sides of at most 64 bytes each")
		}
	}
	return nil
}

// Handed is what is handed over: the mesh CA key of the head and, to recover, the
// seed. It prints nothing.
type Handed struct {
	Seed Seed // zero: none is handed over
	Mesh *ecdsa.PrivateKey
}

// Wipe overwrites both. Nobody may be using them.
func (h Handed) Wipe() {
	h.Seed.Wipe()
	WipeKey(h.Mesh)
}

// Format implements [fmt.Formatter] for every verb without showing a secret.
func (h Handed) Format(f fmt.State, _ rune) { fmt.Fprint(f, "keyring.Handed(hidden)") }

// LogValue implements [slog.LogValuer] without showing a secret.
func (h Handed) LogValue() slog.Value { return slog.StringValue("keyring.Handed(hidden)") }

// MarshalText always fails, and with it JSON and every other text encoding.
func (h Handed) MarshalText() ([]byte, error) { return nil, errHidden }

const (
	handoverName    = "fealty handover "
	handoverVersion = "v1\n"
)

// HandOver encrypts secrets to the ephemeral recipient of a coordinator that proved
// itself, for h alone: [EphemeralRecipient.TakeOver] refuses them for anything else.
// The encrypted form is sent, and lies in buffers on the way.
//
// Errors match [ErrRecipient] or [ErrHandover].
func HandOver(recipient string, h Handover, secrets Handed) ([]byte, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, fmt.Errorf("keyring: handing over to %.128q: %w", recipient, ErrRecipient)
	}
	if secrets.Mesh == nil || secrets.Mesh.Curve != elliptic.P256() {
		return nil, fmt.Errorf("keyring: handing over: a key of P-256 for the mesh CA is required: %w", ErrHandover)
	}
	mesh, err := scalarOf(secrets.Mesh)
	if err != nil {
		return nil, fmt.Errorf("keyring: handing over: %w", err)
	}
	defer Wipe(mesh)
	seed := secrets.Seed.Reveal()
	defer Wipe(seed)
	// name | purpose | cluster | from | to | head (32) | seed (1+32 or 1) | mesh (1+32)
	payload := make([]byte, 0, maxSharePayload) // never grows, which would leave a copy
	payload = append(payload, handoverName+handoverVersion...)
	for _, s := range []string{h.Purpose, h.Cluster, h.From, h.To} {
		payload = appendString(payload, s)
	}
	payload = append(payload, h.Head[:]...)
	payload = append(append(payload, byte(len(seed))), seed...)
	payload = append(append(payload, byte(len(mesh))), mesh...)
	defer Wipe(payload)
	return encryptTo(to, payload)
}

// MaxHandoverBytes bounds what [HandOver] makes.
const MaxHandoverBytes = 4 << 10

// TakeOver decrypts what was handed over to e for h. The caller wipes it. Errors
// match [ErrHandover].
func (e *EphemeralRecipient) TakeOver(h Handover, data []byte) (Handed, error) {
	if err := h.check(); err != nil {
		return Handed{}, err
	}
	key := e.key.Load()
	if key == nil || len(data) > MaxHandoverBytes {
		return Handed{}, fmt.Errorf("keyring: it is too large, or its key is gone: %w", ErrHandover)
	}
	payload, err := decryptWith([]age.Identity{key}, data)
	if err != nil {
		return Handed{}, fmt.Errorf("keyring: it does not open: %w", ErrHandover)
	}
	defer Wipe(payload)
	return parseHandover(payload, h)
}

func parseHandover(payload []byte, want Handover) (Handed, error) {
	rest, ok := bytes.CutPrefix(payload, []byte(handoverName+handoverVersion))
	if !ok {
		return Handed{}, fmt.Errorf("keyring: it holds something else: %w", ErrHandover)
	}
	r := payloadReader{rest: rest}
	got := Handover{Purpose: r.text(), Cluster: r.text(), From: r.text(), To: r.text(), Head: [32]byte(r.take(32))}
	seed := r.take(int(r.take(1)[0]))
	mesh := r.take(int(r.take(1)[0]))
	if r.short || len(r.rest) > 0 {
		return Handed{}, fmt.Errorf("keyring: it holds too little, or too much: %w", ErrHandover)
	}
	for _, part := range [][3]string{
		{"purpose", got.Purpose, want.Purpose}, {"cluster", got.Cluster, want.Cluster}, {"side that gives", got.From, want.From},
		{"side that takes", got.To, want.To}, {"head", hex.EncodeToString(got.Head[:]), hex.EncodeToString(want.Head[:])},
	} {
		if part[1] != part[2] {
			return Handed{}, fmt.Errorf("keyring: it is for another %s: %w", part[0], ErrHandover)
		}
	}
	var out Handed
	var err error
	if out.Mesh, err = ecdsa.ParseRawPrivateKey(elliptic.P256(), mesh); err != nil {
		return Handed{}, fmt.Errorf("keyring: it holds no key of P-256: %w", ErrHandover)
	}
	if len(seed) > 0 {
		if out.Seed, err = SeedFrom(seed); err != nil {
			WipeKey(out.Mesh)
			return Handed{}, fmt.Errorf("keyring: it holds no seed: %w", ErrHandover)
		}
	}
	return out, nil
}
