package manifest

import "fmt"

// Advice is something that a manifest allows and that may surprise later.
type Advice struct {
	Field string // what it is about
	What  string
	Do    string
}

// Advise returns what the writer of m should know before it is set. A manifest is
// valid with all of it.
func (m *Manifest) Advise() []Advice {
	var out []Advice
	people, keepers, k := len(m.Seed.People()), len(m.Seed.Keepers()), m.Seed.Threshold
	if keepers == 0 {
		out = append(out, Advice{"seed.owners", fmt.Sprintf("there is no keeper: whenever every coordinator was "+
			"down at once, the cluster waits for %d of its %d seed share owners", k, people),
			"add an owner with a keeper, or have the owners at hand"})
	}
	if people > 1 && k == people && keepers == 0 {
		out = append(out, Advice{"seed.threshold", fmt.Sprintf("all %d shares are needed: one that is lost "+
			"loses the cluster", people), "have more people than the threshold"})
	}
	if n := len(m.Signers.Keys); n > 1 && m.Signers.Threshold == n {
		out = append(out, Advice{"signers.threshold", fmt.Sprintf("all %d keys are needed: without one of them "+
			"nobody can change the manifest any more", n), "have more keys than the threshold"})
	}
	return out
}
