package delivery // inside: tables of what is decided for one header

import (
	"fmt"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/snapshot"
)

// In which form a header goes depends on what the member has, and on nothing else.
func TestFormOfDelivery(t *testing.T) {
	at := time.Date(2026, 11, 21, 7, 0, 0, 0, time.UTC)
	record := &publication.Record{Generation: 20, AuthorityEpoch: 2, IssuedAt: at}
	is := &publication.Published{Leaf: snapshot.Digest{2},
		Header: publication.HeaderRecord{Content: "new", AuthorityEpoch: 2, ConfigVersion: 12}}
	said := func(content string, epoch, version, generation uint64) *holding {
		return &holding{content: content, epoch: epoch, version: version, generation: generation}
	}
	sent := func(content string, leaf byte, ago time.Duration) *holding {
		return &holding{content: content, epoch: 2, version: 12, generation: 19, leaf: snapshot.Digest{leaf},
			issued: at.Add(-ago)}
	}
	for _, c := range []struct {
		name string
		has  *holding
		size int
		want sentForm
	}{
		{"nothing, small", nil, inlineBytes, sentWhole},
		{"nothing, large", nil, inlineBytes + 1, sentDetached},
		{"as it is", said("new", 2, 12, 20), 1, sentNothing},
		{"under an older record", said("new", 2, 12, 19), 1, sentRecord},
		{"of another version", said("new", 2, 11, 20), 1, sentRecord},
		{"of another epoch", said("new", 1, 12, 20), 1, sentRecord},
		{"other content of that version", said("old", 2, 12, 20), 1, sentWhole},
		{"sent already", sent("new", 2, publication.Renew-time.Second), 1, sentNothing},
		{"sent long ago", sent("new", 2, publication.Renew), inlineBytes + 1, sentRecord},
		{"sent under a clock that was ahead", sent("new", 2, -publication.Renew), 1, sentRecord},
		{"sent, then the header was renewed", sent("new", 1, time.Second), 1, sentRecord},
		{"sent another content", sent("old", 1, time.Second), 1, sentWhole},
		{"sent another content, large", sent("old", 1, time.Second), inlineBytes + 1, sentDetached},
	} {
		h, has := holding{}, c.has != nil
		if has {
			h = *c.has
		}
		if got := h.form(has, is, record, c.size); got != c.want {
			t.Errorf("who has %s is sent %q, want %q", c.name, got, c.want)
		}
	}
}

// Patches are made once, and a bounded number is kept.
func TestPatchesAreKept(t *testing.T) {
	c := newPatchCache()
	first := c.entry(patchKey{"a", "b"})
	if c.entry(patchKey{"a", "b"}) != first {
		t.Error("made twice")
	}
	for i := range 2 * maxPatches {
		c.entry(patchKey{"a", fmt.Sprint(i)})
	}
	if len(c.entries) != maxPatches || len(c.order) != maxPatches || c.entry(patchKey{"a", "b"}) == first {
		t.Errorf("%d are kept", len(c.entries))
	}
}

// A patch is for who has exactly its base.
func TestBaseOfDelivery(t *testing.T) {
	is := &publication.Published{Header: publication.HeaderRecord{Content: "new", AuthorityEpoch: 2, ConfigVersion: 12,
		Base: "old", BaseVersion: 11}}
	for _, c := range []struct {
		has  holding
		want bool
	}{
		{holding{content: "old", epoch: 2, version: 11}, true},
		{holding{content: "old", epoch: 2, version: 10}, false},
		{holding{content: "old", epoch: 1, version: 11}, false},
		{holding{content: "older", epoch: 2, version: 11}, false},
		{holding{}, false},
	} {
		if got := c.has.isBase(is); got != c.want {
			t.Errorf("%+v: %v", c.has, got)
		}
	}
	if (holding{epoch: 2}).isBase(&publication.Published{Header: publication.HeaderRecord{AuthorityEpoch: 2}}) {
		t.Error("what names no base has one")
	}
}
