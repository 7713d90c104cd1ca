package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
)

// MaxPageSize is how many members a page holds at most.
const MaxPageSize = 1000

// A Page is where a page of members begins. The zero one has none. Its token is the path of the last member that
// was sent, so that members that come and go between pages neither hide nor double those
// that stay, with the revision of the store that the first page was made of: the pages
// after it are of no earlier one, whichever coordinator makes them.
type Page struct {
	size  int
	after string         // path of the last member of the page before; empty: none
	At    store.Revision // of the first page; 0: this is the first, or one of an earlier release asked before
}

// First reports whether it is the first page.
func (p Page) First() bool { return p.after == "" }

// Size is how many members it has at most.
func (p Page) Size() int { return p.size }

// token returns the token of the page after one that ends with last.
func (p Page) token(last *fealtyv1.Member) string {
	return fmt.Sprintf("%s/%s@%d", last.GetKind(), last.GetName(), p.At)
}

// ReadPage checks what a call asks for. Size 0 is as many as a page has at most.
func ReadPage(size uint32, token string) (Page, error) {
	p := Page{size: int(size)}
	if size > MaxPageSize {
		return p, errcode.New(errcode.RequestField,
			"field", "page_size", "problem", fmt.Sprintf("it is %d, and a page has at most %d", size, MaxPageSize))
	}
	if size == 0 {
		p.size = MaxPageSize
	}
	if token == "" {
		return p, nil
	}
	bad := errcode.New(errcode.RequestField, "field", "page_token", "problem", "it is not one that this call gave out")
	path, revision, ok := strings.Cut(token, "@")
	if ok {
		n, err := strconv.ParseUint(revision, 10, 63)
		if err != nil {
			return p, bad
		}
		p.At = store.Revision(n)
	}
	kind, name, ok := strings.Cut(path, "/")
	if !ok || !identity.Kind(kind).Valid() || name == "" || len(path) > internalidentity.MaxIDBytes {
		return p, bad
	}
	p.after = path
	return p, nil
}

// List returns the page of the members below prefix that begins at from, of those
// that keep takes, or nil of all, and the
// token of what follows. While the store is out of reach these are the members as they
// were last known, and since is when.
func (m *Membership) List(ctx context.Context, s *authority.State, prefix string, from Page,
	keep func(record.Member) bool) (msgs []*fealtyv1.Member, next string, since *timestamppb.Timestamp, err error) {
	asking, cancel := m.cfg.Head.Patience(ctx)
	defer cancel()
	var ban banOf
	anew := from.At == 0
	from.At, err = m.syncMembers(asking, s, from.At)
	if err == nil {
		ban, err = m.bans(asking, s, anew)
	}
	if authority.OutOfReach(ctx, asking, err) {
		confirmed := m.cfg.Head.Confirmed()
		if _, err := m.cfg.Head.DegradedState("list members", m.cfg.Head.Degraded("list members", err)); err != nil {
			return nil, "", nil, err
		}
		since, err = timestamppb.New(confirmed), nil
		ban = m.bansInForce(s)
	}
	if err != nil {
		return nil, "", nil, err
	}
	m.cfg.Peers.Hear(ctx, s)
	recs, more := m.members.Page(prefix, from.after, from.size, keep)
	for _, r := range recs {
		msgs = append(msgs, m.memberMessage(s, r, ban(r.Path(), r)))
	}
	if more {
		next = from.token(msgs[len(msgs)-1])
	}
	return msgs, next, since, nil
}

// matching returns what decides whether a request is about a member; nil for all.
func matching(req *fealtyv1.ListMembersRequest) (keep func(record.Member) bool, err error) {
	if req.GetHost() == "" && len(req.GetLabels()) == 0 {
		return nil, nil
	}
	if _, problem := manifest.SortedLabels(req.GetLabels()); problem != "" {
		return nil, errcode.New(errcode.RequestField, "field", "labels", "problem", problem)
	}
	return func(r record.Member) bool {
		return (req.GetHost() == "" || strings.EqualFold(r.Machine.Host, req.GetHost())) &&
			!slices.ContainsFunc(req.GetLabels(), func(l string) bool { return !slices.Contains(r.AllLabels(), l) })
	}, nil
}

// syncMembers has the member index hold what the store held at revision at, which a page
// before this one was made of, or with at 0 what it holds now. It returns the revision
// from which on it does. Records that the index has already are not decoded again. One that was
// altered in the store counts for nothing, hides no other one, and is told apart.
func (m *Membership) syncMembers(ctx context.Context, s *authority.State, at store.Revision) (store.Revision, error) {
	if at != 0 && m.members.Holds(at) {
		return at, nil
	}
	l, err := m.cfg.Store.List(ctx, record.MemberPrefix)
	if err != nil {
		return 0, m.cfg.Head.StoreError("list members", err)
	}
	listed := make([]string, len(l.Entries))
	for i, e := range l.Entries {
		listed[i] = e.Key[len(record.MemberPrefix):]
	}
	have := m.members.Versions(listed)
	var news []record.Versioned[record.Member]
	var bad []authority.Suspect
	forged := make(map[string]store.Revision)
	for i, e := range l.Entries {
		var r record.Versioned[record.Member]
		var err error
		if have[i] == e.Version {
			_, err = s.Records.Open(e.Key, e.Value)
		} else if r, err = record.Open[record.Member](s.Records, e); err == nil {
			news = append(news, r)
		}
		if err != nil {
			forged[listed[i]], bad = e.Version, append(bad, authority.Suspect{What: e.Key, Err: err})
		}
	}
	if err := m.cfg.Head.ForgedUnder(ctx, s, bad[:min(len(bad), authority.MaxForgedLogged)]...); err != nil {
		return 0, m.cfg.Head.StoreError("list members", err)
	}
	m.members.CatchUp(listed, news, forged, l.Revision)
	return max(l.Revision, 1), nil
}

// Sync has who is a member be known here as the store has it now, for who looks at all of them, and returns the revision
// that it is of.
func (m *Membership) Sync(ctx context.Context, s *authority.State) (store.Revision, error) {
	return m.syncMembers(ctx, s, 0)
}

// banOf says how the member at a path is banned.
type banOf func(path string, r record.Member) record.Versioned[record.Ban]

// bans returns what says how a member is banned, as the store has it now. Unless they are to be read anew, bans that were
// read before are used if there was no other one since: whoever bans or lifts a ban writes the trust state.
func (m *Membership) bans(ctx context.Context, s *authority.State, anew bool) (banOf, error) {
	// Read first: if it is written before the bans are listed, these are read once more for the next page.
	state, err := m.cfg.Store.Get(ctx, bundle.StateKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, m.cfg.Head.StoreError("read the trust state", err)
	}
	// The same one and not a later one: a store that went back counts its revisions anew.
	if have := m.idBans.Load(); have != nil && !anew && state.Version == have.State {
		return m.bansOf(s, have), nil
	}
	l, err := m.cfg.Store.List(ctx, record.BanIDPrefix)
	if err != nil {
		return nil, m.cfg.Head.StoreError("list bans", err)
	}
	read := &bundle.IDBans{State: state.Version, Bans: make(map[string]record.Versioned[record.Ban], len(l.Entries)),
		Altered: make(map[string]store.Revision)}
	var bad []authority.Suspect
	for _, e := range l.Entries {
		path := e.Key[len(record.BanIDPrefix):]
		if b, err := record.Open[record.Ban](s.Records, e); err == nil {
			read.Bans[path] = b
		} else {
			read.Altered[path], bad = e.Version, append(bad, authority.Suspect{What: e.Key, Err: err})
		}
	}
	if err := m.cfg.Head.ForgedUnder(ctx, s, bad[:min(len(bad), authority.MaxForgedLogged)]...); err != nil {
		return nil, m.cfg.Head.StoreError("list bans", err)
	}
	m.idBans.Store(read)
	return m.bansOf(s, read), nil
}

// bansOf returns what says how a member is banned by bans that were read. One whose ban was altered in the store is banned
// if the trust bundle in force bans it: who can write to the store lifts no ban, and makes nobody look banned, which would
// hide all that is found of a member.
func (m *Membership) bansOf(s *authority.State, read *bundle.IDBans) banOf {
	return func(path string, r record.Member) record.Versioned[record.Ban] {
		if at, ok := read.Altered[path]; ok {
			return m.alteredBan(s, r, at)
		}
		return read.Bans[path]
	}
}

// bansInForce returns what says how a member is banned by the bundle in force, while the store does not say it.
func (m *Membership) bansInForce(s *authority.State) banOf {
	return func(_ string, r record.Member) record.Versioned[record.Ban] { return m.knownBan(s, r) }
}

// shownBan is the ban of a member for who looks at it, as bans has it.
func (m *Membership) shownBan(ctx context.Context, s *authority.State,
	r record.Member) (record.Versioned[record.Ban], error) {
	e, err := s.Records.Store.Get(ctx, record.BanIDKey(r.Kind, r.Name))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return record.Versioned[record.Ban]{}, nil
	case err != nil:
		return record.Versioned[record.Ban]{}, err
	}
	b, err := record.Open[record.Ban](s.Records, e)
	if err == nil {
		return b, nil
	}
	return m.alteredBan(s, r, e.Version), m.cfg.Head.ForgedUnder(ctx, s, authority.Suspect{What: e.Key, Err: err})
}

// alteredBan is the ban of a member whose record of it was altered in the store, at that revision: none, unless the
// trust bundle in force bans the member.
func (m *Membership) alteredBan(s *authority.State, r record.Member, at store.Revision) record.Versioned[record.Ban] {
	if m.knownBan(s, r).Version == 0 {
		return record.Versioned[record.Ban]{}
	}
	return record.Versioned[record.Ban]{Value: record.Ban{Reason: "its ban was altered in the store (" +
		string(errcode.StoreForged) + "), and counts until it is as it was"}, Version: at}
}

// knownBan returns whether the bundle in force bans the identity of r. Why and by
// whom only the store knows.
func (m *Membership) knownBan(s *authority.State, r record.Member) record.Versioned[record.Ban] {
	id, err := identity.New(s.Manifest.Cluster, r.Kind, r.Name)
	if err != nil || !m.cfg.Bundle.Bans(id, identity.KeyID{}) {
		return record.Versioned[record.Ban]{}
	}
	return record.Versioned[record.Ban]{Version: 1}
}
