package publication_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/chunk"
	"github.com/fealty-io/fealty/snapshot"
)

// onePeer makes another directory, which begins like the one before.
func onePeer(d *coordinatortest.Desk) {
	coordinatortest.MustPut(d, "kind: peer\nname: zig-9\nmember: data/both\naddresses: [\"h:1\"]\nclass: bootstrap")
}

func wantSame(t *testing.T, got, want *publication.View) {
	t.Helper()
	if got.Broken || !got.Serves() || got.Tree.Root() != want.Tree.Root() ||
		!maps.EqualFunc(maps.Collect(got.Contents()), maps.Collect(want.Contents()), bytes.Equal) {
		t.Errorf("another publication is read: %d headers of %d, %d contents of %d", got.Len(), want.Len(),
			len(maps.Collect(got.Contents())), len(maps.Collect(want.Contents())))
	}
}

// A long content is kept in parts, and read as it was; with what nobody names any more its parts go.
func TestLongContents(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	coordinatortest.LongPeers(d, "zig")
	d.Store.Intercept(func(tx store.Tx) {
		for _, w := range tx.Put {
			if len(w.Value) > store.CutBytes/2 {
				t.Errorf("%s has %d bytes", w.Key, len(w.Value))
			}
		}
	})
	p := coordinatortest.MustPublish(d, b)
	coordinatortest.WantWholeAt(d, t, p)
	if len(d.Store.Keys(publication.IndexPrefix)) == 0 {
		t.Fatal("nothing is in parts")
	}
	d.Restart()
	got, err := d.C.Parts().Publication.Load(t.Context(), d.State())
	if err != nil {
		t.Fatal(err)
	}
	wantSame(t, got, p)
	b = publication.NewPublisher()
	for range 3 { // of which each has the one before as its base
		coordinatortest.WantWholeAt(d, t, coordinatortest.MustPublish(d, b))
		onePeer(d)
		coordinatortest.WantWholeAt(d, t, coordinatortest.MustPublish(d, b))
		coordinatortest.LongPeers(d, "zig")
	}
}

// A content that lost a part or its index, or whose parts were altered, is made again.
func TestLongContentsAreRepaired(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	coordinatortest.LongPeers(d, "zig")
	p := coordinatortest.MustPublish(d, publication.NewPublisher())
	for name, spoil := range map[string]func(key string) string{
		"lost": func(key string) string { d.Store.Alter(key, func([]byte) []byte { return nil }); return key },
		"altered": func(key string) string {
			d.Store.Alter(key, func(v []byte) []byte { v[len(v)-1] ^= 1; return v })
			return key
		},
	} {
		for _, prefix := range []string{publication.PartPrefix, publication.IndexPrefix} {
			spoil(d.Store.Keys(prefix)[0])
			d.Restart()
			got, err := d.C.Parts().Publication.Load(t.Context(), d.State())
			if err != nil || !got.Broken {
				t.Errorf("%s of %s: %v, and served as if it were whole", name, prefix, err)
			}
			again := coordinatortest.MustPublish(d, publication.NewPublisher())
			coordinatortest.WantWholeAt(d, t, again)
			if !slices.Equal(slices.Sorted(maps.Keys(maps.Collect(again.Contents()))),
				slices.Sorted(maps.Keys(maps.Collect(p.Contents())))) {
				t.Errorf("%s of %s: other contents were made", name, prefix)
			}
		}
	}
}

// A long content that an earlier release kept whole is read, and stays so for as long as it is named.
func TestLongContentsOfEarlierReleases(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	coordinatortest.LongPeers(d, "zig")
	p := coordinatortest.MustPublish(d, publication.NewPublisher())
	tx := store.Tx{Delete: append(d.Store.Keys(publication.IndexPrefix), d.Store.Keys(publication.PartPrefix)...)}
	for hash, raw := range p.Contents() {
		if len(raw) > chunk.MaxBytes {
			key := publication.ContentKey(hash)
			tx.Put = append(tx.Put, store.Write{Key: key, Value: d.State().Records.Auth.Seal(key, raw)})
		}
	}
	if _, err := d.Store.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	got, err := d.C.Parts().Publication.Load(t.Context(), d.State())
	if err != nil || len(got.Orphans) > 0 {
		t.Fatalf("%d orphans, %v", len(got.Orphans), err)
	}
	wantSame(t, got, p)
	b := publication.NewPublisher()
	coordinatortest.WantWholeAt(d, t, coordinatortest.MustPublish(d, b))
	whole := len(d.Store.Keys(publication.IndexPrefix)) == 0
	onePeer(d)
	next := coordinatortest.MustPublish(d, b)
	coordinatortest.WantWholeAt(d, t, next)
	h := coordinatortest.Given(t, d, next, "acme")[snapshot.ScopePeerDirectory]
	if !whole || h.Base == nil || len(d.Store.Keys(publication.IndexPrefix)) == 0 ||
		!slices.Contains(d.Store.Keys(publication.ContentPrefix), publication.ContentKey(h.Base.ContentHash.String())) {
		t.Errorf("what was whole was divided, or what is new is not")
	}
}

// A kill between the parts of a content leaves the publication of before.
func TestCrashBetweenParts(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	was := coordinatortest.MustPublish(d, b)
	coordinatortest.LongPeers(d, "zig")
	killed := errors.New("killed")
	d.Faults.Fail("publish.after-contents", killed)
	if err := coordinatortest.PublishAll(d, d.C, b); !errors.Is(err, killed) {
		t.Fatal(err)
	}
	d.Faults.Disarm("publish.after-contents")
	d.Restart()
	p, err := d.C.Parts().Publication.Load(t.Context(), d.State())
	if err != nil || len(p.Orphans) == 0 {
		t.Fatalf("%d orphans, %v", len(p.Orphans), err)
	}
	wantSame(t, p, was)
	coordinatortest.WantWholeAt(d, t, coordinatortest.MustPublish(d, publication.NewPublisher()))
}
