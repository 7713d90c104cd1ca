package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"slices"
	"time"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// maxNameBytes bounds an issuer's or a subject's name in DER.
const maxNameBytes = 512

// Extensions and attributes. Package identity looks for two of them in certificates of an operator's PKI.
var (
	oidSubjectKeyID     = asn1.ObjectIdentifier{2, 5, 29, 14}
	oidKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	OIDNameConstraints  = asn1.ObjectIdentifier{2, 5, 29, 30}
	oidAuthorityKeyID   = asn1.ObjectIdentifier{2, 5, 29, 35}
	OIDExtKeyUsage      = asn1.ObjectIdentifier{2, 5, 29, 37}
	oidCommonName       = asn1.ObjectIdentifier{2, 5, 4, 3}
)

// Rule is one row of a table of checks: what it is called (stable: a metric label), and
// where it is written.
type Rule struct{ Name, Section string }

// certRule is a rule about one certificate. check returns "" or what is wrong.
type certRule struct {
	Rule
	check func(c *x509.Certificate, now time.Time) string
}

// Profile is the template of one sort of certificate: leaf, mesh CA or root. A cluster
// mints all of its certificates itself, so a profile describes the one shape that is
// minted, not everything that RFC 5280 allows. The zero Profile refuses everything.
type Profile struct {
	name  string
	shape []certRule // what never changes about a certificate
	dates []certRule // what time changes
}

// LeafProfile returns the profile of a leaf (an X509-SVID).
//
// To mint one, fill a template with: a positive serial of at most 20 octets; NotBefore
// and NotAfter at most MaxLeafLifetime apart; KeyUsageDigitalSignature; ExtKeyUsage
// server and client auth; BasicConstraintsValid; SubjectKeyId from SubjectKeyID; a
// Subject that is empty or one common name; URIs, DNSNames and IPAddresses at will. The
// mesh CA's AuthorityKeyId follows from the issuer.
func LeafProfile() Profile {
	return Profile{name: "leaf", shape: leafRules, dates: dateRules}
}

// MeshCAProfile returns the profile of a mesh CA, which signs leaves: IsCA with
// MaxPathLen 0 (and MaxPathLenZero), KeyUsageCertSign alone, a P-256 key, a Subject.
func MeshCAProfile() Profile {
	return Profile{name: "mesh CA", shape: meshCARules, dates: dateRules}
}

// RootProfile returns the profile of a root, which signs mesh CAs and itself: IsCA with
// MaxPathLen 1, KeyUsageCertSign alone, a P-256 key, a Subject.
func RootProfile() Profile {
	return Profile{name: "root", shape: rootRules, dates: dateRules}
}

// Name returns "leaf", "mesh CA" or "root".
func (p Profile) Name() string { return p.name }

// Rules lists the rows of the profile in the order in which they are checked.
func (p Profile) Rules() []Rule {
	var rules []Rule
	for _, r := range slices.Concat(p.shape, p.dates) {
		rules = append(rules, r.Rule)
	}
	return rules
}

// Check reports whether c, which must come from a parser, is of this profile and in date
// at now. It returns the first rule that refuses, and nil if none does. Signatures are not
// looked at.
func (p Profile) Check(c *x509.Certificate, now time.Time) *Refusal {
	if r := p.CheckShape(c); r != nil {
		return r
	}
	return p.CheckDates(c, now)
}

// CheckShape is Check without the dates: what never changes about a certificate.
func (p Profile) CheckShape(c *x509.Certificate) *Refusal {
	return p.run(p.shape, c, time.Time{}, ErrProfile)
}

// CheckDates is Check of a certificate that passed CheckShape before.
func (p Profile) CheckDates(c *x509.Certificate, now time.Time) *Refusal {
	return p.run(p.dates, c, now, ErrExpired)
}

func (p Profile) run(rules []certRule, c *x509.Certificate, now time.Time, reason error) *Refusal {
	if len(rules) == 0 {
		return &Refusal{Certificate: "certificate", Rule: "profile", Section: "RFC 5280 §6.1",
			Detail: "the zero Profile describes no certificate", Reason: ErrProfile}
	}
	for _, r := range rules {
		if detail := r.check(c, now); detail != "" {
			e := &Refusal{Certificate: p.name, Rule: r.Name, Section: r.Section, Detail: detail, Reason: reason}
			if reason == ErrExpired {
				e.NotBefore, e.NotAfter, e.Now = c.NotBefore, c.NotAfter, now
			}
			return e
		}
	}
	return nil
}

// CheckLeaf reports whether c, which must come from a parser, is of the profile of leaves and in date at now.
// It returns the first rule that refuses, and nil if none does. Signatures are not looked at.
func CheckLeaf(c *x509.Certificate, now time.Time) *Refusal { return LeafProfile().Check(c, now) }

// CheckMeshCA is CheckLeaf for mesh CAs.
func CheckMeshCA(c *x509.Certificate, now time.Time) *Refusal { return MeshCAProfile().Check(c, now) }

// CheckUnsignedRoot is CheckRoot before the root has its signature: for whoever is about to make it.
func CheckUnsignedRoot(c *x509.Certificate, now time.Time) *Refusal {
	return RootProfile().Check(c, now)
}

// CheckRoot reports whether c is of the profile of roots and in date at now, and, because a root vouches for itself,
// of its signature.
func CheckRoot(c *x509.Certificate, now time.Time) *Refusal {
	if r := CheckUnsignedRoot(c, now); r != nil {
		return r
	}
	return CheckSelfSigned(c)
}

// CheckSelfSigned reports whether a root signed itself.
func CheckSelfSigned(root *x509.Certificate) *Refusal {
	if err := root.CheckSignatureFrom(root); err != nil {
		return &Refusal{Certificate: "root", Rule: "self-signed", Section: "RFC 5280 §3.2",
			Detail: "its own key did not sign it: " + err.Error(), Reason: ErrUntrusted}
	}
	return nil
}

// The tables. Every rule sees a certificate that passed the rules above it.

var leafRules = slices.Concat(commonRules, []certRule{
	{Rule{"lifetime", "CA/Browser Forum BR §6.3.2"}, lifetimeAtMost(MaxLeafLifetime)},
	{Rule{"public-key", "RFC 5480 §2.1.1, RFC 8410 §3"}, leafKey},
	{Rule{"subject", "X509-SVID §2, RFC 5280 §4.1.2.6"}, subjectCommonNameAtMost},
	{Rule{"basic-constraints", "X509-SVID §4.1, RFC 5280 §4.2.1.9"}, exactly(oidBasicConstraints, true, "CA:FALSE", 0x30, 0x00)},
	{Rule{"key-usage", "X509-SVID §4.3, RFC 5280 §4.2.1.3"}, exactly(oidKeyUsage, true, "digitalSignature alone", 0x03, 0x02, 0x07, 0x80)},
	{Rule{"ext-key-usage", "X509-SVID §4.4, RFC 5280 §4.2.1.12"}, serverAndClientAuth},
	{Rule{"authority-key-id", "RFC 5280 §4.2.1.1"}, authorityKeyID},
	{Rule{"subject-alt-name", "X509-SVID §2, RFC 5280 §4.2.1.6"}, leafAltNames},
	{Rule{"extensions", "RFC 5280 §4.2"}, onlyExtensions(oidKeyUsage, OIDExtKeyUsage, oidBasicConstraints, oidSubjectKeyID, oidAuthorityKeyID, oidSubjectAltName)},
})

var meshCARules = slices.Concat(commonRules, []certRule{
	{Rule{"lifetime", "RFC 5280 §4.1.2.5"}, lifetimeAtMost(MaxMeshCALifetime)},
	{Rule{"public-key", "RFC 5480 §2.1.1"}, caKey},
	{Rule{"subject", "RFC 5280 §4.1.2.6"}, subjectNotEmpty},
	{Rule{"not-self-issued", "RFC 5280 §6.1"}, notSelfIssued},
	{Rule{"basic-constraints", "RFC 5280 §4.2.1.9"}, exactly(oidBasicConstraints, true, "CA:TRUE with path length 0", 0x30, 0x06, 0x01, 0x01, 0xff, 0x02, 0x01, 0x00)},
	{Rule{"key-usage", "X509-SVID §4.3, RFC 5280 §4.2.1.3"}, exactly(oidKeyUsage, true, "keyCertSign alone", 0x03, 0x02, 0x02, 0x04)},
	{Rule{"authority-key-id", "RFC 5280 §4.2.1.1"}, authorityKeyID},
	{Rule{"extensions", "RFC 5280 §4.2"}, onlyExtensions(oidKeyUsage, oidBasicConstraints, oidSubjectKeyID, oidAuthorityKeyID)},
})

var rootRules = slices.Concat(commonRules, []certRule{
	{Rule{"lifetime", "RFC 5280 §4.1.2.5"}, lifetimeAtMost(MaxRootLifetime)},
	{Rule{"public-key", "RFC 5480 §2.1.1"}, caKey},
	{Rule{"subject", "RFC 5280 §4.1.2.6"}, subjectNotEmpty},
	{Rule{"self-issued", "RFC 5280 §3.2"}, selfIssued},
	{Rule{"basic-constraints", "RFC 5280 §4.2.1.9"}, exactly(oidBasicConstraints, true, "CA:TRUE with path length 1", 0x30, 0x06, 0x01, 0x01, 0xff, 0x02, 0x01, 0x01)},
	{Rule{"key-usage", "RFC 5280 §4.2.1.3"}, exactly(oidKeyUsage, true, "keyCertSign alone", 0x03, 0x02, 0x02, 0x04)},
	{Rule{"authority-key-id", "RFC 5280 §4.2.1.1"}, ownAuthorityKeyID},
	{Rule{"extensions", "RFC 5280 §4.2"}, onlyExtensions(oidKeyUsage, oidBasicConstraints, oidSubjectKeyID, oidAuthorityKeyID)},
})

// commonRules hold for every certificate and are checked first, because the others rely
// on them: on a parsed certificate, and on a subject key id that names the key.
var commonRules = []certRule{
	{Rule{"parsed", "RFC 5280 §4.1"}, Parsed},
	{Rule{"version", "RFC 5280 §4.1.2.1"}, version3},
	{Rule{"serial-number", "RFC 5280 §4.1.2.2"}, SerialNumber},
	{Rule{"signature-algorithm", "RFC 5758 §3.2"}, signatureAlgorithm},
	{Rule{"encoding", "RFC 5280 §4.1, X.690 §10"}, Encoding},
	{Rule{"issuer", "RFC 5280 §4.1.2.4"}, issuerName},
	{Rule{"name-constraints", "RFC 5280 §4.2.1.10"}, noNameConstraints},
	{Rule{"key-encoding", "RFC 5280 §4.1.2.7"}, keyEncoding},
	{Rule{"subject-key-id", "RFC 7093 §2, RFC 5280 §4.2.1.2"}, subjectKeyID},
}

var dateRules = []certRule{
	{Rule{"not-yet-valid", "RFC 5280 §4.1.2.5"}, func(c *x509.Certificate, now time.Time) string {
		if now.Before(c.NotBefore) {
			return fmt.Sprintf("valid from %s, and it is %s here", c.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
		return ""
	}},
	{Rule{"expired", "RFC 5280 §4.1.2.5"}, func(c *x509.Certificate, now time.Time) string {
		if now.After(c.NotAfter) {
			return fmt.Sprintf("expired at %s, and it is %s here", c.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
		return ""
	}},
}

// Parsed wants a certificate that a parser made, and no huge one: the other rules print its names.
func Parsed(c *x509.Certificate, _ time.Time) string {
	switch {
	case c == nil || len(c.Raw) == 0 || c.SerialNumber == nil:
		return "it does not come from a parser"
	case len(c.Raw) > MaxCertificateBytes:
		return fmt.Sprintf("%d bytes, at most %d are allowed", len(c.Raw), MaxCertificateBytes)
	}
	return ""
}

func version3(c *x509.Certificate, _ time.Time) string {
	if c.Version != 3 {
		return fmt.Sprintf("version %d, want 3", c.Version)
	}
	return ""
}

// SerialNumber wants a positive integer of at most 20 octets, where the leading bit of
// the first is the sign.
func SerialNumber(c *x509.Certificate, _ time.Time) string {
	if c.SerialNumber.Sign() <= 0 {
		return "the serial number is not positive"
	}
	if bits := c.SerialNumber.BitLen(); bits > 20*8-1 {
		return fmt.Sprintf("the serial number has %d bits, at most %d fit 20 octets", bits, 20*8-1)
	}
	return ""
}

func signatureAlgorithm(c *x509.Certificate, _ time.Time) string {
	if c.SignatureAlgorithm != x509.ECDSAWithSHA256 {
		return fmt.Sprintf("signed with %v, want %v", c.SignatureAlgorithm, x509.ECDSAWithSHA256)
	}
	return ""
}

// ecdsaWithSHA256 is the one signature algorithm, encoded: no parameters, not even NULL.
var ecdsaWithSHA256 = []byte{0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02}

// Encoding wants what was parsed to encode to the same bytes. The parser is lenient: it
// skips unique identifiers, and does not look behind the last field, at the parameters
// of an algorithm, or for a default that is spelled out. Anything that it passes over
// and does not report cannot be in a certificate that this rule lets through. Names and
// the public key are compared with their own bytes here; other rules look at them.
func Encoding(c *x509.Certificate, _ time.Time) string {
	b := cryptobyte.NewBuilder(make([]byte, 0, len(c.Raw)+16)) // the builder moves what is long
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) { addSignedPart(b, c) })
		b.AddBytes(ecdsaWithSHA256)
		b.AddASN1BitString(c.Signature)
	})
	whole, err := b.Bytes()
	if err != nil {
		return "it cannot be encoded: " + err.Error()
	}
	if !bytes.Equal(whole, c.Raw) {
		return "it is not encoded as certificates are minted"
	}
	return ""
}

// addSignedPart writes the fields of a TBSCertificate (RFC 5280 §4.1).
func addSignedPart(b *cryptobyte.Builder, c *x509.Certificate) {
	if c.Version != 1 { // the default is left out
		b.AddASN1(cbasn1.Tag(0).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) { b.AddASN1Int64(int64(c.Version) - 1) })
	}
	b.AddASN1BigInt(c.SerialNumber)
	b.AddBytes(ecdsaWithSHA256)
	b.AddBytes(c.RawIssuer)
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		for _, t := range []time.Time{c.NotBefore.UTC(), c.NotAfter.UTC()} {
			if year := t.Year(); 1950 <= year && year < 2050 { // RFC 5280 §4.1.2.5
				b.AddASN1UTCTime(t)
			} else {
				b.AddASN1GeneralizedTime(t)
			}
		}
	})
	b.AddBytes(c.RawSubject)
	b.AddBytes(c.RawSubjectPublicKeyInfo)
	if len(c.Extensions) == 0 {
		return
	}
	b.AddASN1(cbasn1.Tag(3).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
			for _, ext := range c.Extensions {
				b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
					b.AddASN1ObjectIdentifier(ext.Id)
					if ext.Critical {
						b.AddASN1Boolean(true)
					}
					b.AddASN1OctetString(ext.Value)
				})
			}
		})
	})
}

func issuerName(c *x509.Certificate, _ time.Time) string {
	if len(c.Issuer.Names) == 0 {
		return "the issuer's name is empty"
	}
	if n := len(c.RawIssuer); n > maxNameBytes {
		return fmt.Sprintf("the issuer's name has %d bytes, at most %d are allowed", n, maxNameBytes)
	}
	return ""
}

func noNameConstraints(c *x509.Certificate, _ time.Time) string {
	if extensionOf(c, OIDNameConstraints) != nil {
		return "it has name constraints"
	}
	return ""
}

// keyEncoding wants the one encoding of the key that crypto/x509 writes: with another
// one the same key would have another key id, and slip past a ban.
func keyEncoding(c *x509.Certificate, _ time.Time) string {
	der, err := x509.MarshalPKIXPublicKey(c.PublicKey)
	if err != nil {
		return fmt.Sprintf("a public key of unknown algorithm %v", c.PublicKeyAlgorithm)
	}
	if !bytes.Equal(der, c.RawSubjectPublicKeyInfo) {
		return "the public key is not in its usual encoding"
	}
	return ""
}

func subjectKeyID(c *x509.Certificate, _ time.Time) string {
	ext := extensionOf(c, oidSubjectKeyID)
	if ext == nil {
		return "no subject key identifier"
	}
	want, err := SubjectKeyID(c.PublicKey)
	if err != nil {
		return "the subject key identifier of its key is unknown"
	}
	if !bytes.Equal(ext.Value, append([]byte{asn1.TagOctetString, byte(len(want))}, want...)) {
		return fmt.Sprintf("subject key identifier %x, want %x as its key has it", c.SubjectKeyId, want)
	}
	return ""
}

// authorityKeyID wants the key identifier alone: issuer and serial are for cross-signed
// certificates, which do not exist here.
func authorityKeyID(c *x509.Certificate, _ time.Time) string {
	ext := extensionOf(c, oidAuthorityKeyID)
	if ext == nil {
		return "no authority key identifier"
	}
	if !bytes.Equal(ext.Value, authorityKeyIDValue(c.AuthorityKeyId)) {
		return "the authority key identifier is not a key identifier of 20 bytes alone"
	}
	return ""
}

// ownAuthorityKeyID wants a root to name itself as its issuer, or nobody.
func ownAuthorityKeyID(c *x509.Certificate, _ time.Time) string {
	ext := extensionOf(c, oidAuthorityKeyID)
	if ext != nil && !bytes.Equal(ext.Value, authorityKeyIDValue(c.SubjectKeyId)) {
		return "its authority key identifier is not its own subject key identifier"
	}
	return ""
}

func authorityKeyIDValue(id []byte) []byte {
	if len(id) != 20 {
		return nil
	}
	return append([]byte{0x30, 22, 0x80, 20}, id...)
}

func lifetimeAtMost(most time.Duration) func(*x509.Certificate, time.Time) string {
	return func(c *x509.Certificate, _ time.Time) string {
		switch life := c.NotAfter.Sub(c.NotBefore); {
		case life <= 0:
			return "it ends before it begins"
		case life > most:
			return fmt.Sprintf("valid for %v, at most %v is allowed", life, most)
		}
		return ""
	}
}

func leafKey(c *x509.Certificate, now time.Time) string {
	if _, ok := c.PublicKey.(ed25519.PublicKey); ok {
		return ""
	}
	if caKey(c, now) != "" {
		return fmt.Sprintf("a %v key, want ECDSA P-256 or Ed25519", describeKey(c.PublicKey))
	}
	return ""
}

func caKey(c *x509.Certificate, _ time.Time) string {
	if key, ok := c.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		return fmt.Sprintf("a %v key, want ECDSA P-256", describeKey(c.PublicKey))
	}
	return ""
}

func describeKey(pub crypto.PublicKey) string {
	if key, ok := pub.(*ecdsa.PublicKey); ok {
		return "ECDSA " + key.Params().Name
	}
	return fmt.Sprintf("%T", pub)
}

func subjectCommonNameAtMost(c *x509.Certificate, _ time.Time) string {
	names := c.Subject.Names
	if len(names) > 1 || len(names) == 1 && !names[0].Type.Equal(oidCommonName) {
		return "the subject is neither empty nor one common name"
	}
	return subjectSize(c)
}

func subjectNotEmpty(c *x509.Certificate, _ time.Time) string {
	if len(c.Subject.Names) == 0 {
		return "the subject's name is empty"
	}
	return subjectSize(c)
}

func subjectSize(c *x509.Certificate) string {
	if n := len(c.RawSubject); n > maxNameBytes {
		return fmt.Sprintf("the subject's name has %d bytes, at most %d are allowed", n, maxNameBytes)
	}
	return ""
}

func selfIssued(c *x509.Certificate, _ time.Time) string {
	if !bytes.Equal(c.RawIssuer, c.RawSubject) {
		return "another name issued it"
	}
	return ""
}

func notSelfIssued(c *x509.Certificate, _ time.Time) string {
	if bytes.Equal(c.RawIssuer, c.RawSubject) {
		return "it has the name of its issuer"
	}
	return ""
}

func serverAndClientAuth(c *x509.Certificate, _ time.Time) string {
	ext := extensionOf(c, OIDExtKeyUsage)
	if ext == nil {
		return "no extended key usage"
	}
	if ext.Critical {
		return "the extended key usage is critical"
	}
	serverAuth := []byte{0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01}
	clientAuth := []byte{0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02}
	head := []byte{0x30, 20}
	if !bytes.Equal(ext.Value, slices.Concat(head, serverAuth, clientAuth)) &&
		!bytes.Equal(ext.Value, slices.Concat(head, clientAuth, serverAuth)) {
		return "the extended key usage is not exactly serverAuth and clientAuth"
	}
	return ""
}

// leafAltNames bounds the names. How many of them are URIs, and what they say, is no
// business of the chain: see FromCertificate of the public package.
func leafAltNames(c *x509.Certificate, _ time.Time) string {
	ext := extensionOf(c, oidSubjectAltName)
	if ext == nil {
		if len(c.Subject.Names) == 0 {
			return "neither a subject nor a subject alternative name"
		}
		return ""
	}
	if critical := len(c.Subject.Names) == 0; ext.Critical != critical {
		return fmt.Sprintf("the subject alternative name is critical: %v, want %v as the subject has it", ext.Critical, critical)
	}
	names, ok := AltNames(c)
	switch {
	case !ok || len(names) == 0:
		return "the subject alternative name is malformed"
	case len(names) > MaxAltNames:
		return fmt.Sprintf("%d subject alternative names, at most %d are allowed", len(names), MaxAltNames)
	}
	for _, name := range names {
		if name.IsCompound || name.Tag != NameURI && name.Tag != nameDNS && name.Tag != nameIP {
			return fmt.Sprintf("a subject alternative name of type %d, want URI, DNS name or IP address", name.Tag)
		}
	}
	return ""
}

// exactly wants the extension with these bytes: a template has one encoding.
func exactly(id asn1.ObjectIdentifier, critical bool, meaning string, value ...byte) func(*x509.Certificate, time.Time) string {
	return func(c *x509.Certificate, _ time.Time) string {
		ext := extensionOf(c, id)
		switch {
		case ext == nil:
			return "the extension is missing, want " + meaning
		case ext.Critical != critical:
			return fmt.Sprintf("the extension is critical: %v, want %v", ext.Critical, critical)
		case !bytes.Equal(ext.Value, value):
			return "want exactly " + meaning
		}
		return ""
	}
}

// onlyExtensions refuses every other extension, critical or not.
func onlyExtensions(known ...asn1.ObjectIdentifier) func(*x509.Certificate, time.Time) string {
	return func(c *x509.Certificate, _ time.Time) string {
		for _, ext := range c.Extensions {
			if !slices.ContainsFunc(known, ext.Id.Equal) {
				return fmt.Sprintf("unknown extension %v (critical: %v)", ext.Id, ext.Critical)
			}
		}
		return ""
	}
}
