package mesh_test

import (
	"crypto/x509"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
)

// Connections whose certificates have no end (RFC 5280 §4.1.2.5 writes that as the year 9999) are
// watched without haste, at either end.
func TestCertificatesWithoutAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pki := pkitest.NewPKI(t, "corp", nil)
		never := func(c *x509.Certificate) { c.NotAfter = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }
		root := pki.CA(t, "eternal", nil, never)
		id, err := identity.New(cluster, identity.Workload, "billing")
		if err != nil {
			t.Fatal(err)
		}
		bundle, err := identity.NewOperatorBundle(cluster, []*x509.Certificate{root.Cert})
		if err != nil {
			t.Fatal(err)
		}
		key := pkitest.NewKey(t)
		chain := pki.IssueBy(t, root, key, func(c *x509.Certificate) { never(c); sans(id)(c) })
		m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: bundle})
		if err != nil {
			t.Fatal(err)
		}
		const most = 1000 // looks at a clock in a minute
		var looks [2]atomic.Int64
		clock := func(n *atomic.Int64) func() time.Time {
			return func() time.Time {
				if n.Add(1) > most { // which ends the connection
					return time.Date(9999, 12, 31, 23, 59, 59, 1, time.UTC)
				}
				return time.Now()
			}
		}
		ln, opts := inMemory()
		opts.Now = clock(&looks[0])
		serve(t, ln, mesh.GuardConfig{Source: credential.Static(m), Now: clock(&looks[1])})
		c := dial(t, "passthrough:///billing", credential.Static(m), credential.ExactID(id), opts)
		if _, err := who(t, c); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // in virtual time
		for i, end := range []string{"client", "server"} {
			if n := looks[i].Load(); n > most {
				t.Errorf("the %s looked at its clock more than %d times in a minute", end, most)
			}
		}
	})
}
