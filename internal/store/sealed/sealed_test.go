package sealed_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

func openStore(t *testing.T) store.Store {
	t.Helper()
	st, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

func put(t *testing.T, st store.Store, key string, value []byte) store.Revision {
	t.Helper()
	v, err := st.CompareAndSwap(t.Context(), key, 0, value)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return v
}

// sealSeed returns a seed sealed by a file keeper with a key of its own, and the key's id.
func sealSeed(t *testing.T, owner string) ([]byte, keyring.KeyID) {
	t.Helper()
	k, err := keyring.KeeperOf(keyring.Owner{Name: owner, Keeper: "file:/k"}, durabletest.NewDisk().FS())
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.MakeKey(t.Context())
	place := keyring.Place{Cluster: "test.example", Purpose: keyring.PurposeSeed, Owner: owner, SeedEpoch: 1}
	id, err2 := k.KeyID(t.Context(), place)
	data, err3 := keyring.SealSeed(t.Context(), k, place, keyring.NewSeed())
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	return data, id
}

// Copies of one keeper are found under each of its keys, and where releases before key
// ids wrote them; those of a keeper whose name only begins alike are not.
func TestCopies(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	of := sealed.Of{SeedEpoch: 1, Salt: history.Salt{1, 2}}
	data, id := sealSeed(t, "host")
	put(t, st, of.Key("host", "b"), nil)
	put(t, st, of.Key("host", "a"), nil)
	put(t, st, of.FormerKey("host"), data)
	put(t, st, of.Key("host-2", "a"), nil)
	put(t, st, of.FormerKey("host2"), nil)
	put(t, st, of.Key("host", "-no-id"), nil)
	put(t, st, sealed.Of{SeedEpoch: 1, Salt: history.Salt{1, 3}}.Key("host", "c"), nil)
	put(t, st, sealed.Mesh(history.Hash{9}).Key("host", "d"), nil)
	copies, err := sealed.Copies(t.Context(), st, of, "host")
	if err != nil {
		t.Fatal(err)
	}
	if ids := sealed.IDs(copies); !slices.Equal(ids, []keyring.KeyID{"a", "b", id}) || !copies[2].Former {
		t.Errorf("copies are of %v", ids)
	}
	mesh, err := sealed.Copies(t.Context(), st, sealed.Mesh(history.Hash{9}), "host")
	if err != nil || len(mesh) != 1 || mesh[0].ID != "d" {
		t.Errorf("of the mesh CA key: %v, %v", mesh, err)
	}
}

// A copy is written once, and only while the head is the one that it is for.
func TestWrite(t *testing.T) {
	t.Parallel()
	st := openStore(t)
	key := sealed.Of{SeedEpoch: 1}.Key("host", "a")
	// Before the first set there is no head.
	if err := sealed.Write(t.Context(), st, 0, key, 0, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := sealed.Write(t.Context(), st, 0, key, 0, []byte("second")); !errors.Is(err, sealed.ErrMeanwhile) {
		t.Errorf("over what is there: %v", err)
	}
	head := put(t, st, history.HeadKey, []byte("head"))
	for name, at := range map[string]store.Revision{"before the first head": 0, "at another head": head + 1} {
		err := sealed.Write(t.Context(), st, at, sealed.Of{SeedEpoch: 1}.Key("host", "b"), 0, nil)
		if !errors.Is(err, store.ErrConflict) || errors.Is(err, sealed.ErrMeanwhile) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e, err := st.Get(t.Context(), key)
	if err != nil || string(e.Value) != "first" {
		t.Fatalf("%q, %v", e.Value, err)
	}
	if err := sealed.Write(t.Context(), st, head, key, e.Version, []byte("again")); err != nil {
		t.Error(err)
	}
}

// lostAnswer commits and does not say so, the first time.
type lostAnswer struct {
	store.Store
	lost bool
}

func (l *lostAnswer) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	v, err := l.Store.Commit(ctx, tx)
	if !l.lost {
		l.lost = true
		return 0, fmt.Errorf("%w: the connection ended", store.ErrUnknownOutcome)
	}
	return v, err
}

func TestWriteWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	st := &lostAnswer{Store: openStore(t)}
	if err := sealed.Write(t.Context(), st, 0, sealed.Of{SeedEpoch: 1}.Key("host", "a"), 0, []byte("x")); err != nil || !st.lost {
		t.Errorf("%v, lost %v", err, st.lost)
	}
}

// Copies that go at a head: all of other seeds up to its own, of heads before it,
// and of keepers that it does not name. Copies that a move under way wrote stay.
func TestGone(t *testing.T) {
	t.Parallel()
	at := &history.Link{Hash: history.Hash{7}}
	at.SeedEpoch, at.Salt = 2, history.Salt{2}
	now := sealed.Seed(&at.Transition)
	old, dead, next := sealed.Of{SeedEpoch: 1, Salt: history.Salt{1}}, sealed.Of{SeedEpoch: 2, Salt: history.Salt{3}}, sealed.Of{SeedEpoch: 3, Salt: history.Salt{4}}
	root := func(o sealed.Of) string {
		return sealed.RootKey(&history.Transition{SeedEpoch: o.SeedEpoch, Salt: o.Salt})
	}
	const before, after = 5, 15
	for _, tc := range []struct {
		key     string
		version store.Revision
		gone    bool
	}{
		{now.Key("host", "a"), before, false},
		{now.Key("host", "b"), before, false},
		{now.FormerKey("host"), before, false},
		{now.Key("left", "a"), before, true},
		{now.Key("left", "b"), before, true},
		{now.FormerKey("left"), before, true},
		{now.Key("comes", "a"), after, false},
		{old.Key("host", "a"), before, true},
		{old.Key("host", "a"), after, true},
		{old.FormerKey("host"), before, true},
		{dead.Key("host", "a"), before, true},
		{next.Key("host", "a"), after, false},
		{next.Key("host", "a"), before, false},
		{sealed.Mesh(at.Hash).Key("host", "a"), before, false},
		{sealed.Mesh(at.Hash).FormerKey("host"), before, false},
		{sealed.Mesh(at.Hash).Key("left", "a"), before, true},
		{sealed.Mesh(history.Hash{6}).Key("host", "a"), before, true},
		{sealed.Mesh(history.Hash{6}).FormerKey("host"), before, true},
		{sealed.Mesh(history.Hash{8}).Key("host", "a"), after, false},
		{root(now), before, false},
		{root(old), before, true},
		{root(dead), before, true},
		{root(next), after, false},
		{sealed.Prefix + "else/1", before, false},
		{sealed.SeedPrefix + "1/zz/host", before, false},
	} {
		gone := sealed.Gone([]store.Entry{{Key: tc.key, Version: tc.version}}, at, 10, []string{"host"})
		if (len(gone) == 1) != tc.gone {
			t.Errorf("%s at %d: gone %v, want %v", strings.TrimPrefix(tc.key, sealed.Prefix), tc.version, len(gone) == 1, tc.gone)
		}
	}
}
