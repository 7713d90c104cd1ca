package identity_test

import (
	"crypto/x509"
	"fmt"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/identitytest"
)

func TestVoucherOf(t *testing.T) {
	a := identitytest.NewAuthority(t, "prod.example")
	chain, _ := a.Issue(t, a.ID(t, identity.Workload, "billing/api"))
	member, key, err := identity.VoucherOf(chain[0])
	if want := a.ID(t, identity.Data, "voucher"); err != nil || member != want || key != (identity.KeyID{1}) {
		t.Errorf("got %v, %v, %v, want %v", member, key, err, want)
	}
	shard, _ := a.Issue(t, a.ID(t, identity.Shard, "eu-1"))
	nobody, _ := a.IssueRaw(t, func(*x509.Certificate) {})
	for name, leaf := range map[string]int{"a shard": 0, "nobody": 1} {
		c := shard[0]
		if leaf == 1 {
			c = nobody[0]
		}
		if member, key, err := identity.VoucherOf(c); err == nil || !member.IsZero() || !key.IsZero() {
			t.Errorf("%s: %v, %v, %v, want an error", name, member, key, err)
		}
	}
}

func ExampleVoucherOf() {
	tb := exampleTB{}
	a := identitytest.NewAuthority(tb, "prod.example")
	chain, _ := a.Issue(tb, a.ID(tb, identity.Workload, "billing/api"))
	member, _, err := identity.VoucherOf(chain[0])
	fmt.Println(member, err)
	// Output: spiffe://prod.example/data/voucher <nil>
}
