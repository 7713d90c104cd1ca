package identity_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/identitytest"
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
	authority := identitytest.NewAuthority(tb, "prod.example") // who issues in a real cluster
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

// exampleTB lets an example, which has no testing.TB, use identitytest.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
