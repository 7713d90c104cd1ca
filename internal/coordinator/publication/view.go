package publication

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/config/compile"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/chunk"
	"github.com/fealty-io/fealty/snapshot"
)

// View is one version of what is served. It is immutable: what a step makes of it shares with it all
// that the step did not touch, so that a step costs what it changes, and not what there is.
type View struct {
	State record.Versioned[Record]
	// Tree is over the headers, where bins place them; in their order without bins.
	Tree    *Tree
	bins    bins
	headers headers
	// contents are those that headers name, by their hash.
	contents table[*stored]
	packed   int        // how many headers are
	divided  int        // how many of them are stored in parts
	parts    table[int] // of those, by hash, and how often each is named
	groups   table[int] // how many node_runtimes there are of each group
	// messages are those that the members of a group share; see [SharedBy].
	messages *sync.Map
	// Broken: the headers are not those of the record. Somebody else wrote them.
	Broken bool
	// altered says what was read that fails its MAC, or is not what is signed; nil: nothing. All is read until nothing is, and
	// is said each time.
	altered *alteration
	// Orphans are keys that no header uses.
	Orphans []string
}

// stored is a content. It is immutable.
type stored struct {
	raw   []byte   // nil: it is a base that was lost
	parts []string // the hashes of those that it is stored in; nil: it is stored whole
	uses  int      // how many headers name it, as their content or as their base
}

// Len returns how many headers there are.
func (p *View) Len() int { return p.headers.n }

// Header returns header i.
func (p *View) Header(i int) *Published { return p.headers.at(i) }

// Headers yields all headers with their indices, sorted.
func (p *View) Headers() iter.Seq2[int, *Published] { return p.headers.all() }

// Content returns the content with a hash; nil if no header names it, or if it is a base that was lost.
func (p *View) Content(hash string) []byte {
	if c, ok := p.contents.get(hash); ok {
		return c.raw
	}
	return nil
}

// Contents yields all contents by their hash.
func (p *View) Contents() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for hash, c := range p.contents.all() {
			if c.raw != nil && !yield(hash, c.raw) {
				return
			}
		}
	}
}

// Find returns the index of a header.
func (p *View) Find(path HeaderPath) (int, bool) { return p.headers.find(path) }

// Of returns the indices of the headers that a member gets, in their order:
// nothing else is sent to it, nor handed out to it by hash.
func (p *View) Of(kind identity.Kind, name string) []int {
	var out []int
	add := func(path HeaderPath) bool {
		i, ok := p.Find(path)
		if ok {
			out = append(out, i)
		}
		return ok
	}
	member := string(kind) + "/" + name
	if !add(RuntimePath(member)) {
		return nil // who is told nothing of itself is told nothing else
	}
	group := p.Header(out[0]).Header.Group
	if group == "" {
		return out
	}
	add(nodePath(snapshot.ScopeServiceAssignment, member))
	for _, scope := range compile.GroupScopes() {
		add(groupPath(scope, group))
	}
	slices.Sort(out)
	return out
}

// LeafOf returns which leaf of the tree header i is.
func (p *View) LeafOf(i int) int {
	if len(p.bins.lists) == 0 {
		return i
	}
	return p.bins.find(p.Header(i).HeaderPath)
}

// Signed returns the envelope of header i.
func (p *View) Signed(i int) (*snapshot.Signed, error) {
	leaf := p.LeafOf(i)
	hashes, err := p.Tree.Proof(leaf)
	if err != nil {
		return nil, err
	}
	proof := snapshot.Proof{Index: uint64(leaf), Hashes: make([]snapshot.Digest, len(hashes))}
	for i, h := range hashes {
		proof.Hashes[i] = h
	}
	h := &p.Header(i).Header
	return &snapshot.Signed{
		Header: h.Header, Content: p.Content(h.Content),
		Publication: &snapshot.Publication{Record: p.State.Value.Record,
			Signatures: p.State.Value.Signatures}, Proof: proof,
	}, nil
}

// uses reports whether a header or a content of p is stored at key.
func (p *View) uses(key string) bool {
	path, header := strings.CutPrefix(key, HeaderPrefix)
	packed := false
	if !header {
		path, packed = strings.CutPrefix(key, PackedPrefix)
	}
	if header || packed {
		parsed, ok := parseHeaderPath(path)
		if !ok {
			return false
		}
		i, ok := p.Find(parsed)
		return ok && p.Header(i).packed == packed
	}
	if hash, ok := strings.CutPrefix(key, PartPrefix); ok {
		_, ok = p.parts.get(hash)
		return ok
	}
	hash, index := strings.CutPrefix(key, IndexPrefix)
	if !index {
		var ok bool
		if hash, ok = strings.CutPrefix(key, ContentPrefix); !ok {
			return false
		}
	}
	c, ok := p.contents.get(hash)
	return ok && c.raw != nil && (c.parts != nil) == index
}

// Message returns the envelope of header i for the wire.
func (p *View) Message(i int) (*fealtyv1.SignedSnapshot, error) {
	signed, err := p.Signed(i)
	if err != nil {
		return nil, err
	}
	raw, err := signed.Marshal()
	if err != nil {
		return nil, err
	}
	return &fealtyv1.SignedSnapshot{Scope: string(p.Header(i).Scope), Envelope: raw}, nil
}

// ContentFor returns the content with the hash if a header of the member names it,
// else nil. Not being published and being somebody else's are the same.
func (p *View) ContentFor(id identity.ID, hash snapshot.Digest) []byte {
	if !p.Serves() {
		return nil
	}
	name := hash.String()
	for _, i := range p.Of(id.Kind(), id.Name()) {
		if p.Header(i).Header.Content == name {
			return p.Content(name)
		}
	}
	return nil
}

// SharedBy returns what make returned for the key, which is made once for all that are sent what
// p has.
func SharedBy[T any](p *View, key any, make func() (T, error)) (T, error) {
	made, ok := p.messages.Load(key)
	if !ok {
		made, _ = p.messages.LoadOrStore(key, sync.OnceValues(make))
	}
	return made.(func() (T, error))()
}

// Serves reports whether p has a record under which its headers can be sent.
func (p *View) Serves() bool {
	return p != nil && !p.Broken && len(p.State.Value.Record) > 0
}

// step is what a step changes of what is stored, beside headers.
type step struct {
	fresh   []string // the contents, by hash, that are not stored so yet
	retired []string // those that are stored so no more
}

// with returns p after a commit that put some headers and dropped others, and what that means for
// contents, which has new ones. Those are divided if divides says so; if it does not, none is any more. There are bins from
// so many headers on; 0: there are none.
func (p *View) with(put []*Published, drop map[HeaderPath]bool, contents map[string][]byte,
	divides bool, from int) (*View, step) {
	next, changes := p.step(put, drop, func(n int) int {
		if from == 0 {
			return 0
		}
		return binsFor(len(p.bins.lists), n, from)
	}, func(hash string) *stored {
		if contents[hash] == nil {
			return nil
		}
		c := &stored{raw: contents[hash]}
		if divides {
			_, list := chunk.Split(c.raw)
			for _, part := range list {
				c.parts = append(c.parts, chunkName(sha256.Sum256(part)))
			}
		}
		return c
	})
	if !divides && next.divided > 0 {
		for hash, c := range next.contents.all() {
			if c.parts == nil {
				continue
			}
			next.name(c.parts, -1)
			next.contents = next.contents.with(hash, &stored{raw: c.raw, uses: c.uses})
			changes.fresh, changes.retired = append(changes.fresh, hash), append(changes.retired, hash)
		}
		next.divided = 0
	}
	return next, changes
}

// step returns p after a commit that put some headers and dropped others, where binsOf tells how many bins there are for so
// many headers, and fresh how a content is stored that p does not have; nil: it is not.
func (p *View) step(put []*Published, drop map[HeaderPath]bool, binsOf func(n int) int,
	fresh func(hash string) *stored) (*View, step) {
	next := &View{contents: p.contents, packed: p.packed, divided: p.divided, parts: p.parts, groups: p.groups,
		messages: new(sync.Map)}
	uses := make(map[string]int) // more than before, or less, by hash
	count := func(h *Published, by int) {
		uses[h.Header.Content] += by
		uses[h.Header.Base] += by
		if h.Scope == snapshot.ScopeNodeRuntime {
			next.groups = counted(next.groups, h.Header.Group, by)
		}
		if h.packed {
			next.packed += by
		}
	}
	edits := editsOf(put, drop)
	for _, e := range edits {
		if i, ok := p.Find(e.path); ok {
			count(p.Header(i), -1)
		}
		if e.put != nil {
			count(e.put, 1)
		}
	}
	delete(uses, "") // no base
	var changes step
	for hash, by := range uses {
		was, ok := p.contents.get(hash)
		if !ok {
			was = new(stored)
		}
		next.store(hash, was, was.uses+by, fresh, &changes)
	}
	var changed []int
	var from int
	next.headers, changed, from = p.headers.with(edits)
	switch n := binsOf(next.headers.n); {
	case n != len(p.bins.lists):
		next.plant(p.Tree, n)
	case n == 0:
		next.Tree = p.Tree.With(next.headers.n, changed, from, next.headers.leaves())
	default:
		next.bins, changed, from = p.bins.with(edits)
		next.Tree = p.Tree.With(next.bins.size(), changed, from, next.bins.leaf)
	}
	return next, changes
}

// plant makes the tree of all headers anew, in n bins; 0: in their order. It takes from another tree what is the same.
func (p *View) plant(was *Tree, n int) {
	if n == 0 {
		p.Tree = was.With(p.headers.n, nil, 0, p.headers.leaves())
		return
	}
	p.bins = newBins(n, p.headers)
	p.Tree = was.With(p.bins.size(), nil, 0, p.bins.leaf)
}

// store has p keep a content, or leave it out if nothing uses it. One that was not kept is as fresh tells.
func (p *View) store(hash string, was *stored, uses int, fresh func(hash string) *stored, changes *step) {
	c := &stored{raw: was.raw, parts: was.parts, uses: uses}
	if uses == 0 {
		if p.contents = p.contents.without(hash); was.raw != nil {
			changes.retired = append(changes.retired, hash)
			p.name(c.parts, -1)
		}
		return
	}
	if was.raw == nil {
		if is := fresh(hash); is != nil {
			c.raw, c.parts = is.raw, is.parts
			p.name(c.parts, 1)
			changes.fresh = append(changes.fresh, hash)
		}
	}
	p.contents = p.contents.with(hash, c)
}

// name counts how often the parts of a content are named.
func (p *View) name(parts []string, by int) {
	if parts != nil {
		p.divided += by
	}
	for _, part := range parts {
		p.parts = counted(p.parts, part, by)
	}
}

// counted returns t with another count of a key; one that is zero is left out.
func counted(t table[int], key string, by int) table[int] {
	n, _ := t.get(key)
	if n+by == 0 {
		return t.without(key)
	}
	return t.with(key, n+by)
}

// newView returns the publication of headers, which are sorted, and of contents, by their hash.
func newView(state record.Versioned[Record], list []*Published, contents map[string]*stored) *View {
	p := &View{State: state, messages: new(sync.Map)}
	edits, uses := make([]edit, len(list)), make(map[string]int)
	for i, h := range list {
		edits[i] = edit{h.HeaderPath, h}
		uses[h.Header.Content]++
		uses[h.Header.Base]++
		if h.Scope == snapshot.ScopeNodeRuntime {
			p.groups = counted(p.groups, h.Header.Group, 1)
		}
		if h.packed {
			p.packed++
		}
	}
	delete(uses, "")
	for hash, n := range uses {
		c := &stored{uses: n}
		if have := contents[hash]; have != nil {
			c.raw, c.parts = have.raw, have.parts
			p.name(c.parts, 1)
		}
		p.contents = p.contents.with(hash, c)
	}
	p.headers, _, _ = p.headers.with(edits)
	p.plant(new(Tree), state.Value.binsOf(p.headers.n))
	return p
}

// stock is what is stored of a publication, as it was read.
type stock struct {
	state    record.Versioned[Record]
	unsigned bool         // the state was altered
	headers  []*Published // those that are genuine, in the order of their keys
	contents map[string]*stored
	pieces   pieces
	bad      []authority.Suspect // what fails its MAC, or is not what its name says
	orphans  []string            // keys of what cannot be used
}

// Load reads the publication as it is stored. A value that fails its MAC, or a
// hash, is left out and reported: it is made again. It is a [store.ConflictError] on the
// head if that is because the head moved on.
func (c *Publication) Load(ctx context.Context, s *authority.State) (*View, error) {
	x, err := c.load(ctx, s)
	if err != nil {
		return nil, err
	}
	return x.view(), nil
}

// load is [Publication.Load], and returns all that it read.
func (c *Publication) load(ctx context.Context, s *authority.State) (*stock, error) {
	l, err := c.cfg.Store.List(ctx, Prefix)
	if err != nil {
		return nil, err
	}
	x := &stock{contents: make(map[string]*stored)}
	refuse := func(key string, err error) {
		x.bad = append(x.bad, authority.Suspect{What: key, Err: err})
	}
	var packed unpacker
	for _, e := range l.Entries {
		switch {
		case e.Key == StateKey:
			if x.state, err = record.Open[Record](s.Records, e); err != nil {
				refuse(e.Key, err)
				// It is written anew over this very version.
				x.state, x.unsigned = record.Versioned[Record]{Version: e.Version}, true
			}
		case strings.HasPrefix(e.Key, ContentPrefix):
			raw, err := s.Records.Open(e.Key, e.Value)
			if hash := e.Key[len(ContentPrefix):]; err == nil && snapshot.DigestOf(raw).String() == hash {
				x.contents[hash] = &stored{raw: raw}
				continue
			}
			if err == nil {
				err = fmt.Errorf("the content is not what its name says: %w", store.ErrForged)
			}
			refuse(e.Key, err)
			x.orphans = append(x.orphans, e.Key)
		case strings.HasPrefix(e.Key, IndexPrefix), strings.HasPrefix(e.Key, PartPrefix):
			raw, err := s.Records.Open(e.Key, e.Value)
			if err != nil {
				refuse(e.Key, err)
				x.orphans = append(x.orphans, e.Key)
				continue
			}
			x.pieces.add(e.Key, raw)
		case strings.HasPrefix(e.Key, HeaderPrefix), strings.HasPrefix(e.Key, PackedPrefix):
			h, err := openHeader(s, &packed, e)
			if err != nil {
				refuse(e.Key, err)
			}
			if h == nil {
				x.orphans = append(x.orphans, e.Key)
				continue
			}
			x.headers = append(x.headers, h)
		default:
			x.orphans = append(x.orphans, e.Key)
		}
	}
	x.bad = append(x.bad, x.pieces.join(x.contents)...)
	return x, c.cfg.Head.ForgedUnder(ctx, s, x.bad...)
}

// view returns the publication that x has.
func (x *stock) view() *View {
	headers, orphans, broken := slices.Clone(x.headers), slices.Clone(x.orphans), x.unsigned
	slices.SortFunc(headers, comparePublished)
	headers = slices.DeleteFunc(headers, func(h *Published) bool {
		lost := x.contents[h.Header.Content] == nil || h.Header.ConfigVersion < x.state.Value.Since
		if lost {
			orphans = append(orphans, h.key())
		}
		return lost
	})
	p := newView(x.state, headers, x.contents)
	if len(x.state.Value.Record)+p.Len() > 0 && snapshot.Digest(p.Tree.Root()).String() != x.state.Value.Root {
		// Which of them somebody set back or removed cannot be told: all are made again,
		// with new versions, so that members take them.
		broken = true
		for _, h := range headers {
			orphans = append(orphans, h.key())
		}
		p = newView(x.state, nil, nil)
	}
	for hash, c := range x.contents {
		if p.Content(hash) == nil {
			orphans = append(orphans, c.keys(hash)...)
		}
	}
	orphans = append(orphans, x.pieces.orphans(p)...)
	slices.Sort(orphans)
	p.Broken, p.altered, p.Orphans = broken, newAlteration(unused, x.bad), slices.Compact(orphans)
	if broken {
		all := x.bad
		if len(all) == 0 {
			all = []authority.Suspect{{What: StateKey, Err: errRoot}}
		}
		p.altered = newAlteration(untilMadeAgain, all)
	}
	return p
}

// openHeader reads a header in either form. It is nil with an error, and where another release laid it out.
func openHeader(s *authority.State, packed *unpacker, e store.Entry) (*Published, error) {
	if path, ok := strings.CutPrefix(e.Key, PackedPrefix); ok {
		raw, err := s.Records.Open(e.Key, e.Value)
		if err != nil {
			return nil, err
		}
		parsed, ok := parseHeaderPath(path)
		if !ok {
			return nil, nil
		}
		h, err := packed.unpack(raw)
		if err != nil {
			return nil, fmt.Errorf("record %s passes its MAC but does not decode: %w", e.Key, err)
		}
		return &Published{parsed, h, snapshot.LeafOf(s.Manifest.Cluster, h.Header), true}, nil
	}
	h, err := record.Open[HeaderRecord](s.Records, e)
	if err != nil {
		return nil, err
	}
	parsed, ok := parseHeaderPath(strings.TrimPrefix(e.Key, HeaderPrefix))
	if !ok {
		return nil, nil
	}
	return &Published{parsed, h.Value, snapshot.LeafOf(s.Manifest.Cluster, h.Value.Header), false}, nil
}

// keys returns where a content is stored.
func (c *stored) keys(hash string) []string {
	if c.parts == nil {
		return []string{ContentKey(hash)}
	}
	keys := []string{indexKey(hash)}
	for _, part := range c.parts {
		keys = append(keys, partKey(part))
	}
	return keys
}

// pieces are the indexes and parts of long contents, as they are read, by their hash.
type pieces struct {
	indexes, parts map[string][]byte
}

// add takes what is stored at a key.
func (x *pieces) add(key string, raw []byte) {
	if x.indexes == nil {
		x.indexes, x.parts = make(map[string][]byte), make(map[string][]byte)
	}
	if hash, ok := strings.CutPrefix(key, IndexPrefix); ok {
		x.indexes[hash] = raw
		return
	}
	x.parts[strings.TrimPrefix(key, PartPrefix)] = raw
}

var errNoPart = errors.New("it is missing")

// join adds those that are stored in parts to contents. One that lacks a part is none. Others
// that are not what their index says are reported.
func (x *pieces) join(contents map[string]*stored) (bad []authority.Suspect) {
	for name, index := range x.indexes {
		hash, err := parseHash(name)
		var named []chunk.Hash
		if err == nil {
			_, named, err = chunk.Named(index)
		}
		var content []byte
		if err == nil {
			content, err = chunk.Join(hash, index, internalsnapshot.MaxContent, x.part)
		}
		switch {
		case errors.Is(err, errNoPart):
			continue
		case err != nil:
			bad = append(bad, authority.Suspect{What: indexKey(name), Err: fmt.Errorf("%w: %w", err, store.ErrForged)})
			continue
		case contents[name] != nil:
			continue // it is there as a whole, too
		}
		c := &stored{raw: content}
		for _, part := range named {
			c.parts = append(c.parts, chunkName(part))
		}
		contents[name] = c
	}
	return bad
}

func (x *pieces) part(hash chunk.Hash) ([]byte, error) {
	if part, ok := x.parts[chunkName(hash)]; ok {
		return part, nil
	}
	return nil, errNoPart
}

// orphans returns the keys of all that p does not use.
func (x *pieces) orphans(p *View) (keys []string) {
	for hash := range x.indexes {
		if key := indexKey(hash); !p.uses(key) {
			keys = append(keys, key)
		}
	}
	for hash := range x.parts {
		if key := partKey(hash); !p.uses(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// chunkName is how keys and lists have the hash of a part.
func chunkName(hash chunk.Hash) string { return hex.EncodeToString(hash[:]) }

func parseHash(name string) (chunk.Hash, error) {
	raw, err := hex.DecodeString(name)
	if err != nil || len(raw) != sha256.Size || hex.EncodeToString(raw) != name {
		return chunk.Hash{}, chunk.ErrNoIndex
	}
	return chunk.Hash(raw), nil
}

// read reports whether all coordinators that are heard read a form.
func (c *Publication) read(all []peer.Record, form string) bool {
	for _, r := range all {
		if r.Key == c.cfg.Self.EnrolmentKey() || r.Stopped || c.cfg.Now().Sub(r.At).Abs() >= peer.SilentAfter {
			continue
		}
		if !slices.Contains(r.Reads, form) {
			return false
		}
	}
	return true
}

// storesAs reports whether p and another publication of the same headers store the same contents, and each header and
// content in the same way.
func (p *View) storesAs(other *View) bool {
	if p.contents.len() != other.contents.len() || p.divided != other.divided || p.packed != other.packed {
		return false
	}
	for i, h := range p.Headers() {
		if other.Header(i).packed != h.packed {
			return false
		}
	}
	for hash, c := range p.contents.all() {
		if o, ok := other.contents.get(hash); !ok || (c.raw == nil) != (o.raw == nil) || !slices.Equal(c.parts, o.parts) {
			return false
		}
	}
	return true
}

// piece is a record of a content.
type piece struct {
	key string
	raw []byte
}

// piecesOf returns the records of a content of p.
func (p *View) piecesOf(hash string) []piece {
	c, _ := p.contents.get(hash)
	if c.parts == nil {
		return []piece{{ContentKey(hash), c.raw}}
	}
	index, list := chunk.Split(c.raw)
	out := []piece{{indexKey(hash), index}}
	for i, part := range list {
		out = append(out, piece{partKey(c.parts[i]), part})
	}
	return out
}
