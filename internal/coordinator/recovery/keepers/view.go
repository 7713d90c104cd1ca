package keepers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

// Each coordinator looks whether the keepers of its own machine would bring the seed
// back, and tells the others in its replica record: a key file that is missing is found
// while the seed is still in a memory.
const (
	keeperPause  = time.Minute      // between two looks
	programPause = 15 * time.Minute // between two looks at a program that opened the seed
)

// keeperViews are those of this machine, for one seed.
type keeperViews struct {
	salt     history.Salt
	views    []peer.KeeperView
	problems []string // why one does not open, by the place in views; for this machine's log and status
	at       time.Time
}

// adopt takes the views at the places same over from newer.
func (v *keeperViews) adopt(newer *keeperViews, same []int) {
	if len(same) > 0 {
		v.at = newer.at
	}
	for _, i := range same {
		if j := slices.IndexFunc(newer.views, func(n peer.KeeperView) bool { return n.Name == v.views[i].Name }); j >= 0 {
			v.views[i], v.problems[i] = newer.views[j], newer.problems[j]
		}
	}
}

// keptBy are the views of this machine for the seed of s; nil if it did not look yet.
func (c *Keepers) keptBy(s *authority.State) *keeperViews {
	if v := c.keeperViews.Load(); v != nil && v.salt == s.Head.Salt {
		return v
	}
	return nil
}

// whichPrograms says which programs of keepers are asked once more. Files always are.
type whichPrograms int

const (
	noPrograms     whichPrograms = iota // none that was asked: whoever reads status starts none
	failedPrograms                      // those that did not open
	allPrograms
)

// lookAtOwnKeepers looks at the keepers of this machine for the seed of s, which it holds.
// It changes nothing in the store.
func (c *Keepers) lookAtOwnKeepers(ctx context.Context, s *authority.State, programs whichPrograms) error {
	before := c.keptBy(s)
	now := &keeperViews{salt: s.Head.Salt, at: c.cfg.Now()}
	if before != nil && programs != allPrograms {
		now.at = before.at
	}
	var same []int // the views that are as before
	for _, o := range s.Manifest.Seed.Keepers() {
		if len(now.views) == peer.MaxKeepers {
			break
		}
		i := -1
		if before != nil && programs != allPrograms && !strings.HasPrefix(o.Keeper, "file:") {
			i = slices.IndexFunc(before.views,
				func(v peer.KeeperView) bool { return v.Name == o.Name && (v.Opens || programs == noPrograms) })
		}
		if i >= 0 {
			same = append(same, len(now.views))
			now.views, now.problems = append(now.views, before.views[i]), append(now.problems, before.problems[i])
			continue
		}
		view, problem := peer.KeeperView{Name: o.Name}, ""
		k, err := c.keeperOf(o)
		if err != nil {
			problem = err.Error()
		} else {
			asking, cancel := context.WithTimeout(ctx, keeperTimeout)
			f, err := c.lookAtKeeper(asking, k, s)
			cancel()
			if err = cmp.Or(err, ctx.Err()); err != nil {
				return err
			}
			view.KeyID, view.Opens = cmp.Or(f.by, f.id), f.Opens
			if !f.Opens {
				problem = problemText(f.problem)
			}
		}
		now.views, now.problems = append(now.views, view), append(now.problems, problem)
	}
	for {
		last := c.keeperViews.Load()
		if last != nil && last.salt == now.salt && last != before { // somebody looked meanwhile, and may have asked programs
			before = last
			now.adopt(last, same)
		}
		if c.keeperViews.CompareAndSwap(last, now) {
			break
		}
	}
	if before == nil || !slices.Equal(before.views, now.views) {
		c.keepersChanged.Notify()
		for i, v := range now.views {
			if !v.Opens {
				c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
					"a keeper of this machine does not open the seed", slog.String("keeper",
						v.Name), slog.String("problem", now.problems[i]))
			}
		}
	}
	return nil
}

// Follow looks at the keepers of this machine at every head, each minute and when [Keepers.Part] is read,
// until ctx ends. After an error it is to be called again, by nobody else meanwhile: a look that somebody asked for is
// still due then.
func (c *Keepers) Follow(ctx context.Context) error {
	for {
		changed := c.cfg.Head.Changed()
		if s := c.cfg.Head.State(); s.Phase == authority.Ready {
			programs := failedPrograms
			if v := c.keptBy(s); c.looked != nil || v == nil || c.cfg.Now().Sub(v.at).Abs() >= programPause {
				programs = allPrograms
			}
			if err := c.lookAtOwnKeepers(ctx, s, programs); err != nil {
				return err
			}
		}
		if c.looked != nil {
			close(c.looked)
			c.looked = nil
		}
		pause := time.NewTimer(keeperPause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-pause.C:
		case c.looked = <-c.told:
		}
		pause.Stop()
	}
}

// Part has the keepers of this machine looked at when somebody says so. A program that opened the seed is otherwise asked
// every 15 minutes: whoever replaced what it logs in with need not wait for that. [Keepers.Follow] looks, so that a
// program which takes longer than a part may is still seen to its end, and one is asked that could not be at once.
func (c *Keepers) Part() reload.Part {
	return reload.Part{Name: "the keepers of this machine", Read: func(ctx context.Context) (string, error) {
		s := c.cfg.Head.State()
		if s.Phase != authority.Ready {
			return "", nil // they are asked all the time until one opens
		}
		before, looked := c.keptBy(s), make(chan struct{})
		select {
		case c.told <- looked: // first without ctx: the look is asked for even if the wait for it is over already
		default:
			select {
			case c.told <- looked: // once Follow took what another reading asked for
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
		select {
		case <-looked:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		now := c.keptBy(s)
		if now == nil {
			return "", nil // there is another seed now
		}
		var news, problems []string
		for i, v := range now.views {
			switch {
			case !v.Opens:
				problems = append(problems, v.Name+" does not open the seed: "+now.problems[i])
			case before != nil && !slices.ContainsFunc(before.views,
				func(b peer.KeeperView) bool { return b.Name == v.Name && b.Opens }):
				news = append(news, v.Name+" opens the seed now")
			}
		}
		if len(problems) > 0 {
			return "", errors.New(strings.Join(append(problems, news...), "; "))
		}
		return strings.Join(news, "; "), nil
	}}
}

// SeenChanged returns a channel that is closed when what is seen of the keepers changed.
func (c *Keepers) SeenChanged() <-chan struct{} { return c.keepersChanged.Wait() }

// Reported returns what this machine's replica record says of its keepers.
func (c *Keepers) Reported(s *authority.State) []peer.KeeperView {
	if s.Phase != authority.Ready {
		return nil
	}
	if v := c.keptBy(s); v != nil {
		return v.views
	}
	return nil
}

// reports returns what the coordinators that s admits say of themselves; this one with
// what it saw just now.
func (c *Keepers) reports(ctx context.Context, s *authority.State) []peer.Record {
	all, err := c.cfg.Replicas.Newest(ctx, s.Manifest)
	if err != nil {
		c.cfg.Failures.Log(ctx, c.cfg.Log, slog.LevelWarn, "the replica records were not read", slog.Any("err", err))
	}
	me := slices.IndexFunc(all, func(r peer.Record) bool { return r.Key == c.cfg.Self.EnrolmentKey() })
	if me < 0 {
		me = len(all)
		all = append(all, peer.Record{Name: c.cfg.Self.NameIn(s.Manifest), Key: c.cfg.Self.EnrolmentKey()})
	}
	all[me].Keepers = c.Reported(s)
	return all
}

// holders names the coordinators that say that their key of a keeper opens the seed.
func (c *Keepers) holders(ctx context.Context, s *authority.State, name string) (names []string) {
	for _, r := range c.reports(ctx, s) {
		for _, v := range r.Keepers {
			if v.Name == name && v.Opens {
				names = append(names, fmt.Sprintf("%s, by key %s,", r.Name, v.KeyID))
			}
		}
	}
	return names
}

// Findings says which keepers did not seal, which nobody opens, and which
// coordinators would not be back by a keeper of theirs. With an error, which is that of [authority.Head.StoreError],
// it says what is known without the store.
func (c *Keepers) Findings(ctx context.Context, s *authority.State) (out []*fealtyv1.Finding, err error) {
	keepers := s.Manifest.Seed.Keepers()
	if len(keepers) == 0 {
		return nil, nil
	}
	lost := c.unsealed()
	for _, o := range keepers {
		if problem, ok := lost[o.Name]; ok {
			out = append(out, finding.New(errcode.KeeperUnusable, "keeper", o.Name, "problem", problem))
		}
	}
	if err := c.lookAtOwnKeepers(ctx, s, noPrograms); err != nil {
		return out, err
	}
	all := c.reports(ctx, s)
	opens, unknown := make(map[string]bool), false
	for _, r := range all {
		unknown = unknown || len(r.Keepers) == 0
		for _, v := range r.Keepers {
			opens[v.Name] = opens[v.Name] || v.Opens
		}
	}
	keys := make(map[string]string)
	for i, o := range keepers {
		copies, err := sealed.Copies(ctx, c.cfg.Store, sealed.Seed(&s.Head.Transition), o.Name)
		if err != nil {
			return out, c.cfg.Head.StoreError("read what keepers sealed", err)
		}
		keys[o.Name] = idText(sealed.IDs(copies))
		if len(copies) == 0 {
			keys[o.Name] = "of nobody: the next manifest that is set seals it"
		}
		if opens[o.Name] || unknown || i >= peer.MaxKeepers || lost[o.Name] != "" {
			continue
		}
		out = append(out, finding.New(errcode.KeeperUnopened, "keeper", o.Name, "keys", keys[o.Name], "problem",
			c.ownProblem(s, o.Name)))
	}
	for _, r := range all {
		if len(r.Keepers) == 0 || len(opens) == 0 || slices.ContainsFunc(r.Keepers,
			func(v peer.KeeperView) bool { return v.Opens }) {
			continue
		}
		// Copies that nobody opens are named above. Of the others, it is this machine that
		// lacks a key.
		var lacks []string
		for _, v := range r.Keepers {
			if !opens[v.Name] {
				continue
			}
			has := "has no key that can be used"
			if v.KeyID != "" {
				has = "has key " + string(v.KeyID)
			}
			lacks = append(lacks, fmt.Sprintf("keeper %s %s, and the seed is sealed under key %s", v.Name, has,
				keys[v.Name]))
		}
		if len(lacks) > 0 {
			out = append(out, finding.New(errcode.KeeperElsewhere, "coordinator", r.Name, "keepers",
				strings.Join(lacks, "; ")))
		}
	}
	return out, nil
}

// ownProblem says why a keeper of this machine does not open the seed.
func (c *Keepers) ownProblem(s *authority.State, name string) string {
	if v := c.keptBy(s); v != nil {
		for i := range v.views {
			if v.views[i].Name == name {
				return v.problems[i]
			}
		}
	}
	return "no coordinator has its key"
}

// Forget removes what a keeper sealed under one key. Which copies open, the coordinators say:
// of those that count for the answer each must still stand when the others go, so that two who
// forget at once cannot remove the last two. The caller holds the authority's turn, so that no
// set of this coordinator seals meanwhile.
func (c *Keepers) Forget(ctx context.Context, s *authority.State,
	req *fealtyv1.ForgetKeeperKeyRequest) (*fealtyv1.ForgetKeeperKeyResponse, error) {
	name, id := req.GetKeeper(), keyring.KeyID(req.GetKeyId())
	keepers := s.Manifest.Seed.Keepers()
	named := false
	for _, o := range keepers {
		named = named || o.Name == name
	}
	if !named {
		return nil, errcode.New(errcode.NotFound, "what", "keeper", "name",
			ratelimit.Clip(name, ratelimit.MaxShownBytes))
	}
	if err := c.lookAtOwnKeepers(ctx, s, allPrograms); err != nil {
		return nil, err
	}
	of := sealed.Seed(&s.Head.Transition)
	ch := s.Records.NewChange(s.HeadVersion)
	out := &fealtyv1.ForgetKeeperKeyResponse{}
	all := c.reports(ctx, s)
	var opens, spare, found bool // the copy that goes; another one that stays
	for _, o := range keepers {
		copies, err := sealed.Copies(ctx, c.cfg.Store, of, o.Name)
		if err != nil {
			return nil, c.cfg.Head.StoreError("read what keepers sealed", err)
		}
		for _, x := range copies {
			goes := o.Name == name && x.ID == id
			known, maybe := openedBy(all, o.Name, x)
			switch {
			case goes:
				found, opens = true, opens || known || maybe
				ch.Delete(x.Entry.Key, x.Entry.Version)
				out.Removed++
			case o.Name == name && x.ID != "" && !slices.Contains(out.KeyIds, string(x.ID)):
				out.KeyIds = append(out.KeyIds, string(x.ID))
			}
			if !goes && known && !spare {
				spare = true
				ch.Require(x.Entry.Key, x.Entry.Version)
			}
		}
	}
	switch {
	case !found:
		return nil, errcode.New(errcode.NotFound, "what", "copy of the seed by keeper "+name+" under key", "name",
			ratelimit.Clip(string(id), ratelimit.MaxShownBytes))
	case opens && !spare:
		return nil, errcode.New(errcode.KeeperLastCopy, "keeper", name, "key", string(id))
	case req.GetDryRun():
		return out, nil
	}
	mesh, err := sealed.Copies(ctx, c.cfg.Store, sealed.Mesh(s.Head.Hash), name)
	if err != nil {
		return nil, c.cfg.Head.StoreError("read what keepers sealed", err)
	}
	for _, x := range mesh {
		if x.ID == id {
			ch.Delete(x.Entry.Key, x.Entry.Version)
			out.Removed++
		}
	}
	ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "keeper.forget", Target: name,
		Reason: req.GetReason(), Fields: map[string]string{"key": string(id)}})
	if _, err := ch.Commit(ctx); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return nil, record.Busy("the sealed seed")
		}
		return nil, c.cfg.Head.StoreError("forget a key of a keeper", err)
	}
	if err := c.lookAtOwnKeepers(ctx, s, allPrograms); err != nil {
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the keepers were not looked at", slog.Any("err", err))
	}
	return out, nil
}

// openedBy reports whether a coordinator says that it opens a copy, and whether one may
// that did not say.
func openedBy(all []peer.Record, keeper string, x sealed.Copy) (known, maybe bool) {
	for _, r := range all {
		if len(r.Keepers) == 0 {
			maybe = true
		}
		for _, v := range r.Keepers {
			known = known || v.Name == keeper && v.Opens && v.KeyID == x.ID
		}
	}
	return known, maybe
}
