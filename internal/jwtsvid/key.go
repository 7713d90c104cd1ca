package jwtsvid

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// MaxStatements bounds how many there can be: as many as a trust bundle has config signing keys.
const MaxStatements = 64

// maxKeyBytes bounds a public key in DER.
const maxKeyBytes = 256

// Statement is what a config signing key says of the key beside it.
type Statement struct {
	Key       []byte `json:"key"`       // P-256, PKIX DER
	Signer    string `json:"signer"`    // the id of the config signing key
	Signature []byte `json:"signature"` // Ed25519 over the PAE of the key
}

// Key verifies JWT-SVIDs.
type Key struct {
	ID       string // the kid of tokens
	Public   *ecdsa.PublicKey
	NotAfter time.Time // exclusive
}

// IDOf returns the kid of a public key in PKIX DER.
func IDOf(der []byte) string { return internalsnapshot.KeyIDOf(der) }

// SignKey returns the statement of the config signing key by over the token key.
func SignKey(cluster string, token crypto.PublicKey, by crypto.Signer) (Statement, error) {
	der, err := x509.MarshalPKIXPublicKey(token)
	if err != nil {
		return Statement{}, fmt.Errorf("encode a token key: %w", err)
	}
	signer, ok := by.Public().(ed25519.PublicKey)
	if !ok {
		return Statement{}, errors.New("a config signing key that is no Ed25519 key")
	}
	signature, err := by.Sign(nil, internalsnapshot.PAE(internalsnapshot.TypeTokenKey, cluster, der), crypto.Hash(0))
	if err != nil {
		return Statement{}, fmt.Errorf("sign a token key: %w", err)
	}
	return Statement{Key: der, Signer: internalsnapshot.KeyIDOf(signer), Signature: signature}, nil
}

// VerifyKeys returns the keys that count at now by the config signing keys of a trust bundle, in the
// order of the statements, and why others do not.
func VerifyKeys(cluster string, statements []Statement, trusted []snapshot.ConfigKey, now time.Time) (keys []Key,
	refused []error) {
	if len(statements) > MaxStatements {
		return nil, []error{fmt.Errorf("%d statements of token keys, at most %d can be", len(statements),
			MaxStatements)}
	}
	for _, s := range statements {
		key, err := verify(cluster, s, trusted, now)
		if err != nil {
			refused = append(refused, fmt.Errorf("token key of config signing key %.32q: %w", s.Signer, err))
			continue
		}
		keys = append(keys, key)
	}
	return keys, refused
}

func verify(cluster string, s Statement, trusted []snapshot.ConfigKey, now time.Time) (Key, error) {
	if len(s.Key) > maxKeyBytes {
		return Key{}, fmt.Errorf("it has %d bytes, at most %d are allowed", len(s.Key), maxKeyBytes)
	}
	err := errors.New("the trust bundle does not list its signer")
	for i := range trusted {
		by := &trusted[i]
		if by.Algorithm != internalsnapshot.AlgorithmTree || by.ID() != s.Signer || len(by.Key) != ed25519.PublicKeySize {
			continue
		}
		switch {
		case by.Revoked:
			err = errors.New("its signer is revoked")
		case now.Before(by.NotBefore) || !now.Before(by.NotAfter):
			err = errors.New("its signer is out of date")
		// Keys are told apart by their bytes: the id is a hint.
		case !ed25519.Verify(by.Key, internalsnapshot.PAE(internalsnapshot.TypeTokenKey, cluster, s.Key), s.Signature):
			err = errors.New("its signer did not sign it")
		default:
			public, perr := x509.ParsePKIXPublicKey(s.Key)
			ec, ok := public.(*ecdsa.PublicKey)
			if perr != nil || !ok || ec.Curve != elliptic.P256() {
				return Key{}, errors.New("it is no P-256 key")
			}
			return Key{ID: IDOf(s.Key), Public: ec, NotAfter: by.NotAfter}, nil
		}
	}
	return Key{}, err
}
