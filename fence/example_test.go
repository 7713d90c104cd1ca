package fence_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/fence"
)

// A service of one's own is fenced with a gate, and its clients with a sender each. No
// Fealty coordinator is needed. In a real service both keep their state on disk, with
// package fence/durable, and the holder's name comes from the client's certificate.
func Example() {
	gate := fence.NewGate(fence.InMemory(fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})), 0)
	serve := func(holder, machine, command string, token fence.Token, lineage fence.Lineage) error {
		claim := fence.Claim{Holder: holder, Resource: machine, Token: token, Lineage: lineage}
		return gate.Do(context.Background(), claim, func(context.Context) error {
			fmt.Println(machine, command)
			return nil
		})
	}
	call := func(s *fence.Sender, machine, command string) error {
		token, err := s.Next(0, []byte(command))
		if err != nil {
			return err
		}
		return s.Heard(serve("shard-a", machine, command, token, s.Life().Lineage))
	}

	first := fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()}
	zombie, _ := fence.NewSender(first)
	fmt.Println(call(zombie, "m-1", "start"))

	// The process hangs, and is started again; then the first one wakes up.
	successor, _ := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(0, 2), Incarnation: fence.NewIncarnation(),
		Lineage: fence.Lineage{first.Incarnation}})
	fmt.Println(call(successor, "m-1", "drain"))
	fmt.Println(errors.Is(call(zombie, "m-1", "delete"), fence.ErrFenced))
	fmt.Println(errors.Is(call(zombie, "m-2", "delete"), fence.ErrFenced))
	// Output:
	// m-1 start
	// <nil>
	// m-1 drain
	// <nil>
	// true
	// true
}
