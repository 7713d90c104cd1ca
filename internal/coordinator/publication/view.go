package publication

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/compiler"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/snapshotauthor"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// View is one version of what is served. It is immutable.
type View struct {
	State   record.Versioned[Record]
	Headers []Published // sorted; the leaves of the tree, in this order
	Tree    snapshotauthor.Tree
	// Contents are those that headers name, by their hash; a base that was lost is
	// missing.
	Contents map[string][]byte
	// Groups says how many node_runtimes there are of each group.
	Groups map[string]int
	// messages are those that the members of a group share; see [SharedBy].
	messages *sync.Map
	// Broken: the headers are not those of the record. Somebody else wrote them.
	Broken bool
	// Strays are keys that no header uses.
	Strays []string
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
	for _, scope := range compiler.GroupScopes() {
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
	hash, ok := strings.CutPrefix(key, ContentPrefix)
	return ok && p.Contents[hash] != nil
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
	next := &View{Headers: make([]Published, 0, len(p.Headers)+len(put)), Contents: make(map[string][]byte)}
	changed := make(map[HeaderPath]bool, len(put))
	for _, h := range put {
		changed[h.HeaderPath] = true
	}
	for _, h := range p.Headers {
		if !changed[h.HeaderPath] && !drop[h.HeaderPath] {
			next.Headers = append(next.Headers, h)
		}
	}
	next.Headers = append(next.Headers, put...)
	record.Sort(next.Headers, func(a, b *Published) int { return compareHeaders(a.HeaderPath, b.HeaderPath) })
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
	p.Tree = snapshotauthor.NewTree(leaves)
}

// Load reads the publication as it is stored. A value that fails its MAC, or a
// hash, is left out and reported: it is made again. It is a [store.ConflictError] on the
// head if that is because the head moved on.
func (c *Publication) Load(ctx context.Context, s *authority.State) (*View, error) {
	l, err := c.cfg.Store.List(ctx, Prefix)
	if err != nil {
		return nil, err
	}
	p := &View{Contents: make(map[string][]byte)}
	var headers []Published
	var bad []authority.Suspect
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
			p.Strays = append(p.Strays, e.Key)
		case strings.HasPrefix(e.Key, HeaderPrefix):
			h, err := record.Open[HeaderRecord](s.Records, e)
			if err != nil {
				bad = append(bad, authority.Suspect{What: e.Key, Err: err})
				p.Strays = append(p.Strays, e.Key)
				continue
			}
			path, ok := parseHeaderPath(e.Key[len(HeaderPrefix):])
			if !ok { // as another release laid them out
				p.Strays = append(p.Strays, e.Key)
				continue
			}
			headers = append(headers, Published{path, h.Value,
				snapshotauthor.LeafOf(s.Manifest.Cluster, h.Value.Header)})
		default:
			p.Strays = append(p.Strays, e.Key)
		}
	}
	if err := c.cfg.Head.ForgedUnder(ctx, s, bad...); err != nil {
		return nil, err
	}
	record.Sort(headers, func(a, b *Published) int { return compareHeaders(a.HeaderPath, b.HeaderPath) })
	used := make(map[string]bool)
	for _, h := range headers {
		if p.Contents[h.Header.Content] == nil || h.Header.ConfigVersion < p.State.Value.Since {
			p.Strays = append(p.Strays, HeaderKey(h.HeaderPath))
			continue
		}
		used[h.Header.Content], used[h.Header.Base] = true, true
		p.Headers = append(p.Headers, h)
	}
	for hash := range p.Contents {
		if !used[hash] {
			p.Strays = append(p.Strays, ContentKey(hash))
			delete(p.Contents, hash)
		}
	}
	slices.Sort(p.Strays)
	p.settle()
	if len(p.State.Value.Record)+len(p.Headers) > 0 && p.Tree.Root().String() != p.State.Value.Root {
		// Which of them somebody set back or removed cannot be told: all are made again,
		// with new versions, so that members take them.
		p.Broken = true
		for _, h := range p.Headers {
			p.Strays = append(p.Strays, HeaderKey(h.HeaderPath))
		}
		p.Headers = nil
		p.settle()
		for hash := range p.Contents {
			p.Strays = append(p.Strays, ContentKey(hash))
		}
		clear(p.Contents)
		slices.Sort(p.Strays)
	}
	return p, nil
}
