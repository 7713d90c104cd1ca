package coordinator

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/tlsfiles"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/manifest"
)

// loadEnrolmentKey reads the enrolment key in dataDir, or makes it at the first start. It
// holds no seed material: it only says which coordinator of the manifest this is.
func loadEnrolmentKey(files durable.FS, dataDir string) (ed25519.PrivateKey, error) {
	path := dataDir + "/" + enrolmentKeyFile
	raw, err := files.ReadSecret(path, maxEnrolmentKey)
	if errors.Is(err, fs.ErrNotExist) {
		return makeEnrolmentKey(files, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the enrolment key %s: %w", path, err)
	}
	damaged := func(what string) error {
		return fmt.Errorf("the enrolment key %s %s: restore it from a backup, or move it away, start again, and have the new key put into the manifest", path, what)
	}
	block, rest := pem.Decode(raw)
	if block == nil || block.Type != "PRIVATE KEY" || len(rest) > 0 {
		return nil, damaged("is not one PEM block of type PRIVATE KEY")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, damaged("does not parse")
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, damaged("is not an Ed25519 key")
	}
	if _, err := manifest.NewKey(key.Public().(ed25519.PublicKey)); err != nil {
		return nil, damaged("is not a usable Ed25519 key")
	}
	return key, nil
}

func makeEnrolmentKey(files durable.FS, path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the enrolment key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the enrolment key: %w", err)
	}
	if err := files.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
		return nil, fmt.Errorf("write the enrolment key %s: %w", path, err)
	}
	return key, nil
}

// Key is the key by which the manifest knows this coordinator.
func (c *Enrolment) Key() ed25519.PrivateKey { return c.cfg.Key }

// admits returns the entry of m that admits this coordinator by its enrolment key or its
// certificate, and the name that it gets.
func (c *Enrolment) admits(m *manifest.Manifest) (manifest.Match, error) {
	return c.cfg.Certificate.Admits(c.enrolmentKey(), m, c.cfg.Now())
}

// vouch signs what the enrolment key signs with the key of the certificate; nil without
// one.
func (c *Enrolment) vouch(said [64]byte) ([]byte, error) {
	return c.cfg.Certificate.Vouch(c.enrolmentKey(), said)
}

// vouchFor is vouch for what the enrolment key signs of t.
func (c *Enrolment) vouchFor(t interface{ Digest() ([64]byte, error) }) ([]byte, error) {
	said, err := t.Digest()
	if err != nil {
		return nil, err
	}
	return c.vouch(said)
}

// followCertificate takes what is new in the files of the certificate, until ctx ends. A
// state that comes is looked at too: a manifest may admit what the one before did not.
func (c *Authority) followCertificate(ctx context.Context) error {
	for {
		changed, state := c.cfg.Self.cfg.Certificate.Changed(), c.cfg.Head.Changed()
		c.takeCertificate(ctx)
		if err := watch.Event(ctx, changed, state); err != nil {
			return err
		}
	}
}

// takeCertificate looks at the files once.
func (c *Authority) takeCertificate(ctx context.Context) {
	var in *manifest.Manifest
	if s := c.cfg.Head.State(); s.Phase == authority.Ready {
		in = s.Manifest
	}
	taken, refused := c.cfg.Self.cfg.Certificate.Take(ctx, c.cfg.Self.enrolmentKey(), in, c.cfg.Now())
	switch {
	case refused != nil:
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the new certificate is not used", slog.String("code", explain.CodeOf(refused)), slog.Any("err", refused))
	case taken:
		c.cfg.Self.certificateChanged.Notify()
		c.pushed.Store(true)
		c.cfg.Head.LookAgain() // what kept it from being admitted may be over
	}
}

// certificateFindings says what is wrong with the certificate that this coordinator shows.
func (c *Enrolment) certificateFindings() []*fealtyv1.Finding {
	var out []*fealtyv1.Finding
	add := func(e *explain.Error) {
		out = append(out, &fealtyv1.Finding{Code: string(e.Code), Severity: "warning", Summary: e.What + ": " + e.Why, Remedy: e.Do})
	}
	files := c.cfg.Certificate.Files()
	if files == nil {
		return nil
	}
	if ended := c.cfg.Certificate.Ended(c.cfg.Now()); !ended.IsZero() {
		add(explain.New(explain.CredentialExpired, "certificate", files.Paths().Cert, "problem",
			"it ended at "+ended.UTC().Format(time.RFC3339)+", and other coordinators take nothing from this one and give it nothing"))
	} else if err := files.Failure(); err != nil {
		add(tlsfiles.Word(files.Paths(), err))
	}
	if e := c.cfg.Certificate.Refused(); e != nil {
		add(e)
	}
	return out
}

// setupSecret is what remains of the setup token: its public key, until the
// first manifest is set.
type setupSecret struct {
	public ed25519.PublicKey
}

// offerSetup makes the one-time setup token and writes its line to a file that
// only this user can read. Every start of an uninitialized coordinator makes a
// new one: the certificate that it pins lives in memory only.
func (c *Enrolment) offerSetup(certificate identity.KeyID) error {
	token, err := proof.NewSetupToken(nil, proof.SetupToken{Addresses: c.cfg.Addresses, KeyHash: certificate})
	if err != nil {
		return fmt.Errorf("make the setup token: %w", err)
	}
	if err := c.cfg.FS.WriteFile(c.path(setupTokenFile), []byte(token.Line()+"\n")); err != nil {
		return fmt.Errorf("write the setup token: %w", err)
	}
	c.setup.Store(&setupSecret{token.PublicKey()})
	return nil
}

// endSetup forgets the setup token: the cluster has its first manifest.
func (c *Enrolment) endSetup() {
	c.setup.Store(nil)
	if err := c.cfg.FS.Remove(c.path(setupTokenFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.cfg.Log.Warn("the file of the setup token was not removed; the token is void all the same", "err", err)
	}
}
