package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/signed/order"
)

const (
	// DefaultEvery is how often a shard asks for the plan.
	DefaultEvery = 5 * time.Second
	askTimeout   = 10 * time.Second

	fileName = "plan.json"
	fileHead = "plan, form 1: "
	maxFile  = 2*MaxBytes + 1<<10 // bytes: the plan is text within text
)

// ErrDamaged is matched when what was kept is not what was written, or is of a release that knows
// more than this one.
var ErrDamaged = errors.New("the plan of quotas and providers is damaged, or of a later release")

// FollowerConfig is what a Follower is made of. A field without another word is required.
type FollowerConfig struct {
	ID        identity.ID
	Conn      grpc.ClientConnInterface
	Authority fence.Authority
	Files     durable.FS
	Dir       string // a folder of its own
	// Every is how often it asks. Zero means five seconds.
	Every time.Duration
	Now   func() time.Time
	Log   *slog.Logger
}

// Follower asks for the plan, and has the newest one. It may be used by several goroutines.
type Follower struct {
	cfg FollowerConfig

	asking sync.Mutex // held by Step
	told   string     // what was logged last of an answer that did not come; guarded by asking
	text   string     // the plan in force as it travelled; guarded by asking
	saved  bool       // the file has the plan in force; guarded by asking

	mu   sync.Mutex
	have FollowerState // guarded by mu
}

// FollowerState is what a shard was told.
type FollowerState struct {
	// Known is set once it was told a plan, by this process or one before.
	Known bool
	// Plan is the newest one. Nobody changes its parts.
	Plan    Plan
	Version uint64 // of the plan
	// Heard is when a coordinator said last that it is the newest; zero: none did since the start.
	Heard time.Time
}

// kept is what the file has.
type kept struct {
	Version uint64 `json:"version"`
	Plan    string `json:"plan"` // as it travelled
}

// damaged says how that is mended.
func damaged(name string, err error) error {
	return fmt.Errorf("quota: %s: %w: %w; remove it, and the shard does nothing before a coordinator told it again",
		name, ErrDamaged, err)
}

// OpenFollower returns a follower of what is on disk. A file that is damaged matches [ErrDamaged]: a shard
// that forgot its quotas would pass them, and so somebody has to look.
func OpenFollower(cfg FollowerConfig) (*Follower, error) {
	if cfg.Every == 0 {
		cfg.Every = DefaultEvery
	}
	f := &Follower{cfg: cfg}
	name := filepath.Join(cfg.Dir, fileName)
	// A process that was killed may have put the file in its place, and not have had the folder
	// written: a power cut would bring back the one before.
	if err := cfg.Files.Settle(cfg.Dir); err != nil {
		return nil, fmt.Errorf("quota: settle %s: %w", cfg.Dir, err)
	}
	text, err := cfg.Files.ReadFile(name, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, nil
	case errors.Is(err, durable.ErrTooLarge):
		return nil, damaged(name, err)
	case err != nil:
		return nil, fmt.Errorf("quota: read %s: %w", name, err)
	}
	k, plan, err := decode(text)
	if err != nil {
		return nil, damaged(name, err)
	}
	f.have, f.text, f.saved = FollowerState{Known: true, Plan: plan, Version: k.Version}, k.Plan, true
	return f, nil
}

func decode(text []byte) (k kept, plan Plan, err error) {
	if err := durable.Decode(fileHead, text, &k); err != nil {
		return k, plan, err
	}
	plan, err = DecodePlan([]byte(k.Plan))
	return k, plan, err
}

// State returns what the shard was told.
func (f *Follower) State() FollowerState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.have
}

// Run asks until ctx ends, and returns its error.
func (f *Follower) Run(ctx context.Context) error {
	every := time.NewTicker(f.cfg.Every)
	defer every.Stop()
	for {
		f.Step(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
		}
	}
}

// unkept is the error of a disk that did not take the plan.
type unkept struct{ err error }

func (e *unkept) Error() string { return e.err.Error() }
func (e *unkept) Unwrap() error { return e.err }

// behindError is a coordinator that does not know the newest plan yet.
type behindError struct{ says, have uint64 }

func (e *behindError) Error() string {
	return fmt.Sprintf("a coordinator says that version %d of the plan is the newest, and it was %d before", e.says,
		e.have)
}

// settles is how long coordinators may tell of different plans without a word about it.
const settles = time.Minute

// Step asks once. A failure is logged, once, and the plan of before stays in force.
func (f *Follower) Step(ctx context.Context) {
	f.asking.Lock()
	defer f.asking.Unlock()
	err := f.ask(ctx)
	if _, behind := errors.AsType[*behindError](err); behind && f.cfg.Now().Sub(f.State().Heard).Abs() < settles {
		return
	}
	text := ""
	disk, full := errors.AsType[*unkept](err)
	switch {
	case full:
		text = "the disk" // the name of the file that was tried is another one each time
	case err != nil:
		text = err.Error()
	}
	if text == f.told || ctx.Err() != nil {
		return
	}
	f.told = text
	switch known := f.State().Known; {
	case err == nil:
		f.cfg.Log.Info("the shard is told of quotas and providers again")
	case full:
		f.cfg.Log.Error("the disk does not take the quotas and providers that the shard was told: a start while no "+
			"coordinator answers goes by older ones", "err", disk)
	case known:
		f.cfg.Log.Warn("the shard was not told of quotas and providers: it goes on with those that it knows", "err",
			err)
	default:
		f.cfg.Log.Warn("the shard was never told of quotas and providers: it does nothing before it is", "err", err)
	}
}

func (f *Follower) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	have := f.State()
	answer, err := fealtyv1.NewRegistryServiceClient(f.cfg.Conn).PollPlan(ctx,
		&fealtyv1.PollPlanRequest{Name: f.cfg.ID.Name(), Have: have.Version})
	if err != nil {
		return err
	}
	said, err := order.OpenDocument(f.cfg.Authority, Kind, answer.GetStatement())
	if err != nil {
		return fmt.Errorf("the statement over the plan: %w", err)
	}
	switch {
	case said.Version>>32 > said.AuthorityEpoch:
		// Else one statement of a thief would stand above all that come after the theft.
		return fmt.Errorf("version %d of the plan is above those of authority epoch %d", said.Version,
			said.AuthorityEpoch)
	case said.Version < have.Version:
		return &behindError{said.Version, have.Version}
	case said.Version == have.Version && have.Known && said.Digest != DigestOf([]byte(f.text)):
		return fmt.Errorf("version %d of the plan was signed twice, as two plans: the one that came first counts, "+
			"until there is a newer one", said.Version)
	case said.Version == have.Version && have.Known:
		return f.take(have.Version, f.text, have.Plan)
	}
	text := []byte(answer.GetPlan())
	if DigestOf(text) != said.Digest {
		return fmt.Errorf("version %d of the plan is not the one that was signed", said.Version)
	}
	plan, err := DecodePlan(text)
	if err != nil {
		return fmt.Errorf("version %d of the plan: %w", said.Version, err)
	}
	return f.take(said.Version, string(text), plan)
}

// take puts a plan in force, and on disk. A disk that does not take it holds up no quota: it is
// tried again with the next answer.
func (f *Follower) take(version uint64, text string, plan Plan) error {
	f.text = text
	f.mu.Lock()
	before := f.have
	f.have = FollowerState{Known: true, Plan: plan, Version: version, Heard: f.cfg.Now()}
	f.mu.Unlock()
	if !before.Known || before.Version != version {
		f.saved = false
		f.cfg.Log.Info("the shard was told of quotas and providers", "version", version, "quotas", len(plan.Quotas),
			"providers", len(plan.Providers))
	}
	if f.saved {
		return nil
	}
	file, err := durable.Encode(fileHead, kept{version, text})
	if err != nil {
		return err
	}
	if err := f.cfg.Files.WriteFile(filepath.Join(f.cfg.Dir, fileName), file); err != nil {
		return &unkept{fmt.Errorf("keep the plan: %w", err)}
	}
	f.saved = true
	return nil
}
