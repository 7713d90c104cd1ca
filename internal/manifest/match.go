package manifest

import (
	"github.com/fealty-io/fealty/identity"
)

// A Match is an entry that admits a candidate.
type Match struct {
	Entry    *Entry
	Selector string // the candidate's selector that matched, in canonical form

	// Name is the member's name: what the * of the pattern captured, or the
	// entry's own name where the pattern has none. It is empty if Token: then
	// the token's name decides, and the caller generates one where it has none.
	// A candidate never chooses.
	Name  string
	Token bool
}

// patternRef is a pattern and where it stands.
type patternRef struct {
	pattern Pattern
	entry   int // index in Manifest.Admit
}

func (m *Manifest) index() {
	m.exact = make(map[string]patternRef)
	for i := range m.Admit {
		for _, p := range m.Admit[i].Match {
			ref := patternRef{pattern: p, entry: i}
			if p.IsGlob() {
				m.globs = append(m.globs, ref)
			} else {
				m.exact[p.text] = ref
			}
		}
	}
}

// Match returns the entry of kind that admits a candidate who proved selectors.
// One selector is enough. A pattern without a * goes before one with a *, and
// otherwise the earlier entry before the later, so that a pool and the exception
// from it may stand in any order. A * matches exactly what can be a name:
// letters, digits, dots, hyphens and underscores, at most 128 of them.
func (m *Manifest) Match(kind identity.Kind, selectors []string) (Match, bool) {
	return m.match(kind, canonicalSelectors(selectors))
}

func (m *Manifest) match(kind identity.Kind, selectors []string) (Match, bool) {
	var best Match
	bestEntry := len(m.Admit)
	for _, s := range selectors {
		ref, ok := m.exact[s]
		if !ok || ref.entry >= bestEntry || m.Admit[ref.entry].Kind != kind {
			continue
		}
		bestEntry = ref.entry
		best = Match{Entry: &m.Admit[ref.entry], Selector: s, Token: ref.pattern.IsToken()}
		if !best.Token {
			best.Name = best.Entry.Name
		}
	}
	if best.Entry != nil {
		return best, true
	}
	for _, ref := range m.globs {
		if m.Admit[ref.entry].Kind != kind {
			continue
		}
		for _, s := range selectors {
			if name, ok := ref.pattern.Capture(s); ok && IsName(name) {
				return Match{Entry: &m.Admit[ref.entry], Selector: s, Name: name}, true
			}
		}
	}
	return Match{}, false
}

// KindsFor returns the kinds as which a candidate who proved selectors is
// admitted, in the order of [Kinds]; empty if no entry matches.
func (m *Manifest) KindsFor(selectors []string) []identity.Kind {
	var kinds []identity.Kind
	selectors = canonicalSelectors(selectors)
	for _, k := range Kinds() {
		if _, ok := m.match(k, selectors); ok {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func canonicalSelectors(selectors []string) []string {
	out := make([]string, len(selectors))
	for i, s := range selectors {
		out[i] = canonicalSelector(s)
	}
	return out
}
