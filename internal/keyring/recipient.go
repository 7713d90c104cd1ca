package keyring

import (
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"golang.org/x/crypto/ssh"
)

const minRSABits, maxRSABits = 2048, 16384

// parseRecipient reads a recipient as the manifest has it, where it was checked
// before: what the manifest takes must be good here.
func parseRecipient(s string) (age.Recipient, error) {
	switch {
	case len(s) > MaxShareFileBytes:
	case strings.HasPrefix(s, "age1pq1"):
		if r, err := age.ParseHybridRecipient(s); err == nil {
			return r, nil
		}
	case strings.HasPrefix(s, "age1"):
		if r, err := age.ParseX25519Recipient(s); err == nil {
			return r, nil
		}
	case strings.HasPrefix(s, "ssh-"):
		if r, err := parseSSHRecipient(s); err == nil {
			return r, nil
		}
	default:
		// It may be a private key by mistake: nothing of it is shown.
		return nil, fmt.Errorf("keyring: a recipient begins with age1 or ssh-: %w", ErrRecipient)
	}
	return nil, fmt.Errorf("keyring: %.80q is malformed, or a key that nothing can be encrypted to: %w", s, ErrRecipient)
}

// parseSSHRecipient reads a line of authorized_keys without options.
func parseSSHRecipient(s string) (age.Recipient, error) {
	fields := strings.Fields(s)
	if len(fields) < 2 {
		return nil, ErrRecipient
	}
	blob, err := base64.StdEncoding.Strict().DecodeString(fields[1])
	if err != nil {
		return nil, err
	}
	public, err := ssh.ParsePublicKey(blob)
	if err != nil || public.Type() != fields[0] {
		return nil, ErrRecipient
	}
	switch public.Type() {
	case ssh.KeyAlgoED25519:
		r, err := agessh.NewEd25519Recipient(public)
		if err != nil {
			return nil, err
		}
		// A point of small order is a key with which an exchange has no secret. It
		// shows when something is encrypted, and must show when a manifest is set.
		if _, err := r.Wrap(make([]byte, 16)); err != nil {
			return nil, err
		}
		return r, nil
	case ssh.KeyAlgoRSA:
		key, ok := public.(ssh.CryptoPublicKey).CryptoPublicKey().(*rsa.PublicKey)
		if !ok || key.N.BitLen() < minRSABits || key.N.BitLen() > maxRSABits {
			return nil, ErrRecipient
		}
		return agessh.NewRSARecipient(public)
	}
	return nil, ErrRecipient
}
