package manifest

import (
	"slices"

	"github.com/fealty-io/fealty/internal/pki/pemfile"
)

// Long is the one of [LaterFields] that each manifest may have anew: an earlier release stored the one
// before it whole, however long it is.
const Long = "a length of more than 511 KiB"

// later are the fields that an earlier release cannot read, by the names that the
// reference gives them: to it they are unknown, and the whole manifest is refused. A new
// field gets a row here, and stays as long as releases without it may be in use.
var later = [...]struct {
	name string
	has  func(m *Manifest) bool
}{
	{"admit.labels", func(m *Manifest) bool {
		return slices.ContainsFunc(m.Admit, func(e Entry) bool { return len(e.Labels) > 0 })
	}},
	{"baseline", func(m *Manifest) bool { return m.Baseline.stated }},
	{"baseline.data", func(m *Manifest) bool { return m.Baseline.stated }},
	{Long, func(m *Manifest) bool { return len(m.raw) > LongBytes }},
	// It reads blocks alone, and each once; this release what people put around them too.
	{"proofs.x509.roots_pem with text between its certificates, or one twice", func(m *Manifest) bool {
		return m.Proofs.X509 != nil && !pemfile.Plain([]byte(m.Proofs.X509.RootsPEM))
	}},
	{"workloads", func(m *Manifest) bool { return m.TokenIssuer != "" }},
	{"workloads.token_issuer", func(m *Manifest) bool { return m.TokenIssuer != "" }},
}

// LaterFields returns the names of the fields that this release reads and an earlier one
// may not: what a coordinator tells the others of itself.
func LaterFields() []string {
	out := make([]string, len(later))
	for i, f := range later {
		out[i] = f.name
	}
	return out
}

// LaterFields returns those of [LaterFields] that m has.
func (m *Manifest) LaterFields() []string {
	var out []string
	for _, f := range later {
		if f.has(m) {
			out = append(out, f.name)
		}
	}
	return out
}
