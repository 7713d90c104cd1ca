// Package authority holds what a coordinator may act under: the head of the history that is in
// force ([Head], [State]), which coordinator of the manifest this process is ([Enrolment]), and the
// seed with the keys that derive from it ([Secrets]).
//
// It gives handles to secrets: something to sign with, to seal, or to hand over to somebody who
// proved who he is. No handle has a way to the bytes (I8). A seed comes from one of four places: it
// is made here, a keeper opens it, its owners bring their shares, or another coordinator hands it
// over. It is believed by whoever replays the history under its keys, not here.
//
// One change of the head goes on at a time ([Turn]). That is the outermost lock of all that change
// the head, and it is held over I/O: nothing that waits for it may be waited for under it. A search
// for the secrets of the head holds it while it asks others, and gives way to owners who bring
// theirs.
//
// Keys derive from the seed by HKDF over SHA-256 (RFC 5869). A secret that is sealed or handed over
// is encrypted to an X25519 recipient (age-encryption.org/v1).
package authority

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/store"
)

// redacted is all that formatting and logging show of a secret.
const redacted = "[secret]"

// Secrets are a seed and the keys that derive from it and a salt. They never leave this
// process but sealed: by a keeper, to an owner, or to another coordinator. Several goroutines
// may call all methods at once, but for Derive and Wipe.
type Secrets struct {
	seed keyring.Seed
	keys keyring.Keys // zero before Derive
}

// Make makes a new seed with a salt of its own, and derives its keys.
func Make() (*Secrets, history.Salt, error) {
	salt := history.Salt(keyring.NewSalt())
	s := &Secrets{seed: keyring.NewSeed()}
	return s, salt, s.Derive(salt)
}

// Open opens the seed that a keeper sealed for place, and derives its keys with salt. Errors
// are those of [keyring.OpenSeed].
func Open(
	ctx context.Context, k keyring.Keeper, place keyring.Place, sealed []byte, salt history.Salt,
) (*Secrets, error) {
	seed, err := keyring.OpenSeed(ctx, k, place, sealed)
	if err != nil {
		return nil, err
	}
	s := &Secrets{seed: seed}
	if err := s.Derive(salt); err != nil {
		return nil, err
	}
	return s, nil
}

// Combine makes a seed of threshold shares or more. It has no keys before Derive. Errors are
// those of [keyring.Combine].
func Combine(threshold int, shares []keyring.Share) (*Secrets, error) {
	seed, err := keyring.Combine(threshold, shares)
	if err != nil {
		return nil, err
	}
	return &Secrets{seed: seed}, nil
}

// TakeOver opens what another coordinator handed over to recipient: a seed, which has no
// keys before Derive, and the mesh CA key of the head. Errors are those of
// [keyring.EphemeralRecipient.TakeOver], and an answer without a seed.
func TakeOver(recipient *keyring.EphemeralRecipient, h keyring.Handover, sealed []byte) (*Secrets, *MeshKey, error) {
	handed, err := recipient.TakeOver(h, sealed)
	if err == nil && handed.Seed.IsZero() {
		err = errors.New("its answer holds no seed")
	}
	if err != nil {
		keyring.WipeKey(handed.Mesh)
		return nil, nil, err
	}
	return &Secrets{seed: handed.Seed}, &MeshKey{handed.Mesh}, nil
}

// TakeMesh is TakeOver of a mesh CA key alone. A seed that comes with it is wiped: it is no
// business of this side.
func TakeMesh(recipient *keyring.EphemeralRecipient, h keyring.Handover, sealed []byte) (*MeshKey, error) {
	handed, err := recipient.TakeOver(h, sealed)
	if err != nil {
		return nil, err
	}
	handed.Seed.Wipe()
	return &MeshKey{handed.Mesh}, nil
}

// Derive makes the keys of the seed with salt. On an error the seed is wiped.
func (s *Secrets) Derive(salt history.Salt) (err error) {
	if s.keys, err = s.seed.Derive(salt[:]); err != nil {
		s.seed.Wipe()
	}
	return err
}

// Wipe overwrites the seed and its keys. Nobody may use them at the time, or later.
func (s *Secrets) Wipe() {
	s.seed.Wipe()
	s.keys.Wipe()
}

// Same reports whether both have the same seed, in a time that does not depend on it.
func (s *Secrets) Same(o *Secrets) bool { return s.seed.Equal(o.seed) }

// Gone reports whether the seed was wiped.
func (s *Secrets) Gone() bool { return s.seed.IsZero() }

// Transaction signs transitions and heads of the history.
func (s *Secrets) Transaction() keyring.Signer { return s.keys.Transaction() }

// TransactionKey is the public key of [Secrets.Transaction].
func (s *Secrets) TransactionKey() ed25519.PublicKey { return public(s.keys.Transaction()) }

// ConfigRoot signs trust bundles.
func (s *Secrets) ConfigRoot() keyring.Signer { return s.keys.ConfigRoot() }

// ConfigRootKey is the public key of [Secrets.ConfigRoot].
func (s *Secrets) ConfigRootKey() ed25519.PublicKey { return public(s.keys.ConfigRoot()) }

// ConfigSigning signs snapshots, as the config signing key with number n.
func (s *Secrets) ConfigSigning(n uint32) keyring.Signer { return s.keys.ConfigSigning(n) }

// TokenSigning signs JWT-SVIDs, as the key beside the config signing key with number n.
func (s *Secrets) TokenSigning(n uint32) keyring.Signer { return s.keys.TokenSigning(n) }

// RootCA signs the root certificate, mesh CA certificates and root statements.
func (s *Secrets) RootCA() keyring.Signer { return s.keys.RootCA() }

func public(signer keyring.Signer) ed25519.PublicKey { return signer.Public().(ed25519.PublicKey) }

// Records returns what seals and opens records under the MAC of this seed.
func (s *Secrets) Records() (*store.Authenticator, error) {
	auth, err := store.NewAuthenticator(s.keys.RecordMAC())
	if err != nil {
		return nil, fmt.Errorf("key the record MAC: %w", err)
	}
	return auth, nil
}

// Seal has a keeper seal the seed for place. Errors are those of [keyring.SealSeed].
func (s *Secrets) Seal(ctx context.Context, k keyring.Keeper, place keyring.Place) ([]byte, error) {
	return keyring.SealSeed(ctx, k, place, s.seed)
}

// Opens reports whether a keeper opens this very seed from what it sealed for place.
// Errors are those of [keyring.OpenSeed].
func (s *Secrets) Opens(ctx context.Context, k keyring.Keeper, place keyring.Place, sealed []byte) (bool, error) {
	seed, err := keyring.OpenSeed(ctx, k, place, sealed)
	if err != nil {
		return false, err
	}
	defer seed.Wipe()
	return seed.Equal(s.seed), nil
}

// Split splits the seed into n shares, threshold of which bring it back. Their owner
// wipes them. Errors are those of [keyring.Split].
func (s *Secrets) Split(threshold, n int) ([]keyring.Share, error) {
	return keyring.Split(s.seed, threshold, n)
}

// HandOver seals the seed and the key of mesh to recipient, the ephemeral key of a coordinator
// that proved who it is, bound to h. Errors are those of [keyring.HandOver].
func (s *Secrets) HandOver(recipient string, h keyring.Handover, mesh *pki.MeshCA) ([]byte, error) {
	return keyring.HandOver(recipient, h, keyring.Handed{Seed: s.seed, Mesh: mesh.Key()})
}

// HandOverMesh is HandOver of the key of mesh alone.
func HandOverMesh(recipient string, h keyring.Handover, mesh *pki.MeshCA) ([]byte, error) {
	return keyring.HandOver(recipient, h, keyring.Handed{Mesh: mesh.Key()})
}

// Format implements [fmt.Formatter]: whatever the verb, no secret shows.
func (Secrets) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// LogValue implements [slog.LogValuer].
func (Secrets) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements [encoding.TextMarshaler].
func (Secrets) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MeshKey is the key of a mesh CA that somebody gave, before its certificate was checked.
type MeshKey struct{ key *ecdsa.PrivateKey }

// OpenMesh opens the mesh CA key that a keeper sealed for place, and returns the certificate
// that was sealed with it. Errors are those of [keyring.OpenMesh].
func OpenMesh(ctx context.Context, k keyring.Keeper, place keyring.Place, sealed []byte) (*MeshKey, []byte, error) {
	key, certificate, err := keyring.OpenMesh(ctx, k, place, sealed)
	if err != nil {
		return nil, nil, err
	}
	return &MeshKey{key}, certificate, nil
}

// Load makes the mesh CA of the key and its certificate under root. Errors are those of
// [pki.LoadMeshCA].
func (m *MeshKey) Load(root *x509.Certificate, certificate []byte, cluster string, epoch uint64) (*pki.MeshCA, error) {
	return pki.LoadMeshCA(root, certificate, m.key, cluster, epoch)
}

// Wipe overwrites the key. Nobody may use it at the time, or later.
func (m *MeshKey) Wipe() { keyring.WipeKey(m.key) }

// Format implements [fmt.Formatter]: whatever the verb, no secret shows.
func (MeshKey) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// SealMesh has a keeper seal the key of mesh, with its certificate, for place. Errors are
// those of [keyring.SealMesh].
func SealMesh(ctx context.Context, k keyring.Keeper, place keyring.Place, mesh *pki.MeshCA) ([]byte, error) {
	return keyring.SealMesh(ctx, k, place, mesh.Key(), mesh.Certificate().Raw)
}

// WipeMesh overwrites the key of mesh. Nobody may use it at the time, or later.
func WipeMesh(mesh *pki.MeshCA) { keyring.WipeKey(mesh.Key()) }
