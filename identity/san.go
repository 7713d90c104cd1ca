package identity

import (
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/internal/identity"
)

// ErrNoIdentity is matched by every error that says: this certificate identifies
// nobody. The certificate may be valid all the same.
var ErrNoIdentity = errors.New("no usable identity")

// The reasons of a [SANError].
const (
	sanAbsent    = "absent"    // no URI SAN
	sanSeveral   = "several"   // more than one URI SAN, equal ones included
	sanMalformed = "malformed" // one, that is not spiffe://<cluster>/<kind>/<name>
	sanForeign   = "foreign"   // one, of another cluster than the bundle's
)

// SANError says why a certificate identifies nobody.
type SANError struct {
	// Reason is stable, a metric label: "absent" or "several" URI SANs, or one that is "malformed", which is to say
	// not spiffe://<cluster>/<kind>/<name>, or "foreign", of another cluster than the bundle's.
	Reason  string
	Count   int    // URI SANs in the certificate
	URI     string // the one URI SAN, if Count is 1
	Cluster string // the cluster that was wanted, if it is foreign
	Err     error  // what is wrong with a malformed name, matching [ErrInvalidID]; nil otherwise
}

func (e *SANError) Error() string {
	const do = ": have the certificate issued with exactly one URI SAN, spiffe://<cluster>/<kind>/<name>"
	switch e.Reason {
	case sanForeign:
		return fmt.Sprintf("certificate identifies nobody here: its URI SAN %s is not of cluster %s: join that cluster, or dial its own", identity.Clip(e.URI), identity.Clip(e.Cluster))
	case sanMalformed:
		if e.Err != nil {
			return "certificate identifies nobody: " + e.Err.Error() + do
		}
		return "certificate identifies nobody: its subject alternative names cannot be read" + do
	}
	return fmt.Sprintf("certificate identifies nobody: it has %d URI SANs, want exactly 1", e.Count) + do
}

// Is makes every SANError match [ErrNoIdentity].
func (e *SANError) Is(target error) bool { return target == ErrNoIdentity }

// Unwrap returns what is wrong with a malformed name, if it is one.
func (e *SANError) Unwrap() error { return e.Err }

// FromCertificate returns the identity in c: its one and only URI SAN (X509-SVID §2).
// It reads the names that were signed, byte for byte, and not c.URIs: parsing a URI
// drops an empty fragment and lowers the scheme, which would give one identity several
// spellings. So c must come from a parser; a template identifies nobody.
//
// It says nothing about whether c is genuine: see [Bundle.Verify].
//
// Errors: [*SANError], matching [ErrNoIdentity].
func FromCertificate(c *x509.Certificate) (ID, error) {
	if c == nil {
		return ID{}, &SANError{Reason: sanAbsent}
	}
	uris, err := URIs(c)
	if err != nil {
		return ID{}, err
	}
	switch {
	case len(uris) == 0:
		return ID{}, &SANError{Reason: sanAbsent}
	case len(uris) > 1:
		return ID{}, &SANError{Reason: sanSeveral, Count: len(uris)}
	}
	id, err := Parse(uris[0])
	if err != nil {
		return ID{}, &SANError{Reason: sanMalformed, Count: 1, URI: uris[0], Err: err}
	}
	return id, nil
}

// URIs returns the URI SANs of c, byte for byte as they were signed; none for a
// certificate without any. It is for programs that show or match names: an identity is what
// [FromCertificate] says, and never one of several.
//
// Errors: [*SANError], for names that cannot be read.
func URIs(c *x509.Certificate) ([]string, error) {
	names, ok := identity.AltNames(c)
	if !ok {
		return nil, &SANError{Reason: sanMalformed}
	}
	var uris []string
	for _, name := range names {
		if name.Tag != identity.NameURI {
			continue
		}
		if name.IsCompound { // an IA5String is primitive; crypto/x509 looks past these
			return nil, &SANError{Reason: sanMalformed}
		}
		uris = append(uris, string(name.Bytes))
	}
	return uris, nil
}
