package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki/pemfile"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/platform/watch"
)

const (
	maxCertBytes = 64 << 10
	maxKeyBytes  = 32 << 10
	maxBlocks    = 64              // certificates, a key and its parameters
	lookEvery    = 5 * time.Second // at the files
)

// PairConfig is what a Pair is made of. All fields are required.
type PairConfig struct {
	Cert, Key string // PEM files: the certificate with its issuers, and its key
	Now       func() time.Time
	Log       *slog.Logger
	// OnFailure is told of each change that is refused, once.
	OnFailure func(credential.Reason)
}

// Pair is a certificate of the web with its key, of two files that it follows. Make it with
// [OpenPair]. The last good pair stays in use while the files hold another one that cannot be used.
type Pair struct {
	cfg  PairConfig
	used atomic.Pointer[tls.Certificate]

	looking sync.Mutex        // one looks at a time
	read    [sha256.Size]byte // of what was read last; guarded by looking
	told    bool              // whether read is told to be refused; guarded by looking
}

// refusal is why a pair cannot be used.
type refusal struct {
	reason  credential.Reason
	problem string
	err     error
}

func (r *refusal) Error() string { return r.problem }
func (r *refusal) Unwrap() error { return r.err }

// OpenPair reads the files. Its errors are [errcode.CredentialMismatch] and
// [errcode.CredentialUnusable]. A certificate that has ended is taken here: a coordinator that is
// started is needed for more than the web, and its log says so.
func OpenPair(cfg PairConfig) (*Pair, error) {
	p := &Pair{cfg: cfg}
	cert, err := p.load()
	if err != nil {
		if err.reason == credential.KeyMismatch {
			return nil, errcode.Wrap(err, errcode.CredentialMismatch, "certificate", cfg.Cert, "key", cfg.Key)
		}
		return nil, errcode.Wrap(err, errcode.CredentialUnusable, "source", cfg.Cert+" and "+cfg.Key, "problem",
			err.problem)
	}
	if err := p.outOfDate(cert); err != nil {
		cfg.Log.LogAttrs(context.Background(), slog.LevelWarn, "the certificate of the web is out of date, and is "+
			"served until the files have another one", slog.String("certificate", cfg.Cert),
			slog.String("problem", err.problem))
	}
	p.used.Store(cert)
	return p, nil
}

// Certificate returns the pair in use, for a handshake.
func (p *Pair) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.used.Load(), nil }

// NotAfter is when the certificate in use ends.
func (p *Pair) NotAfter() time.Time { return p.used.Load().Leaf.NotAfter }

// Run looks at the files every few seconds until ctx ends, and returns its error then.
func (p *Pair) Run(ctx context.Context) error {
	for {
		if err := watch.Sleep(ctx, lookEvery); err != nil {
			return err
		}
		_ = p.Look(ctx) // it is told
	}
}

// Part has the files read again when somebody says so. They are followed all the same: what changed is told since it
// was asked last.
func (p *Pair) Part() reload.Part {
	known := p.used.Load()
	return reload.Part{Name: "the certificate in " + p.cfg.Cert, Read: func(ctx context.Context) (string, error) {
		if err := p.Look(ctx); err != nil {
			return "", err
		}
		if now := p.used.Load(); !bytes.Equal(now.Leaf.Raw, known.Leaf.Raw) {
			known = now
			return "another one is in use, which ends at " + now.Leaf.NotAfter.UTC().Format(time.RFC3339), nil
		}
		return "", nil
	}}
}

// Look adopts what is new in the files, and tells once of each content that it refuses. It returns why what they
// hold is not in use.
func (p *Pair) Look(ctx context.Context) error {
	p.looking.Lock()
	defer p.looking.Unlock()
	before := p.read
	cert, err := p.load()
	if before != p.read {
		p.told = false
	} else if err == nil && !p.told {
		return nil
	}
	if err == nil && p.outOfDate(p.used.Load()) == nil {
		err = p.outOfDate(cert)
	}
	if err != nil {
		if !p.told {
			p.told = true
			p.cfg.OnFailure(err.reason)
			p.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the certificate of the web is not adopted, the last good one "+
				"stays in use", slog.String("certificate", p.cfg.Cert), slog.String("reason", string(err.reason)),
				slog.String("problem", err.problem))
		}
		return err
	}
	p.told = false
	p.used.Store(cert)
	p.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a certificate of the web is adopted",
		slog.String("certificate", p.cfg.Cert), slog.Time("not_after", cert.Leaf.NotAfter))
	return nil
}

// outOfDate says why a certificate is; nil: it is in date.
func (p *Pair) outOfDate(c *tls.Certificate) *refusal {
	switch now := p.cfg.Now(); {
	case !now.Before(c.Leaf.NotAfter):
		return &refusal{credential.Expired, "it ended at " + c.Leaf.NotAfter.Format(time.RFC3339), nil}
	case now.Before(c.Leaf.NotBefore):
		return &refusal{credential.Expired, "it begins at " + c.Leaf.NotBefore.Format(time.RFC3339), nil}
	}
	return nil
}

// load reads the files, and notes what it read.
func (p *Pair) load() (*tls.Certificate, *refusal) {
	certPEM, err := p.file(p.cfg.Cert, maxCertBytes)
	if err != nil {
		return nil, err
	}
	keyPEM, err := p.file(p.cfg.Key, maxKeyBytes)
	if err != nil {
		return nil, err
	}
	defer clear(keyPEM)
	h := sha256.New()
	for _, b := range [][]byte{certPEM, keyPEM} {
		fmt.Fprintf(h, "%d ", len(b))
		h.Write(b)
	}
	p.read = [sha256.Size]byte(h.Sum(nil))
	cert, ofKey, failed := pemfile.KeyPair(certPEM, keyPEM, pemfile.Limits{Bytes: maxCertBytes, Blocks: maxBlocks})
	switch {
	case errors.Is(failed, pemfile.ErrOtherKey):
		return nil, &refusal{credential.KeyMismatch, p.cfg.Key + ": " + failed.Error(), failed}
	case failed != nil && ofKey:
		return nil, &refusal{credential.Malformed, p.cfg.Key + ": " + failed.Error(), failed}
	case failed != nil:
		return nil, &refusal{credential.Malformed, p.cfg.Cert + ": " + failed.Error(), failed}
	}
	return &cert, nil
}

// file reads a file. A failure counts as what was read, so that it is told once.
func (p *Pair) file(name string, limit int64) ([]byte, *refusal) {
	raw, err := durable.OS().ReadFile(name, limit)
	if err == nil {
		return raw, nil
	}
	problem := name + " cannot be read"
	if errors.Is(err, fs.ErrNotExist) {
		problem = name + " is missing"
	}
	p.read = sha256.Sum256([]byte(problem))
	return nil, &refusal{credential.Unreadable, problem, err}
}
