package succession_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/manifest"
)

// A set whose answer was lost between the swap and its adoption: the loop that
// follows the head brings the coordinator to it, with the key that was sealed.
func TestSetThatDiedAfterTheSwap(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	f.Faults.FailNext("set.after-swap", 1, errors.New("crash"))
	// A new coordinator entry moves authority, and with it the mesh CA key.
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := manifest.NewKey(other.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Set(f.Manifest(fmt.Sprintf("  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
		key))); err == nil {
		t.Fatal("the set did not die")
	}
	f.C.Parts().Moves.Succession.Look(f.Context())
	s := f.State()
	if s.Phase != authority.Ready || s.Head.Index != 2 || s.Head.AuthorityEpoch != 2 {
		t.Fatalf("phase %v, index %d, epoch %d; want ready, 2, 2 (%s)", s.Phase, s.Head.Index, s.Head.AuthorityEpoch,
			s.Reason)
	}
	if err := n.Renew(true); err != nil {
		t.Fatalf("an SVID of the epoch before does not renew: %v", err)
	}
	if got := identity.KeyOf(n.Chain[1]); got != s.MeshKey {
		t.Fatal("the renewed SVID is not signed by the new mesh CA")
	}
}
