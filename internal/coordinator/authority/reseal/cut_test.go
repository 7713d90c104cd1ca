package reseal_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/store"
)

// told is a store that tells what is committed to it.
type told struct {
	store.Store
	tell *atomic.Pointer[func(store.Tx)]
}

func (s told) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	if tell := s.tell.Load(); tell != nil {
		(*tell)(tx)
	}
	return s.Store.Commit(ctx, tx)
}

// However many records there are, they move in transactions that every engine takes as they are.
func TestMoveIsCut(t *testing.T) {
	t.Parallel()
	var tell atomic.Pointer[func(store.Tx)]
	f := coordinatortest.ReadyFleet(t, func(cfg *coordinator.Config) { cfg.Store = told{cfg.Store, &tell} })
	s := f.State()
	const n = 2 * store.CutOps
	for i := range n {
		r := record.Member{Kind: identity.Data, Name: fmt.Sprintf("n%04d", i), State: record.Draining, Entry: "pool"}
		r.Selectors = []string{strings.Repeat("x", 200)}
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(record.MemberKey(r.Kind, r.Name), 0, r)
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var moved atomic.Int64
	see := func(tx store.Tx) {
		for _, c := range tx.If {
			if c.Key != record.LockKey || c.Version == 0 {
				continue
			}
			moved.Add(int64(len(tx.Put)))
			if ops := len(tx.If) + len(tx.Put) + len(tx.Delete); ops > store.CutOps || tx.Size() > store.CutBytes {
				t.Errorf("a transaction of %d operations and %d bytes moves records", ops, tx.Size())
			}
		}
	}
	tell.Store(&see)
	req := coordinatortest.PrepareReseed(f, nil)
	if _, err := coordinatortest.ReseedClient(f).CommitReseed(f.Context(), req); err != nil {
		t.Fatal(err)
	}
	if moved.Load() < n {
		t.Errorf("%d records moved", moved.Load())
	}
}
