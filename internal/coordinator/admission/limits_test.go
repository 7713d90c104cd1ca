package admission_test

import (
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/proof"
)

// Each renewal and each rejoin by the last key is a write and a certificate.
func TestCertificatesAreLimitedByMember(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, func(c *coordinator.Config) { c.Rates.PerMember, c.Rates.MemberBurst = 0.01, 4 })
	n, other := f.Member("node-a"), f.Member("node-b")
	old := *n
	for range 2 { // the first key is an older one then
		if err := n.Renew(true); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		coordinatortest.WantCode(t, old.Renew(false), errcode.RenewOlderKey)
	}
	for range 2 { // the older key used up no turn
		if err := n.Join(identity.Data, proof.NewSVIDProver(identity.Data, "node-a", n.Key)); err != nil {
			t.Fatal(err)
		}
	}
	coordinatortest.WantCode(t, n.Renew(true), errcode.RateLimited)
	coordinatortest.WantCode(t, n.Join(identity.Data, proof.NewSVIDProver(identity.Data, "node-a", n.Key)),
		errcode.RateLimited)
	if err := other.Renew(true); err != nil {
		t.Fatalf("another member: %v", err)
	}
	f.Advance(100 * time.Second)
	if err := n.Renew(true); err != nil {
		t.Fatalf("after the pause: %v", err)
	}
}

// So is each rejoin by another proof, also of a key that is certified already.
func TestRejoinsByEveryProofAreLimitedByMember(t *testing.T) {
	t.Parallel()
	pki := pkitest.NewPKI(t, "corp", nil)
	f := coordinatortest.NewFleet(t, func(c *coordinator.Config) { c.Rates.PerMember, c.Rates.MemberBurst = 0.01, 4 })
	if err := f.Set(f.Manifest(coordinatortest.CorpEntries(pki))); err != nil {
		t.Fatal(err)
	}
	for name, prover := range map[string]proof.Prover{
		"certificate": coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-c")),
		"token whose grant was lost": proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool",
			Name: "node-d"})),
		"certificate of a person": coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("alice")),
	} {
		kind := identity.Data
		if name == "certificate of a person" {
			kind = identity.Admin
		}
		n := f.Node()
		for i := range 5 { // the first one is no rejoin
			if err := n.Join(kind, prover); err != nil {
				t.Fatalf("%s, join %d: %v", name, i, err)
			}
		}
		before := f.Catalog()
		coordinatortest.WantCode(t, n.Join(kind, prover), errcode.RateLimited)
		if f.Catalog() != before {
			t.Errorf("%s: the catalog changed", name)
		}
	}
}
