package snapshot

import (
	"context"
	"crypto/x509"
	"log/slog"
	"slices"
	"sync"

	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/trust"
	"github.com/fealty-io/fealty/internal/platform/reload"
)

// MirrorRoots are those that the certificates of mirrors' servers lead to. Their file is read again for each connection, so that a
// root that somebody adds is believed, and one that they take away is not, without a restart. While it cannot be read whole,
// what it held before counts.
type MirrorRoots struct {
	file string // "" for those of the system
	read func() ([]*x509.Certificate, error)
	log  *slog.Logger

	mu     sync.Mutex
	certs  []*x509.Certificate // guarded by mu
	unread error               // why the file cannot be used as it is now; guarded by mu
}

// ReadMirrorRoots reads the file of --snapshot-ca.
func ReadMirrorRoots(c *program.CLI, cfg *settings.Values, log *slog.Logger) (*MirrorRoots, error) {
	file := cfg.Text("snapshot_ca")
	return newRoots(file, log, func() ([]*x509.Certificate, error) {
		found, err := trust.ReadCert(c, cfg, file)
		if err != nil {
			return nil, err
		}
		return found.Certs, nil
	})
}

func newRoots(file string, log *slog.Logger, read func() ([]*x509.Certificate, error)) (*MirrorRoots, error) {
	r := &MirrorRoots{file: file, read: read, log: log}
	if file == "" {
		return r, nil
	}
	var err error
	if r.certs, err = read(); err != nil {
		return nil, err
	}
	return r, nil
}

// Pool returns the roots as the file has them now; nil for those of the system.
func (r *MirrorRoots) Pool() *x509.CertPool {
	if r.file == "" {
		return nil
	}
	certs, _ := r.again()
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}

// again reads the file. Its error says why it cannot be used; then the roots are those of before.
func (r *MirrorRoots) again() (certs []*x509.Certificate, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == "" || r.file == "-" { // which can be read once
		return r.certs, nil
	}
	certs, err = r.read()
	if err != nil {
		if r.unread == nil {
			r.log.Warn("the roots of mirrors cannot be used as they are now: those of before are", "file", r.file, "err", err)
		}
		r.unread = err
		return r.certs, err
	}
	r.unread = nil
	if !slices.EqualFunc(r.certs, certs, (*x509.Certificate).Equal) {
		r.certs = certs
		r.log.Info("the roots of mirrors were replaced, and are used for each new connection", "file", r.file)
	}
	return certs, nil
}

// Part has the file read when the process is told to. What changed is told since it was asked last.
func (r *MirrorRoots) Part() reload.Part {
	known := r.certs
	return reload.Part{Name: "the roots of mirrors", Read: func(context.Context) (string, error) {
		now, err := r.again()
		if err != nil || slices.EqualFunc(known, now, (*x509.Certificate).Equal) {
			return "", err
		}
		known = now
		return "others are in use", nil
	}}
}
