package credential_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/identitytest"
)

// exampleTB lets an example, which has no testing.TB, use identitytest.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// A source keeps what is good: material of somebody else does not take its place.
func ExampleIssued() {
	tb := exampleTB{}
	authority := identitytest.NewAuthority(tb, "prod.example")
	issue := func(name string) (*credential.Material, error) {
		chain, key := authority.Issue(tb, authority.ID(tb, identity.Data, name))
		return credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
	}
	m, err := issue("node-a")
	if err != nil {
		fmt.Println(err)
		return
	}
	source := credential.NewIssued(m)

	other, err := issue("node-b")
	if err != nil {
		fmt.Println(err)
		return
	}
	refused, _ := errors.AsType[*credential.MaterialError](source.Adopt(other))
	fmt.Println(refused.Reason)

	if m, err = source.Current(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.ID())
	// Output:
	// OtherIdentity
	// spiffe://prod.example/data/node-a
}

// A client says whom it expects before it dials; one that expects nobody gets no
// configuration.
func ExampleClientTLS() {
	tb := exampleTB{}
	authority := identitytest.NewAuthority(tb, "prod.example")
	chain, key := authority.Issue(tb, authority.ID(tb, identity.Data, "node-a"))
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = credential.ClientTLS(credential.Static(m), credential.AnyOfKind(identity.Coordinator), credential.ClientOptions{})
	fmt.Println(err)
	_, err = credential.ClientTLS(credential.Static(m), credential.Expect{}, credential.ClientOptions{})
	fmt.Println(errors.Is(err, credential.ErrNoExpectation))
	// Output:
	// <nil>
	// true
}
