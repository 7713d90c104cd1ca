package identity_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/identity"
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

// A server decides by the peer's standing before it looks at the identity.
func ExampleFromContext() {
	decide := func(ctx context.Context) string {
		peer := identity.FromContext(ctx)
		switch peer.Standing() {
		case identity.Identified:
			return "hello " + peer.ID.Name()
		case identity.Unidentified:
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
