package snapshot

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// refusal is a snapshot with one thing wrong. Everything else about it is right,
// so that it would be accepted if that check were missing.
type refusal struct {
	check  int
	name   string
	reason Reason
	// make returns what to verify; it may change the trust, the marks and the time.
	make func(*testing.T, *fleet, *given) *Signed
	// The case cannot show that its check is necessary: what follows depends on it.
	fatal bool
}

type given struct {
	trust   Trust
	marks   Marks
	now     time.Time
	recheck bool
}

func (f *fleet) given() *given { return &given{trust: f.trust(), now: f.now} }

// members returns n members, sorted.
func members(n int) []Member {
	out := make([]Member, n)
	for i := range out {
		out[i] = Member{mustID(identity.New(testCluster, identity.Data, fmt.Sprintf("node-of-the-edge-pool-%06d", i))), MemberActive}
	}
	return out
}

// accepted returns the marks of a node that accepted s.
func (g *given) accepted(t *testing.T, s *Signed) {
	t.Helper()
	v, err := Verify(s, g.trust, g.marks, g.now)
	if err != nil {
		t.Fatal(err)
	}
	g.marks = mustAccept(t, g.marks, v)
}

var refusals = []refusal{
	{check: checkLimits, name: "three signatures", reason: snapshot.ReasonLimits, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBundle(t)
		g.trust.Bundle = nil
		s.Signatures = append(s.Signatures, s.Signatures[0], s.Signatures[0])
		return s
	}},
	{check: checkLimits, name: "content above the scope's limit", reason: snapshot.ReasonLimits, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Members = members(snapshot.MaxMembers) })
	}},
	{check: checkLimits, name: "nil", reason: snapshot.ReasonLimits, fatal: true, make: func(*testing.T, *fleet, *given) *Signed { return nil }},
	{check: checkLimits, name: "no signature", reason: snapshot.ReasonLimits, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Publication.Signatures = nil
		return s
	}, fatal: true},
	{check: checkLimits, name: "header above its limit", reason: snapshot.ReasonLimits, fatal: true, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Header = append(s.Header, bytes.Repeat([]byte(" "), snapshot.MaxHeader)...)
		return s
	}},
	{check: checkLimits, name: "content above any limit", reason: snapshot.ReasonLimits, fatal: true, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Content = make([]byte, snapshot.MaxContent+1)
		return s
	}},
	{check: checkLimits, name: "long signature", reason: snapshot.ReasonLimits, fatal: true, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Publication.Signatures[0].Bytes = make([]byte, snapshot.MaxSignature+1)
		return s
	}},
	{check: checkLimits, name: "long proof", reason: snapshot.ReasonLimits, fatal: true, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Proof.Hashes = make([]Digest, snapshot.MaxProof+1)
		return s
	}},
	{check: checkLimits, name: "signed in two ways", reason: snapshot.ReasonLimits, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Signatures = f.signedBundle(t).Signatures
		return s
	}},

	{check: checkSchema, name: "schema of tomorrow", reason: snapshot.ReasonSchema, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.header.SchemaVersion = 2 })
	}},
	{check: checkSchema, name: "scope not supported", reason: snapshot.ReasonSchema, fatal: true, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.header.ScopeType = "user_directory" })
	}},
	{check: checkSchema, name: "increment", reason: snapshot.ReasonSchema, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.header.Base = &Base{ConfigVersion: 6, ContentHash: Digest{1}} })
	}},
	{check: checkSchema, name: "roles out of order", reason: snapshot.ReasonSchema, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.header.Roles = []string{"ingress", "egress"}
			x.content.(*NodeBootstrap).Roles = x.header.Roles
		})
	}},

	{check: checkCluster, name: "another cluster", reason: snapshot.ReasonCluster, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.header.ClusterID = "test.example"
			x.content.(*NodeBootstrap).ClusterID = "test.example"
			x.content.(*NodeBootstrap).Members = nil
		})
	}},
	{check: checkCluster, name: "record of another cluster", reason: snapshot.ReasonCluster, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.record.ClusterID = "test.example" })
	}},

	{check: checkSubject, name: "another node", reason: snapshot.ReasonSubject, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		g.trust.Me = mustID(identity.New(testCluster, identity.Data, "node-d"))
		return s
	}},
	{check: checkSubject, name: "another incarnation", reason: snapshot.ReasonSubject, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		g.trust.Incarnation[0]++
		return s
	}},
	{check: checkSubject, name: "a group where the scope allows none", reason: snapshot.ReasonSubject, fatal: true, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.header.Subject = ClusterSubject() })
	}},

	{check: checkSigner, name: "revoked key", reason: snapshot.ReasonSigner, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.trust.Bundle = f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys[0].Revoked = true }), f.trust())
		return f.signedBootstrap(t)
	}},
	{check: checkSigner, name: "expired key", reason: snapshot.ReasonSigner, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.trust.Bundle = f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys[0].NotAfter = f.now }), f.trust())
		return f.signedBootstrap(t)
	}},
	{check: checkSigner, name: "key of tomorrow", reason: snapshot.ReasonSigner, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.trust.Bundle = f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys[0].NotBefore = f.now.Add(time.Hour) }), f.trust())
		return f.signedBootstrap(t)
	}},
	{check: checkSigner, name: "key of another scope", reason: snapshot.ReasonSigner, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.trust.Bundle = f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys[0].Scopes = []Scope{ScopeNodeRuntime} }), f.trust())
		return f.signedBootstrap(t)
	}},
	{check: checkSigner, name: "expired bundle", reason: snapshot.ReasonSigner, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.trust.Bundle = f.mustVerify(t, f.signedBundle(t, func(h *Header, _ *TrustBundle) { h.ExpiresAt = f.now.Add(2 * time.Hour) }), f.trust())
		g.now = f.now.Add(2 * time.Hour)
		return f.signedBootstrap(t)
	}},
	{check: checkSigner, name: "config root key for another scope", reason: snapshot.ReasonSigner, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.root, x.keys = true, []crypto.Signer{f.root} })
	}},
	{check: checkSigner, name: "config key for the trust bundle", reason: snapshot.ReasonSigner, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forgeBundle(func(x *forge) { x.root, x.keys, x.record = false, []crypto.Signer{f.keys[0]}, f.record() })
	}},

	{check: checkSignature, name: "unknown key", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.keys = []crypto.Signer{newKey(t)} })
	}},
	{check: checkSignature, name: "unknown root key", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forgeBundle(func(x *forge) { x.keys = []crypto.Signer{newKey(t)} })
	}},
	{check: checkSignature, name: "known key id, another key", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.forge(func(x *forge) { x.keys = []crypto.Signer{newKey(t)} })
		s.Publication.Signatures[0].KeyID = snapshot.KeyIDOf(public(f.keys[0]))
		return s
	}},
	{check: checkSignature, name: "signed for another cluster", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.cluster = "test.example" })
	}},
	{check: checkSignature, name: "header signed as a record", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBundle(t)
		s.Signatures = must(signAll(snapshot.PAE(snapshot.TypePublication, testCluster, s.Header), snapshot.AlgorithmEd25519, []crypto.Signer{f.root}))
		return s
	}},
	{check: checkSignature, name: "header of another tree", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Publication = f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, _ *Record) { h.ConfigVersion++ }).Publication
		return s
	}},
	{check: checkSignature, name: "proof with a hash too many", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Proof.Hashes = []Digest{{1}}
		return s
	}},
	{check: checkSignature, name: "another algorithm", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Publication.Signatures[0].Algorithm = "rsa-pss"
		return s
	}},
	{check: checkSignature, name: "plain algorithm in a publication", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Publication.Signatures[0].Algorithm = snapshot.AlgorithmEd25519
		return s
	}},
	{check: checkSignature, name: "no bundle yet", reason: snapshot.ReasonSignature, fatal: true, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.trust.Bundle = nil
		return f.signedBootstrap(t)
	}},
	{check: checkSignature, name: "no config root key", reason: snapshot.ReasonSignature, fatal: true, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.trust.ConfigRoot = nil
		return f.signedBundle(t)
	}},
	{check: checkSignature, name: "no config root key, and a hint at none", reason: snapshot.ReasonSignature, fatal: true, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.trust.ConfigRoot = nil
		s := f.signedBundle(t)
		s.Signatures[0].KeyID = snapshot.KeyIDOf(nil)
		return s
	}},
	{check: checkSignature, name: "hint at another key", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBundle(t)
		s.Signatures[0].KeyID = snapshot.KeyIDOf(nil)
		return s
	}},
	{check: checkSignature, name: "tree algorithm over a header", reason: snapshot.ReasonSignature, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBundle(t)
		s.Signatures[0].Algorithm = snapshot.AlgorithmTree
		return s
	}},
	{check: checkSignature, name: "signed record of tomorrow", reason: snapshot.ReasonSignature, fatal: true, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Publication.Record = bytes.Replace(s.Publication.Record, []byte(`"schema_version":1`), []byte(`"schema_version":2`), 1)
		s.Publication.Signatures = must(signAll(snapshot.PAE(snapshot.TypePublication, testCluster, s.Publication.Record), snapshot.AlgorithmTree, []crypto.Signer{f.keys[0]}))
		return s
	}},

	{check: checkHash, name: "other content", reason: snapshot.ReasonHash, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		s.Content = bytes.Replace(s.Content, []byte("draining"), []byte(`active`), 1)
		s.Content = bytes.Replace(s.Content, []byte("edge-pool"), []byte(`edge-pool-1`), 1) // the same size
		return s
	}},
	{check: checkHash, name: "wrong size", reason: snapshot.ReasonHash, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.header.ContentSize = 5 })
	}},

	{check: checkValidity, name: "of tomorrow", reason: snapshot.ReasonValidity, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, _ *Record) {
			h.ValidFrom = f.now.Add(snapshot.ClockTolerance + time.Second)
		})
	}},
	{check: checkValidity, name: "issued tomorrow", reason: snapshot.ReasonValidity, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, _ *Record) {
			h.IssuedAt = f.now.Add(snapshot.ClockTolerance + time.Second)
		})
	}},
	{check: checkValidity, name: "record of tomorrow", reason: snapshot.ReasonValidity, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBootstrap(t, func(_ *Header, _ *NodeBootstrap, r *Record) {
			r.IssuedAt = f.now.Add(snapshot.ClockTolerance + time.Second)
		})
	}},
	{check: checkValidity, name: "record never fresh", reason: snapshot.ReasonValidity, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.record.FreshUntil = x.record.IssuedAt })
	}},
	{check: checkValidity, name: "expired", reason: snapshot.ReasonValidity, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, _ *Record) {
			h.ExpiresAt, h.RefreshAfter = f.now, f.now.Add(-time.Hour)
		})
	}},
	{check: checkValidity, name: "refresh at the end", reason: snapshot.ReasonValidity, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.header.RefreshAfter = x.header.ExpiresAt })
	}},
	{check: checkValidity, name: "an empty interval within the tolerance", reason: snapshot.ReasonValidity, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.header.ValidFrom, x.header.ExpiresAt, x.header.RefreshAfter = f.now.Add(time.Minute), f.now.Add(time.Minute), f.now
		})
	}},

	{check: checkEpoch, name: "older epoch, newer version", reason: snapshot.ReasonEpoch, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.accepted(t, f.signedBootstrap(t))
		return f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, r *Record) { h.AuthorityEpoch--; h.ConfigVersion++; r.Generation++ })
	}},
	{check: checkEpoch, name: "header of a later epoch than its record", reason: snapshot.ReasonEpoch, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, r *Record) { r.AuthorityEpoch-- })
	}},
	{check: checkEpoch, name: "epoch ahead of the trust bundle", reason: snapshot.ReasonEpoch, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, r *Record) { h.AuthorityEpoch, r.AuthorityEpoch = 4, 4 })
	}},
	{check: checkEpoch, name: "record ahead of the trust bundle", reason: snapshot.ReasonEpoch, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBootstrap(t, func(_ *Header, _ *NodeBootstrap, r *Record) { r.AuthorityEpoch = 4 })
	}},
	{check: checkEpoch, name: "bundle above 2^53", reason: snapshot.ReasonEpoch, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forgeBundle(func(x *forge) {
			x.header.AuthorityEpoch, x.content.(*TrustBundle).AuthorityEpoch = snapshot.MaxVersion+1, snapshot.MaxVersion+1
		})
	}},
	{check: checkEpoch, name: "epoch above 2^53", reason: snapshot.ReasonEpoch, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.header.AuthorityEpoch, x.record.AuthorityEpoch = snapshot.MaxVersion+1, snapshot.MaxVersion+1
		})
	}},
	{check: checkEpoch, name: "no epoch", reason: snapshot.ReasonEpoch, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.header.AuthorityEpoch = 0 })
	}},

	{check: checkVersion, name: "older version", reason: ReasonVersion, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.accepted(t, f.signedBootstrap(t))
		return f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, r *Record) { h.ConfigVersion--; r.Generation++ })
	}},
	{check: checkVersion, name: "version above 2^53", reason: ReasonVersion, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.header.ConfigVersion = snapshot.MaxVersion + 1 })
	}},
	{check: checkVersion, name: "no version", reason: ReasonVersion, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.header.ConfigVersion = 0 })
	}},
	{check: checkVersion, name: "generation above 2^53", reason: ReasonVersion, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.record.Generation = snapshot.MaxVersion + 1 })
	}},
	{check: checkVersion, name: "the same again", reason: ReasonUnchanged, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBootstrap(t)
		g.accepted(t, s)
		return s
	}},
	{check: checkVersion, name: "the same bundle again", reason: ReasonUnchanged, make: func(t *testing.T, f *fleet, g *given) *Signed {
		s := f.signedBundle(t)
		g.accepted(t, s)
		return s
	}},
	{check: checkVersion, name: "the same under an older record", reason: ReasonStaleRecord, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.accepted(t, f.signedBootstrap(t))
		return f.signedBootstrap(t, func(_ *Header, _ *NodeBootstrap, r *Record) { r.Generation-- })
	}},
	{check: checkVersion, name: "an older renewal", reason: ReasonVersion, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.accepted(t, f.signedBootstrap(t))
		return f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, r *Record) { h.IssuedAt = h.IssuedAt.Add(-time.Hour); r.Generation++ })
	}},
	{check: checkVersion, name: "same version, other content", reason: ReasonEquivocation, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.accepted(t, f.signedBootstrap(t))
		return f.signedBootstrap(t, func(h *Header, b *NodeBootstrap, r *Record) {
			h.IssuedAt = f.now
			b.Members = nil
			r.Generation++
		})
	}},
	{check: checkVersion, name: "same generation, other root", reason: ReasonEquivocation, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.accepted(t, f.signedBootstrap(t))
		return f.signedBootstrap(t, func(h *Header, b *NodeBootstrap, r *Record) { h.ConfigVersion++ })
	}},
	{check: checkVersion, name: "from disk, without a mark", reason: ReasonUnrecorded, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.recheck = true
		return f.signedBootstrap(t)
	}},
	{check: checkVersion, name: "from disk, not what was accepted", reason: ReasonUnrecorded, make: func(t *testing.T, f *fleet, g *given) *Signed {
		g.accepted(t, f.signedBootstrap(t))
		g.recheck = true
		return f.signedBootstrap(t, func(h *Header, b *NodeBootstrap, r *Record) { h.ConfigVersion++ })
	}},

	{check: checkGrants, name: "a role that is not mine", reason: snapshot.ReasonGrants, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBundle(t, func(h *Header, _ *TrustBundle) { h.Roles = []string{"storage"} })
	}},
	{check: checkGrants, name: "an organization that is not mine", reason: snapshot.ReasonGrants, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBundle(t, func(h *Header, _ *TrustBundle) { h.OrganizationIDs = []string{"acme", "umbrella"} })
	}},
	{check: checkGrants, name: "roles beyond the header", reason: snapshot.ReasonGrants, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Roles = []string{"ingress", "storage"} })
	}},
	{check: checkGrants, name: "organizations beyond the header", reason: snapshot.ReasonGrants, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Organizations = []string{"acme", "umbrella"} })
	}},
	{check: checkGrants, name: "another kind", reason: snapshot.ReasonGrants, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Kind = identity.Shard })
	}},
	{check: checkGrants, name: "membership for a thin node", reason: snapshot.ReasonGrants, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.header.Roles = []string{"thin"}
			x.content.(*NodeBootstrap).Roles = x.header.Roles
		})
	}},

	{check: checkContent, name: "older bundle, and no marks", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBundle(t, func(h *Header, _ *TrustBundle) { h.ConfigVersion-- })
	}},
	{check: checkContent, name: "bundle of an older epoch, and no marks", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.signedBundle(t, func(h *Header, b *TrustBundle) {
			h.ConfigVersion++
			h.AuthorityEpoch--
			b.AuthorityEpoch--
		})
	}},
	{check: checkContent, name: "unknown member", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.raw = bytes.Replace(must(encode(x.content)), []byte(`{"cluster_id"`), []byte(`{"admin":true,"cluster_id"`), 1)
		})
	}},
	{check: checkContent, name: "duplicate member", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.raw = bytes.Replace(must(encode(x.content)), []byte(`"entry"`), []byte(`"entry":"x","entry"`), 1)
		})
	}},
	{check: checkContent, name: "white space", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.raw = append(must(encode(x.content)), '\n') })
	}},
	{check: checkContent, name: "another node", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.content.(*NodeBootstrap).Node = mustID(identity.New(testCluster, identity.Data, "node-d"))
		})
	}},
	{check: checkContent, name: "another cluster", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.content.(*NodeBootstrap).ClusterID = "test.example"
		})
	}},
	{check: checkContent, name: "another cluster without members", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.content.(*NodeBootstrap).ClusterID, x.content.(*NodeBootstrap).Members = "test.example", nil
		})
	}},
	{check: checkContent, name: "member of another cluster", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			x.content.(*NodeBootstrap).Members = []Member{{mustID(identity.New("test.example", identity.Data, "node-d")), MemberActive}}
		})
	}},
	{check: checkContent, name: "member in no state", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Members[0].State = "gone" })
	}},
	{check: checkContent, name: "member twice", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) {
			b := x.content.(*NodeBootstrap)
			b.Members[1].ID = b.Members[0].ID
		})
	}},
	{check: checkContent, name: "no coordinators", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Coordinators = nil })
	}},
	{check: checkContent, name: "coordinator without a port", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Coordinators = []string{"c1.prod.example"} })
	}},
	{check: checkContent, name: "coordinator on port 0", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Coordinators = []string{"c1.prod.example:0"} })
	}},
	{check: checkContent, name: "renewal after expiry", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).RenewEvery = 25 * time.Hour })
	}},
	{check: checkContent, name: "degraded beyond the identity", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Degraded.Max = 25 * time.Hour })
	}},
	{check: checkContent, name: "degraded actions out of order", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { slices.Reverse(x.content.(*NodeBootstrap).Degraded.Allow) })
	}},
	{check: checkContent, name: "no entry", reason: snapshot.ReasonContent, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Entry = "" })
	}},

	{check: checkSecret, name: "token in the content", reason: snapshot.ReasonSecret, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.content.(*NodeBootstrap).Entry = "fealty1_" + strings.Repeat("a", 20) })
	}},
	{check: checkSecret, name: "token in the header", reason: snapshot.ReasonSecret, make: func(t *testing.T, f *fleet, g *given) *Signed {
		return f.forge(func(x *forge) { x.header.ScopeIDs = []string{"glpat-" + strings.Repeat("a", 20)} })
	}},
}

// bundleRefusals bend the content of a trust bundle. All are check 11.
var bundleRefusals = []struct {
	name string
	bend func(*testing.T, *fleet, *TrustBundle)
}{
	{"another cluster", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.ClusterID = "test.example" }},
	{"another epoch", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.AuthorityEpoch++ }},
	{"another config root key", func(t *testing.T, _ *fleet, b *TrustBundle) { b.ConfigRoot = public(newKey(t)) }},
	{"no config root key", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.ConfigRoot = nil }},
	{"no root", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Roots = nil }},
	{"a root that is no certificate", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Roots = [][]byte{{1}} }},
	{"a root that is no CA", func(t *testing.T, f *fleet, b *TrustBundle) {
		chain, _ := f.ca.Issue(t, f.me)
		b.Roots = [][]byte{chain[0].Raw}
	}},
	{"root twice", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Roots = append(b.Roots, b.Roots[0]) }},
	{"mesh key twice", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.MeshKeys = append(b.MeshKeys, b.MeshKeys[0]) }},
	{"banned id twice", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.BannedIDs = append(b.BannedIDs, b.BannedIDs[0]) }},
	{"banned id of another cluster", func(_ *testing.T, _ *fleet, b *TrustBundle) {
		b.BannedIDs = []identity.ID{mustID(identity.New("test.example", identity.Data, "x"))}
	}},
	{"banned key twice", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.BannedKeys = append(b.BannedKeys, b.BannedKeys[0]) }},
	{"config key twice", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.ConfigKeys[1].Key = b.ConfigKeys[0].Key }},
	{"config keys out of order", func(_ *testing.T, _ *fleet, b *TrustBundle) { slices.Reverse(b.ConfigKeys) }},
	{"config key of a wrong size", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.ConfigKeys[1].Key = b.ConfigKeys[1].Key[:31] }},
	{"empty key of another algorithm", func(_ *testing.T, _ *fleet, b *TrustBundle) {
		b.ConfigKeys[0].Algorithm, b.ConfigKeys[0].Key = "ml-dsa-65-tree", nil
	}},
	{"config key without algorithm", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.ConfigKeys[1].Algorithm = "" }},
	{"config key is the root's", func(_ *testing.T, f *fleet, b *TrustBundle) {
		b.ConfigKeys = b.ConfigKeys[:1]
		b.ConfigKeys[0].Key = public(f.root)
	}},
	{"config key that never is valid", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.ConfigKeys[1].NotAfter = b.ConfigKeys[1].NotBefore }},
	{"config key for trust bundles", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.ConfigKeys[1].Scopes = []Scope{ScopeTrustBundle} }},
	{"scopes out of order", func(_ *testing.T, _ *fleet, b *TrustBundle) { slices.Reverse(b.ConfigKeys[1].Scopes) }},
	{"scope without a name", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.ConfigKeys[1].Scopes = []Scope{""} }},
	{"threshold 0", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Signers.Threshold = 0 }},
	{"threshold above the signers", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Signers.Threshold = 2 }},
	{"signer twice", func(_ *testing.T, _ *fleet, b *TrustBundle) {
		b.Signers.Keys = append(b.Signers.Keys, SignerKey{"bob", b.Signers.Keys[0].Key})
		b.Signers.Threshold = 2
	}},
	{"signer without a name", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Signers.Keys[0].Name = "" }},
	{"signer with a short key", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Signers.Keys[0].Key = b.Signers.Keys[0].Key[:31] }},
	{"no head", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Head.Hash = Digest{} }},
	{"revoked twice", func(_ *testing.T, _ *fleet, b *TrustBundle) {
		b.Revoked = []Revoked{{snapshot.RevokedService, "web"}, {snapshot.RevokedService, "web"}}
	}},
	{"revoked out of order", func(_ *testing.T, _ *fleet, b *TrustBundle) {
		b.Revoked = []Revoked{{snapshot.RevokedService, "web"}, {snapshot.RevokedPeer, "db-1"}}
	}},
	{"revoked without a name", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Revoked = []Revoked{{snapshot.RevokedService, ""}} }},
	{"another cluster, and no bans", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.ClusterID, b.BannedIDs = "test.example", nil }},
	{"no hash of a newer head", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Head = Head{Index: 9} }},
	// Against the active bundle:
	{"another root CA", func(t *testing.T, f *fleet, b *TrustBundle) { b.Roots = [][]byte{newFleet(t).ca.Root().Cert.Raw} }},
	{"head went back", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Head.Index-- }},
	{"head forked", func(_ *testing.T, _ *fleet, b *TrustBundle) { b.Head.Hash[0]++ }},
}

func TestRefusals(t *testing.T) {
	seen := make(map[int]bool)
	f := newFleet(t)
	for _, r := range refusals {
		t.Run(fmt.Sprintf("%d %s", r.check, r.name), func(t *testing.T) {
			g := f.given()
			s := r.make(t, f, g)
			_, err := verify(checks, g.verification(s))
			wantRefused(t, err, r.check, r.reason)
			if r.fatal {
				return
			}
			// Every check is necessary: without it, this very snapshot is accepted.
			if _, err := verify(without(r.check), g.verification(s)); err != nil {
				t.Fatalf("without check %d it is refused all the same: %v", r.check, err)
			}
			seen[r.check] = true
		})
	}
	for _, c := range checks {
		if !seen[c.number] {
			t.Errorf("check %d (%s) has no case that shows it to be necessary", c.number, c.rule)
		}
	}
	for _, b := range bundleRefusals {
		t.Run("bundle "+b.name, func(t *testing.T) {
			g := f.given()
			s := f.forgeBundle(func(x *forge) { b.bend(t, f, x.content.(*TrustBundle)) })
			_, err := verify(checks, g.verification(s))
			wantRefused(t, err, checkContent, snapshot.ReasonContent)
			if _, err := verify(without(checkContent), g.verification(s)); err != nil {
				t.Fatalf("without check 11 it is refused all the same: %v", err)
			}
		})
	}
}

func (g *given) verification(s *Signed) *verification {
	return &verification{signed: s, trust: g.trust, marks: g.marks, now: g.now, recheck: g.recheck}
}

// without returns the checks with those of a number made blind: they leave
// behind what the others need, and find nothing.
func without(number int) []check {
	out := slices.Clone(checks)
	for i := range out {
		if out[i].number != number {
			continue
		}
		run := out[i].run
		out[i].run = func(v *verification) string {
			run(v)
			v.reason = ""
			switch number {
			case checkSignature:
				v.byRoot = v.signed.Publication == nil
				if !v.byRoot {
					v.keys = []*ConfigKey{&v.bundle().ConfigKeys[0]}
					v.record = new(Record)
					must(decode(string(v.signed.Publication.Record), v.record))
				}
			case checkSigner:
				v.trusted = nil
			case checkHash:
				v.text = string(v.raw)
			case checkGrants:
				if v.content == nil {
					v.content = v.rule.content()
					must(decode(v.text, v.content))
				}
			}
			return ""
		}
	}
	return out
}

// The order decides which reason is reported, and that nothing is parsed before
// its signature, no content before its hash.
func TestOrder(t *testing.T) {
	var got []int
	for _, c := range checks {
		got = append(got, c.number)
		if c.rule == "" || c.source == "" || snapshot.ReasonOf(c.number) == "" || remedies[c.number] == "" {
			t.Errorf("check %d lacks a text", c.number)
		}
	}
	if want := []int{0, 5, 1, 0, 2, 3, 4, 8, 9, 7, 6, 10, 11, 12}; !slices.Equal(got, want) {
		t.Fatalf("checks run in order %v, want %v", got, want)
	}
	reasons := map[string]int{}
	for i := range remedies {
		reason := snapshot.ReasonOf(i)
		if other, dup := reasons[reason]; dup {
			t.Errorf("checks %d and %d have one reason %q", i, other, reason)
		}
		reasons[reason] = i
	}

	// Wrong in every way at once: each repair brings the next check to light.
	f := newFleet(t)
	g := f.given()
	g.accepted(t, f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, r *Record) { h.ConfigVersion = 9; r.Generation = 5 }))
	repairs := []struct {
		check  int
		repair func(x *forge, s *Signed)
	}{
		{checkLimits, func(_ *forge, s *Signed) { s.Publication.Signatures = s.Publication.Signatures[:1] }},
		{checkSignature, func(x *forge, _ *Signed) { x.keys = []crypto.Signer{f.keys[0]} }},
		{checkSchema, func(x *forge, _ *Signed) { x.header.SchemaVersion = 1 }},
		{checkCluster, func(x *forge, _ *Signed) { x.header.ClusterID = testCluster }},
		{checkSubject, func(x *forge, _ *Signed) { x.header.Subject = NodeSubject(f.me, f.incarnation) }},
		{checkSigner, nil}, // the trust is repaired below
		{checkEpoch, func(x *forge, _ *Signed) { x.header.AuthorityEpoch = 3 }},
		{checkVersion, func(x *forge, _ *Signed) { x.header.ConfigVersion = 10 }},
		{checkValidity, func(x *forge, _ *Signed) { x.header.ExpiresAt = f.now.Add(time.Hour * 24) }},
		{checkHash, func(x *forge, _ *Signed) { x.header.ContentHash = Digest{} }},
		{checkGrants, func(x *forge, _ *Signed) { x.content.(*NodeBootstrap).Kind = identity.Data }},
		{checkContent, func(x *forge, _ *Signed) { x.content.(*NodeBootstrap).RenewEvery = time.Minute }},
		{checkSecret, func(x *forge, _ *Signed) { x.header.ScopeIDs = nil }},
	}
	revoked := f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys[0].Revoked = true }), f.trust())
	for done := range len(repairs) + 1 {
		g.trust.Bundle = revoked
		s := f.forge(func(x *forge) {
			x.keys = []crypto.Signer{newKey(t)}
			x.header.SchemaVersion = 2
			x.header.ClusterID = "test.example"
			x.header.Subject = NodeSubject(f.me, identity.KeyID{8})
			x.header.AuthorityEpoch, x.header.ConfigVersion = 2, 8
			x.header.ExpiresAt = f.now.Add(-time.Hour)
			x.header.ContentHash = Digest{1}
			x.header.ScopeIDs = []string{"fealty1_0"}
			x.content.(*NodeBootstrap).Kind = identity.Shard
			x.content.(*NodeBootstrap).RenewEvery = 0
			for _, r := range repairs[1:max(done, 1)] {
				if r.check == checkSigner {
					g.trust.Bundle = f.bundle
					continue
				}
				r.repair(x, nil)
			}
		})
		if done == 0 {
			s.Publication.Signatures = slices.Repeat(s.Publication.Signatures, 3)
		}
		_, err := verify(checks, g.verification(s))
		if done == len(repairs) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		rejected, ok := errors.AsType[*RejectedError](err)
		if !ok || rejected.Check != repairs[done].check {
			t.Fatalf("after %d repairs: %v, want a refusal by check %d", done, err, repairs[done].check)
		}
	}
}

// A header of a later schema is called that, whatever else is in it, so that
// the operator upgrades instead of looking for an attacker.
func TestSchemaOfTomorrowIsNamed(t *testing.T) {
	f := newFleet(t)
	header := f.signedBootstrap(t).Header
	g := &forge{record: f.record(), cluster: testCluster, keys: []crypto.Signer{f.keys[0]}}
	for text, want := range map[string]string{
		`{"a":{"schema_version":7},"schema_version":2,"z":[1]}`:                        "schema version 2",
		strings.Replace(string(header), `"schema_version":1`, `"schema_version":3`, 1): "schema version 3",
		`{"schema_version":1,"z":1}`:                                                   "header",
		`{"schema_version":"2"}`:                                                       "header",
		`{"schema_version":2.5}`:                                                       "header",
		`["schema_version",2]`:                                                         "header",
		`{"a":`:                                                                        "header",
		``:                                                                             "a header of 0 bytes",
		`{"schema_version":99999999999999999999}`:                                      "header",
	} {
		_, err := Verify(g.signBytes([]byte(text), f.signedBootstrap(t).Content), f.trust(), Marks{}, f.now)
		rejected, ok := errors.AsType[*RejectedError](err)
		if !ok || !strings.Contains(rejected.Detail, want) || rejected.Scope != "" && want == "header" {
			t.Errorf("%.60s: %v, want %q in it", text, err, want)
		}
	}
}

func TestTrustOfNobody(t *testing.T) {
	f := newFleet(t)
	boot := f.mustVerify(t, f.signedBootstrap(t), f.trust())
	for name, bend := range map[string]func(*Trust){
		"no id":           func(x *Trust) { x.Me = identity.ID{} },
		"no incarnation":  func(x *Trust) { x.Incarnation = identity.KeyID{} },
		"short root key":  func(x *Trust) { x.ConfigRoot = x.ConfigRoot[:31] },
		"bundle is other": func(x *Trust) { x.Bundle = boot },
		"zero bundle":     func(x *Trust) { x.Bundle = new(Verified) },
	} {
		trust := f.trust()
		bend(&trust)
		_, err := Verify(f.signedBootstrap(t), trust, Marks{}, f.now)
		if err == nil || errors.Is(err, ErrRejected) {
			t.Errorf("%s: got %v, want an error that is no refusal", name, err)
		}
	}
}

func TestClockTolerance(t *testing.T) {
	f := newFleet(t)
	s := f.signedBootstrap(t, func(h *Header, _ *NodeBootstrap, r *Record) {
		h.ValidFrom, h.IssuedAt, r.IssuedAt, r.FreshUntil = f.now, f.now, f.now, f.now.Add(time.Minute)
		h.RefreshAfter, h.ExpiresAt = f.now.Add(time.Minute), f.now.Add(time.Hour)
	})
	// The bundle must be wider than what is looked at.
	f.now = f.now.Add(-24 * time.Hour)
	bundle := f.mustVerify(t, f.signedBundle(t), f.trust())
	f.now = f.now.Add(24 * time.Hour)
	for _, c := range []struct {
		at time.Duration
		ok bool
	}{
		{-snapshot.ClockTolerance - time.Nanosecond, false},
		{-snapshot.ClockTolerance, true},
		{0, true},
		{30 * time.Minute, true}, // stale is not refused
		{time.Hour - time.Nanosecond, true},
		{time.Hour, false}, // no tolerance at the end
	} {
		trust := f.trust()
		trust.Bundle = bundle
		_, err := Verify(s, trust, Marks{}, f.now.Add(c.at))
		if c.ok && err != nil {
			t.Errorf("at %v: %v", c.at, err)
		}
		if !c.ok {
			wantRefused(t, err, checkValidity, snapshot.ReasonValidity)
		}
	}
	// The same edges for a signing key.
	key := ConfigKey{Scopes: []Scope{ScopeNodeRuntime}, NotBefore: f.now, NotAfter: f.now.Add(time.Hour)}
	for at, ok := range map[time.Duration]bool{
		-snapshot.ClockTolerance - 1: false, -snapshot.ClockTolerance: true, time.Hour - 1: true, time.Hour: false,
	} {
		if msg := key.trusts(ScopeNodeRuntime, f.now.Add(at)); (msg == "") != ok {
			t.Errorf("a key at %v: %q", at, msg)
		}
	}
}

// During a rotation two keys sign. One trusted valid signature is enough, and
// what a node does not know is passed over.
func TestDualSignatures(t *testing.T) {
	f := newFleet(t)
	stranger := newKey(t)
	draft := must(Compose(f.bootstrapHeader(), f.bootstrapContent()))
	both := must(draft.Publish(f.record(), f.keys[0], f.keys[1]))
	withKeys := func(edit func([]ConfigKey) []ConfigKey) *Verified {
		return f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys = edit(b.ConfigKeys) }), Trust{
			Me: f.me, Incarnation: f.incarnation, ConfigRoot: public(f.root)})
	}
	revoke := func(i int) *Verified {
		return withKeys(func(k []ConfigKey) []ConfigKey { k[i].Revoked = true; return k })
	}
	spoil := func(s *Signed, i int) *Signed {
		c := must(Unmarshal(must(s.Marshal())))
		c.Publication.Signatures[i].Bytes[3]++
		return c
	}
	unknown := must(Unmarshal(must(both.Marshal())))
	unknown.Publication.Signatures[0].Algorithm = "ml-dsa-65-tree"
	for _, c := range []struct {
		name   string
		signed *Signed
		bundle *Verified
		keys   []int
	}{
		{"both", both, f.bundle, []int{0, 1}},
		{"only the old key known", both, withKeys(func(k []ConfigKey) []ConfigKey { return k[:1] }), []int{0}},
		{"only the new key known", both, withKeys(func(k []ConfigKey) []ConfigKey { return k[1:] }), []int{1}},
		{"old key revoked", both, revoke(0), []int{1}},
		{"new key revoked", both, revoke(1), []int{0}},
		{"first spoilt", spoil(both, 0), f.bundle, []int{1}},
		{"second spoilt", spoil(both, 1), f.bundle, []int{0}},
		{"stranger first", must(draft.Publish(f.record(), stranger, f.keys[0])), f.bundle, []int{0}},
		{"unknown algorithm first", unknown, f.bundle, []int{1}},
		{"unknown key type in the bundle", both, withKeys(func(k []ConfigKey) []ConfigKey {
			k[0].Algorithm, k[0].Key = "ml-dsa-65-tree", append([]byte{0}, make([]byte, 900)...)
			return k
		}), []int{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			trust := f.trust()
			trust.Bundle = c.bundle
			v := f.mustVerify(t, c.signed, trust)
			var want []string
			for _, i := range c.keys {
				want = append(want, snapshot.KeyIDOf(public(f.keys[i])))
			}
			if got := v.SignerKeyIDs(); !slices.Equal(got, want) {
				t.Fatalf("trusted signers %v, want %v", got, want)
			}
		})
	}
	t.Run("neither", func(t *testing.T) {
		_, err := Verify(spoil(spoil(both, 0), 1), f.trust(), Marks{}, f.now)
		wantRefused(t, err, checkSignature, snapshot.ReasonSignature)
	})
	// A revoked key that signs twice, under two ids, is still one revoked key.
	t.Run("revoked key twice", func(t *testing.T) {
		s := must(draft.Publish(f.record(), f.keys[0], f.keys[0]))
		trust := f.trust()
		trust.Bundle = revoke(0)
		_, err := Verify(s, trust, Marks{}, f.now)
		wantRefused(t, err, checkSigner, snapshot.ReasonSigner)
	})
	t.Run("bundle", func(t *testing.T) {
		d := must(Compose(f.bundleHeader(), f.bundleContent()))
		f.mustVerify(t, must(d.Sign(stranger, f.root)), f.trust())
		f.mustVerify(t, must(d.Sign(f.root, stranger)), f.trust())
	})
}

// A revoked key stays revoked, and in the bundle until it is over: a bundle that
// drops it would make room for one that lists it anew. A key that is revoked by name
// stays revoked for good.
func TestRevocationsAccumulate(t *testing.T) {
	f := newFleet(t)
	revoked := f.mustVerify(t, f.signedBundle(t, func(_ *Header, b *TrustBundle) { b.ConfigKeys[0].Revoked = true }), f.trust())
	trust := f.trust()
	trust.Bundle = revoked
	_, err := Verify(f.signedBundle(t), trust, Marks{}, f.now)
	wantRefused(t, err, checkContent, snapshot.ReasonContent)
	dropped := func(_ *Header, b *TrustBundle) { b.ConfigKeys = b.ConfigKeys[1:] }
	_, err = Verify(f.signedBundle(t, dropped), trust, Marks{}, f.now)
	wantRefused(t, err, checkContent, snapshot.ReasonContent)
	over := f.bundleContent().ConfigKeys[0].NotAfter
	later := f.signedBundle(t, dropped, func(h *Header, _ *TrustBundle) {
		h.IssuedAt, h.ValidFrom, h.ExpiresAt, h.RefreshAfter = over, over, over.Add(time.Hour), over.Add(time.Minute)
	})
	if _, err := Verify(later, trust, Marks{}, over); err != nil {
		t.Fatalf("a bundle without a revoked key that has expired: %v", err)
	}

	named := func(names ...string) func(*Header, *TrustBundle) {
		return func(_ *Header, b *TrustBundle) {
			for _, n := range names {
				b.Revoked = append(b.Revoked, Revoked{snapshot.RevokedService, n})
			}
		}
	}
	trust.Bundle = f.mustVerify(t, f.signedBundle(t, named("web")), f.trust())
	f.mustVerify(t, f.signedBundle(t, named("db", "web")), trust)
	for _, names := range [][]string{nil, {"db"}} {
		_, err := Verify(f.signedBundle(t, named(names...)), trust, Marks{}, f.now)
		wantRefused(t, err, checkContent, snapshot.ReasonContent)
	}
	was, _ := trust.Bundle.TrustBundle()
	if must(was.Revocations()) == must(f.bundleContent().Revocations()) {
		t.Fatal("the digest of the revocations does not show that a service was revoked")
	}

	before, after := must(f.bundleContent().Revocations()), Digest{}
	if b, ok := revoked.TrustBundle(); ok {
		after = must(b.Revocations())
	}
	if before == after || after.IsZero() {
		t.Fatal("the digest of the revocations does not show that a key was revoked")
	}
}

// A result of Verify shares nothing with what it was given or gave before.
func TestVerifiedIsImmutable(t *testing.T) {
	f := newFleet(t)
	s := f.signedBootstrap(t)
	v := f.mustVerify(t, s, f.trust())
	text := v.ContentJSON()
	clear(s.Content)
	clear(s.Header)
	b, _ := v.NodeBootstrap()
	b.Members[0].State, b.Roles[0], b.Coordinators[0] = "x", "x", "x"
	h := v.Header()
	h.Roles[0] = "x"
	again, _ := v.NodeBootstrap()
	if again.Members[0].State != MemberActive || again.Roles[0] != "ingress" || v.Header().Roles[0] != "ingress" ||
		again.Coordinators[0] != f.bootstrapContent().Coordinators[0] || v.ContentJSON() != text || text[0] != '{' {
		t.Fatalf("a verified snapshot changed: %+v", again)
	}
	bundle, _ := f.bundle.TrustBundle()
	clear(bundle.ConfigRoot)
	clear(bundle.ConfigKeys[0].Key)
	clear(bundle.Roots[0])
	clear(bundle.Signers.Keys[0].Key)
	bundle.ConfigKeys[0].Scopes[0] = "x"
	kept, _ := f.bundle.TrustBundle()
	if !kept.ConfigRoot.Equal(public(f.root)) || !ed25519.PublicKey(kept.ConfigKeys[0].Key).Equal(public(f.keys[0])) ||
		!bytes.Equal(kept.Roots[0], f.ca.Root().Cert.Raw) || kept.ConfigKeys[0].Scopes[0] == "x" || !kept.Signers.Keys[0].Key.Equal(f.signers[0]) {
		t.Fatal("a verified bundle changed")
	}
}

// A compiler cannot sign by mistake what a node would refuse.
func TestComposeRefuses(t *testing.T) {
	f := newFleet(t)
	for _, c := range []struct {
		name  string
		check int
		bend  func(*Header, *NodeBootstrap)
	}{
		{"another cluster", checkCluster, func(h *Header, _ *NodeBootstrap) { h.ClusterID = "test.example" }},
		{"group", checkSubject, func(h *Header, _ *NodeBootstrap) { h.Subject = ClusterSubject() }},
		{"nobody", checkSchema, func(h *Header, _ *NodeBootstrap) { h.Subject = Subject{} }},
		{"no time", checkSchema, func(h *Header, _ *NodeBootstrap) { h.ExpiresAt = time.Time{} }},
		{"fraction of a second", checkSchema, func(h *Header, _ *NodeBootstrap) { h.IssuedAt = h.IssuedAt.Add(1) }},
		{"increment", checkSchema, func(h *Header, _ *NodeBootstrap) { h.Base = new(Base) }},
		{"no epoch", checkEpoch, func(h *Header, _ *NodeBootstrap) { h.AuthorityEpoch = 0 }},
		{"version above 2^53", checkVersion, func(h *Header, _ *NodeBootstrap) { h.ConfigVersion = snapshot.MaxVersion + 1 }},
		{"refresh at the end", checkValidity, func(h *Header, _ *NodeBootstrap) { h.RefreshAfter = h.ExpiresAt }},
		{"roles beyond the header", checkGrants, func(_ *Header, b *NodeBootstrap) { b.Roles = []string{"egress"} }},
		{"no coordinators", checkContent, func(_ *Header, b *NodeBootstrap) { b.Coordinators = nil }},
		{"fraction of a second of life", checkContent, func(_ *Header, b *NodeBootstrap) { b.SVIDTTL++ }},
		{"too many members", checkContent, func(_ *Header, b *NodeBootstrap) { b.Members = members(snapshot.MaxMembers + 1) }},
		{"content above the limit", checkLimits, func(_ *Header, b *NodeBootstrap) { b.Members = members(snapshot.MaxMembers) }},
		{"secret", checkSecret, func(_ *Header, b *NodeBootstrap) { b.Entry = "fealty1_x" }},
		{"secret in the header", checkSecret, func(h *Header, _ *NodeBootstrap) { h.ScopeIDs = []string{"fealty1_x"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, b := f.bootstrapHeader(), f.bootstrapContent()
			c.bend(&h, b)
			_, err := Compose(h, b)
			wantRefused(t, err, c.check, Reason(snapshot.ReasonOf(c.check)))
		})
	}
	if _, err := Compose(f.header(), nil); err == nil {
		t.Error("composed nothing")
	}
	if _, err := new(Draft).Sign(f.root); err == nil {
		t.Error("signed what was never composed")
	}
	d := must(Compose(f.bootstrapHeader(), f.bootstrapContent()))
	if _, err := d.Sign(f.keys[0]); err == nil {
		t.Error("a node bootstrap was signed by itself")
	}
	if _, err := d.Publish(f.record()); err == nil {
		t.Error("published without a key")
	}
	if _, err := d.Publish(f.record(), f.ca.Root().Key); err == nil {
		t.Error("published with an ECDSA key")
	}
	for name, bend := range map[string]func(*Record){
		"never fresh": func(r *Record) { r.FreshUntil = r.IssuedAt },
		"no epoch":    func(r *Record) { r.AuthorityEpoch = 0 },
		"generation":  func(r *Record) { r.Generation = snapshot.MaxVersion + 1 },
		"no time":     func(r *Record) { r.IssuedAt = time.Time{} },
	} {
		r := f.record()
		bend(&r)
		if _, err := d.Publish(r, f.keys[0]); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	if _, err := f.record().Sign(f.keys[0]); err == nil {
		t.Error("signed a record without a tree")
	}
	// Equal input, equal bytes: recompiling commits nothing.
	again := must(Compose(f.bootstrapHeader(), f.bootstrapContent()))
	if !bytes.Equal(d.HeaderBytes(), again.HeaderBytes()) || !bytes.Equal(d.ContentBytes(), again.ContentBytes()) || d.Leaf() != again.Leaf() {
		t.Error("composing twice gave two snapshots")
	}
}
