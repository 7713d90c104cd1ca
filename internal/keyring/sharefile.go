package keyring

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"

	"filippo.io/age"
	"filippo.io/age/armor"
)

// MaxShareFileBytes bounds an encrypted share. The longest recipients, RSA keys of
// 16,384 bits, take 5 KiB.
const MaxShareFileBytes = 16 << 10

// maxSharePayload bounds what is encrypted: names of 255 bytes, and 180 bytes.
const maxSharePayload = 1 << 10

var (
	// ErrNotForYou is matched when no private key opens an encrypted share.
	ErrNotForYou = errors.New("encrypted to another key")

	// ErrShareMalformed is matched when data, or what was encrypted in it, is no
	// share.
	ErrShareMalformed = errors.New("malformed share of the seed")

	// ErrShareVersion is matched when a share was written by another version of
	// this program, in a format that this one does not know.
	ErrShareVersion = errors.New("share of the seed in another format")

	// ErrRecipient is matched when a share cannot be encrypted to a recipient.
	ErrRecipient = errors.New("unusable recipient")
)

// ShareFile is what an owner keeps: a share, what it is a share of, and what lets
// the owner's tool know a coordinator that asks for it. It is encrypted to the
// owner's key.
type ShareFile struct {
	Cluster   string // the cluster's id. Required
	Owner     string // the seed share owner's name in the manifest. Required
	SeedEpoch uint64 // of the seed, from 1
	Threshold int    // shares that bring the seed back, from 1

	// TransactionKey signs the head of the cluster's history. The tool verifies the
	// history that a coordinator shows with it. Required
	TransactionKey ed25519.PublicKey

	// RootPin is the hash of the key of the cluster's root CA. Required
	RootPin [32]byte

	Share Share // required
}

func (f ShareFile) check() error {
	switch {
	case f.Cluster == "" || f.Owner == "" || len(f.Cluster) > 255 || len(f.Owner) > 255:
		return errors.New("cluster and owner must be named, in at most 255 bytes each")
	case f.SeedEpoch == 0:
		return errors.New("seed epochs count from 1")
	case f.Threshold < 1 || f.Threshold > MaxShares:
		return fmt.Errorf("the threshold is %d, want 1 to %d", f.Threshold, MaxShares)
	case len(f.TransactionKey) != ed25519.PublicKeySize:
		return fmt.Errorf("the transaction key has %d bytes, want %d", len(f.TransactionKey), ed25519.PublicKeySize)
	case f.RootPin == [32]byte{}:
		return errors.New("the root pin is missing")
	case f.Share.IsZero():
		return ErrNoShare
	}
	return nil
}

// The payloads begin with their names, whose last part is the version. They are
// binary, because text on its way through encoders leaves copies of the value
// that nobody can wipe.
//
// After the name, each in one piece without more: strings with their length in 2
// bytes before them, integers in big endian.
const (
	shareFileName    = "fealty seed share "
	shareFileVersion = "v1\n"
)

// encode returns the payload; the caller wipes it:
//
//	name | cluster | owner | seed epoch (8) | threshold (1) | transaction key (32) |
//	root pin (32) | set (16) | index (1) | value (32)
func (f ShareFile) encode() []byte {
	out := make([]byte, 0, maxSharePayload) // never grows, which would leave a copy
	out = append(out, shareFileName+shareFileVersion...)
	out = appendString(out, f.Cluster)
	out = appendString(out, f.Owner)
	out = binary.BigEndian.AppendUint64(out, f.SeedEpoch)
	out = append(out, byte(f.Threshold))
	out = append(out, f.TransactionKey...)
	out = append(out, f.RootPin[:]...)
	return appendShare(out, f.Share)
}

// parseShareFile reads what encode writes, and nothing else.
func parseShareFile(payload []byte) (ShareFile, error) {
	r, err := openPayload(payload, shareFileName, shareFileVersion)
	if err != nil {
		return ShareFile{}, err
	}
	f := ShareFile{Cluster: r.text(), Owner: r.text(), SeedEpoch: r.uint64(), Threshold: int(r.byte())}
	f.TransactionKey = bytes.Clone(r.take(ed25519.PublicKeySize))
	copy(f.RootPin[:], r.take(len(f.RootPin)))
	if f.Share, err = r.share(); err != nil {
		return ShareFile{}, err
	}
	if err := f.check(); err != nil {
		f.Share.Wipe()
		return ShareFile{}, fmt.Errorf("keyring: a share file: %w: %w", ErrShareMalformed, err)
	}
	return f, nil
}

// SealShare encrypts f to the recipient of its owner, as the manifest has it:
// age1…, age1pq1…, ssh-ed25519 … or ssh-rsa …. The result is an armored age file.
//
// Errors match [ErrRecipient], or name the field of f that is wrong.
func SealShare(recipient string, f ShareFile) ([]byte, error) {
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("keyring: encrypting the share of owner %q: %w", f.Owner, err)
	}
	to, err := parseRecipient(recipient)
	if err != nil {
		return nil, fmt.Errorf("keyring: encrypting the share of owner %q: %w", f.Owner, err)
	}
	payload := f.encode()
	defer Wipe(payload)
	return encryptTo(to, payload)
}

// OpenShare decrypts what [SealShare] returned with one of the private keys, which
// [ReadIdentities] reads.
//
// Errors match [ErrNotForYou], [ErrShareMalformed] or [ErrShareVersion].
func OpenShare(identities []age.Identity, data []byte) (ShareFile, error) {
	payload, err := decryptWith(identities, data)
	if err != nil {
		return ShareFile{}, err
	}
	defer Wipe(payload)
	return parseShareFile(payload)
}

func encryptTo(to age.Recipient, payload []byte) ([]byte, error) {
	var out bytes.Buffer
	armored := armor.NewWriter(&out)
	w, err := age.Encrypt(armored, to)
	if err != nil {
		return nil, fmt.Errorf("keyring: encrypting a share: %w: %v", ErrRecipient, err)
	}
	// Writes to memory do not fail.
	if _, err := w.Write(payload); err != nil {
		return nil, fmt.Errorf("keyring: encrypting a share: %w", err)
	}
	if err := errors.Join(w.Close(), armored.Close()); err != nil {
		return nil, fmt.Errorf("keyring: encrypting a share: %w", err)
	}
	if out.Len() > MaxShareFileBytes {
		return nil, fmt.Errorf("keyring: an encrypted share has %d bytes, the limit is %d: %w", out.Len(), MaxShareFileBytes, ErrRecipient)
	}
	return out.Bytes(), nil
}

// decryptWith returns the payload, which the caller wipes.
func decryptWith(identities []age.Identity, data []byte) ([]byte, error) {
	if len(data) > MaxShareFileBytes {
		return nil, fmt.Errorf("keyring: an encrypted share has %d bytes, the limit is %d: %w", len(data), MaxShareFileBytes, ErrShareMalformed)
	}
	if len(identities) == 0 {
		return nil, fmt.Errorf("keyring: opening a share without a private key: %w", ErrNotForYou)
	}
	r, err := age.Decrypt(armor.NewReader(bytes.NewReader(data)), identities...)
	var none *age.NoIdentityMatchError
	switch {
	case errors.As(err, &none):
		return nil, fmt.Errorf("keyring: none of the private keys opens this share: use the key whose public half the manifest names: %w", ErrNotForYou)
	case err != nil:
		return nil, fmt.Errorf("keyring: this is no encrypted share, or it was damaged (%v): %w", err, ErrShareMalformed)
	}
	// One byte more than there may be, so that too much shows.
	payload := make([]byte, maxSharePayload+1)
	for n := 0; n < len(payload); {
		m, err := r.Read(payload[n:])
		n += m
		switch {
		case err == io.EOF: // only at the authenticated end
			return payload[:n], nil
		case err != nil:
			Wipe(payload)
			return nil, fmt.Errorf("keyring: an encrypted share was damaged: %w", ErrShareMalformed)
		}
	}
	Wipe(payload)
	return nil, fmt.Errorf("keyring: an encrypted share holds more than %d bytes: %w", maxSharePayload, ErrShareMalformed)
}

func appendString(out []byte, s string) []byte {
	out = binary.BigEndian.AppendUint16(out, uint16(len(s)))
	return append(out, s...)
}

func appendShare(out []byte, s Share) []byte {
	held := s.held()
	out = append(out, held.set[:]...)
	out = append(out, held.index)
	defer runtime.KeepAlive(held.value)
	return append(out, held.value.b...)
}

// payloadReader reads a payload from its beginning. After the first piece that is
// not there all are empty.
type payloadReader struct {
	rest  []byte
	short bool
}

// openPayload checks name and version.
func openPayload(payload []byte, name, version string) (*payloadReader, error) {
	rest, ok := bytes.CutPrefix(payload, []byte(name))
	if !ok || len(payload) > maxSharePayload {
		return nil, fmt.Errorf("keyring: what was encrypted is not a %s: %w", name[:len(name)-1], ErrShareMalformed)
	}
	if body, ok := bytes.CutPrefix(rest, []byte(version)); ok {
		return &payloadReader{rest: body}, nil
	}
	// Only what looks like a version is one, and is shown.
	line, _, whole := bytes.Cut(rest, []byte("\n"))
	if !whole || len(line) < 2 || len(line) > 8 || line[0] != 'v' || bytes.ContainsFunc(line[1:], func(r rune) bool { return r < '0' || r > '9' }) {
		return nil, fmt.Errorf("keyring: a %s names no version: %w", name[:len(name)-1], ErrShareMalformed)
	}
	return nil, fmt.Errorf("keyring: a %s has format %s, and this program knows %s only: use a newer one: %w", name[:len(name)-1], line, version[:len(version)-1], ErrShareVersion)
}

func (r *payloadReader) take(n int) []byte {
	if r.short || len(r.rest) < n {
		r.short = true
		return make([]byte, n)
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *payloadReader) byte() byte     { return r.take(1)[0] }
func (r *payloadReader) uint64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }
func (r *payloadReader) text() string {
	n := int(binary.BigEndian.Uint16(r.take(2)))
	if n > 255 {
		r.short = true
		return ""
	}
	return string(r.take(n))
}

// share reads a share, with which every payload ends.
func (r *payloadReader) share() (Share, error) {
	set := [ShareSetBytes]byte(r.take(ShareSetBytes))
	index, value := int(r.byte()), r.take(SeedBytes)
	if r.short || len(r.rest) > 0 {
		return Share{}, fmt.Errorf("keyring: what was encrypted as a share is cut short or goes on after it: %w", ErrShareMalformed)
	}
	s, err := ShareFrom(index, set, value)
	if err != nil {
		return Share{}, fmt.Errorf("%w: %w", ErrShareMalformed, err)
	}
	return s, nil
}
