package authority

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
	"sync/atomic"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/proof"
)

// Files of the data directory.
const (
	EnrolmentKeyFile = "enrolment.key"
	SetupTokenFile   = "setup-token"

	maxEnrolmentKey = 4 << 10 // bytes
)

// EnrolmentConfig is what an Enrolment is made of.
type EnrolmentConfig struct {
	FS  durable.FS
	Log *slog.Logger
	Now func() time.Time

	DataDir   string             // where its files are
	Addresses []string           // that people and tokens are told; shared
	Pin       identity.KeyID     // of the root key; zero: any
	Key       ed25519.PrivateKey // see [LoadEnrolmentKey]
	// Certificate is shown beside the enrolment key; nil: this coordinator has none.
	Certificate *enterprise.Certificate
}

// Enrolment says which coordinator of the manifest this process is, and proves it.
type Enrolment struct {
	cfg EnrolmentConfig

	certificateChanged watch.Signal // it is another one
	setup              atomic.Pointer[ed25519.PublicKey]
}

// NewEnrolment returns the enrolment that cfg says.
func NewEnrolment(cfg EnrolmentConfig) *Enrolment { return &Enrolment{cfg: cfg} }

// EnrolmentKey is its public key, as the manifest has it: "ed25519:<base64>".
func (e *Enrolment) EnrolmentKey() string {
	k, err := manifest.NewKey(e.cfg.Key.Public().(ed25519.PublicKey))
	if err != nil {
		panic("the enrolment key was checked when it was read: " + err.Error())
	}
	return k.String()
}

// Path is that of a file in the data directory.
func (e *Enrolment) Path(name string) string { return e.cfg.DataDir + "/" + name }

// LoadEnrolmentKey reads the enrolment key in dataDir, or makes it at the first start. It
// holds no seed material: it only says which coordinator of the manifest this is.
func LoadEnrolmentKey(files durable.FS, dataDir string) (ed25519.PrivateKey, error) {
	path := dataDir + "/" + EnrolmentKeyFile
	raw, err := files.ReadSecret(path, maxEnrolmentKey)
	if errors.Is(err, fs.ErrNotExist) {
		return makeEnrolmentKey(files, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the enrolment key %s: %w", path, err)
	}
	damaged := func(what string) error {
		return fmt.Errorf("the enrolment key %s %s: restore it from a backup, or move it away, start again, and have "+
			"the new key put into the manifest", path, what)
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

// Certificate is shown beside the enrolment key; nil: this coordinator has none.
func (e *Enrolment) Certificate() *enterprise.Certificate { return e.cfg.Certificate }

// PrivateKey is the key by which the manifest knows this coordinator.
func (e *Enrolment) PrivateKey() ed25519.PrivateKey { return e.cfg.Key }

// Admits returns the entry of m that admits this coordinator by its enrolment key or its
// certificate, and the name that it gets.
func (e *Enrolment) Admits(m *manifest.Manifest) (manifest.Match, error) {
	return e.cfg.Certificate.Admits(e.EnrolmentKey(), m, e.cfg.Now())
}

// Vouch signs what the enrolment key signs with the key of the certificate; nil without
// one.
func (e *Enrolment) Vouch(said [64]byte) ([]byte, error) {
	return e.cfg.Certificate.Vouch(e.EnrolmentKey(), said)
}

// VouchFor is Vouch for what the enrolment key signs of t.
func (e *Enrolment) VouchFor(t interface{ Digest() ([64]byte, error) }) ([]byte, error) {
	said, err := t.Digest()
	if err != nil {
		return nil, err
	}
	return e.Vouch(said)
}

// TakeCertificate looks once at the files of the certificate. A new one that in does not
// admit is refused, and the one before stays; in is nil where there is no manifest.
func (e *Enrolment) TakeCertificate(ctx context.Context, in *manifest.Manifest) (taken bool, refused error) {
	taken, refused = e.cfg.Certificate.Take(ctx, e.EnrolmentKey(), in, e.cfg.Now())
	if taken {
		e.certificateChanged.Notify()
	}
	return taken, refused
}

// CertificateChanged returns a channel that is closed when the certificate is another one.
func (e *Enrolment) CertificateChanged() <-chan struct{} { return e.certificateChanged.Wait() }

// CertificateFindings says what is wrong with the certificate that this coordinator shows.
func (e *Enrolment) CertificateFindings() []*fealtyv1.Finding {
	var out []*fealtyv1.Finding
	add := func(why *errcode.Error) {
		out = append(out, &fealtyv1.Finding{Code: string(why.Code),
			Severity: "warning", Summary: why.What + ": " + why.Why,
			Remedy: why.Do})
	}
	files := e.cfg.Certificate.Files()
	if files == nil {
		return nil
	}
	if ended := e.cfg.Certificate.Ended(e.cfg.Now()); !ended.IsZero() {
		add(errcode.New(errcode.CredentialExpired, "certificate", files.Paths().Cert, "problem",
			"it ended at "+ended.UTC().Format(time.RFC3339)+", and other coordinators take nothing from this one and "+
				"give it nothing"))
	} else if err := files.Failure(); err != nil {
		add(enterprise.Word(files.Paths(), err))
	}
	if why := e.cfg.Certificate.Refused(); why != nil {
		add(why)
	}
	return out
}

// OfferSetup makes the one-time setup token and writes its line to a file that
// only this user can read. Every start of an uninitialized coordinator makes a
// new one: the certificate that it pins lives in memory only.
func (e *Enrolment) OfferSetup(certificate identity.KeyID) error {
	token, err := proof.NewSetupToken(nil, proof.SetupToken{Addresses: e.cfg.Addresses, KeyHash: certificate})
	if err != nil {
		return fmt.Errorf("make the setup token: %w", err)
	}
	if err := e.cfg.FS.WriteFile(e.Path(SetupTokenFile), []byte(token.Line()+"\n")); err != nil {
		return fmt.Errorf("write the setup token: %w", err)
	}
	public := token.PublicKey()
	e.setup.Store(&public)
	return nil
}

// SetupKey is what remains of the setup token, its public key, until the first manifest is
// set; nil: there is none.
func (e *Enrolment) SetupKey() ed25519.PublicKey {
	if public := e.setup.Load(); public != nil {
		return *public
	}
	return nil
}

// EndSetup forgets the setup token: the cluster has its first manifest.
func (e *Enrolment) EndSetup() {
	e.setup.Store(nil)
	if err := e.cfg.FS.Remove(e.Path(SetupTokenFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.cfg.Log.Warn("the file of the setup token was not removed; the token is void all the same", "err", err)
	}
}

// NameIn is this coordinator's name in m.
func (e *Enrolment) NameIn(m *manifest.Manifest) string {
	if found, err := e.Admits(m); err == nil {
		return found.Name
	}
	return e.EnrolmentKey()
}

// CheckPin refuses a root that is not the one that is pinned.
func (e *Enrolment) CheckPin(root *x509.Certificate) error {
	if got := identity.KeyOf(root); !e.cfg.Pin.IsZero() && got != e.cfg.Pin {
		return errcode.New(errcode.RootNotPinned, "root", got.String(), "pin", e.cfg.Pin.String())
	}
	return nil
}

// OwnID is this coordinator's identity under s, for the audit log.
func (e *Enrolment) OwnID(s *State) string {
	found, err := e.Admits(s.Manifest)
	if err != nil {
		return "key " + e.EnrolmentKey()
	}
	id, err := identity.New(s.Manifest.Cluster, identity.Coordinator, found.Name)
	if err != nil {
		return "key " + e.EnrolmentKey()
	}
	return id.String()
}
