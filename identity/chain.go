package identity

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/identity"
)

// The reasons of a [ChainError], by what to do about them: each matches its own.
var (
	// ErrUntrusted: no root or mesh CA of the bundle vouches for the chain.
	ErrUntrusted = identity.ErrUntrusted
	// ErrExpired: vouched for, and past or before its time.
	ErrExpired = identity.ErrExpired
	// ErrBanned: vouched for, and its identity or a key in it is banned.
	ErrBanned = errors.New("certificate is banned")
	// ErrProfile: not a certificate that a cluster mints.
	ErrProfile = identity.ErrProfile
)

// ChainError says which rule refused a certificate or a chain.
type ChainError struct {
	Certificate string // "leaf", "mesh CA", "root" or "chain"
	Rule        string // stable: a metric label
	Section     string // the standard's section that the rule comes from
	Detail      string // what was found; holds names that a peer chose, quoted and clipped
	Reason      error  // ErrUntrusted, ErrExpired, ErrBanned or ErrProfile

	// Presented is the cluster that the leaf names, if that is another than the bundle's,
	// and Cluster the bundle's; else both are blank. Nothing proves the name where the
	// chain is not vouched for: it is for telling people which cluster answers there.
	Presented, Cluster string

	// For ErrExpired: the certificate's bounds, and the time it was checked against,
	// because it may be the clock that is wrong.
	NotBefore, NotAfter, Now time.Time
}

func (e *ChainError) Error() string {
	do := ""
	switch e.Reason {
	case ErrUntrusted:
		do = "check that both sides are of one cluster and have its current trust bundle"
	case ErrExpired:
		do = "check the clocks of both sides, then renew the certificate"
	case ErrBanned:
		do = "it was banned from the cluster: lift the ban, or join anew with another key"
	case ErrProfile:
		do = "use a certificate that the cluster's own CA issued"
	}
	return fmt.Sprintf("%s refused by rule %s (%s): %s: %s", e.Certificate, e.Rule, e.Section, e.Detail, do)
}

// Is matches [ErrUntrusted], [ErrExpired], [ErrBanned] and [ErrProfile] by reason.
func (e *ChainError) Is(target error) bool { return e.Reason != nil && target == e.Reason }

// path is one run of [Bundle.Verify].
type path struct {
	bundle *Bundle
	chain  []*x509.Certificate

	// meshCA is the second of chain or, if recalled, the bundle's own copy of the same
	// bytes, whose profile and signature were checked before. Set by recall.
	meshCA   *x509.Certificate
	recalled bool

	// roots are those of the bundle that the mesh CA names as its issuer: several if a
	// root was issued again for the same key. Equal subject key ids mean equal keys, so
	// that one of them checks the signature for all. Set by anchorRules.
	roots   []*x509.Certificate
	retired bool // they are retired ones; set by anchorRules

	id    ID // set by identify
	idErr error
}

func (p *path) leaf() *x509.Certificate { return p.chain[0] }
func (p *path) mesh() *x509.Certificate { return p.meshCA }

// recall looks the mesh CA up among those that the bundle checked before.
func (p *path) recall() {
	p.meshCA = p.chain[1]
	if p.bundle == nil {
		return
	}
	if c := p.bundle.checked.find(p.meshCA.Raw); c != nil {
		p.meshCA, p.recalled = c, true
	}
}

// rule is one row of a table of checks: what it is called (stable: a metric label), and where it is written.
type rule struct{ Name, Section string }

// chainRule is a rule about a whole chain. check returns "" or what is wrong.
type chainRule struct {
	rule
	certificate string
	reason      error
	check       func(*path) string
}

// allChainRules lists the rules of [Bundle.Verify] that are not of a profile, in order.
func allChainRules() []rule {
	var rules []rule
	for _, table := range [][]chainRule{formRules, anchorRules, trustRules, acceptRules} {
		for _, r := range table {
			rules = append(rules, r.rule)
		}
	}
	return rules
}

func (p *path) run(rules []chainRule) error {
	for _, r := range rules {
		if detail := r.check(p); detail != "" {
			return &ChainError{Certificate: r.certificate, Rule: r.Name, Section: r.Section, Detail: detail, Reason: r.reason}
		}
	}
	return nil
}

// formRules come first: the others rely on certificates being there, and on their size.
var formRules = []chainRule{
	{rule{"chain-length", "RFC 5280 §6.1"}, "chain", ErrProfile, func(p *path) string {
		if n := len(p.chain); n != 2 && n != 3 {
			return fmt.Sprintf("%d certificates, want leaf, mesh CA and at most the root", n)
		}
		return ""
	}},
	{rule{"parsed", "RFC 5280 §4.1"}, "chain", ErrProfile, func(p *path) string {
		// The rules below print names, and these may be as long as a certificate.
		for i, c := range p.chain {
			if detail := identity.Parsed(c, time.Time{}); detail != "" {
				return fmt.Sprintf("certificate %d: %s", i, detail)
			}
		}
		return ""
	}},
}

// anchorRules cost nothing, and tell a chain of strangers apart from a bad one of ours.
var anchorRules = []chainRule{
	{rule{"root-known", "RFC 5280 §6.1.1 (d)"}, "mesh CA", ErrUntrusted, func(p *path) string {
		issuers := func(roots []*x509.Certificate) {
			for _, root := range roots {
				if bytes.Equal(p.mesh().RawIssuer, root.RawSubject) && bytes.Equal(p.mesh().AuthorityKeyId, root.SubjectKeyId) {
					p.roots = append(p.roots, root)
				}
			}
		}
		issuers(p.bundle.Roots())
		if len(p.roots) == 0 {
			issuers(p.bundle.RetiredRoots())
			p.retired = len(p.roots) > 0
		}
		if len(p.roots) == 0 {
			return fmt.Sprintf("issued by %s, which is no root of the trust bundle", identity.Clip(p.mesh().Issuer.String()))
		}
		return ""
	}},
	{rule{"root-is-ours", "RFC 5280 §6.1.1 (d)"}, "root", ErrUntrusted, func(p *path) string {
		if len(p.chain) == 3 && !slices.ContainsFunc(p.roots, p.chain[2].Equal) {
			return fmt.Sprintf("root %s is not the one of the trust bundle", identity.Clip(p.chain[2].Subject.String()))
		}
		return ""
	}},
}

// trustRules check the links from the leaf to the root.
var trustRules = []chainRule{
	{rule{"issuer-name", "RFC 5280 §6.1.3 (a)(4)"}, "leaf", ErrUntrusted, func(p *path) string {
		if leaf, mesh := p.leaf(), p.mesh(); !bytes.Equal(leaf.RawIssuer, mesh.RawSubject) {
			return fmt.Sprintf("issued by %s, and the next certificate is of %s", identity.Clip(leaf.Issuer.String()), identity.Clip(mesh.Subject.String()))
		}
		return ""
	}},
	{rule{"issuer-key-id", "RFC 5280 §4.2.1.1"}, "leaf", ErrUntrusted, func(p *path) string {
		if leaf, mesh := p.leaf(), p.mesh(); !bytes.Equal(leaf.AuthorityKeyId, mesh.SubjectKeyId) {
			return fmt.Sprintf("issued by key %x, and the next certificate is of key %x", leaf.AuthorityKeyId, mesh.SubjectKeyId)
		}
		return ""
	}},
	{rule{"mesh-ca-signature", "RFC 5280 §6.1.3 (a)(1)"}, "mesh CA", ErrUntrusted, func(p *path) string {
		if p.recalled {
			return "" // by the same roots, because a bundle has no others
		}
		return signedBy(p.mesh(), p.roots[0])
	}},
	{rule{"leaf-signature", "RFC 5280 §6.1.3 (a)(1)"}, "leaf", ErrUntrusted, func(p *path) string {
		return signedBy(p.leaf(), p.mesh())
	}},
}

// acceptRules hold what the cluster says about keys and identities that are genuine.
var acceptRules = []chainRule{
	{rule{"banned-key", "RFC 5280 §6.1.3 (a)(3)"}, "chain", ErrBanned, func(p *path) string {
		for _, c := range []*x509.Certificate{p.leaf(), p.mesh(), p.roots[0]} {
			if key := KeyOf(c); p.bundle.isBannedKey[key] {
				return "key " + key.String() + " is banned"
			}
		}
		return ""
	}},
	{rule{"banned-id", "RFC 5280 §6.1.3 (a)(3)"}, "leaf", ErrBanned, func(p *path) string {
		if p.bundle.isBannedID[p.id] {
			return "identity " + identity.Clip(p.id.String()) + " is banned"
		}
		return ""
	}},
	{rule{"root-retired", "RFC 5280 §6.2"}, "root", ErrUntrusted, func(p *path) string {
		// A thief who kept the old keys can mint any identity until the last honest one under
		// them has ended. It must not be one that decides for others.
		if kind := p.id.Kind(); p.retired && decides(kind) {
			return fmt.Sprintf("another root took its place, and it vouches for no identity of kind %s any more: log in again", kind)
		}
		return ""
	}},
	{rule{"mesh-ca-accepted", "RFC 5280 §6.2"}, "mesh CA", ErrUntrusted, func(p *path) string {
		// Coordinators make new mesh keys before any bundle can list them.
		if p.id.Kind() == Coordinator || p.bundle.isMesh[KeyOf(p.mesh())] {
			return ""
		}
		return "mesh CA key " + KeyOf(p.mesh()).String() + " is not accepted by the trust bundle"
	}},
	{rule{"voucher", "docs/explanation/workloads.md"}, "leaf", ErrProfile, func(p *path) string {
		if p.id.Kind() != Workload {
			return ""
		}
		if _, _, err := voucherOf(p.leaf(), p.id); err != nil {
			return err.Error()
		}
		return ""
	}},
	{rule{"voucher-banned", "docs/explanation/workloads.md"}, "leaf", ErrBanned, func(p *path) string {
		if p.id.Kind() != Workload {
			return ""
		}
		if id, key, _ := voucherOf(p.leaf(), p.id); p.bundle.Banned(id, key) {
			return "member " + identity.Clip(id.String()) + ", which vouches for it, is banned"
		}
		return ""
	}},
}

func signedBy(child, issuer *x509.Certificate) string {
	if err := child.CheckSignatureFrom(issuer); err != nil {
		return "its issuer did not sign it: " + err.Error()
	}
	return ""
}

// identify reads the leaf's identity. One of another cluster counts as none.
func (p *path) identify() {
	p.id, p.idErr = FromCertificate(p.leaf())
	if p.idErr == nil && p.id.Cluster() != p.bundle.cluster {
		p.idErr = &SANError{Reason: sanForeign, Count: 1, URI: p.id.String(), Cluster: p.bundle.cluster}
		p.id = ID{}
	}
}

// checkDates wants leaf, mesh CA and one of the matching roots in date.
func (p *path) checkDates(now time.Time) error {
	if r := identity.LeafProfile().CheckDates(p.leaf(), now); r != nil {
		return (*ChainError)(r)
	}
	if r := identity.MeshCAProfile().CheckDates(p.mesh(), now); r != nil {
		return (*ChainError)(r)
	}
	var first *ChainError
	for _, root := range p.roots {
		r := identity.RootProfile().CheckDates(root, now)
		if r == nil {
			return nil
		}
		if first == nil {
			first = (*ChainError)(r)
		}
	}
	return first
}
