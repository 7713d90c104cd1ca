package succession

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/authority/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	coordinatorpeer "github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/keepers"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
)

// A claim is one head as the store claims it. Nothing vouches for it before its
// history verified under the keys of a seed.
type claim struct {
	loaded   *history.History
	link     history.Link
	manifest *manifest.Manifest // that of link
	seen     history.SeenHead   // what the history must lead through (I11)
	last     *authority.State   // the last ready state; nil if there was none
	admitted bool               // manifest admits this coordinator
	restore  *backup.Intent     // what is to follow link: the store was restored; nil: it was not
}

// claimOf returns what loaded claims its head to be.
func (c *Succession) claimOf(loaded *history.History, seen history.SeenHead, last *authority.State) (*claim, error) {
	raw := loaded.Links[len(loaded.Links)-1]
	t, err := history.Decode(raw)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.HistoryInvalid, "problem", err.Error())
	}
	m, err := manifest.ParseAccepted(loaded.Manifests[t.Manifest])
	if err != nil {
		return nil, errcode.Wrap(err, errcode.HistoryInvalid, "problem", err.Error())
	}
	_, refused := c.cfg.Self.Admits(m)
	return &claim{
		loaded: loaded, link: history.Link{Transition: *t, Hash: sha256.Sum256(raw)}, manifest: m,
		seen: seen, last: last, admitted: refused == nil,
	}, nil
}

// notHere says that the secrets of the head have to come from elsewhere.
func (w *claim) notHere() error {
	return fmt.Errorf("the history moved on to index %d, and the mesh CA key of that head is not here yet",
		w.link.Index)
}

// memory is what this process holds, as decisions see it.
func (c *Succession) memory() keychain.Memory { return c.cfg.Keys.Memory(c.cfg.Head.State()) }

// recoverHead looks for the secrets of the head that w leads to, until one of the ways
// leads there or there is nothing to do but wait; wait says for how long. An obstacle
// is a state in recovery mode.
//
// Before it asks anybody the state that was in force falls behind: the history is
// somewhere else, and nothing is decided under it. It serves reads for as long as somebody
// may be about to hand the secrets over; see [Succession.lingers].
func (c *Succession) recoverHead(ctx context.Context, w *claim) (s *authority.State, wait time.Duration, err error) {
	var failed []error // those of asking peers last: what can be mended here is told first
	peers := 0         // of failed
	recovering := func(err error) *authority.State {
		s := authority.Recovering(w.last, err)
		s.Ownerless = len(w.manifest.Seed.People()) == 0
		return s
	}
	for {
		held := c.cfg.Head.State()
		m := c.cfg.Keys.Memory(held)
		step, wait := c.search.Next(c.cfg.Elapsed(), m, decide.HeadOf(&w.link), w.admitted)
		if step != decide.FromMemory && m.Phase() == decide.Ready {
			left := c.lingers(ctx, w)
			switch {
			case left > 0 && step == decide.Wait:
				return held, min(wait, left), nil
			case left <= 0:
				if err := c.Adopt(ctx, recovering(errors.Join(append(slices.Clone(failed),
					w.notHere())...))); err != nil {
					return nil, 0, err
				}
			}
		}
		if step == decide.Wait {
			if len(failed) == 0 {
				return c.cfg.Head.State(), wait, nil // nothing was tried, so nothing is new
			}
			return recovering(errors.Join(failed...)), wait, nil
		}
		found := decide.Nothing
		asking, asked := c.cfg.Turn.Asking(ctx)
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
		failed = slices.Insert(failed, len(failed)-peers, err)
		if step == decide.AskPeers {
			peers++
		}
		c.search.Ended(c.cfg.Elapsed(), step, found)
	}
}

// yieldPause is how long a search that yielded to an owner waits for its turn.
const yieldPause = 100 * time.Millisecond

// verify replays the history of w under the keys of a seed, and returns the head that
// they vouch for. It is not adopted before its mesh CA is there.
func (c *Succession) verify(ctx context.Context, w *claim, secrets *authority.Secrets) (*history.Verified,
	*x509.Certificate, error) {
	verified, err := history.Verify(w.loaded, secrets.TransactionKey())
	if err == nil && w.restore == nil { // of a restored history it is the transition to come that has to
		_, err = w.seen.Accepts(verified)
	}
	if err != nil {
		return nil, nil, errcode.Wrap(err, errcode.HistoryInvalid, "problem", err.Error())
	}
	root, err := loadRoot(ctx, c.cfg.Store, verified, secrets)
	return verified, root, err
}

// fromMemory comes back with what is here.
func (c *Succession) fromMemory(ctx context.Context, w *claim) (*authority.State, error) {
	if w.restore != nil { // no mark vouches for this head, and the signers have not yet
		return nil, errors.New("the store says that it was restored: the transition of that comes first")
	}
	m := c.memory()
	secrets, mesh := m.Secrets(w.link.Salt), m.Mesh(w.link.MeshCAKey)
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
	if mv := c.cfg.Keys.Pending(w.link.Hash); mv != nil && !mv.Audited &&
		(w.last == nil || w.last.Head.Hash != w.link.Hash) {
		mv.Audited = true
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
func (c *Succession) fromKeepers(ctx context.Context, w *claim) (*authority.State, error) {
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
	mesh, err := openMesh(ctx, c.cfg.Keepers, verified, root)
	var s *authority.State
	if err == nil {
		s, err = c.newState(verified, secrets, root, mesh)
	}
	if err != nil {
		if by != "" {
			c.cfg.Keys.Open(w.link.Salt, secrets, by, c.cfg.Head.State())
		}
		return nil, err
	}
	if from := openedBy(c.cfg.Keys, secrets, by); from != nil {
		c.untold = append(c.untold, transition.OriginOf(s, transition.ActionSeedReceived, from))
	}
	c.untold = append(c.untold, transition.OriginOf(s, transition.ActionMeshReceived,
		map[string]string{"via": "keeper"}))
	return s, nil
}

// openedBy says for the audit log which keeper opened a seed: the one with this name, or
// the one that did before. It returns nil for a seed that was here in another way.
func openedBy(keys *keychain.Keychain, secrets *authority.Secrets, keeper string) map[string]string {
	if keeper == "" {
		keeper = keys.Opener(secrets)
	}
	if keeper == "" {
		return nil
	}
	return map[string]string{"via": "keeper", "from": keeper}
}

// openSeed returns the seed of the head with its keys: from memory, or from the first
// keeper that opens it, which it names.
func (c *Succession) openSeed(ctx context.Context, w *claim) (s *authority.Secrets, by string, err error) {
	if s := c.memory().Secrets(w.link.Salt); s != nil {
		return s, "", nil
	}
	var failures []error
	for _, o := range w.manifest.Seed.Keepers() {
		s, err := c.cfg.Keepers.OpenSeedOf(ctx, w.manifest.Cluster, &w.link.Transition, o)
		if err != nil {
			failures = append(failures, notOpened(o.Name, err))
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

// notOpened says of a keeper why it opens nothing: its key file is of no use, which
// whoever runs the machine can mend, or what is stored does not open under its key.
func notOpened(keeper string, err error) error {
	code := errcode.KeeperCannot
	switch {
	case errors.Is(err, errcode.KeeperUnusable):
		return err // worded already
	case errors.Is(err, keyring.ErrKeyFile):
		code = errcode.KeeperUnusable
	}
	return errcode.Wrap(err, code, "keeper", keeper, "problem", strings.TrimPrefix(err.Error(), "keyring: "))
}

// openMesh returns the mesh CA of the head, as the first keeper opens it that can.
func openMesh(ctx context.Context, from *keepers.Keepers, v *history.Verified, root *x509.Certificate) (*pki.MeshCA,
	error) {
	var failures []error
	for _, o := range v.Manifest().Seed.Keepers() {
		mesh, err := from.OpenMeshOf(ctx, v, root, o)
		if err == nil {
			return mesh, nil
		}
		failures = append(failures, notOpened(o.Name, err))
	}
	if len(failures) == 0 {
		return nil, errors.New("nobody but another coordinator holds the mesh CA key of the head")
	}
	return nil, errors.Join(failures...)
}

// heal makes a new mesh CA key: the seed is here, and nobody was found who has the one
// of the head. Of several that heal at once one moves the head, and the others find it
// among their peers.
func (c *Succession) heal(ctx context.Context, w *claim) (*authority.State, error) {
	secrets := c.memory().Secrets(w.link.Salt)
	if secrets == nil {
		return nil, w.notHere()
	}
	verified, _, err := c.verify(ctx, w, secrets)
	if err != nil {
		return nil, err
	}
	before, err := c.StateBefore(ctx, verified, secrets)
	if err != nil {
		return nil, err
	}
	me, err := c.cfg.Self.Admits(w.manifest)
	if err != nil {
		return nil, err
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
		"no coordinator was found that has the mesh CA key of the head; a new one is made", slog.String("head",
			w.link.Hash.String()))
	return c.Rekey(ctx, before, "no coordinator had the mesh CA key of index "+fmt.Sprint(w.link.Index),
		string(identity.Coordinator)+"/"+me.Name, openedBy(c.cfg.Keys, secrets, ""))
}

// WatchPeers has peers asked as soon as one of them says that it is ready, until ctx
// ends. It is a hint: they are asked again anyway.
func (c *Succession) WatchPeers(ctx context.Context) error {
	l, err := c.cfg.Store.List(ctx, coordinatorpeer.Prefix)
	if err != nil {
		return err
	}
	for change, err := range c.cfg.Store.Changes(ctx, coordinatorpeer.Prefix, l.Revision) {
		if err != nil {
			return err
		}
		for _, e := range change.Put {
			if r, err := coordinatorpeer.Open(e); err == nil && r.Key != c.cfg.Self.EnrolmentKey() &&
				r.Phase == authority.Ready.String() {
				c.Push()
			}
		}
	}
	return nil
}

// askPeers comes back with what another coordinator gives. While there are others, a
// new mesh CA key is not made at once.
func (c *Succession) askPeers(ctx context.Context, w *claim) (*authority.State, decide.Found, error) {
	r, err := c.cfg.Peers.FromPeers(ctx, w.loaded)
	if errors.Is(err, peer.ErrNoPeers) {
		// A backup holds no word of where coordinators are: whoever wrote this very head
		// says so soon.
		if w.link.Kind == history.KindRestore && len(recovery.Coordinators(w.manifest)) > 1 {
			return nil, decide.Nothing, err
		}
		return nil, decide.Nobody, err
	}
	if err != nil {
		return nil, decide.Nothing, err
	}
	if have := c.memory().Secrets(w.link.Salt); have != nil && have.Same(r.Secrets) {
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

// resumeRestore brings the history that w leads to into force by the restore transition that is
// to follow. The seed comes from memory or a keeper; without either owners bring it,
// and Rekey does the rest there too.
func (c *Succession) resumeRestore(ctx context.Context, w *claim) (*authority.State, error) {
	secrets, by, err := c.openSeed(ctx, w)
	if err != nil {
		return nil, err
	}
	verified, _, err := c.verify(ctx, w, secrets)
	var before *authority.State
	if err == nil {
		before, err = c.StateBefore(ctx, verified, secrets)
	}
	var s *authority.State
	if err == nil {
		s, err = c.Rekey(ctx, before, "", "restore", openedBy(c.cfg.Keys, secrets, by))
	}
	if err != nil {
		if by != "" {
			c.cfg.Keys.Open(w.link.Salt, secrets, by, c.cfg.Head.State())
		}
		return nil, err
	}
	return s, nil
}

// FromPeers asks the peers for the secrets of head, for as long as within once the history was read, and
// brings it into force with what one gives. The caller has the turn. The error says why nobody helped, or
// that head is not the one to come.
func (c *Succession) FromPeers(ctx context.Context, head history.Hash, within time.Duration) error {
	return c.fromPeers(ctx, head, func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, within)
	})
}

// fromPeers is FromPeers with bound, which begins the time of the peers.
func (c *Succession) fromPeers(ctx context.Context, head history.Hash,
	bound func(context.Context) (context.Context, context.CancelFunc)) error {
	w, _, err := c.read(ctx, c.cfg.Head.State().Ready())
	switch {
	case err != nil:
		return err
	case w == nil || w.link.Hash != head || w.restore != nil:
		return errors.New("the history moved on")
	}
	asking, cancel := bound(ctx)
	defer cancel()
	s, _, err := c.askPeers(asking, w)
	if err != nil {
		return err
	}
	return c.Adopt(ctx, s)
}
