package manifest

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/internal/document"
)

// Advice is something that a manifest allows and that may surprise later.
type Advice struct {
	Field string // what it is about
	What  string
	Do    string
	// Warning says that something does not work already.
	Warning bool
}

// Advise returns what the writer of m should know before it is set at the time now. A
// manifest is valid with all of it: whether a root is in date counts when it is used.
func (m *Manifest) Advise(now time.Time) []Advice {
	out := m.adviseOnRoots(now)
	people, keepers, k := len(m.Seed.People()), len(m.Seed.Keepers()), m.Seed.Threshold
	if keepers == 0 {
		out = append(out, Advice{Field: "seed.owners", What: fmt.Sprintf("there is no keeper: whenever every coordinator was "+
			"down at once, the cluster waits for %d of its %d seed share owners", k, people),
			Do: "add an owner with a keeper, or have the owners at hand"})
	}
	if people > 1 && k == people && keepers == 0 {
		out = append(out, Advice{Field: "seed.threshold", What: fmt.Sprintf("all %d shares are needed: one that is lost "+
			"loses the cluster", people), Do: "have more people than the threshold"})
	}
	if n := len(m.Signers.Keys); n > 1 && m.Signers.Threshold == n {
		out = append(out, Advice{Field: "signers.threshold", What: fmt.Sprintf("all %d keys are needed: without one of them "+
			"nobody can change the manifest any more", n), Do: "have more keys than the threshold"})
	}
	return out
}

// adviseOnRoots names the roots of proofs.x509 by which nobody can join at the time now.
func (m *Manifest) adviseOnRoots(now time.Time) []Advice {
	if m.Proofs.X509 == nil {
		return nil
	}
	var out []Advice
	all := len(m.Proofs.X509.RootsDER)
	for i, der := range m.Proofs.X509.RootsDER {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			continue // Parse read the same bytes
		}
		a := Advice{Field: "proofs.x509.roots_pem", Warning: true}
		which := fmt.Sprintf("certificate %d of %d, %s, ", i+1, all, document.Shown(c.Subject.String()))
		switch {
		case now.After(c.NotAfter):
			a.What = which + "ended at " + c.NotAfter.UTC().Format(time.RFC3339) + ": nobody joins by it any more"
			a.Do = "put the root that took its place beside it, and take it out"
		case now.Before(c.NotBefore):
			a.What = which + "begins at " + c.NotBefore.UTC().Format(time.RFC3339) + ": until then nobody joins by it"
			a.Do = "keep the root before it until then, or look at this machine's clock"
		default:
			continue
		}
		out = append(out, a)
	}
	if len(out) == all {
		out[0].What += "; none of the roots is in date"
	}
	return out
}
