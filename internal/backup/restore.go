package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/store"
)

// restoreTries bounds how often a transaction of unknown outcome is committed again.
const restoreTries = 5

// Restore writes the backup that r reads into st, for a plan that was made of it, and
// returns the intent as it is in the store then.
//
// The store is empty, or one in which a restore of this very backup was begun: then
// it goes on under the plan of then. Nobody takes the store for a cluster's before
// everything is there: the head of the history comes with the last transaction. Where
// all of it is there already, signatures that the plan has and the store has not are
// added.
//
// Errors: [ErrOccupied], [ErrOtherRestore], [ErrNoFloor], those of [Reader], those of
// the store. After one of the store, calling it again is right.
func Restore(ctx context.Context, st store.Store, plan *Intent, r *Reader, faults *failpoint.Points) (*Intent, error) {
	w := &restoring{st: st, faults: faults}
	if err := w.begin(ctx, plan); err != nil {
		return nil, err
	}
	if w.intent.Whole {
		return w.intent, w.sign(ctx, plan.Signatures)
	}
	w.intent.merge(plan.Signatures)
	if err := w.fill(ctx, r); err != nil {
		return nil, err
	}
	return w.intent, w.end(ctx)
}

type restoring struct {
	st      store.Store
	faults  *failpoint.Points
	intent  *Intent
	version store.Revision // of the intent in the store
	head    []byte
	batch   []store.Write
	room    store.Room // beside batch
}

// Begun returns the restore of plan's backup that was begun in st, with the version of
// its intent; nil if st is empty. Errors: [ErrOccupied], [ErrOtherRestore], those of
// [DecodeIntent], those of the store.
func Begun(ctx context.Context, st store.Store, plan *Intent) (*Intent, store.Revision, error) {
	have, version, err := ReadIntent(ctx, st)
	switch {
	case err != nil:
		return nil, 0, err
	case have != nil && !have.sameBackup(plan):
		return nil, 0, fmt.Errorf("backup: a backup of cluster %s of %s was restored into it: %w", have.Header.Cluster, have.Header.CreatedAt.UTC().Format("2006-01-02T15:04:05Z"), ErrOtherRestore)
	case have != nil:
		return have, version, nil
	}
	l, err := st.List(ctx, "")
	if err != nil {
		return nil, 0, err
	}
	if n := len(l.Entries); n > 0 {
		return nil, 0, fmt.Errorf("backup: it holds %d entries, such as %q: %w", n, l.Entries[0].Key, ErrOccupied)
	}
	return nil, 0, nil
}

// begin takes the store.
func (w *restoring) begin(ctx context.Context, plan *Intent) error {
	have, version, err := Begun(ctx, w.st, plan)
	if err != nil {
		return err
	}
	if have != nil {
		if len(plan.Signatures) > 0 && (have.Index != plan.Index || have.AuthorityEpoch != plan.AuthorityEpoch) {
			return fmt.Errorf("backup: the restore of this backup was begun in it meanwhile, with other clocks than these signatures are for: begin again with that: %w", ErrOtherRestore)
		}
		w.intent, w.version = have, version
		return nil
	}
	raiser, ok := w.st.(store.Raiser)
	if !ok {
		return fmt.Errorf("backup: its engine has no way to: %w", ErrNoFloor)
	}
	if err := raiser.Raise(ctx, plan.Floor); err != nil {
		if errors.Is(err, store.ErrNotEmpty) {
			return fmt.Errorf("backup: somebody writes to it: %w", ErrOccupied)
		}
		return fmt.Errorf("backup: raising the revisions: %w", err)
	}
	if err := w.faults.Hit("restore.after-raise"); err != nil {
		return err
	}
	first := *plan
	first.Whole = false
	raw, err := first.Encode()
	if err != nil {
		return err
	}
	w.intent = &first
	w.version, err = w.commit(ctx, store.Tx{
		If:  []store.Condition{{Key: IntentKey}, {Key: history.HeadKey}},
		Put: []store.Write{{Key: IntentKey, Value: raw}},
	})
	if err != nil {
		return err
	}
	return w.faults.Hit("restore.after-intent")
}

// commit commits tx, again while its outcome is unknown.
func (w *restoring) commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	tx.ID = store.NewTxID()
	for try := 1; ; try++ {
		revision, err := w.st.Commit(ctx, tx)
		switch {
		case err == nil:
			return revision, nil
		case errors.Is(err, store.ErrConflict):
			return 0, fmt.Errorf("backup: somebody else writes to it: %w: %w", ErrOccupied, err)
		case !errors.Is(err, store.ErrUnknownOutcome) || try == restoreTries || ctx.Err() != nil:
			return 0, err
		}
	}
}

// fill writes the entries, all but the head. Records that an earlier try wrote are
// written again, as they are.
func (w *restoring) fill(ctx context.Context, r *Reader) error {
	if err := w.flush(ctx); err != nil { // of nothing: there is room for a batch
		return err
	}
	for e, err := range r.Entries() {
		if err != nil {
			return err
		}
		if e.Key == history.HeadKey {
			w.head = e.Value
			continue
		}
		if size := len(e.Key) + len(e.Value); !w.room.Take(1, size) {
			if err := w.flush(ctx); err != nil {
				return err
			}
			if !w.room.Take(1, size) {
				w.room = store.Room{} // it goes alone
			}
		}
		w.batch = append(w.batch, store.Write{Key: e.Key, Value: e.Value})
	}
	if t, ok := r.Trailer(); !ok || t != w.intent.Trailer {
		return fmt.Errorf("backup: it is another one than was planned for: %w", ErrAltered)
	}
	return w.flush(ctx)
}

func (w *restoring) flush(ctx context.Context) error {
	tx := store.Tx{If: []store.Condition{{Key: IntentKey, Version: w.version}}}
	w.room = store.RoomBeside(tx)
	if len(w.batch) == 0 {
		return nil
	}
	tx.Put = w.batch
	if _, err := w.commit(ctx, tx); err != nil {
		return err
	}
	w.batch = nil
	return w.faults.Hit("restore.after-batch")
}

// end compares the store with the backup, and makes it a cluster's.
func (w *restoring) end(ctx context.Context) error {
	l, err := w.st.List(ctx, "")
	if err != nil {
		return err
	}
	n, sum, head := uint64(1), NewSum(), store.Entry{Key: history.HeadKey, Value: w.head}
	add := func(e store.Entry) { sum.Add(e.Key, e.Value) }
	for _, e := range l.Entries {
		if head.Key != "" && e.Key > head.Key {
			add(head)
			head.Key = ""
		}
		if Kept(e.Key) {
			n++
			add(e)
		}
	}
	if head.Key != "" {
		add(head)
	}
	if n != w.intent.Trailer.Entries || sum.Digest() != w.intent.Trailer.Bound || !bytes.Equal(w.head, w.intent.Header.Head) {
		return fmt.Errorf("backup: it holds %d entries, and the backup %d, or others: %w", n, w.intent.Trailer.Entries, ErrOccupied)
	}
	if err := w.faults.Hit("restore.before-head"); err != nil {
		return err
	}
	w.intent.Whole = true
	raw, err := w.intent.Encode()
	if err != nil {
		return err
	}
	w.version, err = w.commit(ctx, store.Tx{
		If:  []store.Condition{{Key: IntentKey, Version: w.version}, {Key: history.HeadKey}},
		Put: []store.Write{{Key: IntentKey, Value: raw}, {Key: history.HeadKey, Value: w.head}},
	})
	if err != nil {
		return err
	}
	return w.faults.Hit("restore.after-head")
}

// sign adds signatures to the intent in the store.
func (w *restoring) sign(ctx context.Context, signatures []history.Signature) error {
	before := len(w.intent.Signatures)
	w.intent.merge(signatures)
	if len(w.intent.Signatures) == before {
		return nil
	}
	raw, err := w.intent.Encode()
	if err != nil {
		return err
	}
	w.version, err = w.commit(ctx, store.Tx{If: []store.Condition{{Key: IntentKey, Version: w.version}}, Put: []store.Write{{Key: IntentKey, Value: raw}}})
	return err
}
