package pkitest_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// exampleTB lets an example, which has no testing.TB, use the package.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// An authority of its own gives a test certificates that verify, and others that must not.
func ExampleAuthority() {
	tb := exampleTB{} // in a test, t
	authority := pkitest.NewAuthority(tb, "test.example")
	node := authority.ID(tb, identity.Data, "node-a")

	chain, _ := authority.Issue(tb, node)
	verified, err := authority.Bundle().Verify(chain, time.Now())
	fmt.Println(verified.ID, err)

	chain, _ = authority.Issue(tb, node, pkitest.Expired())
	_, err = authority.Bundle().Verify(chain, time.Now())
	fmt.Println(errors.Is(err, identity.ErrExpired))

	stranger := pkitest.NewAuthority(tb, "test.example")
	chain, _ = stranger.Issue(tb, node)
	_, err = authority.Bundle().Verify(chain, time.Now())
	fmt.Println(errors.Is(err, identity.ErrUntrusted))
	// Output:
	// spiffe://test.example/data/node-a <nil>
	// true
	// true
}
