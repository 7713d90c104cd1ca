// Package files writes the identity of a process into files, for programs that only read files.
//
// It is a client of the SPIFFE Workload API, of an agent or of another implementation. The files
// of one identity change together: each is a symbolic link through one link, ..data, that is
// replaced as a whole, as Kubernetes mounts secrets. A reader that opens them one after the other
// sees a mixture only if the change falls in between; package credential notices and reads
// again.
package files

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// Names of the files.
const (
	Certificate = "svid.pem"     // the certificate, with what leads to a root
	Key         = "svid_key.pem" // its key, PKCS #8
	Bundle      = "bundle.pem"   // the roots of the cluster
)

const (
	data   = "..data" // the link that all go through
	prefix = "..set-" // begins the name of a folder with one set of files
)

// Set is one identity, as it is written.
type Set struct {
	ID                       string
	Certificate, Key, Bundle []byte // PEM
}

// Of returns the set of one identity of a process: the one with this id, or its first if id is
// blank.
func Of(x *workloadapi.X509Context, id string) (*Set, error) {
	for _, svid := range x.SVIDs {
		if id != "" && svid.ID.String() != id {
			continue
		}
		certificates, key, err := svid.Marshal()
		if err != nil {
			return nil, fmt.Errorf("write the certificate of %s: %w", svid.ID, err)
		}
		roots, err := x.Bundles.GetX509BundleForTrustDomain(svid.ID.TrustDomain())
		if err != nil {
			return nil, fmt.Errorf("write the roots of %s: %w", svid.ID, err)
		}
		return &Set{ID: svid.ID.String(), Certificate: certificates, Key: key,
			Bundle: encode(roots.X509Authorities())}, nil
	}
	if id == "" {
		return nil, errors.New("the process has no identity")
	}
	return nil, fmt.Errorf("the process is not %s", id)
}

func encode(certs []*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // a buffer takes all
	}
	return out.Bytes()
}

// Write puts a set in place of what dir has. If it fails the set before stays whole. Dir is
// made with mode 0700 if it is missing; the files have mode 0600. A file of dir that is none of
// ours is not replaced: that is an error before anything is written.
func Write(dir string, set *Set) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	names := map[string][]byte{Certificate: set.Certificate, Key: set.Key, Bundle: set.Bundle}
	for name := range names {
		if err := ours(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	fresh, err := os.MkdirTemp(dir, prefix)
	if err != nil {
		return err
	}
	before, _ := os.Readlink(filepath.Join(dir, data))
	for name, content := range names {
		if err == nil {
			err = writeFile(filepath.Join(fresh, name), content)
		}
	}
	if err == nil {
		err = link(filepath.Base(fresh), filepath.Join(dir, data))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	for name := range names {
		if target, lerr := os.Readlink(filepath.Join(dir, name)); lerr != nil || target != filepath.Join(data, name) {
			err = errors.Join(err, link(filepath.Join(data, name), filepath.Join(dir, name)))
		}
	}
	return errors.Join(err, sweep(dir, filepath.Base(fresh), before))
}

// ours reports whether path may be replaced: it is missing, or a link of an earlier set.
func ours(path string) error {
	target, err := os.Readlink(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && target == filepath.Join(data, filepath.Base(path)):
		return nil
	}
	return fmt.Errorf("%s is there already, and was not written by fealty: remove it, or name another folder", path)
}

func writeFile(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// link makes path a link to target, in one step if it is one already.
func link(target, path string) error {
	next := path + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// sweep removes earlier sets but the last: a reader may be in the middle of it.
func sweep(dir, current, before string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, prefix) && name != current && name != before {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
		}
	}
	return err
}

// Follow calls use with each set of a process's identity, as the Workload API at address gives it,
// until ctx ends or use fails. Failed is told of what goes wrong on the way; it is tried again.
func Follow(ctx context.Context, address, id string, use func(*Set) error, failed func(error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	client, err := workloadapi.New(ctx, workloadapi.WithAddr(address))
	if err != nil {
		return err
	}
	defer client.Close()
	err = client.WatchX509Context(ctx, watcher{id: id, use: use, failed: failed, stop: cancel})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

type watcher struct {
	id     string
	use    func(*Set) error
	failed func(error)
	stop   context.CancelCauseFunc
}

func (w watcher) OnX509ContextUpdate(x *workloadapi.X509Context) {
	set, err := Of(x, w.id)
	if err != nil {
		w.failed(err)
		return
	}
	if err := w.use(set); err != nil {
		w.stop(err)
	}
}

func (w watcher) OnX509ContextWatchError(err error) { w.failed(err) }
