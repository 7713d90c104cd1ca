package status_test

import (
	"slices"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/peer/status"
)

// Many coordinators say where they are, some of them the same: a new member is told this one first,
// each address once, and of no more than eight. A fleet has too few coordinators to reach that.
func TestKnownAddressesAreBounded(t *testing.T) {
	published := make(map[string][]string)
	for i := range 20 {
		at := string(rune('b' + i))
		published["key-"+at] = []string{at, "a"}
	}
	p := status.New(status.Config{Addresses: []string{"a"}, Published: func() map[string][]string { return published }})
	want := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	if got := p.KnownAddresses(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
