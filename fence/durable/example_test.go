package durable_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
)

// A receiver that is started again refuses whom it refused before. Enrol it once, when it
// is made, and open it at every start after that.
func ExampleLedger() {
	dir, err := os.MkdirTemp("", "receiver")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	options := durable.LedgerOptions{BelieveEpochs: true} // here is no authority that grants epochs

	ledger, err := durable.EnrolLedger(dir, options)
	if err != nil {
		fmt.Println(err) // it says how to mend it
		return
	}
	gate := fence.NewGate(ledger, 0)
	drain := func(epoch fence.Epoch, me fence.Incarnation, before fence.Lineage) error {
		claim := fence.Claim{Holder: "shard-a", Resource: "m-1", Lineage: before,
			Token: fence.Token{Epoch: epoch, Sequence: 1, Incarnation: me}}
		return gate.Do(context.Background(), claim, func(context.Context) error {
			fmt.Println("m-1 drains for epoch", epoch) // its mark is on disk now
			return nil
		})
	}
	first, second := fence.NewIncarnation(), fence.NewIncarnation()
	fmt.Println(drain(fence.NewEpoch(0, 2), second, fence.Lineage{first}))
	fmt.Println(ledger.Close())

	ledger, err = durable.OpenLedger(dir, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ledger.Close()
	gate = fence.NewGate(ledger, 0)
	fmt.Println("a zombie is fenced:", errors.Is(drain(fence.NewEpoch(0, 1), first, nil), fence.ErrFenced))
	// Output:
	// m-1 drains for epoch 0.2
	// <nil>
	// <nil>
	// a zombie is fenced: true
}

// A holder begins a life of its own with every start, so that a receiver tells it from what it
// was before. Its directory is for one process.
func ExampleEpoch() {
	dir, err := os.MkdirTemp("", "holder")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	options := durable.EpochOptions{} // no authority grants anything here

	_, err = durable.OpenEpoch(dir, options)
	fmt.Println("never enrolled:", errors.Is(err, durable.ErrMissing))
	epoch, err := durable.EnrolEpoch(dir, options) // once
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(epoch.Life().Epoch, epoch.Close())

	epoch, err = durable.OpenEpoch(dir, options) // at every start after that
	if err != nil {
		fmt.Println(err)
		return
	}
	defer epoch.Close()
	token, err := epoch.Sender().Next(0, []byte("drain m-1"))
	fmt.Println(token.Epoch, token.Sequence, err)
	_, err = durable.OpenEpoch(dir, options)
	fmt.Println("a second process:", errors.Is(err, durable.ErrLocked))
	// Output:
	// never enrolled: true
	// 0.1 <nil>
	// 0.2 1 <nil>
	// a second process: true
}

// A member that is started again still refuses the leader that was deposed before.
func ExampleTerm() {
	dir, err := os.MkdirTemp("", "member")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	term, err := durable.EnrolTerm(dir) // once, when the member joins
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(term.Check(7), term.Close()) // it is on disk before it passes
	_, err = durable.EnrolTerm(dir)
	fmt.Println("once:", errors.Is(err, durable.ErrEnrolled))

	if term, err = durable.OpenTerm(dir); err != nil {
		fmt.Println(err)
		return
	}
	defer term.Close()
	fmt.Println(term.Mark(), errors.Is(term.Check(6), fence.ErrStaleTerm))
	// Output:
	// <nil> <nil>
	// once: true
	// 7 true
}

// A ledger that is damaged is never taken for a new one. Somebody mends it, since an authority
// epoch under which every domain is assigned anew: what was signed before counts for nothing.
func ExampleMendLedger() {
	dir, err := os.MkdirTemp("", "receiver")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	options := durable.LedgerOptions{Cluster: "prod.example", RequireDomain: true}
	ledger, err := durable.EnrolLedger(dir, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ledger.Close())
	if err := os.WriteFile(filepath.Join(dir, "ledger"), []byte("what a bad disk gave"), 0o600); err != nil {
		panic(err)
	}

	_, err = durable.OpenLedger(dir, options)
	if !errors.Is(err, durable.ErrCorrupt) {
		fmt.Println(err)
		return
	}
	ledger, err = durable.MendLedger(dir, options, 9) // by hand, and never as a start does
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ledger.Close()
	status := ledger.Status() // for metrics and alarms
	fmt.Println("since", status.Since, status.Broken, status.Rewriting)
	// Output:
	// <nil>
	// since 9 <nil> <nil>
}

// An authority grants a holder anew when its state was lost: an epoch under a later grant is after
// all lives of before.
func ExampleEpochOptions() {
	dir, err := os.MkdirTemp("", "holder")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	public, private, _ := ed25519.GenerateKey(nil)
	grant := func(number uint32) string { // as the authority does, which counts
		statement := fence.Grant{Cluster: "prod.example", Holder: "shard-a", Number: number, AuthorityEpoch: 1}
		text, err := statement.Sign(private)
		if err != nil {
			panic(err)
		}
		return text
	}
	options := durable.EpochOptions{Holder: "shard-a", Authority: fence.Authority{Cluster: "prod.example",
		Key: func(id string) (ed25519.PublicKey, bool) { return public, id == fence.KeyID(public) }}}

	options.Grant = grant(5)
	epoch, err := durable.MendEpoch(dir, options) // somebody decided so, after the disk was lost
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(epoch.Life().Epoch, epoch.Close())
	if epoch, err = durable.OpenEpoch(dir, options); err != nil { // at each start after that
		fmt.Println(err)
		return
	}
	fmt.Println(epoch.Life().Epoch, epoch.Close())
	options.Grant = grant(4)
	_, err = durable.OpenEpoch(dir, options)
	fmt.Println("a grant of before:", errors.Is(err, durable.ErrSuperseded))
	// Output:
	// 5.1 <nil>
	// 5.2 <nil>
	// a grant of before: true
}

// A ledger that could not save something admits nothing, until somebody has made room and it was
// written anew.
func ExampleLedger_Rewrite() {
	dir, err := os.MkdirTemp("", "receiver")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ledger, err := durable.EnrolLedger(dir, durable.LedgerOptions{Cluster: "prod.example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	repair := func() error { // as a program does that is asked to by its operator
		if !errors.Is(ledger.Status().Broken, durable.ErrBroken) {
			return nil
		}
		return ledger.Rewrite(context.Background())
	}
	fmt.Println(repair(), ledger.Close())
	_, err = durable.OpenLedger(dir, durable.LedgerOptions{Cluster: "test.example"})
	fmt.Println("of another cluster:", errors.Is(err, durable.ErrOtherCluster))
	// Output:
	// <nil> <nil>
	// of another cluster: true
}
