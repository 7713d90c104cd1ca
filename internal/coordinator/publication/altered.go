package publication

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// Whoever writes to the store must not be able to do more than to stop what is new. So a coordinator that does not lead, and
// finds there something else than the record signs, goes on with what it has in memory. It serves the generation whose record
// the store has, if its memory, the store and the store's log have all of it between them; the root says whether they do. If
// they do not, it goes on with the generation that it verified last, whose record grows stale by itself. Either way people are
// told, for each generation, and all is read again for the next one. Who leads takes nothing from memory: it makes all again.

// alteration is what was found in the store that is not as the cluster wrote it.
type alteration struct {
	keys   []string // some of them, as people are told
	effect string   // what that comes to, as a part of a sentence
	// behind: the view is an earlier generation than that of the record in the store, which is at version at.
	behind bool
	at     store.Revision
}

// What an alteration comes to.
const (
	unused         = "nobody is told anything of it"
	untilMadeAgain = "who found it serves no snapshots until all are made again"
	fromMemory     = "coordinators that do not lead serve snapshots as they were signed, from memory, and one that starts now serves none"
	lastVerified   = "coordinators that do not lead go on with the snapshots that they verified last, and one that starts now serves none"
)

// Why something counts as altered that passes its MAC.
var (
	errGone     = fmt.Errorf("it is gone: %w", store.ErrForged)
	errOther    = fmt.Errorf("it is genuine, and not the one that the record in force signs: %w", store.ErrForged)
	errUnsigned = fmt.Errorf("it is genuine, and the record in force does not sign it: %w", store.ErrForged)
	errBefore   = fmt.Errorf("it is genuine, and of an earlier generation than one that was served: %w", store.ErrForged)
	errRoot     = fmt.Errorf("what it signs is not what is stored: %w", store.ErrForged)
)

// newAlteration says what was found; nil: nothing was.
func newAlteration(effect string, found []authority.Suspect) *alteration {
	if len(found) == 0 {
		return nil
	}
	x := &alteration{effect: effect}
	for _, one := range found {
		x.keys = record.AddAltered(x.keys, one.What)
	}
	slices.Sort(x.keys)
	return x
}

// findings says what was altered in the store of what p is, or stands for.
func (p *View) findings() []*fealtyv1.Finding {
	if p == nil || p.altered == nil {
		return nil
	}
	f := finding.NewCritical(errcode.StoreForged, "problem", "it is not as the cluster wrote it", "what", named(p.altered.keys),
		"effect", p.altered.effect)
	f.Remedy = "find out who can write to the store and take that access away; then have another coordinator lead, which makes " +
		`all snapshots again: fealty leader transfer --reason "the store was altered"`
	return []*fealtyv1.Finding{f}
}

// standsFor returns the version of the state that was in the store when it was decided to serve p.
func (p *View) standsFor() store.Revision {
	if p.Behind() {
		return p.altered.at
	}
	return p.State.Version
}

// Behind reports whether p is an earlier generation than that of the record in the store, which could not be made of what is
// there. Members may have what it has: its record grows stale. Who decides something by it asks whether that is fresh.
func (p *View) Behind() bool { return p != nil && p.altered != nil && p.altered.behind }

// before reports whether r is of an earlier generation than o.
func (r Record) before(o Record) bool {
	return cmp.Or(cmp.Compare(r.AuthorityEpoch, o.AuthorityEpoch), cmp.Compare(r.Generation, o.Generation)) < 0
}

// withstand returns what a coordinator that does not lead serves where it found x, and the view of that, found, is broken or
// goes back.
func (c *Publication) withstand(ctx context.Context, s *authority.State, x *stock, found *View) (*View, error) {
	have := c.verified
	if have == nil {
		return found, nil
	}
	back, now := found.State.Value.before(have.State.Value), have.State.Value.AuthorityEpoch == s.Head.AuthorityEpoch
	if !found.Broken && !back {
		return found, nil
	}
	report := func(all []authority.Suspect) error {
		return c.cfg.Head.ForgedUnder(ctx, s, all[:min(len(all), authority.MaxForgedLogged)]...)
	}
	if !back { // as one that is altered or gone does: nothing is known of it
		log, _ := c.log(ctx, have.State.Version, found.State.Version)
		if p := x.restored(s, have, log); p != nil {
			others := x.otherwise(p)
			if len(x.bad)+len(others) == 0 {
				others = []authority.Suspect{{What: StateKey, Err: errRoot}}
			}
			p.altered = newAlteration(fromMemory, slices.Concat(x.bad, others))
			return p, report(others)
		}
	}
	if !now {
		// Members that heard of the new epoch would refuse it. A restore in place goes back, and makes a new epoch before.
		return found, nil
	}
	var more []authority.Suspect
	switch {
	case x.unsigned: // it is among those that fail their MAC
	case !x.state.Exists():
		more = append(more, authority.Suspect{What: StateKey, Err: errGone})
	case back:
		more = append(more, authority.Suspect{What: StateKey, Err: errBefore})
	case len(x.bad) == 0:
		more = append(more, authority.Suspect{What: StateKey, Err: errRoot})
	}
	p := *have
	p.altered = newAlteration(lastVerified, slices.Concat(x.bad, more))
	p.altered.behind, p.altered.at = true, found.State.Version
	return &p, report(more)
}

// restored returns the publication that the state of x signs, made of what x, an earlier publication and the log since then
// have of it; nil if they do not have all of it. All of that is genuine, and of each header the newest counts: what is put
// back is older, and what goes into another's place fails its MAC. It cannot be told of a header that x does not have whether
// the leader dropped it, so all answers are tried. The root decides.
func (x *stock) restored(s *authority.State, have *View, log []store.Change) *View {
	g := gathering{have: have, since: x.state.Value.Since, headers: make(map[HeaderPath]*Published),
		dropped: make(map[HeaderPath]bool), contents: maps.Clone(x.contents)}
	for hash, c := range have.contents.all() {
		if c.raw != nil && g.contents[hash] == nil {
			g.contents[hash] = c
		}
	}
	for _, h := range have.Headers() {
		g.add(h)
	}
	for _, ch := range log {
		g.follow(s, ch)
	}
	g.join()
	there := make(map[HeaderPath]bool)
	for _, h := range x.headers {
		there[h.HeaderPath] = true
		g.add(h)
	}
	refused := x.refused()
	for _, dropped := range []func(*Published) bool{
		func(h *Published) bool { return g.dropped[h.HeaderPath] },
		func(h *Published) bool { return !there[h.HeaderPath] && !refused[h.key()] },
		func(*Published) bool { return false },
	} {
		var signed []*Published
		for _, h := range g.headers {
			if !dropped(h) {
				signed = append(signed, h)
			}
		}
		slices.SortFunc(signed, comparePublished)
		if slices.ContainsFunc(signed, func(h *Published) bool { return g.contents[h.Header.Content] == nil }) {
			continue
		}
		if p := newView(x.state, signed, g.contents); snapshot.Digest(p.Tree.Root()).String() == x.state.Value.Root {
			return p
		}
	}
	return nil
}

// gathering is what is known of a publication that somebody altered.
type gathering struct {
	have     *View
	since    uint64 // what is of an earlier generation is left over
	headers  map[HeaderPath]*Published
	dropped  map[HeaderPath]bool // by a leader, as the log says
	contents map[string]*stored
	pieces   pieces
}

// add takes a genuine header, if it is newer than the one that is known.
func (g *gathering) add(h *Published) bool {
	if _, had := g.have.Find(h.HeaderPath); h.Header.ConfigVersion < g.since ||
		!had && h.Header.ConfigVersion <= g.have.State.Value.Generation { // it was gone by then
		return false
	}
	if is := g.headers[h.HeaderPath]; is != nil && cmp.Or(cmp.Compare(h.Header.ConfigVersion, is.Header.ConfigVersion),
		h.Header.IssuedAt.Compare(is.Header.IssuedAt)) < 0 {
		return false
	}
	g.headers[h.HeaderPath] = h
	return true
}

// follow takes what a commit wrote, as far as it is genuine. What it deleted counts if it is one of a leader's.
func (g *gathering) follow(s *authority.State, ch store.Change) {
	generation := slices.ContainsFunc(ch.Put, func(e store.Entry) bool {
		_, err := record.Open[Record](s.Records, e)
		return e.Key == StateKey && err == nil
	})
	for _, key := range ch.Delete {
		path, ok := strings.CutPrefix(key, PackedPrefix)
		if !ok {
			path, ok = strings.CutPrefix(key, HeaderPrefix)
		}
		parsed, header := parseHeaderPath(path)
		if h := g.headers[parsed]; generation && ok && header && h != nil && h.key() == key {
			g.dropped[parsed] = true
		}
	}
	var packed unpacker
	for _, e := range ch.Put {
		if hash, ok := strings.CutPrefix(e.Key, ContentPrefix); ok {
			if raw, err := s.Records.Open(e.Key, e.Value); err == nil && snapshot.DigestOf(raw).String() == hash &&
				g.contents[hash] == nil {
				g.contents[hash] = &stored{raw: raw}
			}
			continue
		}
		if strings.HasPrefix(e.Key, IndexPrefix) || strings.HasPrefix(e.Key, PartPrefix) {
			if raw, err := s.Records.Open(e.Key, e.Value); err == nil {
				g.pieces.add(e.Key, raw)
			}
			continue
		}
		if !strings.HasPrefix(e.Key, PackedPrefix) && !strings.HasPrefix(e.Key, HeaderPrefix) {
			continue
		}
		if h, err := openHeader(s, &packed, e); err == nil && h != nil && g.add(h) {
			delete(g.dropped, h.HeaderPath)
		}
	}
}

// join makes contents of the parts that the log has.
func (g *gathering) join() {
	g.pieces.addFrom(g.have)
	g.pieces.join(g.contents) // one that cannot be made is lacking
}

// refused are the keys of what fails its MAC.
func (x *stock) refused() map[string]bool {
	out := make(map[string]bool)
	for _, one := range x.bad {
		out[one.What] = true
	}
	return out
}

// otherwise returns what is not in the store as it is in p, beside what fails its MAC, sorted by key.
func (x *stock) otherwise(p *View) (all []authority.Suspect) {
	refused, stored := x.refused(), make(map[HeaderPath]*Published)
	suspect := func(key string, why error) {
		if !refused[key] {
			all = append(all, authority.Suspect{What: key, Err: why})
		}
	}
	for _, h := range x.headers {
		i, signed := p.Find(h.HeaderPath)
		switch {
		case signed && (stored[h.HeaderPath] == nil || p.Header(i).Leaf == h.Leaf):
			stored[h.HeaderPath] = h
		case !signed && h.Header.ConfigVersion >= x.state.Value.Since:
			suspect(h.key(), errUnsigned)
		}
	}
	for _, h := range p.Headers() {
		switch is := stored[h.HeaderPath]; {
		case is == nil:
			suspect(h.key(), errGone)
		case is.Leaf != h.Leaf:
			suspect(is.key(), errOther)
		}
	}
	for hash, c := range p.contents.all() {
		if c.raw != nil && x.contents[hash] == nil {
			suspect(c.keys(hash)[0], errGone)
		}
	}
	slices.SortFunc(all, func(a, b authority.Suspect) int { return cmp.Compare(a.What, b.What) })
	return all
}
