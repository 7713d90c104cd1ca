package identity_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

func ExampleParse() {
	id, err := identity.Parse("spiffe://prod.example/shard/eu-1")
	fmt.Println(id.Cluster(), id.Kind(), id.Name(), err)

	_, err = identity.Parse("spiffe://prod.example/shard/eu-1#")
	fmt.Println(errors.Is(err, identity.ErrInvalidID))
	// Output:
	// prod.example shard eu-1 <nil>
	// true
}

// A server asks whether the peer is identified before it looks at the identity.
func ExampleFromContext() {
	decide := func(ctx context.Context) string {
		peer := identity.FromContext(ctx)
		switch {
		case peer.Identified():
			return "hello " + peer.ID.Name()
		case peer.Err != nil:
			return "permission denied: " + peer.Err.Error()
		}
		return "unauthenticated"
	}
	id, err := identity.New("prod.example", identity.Operator, "tenant-7")
	if err != nil {
		fmt.Println(err)
	}
	ctx := context.Background()
	fmt.Println(decide(identity.NewContext(ctx, identity.Peer{ID: id})))
	fmt.Println(decide(identity.NewContext(ctx, identity.Peer{Err: identity.ErrNoIdentity})))
	fmt.Println(decide(ctx))
	// Output:
	// hello tenant-7
	// permission denied: no usable identity
	// unauthenticated
}

// A bundle decides who is believed: a ban counts at once, whatever the certificate says.
func ExampleBundle_Verify() {
	tb := exampleTB{}
	authority := pkitest.NewAuthority(tb, "prod.example") // who issues in a real cluster
	node := authority.ID(tb, identity.Data, "node-a")
	chain, _ := authority.Issue(tb, node)

	cfg := authority.BundleConfig()
	bundle, err := identity.NewBundle(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	verified, err := bundle.Verify(chain, time.Now())
	fmt.Println(verified.ID, err)

	cfg.BannedIDs = []identity.ID{node}
	if bundle, err = identity.NewBundle(cfg); err != nil {
		fmt.Println(err)
		return
	}
	_, err = bundle.Verify(chain, time.Now())
	fmt.Println(errors.Is(err, identity.ErrBanned))
	// Output:
	// spiffe://prod.example/data/node-a <nil>
	// true
}

// Each certificate has one identity, or none: who reads it learns why.
func ExampleFromCertificate() {
	tb := exampleTB{}
	authority := pkitest.NewAuthority(tb, "prod.example")
	chain, _ := authority.Issue(tb, authority.ID(tb, identity.Workload, "billing/api"))
	leaf, meshCA := chain[0], chain[1]

	id, err := identity.FromCertificate(leaf) // of a chain that Verify believes
	fmt.Println(id.Name(), identity.KeyOf(leaf) == identity.KeyOf(meshCA), err)

	_, err = identity.FromCertificate(meshCA)
	if none, ok := errors.AsType[*identity.SANError](err); ok {
		fmt.Println(none.Reason, none.Count, errors.Is(err, identity.ErrNoIdentity))
	}
	// Output:
	// billing/api false <nil>
	// absent 0 true
}

// A refusal says which rule refused which certificate, and by its reason what to do about it.
func ExampleChainError() {
	tb := exampleTB{}
	authority := pkitest.NewAuthority(tb, "prod.example")
	node := authority.ID(tb, identity.Data, "node-a")
	advise := func(chain []*x509.Certificate) {
		_, err := authority.Bundle().Verify(chain, time.Now())
		refused, ok := errors.AsType[*identity.ChainError](err)
		switch {
		case !ok:
			fmt.Println("believed")
		case errors.Is(err, identity.ErrExpired): // or the clock is wrong
			since := refused.Now.Sub(refused.NotAfter)
			fmt.Println(refused.Certificate, "ended", since.Round(time.Hour), "ago: renew it")
		case errors.Is(err, identity.ErrUntrusted):
			fmt.Println(refused.Rule, "is of another authority: look who calls")
		case errors.Is(err, identity.ErrProfile):
			fmt.Println(refused.Rule, "is against", refused.Section)
		}
	}
	chain, _ := authority.Issue(tb, node)
	advise(chain)
	advise(chain[:1])
	chain, _ = authority.Issue(tb, node, pkitest.Expired())
	advise(chain)
	chain, _ = pkitest.NewAuthority(tb, "prod.example").Issue(tb, node)
	advise(chain)
	// Output:
	// believed
	// chain-length is against RFC 5280 §6.1
	// leaf ended 1h0m0s ago: renew it
	// root-known is of another authority: look who calls
}

// A server decides by what a peer is: by the kind of an identity that was proved, and of a
// process on a unix socket by its user, which is no identity.
func ExamplePeer() {
	may := func(p identity.Peer, write bool) bool {
		switch {
		case p.Local != nil:
			return p.Local.UID == 0
		case !p.Identified():
			return false
		}
		return p.ID.Kind() == identity.Admin || p.ID.Kind() == identity.Readonly && !write
	}
	for _, name := range []string{"admin/alice", "readonly/bob", "data/node-a"} {
		id, err := identity.Parse("spiffe://prod.example/" + name)
		if err != nil {
			fmt.Println(err)
			return
		}
		peer := identity.Peer{ID: id} // as FromContext gives it
		fmt.Println(name, may(peer, false), may(peer, true))
	}
	fmt.Println("root", may(identity.Peer{Local: &identity.Local{UID: 0, PID: 4711}}, true))
	fmt.Println("a stranger", may(identity.Peer{}, false))
	// Output:
	// admin/alice true true
	// readonly/bob true false
	// data/node-a false false
	// root true
	// a stranger false
}

// exampleTB lets an example, which has no testing.TB, use identitytest.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// What people type is checked before there is an identity: a name of a cluster, a kind, the id of a key.
func ExampleCheckCluster() {
	fmt.Println(identity.CheckCluster("prod.example"))
	fmt.Println(errors.Is(identity.CheckCluster("Prod Example"), identity.ErrInvalidID))
	fmt.Println(identity.Kinds())
	// Output:
	// <nil>
	// true
	// [coordinator data witness shard operator provider workload admin readonly]
}

// A key has one id, whether it is known from a certificate or by itself.
func ExampleKeyOfPublic() {
	tb := exampleTB{}
	authority := pkitest.NewAuthority(tb, "prod.example")
	chain, key := authority.Issue(tb, authority.ID(tb, identity.Data, "node-a"))
	id, err := identity.KeyOfPublic(key.Public())
	if err != nil {
		fmt.Println(err)
		return
	}
	pinned, err := identity.ParseKeyID(id.String())
	fmt.Println(pinned == identity.KeyOf(chain[0]), err)
	// Output:
	// true <nil>
}

// A workload is believed as long as the member that vouches for it is: a certificate says which one that is.
func ExampleVoucherOf() {
	tb := exampleTB{}
	authority := pkitest.NewAuthority(tb, "prod.example")
	chain, _ := authority.Issue(tb, authority.ID(tb, identity.Workload, "billing/api"))
	if _, err := authority.Bundle().Verify(chain, time.Now()); err != nil {
		fmt.Println(err)
		return
	}
	member, _, err := identity.VoucherOf(chain[0])
	fmt.Println(member, err)
	// Output:
	// spiffe://prod.example/data/voucher <nil>
}

// A chain of an operator's own PKI is verified by RFC 5280, for the usages that are needed. Its names are shown as they
// were signed.
func ExampleOperatorRoots() {
	tb := exampleTB{}
	pki := pkitest.NewPKI(tb, "corp", nil)
	chain := pki.Issue(tb, pkitest.NewKey(tb), func(c *x509.Certificate) {
		c.URIs = []*url.URL{{Scheme: "https", Host: "inventory.corp.example", Path: "/host/17"}}
	})
	roots, err := identity.NewOperatorRoots([]*x509.Certificate{pki.Root.Cert})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(roots.Verify(chain, time.Now(), x509.ExtKeyUsageClientAuth))
	fmt.Println(identity.URIs(chain[0]))

	stranger := pkitest.NewPKI(tb, "elsewhere", nil)
	err = roots.Verify(stranger.Issue(tb, pkitest.NewKey(tb), nil), time.Now(), x509.ExtKeyUsageClientAuth)
	fmt.Println(errors.Is(err, identity.ErrUntrusted))
	// Output:
	// <nil>
	// [https://inventory.corp.example/host/17] <nil>
	// true
}
