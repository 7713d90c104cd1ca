package history_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/internal/store/storetest"
	"github.com/fealty-io/fealty/test/testlane"
)

// founded returns a log with a genesis in it.
func founded(t testing.TB, kv store.KV, k *testers) (*history.Log, *history.Verified) {
	t.Helper()
	l := history.New(kv)
	c := newChain(t, k, base)
	v, err := l.Append(t.Context(), nil, c.last(), c.manifests[0], k.transaction)
	if err != nil {
		t.Fatal(err)
	}
	return l, v
}

// candidate returns a transition that sets p after v, unlike any other.
func candidate(t testing.TB, k *testers, v *history.Verified, kind history.Kind, p policy, reason string) (*history.Transition, *manifest.Manifest) {
	t.Helper()
	m := k.manifest(t, p)
	tr, moves := v.Next(kind, m)
	tr.Reason = reason
	(&chain{t: t, k: k}).fill(tr, p, moves)
	return tr, m
}

func load(t testing.TB, l *history.Log, k *testers) *history.Verified {
	t.Helper()
	h, err := l.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v, err := history.Verify(h, k.public())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAppendAndLoad(t *testing.T) {
	kv := storetest.NewMemory(0).Open()
	k := newTesters(t)
	empty := history.New(kv)
	if _, _, err := empty.Head(t.Context()); !errors.Is(err, history.ErrEmpty) {
		t.Errorf("Head of an empty store: %v", err)
	}
	if _, err := empty.Load(t.Context()); !errors.Is(err, history.ErrEmpty) {
		t.Errorf("Load of an empty store: %v", err)
	}
	l, v := founded(t, kv, k)
	more := base
	more.nodes = 1
	tr, m := candidate(t, k, v, history.KindSet, more, "a node")
	next, err := l.Append(t.Context(), v, tr, m, k.transaction)
	if err != nil {
		t.Fatal(err)
	}
	head, version, err := l.Head(t.Context())
	if err != nil || head != next.Head() || version != next.Version() || version == 0 {
		t.Errorf("Head = %+v at %d, %v, want %+v at %d", head, version, err, next.Head(), next.Version())
	}
	if v.Current().Index != 1 || v.Manifest().Hash() == m.Hash() {
		t.Error("the history before the append has changed")
	}
	got := load(t, l, k)
	if got.Mark() != next.Mark() || got.Version() != version || got.Manifest().Hash() != m.Hash() || !slices.Equal(got.MeshCAKeys(), next.MeshCAKeys()) {
		t.Errorf("loaded %+v, appended %+v", got.Mark(), next.Mark())
	}
}

// A link that Verify would refuse is not written.
func TestAppendChecksFirst(t *testing.T) {
	kv := storetest.NewMemory(0).Open()
	k := newTesters(t)
	l, v := founded(t, kv, k)
	before, err := kv.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	more := base
	more.nodes = 1
	for name, spoil := range map[string]func(tr *history.Transition) (base *history.Verified){
		"unsigned":        func(tr *history.Transition) *history.Verified { tr.Signatures = nil; return v },
		"wrong head":      func(tr *history.Transition) *history.Verified { tr.Previous[0]++; return v },
		"other manifest":  func(tr *history.Transition) *history.Verified { tr.Manifest[0]++; return v },
		"no base":         func(tr *history.Transition) *history.Verified { return nil },
		"a second origin": func(tr *history.Transition) *history.Verified { *tr = *newChain(t, k, base).last(); return v },
		"bad reason":      func(tr *history.Transition) *history.Verified { tr.Reason = "\x00"; return v },
	} {
		tr, m := candidate(t, k, v, history.KindSet, more, name)
		from := spoil(tr)
		if next, err := l.Append(t.Context(), from, tr, m, k.transaction); err == nil {
			t.Errorf("%s: appended %+v", name, next.Mark())
		}
	}
	if _, err := l.Append(t.Context(), history.Overfull(v), rekeyed(v, history.Hash{9}), v.Manifest(), k.transaction); !errors.Is(err, history.ErrUnverified) {
		t.Errorf("one link too many: %v", err)
	}
	wrong, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tr, m := candidate(t, k, v, history.KindSet, more, "ecdsa")
	if _, err := l.Append(t.Context(), v, tr, m, wrong); err == nil {
		t.Error("a head was signed by an ECDSA key")
	}
	after, err := kv.List(t.Context(), "")
	if err != nil || after.Revision != before.Revision {
		t.Errorf("the store changed from %d to %d (%v)", before.Revision, after.Revision, err)
	}
}

func rekeyed(v *history.Verified, key [32]byte) *history.Transition {
	tr, _ := v.Next(history.KindRekey, v.Manifest())
	tr.MeshCAKey = key
	return tr
}

// A history that grew by appends remembers every mesh CA key, like one that was
// verified.
func TestAppendRefusesAnOldMeshKey(t *testing.T) {
	k := newTesters(t)
	l, v := founded(t, storetest.NewMemory(0).Open(), k)
	first := v.Current().MeshCAKey
	for i := range 2 {
		var err error
		if v, err = l.Append(t.Context(), v, rekeyed(v, [32]byte{1, byte(i)}), v.Manifest(), k.transaction); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range [][32]byte{first, {1, 0}, {1, 1}} {
		_, err := l.Append(t.Context(), v, rekeyed(v, key), v.Manifest(), k.transaction)
		if refused, ok := errors.AsType[*history.VerifyError](err); !ok || refused.Rule != "mesh-key-once" && refused.Rule != "mesh-key-with-epoch" {
			t.Errorf("key %x came back: %v", key[:2], err)
		}
	}
}

func TestAppendConflict(t *testing.T) {
	k := newTesters(t)
	l, v := founded(t, storetest.NewMemory(0).Open(), k)
	first, m := candidate(t, k, v, history.KindRekey, base, "first")
	won, err := l.Append(t.Context(), v, first, m, k.transaction)
	if err != nil {
		t.Fatal(err)
	}
	second, m := candidate(t, k, v, history.KindRekey, base, "second")
	_, err = l.Append(t.Context(), v, second, m, k.transaction)
	conflict, ok := errors.AsType[*history.ConflictError](err)
	if !ok || !errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrUnknownOutcome) || conflict.Head != won.Head() || conflict.Want != v.Head().Hash {
		t.Errorf("Append = %v, want a ConflictError that shows %+v", err, won.Head())
	}
	// A second cluster in the same store is a conflict too.
	c := newChain(t, k, base)
	if _, err := l.Append(t.Context(), nil, c.last(), c.manifests[0], k.transaction); !errors.Is(err, store.ErrConflict) {
		t.Errorf("second genesis: %v", err)
	}
	// Appending again what is the head already is no conflict.
	again, err := l.Append(t.Context(), v, first, m, k.transaction)
	if err != nil || again.Mark() != won.Mark() || again.Version() != won.Version() {
		t.Errorf("again = %+v, %v", again, err)
	}
	// Nor if others went on from it; its version is not known then.
	third, m := candidate(t, k, won, history.KindRekey, base, "third")
	last, err := l.Append(t.Context(), won, third, m, k.transaction)
	if err != nil {
		t.Fatal(err)
	}
	again, err = l.Append(t.Context(), v, first, m, k.transaction)
	if err != nil || again.Mark() != won.Mark() || again.Version() != 0 {
		t.Errorf("again, overtaken = %+v, %v", again, err)
	}
	// From there one can append only at the head, version or not.
	fourth, m := candidate(t, k, again, history.KindRekey, base, "fourth")
	if _, err := l.Append(t.Context(), again, fourth, m, k.transaction); !errors.Is(err, store.ErrConflict) {
		t.Errorf("append to an overtaken link: %v", err)
	}
	offline, err := history.Verify(historyWithoutVersion(t, l), k.public())
	if err != nil || offline.Mark() != last.Mark() {
		t.Fatal(err)
	}
	fifth, m := candidate(t, k, offline, history.KindRekey, base, "fifth")
	if _, err := l.Append(t.Context(), offline, fifth, m, k.transaction); err != nil {
		t.Errorf("append to a head of unknown version: %v", err)
	}
}

func historyWithoutVersion(t *testing.T, l *history.Log) *history.History {
	h, err := l.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.Version = 0
	return h
}

func TestFollow(t *testing.T) {
	k := newTesters(t)
	kv := storetest.NewMemory(0).Open()
	l, first := founded(t, kv, k)
	more := base
	more.nodes = 1
	v := first
	for i := range 3 {
		tr, m := candidate(t, k, v, history.KindSet, []policy{more, base, more}[i], fmt.Sprint(i))
		var err error
		if v, err = l.Append(t.Context(), v, tr, m, k.transaction); err != nil {
			t.Fatal(err)
		}
	}
	full := load(t, l, k)
	other, _ := founded(t, storetest.NewMemory(0).Open(), k)
	foreign := load(t, other, k)
	for name, known := range map[string]*history.Verified{"nothing": nil, "genesis": first, "the head": v, "another history": foreign} {
		got, err := l.Follow(t.Context(), known, k.public())
		if err != nil {
			t.Errorf("from %s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(got, full) {
			t.Errorf("from %s: %+v, want what a full replay gives, %+v", name, got, full)
		}
		if _, err := l.Follow(t.Context(), known, newTesters(t).public()); !errors.Is(err, history.ErrUnverified) {
			t.Errorf("from %s, under another key: %v", name, err)
		}
	}
	if len(first.Links()) != 1 || first.Manifest().Hash() != k.manifest(t, base).Hash() {
		t.Error("following changed what it began with")
	}

	// New links are checked like all others: a head, well signed, over a link that
	// breaks a rule.
	bad, _ := v.Next(history.KindSet, v.Manifest())
	raw, err := bad.Encode()
	if err != nil {
		t.Fatal(err)
	}
	tx := store.Tx{Put: []store.Write{{Key: history.BlobKey(history.HashOf(raw)), Value: raw}, {Key: history.HeadKey, Value: k.head(bad, raw)}}}
	if _, err := kv.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	refused, ok := errors.AsType[*history.VerifyError](second(l.Follow(t.Context(), v, k.public())))
	if !ok || refused.Rule != "signers-threshold" || refused.Index != 5 {
		t.Errorf("a bad link at the end: %v", refused)
	}
	// A head that names nothing leads nowhere.
	if _, err := kv.Commit(t.Context(), store.Tx{Put: []store.Write{{Key: history.HeadKey, Value: k.head(bad, nil)}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Follow(t.Context(), v, k.public()); !missing(err) {
		t.Errorf("a head without a link: %v", err)
	}
}

func second(_ *history.Verified, err error) error { return err }

func TestLoadFindsBrokenBlobs(t *testing.T) {
	k := newTesters(t)
	for _, tc := range []struct {
		name  string
		spoil func(s store.Store, v *history.Verified) store.Tx
		want  func(err error) bool
	}{
		{"link missing", func(_ store.Store, v *history.Verified) store.Tx {
			return store.Tx{Delete: []string{history.BlobKey(v.Current().Hash)}}
		}, missing},
		{"manifest missing", func(_ store.Store, v *history.Verified) store.Tx {
			return store.Tx{Delete: []string{history.BlobKey(v.Manifest().Hash())}}
		}, missing},
		{"link altered", func(_ store.Store, v *history.Verified) store.Tx {
			return store.Tx{Put: []store.Write{{Key: history.BlobKey(v.Current().Hash), Value: []byte("{}")}}}
		}, altered},
		{"manifest altered", func(_ store.Store, v *history.Verified) store.Tx {
			return store.Tx{Put: []store.Write{{Key: history.BlobKey(v.Manifest().Hash()), Value: []byte("cluster: evil")}}}
		}, altered},
		{"head garbage", func(store.Store, *history.Verified) store.Tx {
			return store.Tx{Put: []store.Write{{Key: history.HeadKey, Value: []byte("null")}}}
		}, func(err error) bool { return errors.Is(err, history.ErrEncoding) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := storetest.NewMemory(0).Open()
			l, v := founded(t, s, k)
			if _, err := s.Commit(t.Context(), tc.spoil(s, v)); err != nil {
				t.Fatal(err)
			}
			if h, err := l.Load(t.Context()); !tc.want(err) {
				t.Errorf("Load = %v, %v", h, err)
			}
		})
	}
}

func missing(err error) bool {
	e, ok := errors.AsType[*history.BlobError](err)
	return ok && e.Missing
}

func altered(err error) bool {
	e, ok := errors.AsType[*history.BlobError](err)
	return ok && !e.Missing
}

// A blob that someone spoiled before it was written stops the append, with the
// head untouched.
func TestAppendOverSpoiledBlob(t *testing.T) {
	k := newTesters(t)
	s := storetest.NewMemory(0).Open()
	l, v := founded(t, s, k)
	more := base
	more.nodes = 1
	tr, m := candidate(t, k, v, history.KindSet, more, "x")
	if _, err := s.CompareAndSwap(t.Context(), history.BlobKey(m.Hash()), 0, []byte("evil")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(t.Context(), v, tr, m, k.transaction); !altered(err) {
		t.Errorf("Append = %v", err)
	}
	if head, _, err := l.Head(t.Context()); err != nil || head != v.Head() {
		t.Errorf("the head moved: %+v, %v", head, err)
	}
}

// Each call of an append is lost in each way; with the store back, appending
// again settles it.
func TestAppendWithEachCallLost(t *testing.T) {
	k := newTesters(t)
	for call := range 6 {
		for _, fate := range []storetest.Fate{storetest.LoseAnswer, storetest.LoseRequest, storetest.Delay} {
			t.Run(fmt.Sprintf("call %d, %v", call, fate), func(t *testing.T) {
				w := storetest.NewLossy(storetest.NewMemory(0).Open())
				l, v := founded(t, w, k)
				tr, m := candidate(t, k, v, history.KindRekey, base, "x")
				number, write := 0, false
				w.SetFates(func(name string) storetest.Fate {
					if number++; number != call+1 {
						return storetest.Pass
					}
					write = name == "Commit"
					return fate
				})
				next, err := l.Append(t.Context(), v, tr, m, k.transaction)
				w.SetFate(storetest.Pass)
				if write && err != nil {
					t.Errorf("a single lost write was not made good: %v", err)
				}
				if err != nil {
					next, err = l.Append(t.Context(), v, tr, m, k.transaction)
				}
				if err != nil {
					t.Fatal(err)
				}
				w.Deliver(t.Context())
				if got := load(t, l, k); got.Mark() != next.Mark() || got.Version() != next.Version() || len(got.Links()) != 2 {
					t.Errorf("loaded %+v, appended %+v", got.Mark(), next.Mark())
				}
			})
		}
	}
}

// With the store gone after the swap was sent, the outcome is unknown and says
// so: the caller must keep the new mesh CA key.
func TestAppendUnknown(t *testing.T) {
	k := newTesters(t)
	for _, fate := range []storetest.Fate{storetest.LoseAnswer, storetest.Delay} {
		t.Run(fate.String(), func(t *testing.T) {
			w := storetest.NewLossy(storetest.NewMemory(0).Open())
			l, v := founded(t, w, k)
			tr, m := candidate(t, k, v, history.KindRekey, base, "x")
			blobs := 0
			w.SetFates(func(call string) storetest.Fate {
				if call == "Commit" && blobs < 2 {
					blobs++
					return storetest.Pass
				}
				if call == "Commit" {
					return fate
				}
				if blobs < 2 {
					return storetest.Pass
				}
				return storetest.LoseRequest
			})
			_, err := l.Append(t.Context(), v, tr, m, k.transaction)
			if !errors.Is(err, store.ErrUnknownOutcome) || errors.Is(err, store.ErrConflict) {
				t.Fatalf("Append = %v, want an unknown outcome", err)
			}
			w.SetFate(storetest.Pass)
			// Someone else goes on meanwhile, from whatever is the head.
			now := load(t, l, k)
			other, om := candidate(t, k, now, history.KindRekey, base, "other")
			if _, err := l.Append(t.Context(), now, other, om, k.transaction); err != nil {
				t.Fatal(err)
			}
			w.Deliver(t.Context())
			_, err = l.Append(t.Context(), v, tr, m, k.transaction)
			if fate == storetest.LoseAnswer && err != nil || fate == storetest.Delay && !errors.Is(err, store.ErrConflict) {
				t.Errorf("after a fate of %v, appending again = %v", fate, err)
			}
		})
	}
}

func TestAppendWithContextOver(t *testing.T) {
	k := newTesters(t)
	l, v := founded(t, storetest.NewMemory(0).Open(), k)
	tr, m := candidate(t, k, v, history.KindRekey, base, "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Append(ctx, v, tr, m, k.transaction); err == nil || errors.Is(err, store.ErrUnknownOutcome) {
		t.Errorf("Append = %v, want an error that says nothing was changed", err)
	}
	if load(t, l, k).Mark() != v.Mark() {
		t.Error("the head moved")
	}
}

// Random appends by several coordinators over one store that loses requests and
// answers and delivers late, each in the middle of the others' calls: the chain
// stays linear, each head has one winner, and every caller was told the truth.
func TestConcurrentAppends(t *testing.T) {
	testlane.Checks(t, 25, 100)
	k := newTesters(t)
	policies := make([]policy, 4)
	for i := range policies {
		policies[i] = base
		policies[i].nodes, policies[i].coord = i%2, i/2
	}
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		memory := storetest.NewMemory(0)
		plain := memory.Open()
		l, genesis := founded(t, plain, k)

		type attempt struct {
			from *history.Verified
			tr   *history.Transition
			m    *manifest.Manifest
			hash history.Hash
		}
		type coordinator struct {
			wrapper *storetest.Wrapper
			log     *history.Log
			at      *history.Verified
			unknown *attempt // to be settled before anything else
			busy    bool
		}
		coordinators := make([]*coordinator, 3)
		for i := range coordinators {
			w := storetest.NewLossy(memory.Open())
			coordinators[i] = &coordinator{wrapper: w, log: history.New(w), at: genesis}
		}
		won := map[history.Hash]bool{genesis.Head().Hash: true}
		lost := map[history.Hash]bool{}
		count, depth := 0, 0

		var act func(c *coordinator)
		interleave := func(c *coordinator) func(call string) storetest.Fate {
			return func(string) storetest.Fate {
				if depth < 3 && rapid.IntRange(0, 5).Draw(rt, "interleave") == 0 {
					other := rapid.SampledFrom(coordinators).Draw(rt, "other")
					if !other.busy {
						act(other)
					}
				}
				return rapid.SampledFrom([]storetest.Fate{storetest.Pass, storetest.Pass, storetest.Pass,
					storetest.LoseAnswer, storetest.LoseRequest, storetest.Delay}).Draw(rt, "fate")
			}
		}
		settle := func(c *coordinator, a *attempt, next *history.Verified, err error) {
			c.unknown = nil
			switch {
			case err == nil:
				if next.Head().Hash != a.hash {
					rt.Fatalf("appended %v, want %v", next.Head().Hash, a.hash)
				}
				won[a.hash], c.at = true, next
			case errors.Is(err, store.ErrConflict):
				lost[a.hash] = true
			case errors.Is(err, store.ErrUnknownOutcome):
				c.unknown = a
			}
			if won[a.hash] && lost[a.hash] {
				rt.Fatalf("%v was told to have won and to have lost", a.hash)
			}
		}
		act = func(c *coordinator) {
			c.busy = true
			depth++
			defer func() { c.busy, depth = false, depth-1 }()
			if c.unknown == nil {
				if rapid.IntRange(0, 2).Draw(rt, "reload") > 0 {
					c.wrapper.SetFate(storetest.Pass)
					var err error
					if c.at, err = c.log.Follow(ctx, c.at, k.public()); err != nil {
						rt.Fatal(err)
					}
				}
				count++
				p := rapid.SampledFrom(policies).Draw(rt, "policy")
				kind := rapid.SampledFrom([]history.Kind{history.KindSet, history.KindRekey}).Draw(rt, "kind")
				a := &attempt{from: c.at}
				if kind == history.KindRekey {
					a.m = c.at.Manifest()
					a.tr, _ = c.at.Next(kind, a.m)
					a.tr.MeshCAKey = [32]byte{0xcb, byte(count), byte(count >> 8)}
				} else {
					a.m = k.manifest(t, p)
					var moves bool
					a.tr, moves = c.at.Next(kind, a.m)
					if moves {
						a.tr.MeshCAKey = [32]byte{0xcb, byte(count), byte(count >> 8)}
					}
					a.tr.Signatures = k.sign(a.tr.Statement(), 0, 1)
				}
				a.tr.Reason = fmt.Sprint("attempt ", count)
				raw, err := a.tr.Encode()
				if err != nil {
					rt.Fatal(err)
				}
				a.hash = history.HashOf(raw)
				c.unknown = a
			}
			a := c.unknown
			c.wrapper.SetFates(interleave(c))
			next, err := c.log.Append(ctx, a.from, a.tr, a.m, k.transaction)
			if err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrUnknownOutcome) {
				// Lost on the way to the blobs: nothing counts, unless an earlier try left
				// it unknown. Trying again is right in both cases.
				err = store.ErrUnknownOutcome
			}
			settle(c, a, next, err)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(*rapid.T) { act(rapid.SampledFrom(coordinators).Draw(rt, "who")) },
			"late":   func(*rapid.T) { rapid.SampledFrom(coordinators).Draw(rt, "whose").wrapper.Deliver(ctx) },
		})
		for _, c := range coordinators {
			c.wrapper.SetFate(storetest.Pass)
			if a := c.unknown; a != nil {
				next, err := c.log.Append(ctx, a.from, a.tr, a.m, k.transaction)
				settle(c, a, next, err)
				if c.unknown != nil {
					rt.Fatalf("with the store back the outcome is still unknown: %v", err)
				}
			}
		}
		for _, c := range coordinators {
			c.wrapper.Deliver(ctx)
		}

		v := load(t, l, k)
		in := make(map[history.Hash]bool)
		for _, link := range v.Links() {
			in[link.Hash] = true
		}
		for h := range won {
			if !in[h] {
				rt.Fatalf("%v won and is not in the history", h)
			}
		}
		for h := range lost {
			if in[h] {
				rt.Fatalf("%v lost and is in the history", h)
			}
		}
		if len(in) != len(won) {
			rt.Fatalf("%d links, and %d callers were told that they won", len(in), len(won))
		}
		// Every value that the head ever had is a link, each the child of the last.
		var previous history.Hash
		seen := 0
		for change, err := range plain.Changes(ctx, history.HeadKey, 0) {
			if err != nil {
				rt.Fatal(err)
			}
			head, err := history.DecodeRecord(change.Put[0].Value)
			if err != nil {
				rt.Fatal(err)
			}
			if link := v.Links()[seen]; link.Hash != head.Hash || link.Previous != previous {
				rt.Fatalf("head %d was %v, and link %d is %v after %v", seen, head.Hash, seen, link.Hash, previous)
			}
			previous = head.Hash
			if seen++; seen == len(v.Links()) {
				break
			}
		}
	})
}

// The same with real goroutines and a real engine: for each head one winner.
func TestRaceOnSQLite(t *testing.T) {
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	k := newTesters(t)
	l, v := founded(t, s, k)
	const rounds, setters = 5, 4
	for round := range rounds {
		var (
			wg      sync.WaitGroup
			results [setters]*history.Verified
			errs    [setters]error
		)
		for i := range setters {
			tr, m := candidate(t, k, v, history.KindRekey, base, fmt.Sprintf("%d of round %d", i, round))
			wg.Go(func() { results[i], errs[i] = history.New(s).Append(t.Context(), v, tr, m, k.transaction) })
		}
		wg.Wait()
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner >= 0:
				t.Fatalf("%d and %d both won", winner, i)
			case err == nil:
				winner = i
			case !errors.Is(err, store.ErrConflict):
				t.Fatal(err)
			}
		}
		if winner < 0 {
			t.Fatalf("nobody won: %v", errs)
		}
		if v = load(t, l, k); v.Mark() != results[winner].Mark() {
			t.Fatalf("the head is %+v, and %+v won", v.Mark(), results[winner].Mark())
		}
	}
	if len(v.Links()) != rounds+1 {
		t.Errorf("%d links, want %d", len(v.Links()), rounds+1)
	}
}

// Errors and logs name transitions; nothing of it is secret, and it is text.
func TestErrorsSayWhatToDo(t *testing.T) {
	for _, err := range []error{
		&history.ConflictError{}, &history.BlobError{Missing: true}, &history.BlobError{}, &history.UnauthorizedError{Need: 2},
		&history.UnauthorizedError{Key: &manifest.Key{}, Why: "does not verify"}, &history.VerifyError{Rule: "index", Index: 3, Detail: "x"},
	} {
		if text := []byte(err.Error()); !bytes.HasPrefix(text, []byte("history: ")) || !bytes.Contains(text, []byte(": ")) || len(text) < 60 {
			t.Errorf("%T says too little: %s", err, text)
		}
	}
}
