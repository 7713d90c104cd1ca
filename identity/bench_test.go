package identity_test

import (
	"crypto/x509"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

func BenchmarkVerify(b *testing.B) {
	w := newWorld(b)
	crowded := w.authority.Bundle(func(cfg *identity.BundleConfig) {
		for len(cfg.Roots) < internalidentity.MaxRoots {
			cfg.Roots = append(cfg.Roots, pkitest.NewAuthority(b, "prod.example").Root().Cert)
		}
		cfg.MeshKeys = append(cfg.MeshKeys, keyIDs(internalidentity.MaxMeshKeys-1)...)
		cfg.BannedKeys = keyIDs(internalidentity.MaxBans)
	})
	// The biggest leaf that is allowed, or nearly.
	uris := slices.Repeat([]string{"spiffe://prod.example/workload/" + string(slices.Repeat([]byte("a"), 64))}, internalidentity.MaxAltNames)
	big, _ := w.authority.IssueRaw(b, func(c *x509.Certificate) {
		c.ExtraExtensions = append(c.ExtraExtensions, pkitest.AltNames(uris...))
	})
	stranger := pkitest.NewAuthority(b, "prod.example")
	strange, _ := stranger.Issue(b, w.authority.ID(b, identity.Shard, "eu-1"))
	for _, bench := range []struct {
		name     string
		bundle   *identity.Bundle
		chain    []*x509.Certificate
		accepted bool
	}{
		{"leaf and mesh CA", w.bundle, w.chain(false), true},
		{"with root", w.bundle, w.chain(true), true},
		{"full bundle", crowded, w.chain(false), true},
		{"big leaf", crowded, big, true},
		{"stranger", crowded, strange, false},
		{"thousand certificates", crowded, slices.Repeat(w.chain(true), 334), false},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bench.bundle.Verify(bench.chain, w.now); (err == nil) != bench.accepted {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := identity.Parse("spiffe://prod.example/shard/eu-1"); err != nil {
			b.Fatal(err)
		}
	}
}
