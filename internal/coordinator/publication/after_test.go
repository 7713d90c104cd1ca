package publication

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// What is left over of a header in the other form goes, as after an earlier release led, and no header with it. Nothing goes back.
func TestAfterALeftOver(t *testing.T) {
	t.Parallel()
	auth, err := store.NewAuthenticator(make([]byte, sha256.Size))
	if err != nil {
		t.Fatal(err)
	}
	s := &authority.State{Manifest: &manifest.Manifest{Cluster: "prod.example"}, Records: record.Records{Auth: auth}}
	content, path := []byte("content"), RuntimePath("data/a")
	for name, packed := range map[string]bool{HeaderKey(path): true, PackedKey(path): false} {
		h := &Published{HeaderPath: path, Header: HeaderRecord{Content: hashOf(content)}, Leaf: snapshot.Digest{1}, packed: packed}
		p := newView(record.Versioned[Record]{Version: 1}, []*Published{h}, map[string]*stored{hashOf(content): {raw: content}})
		state := Record{Change: 1, Record: []byte("{}"), Root: snapshot.Digest(p.Tree.Root()).String()}
		raw, err := json.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		written := map[string]store.Entry{
			StateKey: {Key: StateKey, Value: auth.Seal(StateKey, raw), Version: 2}, name: {Key: name},
		}
		if next := p.after(s, written); next == nil || next.Len() != 1 || next.Header(0) != h {
			t.Errorf("%s goes, and all is read", name)
		}
		of := p.State.Value.Generation
		p.State.Value.Generation = 2 // as before changes were numbered anew
		if p.after(s, written) != nil {
			t.Error("it goes back to an earlier generation")
		}
		p.State.Value.Generation = of
		written[h.key()] = store.Entry{Key: h.key()}
		if p.after(s, written) != nil {
			t.Errorf("%s goes, and is still served", h.key())
		}
	}
}

// Contents that another release divided elsewhere are no parts of others here, and end no process.
func TestPartsOfAnotherRelease(t *testing.T) {
	t.Parallel()
	raw := []byte("0123456789")
	parts := []string{hashOf(raw[:5]), hashOf(raw[5:])}
	h := &Published{HeaderPath: RuntimePath("data/a"), Header: HeaderRecord{Content: hashOf(raw)}}
	p := newView(record.Versioned[Record]{}, []*Published{h}, map[string]*stored{hashOf(raw): {raw: raw, parts: parts}})
	part := sha256.Sum256(raw[5:])
	var x pieces
	x.add(indexKey(hashOf(raw[5:])), fmt.Appendf(nil, "fealty-parts/1 5\n%s", part[:]))
	x.addFrom(p)
	contents := make(map[string]*stored)
	if bad := x.join(contents); len(bad)+len(contents) > 0 {
		t.Errorf("%d contents are made of it, and %d are altered", len(contents), len(bad))
	}
}

// Publications of the same headers are stored in the same way if each header is.
func TestStoredInTheSameForms(t *testing.T) {
	t.Parallel()
	of := func(packed ...bool) *View {
		var list []*Published
		for i, packed := range packed {
			list = append(list, &Published{HeaderPath: RuntimePath(fmt.Sprintf("data/%d", i)), packed: packed})
		}
		return newView(record.Versioned[Record]{}, list, nil)
	}
	if !of(true, false).storesAs(of(true, false)) || of(true, false).storesAs(of(false, true)) || of(true).storesAs(of(false)) {
		t.Error("the forms of headers are not compared")
	}
}

// What is signed is made of memory, store and log, whatever of it somebody altered, and of nothing that is not among it.
func TestRestored(t *testing.T) {
	t.Parallel()
	auth, err := store.NewAuthenticator(make([]byte, sha256.Size))
	if err != nil {
		t.Fatal(err)
	}
	s := &authority.State{Manifest: &manifest.Manifest{Cluster: "prod.example"}, Records: record.Records{Auth: auth}}
	content := []byte("content")
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	header := func(name string, version uint64, issued int) *Published {
		h := HeaderRecord{Header: fmt.Appendf(nil, "%s %d %d", name, version, issued), Content: hashOf(content), ConfigVersion: version,
			IssuedAt: at.Add(time.Duration(issued) * time.Second)}
		return &Published{RuntimePath("data/" + name), h, snapshot.LeafOf("prod.example", h.Header), true}
	}
	entry := func(key string, raw []byte) store.Entry {
		return store.Entry{Key: key, Value: auth.Seal(key, raw), Version: 9}
	}
	put := func(h *Published) store.Entry {
		raw, err := new(packer).pack(h.Header)
		if err != nil {
			t.Fatal(err)
		}
		return entry(h.key(), raw)
	}
	generation := func(ch store.Change) store.Change { // of a leader
		ch.Put = append(ch.Put, entry(StateKey, []byte("{}")))
		return ch
	}
	of := func(list ...*Published) []*Published { return list }
	a1, b1, c1, a2, c2, d2 := header("a", 1, 0), header("b", 1, 0), header("c", 1, 0), header("a", 2, 0), header("c", 2, 0), header("d", 2, 0)
	renewed := header("b", 1, 5)
	for name, tt := range map[string]struct {
		have, stored []*Published
		refused      []string
		log          []store.Change
		since        uint64
		signed       []*Published
		fails        bool
	}{
		"one is gone":                    {have: of(a1, b1), stored: of(a2), signed: of(a2, b1)},
		"one is refused":                 {have: of(a1, b1), stored: of(a2), refused: []string{b1.key()}, signed: of(a2, b1)},
		"one is older":                   {have: of(a1, renewed), stored: of(a2, b1), signed: of(a2, renewed)},
		"one was renewed":                {have: of(a1, b1), stored: of(renewed), signed: of(a1, renewed)},
		"one was dropped":                {have: of(a1, b1, c1), stored: of(a2), refused: []string{c1.key()}, signed: of(a2, c1)},
		"one came":                       {have: of(a1, b1), stored: of(a1, d2), signed: of(a1, b1, d2)},
		"one is put back":                {have: of(a1), stored: of(a1, b1), signed: of(a1)},
		"one is put back that a log has": {have: of(a1), stored: of(a2), log: []store.Change{{Put: []store.Entry{put(b1)}}}, signed: of(a2)},
		"one is the log's":               {have: of(a1, b1), stored: of(b1), log: []store.Change{generation(store.Change{Put: []store.Entry{put(a2)}})}, signed: of(a2, b1)},
		"one is altered in the log": {have: of(a1, b1), stored: of(a2), log: []store.Change{{Put: []store.Entry{{Key: b1.key(), Value: []byte("x")}}}},
			signed: of(a2, b1)},
		"one is gone, and one was dropped": {have: of(a1, b1, c1), stored: of(a2),
			log: []store.Change{generation(store.Change{Delete: []string{b1.key()}}), {Delete: []string{c1.key()}}}, signed: of(a2, c1)},
		"one is gone, and one was dropped and put back": {have: of(a1, b1, c1), stored: of(a2, b1),
			log: []store.Change{generation(store.Change{Delete: []string{b1.key()}})}, signed: of(a2, c1)},
		"one is gone, one was dropped, and one came again": {have: of(a1, b1, c1), stored: of(),
			log: []store.Change{generation(store.Change{Delete: []string{b1.key(), c1.key()}}),
				generation(store.Change{Put: []store.Entry{put(c2)}})}, signed: of(a1, c2)},
		"one is gone, one was dropped, and the other form of one goes": {have: of(a1, b1, c1), stored: of(a2),
			log:    []store.Change{generation(store.Change{Delete: []string{b1.key(), HeaderKey(c1.HeaderPath)}})},
			signed: of(a2, c1)},
		"one is gone, and the log says that a leader dropped it": {have: of(a1, b1), stored: of(a2),
			log: []store.Change{generation(store.Change{Delete: []string{b1.key()}})}, signed: of(a2, b1)},
		"all is made anew":                    {have: of(a1, b1), stored: of(b1), since: 2, log: []store.Change{{Put: []store.Entry{put(a2)}}}, signed: of(a2)},
		"one is gone for good":                {have: of(a1), stored: of(a1), signed: of(a1, d2), fails: true},
		"it cannot be told which was dropped": {have: of(a1, b1, c1), stored: of(a1), signed: of(a1, c1), fails: true},
	} {
		contents := map[string]*stored{hashOf(content): {raw: content}}
		bins := len(name) % 2 // a tree with bins, and one without; and the one before is another one
		have := newView(record.Versioned[Record]{Version: 1, Value: Record{Generation: 1, Bins: 1 - bins}}, tt.have, contents)
		want := newView(record.Versioned[Record]{Value: Record{Bins: bins}}, tt.signed, contents)
		x := &stock{headers: tt.stored, contents: make(map[string]*stored), state: record.Versioned[Record]{Version: 9, Value: Record{
			Generation: 2, Since: tt.since, Root: snapshot.Digest(want.Tree.Root()).String(), Record: []byte("{}"), Bins: bins}}}
		for _, key := range tt.refused {
			x.bad = append(x.bad, authority.Suspect{What: key, Err: store.ErrForged})
		}
		got := x.restored(s, have, tt.log)
		if tt.fails {
			if got != nil {
				t.Errorf("%s: something is made of it", name)
			}
			continue
		}
		if got == nil || got.Tree.Root() != want.Tree.Root() || got.Len() != want.Len() || got.State.Version != 9 ||
			string(got.Content(hashOf(content))) != string(content) {
			t.Errorf("%s: it is not made", name)
			continue
		}
		others := x.otherwise(got)
		for _, h := range tt.stored {
			i, signed := want.Find(h.HeaderPath)
			is := signed && want.Header(i).Leaf == h.Leaf || h.Header.ConfigVersion < tt.since
			if named := slices.ContainsFunc(others, func(o authority.Suspect) bool { return o.What == h.key() }); named == is {
				t.Errorf("%s: that %s is otherwise is %v", name, h.key(), named)
			}
		}
	}
}
