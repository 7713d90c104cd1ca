package peers // inside: a fleet has too few coordinators to reach the bound

import (
	"slices"
	"testing"

	"github.com/fealty-io/fealty/internal/proof"
)

// Many coordinators say where they are, some of them the same: each address is told once, and
// no more than there is room for.
func TestFirstAddresses(t *testing.T) {
	var many []string
	for i := range 20 {
		many = append(many, string(rune('a'+i)), "a")
	}
	got := firstAddresses(many, proof.MaxAddresses)
	if len(got) != proof.MaxAddresses || slices.Contains(got[1:], "a") {
		t.Errorf("%v", got)
	}
}
