package keyring

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"filippo.io/age/armor"
	"golang.org/x/crypto/ssh"
)

// MaxKeyFileBytes bounds an owner's private key file.
const MaxKeyFileBytes = 64 << 10

// maxScrypt is the work, as a power of two, that a key file may ask for: some
// seconds. The age tool writes 18.
const maxScrypt = 20

var (
	// ErrIdentityFile is matched when a file holds no private key that opens shares.
	ErrIdentityFile = errors.New("unusable private key file")

	// ErrPassphrase is matched when a private key file is encrypted, and there is no
	// passphrase or a wrong one. It matches [ErrIdentityFile] too.
	ErrPassphrase = fmt.Errorf("%w: passphrase missing or wrong", ErrIdentityFile)
)

// ReadIdentities reads the private keys in an owner's key file:
//
//   - an age key file (AGE-SECRET-KEY-1…, AGE-SECRET-KEY-PQ-1…), also encrypted
//     with a passphrase by the age tool,
//   - an OpenSSH private key of type ed25519 or rsa, or RSA in PEM (PKCS #1 or #8),
//     also encrypted.
//
// passphrase is called at most once, and only if the file is encrypted; nil means
// that there is none. The result is overwritten.
//
// Errors match [ErrIdentityFile], and [ErrPassphrase] if it is about that; those
// of passphrase are wrapped.
func ReadIdentities(keyfile []byte, passphrase func() ([]byte, error)) ([]age.Identity, error) {
	if len(keyfile) > MaxKeyFileBytes {
		return nil, fmt.Errorf("keyring: a private key file has %d bytes, the limit is %d: %w", len(keyfile), MaxKeyFileBytes, ErrIdentityFile)
	}
	ask := func() ([]byte, error) {
		if passphrase == nil {
			return nil, fmt.Errorf("keyring: the private key file is encrypted: %w", ErrPassphrase)
		}
		secret, err := passphrase()
		if err != nil {
			return nil, fmt.Errorf("keyring: %w: %w", ErrPassphrase, err)
		}
		if len(secret) == 0 {
			return nil, fmt.Errorf("keyring: the passphrase is empty: %w", ErrPassphrase)
		}
		return secret, nil
	}
	text := bytes.TrimSpace(keyfile)
	switch {
	case bytes.HasPrefix(text, []byte(armor.Header)), bytes.HasPrefix(text, []byte("age-encryption.org/")):
		return readEncryptedAgeKeys(keyfile, ask)
	case bytes.HasPrefix(text, []byte("-----BEGIN ")):
		return readSSHKey(text, ask)
	case bytes.HasPrefix(text, []byte("ssh-")), bytes.HasPrefix(text, []byte("age1")):
		return nil, fmt.Errorf("keyring: this is a public key: name the file of the private key that belongs to it: %w", ErrIdentityFile)
	}
	return readAgeKeys(text)
}

// readAgeKeys reads one key for each line. Errors of the age package are not
// passed on: some show a character of the key.
func readAgeKeys(text []byte) ([]age.Identity, error) {
	var out []age.Identity
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var id age.Identity
		var err error
		switch {
		case strings.HasPrefix(line, "AGE-SECRET-KEY-PQ-1"):
			id, err = age.ParseHybridIdentity(line)
		case strings.HasPrefix(line, "AGE-SECRET-KEY-1"):
			id, err = age.ParseX25519Identity(line)
		default:
			return nil, fmt.Errorf("keyring: line %d is no age private key, and the file is no OpenSSH private key: %w", n, ErrIdentityFile)
		}
		if err != nil {
			return nil, fmt.Errorf("keyring: line %d is a damaged age private key: %w", n, ErrIdentityFile)
		}
		out = append(out, id)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("keyring: the file holds no private key: %w", ErrIdentityFile)
	}
	return out, nil
}

func readEncryptedAgeKeys(data []byte, ask func() ([]byte, error)) ([]age.Identity, error) {
	var in io.Reader = bytes.NewReader(data)
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte(armor.Header)) {
		in = armor.NewReader(in)
	}
	lazy := &scryptIdentity{ask: ask}
	r, err := age.Decrypt(in, lazy)
	if err != nil {
		switch {
		case lazy.err != nil:
			return nil, lazy.err
		case lazy.asked:
			return nil, fmt.Errorf("keyring: the passphrase does not open the private key file: %w", ErrPassphrase)
		}
		return nil, fmt.Errorf("keyring: this is an age file, and no private key encrypted with a passphrase: %w", ErrIdentityFile)
	}
	text, err := io.ReadAll(io.LimitReader(r, MaxKeyFileBytes+1))
	defer Wipe(text)
	if err != nil || len(text) > MaxKeyFileBytes {
		return nil, fmt.Errorf("keyring: the encrypted private key file is damaged or too large: %w", ErrIdentityFile)
	}
	return readAgeKeys(bytes.TrimSpace(text))
}

// scryptIdentity asks for the passphrase when it is needed.
type scryptIdentity struct {
	ask   func() ([]byte, error)
	asked bool
	err   error // of ask
}

// Unwrap implements [age.Identity].
func (i *scryptIdentity) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	if len(stanzas) != 1 || stanzas[0].Type != "scrypt" {
		return nil, age.ErrIncorrectIdentity
	}
	secret, err := i.ask()
	if err != nil {
		i.err = err
		return nil, err
	}
	i.asked = true
	defer Wipe(secret)
	id, err := age.NewScryptIdentity(string(secret))
	if err != nil {
		return nil, err
	}
	id.SetMaxWorkFactor(maxScrypt)
	return id.Unwrap(stanzas)
}

func readSSHKey(text []byte, ask func() ([]byte, error)) ([]age.Identity, error) {
	key, err := ssh.ParseRawPrivateKey(text)
	var missing *ssh.PassphraseMissingError
	if errors.As(err, &missing) {
		secret, asked := ask()
		if asked != nil {
			return nil, asked
		}
		defer Wipe(secret)
		if key, err = ssh.ParseRawPrivateKeyWithPassphrase(text, secret); err != nil {
			return nil, fmt.Errorf("keyring: the passphrase does not open the private key file: %w", ErrPassphrase)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("keyring: the PEM file is no private key of SSH, or it is damaged: %w", ErrIdentityFile)
	}
	var id age.Identity
	switch key := key.(type) {
	case *ed25519.PrivateKey:
		id, err = agessh.NewEd25519Identity(*key)
	case ed25519.PrivateKey:
		id, err = agessh.NewEd25519Identity(key)
	case *rsa.PrivateKey:
		id, err = agessh.NewRSAIdentity(key)
	default:
		return nil, fmt.Errorf("keyring: shares open with SSH keys of types ed25519 and rsa, and this is none: %w", ErrIdentityFile)
	}
	if err != nil {
		return nil, fmt.Errorf("keyring: the private key cannot be used: %w", ErrIdentityFile)
	}
	return []age.Identity{id}, nil
}
