package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/identity"
)

// OperatorRoots are the trust anchors of a PKI that an operator runs: cert-manager, a
// corporate CA. Chains to them are verified as RFC 5280 says, and not by the profile of
// the cluster's own certificates: they were minted by somebody else. Immutable.
//
// The worth of such a chain is the caller's to know. A cluster's own edges take none.
type OperatorRoots struct {
	certs []*x509.Certificate // sorted by DER, distinct
	pool  *x509.CertPool
}

// NewOperatorRoots returns the roots certs, 1 to 64 certificates of CAs.
// They may be intermediates, and out of date: that shows when they are used.
func NewOperatorRoots(certs []*x509.Certificate) (*OperatorRoots, error) {
	switch n := len(certs); {
	case n == 0:
		return nil, errors.New("identity: there is no root: without one nobody is trusted; add the CA's certificate")
	case n > identity.MaxOperatorRoots:
		return nil, fmt.Errorf("identity: %d roots, at most %d are allowed: remove those that have expired", n, identity.MaxOperatorRoots)
	}
	for i, c := range certs {
		if c == nil || len(c.Raw) == 0 {
			return nil, fmt.Errorf("identity: root %d does not come from a parser", i+1)
		}
		if !c.BasicConstraintsValid || !c.IsCA {
			return nil, fmt.Errorf("identity: root %d, of %s, is not a CA's certificate: give that of the CA which signs", i+1, identity.Clip(c.Subject.String()))
		}
	}
	r := &OperatorRoots{
		certs: distinct(certs, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) }),
		pool:  x509.NewCertPool(),
	}
	for _, c := range r.certs {
		r.pool.AddCert(c)
	}
	return r, nil
}

// Certificates returns a copy of the list of roots, sorted by their DER.
func (r *OperatorRoots) Certificates() []*x509.Certificate {
	if r == nil {
		return nil
	}
	return slices.Clone(r.certs)
}

// NewOperatorBundle returns a bundle for a program that runs on certificates of an
// operator's PKI, without a coordinator: any chain to one of roots is genuine, as a
// server and as a client, and its identity is its one URI SAN of cluster. It has no mesh
// keys and no bans: the issuer of its certificates decides who is who.
func NewOperatorBundle(cluster string, roots []*x509.Certificate) (*Bundle, error) {
	if err := CheckCluster(cluster); err != nil {
		return nil, fmt.Errorf("identity: the cluster of a bundle: %w", err)
	}
	r, err := NewOperatorRoots(roots)
	if err != nil {
		return nil, err
	}
	b := &Bundle{cluster: cluster, roots: r.certs, operator: r}
	b.fingerprint = b.hash()
	return b, nil
}

// operatorPath is one run of OperatorRoots.Verify.
type operatorPath struct {
	chain  []*x509.Certificate
	usages []x509.ExtKeyUsage
	roots  *OperatorRoots
}

// issued returns the certificates of the chain that somebody else vouches for. A trust
// anchor says nothing but its name and key (RFC 5280 §6.1.1), and roots of
// old PKIs have what no CA issues today.
func (p *operatorPath) issued() iter.Seq2[int, *x509.Certificate] {
	return func(yield func(int, *x509.Certificate) bool) {
		for i, c := range p.chain {
			if !slices.ContainsFunc(p.roots.certs, c.Equal) && !yield(i, c) {
				return
			}
		}
	}
}

// operatorRule is a rule about a chain. check returns "" or what is wrong.
type operatorRule struct {
	rule
	certificate string
	check       func(*operatorPath) string
}

// newerRules are those that came after a release which took what they refuse.
var newerRules = []string{"serial-number", "names", "name-constraints", "critical-usages"}

// pathRule and dateRule are the rows that crypto/x509 checks.
var (
	pathRule = rule{"path", "RFC 5280 §6.1"}
	dateRule = rule{"in-date", "RFC 5280 §4.1.2.5"}
)

// allOperatorRules lists the rules of OperatorRoots.Verify, in order.
func allOperatorRules() []rule {
	var rules []rule
	for _, r := range operatorRules {
		rules = append(rules, r.rule)
	}
	return append(rules, dateRule, pathRule)
}

// operatorRules come before the path is built: they cost nothing, and bound what
// building it costs.
var operatorRules = []operatorRule{
	{rule{"chain-length", "RFC 5280 §6.1"}, "chain", func(p *operatorPath) string {
		if n := len(p.chain); n < 1 || n > identity.MaxOperatorChain {
			return fmt.Sprintf("%d certificates, want 1 to %d: the leaf, then its issuers", n, identity.MaxOperatorChain)
		}
		return ""
	}},
	{rule{"parsed", "RFC 5280 §4.1"}, "chain", func(p *operatorPath) string {
		for i, c := range p.chain {
			if detail := identity.Parsed(c, time.Time{}); detail != "" {
				return fmt.Sprintf("certificate %d: %s", i+1, detail)
			}
		}
		return ""
	}},
	{rule{"serial-number", "RFC 5280 §4.1.2.2"}, "chain", func(p *operatorPath) string {
		for i, c := range p.issued() {
			if detail := identity.SerialNumber(c, time.Time{}); detail != "" {
				return fmt.Sprintf("certificate %d: %s", i+1, detail)
			}
		}
		return ""
	}},
	{rule{"names", "RFC 5280 §4.1.2.4"}, "chain", func(p *operatorPath) string {
		for i, c := range p.issued() {
			if emptyName(c.RawIssuer) {
				return fmt.Sprintf("certificate %d does not say who issued it", i+1)
			}
			if i > 0 && emptyName(c.RawSubject) { // §4.1.2.6
				return fmt.Sprintf("certificate %d is of a CA without a name", i+1)
			}
		}
		return ""
	}},
	{rule{"name-constraints", "RFC 5280 §4.2.1.10"}, "chain", func(p *operatorPath) string {
		for i, c := range p.issued() {
			at := slices.IndexFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(identity.OIDNameConstraints) })
			switch {
			case at < 0:
			case i == 0:
				return "the leaf has name constraints, which only a CA can have"
			case !c.Extensions[at].Critical:
				return fmt.Sprintf("the name constraints of certificate %d are not critical: some would pass over them", i+1)
			}
		}
		return ""
	}},
	{rule{"critical-usages", "RFC 5280 §4.2"}, "chain", func(p *operatorPath) string {
		for i, c := range p.issued() {
			if len(c.UnknownExtKeyUsage) > 0 && slices.ContainsFunc(c.Extensions, func(e pkix.Extension) bool { return e.Critical && e.Id.Equal(identity.OIDExtKeyUsage) }) {
				return fmt.Sprintf("the extended key usages of certificate %d are critical, and %v among them is not known here", i+1, c.UnknownExtKeyUsage[0])
			}
		}
		return ""
	}},
	{rule{"in-order", "RFC 8446 §4.4.2"}, "chain", func(p *operatorPath) string {
		for i, c := range p.chain[1:] {
			if !bytes.Equal(p.chain[i].RawIssuer, c.RawSubject) {
				return fmt.Sprintf("certificate %d is not of the issuer of certificate %d", i+2, i+1)
			}
			// Of several of one CA, each could come before and after each other: a peer
			// would choose how many signatures it takes to find out.
			if slices.ContainsFunc(p.chain[:i+1], func(o *x509.Certificate) bool { return sameHolder(o, c) }) {
				return fmt.Sprintf("certificate %d is the second one of its CA: send one of each", i+2)
			}
		}
		return ""
	}},
	{rule{"not-a-ca", "X509-SVID §4.1"}, "leaf", func(p *operatorPath) string {
		if c := p.chain[0]; c.IsCA || c.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
			return "it may sign certificates or revocation lists: prove with a certificate of your own, not with the CA's"
		}
		return ""
	}},
	{rule{"key-usage", "X509-SVID §4.3"}, "leaf", func(p *operatorPath) string {
		if p.chain[0].KeyUsage&x509.KeyUsageDigitalSignature == 0 {
			return "its key usage does not hold digitalSignature"
		}
		return ""
	}},
	{rule{"extended-key-usage", "RFC 5280 §4.2.1.12"}, "leaf", func(p *operatorPath) string {
		// None at all means any, says the RFC. Then every web server of the same PKI
		// could prove itself here, so it has to be said.
		for _, u := range p.usages {
			if !slices.Contains(p.chain[0].ExtKeyUsage, u) {
				return fmt.Sprintf("its extended key usages do not hold %s", usageName(u))
			}
		}
		return ""
	}},
	{rule{"public-key", "RFC 8446 §4.2.3"}, "chain", func(p *operatorPath) string {
		for i, c := range p.chain {
			if detail := checkOperatorKey(c.PublicKey); detail != "" {
				return fmt.Sprintf("certificate %d has %s", i+1, detail)
			}
		}
		return ""
	}},
}

// emptyName reports whether a name in DER is the empty sequence.
func emptyName(raw []byte) bool { return bytes.Equal(raw, []byte{0x30, 0}) }

// sameHolder reports whether two certificates are for one name and key.
func sameHolder(a, b *x509.Certificate) bool {
	return bytes.Equal(a.RawSubject, b.RawSubject) && bytes.Equal(a.RawSubjectPublicKeyInfo, b.RawSubjectPublicKeyInfo)
}

func checkOperatorKey(pub any) string {
	switch key := pub.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() || key.Curve == elliptic.P384() || key.Curve == elliptic.P521() {
			return ""
		}
	case ed25519.PublicKey:
		return ""
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < identity.MinRSABits || n > identity.MaxRSABits {
			return fmt.Sprintf("an RSA key of %d bits, want %d to %d", n, identity.MinRSABits, identity.MaxRSABits)
		}
		return ""
	}
	return "a key of another type than ECDSA on a NIST curve, Ed25519 and RSA"
}

func usageName(u x509.ExtKeyUsage) string {
	switch u {
	case x509.ExtKeyUsageServerAuth:
		return "serverAuth"
	case x509.ExtKeyUsageClientAuth:
		return "clientAuth"
	}
	return fmt.Sprintf("usage %d", u)
}

// Verify decides at the time now whether chain leads to one of the roots, for all of
// usages. It is the leaf, then its issuers in order; the root may be left out.
//
// Errors: [*ChainError], with the first rule that refused.
func (r *OperatorRoots) Verify(chain []*x509.Certificate, now time.Time, usages ...x509.ExtKeyUsage) error {
	_, err := r.verify(chain, now, usages, false)
	return err
}

// VerifyAccepted is [OperatorRoots.Verify] for a chain that is in use already: what
// breaks a rule that came after a release which took such chains is returned as newer,
// and is no error. A program that started with it yesterday starts with it today, and
// says so; nobody else has to believe it.
func (r *OperatorRoots) VerifyAccepted(chain []*x509.Certificate, now time.Time, usages ...x509.ExtKeyUsage) (newer *ChainError, err error) {
	return r.verify(chain, now, usages, true)
}

func (r *OperatorRoots) verify(chain []*x509.Certificate, now time.Time, usages []x509.ExtKeyUsage, accepted bool) (newer *ChainError, err error) {
	if r == nil {
		return nil, &ChainError{Certificate: "chain", Rule: pathRule.Name, Section: pathRule.Section, Detail: "there are no roots", Reason: ErrUntrusted}
	}
	p := &operatorPath{chain, usages, r}
	for _, rule := range operatorRules {
		detail := rule.check(p)
		if detail == "" {
			continue
		}
		wrong := &ChainError{Certificate: rule.certificate, Rule: rule.Name, Section: rule.Section, Detail: detail, Reason: ErrProfile}
		if !accepted || !slices.Contains(newerRules, rule.Name) {
			return newer, wrong
		}
		if newer == nil {
			newer = wrong
		}
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	paths, err := chain[0].Verify(x509.VerifyOptions{
		Roots: r.pool, Intermediates: between, CurrentTime: now,
		// Every one of usages has to hold, and crypto/x509 is content with one.
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return newer, r.pathError(chain, err, now)
	}
	for _, path := range paths {
		if usable(path, usages) {
			return newer, nil
		}
	}
	return newer, &ChainError{Certificate: "chain", Rule: pathRule.Name, Section: pathRule.Section, Reason: ErrProfile,
		Detail: "an issuer's extended key usages exclude one that is needed"}
}

// usable reports whether no certificate of path excludes one of usages (RFC 5280
// §4.2.1.12; that it holds for those below is custom, and what crypto/x509 does).
func usable(path []*x509.Certificate, usages []x509.ExtKeyUsage) bool {
	for _, c := range path {
		if len(c.ExtKeyUsage) == 0 && len(c.UnknownExtKeyUsage) == 0 || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) {
			continue
		}
		for _, u := range usages {
			if !slices.Contains(c.ExtKeyUsage, u) {
				return false
			}
		}
	}
	return true
}

// missing says which issuer chain lacks: its certificates stand in order, each behind
// the one that it issued, and no root issued the last one.
func (r *OperatorRoots) missing(chain []*x509.Certificate) string {
	last := chain[len(chain)-1]
	issuer := identity.Clip(last.Issuer.String())
	if len(last.AuthorityKeyId) > 0 {
		issuer += fmt.Sprintf(" with key %x", last.AuthorityKeyId[:min(len(last.AuthorityKeyId), 32)])
	}
	which := fmt.Sprintf("certificate %d, %s", len(chain), identity.Clip(last.Subject.String()))
	switch {
	case bytes.Equal(last.RawIssuer, last.RawSubject):
		return which + ", issued itself, and is none of the CA certificates that are believed"
	case slices.ContainsFunc(r.certs, func(c *x509.Certificate) bool { return bytes.Equal(c.RawSubject, last.RawIssuer) }):
		return which + ", was issued by " + issuer + ": of that name there is a CA certificate here, and it has another key or must not issue"
	}
	return which + ", was issued by " + issuer + ", whose certificate is missing: issuers belong into the certificate's file, behind the leaf, " +
		"and the root among the CA certificates"
}

func (r *OperatorRoots) pathError(chain []*x509.Certificate, err error, now time.Time) *ChainError {
	e := &ChainError{Certificate: "chain", Rule: pathRule.Name, Section: pathRule.Section, Reason: ErrUntrusted, Detail: identity.Clip(err.Error())}
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	switch {
	case unknown:
		e.Detail = r.missing(chain)
	case ok && invalid.Reason == x509.Expired: // before its time too
		e.Rule, e.Section, e.Reason = dateRule.Name, dateRule.Section, ErrExpired
		e.NotBefore, e.NotAfter, e.Now = invalid.Cert.NotBefore, invalid.Cert.NotAfter, now
		e.Detail = fmt.Sprintf("%s is valid from %s to %s, and it is %s here", identity.Clip(invalid.Cert.Subject.String()),
			e.NotBefore.UTC().Format(time.RFC3339), e.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case ok:
		e.Reason = ErrProfile
	}
	return e
}
