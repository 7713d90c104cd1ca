package manifests_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/manifest"
)

// A manifest may name its signers in any order, and more than one.
func TestManySigners(t *testing.T) {
	d := coordinatortest.NewDesk(t)
	var list strings.Builder
	for i := range 6 {
		pub, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		key, err := manifest.NewKey(pub)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&list, ", {name: signer-%d, key: %q}", i, key)
	}
	m := strings.Replace(string(d.Manifest(coordinatortest.PoolEntries)), "\"}]\nadmit",
		"\"}"+list.String()+"]\nadmit", 1)
	if _, err := d.C.Parts().Moves.Manifests.Set(t.Context(), d.Request([]byte(m)), true); err != nil {
		t.Fatal(err)
	}
	if phase, reason := d.C.Phase(); phase != "ready" {
		t.Fatalf("the coordinator is in %s: %s", phase, reason)
	}
}
