package authority

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

// MarkFile of the data directory says which head this coordinator has seen.
const (
	MarkFile    = "head-seen.json"
	MaxMarkFile = 16 << 10 // bytes
)

// FollowPatience is how long a call waits for the head that the store shows. After
// that it is refused, and status says that this coordinator does not get there.
const FollowPatience = decide.FollowFor

// HeadConfig is what a Head is made of.
type HeadConfig struct {
	Self       *Enrolment
	StoreGuard *storeguard.Guard
	History    *history.Log
	Store      store.Store
	FS         durable.FS
	Failures   *ratelimit.LogSampler
	Log        *slog.Logger
	Now        func() time.Time
	Elapsed    func() time.Duration

	// MaxHeadAge is how long it serves what needs no new fact without seeing the head.
	MaxHeadAge time.Duration
	// Leave has the head that the store shows followed, before anything more is decided
	// under the one in force.
	Leave func(ctx context.Context)
	// Memory is what is here of s and of what may come, for who judges another head.
	Memory func(s *State) decide.Memory
}

// Head knows which head is in force, and what the store shows of it (I10).
type Head struct {
	cfg     HeadConfig
	metrics *headMetrics

	conflicted map[string]func(ctx context.Context, err *store.ConflictError) (again bool)

	state         atomic.Pointer[State]
	stateChanged  watch.Signal
	headDue       watch.Signal                   // the head is to be looked at now
	older         atomic.Pointer[history.Record] // the head that the store shows, if it is one of before
	lag           lag                            // the state, if the store showed a newer head
	headConfirmed clock.Last                     // when the store was last asked and showed our head
}

// NewHead makes a Head under which nothing was read yet.
func NewHead(cfg HeadConfig) *Head {
	h := &Head{cfg: cfg}
	h.Put(&State{Phase: Recovery, Reason: "the history was not read yet"}, time.Time{})
	return h
}

// lag says which state is not that of the newest head that the store showed. The zero
// value says that there is none.
type lag struct {
	of   atomic.Pointer[State]
	at   clock.Last   // since when, while of is set
	over watch.Signal // it is up with the store after all

	began time.Duration // at, on the clock that only goes forward; owned by who has the turn
}

// History reads the history that the store shows.
func (h *Head) History() *history.Log { return h.cfg.History }

// State returns the state in force, which is never nil.
func (h *Head) State() *State { return h.state.Load() }

// Put makes s the state in force, and tells whoever waits for another one. confirmed is when
// the store was asked and showed its head; the zero value: it was not.
func (h *Head) Put(s *State, confirmed time.Time) {
	h.state.Store(s)
	if !confirmed.IsZero() {
		h.headConfirmed.Set(confirmed)
	}
	h.stateChanged.Notify()
}

// Changed returns a channel that is closed when another state is in force.
func (h *Head) Changed() <-chan struct{} { return h.stateChanged.Wait() }

// LookAgain has the head that the store shows looked at now.
func (h *Head) LookAgain() { h.headDue.Notify() }

// Due returns a channel that is closed when the head is to be looked at.
func (h *Head) Due() <-chan struct{} { return h.headDue.Wait() }

// Confirmed returns when the store was last asked and showed the head in force; the zero
// time: it never did.
func (h *Head) Confirmed() time.Time { return h.headConfirmed.Get() }

// ConfirmedAge is how long before now that was.
func (h *Head) ConfirmedAge(now time.Time) time.Duration { return h.headConfirmed.Age(now) }

// BehindSince returns since when the store shows a newer head than the one in force.
func (h *Head) BehindSince() time.Time { return h.lag.at.Get() }

// Behind is for how long, on the clock that only goes forward. The caller has the turn.
func (h *Head) Behind() time.Duration { return h.cfg.Elapsed() - h.lag.began }

// FallBehind notes that the store shows another head than that of s. The caller has
// the turn.
func (h *Head) FallBehind(s *State) {
	if s.Phase != Ready || h.lag.of.Load() == s {
		return
	}
	h.lag.at.Set(h.cfg.Now())
	h.lag.began = h.cfg.Elapsed()
	h.lag.of.Store(s)
}

// CaughtUp notes that the store shows the head of s, which was read since the turn was
// taken: what was read before that may be older than what made s fall behind.
func (h *Head) CaughtUp(s *State) {
	if h.lag.of.CompareAndSwap(s, nil) {
		h.lag.over.Notify()
	}
}

// Acts reports whether something may be changed or certified under s.
func (h *Head) Acts(s *State) bool {
	last := decide.Same
	if h.lag.of.Load() == s {
		last = decide.Another
	}
	return decide.Acts(s.Phase, last)
}

// InForce returns the state to change something under, or to certify somebody. If the
// store showed a newer head it waits until that is in force here, for as long as ctx and
// FollowPatience allow.
func (h *Head) InForce(ctx context.Context) (*State, error) {
	deadline := time.Now().Add(FollowPatience)
	for {
		changed, over := h.stateChanged.Wait(), h.lag.over.Wait()
		s, err := h.Ready()
		if err != nil || h.Acts(s) {
			return s, err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil, errcode.New(errcode.HeadNotFollowed)
		}
		if _, err := watch.Wait(ctx, left, changed, over); err != nil {
			return nil, err
		}
	}
}

// AtHead is InForce for who acts on what the head of the history is: the store is asked
// for it. While the store is out of reach that is the head in memory.
func (h *Head) AtHead(ctx context.Context) (*State, error) {
	if _, err := h.Ready(); err != nil {
		return nil, err
	}
	asking, cancel := h.Patience(ctx)
	defer cancel()
	if !h.HeadHolds(asking) {
		h.cfg.Leave(asking)
	}
	return h.InForce(ctx)
}

// Ready returns the state to decide on, or why there is none. Strangers are told
// too, so why it is in recovery mode, which names files and keepers, is left to
// status and the log. That the store went back is said: a coordinator that has to ask
// this one for the seed cannot find it out by itself.
func (h *Head) Ready() (*State, error) {
	s := h.state.Load()
	switch s.Phase {
	case Ready:
		return s, nil
	case Uninitialized:
		return nil, errcode.New(errcode.HistoryUninitialized)
	}
	reason := "its keys or its history could not be brought back"
	if h.cfg.StoreGuard.Lost() != nil {
		reason = "the store went back (" + string(errcode.StoreWentBack) +
			"), and nothing is changed before the signers restore it"
	}
	fields := []any{"reason", reason + "; fealty status on its machine says why"}
	if s.Ownerless {
		fields = append(fields, "do", "use another coordinator or wait; if all are recovering, a keeper has to open the "+
			"seed, as nobody owns a share of it: fealty status on its machine says what to mend")
	}
	return nil, errcode.New(errcode.RecoveryMode, fields...)
}

// Transact has try make a decision under the state in force, and make it again while somebody else's
// transaction is first, at most [record.CommitTries] times; what names it for errors, as in "the ban".
//
// try returns the conflict of its transaction as it is, as [Head.CommitError] does: what was registered for its
// key with [Head.OnConflict] is asked first. Every other error ends it, and is returned as try worded it. A
// conflict after which nothing is decided again is an [errcode.StoreBusy], or an [errcode.HistoryInvalid] while
// the store shows an older head. After its commit try returns no conflict: it would decide a second time.
func (h *Head) Transact(ctx context.Context, what string, try func(*State) error) error {
	for range record.CommitTries {
		s, err := h.InForce(ctx)
		if err != nil {
			return err
		}
		if err = try(s); !errors.Is(err, store.ErrConflict) {
			return err
		}
		if !h.Conflicts(ctx, err) {
			return h.StoreError(what, err)
		}
	}
	return record.Busy(what)
}

// CommitError words the error of a commit as [Head.StoreError] does, but for a conflict: that is for
// [Head.Transact], and stays as it is.
func (h *Head) CommitError(what string, err error) error {
	if errors.Is(err, store.ErrConflict) {
		return err
	}
	return h.StoreError(what, err)
}

// Conflicts reports whether err means that somebody else's transaction was
// first, so that the decision must be made again on what is there now. If it was
// the head of the history that moved, our state is looked at first.
func (h *Head) Conflicts(ctx context.Context, err error) bool {
	if !errors.Is(err, store.ErrConflict) {
		return false
	}
	var conflict *store.ConflictError
	switch errors.As(err, &conflict); {
	case conflict == nil:
	case h.conflicted[conflict.Key] == nil:
	case !h.conflicted[conflict.Key](ctx, conflict):
		return false
	}
	// A coordinator that lost to another once would lose again in step with it.
	return watch.Sleep(ctx, mathrand.N(record.ConflictPause)) == nil
}

// OnConflict has f called when a transaction conflicts over key: f waits until the decision
// can be made again, or says that it cannot. It is called before anything is committed.
func (h *Head) OnConflict(key string, f func(ctx context.Context, err *store.ConflictError) (again bool)) {
	if h.conflicted == nil {
		h.conflicted = make(map[string]func(context.Context, *store.ConflictError) bool)
	}
	h.conflicted[key] = f
}

// StoreError words an error of the store for who called: why the store did not do it, with the server's own
// words where it does not answer. The log alone says the rest.
func (h *Head) StoreError(what string, err error) error {
	code := errcode.StoreUnreachable
	switch {
	case errcode.CodeOf(err) != "":
		return err // worded where it happened
	case errors.Is(err, store.ErrUnknownOutcome): // also if the caller went away
		code = errcode.StoreOutcomeUnknown
	case store.ReasonOf(err) != 0:
		h.cfg.Log.Error("the store failed", "what", what, "err", err)
		return storeguard.Refusal(what, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, store.ErrForged):
		h.Forged(context.Background(), what, err)
		return errcode.New(errcode.StoreForged, "what", what)
	case errors.Is(err, store.ErrConflict):
		if older := h.OlderHeadError(); older != nil {
			return older
		}
		return record.Busy(what)
	}
	h.cfg.Log.Error("the store failed", "what", what, "err", err)
	if code == errcode.StoreUnreachable {
		return h.cfg.StoreGuard.Unanswered(what, err)
	}
	cause := "the coordinator's log says how"
	if reason := store.ReasonOf(err); reason != 0 {
		cause = fmt.Sprintf("the store took no write, because %v", reason)
	}
	return errcode.New(code, "what", what, "cause", cause)
}

// Made words err, which came after a change was in the store. It must not be one that
// has clients make the change again at another coordinator, as recovery mode does: that
// would be a second one.
func (h *Head) Made(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	h.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "a change was made, and is not in force here yet",
		slog.String("what", what), slog.Any("err", err))
	return errcode.New(errcode.DoneNotInForce, "what", what)
}

// Forged tells people that a record was altered outside of Fealty.
func (h *Head) Forged(ctx context.Context, what string, err error) {
	h.metrics.forged.Inc()
	h.cfg.Log.LogAttrs(ctx, slog.LevelError, "a record in the store fails its MAC: it was altered from outside",
		slog.String("record", what), slog.Any("err", err))
}

// HeadHolds reports whether the head in the store is ours or one of before, or that
// nobody can tell now.
func (h *Head) HeadHolds(ctx context.Context) bool {
	verdict, known := h.JudgeStored(ctx, h.state.Load())
	return !known || verdict != decide.Another
}

// JudgeStored says what the head that the store shows means for s. It is not known while
// the store does not show it. Without a history none is the same.
func (h *Head) JudgeStored(ctx context.Context, s *State) (verdict decide.Verdict, known bool) {
	asked := h.cfg.Now()
	// A call that hangs from before the store was back must not keep it from being seen.
	asking, cancel := context.WithTimeout(ctx, StorePatience)
	defer cancel()
	e, err := h.cfg.Store.Get(asking, history.HeadKey)
	switch {
	case ctx.Err() != nil:
		return 0, false
	case errors.Is(err, store.ErrNotFound) && s.Phase == Uninitialized:
		return decide.Same, true
	case errors.Is(err, store.ErrNotFound):
		return decide.Another, true
	case err != nil:
		h.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the head of the history was not confirmed", slog.Any("err", err))
		h.cfg.StoreGuard.Silent()
		return 0, false
	}
	verdict = h.judgeHead(ctx, s, e)
	if verdict == decide.Same {
		h.older.Store(nil)
		h.headConfirmed.Set(asked)
	}
	return verdict, true
}

// Seen returns what is written of the newest head in the data directory; the zero
// value if there is nothing.
func (h *Head) Seen() (history.SeenHead, error) {
	var m history.SeenHead
	raw, err := h.cfg.FS.ReadFile(h.cfg.Self.Path(MarkFile), MaxMarkFile)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		return m, fmt.Errorf("read %s, which says what head this coordinator has seen: %w: restore it, or remove it "+
			"to believe the store", h.cfg.Self.Path(MarkFile), err)
	}
	return m, nil
}

// RecordSeen writes down the newest head. It is a second line of defence against
// a store that is rolled back, so that a full disk here stops nothing: see [storeguard.Guard.UnkeptFindings].
func (h *Head) RecordSeen(ctx context.Context, seen history.SeenHead) {
	raw, err := json.Marshal(seen)
	if err != nil {
		h.cfg.Log.LogAttrs(ctx, slog.LevelError, "the newest head was not written down", slog.Any("err", err))
		return
	}
	h.cfg.StoreGuard.KeepHead(ctx, MarkFile, raw)
}

// headMetrics are what Head counts.
type headMetrics struct {
	forged prometheus.Counter
}

func newHeadMetrics(reg prometheus.Registerer) *headMetrics {
	m := &headMetrics{
		forged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fealty_store_forged_records_total",
			Help: "Records whose MAC failed: the store was altered from outside.",
		}),
	}
	reg.MustRegister(m.forged)
	return m
}

// RegisterMetrics registers what it counts, and what the head in force is.
func (h *Head) RegisterMetrics(reg prometheus.Registerer) {
	h.metrics = newHeadMetrics(reg)
	reg.MustRegister(
		metrics.GaugeIf("fealty_coordinator_ready",
			"1 while a manifest is in force and this coordinator holds its keys.",
			func() bool { return h.state.Load().Phase == Ready }),
		metrics.GaugeIf("fealty_coordinator_recovery_mode",
			"1 while the state in memory is not the head of the persisted history.",
			func() bool { return h.state.Load().Phase == Recovery }),
		metrics.GaugeOf("fealty_authority_epoch",
			"Authority epoch of the manifest in force; 0 without one.",
			func() float64 { return float64(h.state.Load().Head.AuthorityEpoch) }),
		metrics.GaugeOf("fealty_history_index",
			"Index of the transition in force; 0 without one.",
			func() float64 { return float64(h.state.Load().Head.Index) }),
		metrics.GaugeOf("fealty_baseline_data",
			"Data members that have to be connected by the manifest in force; 0 without one.",
			func() float64 {
				if s := h.state.Load().Ready(); s != nil {
					return float64(s.Manifest.Baseline.Data)
				}
				return 0
			}),
	)
}

// olderHead says that the store shows a head that was in force before ours. It is a
// notice that was late or, if it stays, a store that went back. Ours stays in force:
// this may be the only memory with its mesh CA key. Every transaction wants ours, so
// that nothing is decided on what the store shows.
func (h *Head) olderHead(ctx context.Context, record history.Record) {
	if h.older.Swap(&record) == nil {
		h.cfg.Log.LogAttrs(ctx, slog.LevelError,
			"the store shows an older head of the history: nothing can change until it shows the newest "+
				"one", slog.Uint64("index", record.Index), slog.String("head", record.Hash.String()))
	}
}

// OlderHeadError words why nothing can change while the store shows an older head; nil
// if it does not.
func (h *Head) OlderHeadError() error {
	record, s := h.older.Load(), h.state.Load()
	if record == nil || s.Phase != Ready {
		return nil
	}
	return errcode.New(errcode.HistoryInvalid, "cluster", s.Manifest.Cluster, "index", fmt.Sprint(record.Index),
		"problem", fmt.Sprintf("the store shows index %d, and index %d is in force: it was rolled back, or answers "+
			"from a copy that lags", record.Index, s.Head.Index))
}

// judgeHead says what the head e of the store means. One that cannot be read is another
// head: why is found out on the way to it.
func (h *Head) judgeHead(ctx context.Context, s *State, e store.Entry) decide.Verdict {
	if s.Phase == Ready && e.Version == s.HeadVersion && string(e.Value) == string(s.HeadRecord) {
		return decide.Same
	}
	record, err := history.DecodeRecord(e.Value)
	if err != nil {
		return decide.Another
	}
	verdict := decide.Judge(h.cfg.Memory(s), record.Hash)
	switch {
	case verdict == decide.Older && h.restoring(ctx):
		return decide.Another
	case verdict == decide.Older:
		h.olderHead(ctx, record)
	case verdict == decide.Same:
		return decide.Another // of the same name, and written anew
	}
	return verdict
}

// ClaimedHistory reads the history as the store claims it to be, and the manifest of
// its head. Nothing is verified: that takes the seed.
func (h *Head) ClaimedHistory(ctx context.Context) (*history.History, []history.Link, *manifest.Manifest, error) {
	claimed, err := h.cfg.History.Load(ctx)
	if err != nil {
		return nil, nil, nil, h.ClaimedHistoryError(err)
	}
	links := make([]history.Link, 0, len(claimed.Links))
	for _, raw := range claimed.Links {
		t, err := history.Decode(raw)
		if err != nil {
			return nil, nil, nil, h.ClaimedHistoryError(err)
		}
		links = append(links, history.Link{Transition: *t, Hash: sha256.Sum256(raw)})
	}
	m, err := manifest.ParseAccepted(claimed.Manifests[links[len(links)-1].Manifest])
	if err != nil {
		return nil, nil, nil, errcode.Wrap(err, errcode.HistoryInvalid,
			"problem", "the manifest of its head does not parse")
	}
	return claimed, links, m, nil
}

// ClaimedHistoryError words why the history that the store claims was not read.
func (h *Head) ClaimedHistoryError(err error) error {
	var damaged *history.BlobError
	switch {
	case errors.Is(err, history.ErrEmpty):
		return errcode.Wrap(err, errcode.HistoryInvalid, "problem", "the store holds none")
	case errors.Is(err, history.ErrUnverified), errors.Is(err, history.ErrEncoding), errors.As(err, &damaged):
		return errcode.Wrap(err, errcode.HistoryInvalid, "problem", err.Error())
	}
	return h.StoreError("read the history", err)
}

// Overwrite writes what a keeper, an owner's share or the root's own key authenticates,
// whatever is there, and returns its version. An older value is of a set that never came
// into force.
func (h *Head) Overwrite(ctx context.Context, key string, value []byte) (store.Revision, error) {
	for range record.CommitTries {
		e, err := h.cfg.Store.Get(ctx, key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return 0, h.StoreError("write a sealed secret", err)
		}
		version, err := h.cfg.Store.CompareAndSwap(ctx, key, e.Version, value)
		switch {
		case err == nil:
			return version, nil
		case !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrUnknownOutcome):
			return 0, h.StoreError("write a sealed secret", err)
		}
	}
	return 0, record.Busy("the sealed secret")
}

// Suspect is what a state does not open as genuine, and why.
type Suspect struct {
	What string
	Err  error
}

// ForgedUnder reports what s did not open of one reading, and returns nil. If the store shows
// another head than that of s it reports nothing, as under another seed the records have
// other keys, and returns a [store.ConflictError] on the head; nor does it if the head cannot
// be read, which is the error then. It asks the store once, however many there are.
func (h *Head) ForgedUnder(ctx context.Context, s *State, all ...Suspect) error {
	if len(all) == 0 {
		return nil
	}
	head, err := h.cfg.Store.Get(ctx, history.HeadKey)
	switch {
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return err
	case head.Version != s.HeadVersion:
		h.headDue.Notify()
		return &store.ConflictError{Key: history.HeadKey, Want: s.HeadVersion}
	}
	for _, one := range all {
		h.Forged(ctx, one.What, one.Err)
	}
	return nil
}

// StoreAnswers reports whether the store showed our head since a call last failed for it.
// A failure that lies ahead, because the clock was wrong, says nothing.
func (h *Head) StoreAnswers() bool {
	failed := h.cfg.StoreGuard.SilentAt()
	return !h.headConfirmed.Get().Before(failed) || failed.After(h.cfg.Now())
}
