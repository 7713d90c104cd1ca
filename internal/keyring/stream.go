package keyring

import (
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
)

// EncryptStream returns a writer that encrypts to every recipient, as the manifest has
// them, what is written to it. Its Close writes the end, without which nothing that
// was written opens whole.
//
// Errors match [ErrRecipient].
func EncryptStream(w io.Writer, recipients ...string) (io.WriteCloser, error) {
	if len(recipients) == 0 {
		return nil, fmt.Errorf("keyring: encrypting to nobody: %w", ErrRecipient)
	}
	var to []age.Recipient
	for _, text := range recipients {
		r, err := parseRecipient(text)
		if err != nil {
			return nil, err
		}
		to = append(to, r)
	}
	out, err := age.Encrypt(w, to...)
	if err != nil {
		return nil, fmt.Errorf("keyring: encrypting: %w: %v", ErrRecipient, err)
	}
	return out, nil
}

// DecryptStream returns a reader of what [EncryptStream] encrypted, with one of the private
// keys, which [ReadIdentities] reads. It gives no byte that was altered, and io.EOF at
// the authenticated end alone.
//
// Errors match [ErrNotForYou], or say what is wrong with the first bytes.
func DecryptStream(r io.Reader, identities []age.Identity) (io.Reader, error) {
	if len(identities) == 0 {
		return nil, fmt.Errorf("keyring: decrypting without a private key: %w", ErrNotForYou)
	}
	out, err := age.Decrypt(r, identities...)
	var none *age.NoIdentityMatchError
	switch {
	case errors.As(err, &none):
		return nil, fmt.Errorf("keyring: none of the private keys opens it: %w", ErrNotForYou)
	case err != nil:
		return nil, fmt.Errorf("keyring: decrypting: %w", err)
	}
	return out, nil
}

// CheckRecipient reports whether something can be encrypted to the recipient. Errors
// match [ErrRecipient].
func CheckRecipient(recipient string) error {
	_, err := parseRecipient(recipient)
	return err
}
