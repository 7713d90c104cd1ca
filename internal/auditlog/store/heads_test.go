package store_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	auditlogstore "github.com/fealty-io/fealty/internal/auditlog/store"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

// counting is a store that counts its calls.
type counting struct {
	store.Store
	calls int
}

func (c *counting) Get(ctx context.Context, key string) (store.Entry, error) {
	c.calls++
	return c.Store.Get(ctx, key)
}

func (c *counting) List(ctx context.Context, prefix string) (store.Listing, error) {
	c.calls++
	return c.Store.List(ctx, prefix)
}

func (c *counting) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	c.calls++
	return c.Store.Commit(ctx, tx)
}

// TestHeadsAreReadBack: whoever begins to make checkpoints knows the heads of chains that older ones tell of,
// over more than one call reads, and reads them once.
func TestHeadsAreReadBack(t *testing.T) {
	t.Parallel()
	const checkpoints = auditlog.BucketSize + 90
	ctx := t.Context()
	under, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer under.Close()
	st := &counting{Store: under}
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	write := func(w *auditlog.Writer) (begins string) {
		t.Helper()
		s, err := w.Stamp(ctx, make([]auditlog.Entry, 1))
		if err != nil {
			t.Fatal(err)
		}
		var tx store.Tx
		for _, w := range s.Writes {
			tx.Put = append(tx.Put, store.Write(w))
		}
		if _, err := under.Commit(ctx, tx); err != nil {
			t.Fatal(err)
		}
		s.Applied()
		return s.Begins
	}
	writer := func(who string) *auditlog.Writer {
		t.Helper()
		w, err := auditlog.NewWriter(who, func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	vouch := func(h *auditlog.Heads) (made auditlogstore.Made, calls int) {
		t.Helper()
		st.calls = 0
		made, err := auditlogstore.Checkpoint(ctx, st, auditlogstore.Vouch{
			Cluster: "test.example", Now: func() time.Time { return now }, Signers: []crypto.Signer{key}, Heads: h, Again: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Minute)
		return made, st.calls
	}
	heads := new(auditlog.Heads)
	first := writer("00000000000000aa")
	note := write(first)
	for range checkpoints {
		vouch(heads)
	}
	second := writer("00000000000000bb")
	write(second)
	_, steady := vouch(heads)
	write(second)
	write(first)
	if _, err := under.Commit(ctx, store.Tx{Delete: []string{note}}); err != nil {
		t.Fatal(err)
	}
	fresh := new(auditlog.Heads)
	made, calls := vouch(fresh)
	if len(made.Breaks) != 1 || auditlog.HeadPrefix+made.Breaks[0].Chain != note || !strings.Contains(made.Breaks[0].Problem, "is gone") || made.Covered != 2 {
		t.Errorf("found %v, and covered %d", made.Breaks, made.Covered)
	}
	// Two lists of checkpoints, and two calls for the chain that has grown.
	if calls > steady+4 {
		t.Errorf("it took %d calls, and %d of who remembers", calls, steady)
	}
	if made, calls := vouch(fresh); len(made.Breaks) > 0 || calls > steady {
		t.Errorf("the next time it took %d calls, and found %v", calls, made.Breaks)
	}
	// Somebody else makes a few, and then many.
	var other string
	for _, n := range []int{1, 20} {
		for range n {
			vouch(heads)
		}
		other = write(writer("00000000000000cc"))
		vouch(heads)
		if _, err := under.Commit(ctx, store.Tx{Delete: []string{other}}); err != nil {
			t.Fatal(err)
		}
		// It reads what is new, one by one or with what stands beside it, and two more chains.
		made, calls := vouch(fresh)
		if len(made.Breaks) != 1 || auditlog.HeadPrefix+made.Breaks[0].Chain != other || calls > steady+5 {
			t.Errorf("after %d of somebody else: %v, in %d calls", n, made.Breaks, calls)
		}
	}

	// A checkpoint on the way back that is another one than it was ends what is known.
	if _, err := under.Commit(ctx, store.Tx{Put: []store.Write{{Key: auditlog.CheckpointKey(5), Value: []byte("{}")}}, Delete: []string{note, other}}); err != nil {
		t.Fatal(err)
	}
	// That of a chain which is over, and has nothing that is behind no checkpoint, is not missed.
	if made, _ := vouch(new(auditlog.Heads)); len(made.Breaks) != 1 || auditlog.HeadPrefix+made.Breaks[0].Chain != other {
		t.Errorf("with checkpoint 5 gone, and two notes: %v", made.Breaks)
	}
}
