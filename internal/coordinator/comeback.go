package coordinator

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/peerrecovery"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/coordinator/transition"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/recovery"
	decide "github.com/fealty-io/fealty/internal/replica"
	"github.com/fealty-io/fealty/manifest"
)

// A way leads to one head as the store claims it. Nothing vouches for it before its
// history verified under the keys of a seed.
type way struct {
	loaded   *history.History
	claimed  history.Link
	manifest *manifest.Manifest // that of claimed
	seen     history.SeenHead   // what the history must lead through (I11)
	last     *authority.State   // the last ready state; nil if there was none
	admitted bool               // manifest admits this coordinator
	restore  *backup.Intent     // what is to follow claimed: the store was restored; nil: it was not
}

// wayTo returns the way to the head of loaded.
func (c *Authority) wayTo(loaded *history.History, seen history.SeenHead, last *authority.State) (*way, error) {
	raw := loaded.Links[len(loaded.Links)-1]
	t, err := history.Decode(raw)
	if err != nil {
		return nil, explain.Wrap(err, explain.HistoryInvalid, "problem", err.Error())
	}
	m, err := manifest.ParseAccepted(loaded.Manifests[t.Manifest])
	if err != nil {
		return nil, explain.Wrap(err, explain.HistoryInvalid, "problem", err.Error())
	}
	_, refused := c.cfg.Self.Admits(m)
	return &way{
		loaded: loaded, claimed: history.Link{Transition: *t, Hash: sha256.Sum256(raw)}, manifest: m,
		seen: seen, last: last, admitted: refused == nil,
	}, nil
}

// notHere says that the secrets of the head have to come from elsewhere.
func (w *way) notHere() error {
	return fmt.Errorf("the history moved on to index %d, and the mesh CA key of that head is not here yet",
		w.claimed.Index)
}

// memory is what this process holds, as decisions see it.
func (c *Authority) memory() keychain.Memory { return c.cfg.Keys.Memory(c.cfg.Head.State()) }

// comeBack looks for the secrets of the head that w leads to, until one of the ways
// leads there or there is nothing to do but wait; wait says for how long. What stands
// in the way is a state in recovery mode.
//
// Before it asks anybody the state that was in force falls behind: the history is
// somewhere else, and nothing is decided under it. It serves reads for as long as somebody
// may be about to hand the secrets over; see [Coordinator.lingers].
func (c *Authority) comeBack(ctx context.Context, w *way) (s *authority.State, wait time.Duration, err error) {
	var failed []error
	for {
		held := c.cfg.Head.State()
		m := c.cfg.Keys.Memory(held)
		step, wait := c.search.Next(c.cfg.Elapsed(), m, decide.HeadOf(&w.claimed), w.admitted)
		if step != decide.FromMemory && m.Phase() == decide.Ready {
			left := c.lingers(ctx, w)
			switch {
			case left > 0 && step == decide.Wait:
				return held, min(wait, left), nil
			case left <= 0:
				if err := c.adopt(ctx, authority.Recovering(w.last,
					errors.Join(append(failed, w.notHere())...))); err != nil {
					return nil, 0, err
				}
			}
		}
		if step == decide.Wait {
			if len(failed) == 0 {
				return c.cfg.Head.State(), wait, nil // nothing was tried, so nothing is new
			}
			return authority.Recovering(w.last, errors.Join(failed...)), wait, nil
		}
		found := decide.Nothing
		asking, asked := c.yields.begin(ctx)
		switch step {
		case decide.FromMemory:
			s, err = c.fromMemory(ctx, w)
		case decide.AskPeers:
			s, found, err = c.askPeers(asking, w)
		case decide.AskKeepers:
			s, err = c.fromKeepers(asking, w)
		case decide.Rekey:
			s, err = c.heal(ctx, w)
		}
		yielded := asking.Err() != nil
		asked()
		switch {
		case err == nil:
			return s, 0, nil
		case ctx.Err() != nil:
			return nil, 0, ctx.Err() // whoever looks next does it again
		case yielded:
			return c.cfg.Head.State(), yieldPause, nil // and then goes on with this very step
		}
		failed = append(failed, err)
		c.search.Ended(c.cfg.Elapsed(), step, found)
	}
}

// yieldPause is how long a search that yielded to an owner waits for its turn.
const yieldPause = 100 * time.Millisecond

// yields is how a search for the secrets of the head, which holds setting while it asks
// others, gives way to owners who bring theirs. An owner has proven itself before it
// waits: strangers end no search.
type yields struct {
	mu      sync.Mutex
	waiting int                // owners that wait for setting; guarded by mu
	end     context.CancelFunc // of what is asked now; nil: nothing; guarded by mu
}

// begin returns a context for asking others, which ends when an owner comes, and what
// is to be called after it.
func (y *yields) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.waiting > 0 {
		cancel()
	}
	y.end = cancel
	return ctx, func() {
		y.mu.Lock()
		defer y.mu.Unlock()
		y.end = nil
		cancel()
	}
}

// wait counts an owner that waits until the returned function is called.
func (y *yields) wait() (over func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.waiting++
	if y.end != nil {
		y.end()
	}
	return func() {
		y.mu.Lock()
		defer y.mu.Unlock()
		y.waiting--
	}
}

// ownersTurn takes setting for an owner that has proven itself. A search that asks
// others meanwhile ends.
func (c *Authority) ownersTurn(ctx context.Context) (release func(), err error) {
	defer c.yields.wait()()
	return c.settingTurn(ctx)
}

// verify replays the history of w under the keys of a seed, and returns the head that
// they vouch for. It is not adopted before its mesh CA is there.
func (c *Authority) verify(ctx context.Context, w *way, secrets *authority.Secrets) (*history.Verified,
	*x509.Certificate, error) {
	verified, err := history.Verify(w.loaded, secrets.TransactionKey())
	if err == nil && w.restore == nil { // of a restored history it is the transition to come that has to
		_, err = w.seen.Accepts(verified)
	}
	if err != nil {
		return nil, nil, explain.Wrap(err, explain.HistoryInvalid, "problem", err.Error())
	}
	root, err := c.loadRoot(ctx, verified, secrets)
	return verified, root, err
}

// fromMemory comes back with what is here.
func (c *Authority) fromMemory(ctx context.Context, w *way) (*authority.State, error) {
	if w.restore != nil { // no mark vouches for this head, and the signers have not yet
		return nil, errors.New("the store says that it was restored: the transition of that comes first")
	}
	m := c.memory()
	secrets, mesh := m.Secrets(w.claimed.Salt), m.Mesh(w.claimed.MeshCAKey)
	if secrets == nil || mesh == nil {
		return nil, w.notHere()
	}
	verified, root, err := c.verify(ctx, w, secrets)
	if err != nil {
		return nil, err
	}
	s, err := c.newState(verified, secrets, root, mesh)
	if err != nil {
		return nil, err
	}
	if mv := c.cfg.Keys.Pending(w.claimed.Hash); mv != nil && !mv.Told &&
		(w.last == nil || w.last.Head.Hash != w.claimed.Hash) {
		mv.Told = true
		c.untold = append(c.untold, mv.Audit(s)...) // it came into force after all
	}
	return s, nil
}

// fromKeepers comes back with what the manifest's keepers open: the seed, and the mesh
// CA key that was sealed for this very head. Then no transition is needed. If only the
// seed opens it is kept.
//
// Which keepers are asked is read from a manifest that nothing vouches for yet. That
// is safe: a keeper opens only what it sealed, and the whole history must then verify
// under the keys of the seed that it gave.
func (c *Authority) fromKeepers(ctx context.Context, w *way) (*authority.State, error) {
	secrets, by, err := c.openSeed(ctx, w)
	if err != nil {
		return nil, err
	}
	verified, root, err := c.verify(ctx, w, secrets)
	if err != nil {
		if by != "" {
			secrets.Wipe()
		}
		return nil, err
	}
	mesh, err := c.openMesh(ctx, verified, root)
	var s *authority.State
	if err == nil {
		s, err = c.newState(verified, secrets, root, mesh)
	}
	if err != nil {
		if by != "" {
			c.cfg.Keys.Open(w.claimed.Salt, secrets, by, c.cfg.Head.State())
		}
		return nil, err
	}
	if from := c.openedBy(secrets, by); from != nil {
		c.untold = append(c.untold, transition.OriginOf(s, transition.ActionSeedReceived, from))
	}
	c.untold = append(c.untold, transition.OriginOf(s, transition.ActionMeshReceived,
		map[string]string{"via": "keeper"}))
	return s, nil
}

// openedBy says for the audit log which keeper opened a seed: the one with this name, or
// the one that did before. It returns nil for a seed that was here in another way.
func (c *Authority) openedBy(secrets *authority.Secrets, keeper string) map[string]string {
	if keeper == "" {
		keeper = c.cfg.Keys.Opener(secrets)
	}
	if keeper == "" {
		return nil
	}
	return map[string]string{"via": "keeper", "from": keeper}
}

// openSeed returns the seed of the head with its keys: from memory, or from the first
// keeper that opens it, which it names.
func (c *Authority) openSeed(ctx context.Context, w *way) (s *authority.Secrets, by string, err error) {
	if s := c.memory().Secrets(w.claimed.Salt); s != nil {
		return s, "", nil
	}
	var failures []error
	for _, o := range w.manifest.Seed.Keepers() {
		s, err := c.cfg.Keepers.OpenSeedOf(ctx, w.manifest.Cluster, &w.claimed.Transition, o)
		if err != nil {
			failures = append(failures, explain.Wrap(err, explain.KeeperCannot, "keeper", o.Name,
				"problem", err.Error()))
			continue
		}
		return s, o.Name, nil
	}
	if len(failures) == 0 {
		return nil, "", errors.New("the seed is not in this memory, and the manifest names nobody who opens it " +
			"without owners")
	}
	return nil, "", errors.Join(failures...)
}

// openMesh returns the mesh CA of the head, as the first keeper opens it that can.
func (c *Authority) openMesh(ctx context.Context, v *history.Verified, root *x509.Certificate) (*ca.MeshCA, error) {
	var failures []error
	for _, o := range v.Manifest().Seed.Keepers() {
		mesh, err := c.cfg.Keepers.OpenMeshOf(ctx, v, root, o)
		if err == nil {
			return mesh, nil
		}
		failures = append(failures, explain.Wrap(err, explain.KeeperCannot, "keeper", o.Name, "problem", err.Error()))
	}
	if len(failures) == 0 {
		return nil, errors.New("nobody but another coordinator holds the mesh CA key of the head")
	}
	return nil, errors.Join(failures...)
}

// heal makes a new mesh CA key: the seed is here, and nobody was found who has the one
// of the head. Of several that heal at once one moves the head, and the others find it
// among their peers.
func (c *Authority) heal(ctx context.Context, w *way) (*authority.State, error) {
	secrets := c.memory().Secrets(w.claimed.Salt)
	if secrets == nil {
		return nil, w.notHere()
	}
	verified, _, err := c.verify(ctx, w, secrets)
	if err != nil {
		return nil, err
	}
	before, err := c.stateBefore(ctx, verified, secrets)
	if err != nil {
		return nil, err
	}
	me, err := c.cfg.Self.Admits(w.manifest)
	if err != nil {
		return nil, err
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
		"no coordinator was found that has the mesh CA key of the head; a new one is made", slog.String("head",
			w.claimed.Hash.String()))
	return c.rekey(ctx, before, "no coordinator had the mesh CA key of index "+fmt.Sprint(w.claimed.Index),
		string(identity.Coordinator)+"/"+me.Name, c.openedBy(secrets, ""))
}

// watchPeers has peers asked as soon as one of them says that it is ready, until ctx
// ends. It is a hint: they are asked again anyway.
func (c *Authority) watchPeers(ctx context.Context) error {
	l, err := c.cfg.Store.List(ctx, replicas.Prefix)
	if err != nil {
		return err
	}
	for change, err := range c.cfg.Store.Changes(ctx, replicas.Prefix, l.Revision) {
		if err != nil {
			return err
		}
		for _, e := range change.Put {
			if r, err := replicas.Open(e); err == nil && r.Key != c.cfg.Self.EnrolmentKey() &&
				r.Phase == authority.Ready.String() {
				c.pushed.Store(true)
				c.cfg.Head.LookAgain()
			}
		}
	}
	return nil
}

// askPeers comes back with what another coordinator gives. While there are others, a
// new mesh CA key is not made at once.
func (c *Authority) askPeers(ctx context.Context, w *way) (*authority.State, decide.Found, error) {
	r, err := c.cfg.Peers.FromPeers(ctx, w.loaded)
	if errors.Is(err, peerrecovery.ErrNoPeers) {
		// A backup holds no word of where coordinators are: whoever wrote this very head
		// says so soon.
		if w.claimed.Kind == history.KindRestore && len(recovery.Coordinators(w.manifest)) > 1 {
			return nil, decide.Nothing, err
		}
		return nil, decide.Nobody, err
	}
	if err != nil {
		return nil, decide.Nothing, err
	}
	if have := c.memory().Secrets(w.claimed.Salt); have != nil && have.Same(r.Secrets) {
		r.Secrets.Wipe()
		r.Secrets = have
	}
	s, err := c.newState(r.Verified, r.Secrets, r.Root, r.Mesh)
	if err != nil {
		if !c.cfg.Keys.Holds(r.Secrets, c.cfg.Head.State()) {
			r.Wipe()
		}
		return nil, decide.Nothing, err
	}
	c.untold = append(c.untold, r.Audit()...)
	// If somebody moves the head on before this one is adopted, the key that came is here.
	c.cfg.Keys.Prepare(keychain.Prepared{Link: *r.Verified.Current(), Mesh: r.Mesh})
	return s, decide.Nothing, nil
}
