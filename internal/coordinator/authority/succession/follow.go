package succession

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/backup"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

// read reads the history, and returns what it claims its head to be or, without one, the state
// that this is. An error is a store that cannot be read.
//
// A history that does not lead through the newest head that this coordinator has
// seen is not adopted, however well it verifies (I11).
func (c *Succession) read(ctx context.Context, last *authority.State) (*claim, *authority.State, error) {
	seen, err := c.cfg.Head.Seen()
	if err != nil {
		return nil, authority.Recovering(last, err), nil
	}
	if err := c.cfg.Reseal.Break(ctx); err != nil {
		return nil, nil, fmt.Errorf("end what a reseed left: %w", err)
	}
	if last != nil {
		seen = last.Chain.Seen()
	}
	intent, _, err := authority.PendingRestore(ctx, c.cfg.Store)
	switch {
	case errcode.CodeOf(err) != "":
		return nil, authority.Recovering(last, err), nil
	case err != nil:
		return nil, nil, fmt.Errorf("read what a restore left: %w", err)
	}
	loaded, err := c.cfg.Head.History().Load(ctx)
	var damaged *history.BlobError
	switch {
	case errors.Is(err, history.ErrEmpty) && intent != nil:
		return nil, authority.Recovering(last, backup.Unfinished(intent)), nil
	case errors.Is(err, history.ErrEmpty) && seen.Mark != (history.Mark{}):
		return nil, authority.Recovering(last, errcode.Wrap(err, errcode.HistoryInvalid, "problem",
			fmt.Sprintf("the store holds none, and this coordinator has seen head %s at index %d: it is another "+
				"store, or it was emptied", seen.Hash, seen.Index))), nil
	case errors.Is(err, history.ErrEmpty):
		return nil, &authority.State{Phase: authority.Uninitialized, Reason: "no manifest was set yet"}, nil
	case errors.Is(err, history.ErrUnverified), errors.Is(err, history.ErrEncoding), errors.As(err, &damaged):
		return nil, authority.Recovering(last, errcode.Wrap(err, errcode.HistoryInvalid, "problem", err.Error())), nil
	case err != nil:
		return nil, nil, fmt.Errorf("read the history: %w", err)
	}
	w, err := c.claimOf(loaded, seen, last)
	if err != nil {
		return nil, authority.Recovering(last, err), nil
	}
	c.cfg.Hooks.Claimed(&w.link)
	if intent != nil && !backup.CarriedOut(intent, loaded) {
		w.restore = intent
	}
	return w, nil, nil
}

// Load returns the state at the start, without asking peers: these may be waiting
// for us to serve. Keepers open what they sealed for the head; for everything else the
// loop that follows the head looks. It is called once, before anything else of c. The error is of a store that
// cannot be read; whatever else is in the way is a state in recovery mode.
func (c *Succession) Load(ctx context.Context) (*authority.State, error) {
	w, s, err := c.read(ctx, nil)
	switch {
	case w == nil && err != nil:
		return nil, err
	case w == nil:
	case w.restore != nil:
		s, err = c.resumeRestore(ctx, w)
	default:
		s, err = c.fromKeepers(ctx, w)
	}
	if err != nil {
		s = authority.Recovering(nil, err)
	}
	c.tried.Store(s.Phase != authority.Recovery) // else Follow tries the other ways
	return s, nil
}

// load reads the history and comes back to its head, by whichever way leads there;
// without one wait says when to look again.
func (c *Succession) load(ctx context.Context, last *authority.State) (s *authority.State, wait time.Duration,
	err error) {
	w, s, err := c.read(ctx, last)
	if w == nil {
		return s, 0, err
	}
	if w.restore != nil {
		if s, err = c.resumeRestore(ctx, w); err != nil {
			return authority.Recovering(last, err), 0, ctx.Err()
		}
		return s, 0, nil
	}
	return c.recoverHead(ctx, w)
}

// newState builds the ready state of a verified history and its secrets.
func (c *Succession) newState(v *history.Verified, secrets *authority.Secrets, root *x509.Certificate,
	mesh *pki.MeshCA) (*authority.State, error) {
	if err := c.cfg.Self.CheckPin(root); err != nil {
		return nil, err
	}
	s, err := authority.New(v, secrets, root, mesh, c.cfg.Store, c.cfg.Auditing.Places(), c.cfg.Now())
	if err != nil {
		return nil, err
	}
	if s.X509Fault != nil {
		c.cfg.Log.LogAttrs(context.Background(), slog.LevelError,
			"proof x509 is not accepted: the roots of the manifest cannot be used", slog.Any("err", s.X509Fault))
	}
	return s, nil
}

// loadRoot reads the root certificate, which was stored beside the first sealed
// seed, and compares it with the key that the seed gives.
func loadRoot(ctx context.Context, st store.Store, v *history.Verified,
	secrets *authority.Secrets) (*x509.Certificate, error) {
	e, err := st.Get(ctx, sealed.RootKey(&v.Current().Transition))
	if err != nil {
		return nil, fmt.Errorf("read the root certificate: %w", err)
	}
	root, err := x509.ParseCertificate(e.Value)
	if err != nil {
		return nil, fmt.Errorf("the stored root certificate does not parse: %w", err)
	}
	again, err := pki.Root(secrets.RootCA(), v.Manifest().Cluster, root.NotBefore)
	if err != nil {
		return nil, err
	}
	if !again.Equal(root) {
		return nil, errors.New("the stored root certificate is not that of the seed: the store was altered, or mixed " +
			"up with another cluster's")
	}
	return root, nil
}

// Adopt makes s the state, and everything that follows from it true: the bundle,
// the own identity, the listeners. If that fails the state is one in recovery
// mode that says why, and the loop that follows the head tries again: a process
// that ended instead would take its copy of the seed with it.
//
// If it fails because somebody else was first, the state of before stays for reads where
// it can, and the error says so; see [lost]. The caller has the turn, but for the first head, at the start.
func (c *Succession) Adopt(ctx context.Context, s *authority.State) error {
	var failed error
	old := c.cfg.Head.State()
	before := old.Ready()
	if s.Phase == authority.Ready {
		failed = c.becomeReady(ctx, s)
		if lost(failed) {
			c.lost++
			if decide.Stays(c.cfg.Keys.Memory(old), decide.HeadOf(&s.Head), decide.Conflict) {
				c.cfg.Head.FallBehind(old)
				c.cfg.Head.LookAgain()
				c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a newer head is followed: another coordinator was first",
					slog.String("head", s.Head.Hash.String()), slog.Any("err", failed))
				return failed
			}
		}
		if failed != nil {
			c.cfg.Log.LogAttrs(ctx, slog.LevelError, "the head of the history was not adopted",
				slog.String("head", s.Head.Hash.String()), slog.Any("err", failed))
			s = authority.Recovering(s, failed)
		} else {
			c.cfg.Head.RecordSeen(ctx, s.Chain.Seen())
			c.auditOrigin(ctx, s)
		}
	}
	after := s.Ready()
	if old.Phase == s.Phase && old.Reason == s.Reason && s.Phase != authority.Ready &&
		(after == nil || before != nil && before.Head.Hash == after.Head.Hash) {
		return failed // nothing that anybody could see changed, and it holds no key more
	}
	if before != nil && after != nil && before.Head.Salt != after.Head.Salt {
		c.cfg.Keys.Retire(before.Secrets)
	}
	if s.Phase == authority.Ready && old.Phase != authority.Ready {
		for _, f := range c.cfg.Hooks.Returns {
			f()
		}
	}
	c.cfg.Head.Put(s, c.cfg.Now())
	attrs := []slog.Attr{slog.String("phase", s.Phase.String())}
	if s.Reason != "" {
		attrs = append(attrs, slog.String("reason", s.Reason))
	}
	if s.Phase == authority.Ready {
		c.lost = 0
		c.cfg.Keys.Settle(s.Head)
		c.cfg.Keys.Drop(s)
		c.search = decide.Search{HealAfter: c.cfg.SelfHealAfter, Random: mathrand.Float64}
		for _, arrived := range c.cfg.Hooks.Arrivals {
			arrived()
		}
		c.cfg.Self.EndSetup()
		attrs = append(attrs, slog.String("cluster", s.Manifest.Cluster),
			slog.Uint64("authority_epoch", s.Head.AuthorityEpoch), slog.Uint64("index", s.Head.Index))
	}
	level := slog.LevelInfo
	if s.Phase == authority.Recovery {
		level = slog.LevelWarn
	}
	c.cfg.Log.LogAttrs(ctx, level, "coordinator state", attrs...)
	return failed
}

// auditOrigin writes down what brought s about and where its secrets came from, now
// that it is ready. An entry that the store does not take, or not while another one moves the
// head, waits until it does: nobody else wrote down what owners or a keeper brought.
func (c *Succession) auditOrigin(ctx context.Context, s *authority.State) {
	if len(c.untold) == 0 {
		return
	}
	ch := s.Records.NewChange(s.HeadVersion)
	for _, e := range c.untold {
		if e.Actor == "" {
			e.Actor = c.cfg.Self.OwnID(s)
		}
		ch.Audit(c.cfg.Now(), e)
	}
	if _, err := ch.Commit(ctx); err != nil {
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
			"where the secrets came from is not in the audit log yet", slog.Any("err", err))
		c.cfg.Auditing.Again(ch)
	}
	c.untold = nil
}

// becomeReady puts bundle and own identity of s into force.
func (c *Succession) becomeReady(ctx context.Context, s *authority.State) error {
	if err := c.cfg.Faults.Hit("adopt.begin"); err != nil {
		return err
	}
	if err := c.cfg.StoreGuard.Fault(); err != nil {
		return err
	}
	c.cfg.StoreGuard.Restored(s.RestoredEpoch())
	if old := c.cfg.Head.State().Ready(); old != nil && old.Head.Salt != s.Head.Salt {
		old.Records.Next.Store(&s.Records)
	}
	if err := c.cfg.Reseal.Move(ctx, s); err != nil {
		return fmt.Errorf("bring the records under the seed of the head: %w", err)
	}
	if err := c.cfg.Restoration.Settle(ctx, s); err != nil {
		return err
	}
	prepared := make([]authority.Adoption, len(c.cfg.Hooks.Followers))
	for i, prepare := range c.cfg.Hooks.Followers {
		var err error
		if prepared[i], err = prepare(ctx, s); err != nil {
			return err
		}
	}
	if err := c.cfg.Faults.Hit("adopt.before-identity"); err != nil {
		return err
	}
	for _, p := range prepared {
		if p.Present != nil {
			if err := p.Present(); err != nil {
				return err
			}
		}
	}
	for _, p := range prepared {
		if p.Tell != nil {
			p.Tell()
		}
	}
	if err := c.cfg.Shares.Sweep(ctx, s); err != nil {
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
			"what a reseed left behind is not removed yet; the next start tries again", slog.Any("err", err))
	}
	return nil
}

// Follow confirms every few seconds, and on every notice, that the head is
// the one in memory; on the way back to it it looks when the search says.
func (c *Succession) Follow(ctx context.Context) error {
	changed, stop := watch.Key(ctx, c.cfg.Store, history.HeadKey)
	defer stop()
	for {
		due := c.cfg.Head.Due()
		pause, stale := c.Look(ctx)
		if stale {
			// The notice to look again is its own. Without the pause, two that are in each
			// other's way, or one that meets a record lock, would load the history again and again.
			if err := watch.Sleep(ctx, pause); err != nil {
				return err
			}
			continue
		}
		switch given, err := watch.Wait(ctx, pause, changed, due); {
		case err != nil:
			return err
		case !given:
			c.cfg.Hooks.Idle()
		}
	}
}

// Look takes the turn, and compares the persisted head with ours. If another one is there the
// state is loaded anew; until then nothing is decided under the old one, because
// every transaction is conditional on our head. It returns when to look again, and whether
// somebody else was first with what it was about to adopt.
func (c *Succession) Look(ctx context.Context) (pause time.Duration, stale bool) {
	pause = PollPause
	if !c.cfg.Reseal.Unsettled() && c.cfg.Head.HeadHolds(ctx) {
		return pause, false
	}
	// One at a time, and not while a set of our own is about to adopt its head.
	release, err := c.cfg.Turn.Await(ctx)
	if err != nil {
		return pause, false
	}
	defer release()
	// The head that was read before may be an ancestor of what a set adopted meanwhile.
	if c.followed(ctx) {
		return pause, false
	}
	if c.pushed.Swap(false) {
		c.search.Push(c.cfg.Elapsed())
	}
	next, wait, err := c.load(ctx, c.cfg.Head.State().Ready())
	if err != nil {
		if ctx.Err() == nil {
			c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the history was not read", slog.Any("err", err))
		}
		return pause, false
	}
	c.cfg.Reseal.Settle()
	c.tried.Store(true)
	if ctx.Err() == nil && next != c.cfg.Head.State() {
		switch err := c.Adopt(ctx, next); { // logged there, and tried again
		case lost(err):
			return lostPause(c.lost), true
		case err != nil:
			c.search.Ended(c.cfg.Elapsed(), decide.FromMemory, decide.Nothing)
		}
	}
	if wait > 0 {
		pause = min(pause, wait)
	}
	return pause, false
}

// Leave takes the turn, and makes sure that a call that found another head in the store decides
// nothing more under ours: what is in memory leads to that head at once, everything
// else is left to the loop that follows the head.
func (c *Succession) Leave(ctx context.Context) {
	release, err := c.cfg.Turn.Take(ctx)
	if err != nil {
		return
	}
	defer release()
	c.toHead(ctx)
}

// toHead is Leave for who has the turn.
func (c *Succession) toHead(ctx context.Context) {
	for range followTries {
		s := c.cfg.Head.State()
		if s.Phase != authority.Ready || c.followed(ctx) {
			return
		}
		w, next, err := c.read(ctx, s)
		if err != nil {
			c.cfg.Head.LookAgain() // the loop says why
			return
		}
		if w != nil {
			if next, err = c.fromMemory(ctx, w); err != nil {
				c.cfg.Head.LookAgain()
				if c.lingers(ctx, w) > 0 {
					return
				}
				next = authority.Recovering(s, err)
			}
		}
		if ctx.Err() != nil || !lost(c.Adopt(ctx, next)) { // logged there, and tried again
			return
		}
		if watch.Sleep(ctx, lostPause(c.lost)) != nil {
			return
		}
	}
}

// followed reports whether there is no other head to follow than the one in force, and
// no reseed to settle. The caller has the turn.
func (c *Succession) followed(ctx context.Context) bool {
	s := c.cfg.Head.State()
	switch verdict, known := c.cfg.Head.JudgeStored(ctx, s); {
	case !known:
	case verdict == decide.Same:
		c.cfg.Head.CaughtUp(s)
	case verdict == decide.Another:
		c.cfg.Head.FallBehind(s)
		return false
	}
	return !c.cfg.Reseal.Unsettled()
}
