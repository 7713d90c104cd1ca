package identity_test

import (
	"crypto/x509"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

func TestVoucherOf(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
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
