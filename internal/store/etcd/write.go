package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// Bounds of a group in an etcd transaction, and the cost of a job that is no commit.
var (
	most = engine.Cost{Ops: usableOps, Bytes: maxRequest, Keys: 4 * getsPerRead}
	look = engine.Cost{Ops: 2, Bytes: 2*recordBytes + 4*store.MaxKeyBytes, Keys: 1}
)

// recordBytes bounds a key of ours and the first line of a record, without names.
const recordBytes = 256

// costOf returns what a commit takes of an etcd transaction, at most.
func costOf(tx store.Tx) engine.Cost {
	c := engine.Cost{
		Ops: 2, Bytes: 3*recordBytes + 4*len(tx.ID), Keys: len(tx.If) + len(tx.Put) + len(tx.Delete),
	}
	for _, w := range tx.Put {
		chunks := chunksOf(len(w.Value))
		c.Ops += 2 + chunks // the entry, its chunks, those of the entry before
		c.Bytes += 3*recordBytes + 4*len(w.Key) + chunks*recordBytes + len(w.Value)
		if chunks == 0 {
			c.Bytes += len(w.Value) // in the log, too
		}
	}
	for _, k := range tx.Delete {
		c.Ops += 2
		c.Bytes += recordBytes + 4*len(k)
	}
	return c
}

// large reports whether p is a commit that does not go into one etcd transaction. Such a
// one is alone in its group.
func large(p *engine.Plan) bool {
	inOne := engine.Cost{Ops: usableOps, Bytes: maxRequest}
	return len(p.Changes) == 1 && !costOf(p.Changes[0].Tx).Within(inOne)
}

// writer is the only one of this process who writes. All its fields belong to
// the goroutine that makes turns.
type writer struct {
	db *database

	snap   *snapshot       // of the last Read
	base   map[string]meta // likewise: the entries that its group names; missing: absent
	staged *stage          // of the commit that is tried again; nil: none

	pending bool     // a large commit may be on its way to its place
	garbage bool     // there may be records of changes that nobody is told any more
	old     []moment // of etcd's revisions, oldest first, with compaction=everything
}

var _ engine.Writer = (*writer)(nil)

type moment struct {
	at       time.Time
	revision int64
}

// patience is how long the writer tries to get an answer for a group.
func (db *database) patience() time.Duration {
	return 2 * db.opts.Timeout * time.Duration(len(db.addr.endpoints)+1)
}

// unknown returns the error of a commit whose answer was lost because of why, which says
// nothing to callers.
func unknown(why error) error { return engine.Unknown(errors.New(plain(why))) }

// refusedError: the servers refused what was to be written; nothing was.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return plain(e.err) }
func (e *refusedError) Unwrap() error { return e.err }

// Read implements [engine.Writer]. It first moves a large commit to its place.
func (w *writer) Read(ctx context.Context, ask engine.Ask) (engine.State, error) {
	for {
		snap, st, err := w.read(ctx, ask)
		if err == nil && snap.head.Pending == nil {
			w.snap = snap
			return st, nil
		}
		if err == nil {
			err = w.finish(ctx, snap)
		}
		if err != nil {
			return st, err
		}
	}
}

// Leave implements [engine.Writer].
func (w *writer) Leave() { w.staged = nil }

// Write implements [engine.Writer].
func (w *writer) Write(ctx context.Context, p *engine.Plan) error {
	err := w.write(ctx, p)
	if !errors.Is(err, errMoved) {
		w.staged = nil
	}
	return err
}

func (w *writer) write(ctx context.Context, p *engine.Plan) error {
	snap, large := w.snap, large(p)
	if large {
		p.Prune = p.Compacted
	}
	next := snap.head
	next.Revision, next.Compacted, next.Logged, next.By = p.Revision, p.Prune, p.Logged, randomName()
	var changes []*change
	for _, c := range p.Changes {
		changes = append(changes, &change{
			revision: c.Revision, by: next.By, id: c.Tx.ID, digest: c.Digest,
			puts: c.Tx.Put, deletes: c.Deletes, logged: c.Logged,
		})
	}
	var conditions []*pb.Compare
	var ops []*pb.RequestOp
	if large {
		tx := p.Changes[0].Tx
		if w.staged == nil || w.staged.unfit(snap) {
			st, err := w.stage(ctx, tx, p.Changes[0].Digest)
			if err != nil {
				return err
			}
			w.staged = st
		}
		st := w.staged
		st.tried = snap.mod
		conditions, ops = st.conditions, st.ops
		changes[0].by = st.by
		absent := absentBits(tx.Delete, p.Changes[0].Deletes)
		next.Pending = &pending{Stage: st.name, Chunks: len(st.conditions), Absent: absent}
	} else {
		ops = w.db.place(changes, w.base, snap.head.Compacted)
	}
	applied, err := w.swap(ctx, snap, next, changes, conditions, ops)
	if err != nil {
		return err
	}
	if !applied {
		return errMoved
	}
	w.garbage = w.garbage || p.Prune != p.Compacted
	w.pending = w.pending || large
	return nil
}

// Mend implements [engine.Writer].
func (w *writer) Mend(ctx context.Context, err error, tries int) error {
	if errors.Is(err, errMoved) {
		if tries <= 2 {
			return nil
		}
		// Others are faster: they must not all come back at once.
		pause := time.Duration(min(tries, 10)) * 5 * time.Millisecond
		if sleep(ctx, pause/2+rand.N(pause/2)) == nil {
			return nil
		}
		err = fmt.Errorf("others committed all the time for %v", w.db.patience())
	}
	w.staged = nil
	err = w.inTime(err)
	_, refused := errors.AsType[*refusedError](err)
	err = fmt.Errorf("nothing was written: %w", w.db.dialer.outage(err))
	if refused {
		return &engine.RejectedError{Err: err}
	}
	return err
}

// inTime replaces a deadline of the writer's own, which a caller would take for
// theirs.
func (w *writer) inTime(err error) error {
	if isAnswer(err, errNoSpace) {
		return &store.RefusedError{Reason: store.NoSpace, Err: fmt.Errorf("%s: raise --quota-backend-bytes "+
			"on the etcd servers, or compact and defragment them, and disarm the alarm", plain(err))}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &unreachableError{fmt.Errorf("none within %v", w.db.patience())}
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// read reads what a group is to be decided on, and its entries as they are into w.base;
// none of that if a large commit is pending.
func (w *writer) read(ctx context.Context, ask engine.Ask) (snap *snapshot, st engine.State, err error) {
	keys := slices.Concat(ask.Keys, ask.Puts)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	err = w.db.gone(w.db.dialer.ask(ctx, func(ctx context.Context, x *session) error {
		var gets []*pb.RangeRequest
		for _, id := range ask.IDs {
			gets = append(gets, &pb.RangeRequest{Key: w.db.key(idPrefix + id)})
		}
		if ask.Some {
			some := w.db.under(entryPrefix)
			some.Limit, some.KeysOnly = 1, true
			gets = append(gets, some)
		}
		for _, k := range keys {
			gets = append(gets, &pb.RangeRequest{Key: w.db.key(entryPrefix + k)})
		}
		var found []*pb.RangeResponse
		var err error
		if snap, found, err = w.db.look(ctx, x, gets...); err != nil || snap.head.Pending != nil {
			return err
		}
		st = engine.State{
			Revision: snap.head.Revision, Compacted: snap.head.Compacted, Logged: snap.head.Logged,
			Versions: map[string]store.Revision{}, Outcomes: map[string]engine.Outcome{},
			// Telling less costs nothing here; what is deleted for it is swept in steps.
			Oldest: store.MaxRevision,
		}
		w.base = map[string]meta{}
		for i, id := range ask.IDs {
			if len(found[i].Kvs) > 0 {
				if st.Outcomes[id], err = decodeOutcome(id, found[i].Kvs[0].Value); err != nil {
					return err
				}
			}
		}
		found = found[len(ask.IDs):]
		if ask.Some {
			st.Some = len(found[0].Kvs) > 0
			found = found[1:]
		}
		for i, k := range keys {
			if len(found[i].Kvs) > 0 {
				m, _, err := decodeEntry(k, found[i].Kvs[0].Value)
				if err != nil {
					return err
				}
				w.base[k], st.Versions[k] = m, m.Version
			}
		}
		return nil
	}))
	return snap, st, err
}

func putOp(key, value []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: value}}}
}

func deleteOp(key, end []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: key, RangeEnd: end},
	}}
}

// deleteBlob deletes the value of a put that stands apart.
func (db *database) deleteBlob(r store.Revision, put int) *pb.RequestOp {
	p := blobRange(r, put)
	return deleteOp(db.key(p), db.key(store.PrefixEnd(p)))
}

// putValue returns what puts the chunks of a value that stands apart; nothing for
// others.
func (db *database) putValue(r store.Revision, put int, value []byte) (ops []*pb.RequestOp) {
	for i := range chunksOf(len(value)) {
		ops = append(ops, putOp(db.key(blobKey(r, put, i)), value[i*chunkBytes:min(len(value), (i+1)*chunkBytes)]))
	}
	return ops
}

// place returns what puts changes where they belong. base holds the entries as they
// were before, and compacted is up to where the log of the head before is not told any
// more: a value that stands apart goes along with the last that needs it, the entry or
// the log.
func (db *database) place(changes []*change, base map[string]meta, compacted store.Revision) (ops []*pb.RequestOp) {
	type final struct {
		c   *change
		put int // -1: deleted
	}
	ends := map[string]final{}
	var order []string
	end := func(key string, f final) {
		if _, seen := ends[key]; !seen {
			order = append(order, key)
		}
		ends[key] = f
	}
	for _, c := range changes {
		ops = append(ops, putOp(db.key(logKey(c.revision, 0)), c.parts(false)[0]))
		if c.id != "" {
			ops = append(ops, putOp(db.key(idPrefix+c.id), encodeOutcome(c.revision, c.digest)))
		}
		for i, w := range c.puts {
			ops = append(ops, db.putValue(c.revision, i, w.Value)...)
			end(w.Key, final{c, i})
		}
		for _, k := range c.deletes {
			end(k, final{c, -1})
		}
	}
	for _, key := range order {
		f, before := ends[key], base[key]
		switch {
		case f.put >= 0:
			ops = append(ops, putOp(db.key(entryPrefix+key), encodeEntry(f.c.revision, f.put, f.c.puts[f.put].Value)))
		case before.Version != 0:
			ops = append(ops, deleteOp(db.key(entryPrefix+key), nil))
		}
		if before.Chunks > 0 && before.Version <= compacted {
			ops = append(ops, db.deleteBlob(before.Version, before.Put))
		}
	}
	return ops
}

// still returns the conditions that the head is the very one of snap.
func (db *database) still(snap *snapshot) []*pb.Compare {
	return []*pb.Compare{
		{
			Target: pb.Compare_MOD, Result: pb.Compare_EQUAL, Key: db.key(headKey),
			TargetUnion: &pb.Compare_ModRevision{ModRevision: snap.mod},
		},
		// In an etcd that was set back, revisions come again; this name does not.
		{
			Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL, Key: db.key(headKey),
			TargetUnion: &pb.Compare_Value{Value: snap.raw},
		},
	}
}

// swap replaces the head of snap by next, along with ops that place changes. It reports
// false if someone else was faster, and nothing was written. An error that does not match
// store.ErrUnknownOutcome means that nothing was written, either.
func (w *writer) swap(
	ctx context.Context, snap *snapshot, next head, changes []*change, conditions []*pb.Compare, ops []*pb.RequestOp,
) (bool, error) {
	x, err := w.db.dialer.session(ctx)
	if err != nil {
		if ctx.Err() == nil && elsewhere(err) {
			return false, nil // that member is gone since it was read: whoever reads again asks each
		}
		return false, err
	}
	raw := encodeHead(next)
	answer, err := x.txn(ctx, &pb.TxnRequest{
		Compare: append(w.db.still(snap), conditions...),
		Success: append([]*pb.RequestOp{putOp(w.db.key(headKey), raw)}, ops...),
	})
	switch {
	case err == nil:
		return answer.Succeeded, nil
	case status.Code(err) == codes.Unauthenticated, isAnswer(err, errOldAuth):
		w.db.dialer.giveUp(x) // log in again
		return false, nil
	case status.Code(err) == codes.PermissionDenied:
		return false, &refusedError{&store.RefusedError{Reason: store.Forbidden, Err: typed(err)}}
	case status.Code(err) == codes.InvalidArgument, isAnswer(err, errTooMany):
		return false, &refusedError{typed(err)}
	}
	if !isAnswer(err, errNoSpace) {
		w.db.dialer.giveUp(x)
	}
	return w.settle(ctx, snap, changes, raw, err)
}

// settle finds out whether a swap took place whose answer was lost, or says that
// the space is used up: then it may have taken place all the same. While the head
// is the old one, the swap may still be on its way; so the head is replaced by one
// that says the same, and it cannot arrive any more.
func (w *writer) settle(
	ctx context.Context, snap *snapshot, changes []*change, raw []byte, why error,
) (bool, error) {
	full := isAnswer(why, errNoSpace)
	for tries := 0; ; tries++ {
		if tries > 0 {
			if err := sleep(ctx, time.Duration(20+rand.N(60))*time.Millisecond); err != nil {
				return false, unknown(why)
			}
		}
		var now *snapshot
		var happened, gone bool
		err := w.db.dialer.ask(ctx, func(ctx context.Context, x *session) (err error) {
			var gets []*pb.RangeRequest
			if len(changes) > 0 {
				gets = append(gets, &pb.RangeRequest{Key: w.db.key(logKey(changes[0].revision, 0))})
			}
			var found []*pb.RangeResponse
			if now, found, err = w.db.look(ctx, x, gets...); err != nil {
				return err
			}
			happened, gone = bytes.Equal(now.raw, raw), false
			if len(gets) == 0 || happened {
				return nil
			}
			if len(found[0].Kvs) > 0 {
				record, _, err := decodePart(logKey(changes[0].revision, 0), found[0].Kvs[0].Value)
				if err != nil {
					return err
				}
				happened = record.By == changes[0].by
			} else {
				gone = now.head.Compacted >= changes[0].revision
			}
			return nil
		})
		switch {
		case err != nil:
			continue
		case happened:
			return true, nil
		case gone:
			return false, unknown(why)
		case now.mod != snap.mod || !bytes.Equal(now.raw, snap.raw):
			return false, nil // of a head that is no more, it cannot happen
		case full:
			return false, &refusedError{why}
		}
		same := snap.head
		same.By = randomName()
		if x, err := w.db.dialer.session(ctx); err == nil {
			_, err := x.txn(ctx, &pb.TxnRequest{
				Compare: w.db.still(snap),
				Success: []*pb.RequestOp{putOp(w.db.key(headKey), encodeHead(same))},
			})
			if err != nil && elsewhere(err) {
				w.db.dialer.giveUp(x)
			}
		}
		// Its outcome shows in the next read.
	}
}
