package identity_test

import (
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/identity/identitytest"
)

func TestVerifyAcceptsWhatTheAuthorityMints(t *testing.T) {
	a := identitytest.NewAuthority(t, "prod.example")
	b := a.Bundle()
	id := a.ID(t, identity.Shard, "eu-1")
	for name, opts := range map[string][]identitytest.IssueOption{
		"p256":    nil,
		"ed25519": {identitytest.WithKey(identitytest.NewEd25519Key(t))},
		"dns":     {identitytest.WithDNSNames("a.example")},
	} {
		chain, _ := a.Issue(t, id, opts...)
		for _, chain := range [][]*x509.Certificate{chain, append(chain, a.Root().Cert)} {
			v, err := b.Verify(chain, time.Now())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if v.ID != id || v.IDErr != nil || v.Leaf != chain[0] || v.Key != identity.KeyOf(chain[0]) {
				t.Fatalf("%s: got %+v", name, v)
			}
		}
	}
	chain, _ := a.Issue(t, id, identitytest.Expired())
	if _, err := b.Verify(chain, time.Now()); !errors.Is(err, identity.ErrExpired) {
		t.Fatalf("expired leaf: %v", err)
	}
}
