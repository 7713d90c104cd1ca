package instructions

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/instruction"
)

const (
	maxPage = 1000
	page    = 100
)

type server struct {
	fealtyv1.UnimplementedInstructionServiceServer
	i *Instructions
}

// outcomes are those that a member may say, and how they travel.
var outcomes = map[fealtyv1.InstructionOutcome]instruction.Outcome{
	fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_DONE:           instruction.Done,
	fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_FAILED:         instruction.Failed,
	fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_UNKNOWN:        instruction.Unknown,
	fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_UNSUPPORTED:    instruction.Unsupported,
	fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_REJECTED_STALE: instruction.Stale,
}

func message(e instruction.Ended) *fealtyv1.Instruction {
	m := &fealtyv1.Instruction{Id: e.ID, Member: e.Member, Kind: e.Kind, Reason: e.Reason, GivenBy: e.By,
		GivenAt: timestamppb.New(e.At), NotAfter: timestamppb.New(e.Until), Term: uint64(e.Term),
		RefusedTerm: uint64(e.Refused), Detail: e.Detail}
	if e.Outcome == "" {
		return m
	}
	m.EndedAt, m.Outcome = timestamppb.New(e.EndedAt), fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_EXPIRED
	for wire, o := range outcomes {
		if o == e.Outcome {
			m.Outcome = wire
		}
	}
	return m
}

func field(name, problem string) error {
	return errcode.New(errcode.RequestField, "field", name, "problem", problem)
}

// checkMember says what is wrong with "<kind>/<name>".
func checkMember(name, path string) error {
	kind, of, ok := strings.Cut(path, "/")
	if !ok || of == "" || !identity.Kind(kind).Valid() || len(path) > internalidentity.MaxIDBytes {
		return field(name, "it is no KIND/NAME of a member")
	}
	return nil
}

// Instruct has a member do something once.
func (r server) Instruct(ctx context.Context, req *fealtyv1.InstructRequest) (*fealtyv1.InstructResponse, error) {
	i := r.i
	if _, err := i.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if problem := instruction.CheckID(req.GetId()); problem != "" {
		return nil, field("id", problem)
	}
	if err := checkMember("member", req.GetMember()); err != nil {
		return nil, err
	}
	kind, name, _ := strings.Cut(req.GetMember(), "/")
	can := instruction.Kinds(identity.Kind(kind))
	if !slices.Contains(can, req.GetKind()) {
		return nil, field("kind", fmt.Sprintf("a member of kind %s can be told %s", kind,
			cmp.Or(strings.Join(can, " or "), "nothing")))
	}
	if err := record.CheckReason(req.GetReason(), true); err != nil {
		return nil, err
	}
	now := i.cfg.Now().UTC()
	o := instruction.Order{ID: req.GetId(), Member: req.GetMember(), Kind: req.GetKind(), Reason: req.GetReason(),
		By: record.Actor(ctx), At: now, Until: now.Add(instruction.Lasts).Truncate(time.Second)}
	out := &fealtyv1.InstructResponse{}
	err := i.cfg.Head.Transact(ctx, "the instruction", func(s *authority.State) error {
		known, changed, err := i.give(ctx, s, o, identity.Kind(kind), name, req.GetDryRun())
		out.Instruction, out.Changed = message(known), changed
		return err
	})
	if err != nil {
		return nil, err
	}
	if out.GetChanged() && !req.GetDryRun() {
		i.given.Notify()
	}
	return out, nil
}

// give keeps an instruction that is new, and returns the one of its id.
func (i *Instructions) give(ctx context.Context, s *authority.State, o instruction.Order, kind identity.Kind,
	name string, dryRun bool) (instruction.Ended, bool, error) {
	none := instruction.Ended{Order: o}
	ended, err := record.Get[instruction.Ended](ctx, s.Records, endedKeyOf(o.Member, o.ID))
	if err != nil {
		return none, false, i.cfg.Head.StoreError("read the instruction", err)
	}
	waits, err := record.Get[instruction.Order](ctx, s.Records, KeyOf(o.Member, o.ID))
	if err != nil {
		return none, false, i.cfg.Head.StoreError("read the instruction", err)
	}
	known := ended.Value
	if waits.Exists() {
		known = instruction.Ended{Order: waits.Value}
	}
	switch {
	case (ended.Exists() || waits.Exists()) && known.Same(o):
		return known, false, nil
	case ended.Exists() || waits.Exists():
		return none, false, field("id", "another instruction of this member has it, to "+known.Kind)
	}
	member, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(kind, name))
	switch {
	case err != nil:
		return none, false, i.cfg.Head.StoreError("read the member", err)
	case !member.Exists():
		return none, false, errcode.New(errcode.NotFound, "what", "member", "name", o.Member)
	}
	of, err := i.waitingFor(ctx, s, o.Member)
	if err != nil {
		return none, false, err
	}
	if len(of) >= instruction.MaxWaiting {
		return none, false, errcode.New(errcode.RateLimited, "what", "instructions that wait for "+o.Member,
			"limit", fmt.Sprint(instruction.MaxWaiting))
	}
	if dryRun {
		return none, true, nil
	}
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(KeyOf(o.Member, o.ID), 0, o)
	ch.Require(endedKeyOf(o.Member, o.ID), 0)
	ch.Audit(i.cfg.Now(), record.AuditEntry{Actor: o.By, Action: "instruction.give", Target: o.Member, Reason: o.Reason,
		Fields: map[string]string{"instruction": o.ID, "kind": o.Kind}})
	if _, err := ch.Commit(ctx); err != nil {
		return none, false, i.cfg.Head.CommitError("record the instruction", err)
	}
	return none, true, nil
}

// ListInstructions returns what waits, and what ended.
func (r server) ListInstructions(ctx context.Context,
	req *fealtyv1.ListInstructionsRequest) (*fealtyv1.ListInstructionsResponse, error) {
	s, err := r.i.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	limit := cmp.Or(int(req.GetLimit()), page)
	if limit < 1 || limit > maxPage {
		return nil, field("limit", fmt.Sprintf("%d is not from 1 to %d", limit, maxPage))
	}
	if req.GetMember() != "" {
		if err := checkMember("member", req.GetMember()); err != nil {
			return nil, err
		}
	}
	waits, altered, err := r.i.waiting(ctx, s)
	if err != nil {
		return nil, err
	}
	over, alteredToo, err := authority.ListGenuine[instruction.Ended](ctx, r.i.cfg.Head, s, endedPrefix)
	if err != nil {
		return nil, r.i.cfg.Head.StoreError("list the instructions that ended", err)
	}
	var all []instruction.Ended
	for _, v := range waits {
		all = append(all, instruction.Ended{Order: v.Value})
	}
	for _, v := range over {
		all = append(all, v.Value)
	}
	if of := req.GetMember(); of != "" {
		all = slices.DeleteFunc(all, func(e instruction.Ended) bool { return e.Member != of })
	}
	record.Sort(all, func(a, b *instruction.Ended) int { return instruction.Compare(b.Order, a.Order) })
	out := &fealtyv1.ListInstructionsResponse{More: len(all) > limit}
	for _, key := range append(altered, alteredToo...) {
		path := strings.TrimPrefix(strings.TrimPrefix(key, waitingPrefix), endedPrefix)
		if of := req.GetMember(); of == "" || strings.HasPrefix(path, of+"/") {
			out.Altered = record.AddAltered(out.Altered, path)
		}
	}
	for _, e := range all[:min(limit, len(all))] {
		out.Instructions = append(out.Instructions, message(e))
	}
	return out, nil
}

// PollInstructions tells a member what it is to do.
func (r server) PollInstructions(ctx context.Context,
	req *fealtyv1.PollInstructionsRequest) (*fealtyv1.PollInstructionsResponse, error) {
	path, err := r.i.cfg.Asking.Allow(ctx)
	if err != nil {
		return nil, err
	}
	s, err := r.i.cfg.Head.InForce(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := r.i.cfg.Grants.Serve(ctx, s); err != nil {
		return nil, err
	}
	if req.Paused != nil {
		r.i.cfg.Asking.Membership.Live().SaysPaused(identity.FromContext(ctx).ID, req.GetPaused())
	}
	out := &fealtyv1.PollInstructionsResponse{}
	if out.Term, err = r.i.cfg.Bundle.SignTerm(s, r.i.cfg.Election.Message().GetTerm()); err != nil {
		return nil, err
	}
	all, err := r.i.waitingFor(ctx, s, path)
	if err != nil {
		return nil, err
	}
	for _, v := range all[:min(len(all), instruction.MaxWaiting)] {
		if v.Value.Statement == "" {
			break // what was given later waits for it
		}
		out.Instructions = append(out.Instructions, &fealtyv1.DeliveredInstruction{Statement: v.Value.Statement,
			Reason: v.Value.Reason})
	}
	return out, nil
}

// AcknowledgeInstruction takes what a member says became of one.
func (r server) AcknowledgeInstruction(ctx context.Context,
	req *fealtyv1.AcknowledgeInstructionRequest) (*fealtyv1.AcknowledgeInstructionResponse, error) {
	i := r.i
	if _, err := i.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	outcome, known := outcomes[req.GetOutcome()]
	switch {
	case instruction.CheckID(req.GetId()) != "":
		return nil, field("id", instruction.CheckID(req.GetId()))
	case !known:
		return nil, field("outcome", "it is none that a member says")
	case len(req.GetDetail()) > instruction.MaxDetail:
		return nil, field("detail", fmt.Sprintf("it has %d bytes, limit %d", len(req.GetDetail()),
			instruction.MaxDetail))
	}
	path, err := i.cfg.Asking.Allow(ctx)
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.AcknowledgeInstructionResponse{}
	err = i.cfg.Head.Transact(ctx, "the acknowledgement", func(s *authority.State) error {
		served, err := i.cfg.Grants.Serve(ctx, s)
		if err != nil {
			return err
		}
		v, err := record.Get[instruction.Order](ctx, s.Records, KeyOf(path, req.GetId()))
		if err != nil {
			return i.cfg.Head.StoreError("read the instruction", err)
		}
		ch := s.Records.NewChange(s.HeadVersion)
		served.Require(ch)
		if out.Changed = v.Exists(); !v.Exists() {
			return nil // said before, or it is over: nothing waits for it
		}
		ended, waits, ends := v.Value.Acknowledge(outcome, req.GetDetail(), req.GetTerm(), i.cfg.Now().UTC())
		switch {
		case ends:
			err = i.end(ctx, s, v, ended, ch, record.Actor(ctx))
		case waits == v.Value:
			out.Changed = false
			return nil
		default:
			ch.Put(KeyOf(path, req.GetId()), v.Version, waits)
			_, err = ch.Commit(ctx)
		}
		if err != nil {
			return i.cfg.Head.CommitError("record the acknowledgement", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
