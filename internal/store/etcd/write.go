package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/retain"
)

// job is one call that only the writer can serve.
type job struct {
	kind   jobKind
	tx     store.Tx       // of jobCommit; its own copy, because the caller may be gone
	id     string         // of jobOutcome
	digest []byte         // of a jobCommit with an ID
	floor  store.Revision // of jobRaise
	over   bool           // of jobRaise: over what the store holds

	// waiting, then taken by the writer when it is about to be written, or
	// abandoned by the caller.
	state atomic.Int32

	// Written by the writer before done is closed.
	done     chan struct{}
	revision store.Revision
	err      error
}

type jobKind int

const (
	jobCommit jobKind = iota
	jobOutcome
	jobRaise
)

const (
	waiting int32 = iota
	taken
	abandoned
)

// Commit implements [store.Store].
func (s *Store) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	if err := tx.Validate(); err != nil {
		return 0, err
	}
	j := &job{kind: jobCommit, tx: tx.Clone(), done: make(chan struct{})}
	if tx.ID != "" {
		digest := tx.Digest()
		j.digest = digest[:]
	}
	return s.hand(ctx, j)
}

// CompareAndSwap implements [store.KV].
func (s *Store) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	return s.Commit(ctx, store.SwapTx(key, old, value))
}

// Outcome implements [store.Store].
func (s *Store) Outcome(ctx context.Context, txID string) (store.Revision, error) {
	if err := store.CheckTxID(txID); err != nil {
		return 0, err
	}
	return s.hand(ctx, &job{kind: jobOutcome, id: txID, done: make(chan struct{})})
}

// Raise implements [store.Raiser].
func (s *Store) Raise(ctx context.Context, floor store.Revision) error {
	return s.raise(ctx, floor, false)
}

// Lift implements [store.Lifter].
func (s *Store) Lift(ctx context.Context, floor store.Revision) error {
	return s.raise(ctx, floor, true)
}

func (s *Store) raise(ctx context.Context, floor store.Revision, over bool) error {
	if floor > store.MaxRevision/2 {
		return fmt.Errorf("store: raise to %d: %w: at most %d, so that there is room to go on", floor, store.ErrInvalid, store.MaxRevision/2)
	}
	_, err := s.hand(ctx, &job{kind: jobRaise, floor: floor, over: over, done: make(chan struct{})})
	return err
}

// hand gives j to the writer and waits for its answer.
func (s *Store) hand(ctx context.Context, j *job) (store.Revision, error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.leave()
	if err := ctx.Err(); err != nil {
		return 0, notBegun(err)
	}
	select {
	case s.queue <- j:
	case <-ctx.Done():
		return 0, notBegun(ctx.Err())
	}
	select {
	case <-j.done:
		return j.revision, j.err
	case <-ctx.Done():
	}
	if j.state.CompareAndSwap(waiting, abandoned) {
		return 0, notBegun(ctx.Err())
	}
	select {
	case <-j.done: // the answer is there, so there is no reason to forget it
		return j.revision, j.err
	default:
		return 0, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, ctx.Err())
	}
}

func notBegun(err error) error {
	return fmt.Errorf("store: not begun, nothing was written: %w", err)
}

// cost is what a job takes of an etcd transaction, at most.
type cost struct {
	ops, bytes int
	keys       int // to read before
}

func (j *job) cost() cost {
	const record = 256 // a key of ours and the first line of a record, without names
	if j.kind != jobCommit {
		return cost{ops: 2, bytes: 2*record + 4*store.MaxKeyBytes, keys: 1}
	}
	c := cost{ops: 2, bytes: 3*record + 4*len(j.tx.ID), keys: len(j.tx.If) + len(j.tx.Put) + len(j.tx.Delete)}
	for _, w := range j.tx.Put {
		chunks := chunksOf(len(w.Value))
		c.ops += 2 + chunks // the entry, its chunks, those of the entry before
		c.bytes += 3*record + 4*len(w.Key) + chunks*record + len(w.Value)
		if chunks == 0 {
			c.bytes += len(w.Value) // in the log, too
		}
	}
	for _, k := range j.tx.Delete {
		c.ops += 2
		c.bytes += record + 4*len(k)
	}
	return c
}

func (c cost) add(d cost) cost { return cost{c.ops + d.ops, c.bytes + d.bytes, c.keys + d.keys} }

// fits reports whether that much goes into one etcd transaction.
func (c cost) fits() bool { return c.ops <= usableOps && c.bytes <= maxRequest }

// writer is the only one of this process who writes. All its fields belong to
// the goroutine in run.
type writer struct {
	s    *Store
	next *job // taken from the queue, and too much for the group before

	pending bool // a large commit may be on its way to its place
	garbage bool // there may be records of changes that nobody is told any more
	keep    retain.Window
	old     []moment // of etcd's revisions, oldest first, with compaction=everything
}

type moment struct {
	at       time.Time
	revision int64
}

// run serves the queue until it is closed.
func (w *writer) run() {
	tick := time.NewTicker(w.keep.Interval())
	defer tick.Stop()
	for open := true; open; {
		var j *job
		switch {
		case w.next != nil:
			j, w.next = w.next, nil
		case w.keep.Due() || w.pending || w.garbage:
			// Tidying happens when nobody waits; under load a part of it goes along.
			select {
			case <-tick.C:
				w.ticked()
			default:
			}
			select {
			case j, open = <-w.s.queue:
			default:
				w.tidy()
			}
		default:
			select {
			case j, open = <-w.s.queue:
			case <-tick.C:
				w.ticked()
			}
		}
		w.serve(w.collect(j))
	}
}

func (w *writer) ticked() {
	revision, logged := w.s.hub.State()
	w.keep.Tick(time.Now(), revision, logged)
	w.garbage = true // what others left, or what failed the last time
}

// collect takes j, unless it is nil, and whatever else is waiting and goes along
// with it. What does not fit goes alone.
func (w *writer) collect(j *job) []*job {
	const maxKeys = 4 * getsPerRead
	var group []*job
	var sum cost
	for j != nil {
		if j.state.Load() == waiting {
			c := sum.add(j.cost())
			if len(group) > 0 && (!c.fits() || c.keys > maxKeys) {
				w.next = j
				break
			}
			group, sum = append(group, j), c
			if !c.fits() {
				break
			}
		}
		select {
		case j = <-w.s.queue: // nil if it is closed
		default:
			j = nil
		}
	}
	return group
}

// patience is how long the writer tries to get an answer for a group.
func (s *Store) patience() time.Duration {
	return 2 * s.opts.Timeout * time.Duration(len(s.addr.endpoints)+1)
}

// serve commits group as one etcd transaction and answers. If the servers refuse
// that, the jobs are tried one by one, so that one that they refuse fails alone.
func (w *writer) serve(group []*job) {
	if len(group) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.s.patience())
	defer cancel()
	p, jobs, err := w.attempt(ctx, group)
	_, refused := errors.AsType[*refusedError](err)
	switch {
	case err == nil:
		for i, j := range jobs {
			j.revision, j.err = p.results[i].revision, p.results[i].err
			close(j.done)
		}
	case errors.Is(err, store.ErrUnknownOutcome):
		w.answerLost(jobs, p.results, err)
	case refused && len(jobs) > 1:
		for _, j := range jobs {
			w.serve([]*job{j})
		}
	default:
		for _, j := range jobs {
			j.err = fmt.Errorf("store: commit to %s: nothing was written: %w", w.s.Name(), err)
			close(j.done)
		}
	}
}

// answerLost answers a group of which nobody knows whether it was committed.
// Who has no part in what it writes gets the answer all the same.
func (w *writer) answerLost(jobs []*job, results []result, err error) {
	for i, j := range jobs {
		r := results[i]
		switch {
		case r.certain:
			j.revision, j.err = r.revision, r.err
		case j.kind == jobCommit && r.err != nil:
			// What it met may not be there, but neither is it.
			j.err = fmt.Errorf("store: commit to %s: nothing was written: %w", w.s.Name(), reasonOf(err))
		case j.kind == jobOutcome:
			j.err = fmt.Errorf("store: outcome of %q in %s: %w", j.id, w.s.Name(), reasonOf(err))
		default:
			j.err = fmt.Errorf("store: commit to %s: %w", w.s.Name(), err)
		}
		close(j.done)
	}
}

// unknownError is why an outcome is unknown.
type unknownError struct{ err error }

func (e *unknownError) Error() string        { return store.ErrUnknownOutcome.Error() + ": " + plain(e.err) }
func (e *unknownError) Is(target error) bool { return target == store.ErrUnknownOutcome }

// reasonOf returns why an outcome is unknown, as an error that does not say so.
func reasonOf(err error) error {
	if u, ok := errors.AsType[*unknownError](err); ok {
		return errors.New(plain(u.err))
	}
	return err
}

// refusedError: the servers refused what was to be written; nothing was.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return plain(e.err) }
func (e *refusedError) Unwrap() error { return e.err }

// attempt decides group and commits it, as often as someone else was faster. It
// returns the jobs that were not given up meanwhile, to which the plan belongs. An
// error means that nothing was written, unless it matches
// store.ErrUnknownOutcome; then the plan says what was tried.
//
// ctx is not any caller's: one caller's leaving must not fail the others.
func (w *writer) attempt(ctx context.Context, group []*job) (*plan, []*job, error) {
	var st *stage
	claimed := false
	for tries := 0; ; tries++ {
		if tries > 2 {
			// Others are faster: they must not all come back at once.
			pause := time.Duration(min(tries, 10)) * 5 * time.Millisecond
			if err := sleep(ctx, pause/2+rand.N(pause/2)); err != nil {
				return nil, claim(group, &claimed), fmt.Errorf("others committed all the time for %v", w.s.patience())
			}
		}
		snap, state, err := w.read(ctx, group)
		if err != nil {
			return nil, claim(group, &claimed), w.inTime(err)
		}
		if snap.head.Pending != nil {
			if err := w.finish(ctx, snap); err != nil {
				return nil, claim(group, &claimed), w.inTime(err)
			}
			continue
		}
		// From here on a caller cannot give up without doubt.
		group = claim(group, &claimed)
		base := maps.Clone(state.entries)
		p := decide(state, group, w.s.Name())
		now := time.Now()
		large := len(group) == 1 && !group[0].cost().fits() && p.writes()
		p.head.By, p.head.Pending = randomName(), nil
		if !large {
			p.head.Compacted = w.keep.Next(snap.head.Compacted, len(group))
			if p.head.Compacted != snap.head.Compacted {
				// Telling less costs nothing here; what is deleted for it is swept in steps.
				p.head.Compacted = w.keep.Skip(p.head.Compacted, store.MaxRevision)
			}
		}
		if !p.writes() && p.head.Compacted == snap.head.Compacted {
			w.keep.Committed(now, p.head.Revision, p.head.Compacted, p.head.Logged) // others may have written and pruned
			return p, group, nil                                                    // nothing was written, and what was read is durable
		}
		for _, c := range p.changes {
			c.by = p.head.By
		}
		var conditions []*pb.Compare
		var ops []*pb.RequestOp
		if large {
			if st == nil || st.unfit(snap) {
				if st, err = w.stage(ctx, snap, group[0]); err != nil {
					return p, group, w.inTime(err)
				}
			}
			st.tried = snap.mod
			conditions, ops = st.conditions, st.ops
			p.changes[0].by = st.by
			p.head.Pending = &pending{Stage: st.name, Chunks: len(st.conditions), Absent: absentBits(group[0].tx.Delete, p.changes[0].deletes)}
		} else {
			ops = w.s.place(p, base, snap.head.Compacted)
		}
		applied, err := w.swap(ctx, snap, p, conditions, ops)
		if err != nil {
			return p, group, w.inTime(err)
		}
		if !applied {
			continue
		}
		w.keep.Committed(time.Now(), p.head.Revision, p.head.Compacted, p.head.Logged)
		w.garbage = w.garbage || p.head.Compacted != snap.head.Compacted
		if p.writes() {
			w.s.hub.Committed(p.before, p.head.Revision, p.head.Logged, p.keys())
		}
		w.pending = w.pending || large
		return p, group, nil
	}
}

// claim takes the jobs that were not given up, once.
func claim(group []*job, claimed *bool) []*job {
	if *claimed {
		return group
	}
	*claimed = true
	return slices.DeleteFunc(group, func(j *job) bool {
		return !j.state.CompareAndSwap(waiting, taken) && j.state.Load() != taken // which it is when it is tried again
	})
}

// inTime replaces a deadline of the writer's own, which a caller would take for
// theirs.
func (w *writer) inTime(err error) error {
	if errors.Is(err, store.ErrUnknownOutcome) {
		return err
	}
	if isAnswer(err, errNoSpace) {
		return &store.RefusedError{Reason: store.NoSpace, Err: fmt.Errorf("%s: raise --quota-backend-bytes on the etcd servers, or compact and defragment them, and disarm the alarm", plain(err))}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no etcd server answered within %v", w.s.patience())
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

// read reads what group is to be decided on.
func (w *writer) read(ctx context.Context, group []*job) (snap *snapshot, st state, err error) {
	var keys, ids []string
	raise := false
	for _, j := range group {
		for _, c := range j.tx.If {
			keys = append(keys, c.Key)
		}
		for _, p := range j.tx.Put {
			keys = append(keys, p.Key)
		}
		keys = append(keys, j.tx.Delete...)
		if id := j.tx.ID + j.id; id != "" { // a job has one of them
			ids = append(ids, id)
		}
		raise = raise || j.kind == jobRaise
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	err = w.s.gone(w.s.dialer.ask(ctx, func(ctx context.Context, x *session) error {
		var gets []*pb.RangeRequest
		for _, id := range ids {
			gets = append(gets, &pb.RangeRequest{Key: w.s.key(idPrefix + id)})
		}
		if raise {
			some := w.s.under(entryPrefix)
			some.Limit, some.KeysOnly = 1, true
			gets = append(gets, some)
		}
		for _, k := range keys {
			gets = append(gets, &pb.RangeRequest{Key: w.s.key(entryPrefix + k)})
		}
		var found []*pb.RangeResponse
		var err error
		if snap, found, err = w.s.look(ctx, x, gets...); err != nil || snap.head.Pending != nil {
			return err
		}
		st = state{head: snap.head, entries: map[string]meta{}, outcomes: map[string]outcome{}}
		for i, id := range ids {
			if len(found[i].Kvs) > 0 {
				if st.outcomes[id], err = decodeOutcome(id, found[i].Kvs[0].Value); err != nil {
					return err
				}
			}
		}
		found = found[len(ids):]
		if raise {
			st.some = len(found[0].Kvs) > 0
			found = found[1:]
		}
		for i, k := range keys {
			if len(found[i].Kvs) > 0 {
				if st.entries[k], _, err = decodeEntry(k, found[i].Kvs[0].Value); err != nil {
					return err
				}
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
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: key, RangeEnd: end}}}
}

// deleteBlob deletes the value of a put that stands apart.
func (s *Store) deleteBlob(r store.Revision, put int) *pb.RequestOp {
	p := blobRange(r, put)
	return deleteOp(s.key(p), s.key(store.PrefixEnd(p)))
}

// putValue returns what puts the chunks of a value that stands apart; nothing for
// others.
func (s *Store) putValue(r store.Revision, put int, value []byte) (ops []*pb.RequestOp) {
	for i := range chunksOf(len(value)) {
		ops = append(ops, putOp(s.key(blobKey(r, put, i)), value[i*chunkBytes:min(len(value), (i+1)*chunkBytes)]))
	}
	return ops
}

// place returns what puts the changes of p where they belong. base holds the
// entries as they were before, and compacted is up to where the log of the head
// before is not told any more: a value that stands apart goes along with the
// last that needs it, the entry or the log.
func (s *Store) place(p *plan, base map[string]meta, compacted store.Revision) (ops []*pb.RequestOp) {
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
	for _, c := range p.changes {
		ops = append(ops, putOp(s.key(logKey(c.revision, 0)), c.parts(false)[0]))
		if c.id != "" {
			ops = append(ops, putOp(s.key(idPrefix+c.id), encodeOutcome(c.revision, c.digest)))
		}
		for i, w := range c.puts {
			ops = append(ops, s.putValue(c.revision, i, w.Value)...)
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
			ops = append(ops, putOp(s.key(entryPrefix+key), encodeEntry(f.c.revision, f.put, f.c.puts[f.put].Value)))
		case before.Version != 0:
			ops = append(ops, deleteOp(s.key(entryPrefix+key), nil))
		}
		if before.Chunks > 0 && before.Version <= compacted {
			ops = append(ops, s.deleteBlob(before.Version, before.Put))
		}
	}
	return ops
}

// still returns the conditions that the head is the very one of snap.
func (s *Store) still(snap *snapshot) []*pb.Compare {
	return []*pb.Compare{
		{Target: pb.Compare_MOD, Result: pb.Compare_EQUAL, Key: s.key(headKey), TargetUnion: &pb.Compare_ModRevision{ModRevision: snap.mod}},
		// In an etcd that was set back, revisions come again; this name does not.
		{Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL, Key: s.key(headKey), TargetUnion: &pb.Compare_Value{Value: snap.raw}},
	}
}

// swap replaces the head of snap by that of p, along with ops. It reports false if
// someone else was faster, and nothing was written. An error that does not match
// store.ErrUnknownOutcome means that nothing was written, either.
func (w *writer) swap(ctx context.Context, snap *snapshot, p *plan, conditions []*pb.Compare, ops []*pb.RequestOp) (bool, error) {
	x, err := w.s.dialer.session(ctx)
	if err != nil {
		return false, err
	}
	raw := encodeHead(p.head)
	answer, err := x.txn(ctx, &pb.TxnRequest{
		Compare: append(w.s.still(snap), conditions...),
		Success: append([]*pb.RequestOp{putOp(w.s.key(headKey), raw)}, ops...),
	})
	switch {
	case err == nil:
		return answer.Succeeded, nil
	case status.Code(err) == codes.Unauthenticated, isAnswer(err, errOldAuth):
		w.s.dialer.giveUp(x) // log in again
		return false, nil
	case status.Code(err) == codes.PermissionDenied:
		return false, &refusedError{&store.RefusedError{Reason: store.Forbidden, Err: typed(err)}}
	case status.Code(err) == codes.InvalidArgument, isAnswer(err, errTooMany):
		return false, &refusedError{typed(err)}
	}
	if !isAnswer(err, errNoSpace) {
		w.s.dialer.giveUp(x)
	}
	return w.settle(ctx, snap, p, raw, err)
}

// settle finds out whether a swap took place whose answer was lost, or says that
// the space is used up: then it may have taken place all the same. While the head
// is the old one, the swap may still be on its way; so the head is replaced by one
// that says the same, and it cannot arrive any more.
func (w *writer) settle(ctx context.Context, snap *snapshot, p *plan, raw []byte, why error) (bool, error) {
	full := isAnswer(why, errNoSpace)
	for tries := 0; ; tries++ {
		if tries > 0 {
			if err := sleep(ctx, time.Duration(20+rand.N(60))*time.Millisecond); err != nil {
				return false, &unknownError{why}
			}
		}
		var now *snapshot
		var happened, gone bool
		err := w.s.dialer.ask(ctx, func(ctx context.Context, x *session) (err error) {
			var gets []*pb.RangeRequest
			if len(p.changes) > 0 {
				gets = append(gets, &pb.RangeRequest{Key: w.s.key(logKey(p.changes[0].revision, 0))})
			}
			var found []*pb.RangeResponse
			if now, found, err = w.s.look(ctx, x, gets...); err != nil {
				return err
			}
			happened, gone = bytes.Equal(now.raw, raw), false
			if len(gets) == 0 || happened {
				return nil
			}
			if len(found[0].Kvs) > 0 {
				record, _, err := decodePart(logKey(p.changes[0].revision, 0), found[0].Kvs[0].Value)
				if err != nil {
					return err
				}
				happened = record.By == p.changes[0].by
			} else {
				gone = now.head.Compacted >= p.changes[0].revision
			}
			return nil
		})
		switch {
		case err != nil:
			continue
		case happened:
			return true, nil
		case gone:
			return false, &unknownError{why}
		case now.mod != snap.mod || !bytes.Equal(now.raw, snap.raw):
			return false, nil // of a head that is no more, it cannot happen
		case full:
			return false, &refusedError{why}
		}
		same := snap.head
		same.By = randomName()
		if x, err := w.s.dialer.session(ctx); err == nil {
			if _, err := x.txn(ctx, &pb.TxnRequest{Compare: w.s.still(snap), Success: []*pb.RequestOp{putOp(w.s.key(headKey), encodeHead(same))}}); err != nil && elsewhere(err) {
				w.s.dialer.giveUp(x)
			}
		}
		// What came of it shows in the next read.
	}
}
