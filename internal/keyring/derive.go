package keyring

import (
	"crypto"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strconv"
	"sync"

	"filippo.io/keygen"
)

// labelPrefix begins the HKDF info of every derived key.
const labelPrefix = "fealty/v1/"

// The purposes of derived keys. Two keys never share one: whoever gets hold of one
// key learns nothing of another. Never change or reuse a name.
const (
	purposeRootCA         = "root-ca"          // ECDSA P-256
	purposeTransaction    = "transaction"      // Ed25519
	purposeConfigRoot     = "config-root"      // Ed25519
	purposeConfigSigning  = "config-signing/"  // Ed25519; followed by n in decimal, from 1
	purposeTokenSigning   = "token-signing/"   // ECDSA P-256; followed by the n of the config signing key that it goes with
	purposeRecordMAC      = "record-mac"       // 32 bytes
	purposeStoreSeal      = "store-seal"       // 32 bytes
	purposeWorkloadSecret = "workload-secret/" // 32 bytes; followed by the secret's id
)

// MaxWorkloadSecretIDBytes bounds the id of a workload secret.
const MaxWorkloadSecretIDBytes = 256

// ErrNoSeed is matched when something is asked of a zero or wiped Seed.
var ErrNoSeed = errors.New("no seed: it was never set, or it was wiped")

// Keys are the keys that derive from one seed under one salt. They may be used
// concurrently. Their holder has everything of the seed but the seed itself, so
// they are hidden and wiped like it.
type Keys struct {
	held hidden[*derived]
}

type derived struct {
	prk                             *locked // HKDF's pseudorandom key; nil when wiped
	rootCA, transaction, configRoot Signer

	mu            sync.Mutex
	configSigning map[uint32]Signer // that were asked for; guarded by mu
}

// maxConfigSigning bounds the config signing keys that are kept: two of them are in use while one takes over.
const maxConfigSigning = 8

// Derive derives the keys of the cluster from the seed and its public salt of
// [SaltBytes]. With HKDF (RFC 5869) over SHA-256:
//
//	prk    = HKDF-Extract(salt, seed)
//	secret = HKDF-Expand(prk, "fealty/v1/" || purpose, 32)
//
// A secret is an Ed25519 seed (RFC 8032 §5.1.5), a symmetric key, or the input of
// the deterministic ECDSA key generation of c2sp.org/det-keygen.
//
// Errors match [ErrNoSeed], or name the salt's length.
func (s Seed) Derive(salt []byte) (Keys, error) {
	if s.IsZero() {
		return Keys{}, fmt.Errorf("keyring: deriving keys: %w", ErrNoSeed)
	}
	// A missing salt is legal for HKDF, and here would be a transition misread.
	if len(salt) != SaltBytes {
		return Keys{}, fmt.Errorf("keyring: deriving keys: the salt has %d bytes, want %d", len(salt), SaltBytes)
	}
	l := s.secret()
	prk, err := hkdf.Extract(sha256.New, l.b, salt)
	runtime.KeepAlive(l)
	if err != nil {
		return Keys{}, fmt.Errorf("keyring: deriving keys: %w", err)
	}
	d := &derived{prk: lockedFrom(prk)}
	Wipe(prk)
	k := Keys{hide(d)}

	secret := k.expand(purposeRootCA)
	defer Wipe(secret)
	root, err := keygen.ECDSA(elliptic.P256(), secret)
	if err != nil {
		return Keys{}, fmt.Errorf("keyring: deriving the root CA key: %w", err)
	}
	d.rootCA = newSigner(root)
	d.transaction = k.ed25519(purposeTransaction)
	d.configRoot = k.ed25519(purposeConfigRoot)
	return k, nil
}

// RootCA is the P-256 key that signs mesh CA certificates and root statements.
func (k Keys) RootCA() Signer { return k.mustHold().rootCA }

// Transaction is the Ed25519 key that signs the head of the history.
func (k Keys) Transaction() Signer { return k.mustHold().transaction }

// ConfigRoot is the Ed25519 key that signs trust bundles.
func (k Keys) ConfigRoot() Signer { return k.mustHold().configRoot }

// ConfigSigning is the nth Ed25519 key that signs snapshots; the first is 1. It
// panics at 0, which no record holds.
func (k Keys) ConfigSigning(n uint32) Signer {
	if n == 0 {
		panic("keyring: config signing keys count from 1")
	}
	d := k.mustHold()
	d.mu.Lock()
	defer d.mu.Unlock()
	key, ok := d.configSigning[n]
	if !ok {
		key = k.ed25519(purposeConfigSigning + strconv.FormatUint(uint64(n), 10))
		if d.configSigning == nil || len(d.configSigning) >= maxConfigSigning {
			d.configSigning = make(map[uint32]Signer)
		}
		d.configSigning[n] = key
	}
	return key
}

// TokenSigning is the P-256 key that signs JWT-SVIDs while the nth config signing key is in use.
// It panics at 0, which no record holds.
func (k Keys) TokenSigning(n uint32) Signer {
	if n == 0 {
		panic("keyring: token signing keys count from 1")
	}
	secret := k.expand(purposeTokenSigning + strconv.FormatUint(uint64(n), 10))
	defer Wipe(secret)
	key, err := keygen.ECDSA(elliptic.P256(), secret)
	if err != nil {
		panic(fmt.Sprintf("keyring: no key of P-256 from 32 bytes: %v", err)) // it takes them
	}
	return newSigner(key)
}

// RecordMAC is the HMAC-SHA256 key that authenticates records in the store. The
// caller owns the 32 bytes.
func (k Keys) RecordMAC() []byte { return k.expand(purposeRecordMAC) }

// StoreSeal is the AES-256 key under which secrets lie in the store that cannot
// derive from the seed, such as RSA keys. The caller owns the 32 bytes.
func (k Keys) StoreSeal() []byte { return k.expand(purposeStoreSeal) }

// WorkloadSecret is the secret of 32 bytes named by id, which has 1 to
// [MaxWorkloadSecretIDBytes] bytes. The caller owns the result.
func (k Keys) WorkloadSecret(id string) ([]byte, error) {
	if len(id) == 0 || len(id) > MaxWorkloadSecretIDBytes {
		return nil, fmt.Errorf("keyring: the id of a workload secret has %d bytes, want 1 to %d", len(id), MaxWorkloadSecretIDBytes)
	}
	return k.expand(purposeWorkloadSecret + id), nil
}

// IsZero reports whether k are no keys: the zero value, or wiped.
func (k Keys) IsZero() bool { return k.held == nil || k.held().prk == nil }

// Wipe overwrites the keys in all copies of k. Nobody may be using them; using
// them afterwards panics.
func (k Keys) Wipe() {
	if k.IsZero() {
		return
	}
	d := k.held()
	for _, s := range []Signer{d.rootCA, d.transaction, d.configRoot} {
		WipeKey(s)
	}
	d.mu.Lock()
	d.configSigning = nil // a signature may be under way with one
	d.mu.Unlock()
	d.prk.wipe()
	d.prk = nil
}

// Format implements [fmt.Formatter] for every verb without showing the keys.
func (k Keys) Format(f fmt.State, _ rune) { fmt.Fprint(f, "keyring.Keys(hidden)") }

// LogValue implements [slog.LogValuer] without showing the keys.
func (k Keys) LogValue() slog.Value { return slog.StringValue("keyring.Keys(hidden)") }

// MarshalText always fails, and with it JSON and every other text encoding.
func (k Keys) MarshalText() ([]byte, error) { return nil, errHidden }

func (k Keys) mustHold() *derived {
	if k.IsZero() {
		panic("keyring: keys were wiped, or never derived")
	}
	return k.held()
}

func (k Keys) expand(purpose string) []byte {
	prk := k.mustHold().prk
	defer runtime.KeepAlive(prk)
	out, err := hkdf.Expand(sha256.New, prk.b, labelPrefix+purpose, 32)
	if err != nil {
		panic(fmt.Sprintf("keyring: HKDF refused 32 bytes: %v", err)) // its limit is 255·32
	}
	return out
}

func (k Keys) ed25519(purpose string) Signer {
	seed := k.expand(purpose)
	defer Wipe(seed)
	return newSigner(ed25519.NewKeyFromSeed(seed))
}

// Signer is a private key that signs and does not show: a [crypto.Signer] without
// a way to its secret.
// The zero Signer has no key; using it panics.
type Signer struct {
	key hidden[crypto.Signer]
}

func newSigner(key crypto.Signer) Signer { return Signer{hide(key)} }

// Public returns the public key, an ed25519.PublicKey or *ecdsa.PublicKey.
func (s Signer) Public() crypto.PublicKey { return s.key().Public() }

// Sign is that of *ecdsa.PrivateKey or ed25519.PrivateKey. With a nil rand a P-256
// signature is deterministic (RFC 6979), as an Ed25519 one always is.
func (s Signer) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return s.key().Sign(rand, digest, opts)
}

// Format implements [fmt.Formatter] for every verb without showing the key.
func (s Signer) Format(f fmt.State, _ rune) { fmt.Fprint(f, "keyring.Signer(hidden)") }

// LogValue implements [slog.LogValuer] without showing the key.
func (s Signer) LogValue() slog.Value { return slog.StringValue("keyring.Signer(hidden)") }

// MarshalText always fails, and with it JSON and every other text encoding.
func (s Signer) MarshalText() ([]byte, error) { return nil, errHidden }
