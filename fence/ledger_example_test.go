package fence_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"

	"github.com/fealty-io/fealty/fence"
)

// A receiver may keep its marks in a database of its own: it saves each change before it counts,
// and a receiver that is started again makes all of them.
func ExampleLedger_Set() {
	var rows []fence.Change // of a table
	options := fence.LedgerOptions{BelieveEpochs: true}
	ledger := fence.NewLedger(options)
	admit := func(claim fence.Claim) error { // one at a time
		change, err := ledger.Check(claim)
		if err != nil {
			return err
		}
		rows = append(rows, change) // and commit: with an error nothing is admitted
		ledger.Set(change)
		return nil
	}
	first, second := fence.NewIncarnation(), fence.NewIncarnation()
	claim := func(epoch fence.Epoch, me fence.Incarnation, before ...fence.Incarnation) fence.Claim {
		return fence.Claim{Holder: "shard-a", Resource: "m-1", Lineage: before,
			Token: fence.Token{Epoch: epoch, Sequence: 1, Incarnation: me}}
	}
	fmt.Println(admit(claim(fence.NewEpoch(0, 2), second, first)))

	ledger = fence.NewLedger(options) // after a restart
	for _, row := range rows {
		ledger.Set(row)
	}
	mark := ledger.Mark(fence.Pair{Holder: "shard-a", Resource: "m-1"})
	process := ledger.ProcessOf("shard-a")
	fmt.Println(mark.Epoch, mark.Sequence, process.Incarnation == second)
	stale, _ := errors.AsType[*fence.RefusedError](admit(claim(fence.NewEpoch(0, 1), first)))
	fmt.Println(stale.Reason, stale.Reason == fence.ReasonStale, stale.Mark == mark)
	// Output:
	// <nil>
	// 0.2 1 true
	// stale true true
}

// A service answers by the kind of a refusal, and tells a zombie the reason alone: the marks
// stand in the error, for the log.
func ExampleRefusedError() {
	answer := func(err error) (status int, text string) {
		switch refused, _ := errors.AsType[*fence.RefusedError](err); {
		case errors.Is(err, fence.ErrFenced): // an incident
			return http.StatusConflict, string(refused.Reason)
		case errors.Is(err, fence.ErrRefused):
			return http.StatusPreconditionFailed, string(refused.Reason)
		case errors.Is(err, fence.ErrBusy):
			return http.StatusServiceUnavailable, "later"
		case err != nil:
			return http.StatusBadRequest, "no token"
		}
		return http.StatusOK, "done"
	}
	ledger := fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})
	claim := fence.Claim{Holder: "shard-a", Resource: "m-1",
		Token: fence.Token{Epoch: fence.NewEpoch(0, 1), Sequence: 1, Incarnation: fence.NewIncarnation()}}
	fmt.Println(answer(ledger.Admit(claim)))
	claim.Token.Incarnation = fence.NewIncarnation() // of a copy of the machine, under the same epoch
	err := ledger.Admit(claim)
	fmt.Println(answer(err))
	fmt.Println("raise an alarm:", fence.ReasonClone.Alarm(), errors.Is(err, fence.ErrEnded))
	fmt.Println(answer(claim.Read(fence.Authority{}, []string{"v1:none"}, nil, nil)))
	// Output:
	// 200 done
	// 409 clone
	// raise an alarm: true true
	// 400 no token
}

// A sender that hears that it was overtaken sends nothing any more; one whose domain moved on
// goes on with what else it has.
func ExampleSender_Heard() {
	sender, err := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, answer := range []error{ // as package fencegrpc or fencehttp brings them
		&fence.RefusedError{Reason: fence.ReasonMoved}, &fence.RefusedError{Reason: fence.ReasonStale}} {
		_ = sender.Heard(answer)
		_, err := sender.Next(0, []byte("drain m-1"))
		fmt.Println(errors.Is(answer, fence.ErrEnded), errors.Is(err, fence.ErrFenced))
	}
	<-sender.Fenced() // an incident: the process stays up to be looked at
	fmt.Println(errors.Is(sender.Err(), fence.ErrFenced))
	// Output:
	// false false
	// true true
	// true
}

// Epochs are compared as numbers: any life under a later grant is after all lives before it.
func ExampleEpoch() {
	last := fence.NewEpoch(1, math.MaxUint32)
	fmt.Println(last, last.Grant(), last.Life(), fence.NewEpoch(2, 1) > last)
	_, err := last.Next() // four billion starts later
	fmt.Println("ask for a new grant:", errors.Is(err, fence.ErrExhausted))
	// Output:
	// 1.4294967295 1 4294967295 true
	// ask for a new grant: true
}

// Texts that travel are read in one spelling alone.
func ExampleParseLineage() {
	lineage := fence.Lineage{fence.NewIncarnation(), fence.NewIncarnation()}
	read, err := fence.ParseLineage(lineage.String())
	fmt.Println(len(read), read[1] == lineage[1], err)
	me, err := fence.ParseIncarnation(lineage[0].String())
	fmt.Println(me == lineage[0], err)
	_, err = fence.ParseIncarnation("00000000000000000000000000000000") // nobody
	fmt.Println(errors.Is(err, fence.ErrMalformed))
	// Output:
	// 2 true <nil>
	// true <nil>
	// true
}
