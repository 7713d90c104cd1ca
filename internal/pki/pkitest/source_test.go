package pkitest_test

import (
	"crypto/x509"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

func issue(t testing.TB, a *pkitest.Authority, name string) *credential.Material {
	t.Helper()
	chain, key := a.Issue(t, a.ID(t, identity.Data, name))
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: a.Bundle()})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestStatic(t *testing.T) {
	pkitest.Run(t, func(t *testing.T) *pkitest.Subject {
		a := pkitest.NewAuthority(t, "prod.example")
		return &pkitest.Subject{Source: credential.Static(issue(t, a, "node-a"))}
	})
}

func TestIssued(t *testing.T) {
	pkitest.Run(t, func(t *testing.T) *pkitest.Subject {
		a := pkitest.NewAuthority(t, "prod.example")
		s := credential.NewIssued(issue(t, a, "node-a"))
		offer := func(m *credential.Material) error { return s.Adopt(m) }
		return &pkitest.Subject{
			Source: s, Failure: s.Failure,
			Rotate: func(t testing.TB) *x509.Certificate {
				m := issue(t, a, "node-a")
				if err := offer(m); err != nil {
					t.Fatal(err)
				}
				return m.Chain()[0]
			},
			Restate: func(t testing.TB) {
				m, err := s.Current(t.Context())
				if err != nil || offer(m) != nil {
					t.Fatal("what is in use is refused")
				}
			},
			Bad: []pkitest.Bad{
				{Name: "nothing", Reason: credential.Incomplete, Put: func(testing.TB) { _ = offer(nil) }},
				{Name: "another member's", Reason: credential.OtherIdentity,
					Put: func(t testing.TB) { _ = offer(issue(t, a, "node-b")) }},
				{Name: "another cluster's", Reason: credential.OtherIdentity, Put: func(t testing.TB) {
					_ = offer(issue(t, pkitest.NewAuthority(t, "test.example"), "node-a"))
				}},
			},
		}
	})
}
