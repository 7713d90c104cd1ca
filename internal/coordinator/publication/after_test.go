package publication

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// What is left over of a header in the other form goes, as after an earlier release led, and no header with it.
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
