package main

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// snapshots returns files with snapshots of a cluster prod.example, made for this
// run: good ones, and some that are not.
func snapshots(t *testing.T) map[string][]byte {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	key := func() ed25519.PrivateKey {
		_, k, err := ed25519.GenerateKey(rand.Reader)
		must(err)
		return k
	}
	public := func(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }
	now := time.Now().UTC().Truncate(time.Second)
	a := pkitest.NewAuthority(t, "prod.example")
	root, signing, signer := key(), key(), key()
	header := snapshot.Header{
		ClusterID: "prod.example", AuthorityEpoch: 1, ConfigVersion: 3, IssuedAt: now.Add(-time.Minute), ValidFrom: now.Add(-time.Minute),
		RefreshAfter: now.Add(12 * time.Hour), ExpiresAt: now.Add(24 * time.Hour),
	}
	marshal := func(s *snapshot.Signed) []byte {
		raw, err := s.Marshal()
		must(err)
		return raw
	}

	h := header
	h.Subject = snapshot.ClusterSubject()
	draft, err := snapshot.Compose(h, &snapshot.TrustBundle{
		ClusterID: "prod.example", AuthorityEpoch: 1, Roots: [][]byte{a.Root().Cert.Raw}, MeshKeys: []identity.KeyID{a.MeshCA().KeyID()},
		ConfigRoot: public(root), Signers: snapshot.Signers{Threshold: 1, Keys: []snapshot.SignerKey{{Name: "alice", Key: public(signer)}}}, Head: snapshot.Head{Index: 1, Hash: snapshot.Digest{1}},
		ConfigKeys: []snapshot.ConfigKey{{Algorithm: internalsnapshot.AlgorithmTree, Key: public(signing), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), Scopes: []snapshot.Scope{snapshot.ScopeNodeRuntime}}},
	})
	must(err)
	bundle, err := draft.Sign(root)
	must(err)

	runtime := func(version uint64, roles []string, signer crypto.Signer) *snapshot.Signed {
		h := header
		h.Subject, h.ConfigVersion, h.Roles = snapshot.NodeSubject(a.ID(t, identity.Data, "db-1"), identity.KeyID{1}), version, roles
		content := &snapshot.NodeRuntime{
			ClusterID: "prod.example", Kind: identity.Data, Roles: roles, Entry: "fleet", State: snapshot.MemberActive,
			Coordinators: []string{"c1.example:7443"}, RenewEvery: time.Hour, SVIDTTL: 2 * time.Hour,
		}
		draft, err := snapshot.Compose(h, content)
		must(err)
		s, err := draft.Publish(snapshot.Record{
			ClusterID: "prod.example", AuthorityEpoch: 1, Generation: version, IssuedAt: now.Add(-time.Minute), FreshUntil: now.Add(time.Hour),
		}, signer)
		must(err)
		return s
	}
	rootKey := a.Root().Key
	signedRoot, err := snapshot.RootStatement{ClusterID: "prod.example", ConfigRoot: public(root), SeedEpoch: 1, IssuedAt: now.Add(-time.Minute)}.Sign(rootKey)
	must(err)

	one := marshal(runtime(5, nil, signing))
	flipped := bytes.Clone(one)
	flipped[bytes.Index(flipped, []byte("fleet"))] ^= 1
	return map[string][]byte{
		"bundle.snap":    marshal(bundle),
		"runtime.snap":   one,
		"later.snap":     marshal(runtime(6, []string{"core"}, signing)),
		"foreign.snap":   marshal(runtime(5, nil, key())),
		"flipped.snap":   flipped,
		"cut.snap":       one[:len(one)-10],
		"long.snap":      append(bytes.Clone(one), 0),
		"magic.snap":     append([]byte("FLTYSNP9"), one[8:]...),
		"empty.snap":     nil,
		"huge.snap":      make([]byte, internalsnapshot.MaxSigned+1),
		"root.statement": signedRoot,
		"root.pin":       []byte(a.Root().KeyID().String()),
		"config.root":    []byte(hex.EncodeToString(public(root))),
		"other.root":     []byte(hex.EncodeToString(public(signing))),
	}
}
