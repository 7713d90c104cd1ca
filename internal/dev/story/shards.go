package story

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	terms "github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/dev/shard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	signedorder "github.com/fealty-io/fealty/internal/signed/order"
	"github.com/fealty-io/fealty/operator"
)

// shards are the programs of the steps that shards show. Each step goes on where the one before it ended.
type shards struct {
	*shard.Fleet
	c      *cluster.Cluster
	second string // the folder of the agent of [shard.Second]
}

func startShards(ctx context.Context, c *cluster.Cluster) (*shards, error) {
	f, err := shard.Start(ctx, c.Programs())
	return &shards{Fleet: f, c: c}, err
}

func (f *shards) close() error {
	err := f.Close()
	for _, name := range f.Members() {
		err = errors.Join(err, f.c.StopMember(name))
	}
	return err
}

func shardSteps() []step {
	return byPrograms(startShards, []programStep[*shards]{
		{"zombie-fenced", "a shard is stopped, a successor works, and the stopped one is woken: it changes nothing, " +
			"and status, audit and metrics tell of it", (*shards).zombieFenced},
		{"domain-move", "a domain moves while its machines work; one whose owner stands still is taken by force, and " +
			"that changes nothing in it any more", (*shards).domainMove},
		{"wipe-quarantined", "a tenant's empty roll-up takes nothing until the third in a row, and then at most 5% " +
			"of its machines in a cycle, or one", (*shards).wipeQuarantined},
		{"paused", "with --actuation-paused everything is decided and nothing done", (*shards).paused},
		{"stale-term", "an order of a leader that was deposed is refused, and the next leader's is carried out once",
			(*shards).staleTerm},
	})
}

const asPrograms = "shards and a provider as programs"

// holdFor is for how long something must not happen: several cycles.
const holdFor = time.Second

func (f *shards) zombieFenced(ctx context.Context) (string, error) {
	f.c.Means().Note("", asPrograms+", one stopped with SIGSTOP and woken with SIGCONT")
	zombie := f.InCharge(shard.First)
	first, err := f.Session(ctx, zombie)
	if err != nil {
		return "", err
	}
	if err := first.Wants(ctx, 3); err != nil {
		return "", err
	}
	before, err := f.Has(ctx, 3)
	if err != nil {
		return "", err
	}
	if err := zombie.Pause(); err != nil {
		return "", err
	}
	next, err := f.Succeed(ctx, shard.First)
	if err != nil {
		return "", err
	}
	second, err := f.Session(ctx, next)
	if err != nil {
		return "", err
	}
	if err := second.Wants(ctx, 5); err != nil {
		return "", err
	}
	five, err := f.Has(ctx, 5)
	if err == nil {
		err = before.KeptIn(five)
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
	if err := f.Unchanged(five); err != nil {
		return "", fmt.Errorf("the zombie changed machines: %w", err)
	}
	if err := second.Wants(ctx, 6); err != nil {
		return "", err
	}
	six, err := f.Has(ctx, 6)
	if err == nil {
		err = five.KeptIn(six)
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
		zombie.Name, refused, five.PIDs(), errcode.ShardFenced), nil
}

// incident waits until a zombie was refused, and until status, audit and metrics tell of it. It
// returns how often it was refused as stale, by the provider or by coordinators: it asks as it happens.
func (f *shards) incident(ctx context.Context, zombie *process.Program) (refused float64, err error) {
	err = f.c.Await(ctx, zombie.Name+" to be fenced, and told of", func(ctx context.Context) (bool, error) {
		own, err := process.Scrape(ctx, zombie.Metrics)
		if err != nil {
			return false, err
		}
		provider, err := process.Scrape(ctx, f.Provider().Metrics)
		if err != nil {
			return false, err
		}
		refused = provider[`fealty_provider_refused_total{reason="stale"}`]
		told := 0.0
		for _, at := range f.c.CoordinatorMetrics() {
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
		entries, found, err := f.Incidents(ctx)
		if err == nil && (entries != 1 || !found) {
			err = fmt.Errorf("the audit log has %d incidents, and status says so: %v", entries, found)
		}
		return err == nil, err
	})
	return refused, err
}

func (f *shards) domainMove(ctx context.Context) (_ string, err error) {
	f.c.Means().Note("", asPrograms+", one stopped with SIGSTOP and woken with SIGCONT")
	if f.second, err = f.Enlist(ctx, shard.Second); err != nil {
		return "", err
	}
	other, err := f.Succeed(ctx, shard.Second)
	if err != nil {
		return "", err
	}
	before, err := f.Working()
	if err != nil {
		return "", err
	}
	if err := f.Assign(ctx, shard.Second, false); err != nil {
		return "", err
	}
	second, err := f.Session(ctx, other)
	if err != nil {
		return "", err
	}
	if err := second.Wants(ctx, 7); err != nil {
		return "", err
	}
	seven, err := f.Has(ctx, 7)
	if err == nil {
		err = before.KeptIn(seven)
	}
	if err != nil {
		return "", err
	}
	// The owner stands still, and does not let go: it is passed over.
	if err := other.Pause(); err != nil {
		return "", err
	}
	if err := f.Assign(ctx, shard.First, true); err != nil {
		return "", err
	}
	first, err := f.Session(ctx, f.InCharge(shard.First))
	if err != nil {
		return "", err
	}
	if err := first.Wants(ctx, 8); err != nil {
		return "", err
	}
	eight, err := f.Has(ctx, 8)
	if err == nil {
		err = seven.KeptIn(eight)
	}
	if err != nil {
		return "", err
	}
	const moved = `fealty_provider_refused_total{reason="moved"}`
	counted, err := process.Scrape(ctx, f.Provider().Metrics)
	if err == nil {
		err = other.Wake()
	}
	if err != nil {
		return "", err
	}
	// It asks the provider or a coordinator first, as it happens.
	heard := ""
	err = f.c.Await(ctx, other.Name+" to hear that it was passed over", func(ctx context.Context) (bool, error) {
		provider, err := process.Scrape(ctx, f.Provider().Metrics)
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
		err = f.Unchanged(eight)
	}
	if err != nil {
		return "", fmt.Errorf("the owner of before: %w", err)
	}
	if status := other.End(); status != 0 {
		return "", fmt.Errorf("the owner of before ended with status %d: %s", status, other.Said())
	}
	return fmt.Sprintf("%s went from %s to %s, and by force back while %s stood still; %s; the machines are the same "+
		"processes %v", shard.Domain, shard.First, shard.Second, shard.Second, heard, eight.PIDs()), nil
}

func (f *shards) wipeQuarantined(ctx context.Context) (string, error) {
	f.c.Means().Note("", asPrograms)
	const machines = 10
	p := f.InCharge(shard.First)
	s, err := f.Session(ctx, p)
	if err != nil {
		return "", err
	}
	held := func() error {
		if err := s.State(ctx); !errors.Is(err, operator.ErrHeld) {
			return fmt.Errorf("an empty roll-up was answered with %v, want %w", err, operator.ErrHeld)
		}
		return nil
	}
	if err := s.State(ctx, shard.Rows(machines, 1)...); err != nil {
		return "", err
	}
	ten, err := f.Has(ctx, machines)
	if err != nil {
		return "", err
	}
	if err := errors.Join(held(), held()); err != nil {
		return "", err
	}
	select {
	case <-time.After(holdFor):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if err := f.Unchanged(ten); err != nil {
		return "", fmt.Errorf("after two empty roll-ups: %w", err)
	}
	if err := s.State(ctx); err != nil {
		return "", err
	}
	// It noticed, and says what it means.
	left := 0
	err = f.c.Await(ctx, "machines to be taken back", func(context.Context) (bool, error) {
		now, err := f.Working()
		left = len(now)
		return err == nil && left <= machines-2, err
	})
	if err == nil {
		err = s.State(ctx, shard.Rows(machines, 1)...)
	}
	if err != nil {
		return "", err
	}
	if _, err := f.Has(ctx, machines); err != nil {
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
func (f *shards) reclaimedAtOnce(p *process.Program) (most int, err error) {
	begun := 0
	for said, err := range f.journal(p) {
		switch {
		case err != nil:
			return 0, err
		case said.Outcome == execute.Begun && said.Kind == string(scheduler.Reclaim):
			begun++
			most = max(most, begun)
		case said.Outcome == string(execute.Executed):
			begun = 0
		}
	}
	return most, nil
}

func (f *shards) journal(p *process.Program) func(func(execute.Said, error) bool) {
	return execute.Replay(execute.Export(durable.OS(), filepath.Join(f.Dir(), p.Name, "journal")))
}

func (f *shards) paused(ctx context.Context) (string, error) {
	f.c.Means().Note("", asPrograms)
	if status := f.InCharge(shard.First).End(); status != 0 {
		return "", fmt.Errorf("%s ended with status %d", f.InCharge(shard.First).Name, status)
	}
	before, err := f.Working()
	if err != nil {
		return "", err
	}
	p, err := f.Succeed(ctx, shard.First, "--actuation-paused")
	if err != nil {
		return "", err
	}
	s, err := f.Session(ctx, p)
	if err != nil {
		return "", err
	}
	if err := s.Wants(ctx, 4); err != nil {
		return "", err
	}
	decided := 0
	err = f.c.Await(ctx, p.Name+" to decide", func(context.Context) (bool, error) {
		decided = 0
		for said, err := range f.journal(p) {
			switch {
			case err != nil:
				return false, err
			case said.Outcome == execute.Suppressed:
				decided += 1 + said.Count
			case said.Outcome == execute.Begun:
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
	if err := f.Unchanged(before); err != nil {
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
	if p, err = f.Succeed(ctx, shard.First); err != nil {
		return "", err
	}
	if s, err = f.Session(ctx, p); err != nil {
		return "", err
	}
	if err := s.Wants(ctx, len(before)+1); err != nil {
		return "", err
	}
	if _, err := f.Has(ctx, len(before)+1); err != nil {
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

func (f *shards) staleTerm(ctx context.Context) (_ string, err error) {
	f.c.Means().Note("", "an answer of a leader held back, and handed to a member in this process later")
	who, err := client.Open(client.Config{Dir: f.second, Log: f.c.Log()})
	if err != nil {
		return "", err
	}
	link := client.New(client.LinkConfig{Source: who.Source(), Addresses: who.Coordinators, Log: f.c.Log()})
	defer link.Close()
	dir := filepath.Join(f.Dir(), "stale-term")
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
	path := string(identity.Shard) + "/" + shard.Second
	err = f.c.WithAdmin(func(conn *grpc.ClientConn) error {
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
	err = f.c.WithAdmin(func(conn *grpc.ClientConn) error {
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
	err = f.c.Await(ctx, "the next leader's order to be carried out", func(ctx context.Context) (bool, error) {
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
func (f *shards) ordered(ctx context.Context, who *client.Agent, conn grpc.ClientConnInterface, above int64) (
	answer *fealtyv1.PollInstructionsResponse, term int64, err error) {
	err = f.c.Await(ctx, "a leader's order", func(ctx context.Context) (bool, error) {
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
func (f *shards) instruction(ctx context.Context, member string) (out *fealtyv1.Instruction, err error) {
	err = f.c.WithAdmin(func(conn *grpc.ClientConn) error {
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
