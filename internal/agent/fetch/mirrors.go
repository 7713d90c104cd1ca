package fetch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/snapshot"
)

// Mirrors have what coordinators publish, as files: see package mirror. A node asks
// them as it asks coordinators, after them, and verifies what they have in the same
// way. Some are named by its settings; the others are the endpoints of its
// storage_directory, which the guard of degraded mode has a say in. They can keep news
// back, and no more. So all of them are looked at, and the
// one that says that it is the newest comes first; if what it has does not verify, the
// next one is read.

const (
	// MaxMirrors bounds the mirrors of a node.
	MaxMirrors = 16
	// mirrorTime bounds how long a mirror takes to say which generation it has.
	mirrorTime = 20 * time.Second
	// DefaultMirrorEvery is how often mirrors are looked at while no stream is up, give or
	// take mirrorSpread of it.
	DefaultMirrorEvery = 30 * time.Second
	mirrorSpread       = 0.2
	// MinMirrorEvery and MaxMirrorEvery bound what may be set instead.
	MinMirrorEvery = 5 * time.Second
	MaxMirrorEvery = 15 * time.Minute
)

// byMirror: from files that anybody could have written.
const byMirror state.Origin = "mirror"

// place is where a mirror is.
type place struct {
	source mirror.Source
	// families are the scopes that are read from there. Nil: all.
	families []snapshot.Scope
	own      bool // it is closed after the round
}

// has reports whether a scope is read from the place.
func (p place) has(scope snapshot.Scope) bool {
	return p.families == nil || slices.Contains(p.families, scope)
}

// survey is one look at all mirrors. It belongs to one goroutine.
type survey struct {
	f      *Fetcher
	places []place
	glance bool // what was read whole and did not move since is passed over
	done   bool
	found  []*found // the newest first, once it is done
}

// found is the generation that a mirror has.
type found struct {
	place
	at     mirror.Pointer
	tree   *mirror.Tree
	behind bool // what the node holds
}

// places returns the mirrors of the settings, then the storage endpoints, by priority.
func (f *Fetcher) places() []place {
	var out []place
	for _, m := range f.Mirrors {
		out = append(out, place{source: m})
	}
	for _, e := range f.endpoints() {
		if len(out) == MaxMirrors {
			break
		}
		source, err := f.OpenMirror(e.URL)
		if err != nil {
			f.Count.Mirrors(string(mirror.Malformed))
			f.Log.LogAttrs(context.Background(), slog.LevelInfo, "a storage endpoint cannot be asked",
				slog.String("endpoint", e.Name), slog.String("reason", state.OneLine(err)))
			continue
		}
		out = append(out, place{source, e.Families, true})
	}
	return out
}

// endpoints returns the storage endpoints that the node may use now, the highest
// priority first.
func (f *Fetcher) endpoints() []snapshot.StorageEndpoint {
	b := f.Node.TrustState()
	h := b.Active[snapshot.ScopeStorageDirectory]
	if h == nil {
		return nil
	}
	directory, _ := h.Verified.StorageDirectory()
	revoked := b.Revocations()
	out := slices.DeleteFunc(slices.Clone(directory.Endpoints),
		func(e snapshot.StorageEndpoint) bool { return revoked.RevokesStorage(e.Name, e.URL) })
	if len(out) == 0 || f.Node.Autonomy.Permit(guard.UseStorageEndpoints) != nil {
		return nil
	}
	slices.SortStableFunc(out, func(x, y snapshot.StorageEndpoint) int { return cmp.Compare(y.Priority, x.Priority) })
	return out
}

// mirrorSources returns a source for each mirror: the first is the one that says that
// it is the newest, and so on.
func (f *Fetcher) mirrorSources() []Source { return f.Surveyed(false) }

// Surveyed returns a source for each mirror; with glance, what was read whole and did not
// move since is passed over.
func (f *Fetcher) Surveyed(glance bool) []Source {
	s := &survey{f: f, places: f.places(), glance: glance}
	out := make([]Source, len(s.places))
	for i := range out {
		out[i] = &mirrorSource{survey: s, rank: i}
	}
	return out
}

// look asks all mirrors at once which generation they have.
func (s *survey) look(ctx context.Context) {
	if s.done {
		return
	}
	s.done = true
	ctx, cancel := context.WithTimeout(ctx, mirrorTime)
	defer cancel()
	all := make([]*found, len(s.places))
	var wait sync.WaitGroup
	for i, p := range s.places {
		wait.Go(func() {
			at, err := mirror.Latest(ctx, p.source, s.f.Node.Me().Cluster)
			if err == nil && s.glance && s.f.heard.read(p.source, at) {
				return
			}
			var tree *mirror.Tree
			if err == nil {
				tree, err = mirror.OpenAt(ctx, p.source, at)
			}
			if err != nil {
				s.f.mirrorFailed(ctx, p.source, err)
				return
			}
			all[i] = &found{place: p, at: at, tree: tree}
		})
	}
	wait.Wait()
	s.found = slices.DeleteFunc(all, func(f *found) bool { return f == nil })
	b := s.f.Node.TrustState()
	newest := b.NewestRecord()
	for _, f := range s.found {
		if record := f.tree.Record(); s.f.behind(b, record) {
			// It lags, or keeps news back: which of them cannot be told. It is no alarm by
			// itself; that no mirror has news for long shows in the age of what is held.
			f.behind = true
			s.f.Count.Mirrors("stale")
			s.f.Log.LogAttrs(ctx, slog.LevelDebug, "a mirror is behind", slog.String("mirror", f.source.String()),
				slog.Uint64("generation", record.Generation), slog.Uint64("held", newest.Generation))
		}
	}
	slices.SortStableFunc(s.found, func(x, y *found) int {
		return state.CompareRecords(y.tree.Record(),
			x.tree.Record())
	})
}

// behind reports whether a mirror with this record has nothing of use to a node that believes b:
// all that the node is to hold is under newer ones. Of a part, peers may have brought newer ones,
// and then the mirror may still have the newest word on the rest.
func (f *Fetcher) behind(b *state.TrustState, record snapshot.Record) bool {
	if b.Active[snapshot.ScopeNodeRuntime] == nil { // nothing else says what the node is to hold
		return state.CompareRecords(record, b.NewestRecord()) < 0
	}
	for _, scope := range state.Scopes {
		if !f.subjectIn(b, scope).IsZero() && !newerThan(b.Active[scope], record) {
			return false
		}
	}
	return true
}

// newerThan reports whether h stands under a newer record than this one.
func newerThan(h *state.ActiveSnapshot, record snapshot.Record) bool {
	if h == nil {
		return false
	}
	is, ok := h.Verified.Record()
	return ok && state.CompareRecords(is, record) > 0
}

// mirrorFailed counts that a mirror had no news.
func (f *Fetcher) mirrorFailed(ctx context.Context, m mirror.Source, err error) {
	reason := mirror.ReasonOf(err)
	f.Count.Mirrors(string(reason))
	level := slog.LevelDebug // they are asked again and again
	if f.heard.failed(m, reason) {
		level = slog.LevelInfo
	}
	f.Log.LogAttrs(ctx, level, "no news from a mirror", slog.String("mirror", m.String()),
		slog.String("reason", string(reason)), slog.String("detail", state.OneLine(err)))
}

// mirrorSource is the mirror of a rank in a survey.
type mirrorSource struct {
	survey *survey
	rank   int
	// The scope that says which companions the node is to hold is read and taken first.
	companions bool // they are next
	partly     bool // something could not be read
	whole      bool // all was read
}

// More implements continued.
func (m *mirrorSource) More() bool { return m.companions }

// Done implements continued.
func (m *mirrorSource) Done() {
	if m.whole && m.rank < len(m.survey.found) {
		f := m.survey.found[m.rank]
		m.survey.f.heard.readAll(f.source, f.at)
	}
}

func (m *mirrorSource) From() state.Origin { return byMirror }

func (m *mirrorSource) Name() string { return "mirror " + m.at().String() }

// at returns the mirror of the rank; before the survey that is its place in the
// settings.
func (m *mirrorSource) at() mirror.Source {
	if m.rank < len(m.survey.found) {
		return m.survey.found[m.rank].source
	}
	return m.survey.places[m.rank].source
}

// Close ends the connections of what was opened for the round. The first source of a
// survey does it for all.
func (m *mirrorSource) Close() error {
	var problems []error
	for _, p := range m.survey.places {
		if c, ok := p.source.(io.Closer); ok && p.own && m.rank == 0 {
			problems = append(problems, c.Close())
		}
	}
	return errors.Join(problems...)
}

// News implements source. The scopes that say what the node is, and whom it trusts, come
// first, and by that what is to be read next.
func (m *mirrorSource) News(ctx context.Context, _ []*fealtyv1.HeldSnapshot) ([]Notice, error) {
	m.survey.look(ctx)
	if m.rank >= len(m.survey.found) {
		if m.survey.glance {
			return nil, nil
		}
		return nil, errors.New("it did not say what it has")
	}
	f, a := m.survey.found[m.rank], m.survey.f
	if f.behind {
		return nil, nil
	}
	var out []Notice
	var err error
	if !m.companions {
		out, err = m.readFoundations(ctx, f, a.Node.TrustState())
		m.partly = err != nil
		m.companions = len(out) > 0
	}
	if len(out) == 0 {
		var rest error
		m.companions = false
		out, rest = m.readScopes(ctx, f, a.Node.TrustState(), state.Scopes[len(state.Foundations):])
		m.partly = m.partly || rest != nil
		err = errors.Join(err, rest)
		m.whole = !m.partly
	}
	switch {
	case err == nil:
		a.Count.Mirrors("ok")
	case ctx.Err() == nil:
		a.mirrorFailed(ctx, f.source, err)
		if len(out) > 0 {
			err = nil // what there is may do
		}
	}
	return out, err
}

// readFoundations returns what a generation has for the node of what the companions are
// judged by, and is not in use. The error is that of what could not be read.
func (m *mirrorSource) readFoundations(ctx context.Context, f *found, b *state.TrustState) ([]Notice, error) {
	a := m.survey.f
	var out []Notice
	var problems []error
	if h := b.Active[snapshot.ScopeTrustBundle]; f.has(snapshot.ScopeTrustBundle) &&
		(h == nil || snapshot.DigestOf(h.Raw).String() != f.tree.TrustBundleHash()) {
		raw, err := f.tree.TrustBundle(ctx)
		if err == nil && newerBundle(h, raw) {
			links, missing := f.tree.Links(ctx)
			a.Node.HearLinks(ctx, links)
			problems = append(problems, missing)
			out = append(out, Notice{string(snapshot.ScopeTrustBundle), raw})
		}
		problems = append(problems, err)
	}
	changes, err := f.tree.RootChanges(ctx)
	if problems = append(problems, err); err == nil && a.heard.news(changes) {
		a.HearRoots(ctx, &fealtyv1.RootChanges{Changes: changes})
	}
	more, err := m.readScopes(ctx, f, b, state.Foundations)
	return append(out, more...), errors.Join(append(problems, err)...)
}

// readScopes returns what a generation has of these scopes for a node that believes b,
// and is not in use.
func (m *mirrorSource) readScopes(ctx context.Context, f *found, b *state.TrustState, of []snapshot.Scope) ([]Notice,
	error) {
	record := f.tree.Record()
	var out []Notice
	var problems []error
	for _, scope := range of {
		subject := m.survey.f.subjectIn(b, scope)
		if subject.IsZero() || !f.has(scope) {
			continue
		}
		if h := b.Active[scope]; h != nil {
			r, ok := h.Verified.Record()
			if ok && state.CompareRecords(r, record) == 0 && r.Root == record.Root {
				continue // it has been here, or came from elsewhere
			}
			if newerThan(h, record) {
				continue // a peer had it
			}
		}
		signed, err := f.tree.Header(ctx, scope, subject.String())
		var raw []byte
		if err == nil {
			raw, err = signed.Marshal()
		}
		if err != nil {
			if mirror.ReasonOf(err) != mirror.Absent {
				problems = append(problems, err)
			}
			if ctx.Err() != nil {
				break
			}
			continue
		}
		out = append(out, Notice{string(scope), raw})
	}
	return out, errors.Join(problems...)
}

// WatchMirrors looks at the mirrors again and again while no stream is up, until ctx
// ends: what a coordinator would tell at once, such as a revocation, is not to wait until
// what the node holds is about to be stale.
func (f *Fetcher) WatchMirrors(ctx context.Context) error {
	for {
		if err := clock.Sleep(ctx, clock.Around(f.MirrorEvery, mirrorSpread), nil); err != nil {
			return err
		}
		if f.Node.Status().View().Connected {
			continue
		}
		// With something lacking a mirror is read again although it did not move: what it has
		// may have been half there.
		f.InquireOf(ctx, f.Surveyed(len(f.Node.TrustState().Lacks()) == 0))
	}
}

// subjectIn returns for whom the snapshots of a scope are that the node is to hold;
// zero for a scope that a generation does not have, or that it is not to hold.
func (f *Fetcher) subjectIn(b *state.TrustState, scope snapshot.Scope) snapshot.Subject {
	me := f.Node.Self()
	node := snapshot.NodeSubject(me.ID, me.Incarnation)
	if scope == snapshot.ScopeNodeRuntime {
		return node
	}
	h := b.Active[snapshot.ScopeNodeRuntime]
	if h == nil {
		return snapshot.Subject{}
	}
	runtime, _ := h.Verified.NodeRuntime()
	switch {
	case !slices.Contains(runtime.Companions, scope):
		return snapshot.Subject{}
	case scope == snapshot.ScopeServiceAssignment:
		return node
	}
	return snapshot.GroupSubject(runtime.Roles, runtime.Organizations)
}

// newerBundle reports whether a trust bundle says that it is newer than the one in
// use, or contradicts it: an older one is no news, and no alarm.
func newerBundle(h *state.ActiveSnapshot, raw []byte) bool {
	if h == nil {
		return true
	}
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return true // to be refused, and told
	}
	claims, err := signed.Claims()
	if err != nil {
		return true
	}
	is, says := h.Verified.Header(), claims.Header
	switch c := cmp.Or(cmp.Compare(says.AuthorityEpoch, is.AuthorityEpoch),
		cmp.Compare(says.ConfigVersion, is.ConfigVersion)); {
	case c != 0:
		return c > 0
	case says.ContentHash != is.ContentHash:
		return true
	}
	return says.IssuedAt.After(is.IssuedAt)
}

// Content implements source. A content has the same name in every generation.
func (m *mirrorSource) Content(ctx context.Context, _ snapshot.Scope, hash snapshot.Digest, size int) (io.ReadCloser,
	error) {
	data, err := mirror.Content(ctx, m.at(), hash, size)
	if err != nil {
		if ctx.Err() == nil {
			m.survey.f.mirrorFailed(ctx, m.at(), err)
		}
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// heardChanges remembers what was heard from mirrors, which repeat themselves.
type heardChanges struct {
	mu   sync.Mutex
	last string // changes of root; guarded by mu
	// the generation that was read whole last, by the name of the mirror; guarded by mu
	whole    map[string]mirror.Pointer
	problems map[string]mirror.Reason // why there was no news last, likewise; guarded by mu
}

// maxHeard bounds of how many mirrors something is remembered: endpoints come and go.
const maxHeard = 4 * MaxMirrors

// read reports whether what the pointer of a mirror leads to was read whole.
func (h *heardChanges) read(m mirror.Source, at mirror.Pointer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	was, ok := h.whole[m.String()]
	return ok && was == at
}

// readAll notes that what the pointer of a mirror leads to was read whole.
func (h *heardChanges) readAll(m mirror.Source, at mirror.Pointer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.whole == nil || len(h.whole) >= maxHeard {
		h.whole = make(map[string]mirror.Pointer)
	}
	h.whole[m.String()] = at
	delete(h.problems, m.String())
}

// failed notes why a mirror had no news, and reports whether that is another reason than
// the last one.
func (h *heardChanges) failed(m mirror.Source, reason mirror.Reason) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.problems == nil || len(h.problems) >= maxHeard {
		h.problems = make(map[string]mirror.Reason)
	}
	was, ok := h.problems[m.String()]
	h.problems[m.String()] = reason
	return !ok || was != reason
}

// news reports whether changes are others than the last ones.
func (h *heardChanges) news(changes [][]byte) bool {
	var all strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&all, "%s ", snapshot.DigestOf(c))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(changes) == 0 || h.last == all.String() {
		return false
	}
	h.last = all.String()
	return true
}
