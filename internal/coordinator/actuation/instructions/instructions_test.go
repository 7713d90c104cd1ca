package instructions_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/instructions"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

const done = fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_DONE

func serverOf(d *coordinatortest.Desk) fealtyv1.InstructionServiceServer {
	return coordinatortest.Served[fealtyv1.InstructionServiceServer](d.C.Parts().Fencing.Instructions.RegisterServices)
}

// as is the context of a call of a member.
func as(m *coordinatortest.Machine) context.Context {
	return identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
}

// shards is a desk with two of them.
func shards(t *testing.T) (d *coordinatortest.Desk, a, b *coordinatortest.Machine) {
	t.Helper()
	d = coordinatortest.ReadyDesk(t, "  - {name: shards, kind: shard, match: [\"token:shards\"]}\n"+
		"  - {name: pool, kind: data, match: [\"token:pool\"]}\n")
	join := func(name string) *coordinatortest.Machine {
		m := d.Machine()
		if err := m.Join(identity.Shard, proof.NewTokenProver(d.Token(&fealtyv1.CreateTokenRequest{Entry: "shards",
			Name: name}))); err != nil {
			t.Fatal(err)
		}
		return m
	}
	return d, join("eu-1"), join("eu-2")
}

func give(d *coordinatortest.Desk, id, member, kind string) (*fealtyv1.InstructResponse, error) {
	return serverOf(d).Instruct(context.Background(), &fealtyv1.InstructRequest{Id: id, Member: member, Kind: kind,
		Reason: "a test"})
}

func mustGive(t *testing.T, d *coordinatortest.Desk, id, member string) {
	t.Helper()
	resp, err := give(d, id, member, instruction.Pause)
	if err != nil || !resp.GetChanged() {
		t.Fatalf("%s: %v, %v", id, resp, err)
	}
}

func takeOver(t *testing.T, d *coordinatortest.Desk) {
	t.Helper()
	d.Lead(d.C)
	if err := d.C.Parts().Fencing.Instructions.TakeOver(t.Context(), d.State()); err != nil {
		t.Fatal(err)
	}
}

func told(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) int {
	t.Helper()
	resp, err := serverOf(d).PollInstructions(as(m), &fealtyv1.PollInstructionsRequest{Name: m.ID.Name()})
	if err != nil {
		t.Fatal(err)
	}
	return len(resp.GetInstructions())
}

func list(t *testing.T, d *coordinatortest.Desk, req *fealtyv1.ListInstructionsRequest) *fealtyv1.ListInstructionsResponse {
	t.Helper()
	resp, err := serverOf(d).ListInstructions(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func acknowledge(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, id string) bool {
	t.Helper()
	resp, err := serverOf(d).AcknowledgeInstruction(as(m), &fealtyv1.AcknowledgeInstructionRequest{Name: m.ID.Name(),
		Id: id, Outcome: done})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetChanged()
}

// A request that cannot be an instruction is refused, and nothing is kept of it.
func TestRefused(t *testing.T) {
	t.Parallel()
	d, _, _ := shards(t)
	d.Joined("a")
	for _, tc := range []struct {
		name string
		edit func(*fealtyv1.InstructRequest)
		want errcode.Code
	}{
		{"no id", func(r *fealtyv1.InstructRequest) { r.Id = "" }, errcode.RequestField},
		{"a long id", func(r *fealtyv1.InstructRequest) { r.Id = strings.Repeat("x", 65) }, errcode.RequestField},
		{"an id that is a path", func(r *fealtyv1.InstructRequest) { r.Id = "a/b" }, errcode.RequestField},
		{"no member", func(r *fealtyv1.InstructRequest) { r.Member = "" }, errcode.RequestField},
		{"a member of no kind", func(r *fealtyv1.InstructRequest) { r.Member = "x/a" }, errcode.RequestField},
		{"a member of a kind that is told nothing", func(r *fealtyv1.InstructRequest) { r.Member = "data/a" },
			errcode.RequestField},
		{"a member that is none", func(r *fealtyv1.InstructRequest) { r.Member = "shard/us-1" }, errcode.NotFound},
		{"another kind", func(r *fealtyv1.InstructRequest) { r.Kind = "explode" }, errcode.RequestField},
		{"no reason", func(r *fealtyv1.InstructRequest) { r.Reason = "" }, errcode.RequestField},
		{"a long reason", func(r *fealtyv1.InstructRequest) { r.Reason = strings.Repeat("x", 257) }, errcode.RequestField},
	} {
		req := &fealtyv1.InstructRequest{Id: "one", Member: "shard/eu-1", Kind: instruction.Pause, Reason: "a test"}
		tc.edit(req)
		_, err := serverOf(d).Instruct(t.Context(), req)
		coordinatortest.WantOnly(t, tc.name, err, tc.want)
	}
	mustGive(t, d, "one", "shard/eu-1")
	_, err := give(d, "one", "shard/eu-1", instruction.Resume)
	coordinatortest.WantOnly(t, "the id of another one", err, errcode.RequestField)
	// That of another member is another one.
	mustGive(t, d, "one", "shard/eu-2")
	resp, err := serverOf(d).Instruct(t.Context(), &fealtyv1.InstructRequest{Id: "dry", Member: "shard/eu-1",
		Kind: instruction.Pause, Reason: "a test", DryRun: true})
	if err != nil || !resp.GetChanged() || len(list(t, d, &fealtyv1.ListInstructionsRequest{}).GetInstructions()) != 2 {
		t.Errorf("a dry run: %v, %v", resp, err)
	}
	for n := range instruction.MaxWaiting - 1 {
		mustGive(t, d, fmt.Sprint("i-", n), "shard/eu-1")
	}
	_, err = give(d, "more", "shard/eu-1", instruction.Pause)
	coordinatortest.WantOnly(t, "one too many", err, errcode.RateLimited)
	mustGive(t, d, "two", "shard/eu-2")
	for name, req := range map[string]*fealtyv1.ListInstructionsRequest{"a negative limit": {Limit: -1},
		"a large limit": {Limit: 1001}, "no member": {Member: "eu-1"}} {
		_, err := serverOf(d).ListInstructions(t.Context(), req)
		coordinatortest.WantOnly(t, name, err, errcode.RequestField)
	}
	if got := list(t, d, &fealtyv1.ListInstructionsRequest{Limit: 5}); len(got.GetInstructions()) != 5 || !got.GetMore() {
		t.Errorf("a list of five: %v", got)
	}
	if got := list(t, d, &fealtyv1.ListInstructionsRequest{Member: "shard/eu-2"}); len(got.GetInstructions()) != 2 ||
		got.GetInstructions()[0].GetId() != "two" {
		t.Errorf("those of one member, the newest first: %v", got)
	}
	if _, text := coordinatortest.Audits(d, "instruction.give"); !strings.Contains(text, "a test") {
		t.Errorf("the audit log: %s", text)
	}
}

// A member is told what the leader signed, hears its own alone, and answers for itself alone.
func TestOwnAlone(t *testing.T) {
	t.Parallel()
	d, a, b := shards(t)
	mustGive(t, d, "one", "shard/eu-1")
	if told(t, d, a) != 0 {
		t.Error("it is told what no leader signed")
	}
	takeOver(t, d)
	if told(t, d, a) != 1 || told(t, d, b) != 0 {
		t.Errorf("they are told %d and %d", told(t, d, a), told(t, d, b))
	}
	if acknowledge(t, d, b, "one") {
		t.Error("another member said what became of it")
	}
	if !acknowledge(t, d, a, "one") || acknowledge(t, d, a, "one") || told(t, d, a) != 0 {
		t.Error("what it said does not count once")
	}
	if _, text := coordinatortest.Audits(d, "instruction.end"); !strings.Contains(text, "shard/eu-1") {
		t.Errorf("the audit log: %s", text)
	}
	for name, edit := range map[string]func(*fealtyv1.AcknowledgeInstructionRequest){
		"no id":      func(r *fealtyv1.AcknowledgeInstructionRequest) { r.Id = "" },
		"no outcome": func(r *fealtyv1.AcknowledgeInstructionRequest) { r.Outcome = 0 },
		"an outcome that is the leader's": func(r *fealtyv1.AcknowledgeInstructionRequest) {
			r.Outcome = fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_EXPIRED
		},
		"a long detail": func(r *fealtyv1.AcknowledgeInstructionRequest) { r.Detail = strings.Repeat("x", 257) },
	} {
		mine := &fealtyv1.AcknowledgeInstructionRequest{Name: "eu-1", Id: "one", Outcome: done}
		edit(mine)
		_, err := serverOf(d).AcknowledgeInstruction(as(a), mine)
		coordinatortest.WantOnly(t, name, err, errcode.RequestField)
	}
}

// A refusal as stale is of the signature that the member names; of one that there is not, or that it
// does not name, it is of the newest one.
func TestRefusedTerm(t *testing.T) {
	t.Parallel()
	d, a, _ := shards(t)
	for id, tc := range map[string]struct{ said, want func(term uint64) uint64 }{
		"named":    {func(term uint64) uint64 { return term - 1 }, func(term uint64) uint64 { return term - 1 }},
		"unnamed":  {func(uint64) uint64 { return 0 }, func(term uint64) uint64 { return term }},
		"too-high": {func(uint64) uint64 { return 1<<64 - 1 }, func(term uint64) uint64 { return term }},
	} {
		mustGive(t, d, id, "shard/eu-1")
		takeOver(t, d)
		of := func() *fealtyv1.Instruction {
			for _, i := range list(t, d, &fealtyv1.ListInstructionsRequest{}).GetInstructions() {
				if i.GetId() == id {
					return i
				}
			}
			return nil
		}
		term := of().GetTerm()
		for _, refused := range []uint64{tc.said(term), 1} { // the second one is lower, and changes nothing
			_, err := serverOf(d).AcknowledgeInstruction(as(a), &fealtyv1.AcknowledgeInstructionRequest{Name: "eu-1", Id: id,
				Outcome: fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_REJECTED_STALE, Term: refused})
			if err != nil {
				t.Fatal(err)
			}
			if got := of().GetRefusedTerm(); got != tc.want(term) || of().GetEndedAt() != nil {
				t.Errorf("%s: refused in term %d, want %d: %v", id, got, tc.want(term), of())
			}
		}
	}
}

// Each leader signs anew, and one that does not lead signs nothing; what ended is forgotten in time.
func TestLeaders(t *testing.T) {
	t.Parallel()
	d, a, _ := shards(t)
	mustGive(t, d, "one", "shard/eu-1")
	takeOver(t, d)
	of := func() *fealtyv1.Instruction {
		return list(t, d, &fealtyv1.ListInstructionsRequest{}).GetInstructions()[0]
	}
	first := of().GetTerm()
	takeOver(t, d)
	if first == 0 || of().GetTerm() != first {
		t.Fatalf("signed in term %d, and again in term %d", first, of().GetTerm())
	}
	d.Lapse()
	mustGive(t, d, "two", "shard/eu-1")
	if err := d.C.Parts().Fencing.Instructions.TakeOver(t.Context(), d.State()); err != nil || of().GetTerm() != 0 {
		t.Errorf("one that does not lead signed %v: %v", of(), err)
	}
	d.Restart()
	takeOver(t, d)
	for _, i := range list(t, d, &fealtyv1.ListInstructionsRequest{}).GetInstructions() {
		if i.GetTerm() <= first {
			t.Errorf("after a change of the leader, from term %d: %v", first, i)
		}
	}
	acknowledge(t, d, a, "one")
	d.Advance(instruction.Lasts)
	takeOver(t, d)
	outcomes := make(map[string]fealtyv1.InstructionOutcome)
	for _, i := range list(t, d, &fealtyv1.ListInstructionsRequest{}).GetInstructions() {
		outcomes[i.GetId()] = i.GetOutcome()
	}
	if outcomes["one"] != done || outcomes["two"] != fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_EXPIRED {
		t.Errorf("in the end: %v", outcomes)
	}
	drop := func(after time.Duration, left int) {
		t.Helper()
		d.Advance(after)
		if err := d.C.Parts().Fencing.Instructions.Drop(t.Context(), d.State()); err != nil {
			t.Fatal(err)
		}
		if got := list(t, d, &fealtyv1.ListInstructionsRequest{}).GetInstructions(); len(got) != left {
			t.Errorf("after %v more %v are left, want %d", after, got, left)
		}
	}
	drop(instructions.Kept-instruction.Lasts, 1)
	drop(instruction.Lasts, 0)
}

// A process that was overtaken is told of no instruction, and what it says became of one counts
// for nothing: the newest process of the member does it.
func TestZombieDoesNothing(t *testing.T) {
	t.Parallel()
	d, a, _ := shards(t)
	polls := func(life fence.Life) (int, error) {
		resp, err := serverOf(d).PollInstructions(coordinatortest.Calls(a, life),
			&fealtyv1.PollInstructionsRequest{Name: "eu-1"})
		return len(resp.GetInstructions()), err
	}
	says := func(life fence.Life, id string, outcome fealtyv1.InstructionOutcome) error {
		_, err := serverOf(d).AcknowledgeInstruction(coordinatortest.Calls(a, life),
			&fealtyv1.AcknowledgeInstructionRequest{Name: "eu-1", Id: id, Outcome: outcome, Term: 1})
		return err
	}
	waits := func(what, id string) {
		t.Helper()
		for _, i := range list(t, d, &fealtyv1.ListInstructionsRequest{}).GetInstructions() {
			if i.GetId() == id && (i.GetOutcome() != fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_UNSPECIFIED ||
				i.GetRefusedTerm() != 0) {
				t.Errorf("%s: %v", what, i)
			}
		}
	}
	mustGive(t, d, "first", "shard/eu-1")
	takeOver(t, d)
	old := d.Process(a)
	if n, err := polls(old); n != 1 || err != nil {
		t.Fatalf("the only process is told %d instructions, %v", n, err)
	}
	live := d.Process(a)
	if _, err := polls(old); err == nil {
		t.Error("one that was overtaken is told what to do")
	}
	if n, err := polls(live); n != 1 || err != nil {
		t.Fatalf("the newest process is told %d instructions, %v", n, err)
	}
	_, err := polls(old)
	coordinatortest.WantOnly(t, "a zombie asks", err, errcode.ProcessOvertaken)
	_, err = polls(fence.Life{})
	coordinatortest.WantOnly(t, "one without a life asks", err, errcode.ProcessOvertaken)
	coordinatortest.WantOnly(t, "a zombie says it did", says(old, "first", done), errcode.ProcessOvertaken)
	coordinatortest.WantOnly(t, "a zombie says that it is stale", says(old, "first",
		fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_REJECTED_STALE), errcode.ProcessOvertaken)
	coordinatortest.WantOnly(t, "a zombie says something of none", says(old, "none", done), errcode.ProcessOvertaken)
	waits("after a zombie's word", "first")

	for id, outcome := range map[string]fealtyv1.InstructionOutcome{"first": done,
		"second": fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_REJECTED_STALE} {
		if id == "second" {
			mustGive(t, d, id, "shard/eu-1")
			takeOver(t, d)
		}
		var next fence.Life
		d.Store.Intercept(func(tx store.Tx) {
			if next.Grant == "" && slices.ContainsFunc(tx.Put, func(w store.Write) bool {
				return strings.HasPrefix(w.Key, instructions.Prefix)
			}) {
				next = d.Process(a)
			}
		})
		coordinatortest.WantOnly(t, id+" of one that is overtaken meanwhile", says(live, id, outcome),
			errcode.ProcessOvertaken)
		d.Store.Intercept(nil)
		waits("after the word of one that was overtaken meanwhile", id)
		live = next
	}
	if err := says(live, "first", done); err != nil {
		t.Errorf("the newest says it did: %v", err)
	}
}
