package durable_test

import (
	"context"
	"errors"
	"fmt"
	"os"

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
	options := fence.LedgerOptions{BelieveEpochs: true} // here is no authority that grants epochs

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
