package snapshot_test

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// A trust bundle travels from whoever holds the config root key to a node, which
// verifies it, records it and activates it; a node that gets another one under
// the same version keeps what it has.
func Example() {
	now := time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)
	root, _ := cluster(now) // the cluster's certificate authority
	_, configRoot, _ := ed25519.GenerateKey(nil)
	configKey, _, _ := ed25519.GenerateKey(nil)
	signer, _, _ := ed25519.GenerateKey(nil)

	// On a coordinator:
	header := snapshot.Header{
		ClusterID: "prod.example", Subject: snapshot.ClusterSubject(),
		AuthorityEpoch: 1, ConfigVersion: 1,
		IssuedAt: now, ValidFrom: now, RefreshAfter: now.Add(time.Hour), ExpiresAt: now.Add(720 * time.Hour),
	}
	content := &snapshot.TrustBundle{
		ClusterID: "prod.example", AuthorityEpoch: 1, Roots: [][]byte{root},
		ConfigRoot: configRoot.Public().(ed25519.PublicKey),
		ConfigKeys: []snapshot.ConfigKey{{
			Algorithm: internalsnapshot.AlgorithmTree, Key: configKey, NotBefore: now, NotAfter: now.Add(2000 * time.Hour),
			Scopes: []snapshot.Scope{snapshot.ScopeNodeBootstrap},
		}},
		Signers: snapshot.Signers{Threshold: 1, Keys: []snapshot.SignerKey{{Name: "alice", Key: signer}}},
		Head:    snapshot.Head{Index: 1, Hash: snapshot.DigestOf([]byte("genesis"))},
	}
	publish := func() []byte {
		draft, err := snapshot.Compose(header, content)
		if err != nil {
			panic(err)
		}
		signed, err := draft.Sign(configRoot)
		if err != nil {
			panic(err)
		}
		data, err := signed.Marshal()
		if err != nil {
			panic(err)
		}
		return data
	}
	first := publish()
	content.MeshKeys = []identity.KeyID{{1}}
	second := publish() // the same version, other content

	// On a node:
	me, _ := identity.New("prod.example", identity.Data, "node-c")
	trust := snapshot.Trust{Me: me, Incarnation: identity.KeyID{7}, ConfigRoot: configRoot.Public().(ed25519.PublicKey)}
	var marks snapshot.Marks
	for _, data := range [][]byte{first, second} {
		signed, err := snapshot.Unmarshal(data)
		if err != nil {
			panic(err)
		}
		verified, err := snapshot.Verify(signed, trust, marks, now)
		if rejected, ok := errors.AsType[*snapshot.RejectedError](err); ok {
			fmt.Println("refused:", rejected.Check, rejected.Reason, rejected.Reason == snapshot.ReasonEquivocation)
			continue
		}
		marks, err = snapshot.Accept(marks, verified) // keep them durably, then activate
		if err != nil {
			panic(err)
		}
		trust.Bundle = verified
		bundle, _ := verified.TrustBundle()
		fmt.Println("active: version", verified.Header().ConfigVersion, "with", len(bundle.ConfigKeys), "config key")
	}
	// Output:
	// active: version 1 with 1 config key
	// refused: 9 equivocation true
}

// A subject is one node, a group of nodes with the same roles and organizations, or the whole
// cluster. As a text it stands in headers and in the marks of a node.
func ExampleParseSubject() {
	id, _ := identity.New("prod.example", identity.Data, "node-c")
	node := snapshot.NodeSubject(id, identity.KeyID{7})
	group := snapshot.GroupSubject([]string{"ingress", "core"}, []string{"acme"})
	for _, s := range []snapshot.Subject{node, group, snapshot.ClusterSubject()} {
		same, err := snapshot.ParseSubject(s.String())
		fmt.Printf("%.48s %t %v\n", s, same == s, err)
	}
	fmt.Println(group == snapshot.GroupSubject([]string{"core", "ingress"}, []string{"acme"}))
	// Output:
	// node:spiffe://prod.example/data/node-c#070000000 true <nil>
	// group:4be1813e340ddef92bd8cf5a719cdf912f173d0cc5 true <nil>
	// cluster true <nil>
	// true
}

func cluster(now time.Time) (root []byte, name string) {
	a := pkitest.NewAuthority(exampleTB{}, "prod.example", pkitest.WithClock(func() time.Time { return now }))
	return slices.Clone(a.Root().Cert.Raw), a.Cluster()
}

// exampleTB lets an example, which has no testing.TB, use identitytest.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
