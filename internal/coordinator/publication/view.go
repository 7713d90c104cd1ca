package publication

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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

// View is one version of what is served. It is immutable.
type View struct {
	State   record.Versioned[Record]
	Headers []Published // sorted; the leaves of the tree, in this order
	Tree    *snapshot.Tree
	// Contents are those that headers name, by their hash; a base that was lost is
	// missing.
	Contents map[string][]byte
	// divided are the hashes of the parts of those contents that are stored in parts.
	divided map[string][]string
	// Groups says how many node_runtimes there are of each group.
	Groups map[string]int
	// messages are those that the members of a group share; see [SharedBy].
	messages *sync.Map
	// Broken: the headers are not those of the record. Somebody else wrote them.
	Broken bool
	// Orphans are keys that no header uses.
	Orphans []string
}

// Find returns the index of a header.
func (p *View) Find(path HeaderPath) (int, bool) {
	return slices.BinarySearchFunc(p.Headers, path,
		func(h Published, path HeaderPath) int { return compareHeaders(h.HeaderPath, path) })
}

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
	group := p.Headers[out[0]].Header.Group
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

// Signed returns the envelope of header i.
func (p *View) Signed(i int) (*snapshot.Signed, error) {
	proof, err := p.Tree.Proof(i)
	if err != nil {
		return nil, err
	}
	h := p.Headers[i].Header
	return &snapshot.Signed{
		Header: h.Header, Content: p.Contents[h.Content],
		Publication: &snapshot.Publication{Record: p.State.Value.Record,
			Signatures: p.State.Value.Signatures}, Proof: proof,
	}, nil
}

// uses reports whether a header or a content of p is stored at key.
func (p *View) uses(key string) bool {
	if path, ok := strings.CutPrefix(key, HeaderPrefix); ok {
		parsed, ok := parseHeaderPath(path)
		if ok {
			_, ok = p.Find(parsed)
		}
		return ok
	}
	if hash, ok := strings.CutPrefix(key, PartPrefix); ok {
		for _, list := range p.divided {
			if slices.Contains(list, hash) {
				return true
			}
		}
		return false
	}
	if hash, ok := strings.CutPrefix(key, IndexPrefix); ok {
		return p.divided[hash] != nil
	}
	hash, ok := strings.CutPrefix(key, ContentPrefix)
	return ok && p.Contents[hash] != nil && p.divided[hash] == nil
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
	return &fealtyv1.SignedSnapshot{Scope: string(p.Headers[i].Scope), Envelope: raw}, nil
}

// ContentFor returns the content with the hash if a header of the member names it,
// else nil. Not being published and being somebody else's are the same.
func (p *View) ContentFor(id identity.ID, hash snapshot.Digest) []byte {
	if !p.Serves() {
		return nil
	}
	name := hash.String()
	for _, i := range p.Of(id.Kind(), id.Name()) {
		if p.Headers[i].Header.Content == name {
			return p.Contents[name]
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

// with returns p after a commit that put some headers and dropped others.
func (p *View) with(put []Published, drop map[HeaderPath]bool, contents map[string][]byte) *View {
	next := &View{Headers: make([]Published, 0, len(p.Headers)+len(put)),
		Contents: make(map[string][]byte, len(p.Contents)+len(contents))}
	put = slices.Clone(put)
	record.Sort(put, func(a, b *Published) int { return compareHeaders(a.HeaderPath, b.HeaderPath) })
	// Both are sorted, and a header that is put takes the place of the one of before.
	rest := p.Headers
	for i := range put {
		n, replaced := slices.BinarySearchFunc(rest, put[i].HeaderPath,
			func(h Published, path HeaderPath) int { return compareHeaders(h.HeaderPath, path) })
		next.keep(rest[:n], drop)
		next.Headers = append(next.Headers, put[i])
		if replaced {
			n++
		}
		rest = rest[n:]
	}
	next.keep(rest, drop)
	for _, h := range next.Headers {
		for _, hash := range []string{h.Header.Content, h.Header.Base} {
			if raw, ok := contents[hash]; ok {
				next.Contents[hash] = raw
			} else if raw, ok := p.Contents[hash]; ok {
				next.Contents[hash] = raw
			}
		}
	}
	next.settle()
	return next
}

// keep appends the headers that are not dropped.
func (p *View) keep(headers []Published, drop map[HeaderPath]bool) {
	if len(drop) == 0 {
		p.Headers = append(p.Headers, headers...)
		return
	}
	for i := range headers {
		if !drop[headers[i].HeaderPath] {
			p.Headers = append(p.Headers, headers[i])
		}
	}
}

// settle makes what follows from the headers.
func (p *View) settle() {
	leaves := make([]snapshot.Digest, len(p.Headers))
	p.Groups, p.messages = make(map[string]int), new(sync.Map)
	for i, h := range p.Headers {
		leaves[i] = h.Leaf
		if h.Scope == snapshot.ScopeNodeRuntime {
			p.Groups[h.Header.Group]++
		}
	}
	p.Tree = snapshot.NewTree(leaves)
}

// Load reads the publication as it is stored. A value that fails its MAC, or a
// hash, is left out and reported: it is made again. It is a [store.ConflictError] on the
// head if that is because the head moved on.
func (c *Publication) Load(ctx context.Context, s *authority.State) (*View, error) {
	l, err := c.cfg.Store.List(ctx, Prefix)
	if err != nil {
		return nil, err
	}
	p := &View{Contents: make(map[string][]byte), divided: make(map[string][]string)}
	var headers []Published
	var bad []authority.Suspect
	var pieces pieces
	for _, e := range l.Entries {
		switch {
		case e.Key == StateKey:
			if p.State, err = record.Open[Record](s.Records, e); err != nil {
				bad = append(bad, authority.Suspect{What: e.Key, Err: err})
				// It is written anew over this very version.
				p.State, p.Broken = record.Versioned[Record]{Version: e.Version}, true
			}
		case strings.HasPrefix(e.Key, ContentPrefix):
			raw, err := s.Records.Open(e.Key, e.Value)
			if hash := e.Key[len(ContentPrefix):]; err == nil && snapshot.DigestOf(raw).String() == hash {
				p.Contents[hash] = raw
				continue
			}
			if err == nil {
				err = fmt.Errorf("the content is not what its name says: %w", store.ErrForged)
			}
			bad = append(bad, authority.Suspect{What: e.Key, Err: err})
			p.Orphans = append(p.Orphans, e.Key)
		case strings.HasPrefix(e.Key, IndexPrefix), strings.HasPrefix(e.Key, PartPrefix):
			raw, err := s.Records.Open(e.Key, e.Value)
			if err != nil {
				bad = append(bad, authority.Suspect{What: e.Key, Err: err})
				p.Orphans = append(p.Orphans, e.Key)
				continue
			}
			pieces.add(e.Key, raw)
		case strings.HasPrefix(e.Key, HeaderPrefix):
			h, err := record.Open[HeaderRecord](s.Records, e)
			if err != nil {
				bad = append(bad, authority.Suspect{What: e.Key, Err: err})
				p.Orphans = append(p.Orphans, e.Key)
				continue
			}
			path, ok := parseHeaderPath(e.Key[len(HeaderPrefix):])
			if !ok { // as another release laid them out
				p.Orphans = append(p.Orphans, e.Key)
				continue
			}
			headers = append(headers, Published{path, h.Value,
				snapshot.LeafOf(s.Manifest.Cluster, h.Value.Header)})
		default:
			p.Orphans = append(p.Orphans, e.Key)
		}
	}
	bad = append(bad, pieces.join(p)...)
	if err := c.cfg.Head.ForgedUnder(ctx, s, bad...); err != nil {
		return nil, err
	}
	record.Sort(headers, func(a, b *Published) int { return compareHeaders(a.HeaderPath, b.HeaderPath) })
	used := make(map[string]bool)
	for _, h := range headers {
		if p.Contents[h.Header.Content] == nil || h.Header.ConfigVersion < p.State.Value.Since {
			p.Orphans = append(p.Orphans, HeaderKey(h.HeaderPath))
			continue
		}
		used[h.Header.Content], used[h.Header.Base] = true, true
		p.Headers = append(p.Headers, h)
	}
	for hash := range p.Contents {
		if !used[hash] {
			p.leave(hash)
		}
	}
	pieces.orphans(p)
	p.settle()
	if len(p.State.Value.Record)+len(p.Headers) > 0 && p.Tree.Root().String() != p.State.Value.Root {
		// Which of them somebody set back or removed cannot be told: all are made again,
		// with new versions, so that members take them.
		p.Broken = true
		for _, h := range p.Headers {
			p.Orphans = append(p.Orphans, HeaderKey(h.HeaderPath))
		}
		p.Headers = nil
		p.settle()
		for hash := range p.Contents {
			p.leave(hash)
		}
		pieces.orphans(p)
	}
	slices.Sort(p.Orphans)
	p.Orphans = slices.Compact(p.Orphans)
	return p, nil
}

// leave makes orphans of a content that no header names.
func (p *View) leave(hash string) {
	p.Orphans = append(p.Orphans, p.keysOf(hash)...)
	delete(p.Contents, hash)
	delete(p.divided, hash)
}

// keysOf returns where a content of p is stored.
func (p *View) keysOf(hash string) []string {
	if p.divided[hash] == nil {
		return []string{ContentKey(hash)}
	}
	keys := []string{indexKey(hash)}
	for _, part := range p.divided[hash] {
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

// join adds the contents that are stored in parts to those of p. One that lacks a part is none. Others
// that are not what their index says are reported.
func (x *pieces) join(p *View) (bad []authority.Suspect) {
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
		case p.Contents[name] != nil:
			continue // it is there as a whole, too
		}
		p.Contents[name] = content
		for _, part := range named {
			p.divided[name] = append(p.divided[name], hex.EncodeToString(part[:]))
		}
	}
	return bad
}

func (x *pieces) part(hash chunk.Hash) ([]byte, error) {
	if part, ok := x.parts[hex.EncodeToString(hash[:])]; ok {
		return part, nil
	}
	return nil, errNoPart
}

// orphans adds the keys of all that p does not use to its orphans.
func (x *pieces) orphans(p *View) {
	for hash := range x.indexes {
		if key := indexKey(hash); !p.uses(key) {
			p.Orphans = append(p.Orphans, key)
		}
	}
	for hash := range x.parts {
		if key := partKey(hash); !p.uses(key) {
			p.Orphans = append(p.Orphans, key)
		}
	}
}

func parseHash(name string) (chunk.Hash, error) {
	raw, err := hex.DecodeString(name)
	if err != nil || len(raw) != sha256.Size || hex.EncodeToString(raw) != name {
		return chunk.Hash{}, chunk.ErrNoIndex
	}
	return chunk.Hash(raw), nil
}

// readParts reports whether all coordinators that are heard read contents in parts.
func (c *Publication) readParts(all []peer.Record) bool {
	for _, r := range all {
		if r.Key == c.cfg.Self.EnrolmentKey() || r.Stopped || c.cfg.Now().Sub(r.At).Abs() >= peer.SilentAfter {
			continue
		}
		if !slices.Contains(r.Reads, ReadsParts) {
			return false
		}
	}
	return true
}

// divide decides which contents of p are stored in parts. One that before has is left as it is stored,
// unless somebody cannot read that.
func (p *View) divide(before *View, allReadParts bool) {
	p.divided = make(map[string][]string)
	if !allReadParts {
		return
	}
	for hash, raw := range p.Contents {
		if before.Contents[hash] != nil {
			if list := before.divided[hash]; list != nil {
				p.divided[hash] = list
			}
			continue
		}
		_, list := chunk.Split(raw)
		for _, part := range list {
			sum := sha256.Sum256(part)
			p.divided[hash] = append(p.divided[hash], hex.EncodeToString(sum[:]))
		}
	}
}

// storesAs reports whether a content of p is stored as it was before.
func (p *View) storesAs(before *View, hash string) bool {
	return p.Contents[hash] != nil && before.Contents[hash] != nil &&
		(p.divided[hash] != nil) == (before.divided[hash] != nil)
}

// piece is a record of a content.
type piece struct {
	key string
	raw []byte
}

// piecesOf returns the records of a content of p.
func (p *View) piecesOf(hash string) []piece {
	raw := p.Contents[hash]
	if p.divided[hash] == nil {
		return []piece{{ContentKey(hash), raw}}
	}
	index, list := chunk.Split(raw)
	out := []piece{{indexKey(hash), index}}
	for i, part := range list {
		out = append(out, piece{partKey(p.divided[hash][i]), part})
	}
	return out
}
