package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

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

	state atomic.Int32 // waiting, then taken by the writer or abandoned by the caller

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
	j, err := commitJob(tx)
	if err != nil {
		return 0, err
	}
	return s.hand(ctx, j)
}

func commitJob(tx store.Tx) (*job, error) {
	if err := tx.Validate(); err != nil {
		return nil, err
	}
	j := &job{kind: jobCommit, tx: tx.Clone(), done: make(chan struct{})}
	if tx.ID != "" {
		digest := tx.Digest()
		j.digest = digest[:]
	}
	return j, nil
}

// CompareAndSwap implements [store.KV].
func (s *Store) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	return s.Commit(ctx, store.SwapTx(key, old, value))
}

// Outcome implements [store.Store]. It passes through the writer's queue, so
// that whatever was handed over before is decided when it answers.
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
		return fmt.Errorf("%w: floor %d is above %d, which would leave too few revisions", store.ErrInvalid, floor, store.MaxRevision/2)
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

// writer is the only one who writes to the database. All its fields belong to
// the goroutine in run.
type writer struct {
	s    *Store
	conn *sql.Conn

	begin, commit, rollback                      *sql.Stmt
	getMeta, setMeta                             *sql.Stmt
	getVersion, put, del, addChange              *sql.Stmt
	getOutcome, addOutcome                       *sql.Stmt
	pruneChanges, pruneOutcomes, anEntry, oldest *sql.Stmt
	pageCount                                    *sql.Stmt
	statements                                   []*sql.Stmt // all of these

	// unsettled: the last SQLite transaction failed in its commit, so that its
	// pages may lie in the log, complete, although nobody sees them. They would
	// come back after a crash unless a later transaction overwrites them; so
	// until one has, no answer is given that was not committed itself.
	unsettled bool

	// tight: no page may be added to the database, whose file could not grow.
	tight bool

	keep   retain.Window
	logged int64 // bytes of changes ever counted, those at the start included

	at         logMarks
	checkpoint chan struct{} // capacity 1: wakes the checkpointer
	logLong    chan struct{} // capacity 1: the checkpointer cannot keep up alone
}

func newWriter(ctx context.Context, s *Store, conn *sql.Conn) (_ *writer, err error) {
	w := &writer{s: s, conn: conn, checkpoint: make(chan struct{}, 1), logLong: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&w.begin, "begin immediate"},
		{&w.commit, "commit"},
		{&w.rollback, "rollback"},
		{&w.getMeta, selectMeta},
		{&w.setMeta, "update meta set value = case name when 'revision' then ? when 'compacted' then ? end where name in ('revision', 'compacted')"},
		{&w.getVersion, "select version from entries where key = ?"},
		{&w.put, "insert into entries (key, version, value) values (?, ?, ?) on conflict (key) do update set version = excluded.version, value = excluded.value"},
		{&w.del, "delete from entries where key = ?"},
		{&w.addChange, "insert into changes (seq, key, value) values (?, ?, ?)"},
		{&w.getOutcome, "select revision, digest from outcomes where id = ?"},
		{&w.addOutcome, "insert into outcomes (revision, id, digest) values (?, ?, ?)"},
		{&w.pruneChanges, "delete from changes where seq < ?"},
		{&w.oldest, "select min(coalesce((select min(seq) / 1024 from changes), ?1), coalesce((select min(revision) from outcomes), ?1))"},
		{&w.pruneOutcomes, "delete from outcomes where revision <= ?"},
		{&w.pageCount, "pragma page_count"},
		{&w.anEntry, "select exists (select 1 from entries)"},
	} {
		if *p.stmt, err = conn.PrepareContext(ctx, p.text); err != nil {
			return nil, err
		}
		w.statements = append(w.statements, *p.stmt)
	}
	revision, compacted, err := w.meta(ctx)
	if err != nil {
		return nil, err
	}
	kept, err := keptChanges(ctx, conn, compacted, revision)
	if err != nil {
		return nil, err
	}
	for _, p := range kept {
		w.logged += p.Bytes
	}
	limits := retain.Limits{Age: s.opts.Retention, Commits: s.opts.RetainCommits, Bytes: s.opts.RetainBytes}
	w.keep = retain.New(limits, time.Now(), compacted, revision, w.logged, kept)
	return w, nil
}

// close gives the connection back. With a statement left open, SQLite would
// keep the connection, and with it the files, for ever.
func (w *writer) close() {
	for _, s := range w.statements {
		s.Close() // frees memory; there is nothing left to fail
	}
	w.conn.Close()
}

// keptChanges measures the changes from earlier runs, in as many parts as
// the window of what is kept tells apart.
func keptChanges(ctx context.Context, conn *sql.Conn, compacted, revision store.Revision) ([]retain.Part, error) {
	width := int64(revision-compacted)/retain.MarksPerWindow + 1
	rows, err := conn.QueryContext(ctx, "select max(seq), sum(length(key) + coalesce(length(value), 0)) from changes group by seq / ? order by 1", width*store.MaxTxOps)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var parts []retain.Part
	for rows.Next() {
		var seq, bytes int64
		if err := rows.Scan(&seq, &bytes); err != nil {
			return nil, err
		}
		parts = append(parts, retain.Part{Revision: store.Revision(seq / store.MaxTxOps), Bytes: bytes})
	}
	return parts, rows.Err()
}

func (w *writer) meta(ctx context.Context) (revision, compacted store.Revision, err error) {
	err = w.getMeta.QueryRowContext(ctx).Scan(&revision, &compacted)
	return revision, compacted, err
}

// run serves the queue until it is closed.
func (w *writer) run() {
	defer w.close()
	tick := time.NewTicker(w.keep.Interval())
	defer tick.Stop()
	group := make([]*job, 0, maxGroup)
	for open := true; open; {
		group = group[:0]
		var j *job
		if w.keep.Due() {
			// Old changes go when nobody waits; under load they go along with groups.
			// Other work must not starve meanwhile.
			select {
			case <-tick.C:
				w.keep.Tick(time.Now(), 0, 0)
			case <-w.logLong:
				w.checkpointNow()
			default:
			}
			select {
			case j, open = <-w.s.queue:
			default:
				w.prune()
			}
		} else {
			select {
			case j, open = <-w.s.queue:
			case <-tick.C:
				w.keep.Tick(time.Now(), 0, 0)
			case <-w.logLong:
				w.checkpointNow()
			}
		}
		w.serve(w.collect(group, j))
	}
}

// collect takes j, unless it is nil, and whatever else is waiting.
func (w *writer) collect(group []*job, j *job) []*job {
	bytes := 0
	for j != nil {
		if j.state.CompareAndSwap(waiting, taken) {
			group = append(group, j)
			bytes += j.tx.Size()
		}
		if len(group) == maxGroup || bytes > maxGroupBytes {
			break
		}
		select {
		case j = <-w.s.queue: // nil if it is closed
		default:
			j = nil
		}
	}
	return group
}

// serve commits group as one SQLite transaction and answers. If that fails, the
// jobs are tried one by one, so that one that does not fit on the disk fails
// alone.
func (w *writer) serve(group []*job) {
	if len(group) == 0 {
		return
	}
	results, err := w.tryHard(group)
	if err != nil && w.keep.Due() && !errors.Is(err, store.ErrUnknownOutcome) {
		// Pruning is no reason for a commit to fail.
		w.keep.Postpone()
		results, err = w.tryHard(group)
	}
	if err == nil {
		w.answer(group, results)
		return
	}
	if len(group) == 1 || errors.Is(err, store.ErrUnknownOutcome) {
		err = w.s.refusal(err)
		for _, j := range group {
			j.err = fmt.Errorf("store: commit to %s: %w", w.s.path, err)
			close(j.done)
		}
		return
	}
	for _, j := range group {
		w.serve([]*job{j})
	}
}

// result is what a job in a group came to. It holds once the group is durable.
type result struct {
	revision store.Revision // of the answer; 0 with an error
	voided   store.Revision // taken to void an ID
	err      error
	keys     []string // written
	bytes    int      // added to the change log
}

func (w *writer) answer(group []*job, results []result) {
	var keys []string
	wrote := false
	for i, j := range group {
		r := results[i]
		j.revision, j.err = r.revision, r.err
		close(j.done)
		keys = append(keys, r.keys...)
		wrote = wrote || r.bytes > 0
	}
	if wrote {
		w.s.hub.Committed(0, 0, 0, keys) // nobody else writes: where it is the database says
	}
	w.watchLog()
}

func rouse(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// tryHard is attempt, and once more with what the log takes given back if there is no
// space. What fits into the database as it stands may take the spare for its log. A log
// that cannot be written gets a chance to be again.
func (w *writer) tryHard(group []*job) ([]result, error) {
	results, err := w.attempt(group)
	switch {
	case err == nil:
	case errors.Is(err, store.ErrUnknownOutcome):
		if codeOf(err) == sqliteIOErr {
			w.shrinkLog()
		}
	case isFull(err) && w.shrinkLog():
		results, err = w.attempt(group)
	}
	if isFull(err) && w.s.spare.release() == nil {
		w.tight = true
		results, err = w.attempt(group)
		w.tight = false
		w.shrinkLog()
		w.keepSpare()
	}
	return results, err
}

// fits returns an error if what the open transaction wrote takes more pages than the
// file of the database has.
func (w *writer) fits(ctx context.Context) error {
	var pages int64
	if err := w.pageCount.QueryRowContext(ctx).Scan(&pages); err != nil {
		return err
	}
	info, err := os.Stat(w.s.path)
	if err != nil || pages*pageBytes <= info.Size() {
		return err
	}
	return &store.RefusedError{Reason: store.NoSpace, Err: fmt.Errorf("it takes %d bytes more", pages*pageBytes-info.Size())}
}

// attempt applies group in one SQLite transaction, along with some pruning, and
// commits it. With an error nothing of it is visible, or the error matches
// store.ErrUnknownOutcome: a crash, or whoever puts the file back, could bring it back.
//
// The transaction is not bound to any caller's context: it is short, and one
// caller's leaving must not fail the others.
func (w *writer) attempt(group []*job) ([]result, error) {
	ctx := context.Background()
	if _, err := w.begin.ExecContext(ctx); err != nil {
		return nil, err
	}
	committed := false
	defer func() {
		if !committed {
			// A failed commit may have rolled back already; then this fails, harmlessly.
			_, _ = w.rollback.ExecContext(ctx)
		}
	}()
	// Read anew each time, so that no failure leaves a counter behind that is
	// not the database's.
	first, compacted, err := w.meta(ctx)
	if err != nil {
		return nil, err
	}
	revision := first
	results := make([]result, len(group))
	for i, j := range group {
		var err error
		switch j.kind {
		case jobCommit:
			results[i], err = w.apply(ctx, j, revision+1)
		case jobOutcome:
			results[i], err = w.outcome(ctx, j.id, revision+1)
		case jobRaise:
			results[i], err = w.raise(ctx, j.floor, j.over, revision)
		}
		if err != nil {
			return nil, err
		}
		revision = max(revision, results[i].revision, results[i].voided)
	}
	pruneTo, err := w.pruneSome(ctx, compacted, len(group))
	if err != nil {
		return nil, err
	}
	if revision == first && pruneTo == compacted && !w.unsettled {
		return results, nil // nothing was written, and what was read is durable
	}
	if revision > store.MaxRevision {
		return nil, fmt.Errorf("revision %d is the last one: restore into a new database", store.MaxRevision)
	}
	if _, err := w.setMeta.ExecContext(ctx, int64(revision), int64(pruneTo)); err != nil {
		return nil, err
	}
	if w.tight {
		if err := w.fits(ctx); err != nil {
			return nil, err
		}
	}
	if err := w.s.inPlace(); err != nil {
		return nil, err
	}
	if _, err := w.commit.ExecContext(ctx); err != nil {
		if leftNothing(err) {
			return nil, err
		}
		w.unsettled = true
		return nil, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, err)
	}
	committed = true
	w.unsettled = false
	for _, r := range results {
		w.logged += int64(r.bytes)
	}
	w.keep.Committed(time.Now(), revision, pruneTo, w.logged)
	// Once more, because it may have been moved meanwhile: then the group is in that
	// file, and whether it comes back is for people to decide.
	if err := w.s.inPlace(); err != nil {
		w.unsettled = true
		return nil, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, err)
	}
	return results, nil
}

// apply writes what j asks for as revision, if its conditions hold. An error is
// the database's; the job's own is in the result.
func (w *writer) apply(ctx context.Context, j *job, revision store.Revision) (result, error) {
	tx := &j.tx
	if tx.ID != "" {
		known, digest, err := w.known(ctx, tx.ID)
		switch {
		case err != nil:
			return result{}, err
		case known == 0:
		case digest == nil:
			return result{err: fmt.Errorf("store: transaction %q: %w", tx.ID, store.ErrVoided)}, nil
		case !bytes.Equal(digest, j.digest):
			return result{err: &store.ReusedError{ID: tx.ID, Applied: known}}, nil
		default:
			return result{revision: known}, nil
		}
	}
	var failed error // the database's
	conflict := tx.Conflict(func(key string) (v store.Revision, err error) {
		switch err := w.getVersion.QueryRowContext(ctx, key).Scan(&v); {
		case errors.Is(err, sql.ErrNoRows):
			return 0, nil
		case err != nil:
			failed = err
			return 0, err
		}
		return v, nil
	})
	if failed != nil {
		return result{}, failed
	}
	if conflict != nil {
		return result{err: conflict}, nil
	}

	r := result{revision: revision}
	seq := int64(revision) * store.MaxTxOps
	change := func(key string, value []byte) error {
		if _, err := w.addChange.ExecContext(ctx, seq, key, value); err != nil {
			return err
		}
		seq++
		r.keys = append(r.keys, key)
		r.bytes += len(key) + len(value)
		return nil
	}
	for _, p := range tx.Put {
		value := p.Value
		if value == nil {
			value = []byte{} // nil would be SQL's null
		}
		if _, err := w.put.ExecContext(ctx, p.Key, int64(revision), value); err != nil {
			return result{}, err
		}
		if err := change(p.Key, value); err != nil {
			return result{}, err
		}
	}
	for _, key := range tx.Delete {
		done, err := w.del.ExecContext(ctx, key)
		if err != nil {
			return result{}, err
		}
		n, err := done.RowsAffected()
		if err != nil {
			return result{}, err
		}
		if n == 0 {
			continue // it did not exist, so nothing changed
		}
		if err := change(key, nil); err != nil {
			return result{}, err
		}
	}
	if tx.ID != "" {
		if _, err := w.addOutcome.ExecContext(ctx, int64(revision), tx.ID, j.digest); err != nil {
			return result{}, err
		}
	}
	return r, nil
}

// known returns the revision and digest of a transaction ID; revision 0 if it
// was not seen, digest nil if it was voided.
func (w *writer) known(ctx context.Context, id string) (revision store.Revision, digest []byte, err error) {
	err = w.getOutcome.QueryRowContext(ctx, id).Scan(&revision, &digest)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil, nil
	}
	return revision, digest, err
}

// outcome looks an ID up, and voids it as revision if it is not there.
func (w *writer) outcome(ctx context.Context, id string, revision store.Revision) (result, error) {
	notApplied := fmt.Errorf("store: transaction %q was not applied: %w", id, store.ErrNotFound)
	known, digest, err := w.known(ctx, id)
	switch {
	case err != nil:
		return result{}, err
	case digest != nil:
		return result{revision: known}, nil
	case known != 0:
		return result{err: notApplied}, nil
	}
	if _, err := w.addOutcome.ExecContext(ctx, int64(revision), id, nil); err != nil {
		return result{}, err
	}
	return result{voided: revision, err: notApplied}, nil
}

func (w *writer) raise(ctx context.Context, floor store.Revision, over bool, revision store.Revision) (result, error) {
	var some bool
	if err := w.anEntry.QueryRowContext(ctx).Scan(&some); err != nil {
		return result{}, err
	}
	if some && !over {
		return result{err: fmt.Errorf("store: revisions of %s cannot be raised: %w: restore into a new database", w.s.path, store.ErrNotEmpty)}, nil
	}
	return result{revision: max(floor, revision)}, nil
}

// pruneSome deletes some of the changes and outcomes that are no longer kept,
// within the open transaction, and returns the new compacted revision.
func (w *writer) pruneSome(ctx context.Context, compacted store.Revision, jobs int) (store.Revision, error) {
	to := w.keep.Next(compacted, jobs)
	if to == compacted {
		return compacted, nil
	}
	var oldest int64
	if err := w.oldest.QueryRowContext(ctx, int64(store.MaxRevision)).Scan(&oldest); err != nil {
		return 0, err
	}
	to = w.keep.Skip(to, store.Revision(oldest))
	if _, err := w.pruneChanges.ExecContext(ctx, (int64(to)+1)*store.MaxTxOps); err != nil {
		return 0, err
	}
	if _, err := w.pruneOutcomes.ExecContext(ctx, int64(to)); err != nil {
		return 0, err
	}
	return to, nil
}

// prune runs a transaction that only prunes. If it fails it is tried again
// after the next tick.
func (w *writer) prune() {
	if _, err := w.tryHard(nil); err != nil {
		w.keep.Postpone()
		w.s.opts.Log.Error("old changes could not be pruned, trying again later", "store", w.s.path, "err", err)
	}
}
