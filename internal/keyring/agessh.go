package keyring

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"filippo.io/age"
	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/crypto/ssh"
)

// Recipients of type ssh-ed25519 and ssh-rsa, as in the age format (c2sp.org/age,
// and the age tool, which opens what is made here and the reverse).
//
// They are written again here and not imported, because the age module's own
// package for them brings a second implementation of the curve for one conversion
// of public keys.

const (
	sshEd25519Label = "age-encryption.org/v1/ssh-ed25519"
	sshRSALabel     = "age-encryption.org/v1/ssh-rsa"

	minRSABits, maxRSABits = 2048, 16384
)

// sshID names a key in the header, by 4 bytes of its hash: a hint, not a proof.
func sshID(key ssh.PublicKey) string {
	h := sha256.Sum256(key.Marshal())
	return base64.RawStdEncoding.EncodeToString(h[:4])
}

type sshEd25519Recipient struct {
	key        ssh.PublicKey
	montgomery *ecdh.PublicKey
}

func newSSHEd25519Recipient(key ssh.PublicKey) (*sshEd25519Recipient, error) {
	point, ok := key.(ssh.CryptoPublicKey).CryptoPublicKey().(ed25519.PublicKey)
	if !ok {
		return nil, ErrRecipient
	}
	u, err := montgomery(point)
	if err != nil {
		return nil, err
	}
	return &sshEd25519Recipient{key, u}, nil
}

// Wrap implements [age.Recipient].
func (r *sshEd25519Recipient) Wrap(fileKey []byte) ([]*age.Stanza, error) {
	ephemeral, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	wrap, err := sshEd25519Key(ephemeral, r.montgomery, r.key, ephemeral.PublicKey(), r.montgomery)
	if err != nil {
		return nil, err
	}
	defer Wipe(wrap)
	aead, err := chacha20poly1305.New(wrap)
	if err != nil {
		return nil, err
	}
	// The key is used once, so the nonce may be constant.
	return []*age.Stanza{{
		Type: ssh.KeyAlgoED25519,
		Args: []string{sshID(r.key), base64.RawStdEncoding.EncodeToString(ephemeral.PublicKey().Bytes())},
		Body: aead.Seal(nil, make([]byte, chacha20poly1305.NonceSize), fileKey, nil),
	}}, nil
}

// sshEd25519Key derives the wrapping key from the exchange of own and peer. The
// tweak ties it to the SSH key, so that it opens nothing that was made for the
// same curve point as an age key.
func sshEd25519Key(own *ecdh.PrivateKey, peer *ecdh.PublicKey, key ssh.PublicKey, ephemeral, static *ecdh.PublicKey) ([]byte, error) {
	shared, err := own.ECDH(peer)
	if err != nil {
		return nil, err
	}
	defer Wipe(shared)
	tweak, err := hkdf.Key(sha256.New, nil, key.Marshal(), sshEd25519Label, 32)
	if err != nil {
		return nil, err
	}
	scalar, err := ecdh.X25519().NewPrivateKey(tweak)
	if err != nil {
		return nil, err
	}
	point, err := ecdh.X25519().NewPublicKey(shared)
	if err != nil {
		return nil, err
	}
	tweaked, err := scalar.ECDH(point)
	if err != nil {
		return nil, err
	}
	defer Wipe(tweaked)
	return hkdf.Key(sha256.New, tweaked, slices.Concat(ephemeral.Bytes(), static.Bytes()), sshEd25519Label, chacha20poly1305.KeySize)
}

type sshEd25519Identity struct {
	key    ssh.PublicKey
	scalar *ecdh.PrivateKey
}

func newSSHEd25519Identity(key ed25519.PrivateKey) (*sshEd25519Identity, error) {
	public, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	h := sha512.Sum512(key.Seed())
	defer Wipe(h[:])
	scalar, err := ecdh.X25519().NewPrivateKey(h[:32])
	if err != nil {
		return nil, err
	}
	return &sshEd25519Identity{public, scalar}, nil
}

// Unwrap implements [age.Identity].
func (i *sshEd25519Identity) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	return unwrapSSH(stanzas, ssh.KeyAlgoED25519, i.key, 2, func(s *age.Stanza) ([]byte, error) {
		raw, err := base64.RawStdEncoding.Strict().DecodeString(s.Args[1])
		if err != nil {
			return nil, errStanza
		}
		ephemeral, err := ecdh.X25519().NewPublicKey(raw)
		if err != nil {
			return nil, errStanza
		}
		wrap, err := sshEd25519Key(i.scalar, ephemeral, i.key, ephemeral, i.scalar.PublicKey())
		if err != nil {
			return nil, errStanza
		}
		defer Wipe(wrap)
		aead, err := chacha20poly1305.New(wrap)
		if err != nil {
			return nil, err
		}
		fileKey, err := aead.Open(nil, make([]byte, chacha20poly1305.NonceSize), s.Body, nil)
		if err != nil {
			return nil, age.ErrIncorrectIdentity
		}
		return fileKey, nil
	})
}

type sshRSARecipient struct {
	id  string
	key *rsa.PublicKey
}

// Wrap implements [age.Recipient].
func (r *sshRSARecipient) Wrap(fileKey []byte) ([]*age.Stanza, error) {
	body, err := rsa.EncryptOAEP(sha256.New(), rand.Reader, r.key, fileKey, []byte(sshRSALabel))
	if err != nil {
		return nil, err
	}
	return []*age.Stanza{{Type: ssh.KeyAlgoRSA, Args: []string{r.id}, Body: body}}, nil
}

type sshRSAIdentity struct {
	public ssh.PublicKey
	key    *rsa.PrivateKey
}

func newSSHRSAIdentity(key *rsa.PrivateKey) (*sshRSAIdentity, error) {
	public, err := ssh.NewPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	return &sshRSAIdentity{public, key}, nil
}

// Unwrap implements [age.Identity].
func (i *sshRSAIdentity) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	return unwrapSSH(stanzas, ssh.KeyAlgoRSA, i.public, 1, func(s *age.Stanza) ([]byte, error) {
		fileKey, err := rsa.DecryptOAEP(sha256.New(), nil, i.key, s.Body, []byte(sshRSALabel))
		if err != nil {
			return nil, age.ErrIncorrectIdentity
		}
		return fileKey, nil
	})
}

var errStanza = errors.New("malformed header of an SSH recipient")

// unwrapSSH tries open on the stanzas that name key.
func unwrapSSH(stanzas []*age.Stanza, kind string, key ssh.PublicKey, args int, open func(*age.Stanza) ([]byte, error)) ([]byte, error) {
	for _, s := range stanzas {
		if s.Type != kind {
			continue
		}
		if len(s.Args) != args {
			return nil, errStanza
		}
		if s.Args[0] != sshID(key) {
			continue
		}
		fileKey, err := open(s)
		if errors.Is(err, age.ErrIncorrectIdentity) {
			continue // two keys can have one id
		}
		if err != nil {
			return nil, err
		}
		if len(fileKey) != 16 {
			Wipe(fileKey)
			return nil, errStanza
		}
		return fileKey, nil
	}
	return nil, age.ErrIncorrectIdentity
}

// montgomery maps a point of Ed25519 to its u coordinate on Curve25519 (RFC 7748
// §4.1): u = (1+y)/(1-y). Points that are not on the curve, and those of small
// order, with which an exchange has no secret, are refused. All is public here,
// so time may depend on it.
func montgomery(point ed25519.PublicKey) (*ecdh.PublicKey, error) {
	one := big.NewInt(1)
	p := new(big.Int).Sub(new(big.Int).Lsh(one, 255), big.NewInt(19))
	le := slices.Clone([]byte(point))
	le[31] &= 0x7f // the sign of x
	slices.Reverse(le)
	y := new(big.Int).SetBytes(le)
	if y.Cmp(p) >= 0 {
		return nil, fmt.Errorf("%w: y is out of range", ErrRecipient)
	}
	// x^2 = (y^2-1) / (d·y^2+1), with d = -121665/121666 (RFC 8032 §5.1).
	d := new(big.Int).ModInverse(big.NewInt(121666), p)
	d.Mul(d, big.NewInt(-121665)).Mod(d, p)
	yy := new(big.Int).Mul(y, y)
	den := new(big.Int).Mul(d, yy)
	den.Add(den, one).Mod(den, p)
	xx := new(big.Int).Sub(yy, one)
	xx.Mul(xx, den.ModInverse(den, p)).Mod(xx, p) // d is no square, so den is not 0
	if big.Jacobi(xx, p) < 0 {
		return nil, fmt.Errorf("%w: not on the curve", ErrRecipient)
	}
	inv := new(big.Int).Sub(one, y)
	inv.Mod(inv, p)
	if inv.Sign() == 0 {
		return nil, fmt.Errorf("%w: the neutral point", ErrRecipient)
	}
	u := new(big.Int).Add(one, y)
	u.Mul(u, inv.ModInverse(inv, p)).Mod(u, p)
	out := u.FillBytes(make([]byte, 32))
	slices.Reverse(out)
	key, err := ecdh.X25519().NewPublicKey(out)
	if err != nil {
		return nil, err
	}
	// A trial exchange fails for exactly the points of small order.
	trial, err := ecdh.X25519().NewPrivateKey(append([]byte{8}, make([]byte, 31)...))
	if err != nil {
		return nil, err
	}
	if _, err := trial.ECDH(key); err != nil {
		return nil, fmt.Errorf("%w: of small order", ErrRecipient)
	}
	return key, nil
}
