package keyring

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
)

// MaxSealedBytes bounds the encoding of a sealed seed or mesh CA.
const MaxSealedBytes = 32 << 10

var (
	// ErrOtherPlace is matched by every [*PlaceError].
	ErrOtherPlace = errors.New("sealed for another place")

	// ErrOtherHead is matched by a [*PlaceError] whose difference is the head: the
	// history moved on, and this mesh CA key must not be used any more.
	ErrOtherHead = errors.New("sealed at another head of the history")

	// ErrMalformed is matched when bytes are no sealed seed or mesh CA.
	ErrMalformed = errors.New("malformed sealed secret")
)

// PlaceError says which part of the place of a sealed secret is not the one that
// was asked for. Its word on the sealed secret is a claim until it was opened.
type PlaceError struct {
	Field        string // cluster, purpose, owner, seed_epoch or head
	Sealed, Want string
}

func (e *PlaceError) Error() string {
	what := fmt.Sprintf("keyring: this secret was sealed for %s %q, not for %q", e.Field, e.Sealed, e.Want)
	if e.Field == "head" {
		return what + ": the history moved on since, so recover from a peer, or from the seed with a rekey"
	}
	return what
}

// Is matches [ErrOtherPlace], and for a head [ErrOtherHead].
func (e *PlaceError) Is(target error) bool {
	return target == ErrOtherPlace || target == ErrOtherHead && e.Field == "head"
}

// record is the stored form of a sealed secret. All but Sealed is a label, to say
// what is wrong before a keeper is asked; the keeper authenticates it.
type record struct {
	Version   int     `json:"version"`
	Purpose   Purpose `json:"purpose"`
	Cluster   string  `json:"cluster"`
	Owner     string  `json:"owner"`
	SeedEpoch uint64  `json:"seed_epoch,string"`
	Head      string  `json:"head,omitempty"` // hexadecimal
	Sealed    []byte  `json:"sealed"`         // base64
}

const recordVersion = 1

// SealSeed seals seed with k and returns the form to store: a JSON object that
// names its version and place. place.Purpose and place.Head are set by SealSeed.
func SealSeed(ctx context.Context, k Keeper, place Place, seed Seed) ([]byte, error) {
	if seed.IsZero() {
		return nil, fmt.Errorf("keyring: sealing the seed: %w", ErrNoSeed)
	}
	plaintext := seed.Reveal()
	defer Wipe(plaintext)
	place.Purpose, place.Head = PurposeSeed, [32]byte{}
	return sealRecord(ctx, k, place, plaintext)
}

// OpenSeed opens what [SealSeed] returned for the same place.
//
// Errors: [ErrMalformed], [*PlaceError], or those of [Keeper.Open].
func OpenSeed(ctx context.Context, k Keeper, place Place, data []byte) (Seed, error) {
	place.Purpose, place.Head = PurposeSeed, [32]byte{}
	plaintext, err := openRecord(ctx, k, place, data)
	if err != nil {
		return Seed{}, err
	}
	defer Wipe(plaintext)
	seed, err := SeedFrom(plaintext)
	if err != nil {
		return Seed{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return seed, nil
}

// SealMesh seals key and certificate (DER) of the mesh CA that place.Head names,
// and returns the form to store. place.Purpose is set by SealMesh.
func SealMesh(ctx context.Context, k Keeper, place Place, key *ecdsa.PrivateKey, certificate []byte) ([]byte, error) {
	if err := checkMesh(key, certificate); err != nil {
		return nil, fmt.Errorf("keyring: sealing a mesh CA: %w", err)
	}
	secret, err := scalarOf(key)
	if err != nil {
		return nil, fmt.Errorf("keyring: sealing a mesh CA: %w", err)
	}
	defer Wipe(secret)
	// One byte of length, the key's scalar in 32 bytes, then the certificate.
	plaintext := append([]byte{byte(len(secret))}, secret...)
	plaintext = append(plaintext, certificate...)
	defer Wipe(plaintext)
	place.Purpose = PurposeMesh
	return sealRecord(ctx, k, place, plaintext)
}

// OpenMesh opens what [SealMesh] returned for the same place. The certificate
// (DER) is that of the key; who signed it is for the caller to check.
//
// Errors: [ErrMalformed], [*PlaceError] (matching [ErrOtherHead] if the head
// moved), or those of [Keeper.Open].
func OpenMesh(ctx context.Context, k Keeper, place Place, data []byte) (*ecdsa.PrivateKey, []byte, error) {
	place.Purpose = PurposeMesh
	plaintext, err := openRecord(ctx, k, place, data)
	if err != nil {
		return nil, nil, err
	}
	defer Wipe(plaintext)
	const keyEnd = 1 + 32
	if len(plaintext) <= keyEnd || plaintext[0] != 32 {
		return nil, nil, fmt.Errorf("keyring: a sealed mesh CA holds no key: %w", ErrMalformed)
	}
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), plaintext[1:keyEnd])
	if err != nil {
		return nil, nil, fmt.Errorf("keyring: a sealed mesh CA holds no key of P-256: %w", ErrMalformed)
	}
	certificate := append([]byte(nil), plaintext[keyEnd:]...)
	if err := checkMesh(key, certificate); err != nil {
		return nil, nil, fmt.Errorf("keyring: a sealed mesh CA: %w: %w", ErrMalformed, err)
	}
	return key, certificate, nil
}

func checkMesh(key *ecdsa.PrivateKey, certificate []byte) error {
	if key == nil || key.Curve != elliptic.P256() {
		return errors.New("its key is not one of P-256")
	}
	cert, err := x509.ParseCertificate(certificate)
	if err != nil {
		return fmt.Errorf("its certificate is malformed: %w", err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return errors.New("its certificate is that of another key")
	}
	return nil
}

func sealRecord(ctx context.Context, k Keeper, place Place, plaintext []byte) ([]byte, error) {
	if err := place.check(); err != nil {
		return nil, err
	}
	sealed, err := k.Seal(ctx, place, plaintext)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(&record{
		Version: recordVersion, Purpose: place.Purpose, Cluster: place.Cluster, Owner: place.Owner,
		SeedEpoch: place.SeedEpoch, Head: headText(place.Head), Sealed: sealed,
	})
	if err != nil {
		return nil, fmt.Errorf("keyring: encoding a sealed %s: %w", place.Purpose, err)
	}
	if len(data) > MaxSealedBytes {
		return nil, fmt.Errorf("keyring: a sealed %s has %d bytes, the limit is %d", place.Purpose, len(data), MaxSealedBytes)
	}
	return data, nil
}

func openRecord(ctx context.Context, k Keeper, place Place, data []byte) ([]byte, error) {
	if err := place.check(); err != nil {
		return nil, err
	}
	r, err := parseRecord(data)
	if err != nil {
		return nil, err
	}
	for _, part := range []PlaceError{
		{"cluster", r.Cluster, place.Cluster},
		{"purpose", string(r.Purpose), string(place.Purpose)},
		{"owner", r.Owner, place.Owner},
		{"seed_epoch", fmt.Sprint(r.SeedEpoch), fmt.Sprint(place.SeedEpoch)},
		{"head", r.Head, headText(place.Head)},
	} {
		if part.Sealed != part.Want {
			return nil, &part
		}
	}
	return k.Open(ctx, place, r.Sealed)
}

// SealedUnder returns the id of the key that data, which [SealSeed] or [SealMesh]
// returned, says it was sealed under; for what a program sealed that is [ProgramKey]. It
// is a claim until it was opened.
//
// Errors: [ErrMalformed].
func SealedUnder(data []byte) (KeyID, error) {
	r, err := parseRecord(data)
	switch {
	case err != nil:
		return "", err
	case len(r.Sealed) >= sealedOverhead && r.Sealed[0] == sealedVersion:
		return fileKeyID(r.Sealed[1 : 1+keyIDBytes]), nil
	case len(r.Sealed) > 0 && r.Sealed[0] == sealedExecVersion:
		return ProgramKey, nil
	}
	return "", fmt.Errorf("keyring: a sealed secret names no key: %w", ErrMalformed)
}

func parseRecord(data []byte) (*record, error) {
	if len(data) > MaxSealedBytes {
		return nil, fmt.Errorf("keyring: a sealed secret has %d bytes, the limit is %d: %w", len(data), MaxSealedBytes, ErrMalformed)
	}
	// The version first, for a newer one may have members that we do not know.
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("keyring: a sealed secret is no JSON object with a version: %w", ErrMalformed)
	}
	if version.Version != recordVersion {
		return nil, fmt.Errorf("keyring: a sealed secret has version %d, and this program knows version %d only: use a newer one: %w", version.Version, recordVersion, ErrMalformed)
	}
	var r record
	if err := json.Unmarshal(data, &r, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("keyring: a sealed secret of version %d has members that do not belong there: %w", recordVersion, ErrMalformed)
	}
	if len(r.Cluster) > 255 || len(r.Owner) > 255 || len(r.Purpose) > 255 || len(r.Head) > 64 {
		return nil, fmt.Errorf("keyring: a sealed secret names a place that is too long: %w", ErrMalformed)
	}
	return &r, nil
}

// headText writes a head as hexadecimal digits; none is empty.
func headText(head [32]byte) string {
	if head == ([32]byte{}) {
		return ""
	}
	return hex.EncodeToString(head[:])
}
