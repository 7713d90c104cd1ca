package enroll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/node/verdict"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// StepName names a step of a join, in the order in which they are done.
type StepName string

// The steps of a join.
const (
	StepToken    StepName = "token"    // the proof is whole
	StepReach    StepName = "reach"    // a coordinator answers
	StepTrust    StepName = "trust"    // it is one of the pinned cluster
	StepClock    StepName = "clock"    // its clock and ours agree
	StepProof    StepName = "proof"    // the proof was sent
	StepIdentity StepName = "identity" // the certificate that was granted verifies
	StepSnapshot StepName = "snapshot" // so does the first config; all of it is durable
)

// Step reports that a step was done, or failed at one address.
type Step struct {
	Name   StepName
	Detail string // one line for people
	Err    error  // nil if it was done
}

// JoinConfig says who joins, with what, and where its state goes.
type JoinConfig struct {
	// DataDir is the folder for the node's state; it is made if it is missing.
	// Required.
	DataDir string
	// Proof is what to show. Required.
	Proof Proof
	// Kind is what to join as. Blank means data.
	Kind identity.Kind
	// Rejoin allows to replace an identity of the same cluster and root in DataDir.
	Rejoin bool

	// FS keeps the state. Nil means the operating system's.
	FS durable.FS
	// Now is the clock. Nil means time.Now.
	Now func() time.Time
	// Log takes what goes beyond the steps. Nil means slog.Default().
	Log *slog.Logger
	// Release is the program's release, for the log.
	Release string
	// Progress is told of each step as it is done; calls do not overlap. Nil: nobody
	// is told.
	Progress func(Step)
	// Dial opens a connection to an address. Nil means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// Result says what a join gave.
type Result struct {
	ID       identity.ID
	Outcome  fealtyv1.JoinOutcome
	NotAfter time.Time // when the certificate ends, if it is not renewed
	// Autonomy is how long the node can do what its policy allows without a
	// coordinator. Zero for a person's identity.
	Autonomy time.Duration
	// Coordinator is the address that granted it; blank if an interrupted join was
	// only finished. Coordinators are those to talk to from now on.
	Coordinator  string
	Coordinators []string
}

// Join makes this machine a member: it proves itself to the first coordinator that
// answers, verifies what it is granted, and makes it durable. The key is durable
// before it is named to anybody, so that calling Join again after a failure at any
// point, the loss of the answer included, repeats the same request.
//
// Errors carry a code of package errcode: the coordinator's refusal; JoinClockWrong,
// JoinGrantRefused, TokenForeign or PeerUntrusted for what was found out here;
// NodeNoCoordinator if nobody was reached; NodeJoined, NodeLocked. With several
// addresses, errors.As finds the *AddressError of each.
func Join(ctx context.Context, cfg JoinConfig) (Result, error) {
	if cfg.Kind == "" {
		cfg.Kind = identity.Data
	}
	switch cfg.Kind {
	case identity.Data, identity.Witness, identity.Shard, identity.Operator, identity.Provider:
	default:
		return Result{}, errcode.New(errcode.BadValue, "name", "the kind", "value", string(cfg.Kind), "want",
			"data, witness, shard, operator or provider")
	}
	j, err := newJoiner(cfg)
	if err != nil {
		return Result{}, err
	}
	store, err := state.OpenStore(j.FS, cfg.DataDir)
	if err != nil {
		return Result{}, err
	}
	defer store.Close()
	before, done, err := j.prior(store)
	if err != nil {
		return Result{}, err
	}
	if done != nil {
		return *done, nil
	}
	key, err := j.pendingKey(ctx, store, before.renewing)
	if err != nil {
		return Result{}, err
	}
	w := state.Wanted{Cluster: j.Proof.cluster, Kind: j.Kind, Pin: j.Proof.pin, Key: key, TrustState: before.trustState}
	got, address, err := j.pursue(ctx, w)
	if err != nil {
		return Result{}, err
	}
	entry, err := got.Journal(j.Proof.addresses, j.Now())
	if err != nil {
		return Result{}, err
	}
	if err := store.CommitJoin(entry); err != nil {
		return Result{}, fmt.Errorf("keep the identity: %w", err)
	}
	r := result(entry.Anchor, got.SVID, got.After, j.Now())
	r.Coordinator = address
	j.step(Step{Name: StepSnapshot, Detail: fmt.Sprintf("coordinators known: %d, renewal every %v", len(r.Coordinators),
		RenewEvery(got.After))})
	j.Log.LogAttrs(ctx, slog.LevelInfo, "joined", slog.String("cluster", r.ID.Cluster()),
		slog.String("member", r.ID.String()),
		slog.String("outcome", entry.Anchor.Outcome), slog.String("coordinator", address), slog.String("release",
			j.Release))
	return r, nil
}

// joiner is one join by a person's call.
type joiner struct {
	JoinConfig
	mu sync.Mutex // held while Progress is told
}

func newJoiner(cfg JoinConfig) (*joiner, error) {
	if cfg.Proof.prover == nil {
		return nil, errors.New("enroll: JoinConfig.Proof is missing: make it with ByToken, ByKey or ByX509")
	}
	if cfg.FS == nil {
		cfg.FS = durable.OS()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &joiner{JoinConfig: cfg}, nil
}

func (j *joiner) step(s Step) {
	if j.Progress == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Progress(s)
}

// priorState is what a join builds on.
type priorState struct {
	trustState *state.TrustState
	renewing   bool // there is an identity whose pending key must not be lost
}

// prior decides what the directory allows. It returns a result if all that was left
// to do was to finish an earlier join.
func (j *joiner) prior(store *state.Store) (priorState, *Result, error) {
	l, err := store.Load(state.NewClock(j.Now, nil))
	switch {
	case errors.Is(err, state.ErrNoMember), errors.Is(err, errcode.NodeStateCorrupt), errors.Is(err, errcode.NodeWrong):
		// No identity, or one that is of no use. The marks under this very root
		// still count.
		store.Pin = j.Proof.pin
		store.Sequence = 0
		known, err := store.ReadLedger()
		if err != nil {
			return priorState{}, nil, nil // of another cluster, or lost with the identity
		}
		return priorState{trustState: &state.TrustState{Ledger: state.Ledger{Marks: known.Marks}}}, nil, nil
	case err != nil:
		return priorState{}, nil, err
	}
	same := l.Me.Cluster == j.Proof.cluster && l.Me.Pin == j.Proof.pin
	switch {
	case l.Finished && same && l.Me.Kind == j.Kind:
		r := result(l.Me.Anchor, l.SVID, l.TrustState, j.Now())
		j.step(Step{Name: StepSnapshot, Detail: "an interrupted join was finished"})
		return priorState{}, &r, nil
	case j.Rejoin && same:
		return priorState{l.TrustState, true}, nil, nil
	}
	problem := "a join would replace it"
	if j.Rejoin {
		problem = "it is of another cluster, or of one under another root, so that this node has to leave first"
	}
	return priorState{}, nil, errcode.New(errcode.NodeJoined, "dir", store.Dir, "identity", l.Me.ID, "problem", problem)
}

// pendingKey returns the key to have certified, which is durable: that of an
// earlier try of the same join, or a new one.
func (j *joiner) pendingKey(ctx context.Context, store *state.Store, renewing bool) (dir.KeyPair, error) {
	purpose := j.Proof.Purpose(j.Kind)
	next, err := store.ReadNext()
	if err != nil {
		j.Log.LogAttrs(ctx, slog.LevelWarn, "the key of an earlier try is of no use, making another",
			slog.Any("err", err))
	}
	// The key of a renewal under way may be the member's current one without our
	// knowing: it must not be overwritten by a join that may yet be refused.
	if next != nil && (next.Purpose == purpose || renewing && next.Purpose == dir.PurposeRenew) {
		return next.Key, nil
	}
	key, err := dir.NewKeyPair()
	if err != nil {
		return dir.KeyPair{}, err
	}
	if err := store.WriteNext(state.PendingKey{Key: key, Purpose: purpose}); err != nil {
		return dir.KeyPair{}, fmt.Errorf("keep the key before asking: %w", err)
	}
	return key, nil
}

// pursue asks one address after the other, and returns the first grant that
// verifies, with its address.
func (j *joiner) pursue(ctx context.Context, w state.Wanted) (*state.Admitted, string, error) {
	p := j.Proof
	detail := p.what + " for cluster " + p.cluster
	if p.token {
		detail = fmt.Sprintf("for cluster %s, good until %s", p.cluster, state.Stamp(p.expires))
	}
	j.step(Step{Name: StepToken, Detail: detail})
	var failures []error
	for _, address := range p.addresses {
		got, err := j.try(ctx, address, w)
		if err == nil {
			return got, address, nil
		}
		if e, ok := verdict.Of(err); ok {
			return nil, "", e
		}
		if ctx.Err() != nil {
			return nil, "", fmt.Errorf("join at %s: %w", address, ctx.Err())
		}
		j.Log.LogAttrs(ctx, slog.LevelInfo, "no join at this address", slog.String("coordinator", address),
			slog.String("reason", err.Error()))
		failures = append(failures, &verdict.AddressError{Address: address, Err: err})
	}
	if p.token && p.placed != "" && allPins(failures) {
		return nil, "", errcode.Wrap(errors.Join(failures...), errcode.TokenForeign, "presented", p.cluster,
			"reason", "no coordinator that "+p.placed+" names holds the root key that the token pins",
			"do",
			"name a coordinator of that cluster with "+p.placed+", or leave it away for the addresses in the token")
	}
	if p.token && allPins(failures) {
		return nil, "", errcode.Wrap(errors.Join(failures...), errcode.TokenForeign, "presented", p.cluster)
	}
	return nil, "", verdict.Summarize(p.cluster, failures, "do",
		"check that the address is right (--coordinator names "+
			"another one), that a coordinator runs there, and that its port is open from here; then try again")
}

// allPins reports whether each address answered and had another root.
func allPins(failures []error) bool {
	return len(failures) > 0 && !slices.ContainsFunc(failures,
		func(err error) bool { return !errors.Is(err, pinned.ErrMismatch) })
}

// try joins at one address. The steps that were done are told; where it failed is
// told too.
func (j *joiner) try(ctx context.Context, address string, w state.Wanted) (*state.Admitted, error) {
	ctx, cancel := context.WithTimeout(ctx, AttemptTimeout)
	defer cancel()
	at := StepReach
	h := Handshake{
		Cluster: w.Cluster, Kind: w.Kind, Pin: w.Pin, Prover: j.Proof.prover, Key: w.Key, Now: j.Now, Dial: j.Dial,
		done: func(name StepName, detail string) {
			j.step(Step{Name: name, Detail: detail})
		},
		at: func(name StepName) { at = name },
	}
	fail := func(err error) (*state.Admitted, error) {
		if verdict.IsHandshake(err) {
			at = StepTrust
		}
		j.step(Step{Name: at, Detail: address, Err: verdict.Word(address, err)})
		return nil, err
	}
	grant, err := h.Run(ctx, address)
	if err != nil {
		return fail(err)
	}
	at = StepIdentity
	got, err := state.VerifyGrant(grant, w, j.Now)
	if err != nil {
		if g, ok := errors.AsType[*state.GrantError](err); ok && g.Part != "chain" && g.Part != "root" &&
			g.Part != "outcome" {
			at = StepSnapshot
		}
		return fail(errcode.Wrap(err, errcode.JoinGrantRefused, "coordinator", address, "problem", err.Error()))
	}
	j.step(Step{Name: StepIdentity, Detail: fmt.Sprintf("%s until %s", got.Me.ID,
		state.Stamp(got.Material.NotAfter()))})
	return got, nil
}

func result(a state.Anchor, s dir.SVID, b *state.TrustState, now time.Time) Result {
	r := Result{
		ID: a.ID, Outcome: fealtyv1.JoinOutcome(fealtyv1.JoinOutcome_value[a.Outcome]), NotAfter: s.Leaf().NotAfter,
		Coordinators: state.MergeAddresses(b, a.Addresses),
	}
	r.Autonomy = max(0, min(b.Degraded().Max, s.Leaf().NotAfter.Sub(now)))
	return r
}
