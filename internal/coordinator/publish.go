package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// publisher compiles what members are told. It belongs to one goroutine.
type publisher struct {
	// head and addresses are what everything was compiled for last; another one
	// means that every member is looked at again.
	head      history.Hash
	addresses []string
	// pending are the members to look at, by path.
	pending map[string]bool
	// swept is when all of them were looked at last.
	swept time.Time
	// uncompiled are the members whose content or header could not be made.
	uncompiled map[string]bool
	// contested are the members whose records were other ones than was known here, by
	// the version that was. They are left out until that changes, and of the try that
	// follows a lost one in any case: a record that moves all the time, or that somebody
	// altered, must not hold up what others are told.
	contested map[string]store.Revision
	lost      bool // the last try was lost to such a record
}

func newPublisher() *publisher {
	return &publisher{pending: make(map[string]bool), uncompiled: make(map[string]bool), contested: make(map[string]store.Revision)}
}

// sweepHeaders is how often every member is looked at though nothing changed: for
// headers that are to be renewed.
const sweepHeaders = time.Hour

// followPublication keeps what members are told up with the store until ctx ends.
func (c *Coordinator) followPublication(ctx context.Context, s *state) error {
	changed, stop := c.watchKey(ctx, publicationStateKey)
	defer stop()
	tick := time.NewTicker(publicationPollPause)
	defer tick.Stop()
	b := newPublisher()
	for {
		trust := c.trustNews.wait()
		started := time.Now()
		more, err := c.publish(ctx, s, b)
		if err != nil && !c.conflicts(ctx, err) {
			return err
		}
		pause := max(publishPause, publishShare*time.Since(started))
		if !more && err == nil {
			select {
			case <-ctx.Done():
			case <-c.members.changed:
			case <-trust:
			case <-changed:
			case <-tick.C:
			}
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// publish looks at what changed, and commits the next generation if that asks for
// one. It reports whether there is more to do. An error that matches
// store.ErrConflict means that somebody was first, and nothing was published.
func (c *Coordinator) publish(ctx context.Context, s *state, b *publisher) (more bool, err error) {
	t := c.trust.Load()
	if t == nil || t.epoch != s.head.AuthorityEpoch {
		return false, nil // the bundle of this head comes first
	}
	p, err := c.currentPublication(ctx, s)
	if err != nil {
		return false, err
	}
	now := c.now()
	next, coordinators, err := c.nextPublicationState(s, p)
	if err != nil {
		return false, err
	}
	if !p.state.exists() {
		// Its version numbers the first generation.
		ch := s.records.newChange(s.headVersion)
		ch.put(publicationStateKey, 0, next)
		_, err := ch.commit(ctx)
		return true, err
	}
	b.collect(c, s, p, next.addresses(), now)
	w := c.compile(ctx, s, b, p, next.addresses(), uint64(p.state.version), now)

	record := p.state.value
	due := w.changes() || p.broken || len(p.strays) > 0 || coordinators
	if len(p.headers) > 0 {
		age := now.Sub(record.IssuedAt)
		due = due || len(record.Record) == 0 || record.AuthorityEpoch != s.head.AuthorityEpoch || record.Revocations != t.revocations.String() ||
			!record.signedBy(t.signers(s, now)) || age >= publicationRenew || age < -snapshot.ClockTolerance
	}
	if !due {
		b.lost = false
		c.publishedAll(b, w)
		return w.more, nil
	}
	after := p.with(w.put, w.drop, w.contents)
	after.state.value = next
	after.state.value.Record, after.state.value.Signatures = nil, nil
	if p.broken {
		after.state.value.Since = uint64(p.state.version)
	}
	if len(after.headers) > 0 {
		signed, r, err := signRecord(s, t, after, uint64(p.state.version), now)
		if err != nil {
			return false, err
		}
		v := &after.state.value
		v.Record, v.Signatures = signed.Record, signed.Signatures
		v.Generation, v.AuthorityEpoch, v.Root, v.Revocations = r.Generation, r.AuthorityEpoch, r.Root.String(), r.Revocations.String()
		v.IssuedAt, v.FreshUntil = r.IssuedAt, r.FreshUntil
	}
	ch := s.records.newChange(s.headVersion)
	ch.put(publicationStateKey, p.state.version, after.state.value)
	// Nothing is published under keys or revocations that are not in force any more.
	ch.require(trustStateKey, store.Revision(t.version))
	w.write(ch, p, after)
	if err := c.faults.Hit("publish.before-commit"); err != nil {
		return false, err
	}
	rev, err := ch.commit(ctx)
	b.lost = false
	if conflict, ok := errors.AsType[*store.ConflictError](err); ok {
		if path, ok := strings.CutPrefix(conflict.Key, memberPrefix); ok {
			b.contested[path], b.lost = conflict.Want, true
		}
	}
	if err != nil {
		return false, err
	}
	if err := c.faults.Hit("publish.after-commit"); err != nil {
		return false, err
	}
	after.state.version = rev
	after.strays = slices.DeleteFunc(slices.Clone(p.strays[min(len(p.strays), maxPublished):]), after.uses)
	c.publication.Store(after)
	c.publicationNews.tell()
	c.publishedAll(b, w)
	c.log.LogAttrs(ctx, slog.LevelDebug, "published", slog.Uint64("generation", after.state.value.Generation),
		slog.Int("headers", len(after.headers)), slog.Int("changed", len(w.put)), slog.Int("dropped", len(w.drop)))
	return w.more || len(after.strays) > 0, nil
}

// currentPublication returns the publication that the store holds: the one in
// memory, unless another replica wrote since.
func (c *Coordinator) currentPublication(ctx context.Context, s *state) (*publication, error) {
	e, err := c.store.Get(ctx, publicationStateKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	have := c.publication.Load()
	if have != nil && have.state.version == e.Version {
		return have, nil
	}
	p, err := c.loadPublication(ctx, s)
	if err != nil {
		return nil, err
	}
	if p.state.exists() {
		c.publication.Store(p)
		c.publicationNews.tell()
	}
	return p, nil
}

// nextPublicationState returns the state that comes after p's, with the addresses
// of this coordinator and without those of coordinators that the manifest does not
// admit, and whether that changes who is named.
func (c *Coordinator) nextPublicationState(s *state, p *publication) (publicationRecord, bool, error) {
	if _, err := c.admits(s.manifest); err != nil {
		return publicationRecord{}, false, err
	}
	next := p.state.value
	next.Change++
	next.Coordinators = maps.Clone(next.Coordinators)
	if next.Coordinators == nil {
		next.Coordinators = make(map[string][]string)
	}
	changed := false
	for key := range next.Coordinators {
		if _, ok := s.manifest.Match(identity.Coordinator, []string{"key:" + key}); !ok {
			delete(next.Coordinators, key)
			changed = true
		}
	}
	if own := c.advertised(); !slices.Equal(next.Coordinators[c.EnrolmentKey()], own) {
		next.Coordinators[c.EnrolmentKey()] = own
		changed = true
	}
	return next, changed, nil
}

// collect notes which members to look at.
func (b *publisher) collect(c *Coordinator, s *state, p *publication, addresses []string, now time.Time) {
	maps.Copy(b.pending, c.members.takeTouched())
	if b.head == s.head.Hash && slices.Equal(b.addresses, addresses) && !p.broken && now.Sub(b.swept).Abs() < sweepHeaders {
		return
	}
	b.head, b.addresses, b.swept = s.head.Hash, addresses, now
	for _, path := range c.members.paths() {
		b.pending[path] = true
	}
	for _, h := range p.headers {
		b.pending[h.member] = true
	}
}

// work is what one generation changes.
type work struct {
	put      []published
	drop     map[headerPath]bool
	contents map[string][]byte         // new ones, by hash
	require  map[string]store.Revision // the member records that it was made from
	done     []string                  // the members that were looked at
	more     bool                      // others are still to be looked at
}

func (w *work) changes() bool { return len(w.put) > 0 || len(w.drop) > 0 }

// write adds the work to ch. Conditions on the members' records make it true at
// the very revision at which it is committed.
func (w *work) write(ch *change, p, after *publication) {
	for _, h := range w.put {
		ch.write(headerKey(h.headerPath), h.header)
	}
	for path := range w.drop {
		ch.drop(headerKey(path))
	}
	for path, version := range w.require {
		ch.require(memberPrefix+path, version)
	}
	for hash, raw := range after.contents {
		if p.contents[hash] == nil {
			ch.writeRaw(contentKey(hash), raw)
		}
	}
	for hash := range p.contents {
		if after.contents[hash] == nil {
			ch.drop(contentKey(hash))
		}
	}
	named := make(map[string]bool) // no key can be written and deleted, or deleted twice
	for _, w := range ch.tx.Put {
		named[w.Key] = true
	}
	for _, key := range ch.tx.Delete {
		named[key] = true
	}
	for _, key := range p.strays[:min(len(p.strays), maxPublished)] {
		if !named[key] {
			ch.drop(key)
		}
	}
}

// compile looks at pending members, and returns what to change: at most
// maxPublished headers. A member that fails keeps its last header, with an alarm;
// it blocks nobody.
func (c *Coordinator) compile(ctx context.Context, s *state, b *publisher, p *publication, addresses []string, generation uint64, now time.Time) *work {
	w := &work{drop: make(map[headerPath]bool), contents: make(map[string][]byte), require: make(map[string]store.Revision)}
	for _, path := range slices.Sorted(maps.Keys(b.pending)) {
		if len(w.put)+len(w.drop) == maxPublished {
			w.more = true
			break
		}
		member := c.members.at(path)
		if version, ok := b.contested[path]; ok && (b.lost || version == member.version) {
			continue
		}
		delete(b.contested, path)
		w.done = append(w.done, path)
		var old *published
		if i, ok := p.find(runtimePath(path)); ok {
			old = &p.headers[i]
		}
		content, ok := (*snapshot.NodeRuntime)(nil), false
		if member.version != 0 {
			content, ok = compileRuntime(s, member.record, addresses)
		}
		if !ok {
			delete(b.uncompiled, path)
			if old != nil {
				w.drop[old.headerPath], w.require[path] = true, member.version
			}
			continue
		}
		var h published
		var raw []byte
		var changed bool
		t, err := runtimeTarget(s, member.record, content)
		if err == nil {
			h, raw, changed, err = compileHeader(s, t, content, old, generation, now)
		}
		if err == nil {
			err = c.faults.Hit("publish.compile." + path)
		}
		if err != nil {
			b.uncompiled[path] = true
			c.failures.log(ctx, c.log, slog.LevelError, "a node_runtime was not compiled: the member keeps its last one", slog.String("member", path), slog.Any("err", err))
			continue
		}
		delete(b.uncompiled, path)
		if changed {
			w.put, w.require[path], w.contents[h.header.Content] = append(w.put, h), member.version, raw
		}
	}
	return w
}

// publishedAll ends the work on what w looked at.
func (c *Coordinator) publishedAll(b *publisher, w *work) {
	for _, path := range w.done {
		delete(b.pending, path)
	}
	for path := range b.uncompiled {
		b.pending[path] = true // tried again whenever something else is done
	}
	c.metrics.uncompiled.Set(float64(len(b.uncompiled)))
}
