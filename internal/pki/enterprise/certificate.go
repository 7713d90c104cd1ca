package enterprise

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
)

// A Certificate is the one that a coordinator shows. It follows the operator's files, but
// takes what is new in them only where the coordinator stays who it is. A nil one is that
// of a coordinator without files.
type Certificate struct {
	files   *credential.Files
	held    atomic.Pointer[credential.Material]
	refused atomic.Pointer[refusal] // nil: what the files hold is held
}

// refusal is why newer material is not taken.
type refusal struct {
	material *credential.Material
	err      *errcode.Error
}

// NewCertificate returns the certificate that files hold now; nil for nil files.
func NewCertificate(ctx context.Context, files *credential.Files) (*Certificate, error) {
	if files == nil {
		return nil, nil
	}
	c := &Certificate{files: files}
	m, err := files.Current(ctx)
	if err != nil {
		return nil, err
	}
	c.held.Store(m)
	return c, nil
}

// Files are the files that it follows; nil without any.
func (c *Certificate) Files() *credential.Files {
	if c == nil {
		return nil
	}
	return c.files
}

// Changed is closed when other files are good; nil, which blocks for ever, without any.
func (c *Certificate) Changed() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.files.Changed()
}

// Refused says why what the files hold is not shown; nil if it is.
func (c *Certificate) Refused() *errcode.Error {
	if c == nil {
		return nil
	}
	if r := c.refused.Load(); r != nil {
		return r.err
	}
	return nil
}

// Ended is when the certificate that is shown ended; zero while it is in date.
func (c *Certificate) Ended(now time.Time) time.Time {
	if c == nil {
		return time.Time{}
	}
	if leaf := c.held.Load().Chain()[0]; now.After(leaf.NotAfter) {
		return leaf.NotAfter
	}
	return time.Time{}
}

// Certificates are those that are shown, DER; nil without any.
func (c *Certificate) Certificates(claim string) [][]byte {
	me, err := c.coordinator(claim)
	if err != nil {
		return nil
	}
	return me.Certificates()
}

// coordinator is the coordinator of an enrolment key with this certificate.
func (c *Certificate) coordinator(claim string) (proof.Coordinator, error) {
	if c == nil {
		return proof.OwnCoordinator(claim, nil)
	}
	return proof.OwnCoordinator(claim, c.held.Load().Chain())
}

// Vouch signs what the enrolment key of claim signs with the certificate's key; nil
// without a certificate.
func (c *Certificate) Vouch(claim string, said [64]byte) ([]byte, error) {
	if c == nil {
		return nil, nil
	}
	m := c.held.Load()
	return proof.Vouch(proof.X509Credential{Chain: m.Chain(), Key: m.Key()}, claim, said)
}

// Admits returns the entry of m that admits the coordinator of an enrolment key with this
// certificate, and the name that it gets. A certificate that ended after it was taken
// still counts here: peers refuse it, and this coordinator need not stop before that.
//
// Errors: ManifestLeavesOut, CoordinatorWithoutCertificate, CoordinatorCertificateForeign
// and CoordinatorCertificateOther.
func (c *Certificate) Admits(claim string, m *manifest.Manifest, now time.Time) (manifest.Match, error) {
	me, err := c.coordinator(claim)
	if err != nil {
		return manifest.Match{}, errcode.Wrap(err, errcode.CoordinatorCertificateForeign, "certificate", c.files.Paths().Cert, "problem", err.Error())
	}
	return c.admits(me, m, now)
}

func (c *Certificate) admits(me proof.Coordinator, m *manifest.Manifest, now time.Time) (manifest.Match, error) {
	found, err := me.Match(m, me.InDate(now))
	if err == nil {
		return found, nil
	}
	not, ok := errors.AsType[*proof.NotAdmittedError](err)
	switch {
	case !ok || len(not.Wanted) == 0:
		return found, errcode.Wrap(err, errcode.ManifestLeavesOut, "key", me.Key())
	case !not.Certificate:
		return found, errcode.Wrap(err, errcode.CoordinatorWithoutCertificate, "key", me.Key(), "entry", wanted(not))
	case not.Untrusted != nil:
		return found, errcode.Wrap(err, errcode.CoordinatorCertificateForeign, "certificate", c.files.Paths().Cert, "key", me.Key(), "entry", wanted(not), "problem", untrusted(not.Untrusted))
	}
	shows := strings.Join(not.Shows, ", ")
	if shows == "" {
		shows = "no name that an entry can match"
	}
	return found, errcode.Wrap(err, errcode.CoordinatorCertificateOther, "certificate", c.files.Paths().Cert, "key", me.Key(), "entry", wanted(not), "shows", shows)
}

// untrusted is why a chain is refused, in few words: the reason is shown in readiness.
func untrusted(e *proof.CertificateError) string {
	if e.Err.Reason == identity.ErrUntrusted {
		return fmt.Sprintf("its issuer %q is none of them, nor leads to one", e.Issuer)
	}
	return e.Err.Detail
}

// wanted names the entries that admit coordinators by x509.
func wanted(e *proof.NotAdmittedError) string {
	const most = 4
	if n := len(e.Wanted); n > most {
		return strings.Join(e.Wanted[:most], ", ") + " and others"
	}
	return strings.Join(e.Wanted, ", ")
}

// Take takes what the files hold now, and reports whether that is another certificate
// than before. in is the manifest under which the coordinator is ready: what does not
// admit it there under the name that it has is refused, and the one before stays. Nil
// for a coordinator that is not ready, which has nothing to lose. A refusal is returned
// once.
func (c *Certificate) Take(ctx context.Context, claim string, in *manifest.Manifest, now time.Time) (taken bool, refused error) {
	if c == nil {
		return false, nil
	}
	next, err := c.files.Current(ctx)
	if err != nil || next == c.held.Load() {
		c.refused.Store(nil)
		return false, nil
	}
	if e := c.fits(claim, next, in, now); e != nil {
		before := c.refused.Swap(&refusal{next, e})
		if before != nil && before.material == next && before.err.Code == e.Code {
			return false, nil
		}
		return false, e
	}
	c.held.Store(next)
	c.refused.Store(nil)
	return true, nil
}

// fits says why next cannot take the place of what is held.
func (c *Certificate) fits(claim string, next *credential.Material, in *manifest.Manifest, now time.Time) *errcode.Error {
	if in == nil {
		return nil
	}
	is, err := c.Admits(claim, in, now)
	if err != nil {
		return nil // what is held is no better
	}
	me, err := proof.OwnCoordinator(claim, next.Chain())
	if err != nil {
		return errcode.Wrap(err, errcode.CoordinatorCertificateForeign, "certificate", c.files.Paths().Cert, "problem", err.Error())
	}
	found, err := c.admits(me, in, now)
	if err != nil {
		return errcode.Of(err)
	}
	if found.Name != is.Name {
		return errcode.New(errcode.CoordinatorCertificateRenames, "certificate", c.files.Paths().Cert, "is", is.Name, "shows", found.Name, "entry", found.Entry.Name)
	}
	return nil
}
