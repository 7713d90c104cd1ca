// Package keyfile reads and writes files with a private key, and others that must not exist yet.
package keyfile

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki/pemfile"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// maxKeyBytes bounds a file with one key.
const maxKeyBytes = 16 << 10

// Read reads an Ed25519 private key that only its owner can read.
func Read(path string) (ed25519.PrivateKey, error) {
	raw, err := durable.OS().ReadSecret(path, maxKeyBytes)
	if err != nil {
		return nil, render.OfPrivateFile(path, err)
	}
	unusable := func(problem string) (ed25519.PrivateKey, error) {
		return nil, errcode.New(errcode.KeyFileUnusable, "file", path, "problem", problem)
	}
	defer clear(raw)
	parsed, err := pemfile.PrivateKey(raw, pemfile.Limits{Bytes: maxKeyBytes, Blocks: 4})
	switch {
	case errors.Is(err, pemfile.ErrEncrypted):
		return nil, errcode.New(errcode.KeyFileUnusable, "file", path, "problem", "its key is encrypted, and no "+
			"passphrase is asked for here", "want", "the key without its passphrase, in a file (umask 077; "+
			"openssl pkey -in "+term.ShellWord(path)+" -out FILE)")
	case err != nil:
		return unusable(err.Error())
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return unusable(fmt.Sprintf("its key is of type %T and not Ed25519", parsed))
	}
	if _, err := manifest.NewKey(key.Public().(ed25519.PublicKey)); err != nil {
		return unusable("its key is one of the few that everybody can sign for")
	}
	return key, nil
}

// Public returns the form of a key that a manifest names.
func Public(key ed25519.PrivateKey) (manifest.Key, error) {
	return manifest.NewKey(key.Public().(ed25519.PublicKey))
}

// New returns a key, and its file.
func New() (ed25519.PrivateKey, []byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// Create writes a file that must not exist. It is there whole or not at all,
// and durable: a key that was promised to somebody must not be lost with the power.
func Create(path string, data []byte, mode fs.FileMode, purpose string) error {
	return CreateStream(path, mode, purpose, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// CreateStream is createFile for what comes in parts. An error of fill is
// returned as it is, if it is worded.
func CreateStream(path string, mode fs.FileMode, purpose string, fill func(io.Writer) error) error {
	failed := func(err error) error {
		if e, ok := errors.AsType[*errcode.Error](err); ok {
			return e
		}
		if errors.Is(err, fs.ErrExist) {
			return errcode.Wrap(err, errcode.FileExists, "file", path, "purpose", purpose)
		}
		return errcode.Wrap(err, errcode.FileNotWritten, "file", path, "purpose", purpose, "cause",
			render.Bare(err).Error())
	}
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, ".fealty-*")
	if err != nil {
		return failed(err)
	}
	defer os.Remove(tmp.Name())
	err = fill(tmp)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err != nil {
		return failed(err)
	}
	// A link, unlike a rename, fails if the name is taken.
	if err := os.Link(tmp.Name(), path); err != nil {
		var link *os.LinkError
		if errors.As(err, &link) {
			err = link.Err
		}
		return failed(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return failed(err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return failed(err)
	}
	return nil
}
