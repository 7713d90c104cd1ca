package keyring

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

// FileKeeper seals under a key of 32 random bytes in a file. Somebody who can read
// the file and the store has the seed: the file belongs on another disk than the
// store, with mode 0600, and in a backup. A file that root gives to a group of the
// coordinator's user, and that the group cannot write, is taken too: secrets are mounted so.
//
// The file has one line:
//
//	fealty-keeper-key-v1 <32 bytes in standard base64>
//
// A sealed secret is
//
//	version (1 byte: 1) | key id (8) | nonce (12) | AES-256-GCM ciphertext and tag
//
// with version, key id and place as additional data. The key id tells a wrong
// file from damage; it derives from the key and does not reveal it.
type FileKeeper struct {
	name string
	fsys durable.FS
}

const (
	keyFilePrefix  = "fealty-keeper-key-v1 "
	keyFileBytes   = len(keyFilePrefix) + 44 + 1
	sealedVersion  = 1
	keyIDBytes     = 8
	sealedOverhead = 1 + keyIDBytes + 12 + 16
)

// ErrKeyFile is matched when the file of a [FileKeeper] is missing, malformed, or
// readable by others; the last matches durable.ErrExposed too.
var ErrKeyFile = errors.New("keeper's key file cannot be used")

// fileError says in its text alone what is wrong with a key file. It matches [ErrKeyFile]
// and its cause.
type fileError struct {
	text  string
	cause error
}

func (e *fileError) Error() string   { return e.text }
func (e *fileError) Unwrap() []error { return []error{ErrKeyFile, e.cause} }

// Name returns the path of the key file.
func (k *FileKeeper) Name() string { return k.name }

// KeyID implements [Keeper]: it is the hash of the key, in hexadecimal.
func (k *FileKeeper) KeyID(context.Context, Place) (KeyID, error) {
	key, err := k.read()
	if errors.Is(err, fs.ErrNotExist) {
		return "", k.missing()
	}
	if err != nil {
		return "", err
	}
	defer Wipe(key)
	return fileKeyID(keyID(key)), nil
}

// fileKeyID spells the id that stands in what a [FileKeeper] sealed.
func fileKeyID(id []byte) KeyID { return KeyID(hex.EncodeToString(id)) }

// MakeKey implements [Keeper]: it makes the key file, durably. That is guarded by a lock
// beside it: of two processes that make it at once, both use the key of one.
func (k *FileKeeper) MakeKey(ctx context.Context) (made bool, err error) {
	key, err := k.read()
	if errors.Is(err, fs.ErrNotExist) {
		key, made, err = k.create(ctx)
	}
	Wipe(key)
	return made, err
}

// missing says that there is no key file. It is never made by who seals or opens: a new
// one opens nothing of what was sealed before.
func (k *FileKeeper) missing() error {
	return &fileError{"keyring: " + k.name + " is missing on this machine", ErrNoKey}
}

// Seal implements [Keeper].
func (k *FileKeeper) Seal(_ context.Context, place Place, plaintext []byte) ([]byte, error) {
	if err := place.check(); err != nil {
		return nil, err
	}
	if len(plaintext) > MaxPlaintextBytes {
		return nil, fmt.Errorf("keyring: a secret of %d bytes is too large to seal, the limit is %d", len(plaintext), MaxPlaintextBytes)
	}
	key, err := k.read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, k.missing()
	}
	if err != nil {
		return nil, err
	}
	defer Wipe(key)
	head := append([]byte{sealedVersion}, keyID(key)...)
	return newGCM(key).Seal(head, nil, plaintext, append(place.encode(), head...)), nil
}

// Open implements [Keeper]. Beyond its errors there are those that match
// [ErrKeyFile]: a missing file is never made here, for it could open nothing.
func (k *FileKeeper) Open(_ context.Context, place Place, sealed []byte) ([]byte, error) {
	if err := place.check(); err != nil {
		return nil, err
	}
	if len(sealed) < sealedOverhead || len(sealed) > sealedOverhead+MaxPlaintextBytes {
		return nil, fmt.Errorf("keyring: %d bytes are no sealed secret: %w", len(sealed), ErrNotOpened)
	}
	if sealed[0] != sealedVersion {
		return nil, fmt.Errorf("keyring: the secret was sealed in format %d, and this program knows format %d only: use a newer one: %w", sealed[0], sealedVersion, ErrNotOpened)
	}
	key, err := k.read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &fileError{"keyring: " + k.name + " is missing, and the secret was sealed under the key in it: " +
			"restore the file from its backup", ErrNoKey}
	}
	if err != nil {
		return nil, err
	}
	defer Wipe(key)
	head, body := sealed[:1+keyIDBytes], sealed[1+keyIDBytes:]
	if id := keyID(key); !bytes.Equal(head[1:], id) {
		return nil, fmt.Errorf("keyring: the secret was sealed under key %x, and %s holds key %x: restore the file that held it: %w", head[1:], k.name, id, ErrOtherKey)
	}
	plaintext, err := newGCM(key).Open(nil, nil, body, append(place.encode(), head...))
	if err != nil {
		return nil, fmt.Errorf("keyring: the sealed %s of owner %q in cluster %q was damaged, forged, or sealed for another place: %w", place.Purpose, place.Owner, place.Cluster, ErrNotOpened)
	}
	return plaintext, nil
}

// read returns the key; fs.ErrNotExist, without more words, if there is no file.
func (k *FileKeeper) read() ([]byte, error) {
	data, err := k.fsys.ReadSecret(k.name, int64(keyFileBytes))
	defer Wipe(data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fs.ErrNotExist
	case errors.Is(err, durable.ErrTooLarge):
		return nil, k.malformed()
	case errors.Is(err, durable.ErrExposed):
		return nil, &fileError{"keyring: others can read " + k.name + ", so that they may know the key in it: " +
			"chmod 600 it, and make a new seed later if somebody did; where it is mounted, as a Secret of Kubernetes, " +
			"mount it with defaultMode 0400 and the coordinator's group as fsGroup, and run the coordinator as another user than root", err}
	case err != nil:
		return nil, fmt.Errorf("keyring: key file of a keeper: %w: %w", ErrKeyFile, err)
	}
	// No strings on the way: they could not be wiped. There is one spelling of each
	// key: base64 skips line breaks, but the limit leaves no room for one.
	encoded, ok := bytes.CutPrefix(data, []byte(keyFilePrefix))
	encoded, newline := bytes.CutSuffix(encoded, []byte("\n"))
	key := make([]byte, base64.StdEncoding.DecodedLen(len(encoded)))
	n, err := base64.StdEncoding.Strict().Decode(key, encoded)
	if !ok || !newline || err != nil || n != 32 {
		Wipe(key)
		return nil, k.malformed()
	}
	return key[:n], nil
}

// examine looks at the key file as read does, and at its folder: who can change
// that can put another key there.
func (k *FileKeeper) examine() error {
	dir := filepath.Dir(k.name)
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("keyring: the folder of %s: %w: %w", k.name, ErrKeyFile, err)
	case !info.IsDir():
		return fmt.Errorf("keyring: %s is no folder: %w", dir, ErrKeyFile)
	}
	key, err := k.read()
	Wipe(key)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if problem := exposed(info); problem != "" {
		return fmt.Errorf("keyring: the folder %s %s, who could put another key there, or take it away: chmod 0700 it, and give it to the coordinator's user: %w", dir, problem, ErrExposedFolder)
	}
	return nil
}

// malformed tells nothing of the content: it may be most of a key.
func (k *FileKeeper) malformed() error {
	return fmt.Errorf("keyring: %s is no key file of a keeper: want one line, %q and 32 bytes in base64: restore it from its backup; only if nothing was ever sealed under it, delete it and a new one is made: %w", k.name, strings.TrimSpace(keyFilePrefix), ErrKeyFile)
}

// create makes the key file, or returns the key of who was faster.
func (k *FileKeeper) create(ctx context.Context) (key []byte, made bool, err error) {
	if err := k.fsys.MkdirAll(filepath.Dir(k.name)); err != nil {
		return nil, false, fmt.Errorf("keyring: making the directory of %s: %w: %w", k.name, ErrKeyFile, err)
	}
	lock, err := k.lock(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("keyring: making %s: %w: %w", k.name, ErrKeyFile, err)
	}
	defer lock.Close()
	if key, err := k.read(); !errors.Is(err, fs.ErrNotExist) {
		return key, false, err
	}
	key = make([]byte, 32)
	rand.Read(key)
	data := encodeKey(key)
	defer Wipe(data)
	if err := k.fsys.WriteFile(k.name, data); err != nil {
		Wipe(key)
		return nil, false, fmt.Errorf("keyring: making %s: %w: %w", k.name, ErrKeyFile, err)
	}
	return key, true, nil
}

// lock waits for the lock beside the key file. Others hold it for one write.
func (k *FileKeeper) lock(ctx context.Context) (interface{ Close() error }, error) {
	const every, most = 20 * time.Millisecond, 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		lock, err := k.fsys.Lock(k.name + ".lock")
		if err == nil || !errors.Is(err, durable.ErrLocked) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(every):
		}
	}
}

func encodeKey(key []byte) []byte {
	out := base64.StdEncoding.AppendEncode([]byte(keyFilePrefix), key)
	return append(out, '\n')
}

// keyID names a key without revealing it: HKDF's outputs under one label say
// nothing of the key or of its other uses.
func keyID(key []byte) []byte {
	id, err := hkdf.Key(sha256.New, key, nil, "fealty/v1/keeper-key-id", keyIDBytes)
	if err != nil {
		panic(fmt.Sprintf("keyring: HKDF refused %d bytes: %v", keyIDBytes, err)) // its limit is 255·32
	}
	return id
}

// newGCM returns AES-256-GCM that puts a random nonce before the ciphertext. A key
// file seals a few secrets for each head, far below the 2^32 at which random
// nonces of 96 bits become a risk (NIST SP 800-38D §8.3).
func newGCM(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(fmt.Sprintf("keyring: AES refused a key of %d bytes: %v", len(key), err)) // callers pass 32
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(fmt.Sprintf("keyring: GCM refused AES: %v", err))
	}
	return aead
}
