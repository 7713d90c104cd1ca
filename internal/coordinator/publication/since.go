package publication

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/chunk"
	"github.com/fealty-io/fealty/snapshot"
)

// A coordinator that does not lead, and holds a publication, reads what was written since, and not all that there
// is. The root of the record in force says whether it made the right thing of that. Whenever anything is not as
// expected it reads all, which says what is wrong.

const (
	// sinceBytes bounds what is read in place of everything.
	sinceBytes = 32 << 20
	// sinceWait bounds how long the changes of the store may lag behind its entries.
	sinceWait = 5 * time.Second
	// wholeEvery is when all is read once more, to find what was altered and not written.
	wholeEvery = time.Hour
)

// since returns the publication whose state has a version, as what was written since makes it of have; nil if all has
// to be read.
func (c *Publication) since(ctx context.Context, s *authority.State, have *View, version store.Revision) *View {
	if have == nil || have.Broken || have.altered != nil || !have.State.Exists() ||
		c.cfg.Now().Sub(c.readWhole).Abs() >= wholeEvery {
		return nil
	}
	log, ok := c.log(ctx, have.State.Version, version)
	if !ok {
		return nil
	}
	written := make(map[string]store.Entry)
	for _, ch := range log {
		for _, key := range ch.Delete {
			written[key] = store.Entry{Key: key}
		}
		for _, e := range ch.Put {
			written[e.Key] = e
		}
	}
	return have.after(s, written)
}

// log returns what the store's log says of the commits after one that wrote the state, up to another that did; false if it
// does not say all of it.
func (c *Publication) log(ctx context.Context, after, until store.Revision) (all []store.Change, ok bool) {
	if until <= after || c.cfg.Now().Sub(c.silentLog).Abs() < wholeEvery {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, sinceWait)
	defer cancel()
	bytes := 0
	for ch, err := range c.cfg.Store.Changes(ctx, Prefix, after) {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.silentLog = c.cfg.Now() // to wait each time would hold up each generation
		}
		if err != nil || ch.Revision > until {
			return nil, false
		}
		for _, key := range ch.Delete {
			bytes += len(key)
		}
		for _, e := range ch.Put {
			bytes += len(e.Key) + len(e.Value)
		}
		if bytes > sinceBytes {
			return nil, false
		}
		if all = append(all, ch); ch.Revision == until {
			return all, true
		}
	}
	return nil, false
}

// after returns p after commits that wrote these entries; those of version 0 they deleted. It is nil if not all of
// them is as the leader writes it. What is left over is not in it: who begins to lead reads all.
func (p *View) after(s *authority.State, written map[string]store.Entry) *View {
	state, err := record.Open[Record](s.Records, written[StateKey])
	if err != nil || state.Value.Since != p.State.Value.Since || state.Value.Change <= p.State.Value.Change ||
		state.Value.before(p.State.Value) {
		return nil
	}
	var put []*Published
	drop, contents := make(map[HeaderPath]bool), make(map[string]*stored)
	var pieces pieces
	var packed unpacker
	for key, e := range written {
		path, header := strings.CutPrefix(key, HeaderPrefix)
		if !header {
			path, header = strings.CutPrefix(key, PackedPrefix)
		}
		hash, content := strings.CutPrefix(key, ContentPrefix)
		switch {
		case key == StateKey:
		case header && e.Version == 0: // unless it is put in the other form
			parsed, ok := parseHeaderPath(path)
			if !ok {
				return nil
			}
			if p.uses(key) { // else it is left over of the other form, and says nothing of what is there in this one
				drop[parsed] = true
			}
		case header:
			h, err := openHeader(s, &packed, e)
			if err != nil || h == nil || h.Header.ConfigVersion < state.Value.Since {
				return nil
			}
			put = append(put, h)
		case e.Version == 0: // whether it is used is asked below
		case content:
			raw, err := s.Records.Open(key, e.Value)
			if err != nil || snapshot.DigestOf(raw).String() != hash {
				return nil
			}
			contents[hash] = &stored{raw: raw}
		case strings.HasPrefix(key, IndexPrefix), strings.HasPrefix(key, PartPrefix):
			raw, err := s.Records.Open(key, e.Value)
			if err != nil {
				return nil
			}
			pieces.add(key, raw)
		default:
			return nil
		}
	}
	pieces.addFrom(p)
	if len(pieces.join(contents)) > 0 {
		return nil
	}
	for hash, c := range contents {
		// One that is stored in another way than before is rare.
		if had, ok := p.contents.get(hash); ok && had.raw != nil && !slices.Equal(had.parts, c.parts) {
			return nil
		}
	}
	next, _ := p.step(put, drop, state.Value.binsOf, func(hash string) *stored { return contents[hash] })
	next.State = state
	if len(state.Value.Record)+next.Len() > 0 && snapshot.Digest(next.Tree.Root()).String() != state.Value.Root {
		return nil
	}
	for _, h := range put {
		if next.Content(h.Header.Content) == nil {
			return nil
		}
	}
	for key, e := range written {
		if e.Version == 0 && next.uses(key) {
			return nil
		}
	}
	return next
}

// addFrom takes the parts that the indexes name and p has: they were not written again.
func (x *pieces) addFrom(p *View) {
	lacks := make(map[string]bool)
	for _, index := range x.indexes {
		_, named, _ := chunk.Named(index) // an error comes up again where they are joined
		for _, part := range named {
			if name := chunkName(part); x.parts[name] == nil {
				_, has := p.parts.get(name)
				lacks[name] = has
			}
		}
	}
	if len(lacks) == 0 {
		return
	}
	for _, c := range p.contents.all() {
		if !slices.ContainsFunc(c.parts, func(part string) bool { return lacks[part] }) {
			continue
		}
		_, divided := chunk.Split(c.raw)
		for i, part := range c.parts {
			if lacks[part] && i < len(divided) { // another release may divide elsewhere: then all is read
				x.parts[part] = divided[i]
				delete(lacks, part)
			}
		}
	}
}
