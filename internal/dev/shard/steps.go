package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	terms "github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/journal"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	signedorder "github.com/fealty-io/fealty/internal/signed/order"
)

// Step is one thing that a fleet shows. Each goes on where the one before it ended.
type Step struct {
	ID       string
	Expected string
	run      func(*Fleet, context.Context) (seen string, err error) // as expected without an error
}

// Steps are all of them, in order.
func Steps() []Step {
	return []Step{
		{"zombie-fenced", "a shard is stopped, a successor works, and the stopped one is woken: it changes nothing, " +
			"and status, audit and metrics tell of it", (*Fleet).zombieFenced},
		{"domain-move", "a domain moves while its machines work; one whose owner stands still is taken by force, and " +
			"that changes nothing in it any more", (*Fleet).domainMove},
		{"wipe-quarantined", "a tenant's empty roll-up takes nothing until the third in a row, and then at most 5% " +
			"of its machines in a cycle, or one", (*Fleet).wipeQuarantined},
		{"paused", "with --actuation-paused everything is decided and nothing done", (*Fleet).paused},
		{"stale-term", "an order of a leader that was deposed is refused, and the next leader's is carried out once",
			(*Fleet).staleTerm},
	}
}

const asPrograms = "shards and a provider as programs"

// holdFor is for how long something must not happen: several cycles.
const holdFor = time.Second

func (f *Fleet) zombieFenced(ctx context.Context) (string, error) {
	f.cfg.Note(asPrograms + ", one stopped with SIGSTOP and woken with SIGCONT")
	zombie := f.shards[First]
	first, err := f.session(ctx, zombie)
	if err != nil {
		return "", err
	}
	if err := first.wants(ctx, f, 3); err != nil {
		return "", err
	}
	before, err := f.has(ctx, 3)
	if err != nil {
		return "", err
	}
	if err := zombie.Pause(); err != nil {
		return "", err
	}
	next, err := f.succeed(ctx, First)
	if err != nil {
		return "", err
	}
	second, err := f.session(ctx, next)
	if err != nil {
		return "", err
	}
	if err := second.wants(ctx, f, 5); err != nil {
		return "", err
	}
	five, err := f.has(ctx, 5)
	if err == nil {
		err = kept(before, five)
	}
	if err != nil {
		return "", err
	}
	// It sees two machines too many, and takes them back: it believes that it is in charge.
	if err := zombie.Wake(); err != nil {
		return "", err
	}
	refused, err := f.incident(ctx, zombie)
	if err != nil {
		return "", err
	}
	if err := f.unchanged(five); err != nil {
		return "", fmt.Errorf("the zombie changed machines: %w", err)
	}
	if err := second.wants(ctx, f, 6); err != nil {
		return "", err
	}
	six, err := f.has(ctx, 6)
	if err == nil {
		err = kept(five, six)
	}
	if err != nil {
		return "", fmt.Errorf("the successor, after the zombie came: %w", err)
	}
	// People looked at it.
	if status := zombie.End(); status != int(errcode.ExitUnhealthy) {
		return "", fmt.Errorf("the zombie ended with status %d: %s", status, zombie.Said())
	}
	return fmt.Sprintf("%s woke and was refused %.0f times as stale; the 5 machines are the same processes %v, and "+
		"its successor made a sixth; %s, audit shard.fenced, fealty_shard_fenced 1 and fealty_incidents_fenced_total 1",
		zombie.Name, refused, pids(five), errcode.ShardFenced), nil
}

// incident waits until a zombie was refused, and until status, audit and metrics tell of it. It
// returns how often it was refused as stale, by the provider or by coordinators: it asks as it happens.
func (f *Fleet) incident(ctx context.Context, zombie *process.Program) (refused float64, err error) {
	err = f.cfg.Await(ctx, zombie.Name+" to be fenced, and told of", func(ctx context.Context) (bool, error) {
		own, err := process.Scrape(ctx, zombie.Metrics)
		if err != nil {
			return false, err
		}
		provider, err := process.Scrape(ctx, f.provider.Metrics)
		if err != nil {
			return false, err
		}
		refused = provider[`fealty_provider_refused_total{reason="stale"}`]
		told := 0.0
		for _, at := range f.cfg.Metrics() {
			coordinator, err := process.Scrape(ctx, at)
			if err != nil {
				return false, err
			}
			told += coordinator["fealty_incidents_fenced_total"]
			refused += coordinator[`fealty_fenced_calls_total{reason="stale"}`]
		}
		if own["fealty_shard_fenced"] != 1 || refused == 0 || told != 1 {
			return false, fmt.Errorf("its metric says %v, it was refused %v times, coordinators counted %v",
				own["fealty_shard_fenced"], refused, told)
		}
		entries, found, err := f.incidents(ctx)
		if err == nil && (entries != 1 || !found) {
			err = fmt.Errorf("the audit log has %d incidents, and status says so: %v", entries, found)
		}
		return err == nil, err
	})
	return refused, err
}

// incidents counts the entries of the audit log that tell that a process of the first shard was
// fenced, and reports whether status says so.
func (f *Fleet) incidents(ctx context.Context) (entries int, found bool, err error) {
	path := string(identity.Shard) + "/" + First
	err = f.cfg.Admin(func(conn *grpc.ClientConn) error {
		st, err := fealtyv1.NewStatusServiceClient(conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		for _, n := range st.GetFindings() {
			found = found || n.GetCode() == string(errcode.ShardFenced) && strings.Contains(n.GetSummary(), path)
		}
		log, err := fealtyv1.NewAuditServiceClient(conn).GetAudit(ctx, &fealtyv1.GetAuditRequest{Member: path,
			Action: "shard.fenced"})
		for err == nil {
			var part *fealtyv1.GetAuditResponse
			if part, err = log.Recv(); part.GetEntry() != nil {
				entries++
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
	return entries, found, err
}

func (f *Fleet) domainMove(ctx context.Context) (_ string, err error) {
	f.cfg.Note(asPrograms + ", one stopped with SIGSTOP and woken with SIGCONT")
	if f.agents[Second], err = f.cfg.Join(ctx, identity.Shard, Second); err != nil {
		return "", err
	}
	other, err := f.succeed(ctx, Second)
	if err != nil {
		return "", err
	}
	before, err := f.working()
	if err != nil {
		return "", err
	}
	if err := f.assign(ctx, Second, false); err != nil {
		return "", err
	}
	second, err := f.session(ctx, other)
	if err != nil {
		return "", err
	}
	if err := second.wants(ctx, f, 7); err != nil {
		return "", err
	}
	seven, err := f.has(ctx, 7)
	if err == nil {
		err = kept(before, seven)
	}
	if err != nil {
		return "", err
	}
	// The owner stands still, and does not let go: it is passed over.
	if err := other.Pause(); err != nil {
		return "", err
	}
	if err := f.assign(ctx, First, true); err != nil {
		return "", err
	}
	first, err := f.session(ctx, f.shards[First])
	if err != nil {
		return "", err
	}
	if err := first.wants(ctx, f, 8); err != nil {
		return "", err
	}
	eight, err := f.has(ctx, 8)
	if err == nil {
		err = kept(seven, eight)
	}
	if err != nil {
		return "", err
	}
	const moved = `fealty_provider_refused_total{reason="moved"}`
	counted, err := process.Scrape(ctx, f.provider.Metrics)
	if err == nil {
		err = other.Wake()
	}
	if err != nil {
		return "", err
	}
	// It asks the provider or a coordinator first, as it happens.
	heard := ""
	err = f.cfg.Await(ctx, other.Name+" to hear that it was passed over", func(ctx context.Context) (bool, error) {
		provider, err := process.Scrape(ctx, f.provider.Metrics)
		switch said := other.Said(); {
		case err != nil:
			return false, err
		case provider[moved] > counted[moved]:
			heard = "the provider refused what it tried as moved"
		case strings.Contains(said, "is not this member's any more"):
			heard = "it heard so from a coordinator before it tried anything"
		default:
			return false, errors.New(said)
		}
		return true, nil
	})
	if err == nil {
		err = f.unchanged(eight)
	}
	if err != nil {
		return "", fmt.Errorf("the owner of before: %w", err)
	}
	if status := other.End(); status != 0 {
		return "", fmt.Errorf("the owner of before ended with status %d: %s", status, other.Said())
	}
	return fmt.Sprintf("%s went from %s to %s, and by force back while %s stood still; %s; the machines are the same "+
		"processes %v", Domain, First, Second, Second, heard, pids(eight)), nil
}

func (f *Fleet) wipeQuarantined(ctx context.Context) (string, error) {
	f.cfg.Note(asPrograms)
	const machines = 10
	p := f.shards[First]
	s, err := f.session(ctx, p)
	if err != nil {
		return "", err
	}
	say := func(want fealtyv1.RollUpOutcome, rows ...*fealtyv1.DemandRow) error {
		got, err := s.report(ctx, f, rows...)
		if err == nil && got != want {
			err = fmt.Errorf("a roll-up of %d rows was answered with %v, want %v", len(rows), got, want)
		}
		return err
	}
	const taken, held = fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_TAKEN, fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_HELD
	if err := say(taken, rows(machines, 1)...); err != nil {
		return "", err
	}
	ten, err := f.has(ctx, machines)
	if err != nil {
		return "", err
	}
	if err := errors.Join(say(held), say(held)); err != nil {
		return "", err
	}
	select {
	case <-time.After(holdFor):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if err := f.unchanged(ten); err != nil {
		return "", fmt.Errorf("after two empty roll-ups: %w", err)
	}
	if err := say(taken); err != nil {
		return "", err
	}
	// It noticed, and says what it means.
	left := 0
	err = f.cfg.Await(ctx, "machines to be taken back", func(context.Context) (bool, error) {
		now, err := f.working()
		left = len(now)
		return err == nil && left <= machines-2, err
	})
	if err == nil {
		err = say(taken, rows(machines, 1)...)
	}
	if err != nil {
		return "", err
	}
	if _, err := f.has(ctx, machines); err != nil {
		return "", err
	}
	most, err := f.reclaimedAtOnce(p)
	if err != nil {
		return "", err
	}
	if most != 1 {
		return "", fmt.Errorf("in one cycle %d machines were taken back of %d", most, machines)
	}
	return fmt.Sprintf("two empty roll-ups took none of %d machines; the third was believed, took one in each cycle, "+
		"and %d were left when the tenant said what it means", machines, left), nil
}

// reclaimedAtOnce is how many machines a process took back in one cycle at most, by its journal:
// it writes down what it begins, and then what became of all of that.
func (f *Fleet) reclaimedAtOnce(p *process.Program) (most int, err error) {
	begun := 0
	for said, err := range f.journal(p) {
		switch {
		case err != nil:
			return 0, err
		case said.Outcome == journal.Begun && said.Kind == string(scheduler.Reclaim):
			begun++
			most = max(most, begun)
		case said.Outcome == string(execute.Executed):
			begun = 0
		}
	}
	return most, nil
}

func (f *Fleet) journal(p *process.Program) func(func(journal.Said, error) bool) {
	return journal.Replay(journal.Export(durable.OS(), filepath.Join(f.cfg.Dir, p.Name, "journal")))
}

func (f *Fleet) paused(ctx context.Context) (string, error) {
	f.cfg.Note(asPrograms)
	if status := f.shards[First].End(); status != 0 {
		return "", fmt.Errorf("%s ended with status %d", f.shards[First].Name, status)
	}
	before, err := f.working()
	if err != nil {
		return "", err
	}
	p, err := f.succeed(ctx, First, "--actuation-paused")
	if err != nil {
		return "", err
	}
	s, err := f.session(ctx, p)
	if err != nil {
		return "", err
	}
	if err := s.wants(ctx, f, 4); err != nil {
		return "", err
	}
	decided := 0
	err = f.cfg.Await(ctx, p.Name+" to decide", func(context.Context) (bool, error) {
		decided = 0
		for said, err := range f.journal(p) {
			switch {
			case err != nil:
				return false, err
			case said.Outcome == journal.Suppressed:
				decided += 1 + said.Count
			case said.Outcome == journal.Begun:
				return false, fmt.Errorf("it began to %s %s", said.Kind, said.Machine)
			}
		}
		return decided > 0, nil
	})
	if err != nil {
		return "", err
	}
	select {
	case <-time.After(holdFor):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if err := f.unchanged(before); err != nil {
		return "", fmt.Errorf("while it is paused: %w", err)
	}
	m, err := process.Scrape(ctx, p.Metrics)
	if err != nil {
		return "", fmt.Errorf("the metrics of one that is paused: %w", err)
	}
	if m["fealty_shard_paused"] != 1 {
		return "", fmt.Errorf("its metric says %v that it is paused, want 1", m["fealty_shard_paused"])
	}
	p.End()
	if p, err = f.succeed(ctx, First); err != nil {
		return "", err
	}
	if s, err = f.session(ctx, p); err != nil {
		return "", err
	}
	if err := s.wants(ctx, f, len(before)+1); err != nil {
		return "", err
	}
	if _, err := f.has(ctx, len(before)+1); err != nil {
		return "", err
	}
	return fmt.Sprintf("it decided %d actions and wrote them down as suppressed; the %d machines are the same "+
		"processes; without the switch it made another one", decided, len(before)), nil
}

// heldBack gives an answer about instructions that is given here, in place of one that it asks for.
type heldBack struct {
	grpc.ClientConnInterface
	answer *fealtyv1.PollInstructionsResponse // nil: it asks
}

func (h *heldBack) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if out, ok := reply.(*fealtyv1.PollInstructionsResponse); ok && h.answer != nil {
		out.Instructions, out.Term = h.answer.GetInstructions(), h.answer.GetTerm()
		return nil
	}
	return h.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// lastError is a log that keeps the last error that it was told.
type lastError struct {
	slog.Handler
	err error
}

func (l *lastError) Enabled(context.Context, slog.Level) bool { return true }

func (l *lastError) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			l.err = err
		}
		return true
	})
	return nil
}

func (f *Fleet) staleTerm(ctx context.Context) (_ string, err error) {
	f.cfg.Note("an answer of a leader held back, and handed to a member in this process later")
	who, err := client.Open(client.Config{Dir: f.agents[Second], Log: f.cfg.Log})
	if err != nil {
		return "", err
	}
	link := client.New(client.LinkConfig{Source: who.Source(), Addresses: who.Coordinators, Log: f.cfg.Log})
	defer link.Close()
	dir := filepath.Join(f.cfg.Dir, "stale-term")
	if err := durable.OS().MkdirAll(dir); err != nil {
		return "", err
	}
	life, err := terms.EnrolEpoch(dir, terms.EpochOptions{Holder: who.ID().String(), Authority: who.Authority(),
		Ask: func(_ string, incarnation fence.Incarnation) (string, error) {
			got, err := fealtyv1.NewGrantServiceClient(link).Grant(ctx, &fealtyv1.GrantRequest{Name: who.ID().Name(),
				Incarnation: incarnation.String()})
			return got.GetGrant(), err
		}})
	if err != nil {
		return "", err
	}
	defer life.Close()
	fenced := client.NewFenced(link)
	fenced.Begin(life.Sender())
	way, done, said := &heldBack{ClientConnInterface: fenced}, 0, &lastError{Handler: slog.DiscardHandler}
	mark, err := terms.EnrolTerm(dir)
	if err != nil {
		return "", err
	}
	defer mark.Close()
	book, err := instruction.EnrolBook(durable.OS(), dir)
	if err != nil {
		return "", err
	}
	defer book.Close()
	member := instruction.NewExecutor(instruction.ExecutorConfig{ID: who.ID(), Conn: way, Authority: who.Authority(), Term: mark,
		Book: book, Now: time.Now, Log: slog.New(said), Do: map[string]func(context.Context) error{
			instruction.Pause: func(context.Context) error { done++; return nil }}})

	// One leader gives an order, which stays on its way, and another one leads.
	path := string(identity.Shard) + "/" + Second
	err = f.cfg.Admin(func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewInstructionServiceClient(conn).Instruct(ctx, &fealtyv1.InstructRequest{Id: "held-back",
			Member: path, Kind: instruction.Pause, Reason: "shown by fealty dev"})
		return err
	})
	if err != nil {
		return "", err
	}
	old, before, err := f.ordered(ctx, who, fenced, 0)
	if err != nil {
		return "", err
	}
	err = f.cfg.Admin(func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewLeaderServiceClient(conn).TransferLeader(ctx,
			&fealtyv1.TransferLeaderRequest{Reason: "shown by fealty dev"})
		return err
	})
	if err != nil {
		return "", err
	}
	_, now, err := f.ordered(ctx, who, fenced, before)
	if err != nil {
		return "", err
	}
	if err := mark.Check(now); err != nil { // the member hears of the next leader
		return "", err
	}

	// Then the order arrives: in its answer, and alone in one that names no term.
	way.answer = old
	member.Step(ctx)
	if !errors.Is(said.err, fence.ErrStaleTerm) {
		return "", fmt.Errorf("an answer of term %d after term %d was not refused for that (%v)", before, now, said.err)
	}
	way.answer = &fealtyv1.PollInstructionsResponse{Instructions: old.GetInstructions()}
	member.Step(ctx)
	refused, err := f.instruction(ctx, path)
	if err != nil {
		return "", err
	}
	if done != 0 || refused.GetRefusedTerm() == 0 {
		return "", fmt.Errorf("the order of term %d was carried out %d times, and is told as %v", before, done, refused)
	}
	way.answer = nil
	err = f.cfg.Await(ctx, "the next leader's order to be carried out", func(ctx context.Context) (bool, error) {
		member.Step(ctx)
		ended, err := f.instruction(ctx, path)
		return ended.GetOutcome() == fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_DONE, cmp.Or(err, said.err)
	})
	if err == nil {
		member.Step(ctx)
		if done != 1 {
			err = fmt.Errorf("the order was carried out %d times", done)
		}
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("what the leader of term %d ordered arrived in term %d: its answer was dropped whole, its "+
		"order alone was refused as stale; signed anew it was carried out once", before, now), nil
}

// ordered waits for an answer with an order, of a leader whose term is above one.
func (f *Fleet) ordered(ctx context.Context, who *client.Agent, conn grpc.ClientConnInterface, above int64) (
	answer *fealtyv1.PollInstructionsResponse, term int64, err error) {
	err = f.cfg.Await(ctx, "a leader's order", func(ctx context.Context) (bool, error) {
		answer, err = fealtyv1.NewInstructionServiceClient(conn).PollInstructions(ctx,
			&fealtyv1.PollInstructionsRequest{Name: who.ID().Name()})
		if err != nil || answer.GetTerm() == "" || len(answer.GetInstructions()) == 0 {
			return false, err
		}
		verified, err := who.Authority().OpenTerm(answer.GetTerm())
		if err != nil {
			return false, err
		}
		statement, _ := verified.Get()
		order, err := signedorder.OpenInstruction(who.Authority(), answer.GetInstructions()[0].GetStatement())
		if err != nil {
			return false, err
		}
		term = statement.Term
		return term > above && order.Term == term, fmt.Errorf("term %d, and the order of term %d", term, order.Term)
	})
	return answer, term, err
}

// instruction is the only one that a member was given.
func (f *Fleet) instruction(ctx context.Context, member string) (out *fealtyv1.Instruction, err error) {
	err = f.cfg.Admin(func(conn *grpc.ClientConn) error {
		all, err := fealtyv1.NewInstructionServiceClient(conn).ListInstructions(ctx,
			&fealtyv1.ListInstructionsRequest{Member: member})
		if err == nil && len(all.GetInstructions()) != 1 {
			err = fmt.Errorf("%s has %d instructions, want one", member, len(all.GetInstructions()))
		}
		if err == nil {
			out = all.GetInstructions()[0]
		}
		return err
	})
	return out, err
}
