package fence_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/fence"
)

// An authority moves a domain from one holder to another: once the receiver has promised it to
// the second, nothing that the first one sends is obeyed.
func ExampleGate_Promise() {
	ctx := context.Background()
	public, private, _ := ed25519.GenerateKey(nil) // the authority's, which the receiver knows the half of
	authority := fence.Authority{Cluster: "prod.example", Key: func(id string) (ed25519.PublicKey, bool) {
		return public, id == fence.KeyID(public)
	}}
	options := fence.LedgerOptions{Cluster: "prod.example", BelieveEpochs: true}
	gate := fence.NewGate(fence.InMemory(fence.NewLedger(options)), 0)
	promise := func(holder string, ownership uint64) error {
		text, err := fence.Assignment{Cluster: "prod.example", Domain: "eu", Holder: holder, Ownership: ownership,
			AuthorityEpoch: 1}.Sign(private)
		if err != nil {
			return err
		}
		assignment, err := authority.OpenAssignment(text) // as it came to the receiver, from anybody
		if err != nil {
			return err
		}
		return gate.Promise(ctx, assignment)
	}
	drain := func(holder string, ownership, sequence uint64, me fence.Incarnation) error {
		return gate.Do(ctx, fence.Claim{Holder: holder, Resource: "m-1", Domain: "eu", Token: fence.Token{
			Ownership: ownership, Epoch: fence.NewEpoch(0, 1), Sequence: sequence, Incarnation: me}},
			func(context.Context) error { return nil })
	}
	a, b := fence.NewIncarnation(), fence.NewIncarnation()
	fmt.Println(promise("shard-a", 1), drain("shard-a", 1, 1, a))
	fmt.Println(promise("shard-b", 2), drain("shard-b", 2, 1, b))
	refused, _ := errors.AsType[*fence.RefusedError](drain("shard-a", 1, 2, a))
	fmt.Println(refused.Reason, refused.Reason == fence.ReasonMoved)
	late, _ := errors.AsType[*fence.PromiseError](promise("shard-a", 1))
	fmt.Println(late.Reason, late.Mark.Holder, late.Mark.Ownership)
	// Output:
	// <nil> <nil>
	// <nil> <nil>
	// moved true
	// moved shard-b 2
}

// A service with a protocol of its own sends three texts beside each request, and reads them on
// the other end. The zero options are the strictest: a holder shows what the authority granted.
func ExampleClaim_Read() {
	public, private, _ := ed25519.GenerateKey(nil)
	authority := fence.Authority{Cluster: "prod.example", Key: func(id string) (ed25519.PublicKey, bool) {
		return public, id == fence.KeyID(public)
	}}
	grant, err := fence.Grant{Cluster: "prod.example", Holder: "shard-a", Number: 1, AuthorityEpoch: 1}.Sign(private)
	if err != nil {
		fmt.Println(err)
		return
	}
	life := fence.Life{Epoch: fence.NewEpoch(1, 1), Incarnation: fence.NewIncarnation(), Grant: grant}
	sender, err := fence.NewSender(life)
	if err != nil {
		fmt.Println(err)
		return
	}
	request := []byte("drain m-1")
	token, err := sender.Next(0, request)
	if err != nil {
		fmt.Println(err)
		return
	}
	header := map[string][]string{"token": {token.String()}, "lineage": {life.Lineage.String()}, "grant": {life.Grant}}

	ledger := fence.NewLedger(fence.LedgerOptions{Cluster: "prod.example"})
	receive := func(request []byte, header map[string][]string) error {
		claim := fence.Claim{Holder: "shard-a", Resource: "m-1"} // the holder is the certificate's
		if err := claim.Read(authority, header["token"], header["lineage"], header["grant"]); err != nil {
			return err
		}
		if claim.Token.Digest != fence.DigestOf(request) {
			return errors.New("the token is of another request")
		}
		return ledger.Admit(claim)
	}
	fmt.Println(errors.Is(receive(request, nil), fence.ErrMalformed))
	fmt.Println(receive(request, header))
	twice, _ := errors.AsType[*fence.RefusedError](receive(request, header))
	fmt.Println(twice.Reason, twice.Reason == fence.ReasonDuplicate, errors.Is(twice, fence.ErrFenced))
	// Output:
	// true
	// <nil>
	// duplicate true false
}

// A member obeys the newest leader that it heard of, and believes a term that the authority
// signed: anybody can say a number.
func ExampleTerm() {
	public, private, _ := ed25519.GenerateKey(nil)
	authority := fence.Authority{Cluster: "prod.example", Key: func(id string) (ed25519.PublicKey, bool) {
		return public, id == fence.KeyID(public)
	}}
	var seen fence.Term // of a durable.OpenTerm, where it outlives the process
	obey := func(statement string) error {
		signed, err := authority.OpenTerm(statement)
		if err != nil {
			return err
		}
		term, _ := signed.Get()
		return seen.Check(term.Term)
	}
	of := func(term int64, key ed25519.PrivateKey) string {
		text, err := fence.TermStatement{Cluster: "prod.example", Term: term, AuthorityEpoch: 1}.Sign(key)
		if err != nil {
			panic(err)
		}
		return text
	}
	fmt.Println(obey(of(4, private)))
	fmt.Println(obey(of(5, private)))
	stale, _ := errors.AsType[*fence.StaleTermError](obey(of(4, private)))
	fmt.Println(stale.Got, "is before", stale.Mark, errors.Is(stale, fence.ErrStaleTerm))
	_, stranger, _ := ed25519.GenerateKey(nil)
	fmt.Println(errors.Is(obey(of(1_000_000, stranger)), fence.ErrUntrusted), seen.Mark())
	// Output:
	// <nil>
	// <nil>
	// 4 is before 5 true
	// true 5
}
