package publication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/config/compile"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/watch"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// Publisher compiles what members are told. It belongs to one goroutine.
type Publisher struct {
	// term is the one under which all below was made. Under another one everything
	// begins anew: somebody else may have published in between.
	term uint64
	// heard are the coordinators whose addresses members are told, by key, and when
	// each of them was last known to be ready.
	heard map[string]time.Time
	// last has the head and addresses that everything was compiled for; another one
	// means that every member is looked at again.
	last last
	// pending are the members to look at, by path, and groups those, by the hex digits
	// of their subject.
	pending       queue
	pendingGroups map[string]bool
	// swept is when all of them were looked at last.
	swept time.Time

	// groups are those that have members, and placed is the group of each. left are those that had
	// members, or node_runtimes that name them: the headers of such a group may be to be dropped.
	groups map[string]*memberGroup
	placed map[string]string
	left   map[string]bool

	// compiler is of the config of configVersion, and of the members as trust says who of them
	// is banned; nil before there is any. state is what the manifest says of them.
	compiler      *compile.Compiler
	configVersion store.Revision
	trust         trusted
	state         *authority.State
	members       *member.Roster
	// looks is how members that the config names looked when they were last looked at.
	looks map[string]string

	// orphans are keys that no header uses, as far as is known; met is the publication whose
	// orphans are among them.
	orphans map[string]bool
	met     *View

	packer   packer
	found    unsatisfied
	races    races
	withheld withholding
}

// last is what was compiled last.
type last struct {
	head      history.Hash
	addresses []string
	group     string // that was published
}

// begun is what every transaction of a Publisher holds under.
type begun struct {
	term uint64
	head store.Revision
}

// trusted is what the trust state of a version takes away.
type trusted struct {
	version uint64
	bans    map[identity.ID]bool
	revoked snapshot.Revocations
	changed bool // it is another one than the compiler knows
}

// races are what others wrote while it was compiled.
type races struct {
	// contested are the members whose records were other ones than was known here, by
	// the version that was. They are left out until that changes, and of the try that
	// follows a lost one in any case: a record that moves all the time, or that somebody
	// altered, must not hold up what others are told.
	contested map[string]store.Revision
	lost      bool // the last try was lost to such a record
	// stale is the version of the config that was found not to be the store's any
	// more: what is compiled from config waits for another one.
	stale store.Revision
	// config: the last try was lost to a write of the config. The next one goes without
	// config, so that one who writes it all the time does not hold up who joins or leaves.
	config bool
	// unassigned are the members that were looked at without the config.
	unassigned map[string]bool
	// late: another Publisher began under this term and head. A transaction of that one whose answer
	// was lost may yet come, and name orphans or delete what is needed again.
	late bool
}

// memberGroup is a group that has members.
type memberGroup struct {
	compile.Group
	members map[string]bool // by path
}

// queue has paths, each once.
type queue struct {
	paths map[string]bool
	// order has all of them, sorted, but those that were added since it was made, and some that are
	// not among them any more.
	order, added []string
}

func (q *queue) add(path string) {
	if !q.paths[path] {
		q.paths[path] = true
		q.added = append(q.added, path)
	}
}

func (q *queue) remove(path string) { delete(q.paths, path) }

// all yields the paths, sorted. Nothing is added or removed meanwhile. To sort them all for each of many
// generations would take longer than to make those.
func (q *queue) all() iter.Seq[string] {
	if len(q.added) > 0 {
		slices.Sort(q.added)
		merged := make([]string, 0, len(q.paths))
		for len(q.order)+len(q.added) > 0 {
			from := &q.order
			if len(q.order) == 0 || len(q.added) > 0 && q.added[0] < q.order[0] {
				from = &q.added
			}
			path := (*from)[0]
			*from = (*from)[1:]
			// One that was removed and added again is in both.
			if q.paths[path] && (len(merged) == 0 || merged[len(merged)-1] != path) {
				merged = append(merged, path)
			}
		}
		q.order, q.added = merged, nil
	}
	for len(q.order) > 0 && !q.paths[q.order[0]] {
		q.order = q.order[1:]
	}
	return func(yield func(string) bool) {
		for _, path := range q.order {
			if q.paths[path] && !yield(path) {
				return
			}
		}
	}
}

// NewPublisher returns a [Publisher] that compiled nothing yet.
func NewPublisher() *Publisher {
	return &Publisher{
		pending:       queue{paths: make(map[string]bool)},
		pendingGroups: make(map[string]bool), groups: make(map[string]*memberGroup), left: make(map[string]bool),
		placed: make(map[string]string), orphans: make(map[string]bool), heard: make(map[string]time.Time),
		looks: make(map[string]string),
		found: unsatisfied{
			failed: make(map[string]string), removed: make(map[string][]compile.Removed),
			reported: make(map[unsatisfiedRecord]bool),
		},
		races:    races{contested: make(map[string]store.Revision), unassigned: make(map[string]bool)},
		withheld: newWithholding(),
	}
}

// Concerned names the groups that are to be looked at, sorted, by the hex digits of their
// subjects.
func (b *Publisher) Concerned() []string { return slices.Sorted(maps.Keys(b.pendingGroups)) }

// sweepHeaders is how often every member is looked at though nothing changed: for
// headers that are to be renewed.
const sweepHeaders = time.Hour

// Follow keeps what members are told up with the store until ctx ends: it
// compiles while this coordinator leads, and reads what the leader published else.
func (c *Publication) Follow(ctx context.Context, s *authority.State) error {
	changed, stop := watch.Key(ctx, c.cfg.Store, StateKey)
	defer stop()
	b := NewPublisher()
	for {
		trust, configured, led := c.cfg.Bundle.Changed(), c.cfg.Desired.Changed(), c.cfg.Election.Changed()
		if err := c.cfg.StoreGuard.UntilWhole(ctx); err != nil {
			return err
		}
		started := time.Now()
		more, err := c.Publish(ctx, s, b)
		if err != nil && !c.cfg.Head.Conflicts(ctx, err) {
			return err
		}
		ended := time.Now()
		pause := max(PublishPause, publishShare*ended.Sub(started))
		if !more && err == nil {
			members := c.cfg.Membership.Roster().Changed()
			if _, err := watch.Wait(ctx, PollPause, members, trust, configured, changed, led); err != nil {
				return err
			}
		}
		// The first change after a quiet time is told at once, and those that come soon
		// after it together. The leader from now on waits for none: what is to be told
		// did.
		if _, err := watch.Wait(ctx, pause-time.Since(ended), led); err != nil {
			return err
		}
	}
}

// Publish looks at what changed, and commits the next generation if that asks for
// one and this coordinator leads. It reports whether there is more to do. An error
// that matches store.ErrConflict means that somebody was first, or leads now, and
// nothing was published.
func (c *Publication) Publish(ctx context.Context, s *authority.State, b *Publisher) (more bool, err error) {
	t := c.cfg.Bundle.View()
	if t == nil || t.Epoch != s.Head.AuthorityEpoch {
		return false, nil // the bundle of this head comes first
	}
	term, leads, ok := c.cfg.Election.Leading()
	p, read, err := c.current(ctx, s, ok)
	if err != nil {
		return false, err
	}
	if !ok {
		c.unreport(b)
		return false, nil
	}
	if b.term != term {
		*b = *NewPublisher()
		under := begun{term, s.HeadVersion}
		b.races.late, c.begun = c.begun == under, under
		if read < readAll {
			if p, err = c.again(ctx, s, b, p); err != nil {
				return false, err
			}
		}
		b.term = term
	}
	b.meet(p)
	if read > readNothing {
		b.leave(p)
	}
	b.races.late = b.races.late && len(b.over(p)) > 0
	now := c.cfg.Now()
	all, err := c.cfg.Replicas.Newest(ctx, s.Manifest)
	if err != nil {
		return false, err
	}
	next, coordinators, err := c.nextState(s, b, p, all, now)
	if err != nil {
		return false, err
	}
	divides, packs, from := c.read(all, ReadsParts), c.read(all, ReadsPacked), 0
	if c.read(all, ReadsBins) {
		from = cmp.Or(c.cfg.BinsFrom, binsFrom)
	}
	if !p.State.Exists() || b.races.late {
		// Its version numbers the first generation, and after another one nothing comes late.
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Tx.If = append(ch.Tx.If, leads)
		ch.Put(StateKey, p.State.Version, next)
		_, err := ch.Commit(ctx)
		b.races.late = b.races.late && err != nil
		return true, err
	}
	ready := b.Collect(c, s, t, p, next.Addresses(), now)
	// Without config now there is more to do, if that is known again.
	defer func(without bool) { more = more || without && err == nil }(ready && b.races.config)
	ready = ready && !b.races.config
	room, err := c.roomOf(s, leads, p, next)
	if err != nil {
		return false, err
	}
	w := &work{left: room, ready: ready, packs: packs}
	c.compile(ctx, s, b, p, next.Addresses(), w, uint64(p.State.Version), now)

	vouched := p.State.Value
	due := w.changes() || p.Broken || coordinators || p.divided > 0 && !divides || p.packed > 0 && !packs ||
		len(p.bins.lists) > 0 && from == 0
	if p.Len() > 0 {
		age := now.Sub(vouched.IssuedAt)
		due = due || len(vouched.Record) == 0 || vouched.AuthorityEpoch != s.Head.AuthorityEpoch ||
			vouched.Revocations != t.Revocations.String() ||
			!vouched.signedBy(t.Signers(s.Bundle, now)) || age >= Renew || age < -internalsnapshot.ClockTolerance
	}
	if !due {
		b.races.lost, b.races.config = false, false
		c.publishedAll(ctx, b, w)
		return w.more, c.sweep(ctx, s, leads, b, p, w.more)
	}
	w.turn(p)
	after, changes := p.with(w.put, w.drop, w.contents, divides, from)
	after.State.Value = next
	after.State.Value.Record, after.State.Value.Signatures = nil, nil
	after.State.Value.Bins = len(after.bins.lists)
	if p.Broken {
		after.State.Value.Since = uint64(p.State.Version)
	}
	if after.Len() > 0 {
		signed, r, err := signRecord(s, t, after, uint64(p.State.Version), now)
		if err != nil {
			return false, err
		}
		v := &after.State.Value
		v.Record, v.Signatures = signed.Record, signed.Signatures
		v.Generation, v.AuthorityEpoch = r.Generation, r.AuthorityEpoch
		v.Root, v.Revocations = r.Root.String(), r.Revocations.String()
		v.IssuedAt, v.FreshUntil = r.IssuedAt, r.FreshUntil
	}
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Tx.If = append(ch.Tx.If, leads)
	ch.Put(StateKey, p.State.Version, after.State.Value)
	// Nothing is published under keys or revocations that are not in force any more,
	// nor of peers that are banned or gone.
	ch.Require(bundle.StateKey, store.Revision(t.Version))
	w.write(ch, p, &b.packer)
	if w.configured {
		ch.Require(desired.StateKey, b.configVersion)
	}
	if err := c.writeContents(ctx, s, leads, b, p, after, changes.fresh, ch); err != nil {
		return false, err
	}
	b.retire(p, after, changes.retired)
	dropped := b.dropOrphans(ch, after)
	if err := c.cfg.Faults.Hit("publish.before-commit"); err != nil {
		return false, err
	}
	rev, err := ch.Commit(ctx)
	b.races.lost, b.races.config = false, false
	if conflict, ok := errors.AsType[*store.ConflictError](err); ok {
		path, member := strings.CutPrefix(conflict.Key, record.MemberPrefix)
		switch {
		case member:
			b.races.contested[path], b.races.lost = conflict.Want, true
			c.cfg.Membership.Roster().Await(path, conflict.Want)
		case conflict.Key == desired.StateKey:
			b.races.stale, b.races.config = conflict.Want, true
		}
	}
	if err != nil {
		return false, err
	}
	if err := c.cfg.Faults.Hit("publish.after-commit"); err != nil {
		return false, err
	}
	after.State.Version = rev
	for _, key := range dropped {
		delete(b.orphans, key)
	}
	c.serve(after)
	c.publishedAll(ctx, b, w)
	c.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "published", slog.Uint64("generation", after.State.Value.Generation),
		slog.Int("headers", after.Len()), slog.Int("changed", len(w.put)), slog.Int("dropped", len(w.drop)))
	return w.more, c.sweep(ctx, s, leads, b, after, w.more)
}

// reading is how much of a publication was read.
type reading int

const (
	readNothing reading = iota // it was in memory
	readChanges                // what was written since the one in memory
	readAll
)

// current returns the publication that the store holds: the one in
// memory, unless another replica wrote since. It reports what of it was read. One that was altered there a coordinator
// that does not lead withstands.
func (c *Publication) current(ctx context.Context, s *authority.State, leads bool) (p *View, read reading, err error) {
	e, err := c.cfg.Store.Get(ctx, StateKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, readNothing, err
	}
	have := c.publication.Load()
	if have != nil && have.standsFor() == e.Version {
		return have, readNothing, nil
	}
	if p = c.since(ctx, s, have, e.Version); p != nil {
		c.serve(p)
		return p, readChanges, nil
	}
	x, err := c.load(ctx, s)
	if err != nil {
		return nil, readNothing, err
	}
	c.readWhole = c.cfg.Now()
	if p = x.view(); !leads {
		if p, err = c.withstand(ctx, s, x, p); err != nil {
			return nil, readNothing, err
		}
	}
	if p.State.Exists() {
		c.serve(p)
	}
	return p, readAll, nil
}

// again reads the publication p once more, for a leader that begins: who led before may have written
// contents ahead of a commit that did not come, which make no other version.
func (c *Publication) again(ctx context.Context, s *authority.State, b *Publisher, p *View) (*View, error) {
	found, err := c.Load(ctx, s)
	if err != nil {
		return nil, err
	}
	c.readWhole = c.cfg.Now()
	b.meet(found)
	if p.altered == nil && found.State.Version == p.State.Version && found.Broken == p.Broken &&
		found.Tree.Root() == p.Tree.Root() && found.storesAs(p) { // nor were contents stored anew
		return p, nil
	}
	if found.State.Exists() {
		c.serve(found)
	}
	return found, nil
}

// coordinatorSilence is how long a coordinator that is not ready, or says nothing, is
// still one that members are told of: restarts change nothing for a fleet.
const coordinatorSilence = 10 * time.Minute

// nextState returns the state that comes after p's, with the addresses of
// the coordinators that the manifest admits and that are ready, this one among them,
// and whether that changes who is named.
func (c *Publication) nextState(s *authority.State, b *Publisher, p *View, all []peer.Record,
	now time.Time) (Record, bool, error) {
	if _, err := c.cfg.Self.Admits(s.Manifest); err != nil {
		return Record{}, false, err
	}
	addressesOf := make(map[string][]string)
	for key, addresses := range p.State.Value.Coordinators {
		// By its key or, for one that a certificate admits, by the record that holds it.
		_, named := s.Manifest.Match(identity.Coordinator, []string{"key:" + key})
		if named || slices.ContainsFunc(all, func(r peer.Record) bool { return r.Key == key }) {
			addressesOf[key] = addresses
		}
	}
	for _, r := range all {
		if r.Phase == authority.Ready.String() && now.Sub(r.At).Abs() < coordinatorSilence {
			addressesOf[r.Key], b.heard[r.Key] = r.Addresses, now
		}
	}
	addressesOf[c.cfg.Self.EnrolmentKey()], b.heard[c.cfg.Self.EnrolmentKey()] = c.cfg.Addresses, now
	for key := range addressesOf {
		if _, ok := b.heard[key]; !ok {
			b.heard[key] = now // by who led before
		}
		if now.Sub(b.heard[key]) >= coordinatorSilence {
			delete(addressesOf, key)
		}
	}
	next := p.State.Value
	next.Change++
	next.Coordinators = addressesOf
	return next, !maps.EqualFunc(addressesOf, p.State.Value.Coordinators, slices.Equal), nil
}

// Collect notes which members and groups to look at. It reports whether what the
// config says of them can be compiled: not while it is not known, or known to be
// another one than in the store.
func (b *Publisher) Collect(c *Publication, s *authority.State, t *bundle.View, p *View, addresses []string,
	now time.Time) (ready bool) {
	b.state, b.members = s, c.cfg.Membership.Roster()
	touched := c.cfg.Membership.Roster().TakeTouched()
	all := b.last.head != s.Head.Hash || !slices.Equal(b.last.addresses,
		addresses) || p.Broken || now.Sub(b.swept).Abs() >= sweepHeaders
	moved := b.last.head != s.Head.Hash
	if all {
		b.last.head, b.last.addresses, b.swept = s.Head.Hash, addresses, now
		for _, path := range c.cfg.Membership.Roster().Paths() {
			touched[path] = true
		}
		for _, h := range p.Headers() {
			if h.member != "" {
				touched[h.member] = true
			}
		}
		b.leave(p)
		for path := range b.placed {
			touched[path] = true
		}
	}
	for path := range touched {
		b.place(path)
		b.pending.add(path)
	}
	if all {
		for group := range b.groups {
			b.pendingGroups[group] = true
		}
	}
	b.banned(t)
	set, version, ok := c.cfg.Desired.Configured()
	if ok && (b.compiler == nil || version != b.configVersion || moved || b.trust.changed) {
		b.recompile(s, set, version, moved || b.trust.changed)
		b.trust.changed = false
	}
	if b.compiler != nil {
		named := moved
		for path := range touched {
			named = b.looksAnother(path) && b.seen(path) || named
		}
		if named {
			b.setRemoved("", b.compiler.Unplaced())
		}
	}
	if b.compiler == nil || b.races.stale == b.configVersion {
		return false
	}
	for _, path := range b.withheld.due(now) {
		b.pending.add(path)
	}
	for path := range b.races.unassigned {
		b.pending.add(path)
	}
	clear(b.races.unassigned)
	return true
}

// place notes which group a member is in now.
func (b *Publisher) place(path string) {
	group, ok := "", false
	var g compile.Group
	if m := b.members.Get(path); m.Version != 0 {
		if _, told := runtimeState(m.Value); told {
			var rec record.Member
			if rec, _, ok = covered(b.state, m.Value); ok {
				g = groupOfRecord(rec)
				group = groupOf(g)
			}
		}
	}
	if was, had := b.placed[path]; had {
		if ok && was == group {
			return
		}
		delete(b.placed, path)
		if delete(b.groups[was].members, path); len(b.groups[was].members) == 0 {
			delete(b.groups, was)
			delete(b.pendingGroups, was)
			b.left[was] = true
			b.forget(groupMark + was)
		}
	}
	if !ok {
		return
	}
	b.placed[path] = group
	if b.groups[group] == nil {
		b.groups[group] = &memberGroup{Group: g, members: make(map[string]bool)}
		b.pendingGroups[group] = true
	}
	b.groups[group].members[path] = true
}

// looksAnother reports whether what the compiler sees of a member that the config
// names is other than when it was asked last: a renewal is not.
func (b *Publisher) looksAnother(path string) bool {
	if !b.compiler.Names(path) {
		delete(b.looks, path)
		return false
	}
	look := "none"
	if m := b.members.Get(path); m.Version != 0 {
		if m, ok := compiled(b.state, m.Value); ok {
			look = fmt.Sprintf("%s %s %v", groupOf(m.Group), m.State, m.Outsider)
		}
	}
	was := b.looks[path]
	b.looks[path] = look
	return look != was
}

// seen notes the groups that can see a member, as it may be another one now, and
// reports whether any record names it.
func (b *Publisher) seen(path string) bool {
	if !b.compiler.Names(path) {
		return false
	}
	for group, g := range b.groups {
		if b.compiler.Sees(g.Group, path) {
			b.pendingGroups[group] = true
		}
	}
	return true
}

// banned notes who is banned, and looks at those of whom that is news. A revocation by
// name may concern everybody.
func (b *Publisher) banned(t *bundle.View) {
	if b.trust.bans != nil && b.trust.version == t.Version {
		return
	}
	if !slices.Equal(b.trust.revoked.Things(), t.Revoked.Things()) {
		b.trust.revoked, b.trust.changed = t.Revoked, true
	}
	was := b.trust.bans
	b.trust.version, b.trust.bans = t.Version, make(map[identity.ID]bool)
	news := make(map[identity.ID]bool)
	for _, id := range t.Bundle.BannedIDs() {
		b.trust.bans[id] = true
		news[id] = !was[id]
	}
	for id := range was {
		news[id] = !b.trust.bans[id]
	}
	for id, changed := range news {
		path := string(id.Kind()) + "/" + id.Name()
		if !changed || b.compiler == nil {
			continue
		}
		if _, ok := b.placed[path]; ok {
			b.pending.add(path)
		}
		if b.seen(path) {
			b.setRemoved("", b.compiler.Unplaced())
		}
	}
}

// recompile takes another config, other members or other revocations, and looks at
// those whom the step can concern, or at all.
func (b *Publisher) recompile(s *authority.State, set *config.Set, version store.Revision, all bool) {
	was := b.compiler
	b.compiler, b.configVersion = compile.New(compile.Input{
		Config: set, Ceiling: record.Degraded(s.Manifest),
		Member: func(path string) (compile.Member, bool) {
			m := b.members.Get(path)
			if m.Version == 0 {
				return compile.Member{}, false
			}
			return compiled(b.state, m.Value)
		},
		Banned:  func(id identity.ID) bool { return b.trust.bans[id] },
		Revoked: b.trust.revoked,
	}), version
	b.setRemoved("", b.compiler.Unplaced())
	if was == nil || all {
		for group := range b.groups {
			b.pendingGroups[group] = true
		}
		for path := range b.placed {
			b.pending.add(path)
		}
		return
	}
	ch := b.compiler.ChangesSince(was)
	for group, g := range b.groups {
		if ch.Group(g.Group) {
			b.pendingGroups[group] = true
		}
		if ch.Members(g.Group) {
			for path := range g.members {
				b.pending.add(path)
			}
		}
	}
	for path := range ch.Named() {
		if _, ok := b.placed[path]; ok {
			b.pending.add(path)
		}
	}
}

// work is what one generation changes.
type work struct {
	put        []*Published
	left       store.Room // beside what every generation has
	headers    int        // bytes of put in the store, at most
	packs      bool       // how they are stored
	turned     int        // of how many that is another way than before
	bytes      int        // of the contents that put brings
	drop       map[HeaderPath]bool
	contents   map[string][]byte         // new ones, by hash
	require    map[string]store.Revision // the member records that it was made from
	configured bool                      // some of it was made from the config
	done       []string                  // the members that were looked at
	doneGroups []string                  // and the groups
	more       bool                      // others are still to be looked at
	ready      bool                      // the config could be compiled
}

// A generation is one transaction, which has all of its headers and the state: a reader sees all of
// it or nothing. It is as large as the store takes one: each costs a signature, a look of every stream and,
// at the other coordinators, a read. Contents that find no room beside it are written before, under their
// hashes, where nobody reads one that no header names; and what no header names any more is deleted after
// it. Both are the leader's, on the condition that the publication is still the one that they were decided
// on: so that nothing is deleted which a commit under way is going to name, and a commit finds what was
// written for it.

const (
	// headerBytes bounds a header in the store, its key with it.
	headerBytes = internalsnapshot.MaxHeader*4/3 + 4<<10
	// recordBytes is what the record of the next generation may add to the state.
	recordBytes = 16 << 10
	// generationOps and generationBytes bound the transaction of a generation. That is more than
	// [store.CutOps]: etcd writes such a one aside first, while everything else waits for some ten of its round
	// trips. Ten generations as small as that would take longer together, and wake every stream ten times.
	generationOps   = 1000
	generationBytes = 4 << 20
)

// change begins a transaction of the leader's that holds only while the publication is p's.
func change(s *authority.State, leads store.Condition, p *View) *record.Change {
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Tx.If = append(ch.Tx.If, leads)
	ch.Require(StateKey, p.State.Version)
	return ch
}

// roomOf returns the room for the headers of a generation, whose state is next.
func (c *Publication) roomOf(s *authority.State, leads store.Condition, p *View, next Record) (store.Room, error) {
	ch := change(s, leads, p)
	ch.Write(StateKey, next)
	room := store.RoomWithin(ch.Tx, cmp.Or(c.cfg.Operations, generationOps), generationBytes)
	room.Take(2, recordBytes) // on the condition of the trust state, and of the config
	return room, ch.Err
}

// room reports whether n more headers may change in this generation, of a member's or a group's.
func (w *work) room(n int) bool {
	left := w.left
	others := len(w.drop) + len(w.require) + w.turned + 1 // with the condition on the member
	fits := left.Take(len(w.put)+n+others, w.headers+n*headerBytes+others*store.MaxKeyBytes)
	// The first one goes in any case, else nothing ever would.
	first := len(w.done)+len(w.doneGroups)+len(w.put)+len(w.drop) == 0
	if !fits && !first || w.bytes >= publishedBytes {
		w.more = true
		return false
	}
	return true
}

// add puts a header in the place of the one that p has.
func (w *work) add(p *View, h Published, raw []byte) {
	w.putIn(p, h)
	if w.contents[h.Header.Content] == nil {
		w.bytes += len(raw)
	}
	w.contents[h.Header.Content] = raw
}

func (w *work) putIn(p *View, h Published) {
	h.packed = w.packs
	w.put = append(w.put, &h)
	w.headers += len(h.Header.Header)*4/3 + headerBytes - internalsnapshot.MaxHeader*4/3
	if i, ok := p.Find(h.HeaderPath); ok && p.Header(i).packed != h.packed {
		w.turned++
	}
}

// turn puts headers that are stored in the other way than new ones, as they are, as far as there is room.
func (w *work) turn(p *View) {
	if w.packs && p.packed == p.Len() || !w.packs && p.packed == 0 {
		return
	}
	changes := make(map[HeaderPath]bool)
	for _, h := range w.put {
		changes[h.HeaderPath] = true
	}
	for _, h := range p.Headers() {
		if h.packed == w.packs || changes[h.HeaderPath] || w.drop[h.HeaderPath] {
			continue
		}
		if !w.room(1) {
			return
		}
		w.putIn(p, *h)
	}
}

func (w *work) changes() bool { return len(w.put) > 0 || len(w.drop) > 0 }

// write adds the work to ch, which comes after p. Conditions on the members' records make it true at
// the very revision at which it is committed.
func (w *work) write(ch *record.Change, p *View, x *packer) {
	for _, h := range w.put {
		if i, ok := p.Find(h.HeaderPath); ok && p.Header(i).packed != h.packed {
			ch.Drop(p.Header(i).key())
		}
		if !h.packed {
			ch.Write(h.key(), h.Header)
			continue
		}
		raw, err := x.pack(h.Header)
		if err != nil && ch.Err == nil {
			ch.Err = fmt.Errorf("pack %s: %w", h.HeaderPath, err)
		}
		ch.WriteRaw(h.key(), raw)
	}
	for path := range w.drop {
		if i, ok := p.Find(path); ok {
			ch.Drop(p.Header(i).key())
		}
	}
	for path, version := range w.require {
		ch.Require(record.MemberPrefix+path, version)
	}
}

// writeContents adds fresh, the contents that come with after, to ch, as far as there is room, and writes the
// others before: they are orphans until ch is committed.
func (c *Publication) writeContents(ctx context.Context, s *authority.State, leads store.Condition, b *Publisher,
	p, after *View, fresh []string, ch *record.Change) error {
	cost := func(x piece) (ops, bytes int) { return 1, len(x.key) + store.SealBytes + len(x.raw) }
	var before []piece
	written := make(map[string]bool) // a part of several contents is written once
	room := store.RoomBeside(ch.Tx)
	slices.Sort(fresh)
	for _, hash := range fresh {
		for _, x := range after.piecesOf(hash) {
			switch {
			case written[x.key] || p.uses(x.key):
			case room.Take(cost(x)):
				ch.WriteRaw(x.key, x.raw)
			default:
				before = append(before, x)
			}
			written[x.key] = true
		}
	}
	for list := range store.Cut(before, change(s, leads, p).Tx, cost) {
		part := change(s, leads, p)
		for _, x := range list {
			part.WriteRaw(x.key, x.raw)
			b.orphans[x.key] = true
		}
		if _, err := part.Commit(ctx); err != nil {
			return err
		}
		if err := c.cfg.Faults.Hit("publish.after-contents"); err != nil {
			return err
		}
	}
	return nil
}

// meet notes the orphans of a publication that was read.
func (b *Publisher) meet(p *View) {
	if p == b.met {
		return
	}
	b.met = p
	for _, key := range p.Orphans {
		b.orphans[key] = true
	}
}

// leave has all groups that have headers in p looked at, whether anybody is in them.
func (b *Publisher) leave(p *View) {
	for _, h := range p.Headers() {
		if h.Group != "" {
			b.left[h.Group] = true
		}
	}
}

// retire makes orphans of the contents that p has and after has not, or not so.
func (b *Publisher) retire(p, after *View, retired []string) {
	for _, hash := range retired {
		c, _ := p.contents.get(hash)
		for _, key := range c.keys(hash) {
			if !after.uses(key) {
				b.orphans[key] = true
			}
		}
	}
}

// over returns the orphans that p does not use, sorted.
func (b *Publisher) over(p *View) []string {
	maps.DeleteFunc(b.orphans, func(key string, _ bool) bool { return p.uses(key) })
	return slices.Sorted(maps.Keys(b.orphans))
}

func keyCost(key string) (ops, bytes int) { return 1, len(key) }

// dropOrphans adds orphans to ch, which makes after, as far as there is room.
func (b *Publisher) dropOrphans(ch *record.Change, after *View) (dropped []string) {
	named := make(map[string]bool) // no key can be deleted twice
	for _, key := range ch.Tx.Delete {
		named[key] = true
	}
	room := store.RoomBeside(ch.Tx)
	for _, key := range b.over(after) {
		if !named[key] {
			if !room.Take(keyCost(key)) {
				break
			}
			ch.Drop(key)
		}
		dropped = append(dropped, key)
	}
	return dropped
}

// sweep deletes the orphans that p does not use: all of them or, while there is more to publish, as many
// as fill transactions.
func (c *Publication) sweep(ctx context.Context, s *authority.State, leads store.Condition, b *Publisher, p *View,
	more bool) error {
	batches := slices.Collect(store.Cut(b.over(p), change(s, leads, p).Tx, keyCost))
	if n := len(batches); more && n > 0 {
		batches = batches[:n-1]
	}
	for _, keys := range batches {
		if err := c.cfg.Faults.Hit("publish.before-sweep"); err != nil {
			return err
		}
		ch := change(s, leads, p)
		for _, key := range keys {
			ch.Drop(key)
		}
		if _, err := ch.Commit(ctx); err != nil {
			return err
		}
		for _, key := range keys {
			delete(b.orphans, key)
		}
	}
	if len(b.orphans) == 0 && len(p.Orphans) > 0 && c.publication.Load() == p {
		swept := *p
		swept.Orphans, swept.altered = nil, nil // what was altered was among them
		b.met = &swept
		c.publication.Store(&swept) // which says nothing else to anybody
	}
	return nil
}

// compilation is one generation in the making.
type compilation struct {
	c          *Publication
	ctx        context.Context
	s          *authority.State
	b          *Publisher
	p          *View
	w          *work
	generation uint64
	now        time.Time
}

// compile looks at pending groups and members, and puts into w what to change, as far as
// there is room. A subject that fails keeps its last header, with an alarm; it
// blocks nobody. Groups come first, and a member after its group, so that what it is told to hold is
// there by then.
func (c *Publication) compile(ctx context.Context, s *authority.State, b *Publisher, p *View, addresses []string,
	w *work, generation uint64, now time.Time) {
	w.drop, w.contents = make(map[HeaderPath]bool), make(map[string][]byte)
	w.require = make(map[string]store.Revision)
	x := &compilation{c, ctx, s, b, p, w, generation, now}
	for _, group := range b.turns() {
		// Without the config it waits for it, and nothing else waits for the group.
		if !w.ready || !w.room(len(compile.GroupScopes())) {
			break
		}
		if len(b.pending.paths) > 0 && (2*len(w.put) > cmp.Or(c.cfg.Operations, generationOps) || 2*w.bytes > publishedBytes) {
			w.more = true // the other half is for members, however many groups there are
			break
		}
		w.doneGroups = append(w.doneGroups, group)
		if g := b.groups[group]; g != nil { // else its last member has just left it
			x.group(group, g.Group)
		}
	}
	for path := range b.pending.all() {
		if !w.room(len(nodeScopes())) {
			break
		}
		member := c.cfg.Membership.Roster().Get(path)
		if version, ok := b.races.contested[path]; ok && (b.races.lost || version == member.Version) {
			continue
		}
		if w.ready && x.awaits(b.placed[path]) {
			w.more = true
			continue
		}
		delete(b.races.contested, path)
		w.done = append(w.done, path)
		x.member(path, member, addresses)
	}
	x.dropGroups()
}

// turns returns the groups to look at, sorted, and from the one after the last that was published on:
// those that come up again and again hold up no other.
func (b *Publisher) turns() []string {
	groups := b.Concerned()
	n, found := slices.BinarySearch(groups, b.last.group)
	if found {
		n++
	}
	return slices.Concat(groups[n:], groups[:n])
}

// awaits reports whether nothing was published for a group yet that is still to be looked at.
func (x *compilation) awaits(group string) bool {
	return x.b.pendingGroups[group] && !slices.Contains(x.w.doneGroups, group) &&
		!slices.ContainsFunc(compile.GroupScopes(), func(scope snapshot.Scope) bool {
			return x.last(groupPath(scope, group)) != nil
		})
}

// last returns the header that there is at path.
func (x *compilation) last(path HeaderPath) *Published {
	if i, ok := x.p.Find(path); ok {
		return x.p.Header(i)
	}
	return nil
}

// group makes the headers of a group.
func (x *compilation) group(group string, g compile.Group) {
	name := groupMark + group
	x.b.forget(name)
	contents, removed := x.b.compiler.ForGroup(g)
	for _, scope := range compile.GroupScopes() {
		content, ok := contents[scope]
		if path := groupPath(scope, group); !ok {
			// Another release may have thought otherwise.
			if x.last(path) != nil {
				x.w.drop[path] = true
			}
			continue
		}
		removed = append(removed, x.make(name, groupTarget(scope, g), content)...)
	}
	x.b.setRemoved(name, removed)
}

// make makes a header of what the config says, and puts it into the work if it is
// another one.
func (x *compilation) make(name string, t target, content snapshot.Content) []compile.Removed {
	old := x.last(t.HeaderPath)
	var removed []compile.Removed
	h, raw, changed, err := compileHeader(x.s, t, content, old, x.generation, x.now)
	if rejected, ok := errors.AsType[*snapshot.RejectedError](err); errors.Is(err, errContentTooLarge) || ok &&
		rejected.Reason == internalsnapshot.ReasonLimits {
		h, raw, changed, removed, err = x.fit(t, content, old, err)
	}
	if err == nil {
		err = x.c.cfg.Faults.Hit("publish.compile." + name + "." + string(t.Scope))
	}
	switch {
	case err != nil:
		x.fail(name, t.Scope, err)
	case changed:
		x.w.add(x.p, h, raw)
		x.w.configured = true
	}
	return removed
}

// fit makes a header of as much of a content as it can hold.
func (x *compilation) fit(t target, content snapshot.Content, old *Published, tooLarge error) (h Published, raw []byte,
	changed bool, removed []compile.Removed, err error) {
	content, removed, ok := x.b.compiler.Fit(content, func(content snapshot.Content) bool {
		_, _, _, err := compileHeader(x.s, t, content, old, x.generation, x.now)
		return err == nil
	})
	if !ok {
		return Published{}, nil, false, nil, tooLarge
	}
	h, raw, changed, err = compileHeader(x.s, t, content, old, x.generation, x.now)
	return h, raw, changed, removed, err
}

// fail notes that a subject keeps the header that it has.
func (x *compilation) fail(name string, scope snapshot.Scope, err error) {
	x.b.found.failed[name], x.b.found.news = fmt.Sprintf("%s: %v", scope, err), true
	x.c.cfg.Failures.Log(x.ctx, x.c.cfg.Log, slog.LevelError,
		"a snapshot was not compiled: its subject keeps the last one",
		slog.String("scope", string(scope)), slog.String("subject", name), slog.Any("err", err))
}

// member makes the headers of a member: its assignment, and its node_runtime, which
// says whether there is one.
func (x *compilation) member(path string, member record.Versioned[record.Member], addresses []string) {
	runtime, assignment := RuntimePath(path), nodePath(snapshot.ScopeServiceAssignment, path)
	content, ok := (*snapshot.NodeRuntime)(nil), false
	if member.Version != 0 {
		content, ok = compileRuntime(x.s, member.Value, addresses)
	}
	before := len(x.w.put) + len(x.w.drop)
	defer func() {
		if len(x.w.put)+len(x.w.drop) > before {
			x.w.require[path] = member.Version
		}
	}()
	x.b.forget(path)
	if !ok {
		x.b.withheld.release(path)
		for _, p := range []HeaderPath{runtime, assignment} {
			if x.last(p) != nil {
				x.w.drop[p] = true
			}
		}
		return
	}
	group := compile.Group{Roles: content.Roles, Organizations: content.Organizations}
	if x.assign(path, member.Value, group) {
		content.Companions = append(content.Companions, snapshot.ScopeServiceAssignment)
		slices.Sort(content.Companions)
	}
	t, err := nodeTarget(x.s, snapshot.ScopeNodeRuntime, member.Value, group)
	if id, _, _ := t.subject.Node(); x.b.trust.revoked.Withdraws(id, group.Roles) {
		t.withdrawn, content.Companions = true, nil
	}
	var h Published
	var raw []byte
	var changed bool
	if err == nil {
		h, raw, changed, err = compileHeader(x.s, t, content, x.last(runtime), x.generation, x.now)
	}
	if err == nil {
		err = x.c.cfg.Faults.Hit("publish.compile." + path)
	}
	if err != nil {
		x.fail(path, snapshot.ScopeNodeRuntime, err)
		return
	}
	if changed {
		x.w.add(x.p, h, raw)
	}
}

// assign makes a member's service_assignment, and reports whether there is one
// after this generation.
func (x *compilation) assign(path string, rec record.Member, group compile.Group) bool {
	old := x.last(nodePath(snapshot.ScopeServiceAssignment, path))
	t, err := nodeTarget(x.s, snapshot.ScopeServiceAssignment, rec, group)
	if err != nil {
		return false // and the node_runtime says so
	}
	put := len(x.w.put)
	if x.w.ready {
		m, _ := compiled(x.s, rec)
		content, removed := x.b.compiler.ForMember(m)
		if x.withholds(path, t, m, removed) {
			return true
		}
		if content != nil {
			removed = append(removed, x.make(path, t, content)...)
		}
		x.b.setRemoved(path, removed)
		if content == nil {
			if old != nil {
				x.w.drop[old.HeaderPath], x.w.configured = true, true
			}
			return false
		}
	}
	if len(x.w.put) > put {
		return true
	}
	if old == nil {
		return false
	}
	// It stays as it is, if it is still for this member as it is now: what an
	// organization gave stays there.
	if old.Header.Subject == t.subject.String() && old.Header.Group == groupOf(group) {
		return true
	}
	x.w.drop[old.HeaderPath] = true
	return false
}

// dropGroups drops the headers of groups that nobody is in, and that no
// node_runtime names any more.
func (x *compilation) dropGroups() {
	named := make(map[string]int) // by this generation: more than before, or less
	was := func(path HeaderPath) {
		if old := x.last(path); old != nil && path.Scope == snapshot.ScopeNodeRuntime {
			named[old.Header.Group]--
			x.b.left[old.Header.Group] = true
		}
	}
	for _, h := range x.w.put {
		if was(h.HeaderPath); h.Scope == snapshot.ScopeNodeRuntime {
			named[h.Header.Group]++
		}
	}
	for path := range x.w.drop {
		was(path)
	}
	for _, group := range slices.Sorted(maps.Keys(x.b.left)) {
		n, _ := x.p.groups.get(group)
		has := false
		for _, scope := range compile.GroupScopes() {
			path := groupPath(scope, group)
			if x.last(path) == nil {
				continue
			}
			has = true
			if x.b.groups[group] != nil || n+named[group] > 0 || x.w.drop[path] {
				continue
			}
			if !x.w.room(1) {
				return
			}
			x.w.drop[path] = true
		}
		// One that is left again comes again. A header that is dropped may have to be once more, if
		// this generation is not committed.
		if !has || x.b.groups[group] != nil {
			delete(x.b.left, group)
		}
	}
}

// publishedAll ends the work on what w looked at.
func (c *Publication) publishedAll(ctx context.Context, b *Publisher, w *work) {
	for _, path := range w.done {
		b.pending.remove(path)
		if !w.ready {
			b.races.unassigned[path] = true
		}
	}
	for _, group := range w.doneGroups {
		delete(b.pendingGroups, group)
		b.last.group = group
	}
	for name := range b.found.failed { // tried again whenever something else is done
		if group, ok := strings.CutPrefix(name, groupMark); ok {
			b.pendingGroups[group] = true
		} else {
			b.pending.add(name)
		}
	}
	c.report(ctx, b)
}
