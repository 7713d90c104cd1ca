package manifest

import (
	"bytes"
	"maps"
	"slices"

	"github.com/fealty-io/fealty/identity"
)

// AuthorityMoves returns what setting after in place of before changes of who
// holds authority; empty if nothing, and then the authority epoch and the mesh
// CA key stay (docs/explanation/trust.md#3-the-set-and-the-history). A change of coordinators is a change of
// who may be one: names, selectors and limits of entries of that kind.
//
// Histories are verified with this function: its answer for two given documents
// is part of the format.
func AuthorityMoves(before, after *Manifest) []string {
	var moved []string
	for _, part := range [...]struct {
		name  string
		equal bool
	}{
		{AuthorityCluster, before.Cluster == after.Cluster},
		{AuthorityCoordinators, slices.EqualFunc(before.coordinators(), after.coordinators(),
			sameCoordinators)},
		{AuthoritySigners, before.Signers.Threshold == after.Signers.Threshold &&
			slices.Equal(before.Signers.Keys, after.Signers.Keys)},
		{AuthoritySeed, before.Seed.Threshold == after.Seed.Threshold &&
			slices.Equal(before.Seed.Owners, after.Seed.Owners)},
		{AuthorityProofs, sameProofs(before.Proofs, after.Proofs)},
		{AuthorityTrust, before.Trust == after.Trust},
		{AuthorityEverySet, before.Trust != TrustMesh && after.Trust != TrustMesh},
	} {
		if !part.equal {
			moved = append(moved, part.name)
		}
	}
	return moved
}

// coordinators returns the entries of that kind, by name.
func (m *Manifest) coordinators() []Entry {
	byName := make(map[string]Entry)
	for _, e := range m.Admit {
		if e.Kind == identity.Coordinator {
			byName[e.Name] = e
		}
	}
	var out []Entry
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, byName[name])
	}
	return out
}

func sameCoordinators(a, b Entry) bool {
	return a.Name == b.Name && a.MaxMembers == b.MaxMembers && a.PlatformMayReadSeed == b.PlatformMayReadSeed &&
		slices.Equal(a.sortedPatterns(), b.sortedPatterns())
}

func (e *Entry) sortedPatterns() []string {
	var out []string
	for _, p := range e.Match {
		out = append(out, p.text)
	}
	slices.Sort(out)
	return out
}

func sameProofs(a, b Proofs) bool {
	if (a.X509 == nil) != (b.X509 == nil) || (a.SEVSNP == nil) != (b.SEVSNP == nil) {
		return false
	}
	// Roots and measurements are sets: the order in which they are listed decides
	// nothing.
	if a.X509 != nil && !slices.EqualFunc(sortedDER(a.X509.RootsDER), sortedDER(b.X509.RootsDER), bytes.Equal) {
		return false
	}
	if a.SEVSNP == nil {
		return true
	}
	return a.SEVSNP.MinTCB == b.SEVSNP.MinTCB &&
		slices.Equal(slices.Sorted(slices.Values(a.SEVSNP.Measurements)),
			slices.Sorted(slices.Values(b.SEVSNP.Measurements)))
}

func sortedDER(certs [][]byte) [][]byte {
	return slices.SortedFunc(slices.Values(certs), bytes.Compare)
}
