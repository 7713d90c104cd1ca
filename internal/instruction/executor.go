package instruction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/signed/order"
)

const (
	// DefaultEvery is how often a member asks what it is to do.
	DefaultEvery = 2 * time.Second
	// MaxDelivered bounds the instructions of one answer.
	MaxDelivered = 64
	// MaxRemembered bounds the ids that a member remembers. One that remembers as many, of which
	// each may come again, does nothing that is new.
	MaxRemembered = 1024

	askTimeout = 10 * time.Second
	doTimeout  = 30 * time.Second
	maxDetail  = 256 // bytes
)

// Term is the highest term of a leader that the member heard of: durable.Term of package
// fence/durable.
type Term interface{ Check(term int64) error }

// ExecutorConfig is what an executor is made of. A field without another word is required.
type ExecutorConfig struct {
	ID        identity.ID
	Conn      grpc.ClientConnInterface
	Authority fence.Authority
	Term      Term
	Book      *Book

	// Do are what the member can do, by their kinds. Each returns when it is done, or when its
	// context ends. An error says that it did not succeed.
	Do map[string]func(ctx context.Context) error

	// Paused reports whether the member decides and does nothing, for people who look. Nil: it does
	// not say.
	Paused func() bool

	// Every is how often it asks. Zero means two seconds.
	Every time.Duration
	Now   func() time.Time
	Log   *slog.Logger
}

// Executor does what its member is told. [Executor.Run] has it work; Step may be called instead,
// by one goroutine.
type Executor struct {
	cfg  ExecutorConfig
	told string // what was logged last of an answer that did not come
}

// NewExecutor returns one.
func NewExecutor(cfg ExecutorConfig) *Executor {
	if cfg.Every == 0 {
		cfg.Every = DefaultEvery
	}
	return &Executor{cfg: cfg}
}

// Run asks until ctx ends, and returns its error.
func (e *Executor) Run(ctx context.Context) error {
	every := time.NewTicker(e.cfg.Every)
	defer every.Stop()
	for {
		e.Step(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
		}
	}
}

// Step asks once, and does what is new. An error is logged, and the next step tries again.
func (e *Executor) Step(ctx context.Context) {
	err := e.step(ctx)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != e.told && ctx.Err() == nil {
		if err != nil {
			e.cfg.Log.Warn("the member was not told what to do", "err", err)
		} else {
			e.cfg.Log.Info("the member is told again what to do")
		}
		e.told = text
	}
}

func (e *Executor) step(ctx context.Context) error {
	request := &fealtyv1.PollInstructionsRequest{Name: e.cfg.ID.Name()}
	if e.cfg.Paused != nil {
		request.Paused = new(e.cfg.Paused())
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	answer, err := fealtyv1.NewInstructionServiceClient(e.cfg.Conn).PollInstructions(asking, request)
	cancel()
	if err != nil {
		return err
	}
	if len(answer.GetInstructions()) > MaxDelivered {
		return fmt.Errorf("an answer with %d instructions, limit %d", len(answer.GetInstructions()), MaxDelivered)
	}
	// The term of the answer: a leader that was deposed says nothing that counts, and nothing of
	// it is answered.
	if text := answer.GetTerm(); text != "" {
		verified, err := e.cfg.Authority.OpenTerm(text)
		if err != nil {
			return fmt.Errorf("the term of the answer: %w", err)
		}
		term, _ := verified.Get()
		if err := e.cfg.Term.Check(term.Term); err != nil {
			return err
		}
	}
	for _, d := range answer.GetInstructions() {
		i, err := order.OpenInstruction(e.cfg.Authority, d.GetStatement())
		if err == nil && i.Member != e.cfg.ID.String() {
			err = fmt.Errorf("instruction %.64q is for %.320q", i.ID, i.Member)
		}
		if err != nil {
			return err // in their order, or not at all
		}
		if err := e.take(ctx, i, d.GetReason()); err != nil {
			return err
		}
	}
	return nil
}

// take does one instruction if it is new, and says what became of it.
func (e *Executor) take(ctx context.Context, i order.Instruction, reason string) error {
	if done, known := e.cfg.Book.Ended(i.ID); known {
		return e.acknowledge(ctx, i, done)
	}
	if e.cfg.Book.Begun(i.ID) {
		return e.end(ctx, i, End{Outcome: fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_UNKNOWN,
			Detail: "the member stopped while it was under way"})
	}
	switch err := e.cfg.Term.Check(i.Term); {
	case errors.Is(err, fence.ErrStaleTerm):
		return e.acknowledge(ctx, i, End{Outcome: fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_REJECTED_STALE,
			Detail: err.Error()})
	case err != nil:
		return err
	case !e.cfg.Now().Before(i.NotAfter):
		return nil // the leader ends it
	}
	do := e.cfg.Do[i.Kind]
	if do == nil {
		return e.end(ctx, i, End{Outcome: fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_UNSUPPORTED,
			Detail: "this member cannot " + i.Kind})
	}
	if err := e.cfg.Book.Begin(i.ID, i.NotAfter, e.cfg.Now()); err != nil {
		return fmt.Errorf("instruction %s was not begun: %w", i.ID, err)
	}
	e.cfg.Log.Info("an instruction is carried out", "id", i.ID, "kind", i.Kind, "term", i.Term, "reason", reason)
	doing, cancel := context.WithTimeout(ctx, doTimeout)
	err := do(doing)
	cancel()
	end := End{Outcome: fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_DONE}
	if err != nil {
		end = End{Outcome: fealtyv1.InstructionOutcome_INSTRUCTION_OUTCOME_FAILED, Detail: err.Error()}
	}
	return e.end(ctx, i, end)
}

// end notes what became of an instruction, and says so once that is on disk.
func (e *Executor) end(ctx context.Context, i order.Instruction, end End) error {
	end.Detail = bounded(end.Detail)
	if err := e.cfg.Book.End(i.ID, end, i.NotAfter, e.cfg.Now()); err != nil {
		return fmt.Errorf("what became of instruction %s is not on disk yet: %w", i.ID, err)
	}
	e.cfg.Log.Info("an instruction ended", "id", i.ID, "kind", i.Kind, "outcome", end.Outcome.String(), "detail",
		end.Detail)
	return e.acknowledge(ctx, i, end)
}

func (e *Executor) acknowledge(ctx context.Context, i order.Instruction, end End) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := fealtyv1.NewInstructionServiceClient(e.cfg.Conn).AcknowledgeInstruction(ctx,
		&fealtyv1.AcknowledgeInstructionRequest{Name: e.cfg.ID.Name(), Id: i.ID, Outcome: end.Outcome,
			Detail: bounded(end.Detail), Term: uint64(i.Term)})
	return err
}

// bounded is text that fits into an acknowledgement.
func bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxDetail)], "")
}
