package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
	// abandoned by the caller; waiting again if nothing was written.
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

// Outcome implements [store.Store]. It locks the revision row, as commits do, so
// that whatever was begun before is decided when it answers.
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

// SQLSTATE codes, from PostgreSQL's appendix A.
const (
	insufficientPrivilege = "42501"
	lockNotAvailable      = "55P03"
	readOnlyTransaction   = "25006"
	diskFull              = "53100"
	ioError               = "58030"
	programLimitExceeded  = "54000"
	invalidDatabase       = "3D000"
	invalidAuthorization  = "28" // class
	syntaxOrAccess        = "42" // class: something is there that is not ours
)

// refusals are the codes of a server that answers reads and takes no writes.
var refusals = map[string]store.Reason{
	diskFull: store.NoSpace, readOnlyTransaction: store.ReadOnly, insufficientPrivilege: store.Forbidden, ioError: store.DiskFailed,
}

// The writer's statements, by the names they are prepared under.
var statements = []struct{ name, text string }{
	{"fealty_begin", "begin isolation level read committed"},
	{"fealty_commit", "commit"},
	{"fealty_rollback", "rollback"},
	{"fealty_lock", "select revision, compacted, logged from fealty_revision where only_row for update"},
	{"fealty_versions", "select key, version from fealty_kv where key = any($1::text[])"},
	{"fealty_outcomes", "select id, revision, digest from fealty_outcome where id = any($1::text[])"},
	{"fealty_oldest", "select least((select min(seq) / 1024 from fealty_log), (select min(revision) from fealty_outcome))"},
	{"fealty_some", "select exists (select from fealty_kv)"},
	{"fealty_advance", "update fealty_revision set revision = $1, compacted = $2, logged = $3 where only_row"},
	{"fealty_log", "insert into fealty_log (seq, key, value) select * from unnest($1::bigint[], $2::text[], $3::bytea[])"},
	// From the log, so that values travel once.
	{"fealty_put", "insert into fealty_kv (key, version, value) select key, seq / 1024, value from fealty_log where seq = any($1::bigint[]) on conflict (key) do update set version = excluded.version, value = excluded.value"},
	{"fealty_delete", "delete from fealty_kv where key = any($1::text[])"},
	{"fealty_decided", "insert into fealty_outcome (revision, id, digest) select * from unnest($1::bigint[], $2::text[], $3::bytea[])"},
	{"fealty_prune_log", "delete from fealty_log where seq < $1"},
	{"fealty_prune_outcomes", "delete from fealty_outcome where revision <= $1"},
	{"fealty_notify", "select pg_notify($1, $2)"},
}

func prepare(ctx context.Context, conn *pgx.Conn) error {
	for _, s := range statements {
		if _, err := conn.Prepare(ctx, s.name, s.text); err != nil {
			return err
		}
	}
	return nil
}

// lostError: the connection failed before anything was written.
type lostError struct{ err error }

func (e *lostError) Error() string { return "connection lost, nothing was written: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// writer is the only one of this process who writes. All its fields belong to
// the goroutine in run.
type writer struct {
	s    *Store
	conn *pgx.Conn // nil until it is needed

	// unsettled: the answer to a commit was lost, or a standby did not confirm it.
	// It may be visible and yet not be safe, so until a later transaction was
	// confirmed, none is answered that was not committed itself.
	unsettled   bool
	unconfirmed bool      // the server warned that a standby did not confirm
	quietUntil  time.Time // no notices until then: they made a commit fail

	keep retain.Window
}

// start connects, and measures what is there.
func (w *writer) start(ctx context.Context) error {
	conn, err := w.connection(ctx)
	if err != nil {
		return err
	}
	var revision, compacted, logged int64
	err = conn.QueryRow(ctx, "select revision, compacted, logged from fealty_revision where only_row").Scan(&revision, &compacted, &logged)
	if err != nil {
		return err
	}
	// The changes from earlier, in as many parts as retention tells apart.
	width := (revision-compacted)/retain.MarksPerWindow + 1
	rows, err := conn.Query(ctx, "select max(seq), sum(octet_length(key) + coalesce(octet_length(value), 0))::bigint from fealty_log group by seq / $1 order by 1", width*store.MaxTxOps)
	if err != nil {
		return err
	}
	var kept []retain.Part
	var seq, bytes int64
	if _, err := pgx.ForEachRow(rows, []any{&seq, &bytes}, func() error {
		kept = append(kept, retain.Part{Revision: store.Revision(seq / store.MaxTxOps), Bytes: bytes})
		return nil
	}); err != nil {
		return err
	}
	w.keep = retain.New(retain.Limits{Age: w.s.opts.Retention, Commits: w.s.opts.RetainCommits, Bytes: w.s.opts.RetainBytes}, time.Now(), store.Revision(compacted), store.Revision(revision), logged, kept)
	w.s.hub.Told(store.Revision(revision), logged, nil, true)
	return nil
}

// connection returns a connection that was in order when it was last used.
func (w *writer) connection(ctx context.Context) (*pgx.Conn, error) {
	if w.conn != nil && !w.conn.IsClosed() {
		return w.conn, nil
	}
	w.drop()
	conn, err := w.s.connect(ctx, writing, w.noticed)
	if err != nil {
		return nil, err
	}
	w.conn = conn
	return conn, nil
}

// drop gives the connection up. The server then ends what was begun on it, one
// way or the other.
func (w *writer) drop() {
	drop(w.conn)
	w.conn = nil
}

// run serves the queue until it is closed.
func (w *writer) run() {
	defer w.drop()
	tick := time.NewTicker(w.keep.Interval())
	defer tick.Stop()
	ticked := func() {
		revision, logged := w.s.hub.State()
		w.keep.Tick(time.Now(), revision, logged)
	}
	group := make([]*job, 0, maxGroup)
	for open := true; open; {
		group = group[:0]
		var j *job
		if w.keep.Due() {
			// Old changes go when nobody waits; under load they go along with groups.
			select {
			case <-tick.C:
				ticked()
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
				ticked()
			}
		}
		w.serve(w.collect(group, j))
	}
}

// collect takes j, unless it is nil, and whatever else is waiting.
func (w *writer) collect(group []*job, j *job) []*job {
	bytes := 0
	for j != nil {
		if j.state.Load() == waiting {
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

// serve commits group as one PostgreSQL transaction and answers. If the server
// refuses that, the jobs are tried one by one, so that one that it cannot store
// fails alone.
func (w *writer) serve(group []*job) {
	if len(group) == 0 {
		return
	}
	p, err := w.attempt(group)
	if _, lost := errors.AsType[*lostError](err); lost {
		// The connection had died unnoticed, as after a restart of the server.
		p, err = w.attempt(group)
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == programLimitExceeded && !w.quiet() && !errors.Is(err, store.ErrUnknownOutcome) {
		// The queue of notices is full, because someone listens and does not read. The
		// log is what counts; heartbeats read it.
		w.s.opts.Log.Error("commits go without notices for a while: other processes see changes with their next heartbeat", "store", w.s.name, "err", err)
		w.quietUntil = time.Now().Add(quietFor)
		p, err = w.attempt(group)
	}
	if err != nil && w.keep.Due() && isRefusal(err) {
		// Pruning is no reason for a commit to fail.
		w.keep.Postpone()
		p, err = w.attempt(group)
	}
	switch {
	case err == nil:
		w.answer(group, p.results)
	case errors.Is(err, store.ErrUnknownOutcome):
		w.answerLost(group, p.results, err)
	case len(group) > 1 && isRefusal(err):
		for _, j := range group {
			w.serve([]*job{j})
		}
	default:
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && refusals[pg.Code] != 0 {
			err = &store.RefusedError{Reason: refusals[pg.Code], Err: err}
		}
		for _, j := range group {
			j.err = fmt.Errorf("store: commit to %s: %w", w.s.name, err)
			close(j.done)
		}
	}
}

// quietFor is how long no notices are sent after they made a commit fail.
const quietFor = time.Minute

func (w *writer) quiet() bool { return time.Now().Before(w.quietUntil) }

// isRefusal reports whether the server refused what was to be written, rather
// than anybody's writing.
func isRefusal(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !errors.Is(err, store.ErrUnknownOutcome) && severity(pg) == "ERROR" &&
		pg.Code != lockNotAvailable && pg.Code != readOnlyTransaction && pg.Code != insufficientPrivilege
}

// severity does not depend on the server's language.
func severity(e *pgconn.PgError) string {
	if e.SeverityUnlocalized != "" {
		return e.SeverityUnlocalized
	}
	return e.Severity
}

func (w *writer) answer(group []*job, results []result) {
	for i, j := range group {
		if j.state.Load() != taken {
			continue // nobody waits for it, and it was left out
		}
		j.revision, j.err = results[i].revision, results[i].err
		close(j.done)
	}
}

// answerLost answers a group of which nobody knows whether it was committed.
// Who has no part in what it writes gets the answer all the same.
func (w *writer) answerLost(group []*job, results []result, err error) {
	for i, j := range group {
		r := results[i]
		switch {
		case j.state.Load() != taken:
			continue
		case r.certain:
			j.revision, j.err = r.revision, r.err
		case j.kind == jobCommit && r.err != nil:
			// What it met may not be there, but neither is it.
			j.err = fmt.Errorf("store: commit to %s: nothing was written: %w", w.s.name, reasonOf(err))
		case j.kind == jobOutcome:
			j.err = fmt.Errorf("store: outcome of %q in %s: %w", j.id, w.s.name, reasonOf(err))
		default:
			j.err = fmt.Errorf("store: commit to %s: %w", w.s.name, err)
		}
		close(j.done)
	}
}

// unknownError is why an outcome is unknown.
type unknownError struct{ err error }

func (e *unknownError) Error() string        { return store.ErrUnknownOutcome.Error() + ": " + e.err.Error() }
func (e *unknownError) Is(target error) bool { return target == store.ErrUnknownOutcome }

// reasonOf returns why an outcome is unknown, as an error that does not say so.
func reasonOf(err error) error {
	if u, ok := errors.AsType[*unknownError](err); ok {
		return u.err
	}
	return err
}

// attempt decides group and commits it in one transaction, along with some
// pruning. An error means that nothing was written, unless it matches
// store.ErrUnknownOutcome; then the plan says what was tried. With a *lostError
// the connection was bad from the start. Jobs that were given up before anything
// was sent are left out.
//
// The transaction is not bound to any caller's context: it is short, and one
// caller's leaving must not fail the others.
func (w *writer) attempt(group []*job) (*plan, error) {
	before := w.conn
	ctx, cancel := context.WithTimeout(context.Background(), 2*w.s.opts.Timeout)
	defer cancel()
	conn, err := w.connection(ctx)
	if err != nil {
		return nil, noAnswer(err, 2*w.s.opts.Timeout)
	}
	begin, stop := context.WithTimeout(context.Background(), w.s.opts.Timeout)
	defer stop()
	st, err := w.begin(begin, conn, group)
	if err != nil {
		w.abort()
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && severity(pg) == "ERROR" {
			if pg.Code == readOnlyTransaction {
				w.drop() // another server of the URL may take writes
			}
			if pg.Code == lockNotAvailable {
				return nil, fmt.Errorf("the commit of another process has been under way for %v, nothing was written: %w", w.s.opts.Timeout/2, err)
			}
			return nil, fmt.Errorf("nothing was written: %w", err)
		}
		w.drop()
		if conn != before || begin.Err() != nil {
			return nil, fmt.Errorf("nothing was written: %w", noAnswer(err, w.s.opts.Timeout))
		}
		return nil, &lostError{err}
	}
	// From here on a caller cannot give up without doubt.
	jobs := make([]*job, len(group))
	for i, j := range group {
		if j.state.CompareAndSwap(waiting, taken) {
			jobs[i] = j
		}
	}
	p := decide(st, jobs, w.s.name)
	pruneTo := w.keep.Next(st.compacted, len(group))
	if pruneTo != st.compacted {
		pruneTo = w.keep.Skip(pruneTo, st.oldest)
	}
	if !p.writes() && pruneTo == st.compacted && !w.unsettled {
		w.abort()
		w.keep.Committed(time.Now(), p.revision, st.compacted, p.logged) // others may have written and pruned
		return p, nil                                                    // nothing was written, and what was read is durable
	}
	finish, stop := context.WithTimeout(context.Background(), w.s.opts.Timeout)
	defer stop()
	if err := w.finish(finish, conn, p, st.compacted, pruneTo); err != nil {
		if !errors.Is(err, store.ErrUnknownOutcome) {
			w.abort()
			for _, j := range jobs {
				if j != nil {
					j.state.Store(waiting)
				}
			}
			return nil, fmt.Errorf("nothing was written: %w", err)
		}
		w.drop()
		if w.unsettled {
			// What it was decided on is not settled either.
			for i := range p.results {
				p.results[i].certain = false
			}
		}
		w.unsettled = true
		return p, err
	}
	w.unsettled = false
	w.keep.Committed(time.Now(), p.revision, pruneTo, p.logged)
	if p.writes() {
		w.s.hub.Committed(p.before, p.revision, p.logged, p.keys)
	}
	return p, nil
}

// noAnswer replaces a deadline of our own, which a caller would take for theirs.
func noAnswer(err error, within time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the server did not answer within %v", within)
	}
	return err
}

// abort ends a transaction that wrote nothing worth keeping.
func (w *writer) abort() {
	if w.conn == nil || w.conn.IsClosed() {
		w.drop()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.s.opts.Timeout)
	defer cancel()
	if _, err := w.conn.Exec(ctx, "fealty_rollback"); err != nil {
		w.drop()
	}
}

// begin begins a transaction, waits for its turn, and reads what group is to be
// decided on.
func (w *writer) begin(ctx context.Context, conn *pgx.Conn, group []*job) (state, error) {
	st := state{versions: map[string]store.Revision{}, outcomes: map[string]outcome{}}
	var keys, ids []string
	raise := false
	for _, j := range group {
		for _, c := range j.tx.If {
			keys = append(keys, c.Key)
		}
		keys = append(keys, j.tx.Delete...)
		if id := j.tx.ID + j.id; id != "" { // a job has one of them
			ids = append(ids, id)
		}
		raise = raise || j.kind == jobRaise
	}
	// In one round trip. Each statement sees what was committed before it began, and
	// those after the lock begin when nobody else can commit.
	batch := &pgx.Batch{}
	batch.Queue("fealty_begin")
	batch.Queue("fealty_lock").QueryRow(func(row pgx.Row) error {
		var revision, compacted int64
		err := row.Scan(&revision, &compacted, &st.logged)
		st.revision, st.compacted = store.Revision(revision), store.Revision(compacted)
		return err
	})
	if len(keys) > 0 {
		batch.Queue("fealty_versions", keys).Query(func(rows pgx.Rows) error {
			var key string
			var version int64
			_, err := pgx.ForEachRow(rows, []any{&key, &version}, func() error {
				st.versions[key] = store.Revision(version)
				return nil
			})
			return err
		})
	}
	if len(ids) > 0 {
		batch.Queue("fealty_outcomes", ids).Query(func(rows pgx.Rows) error {
			var id string
			var revision int64
			var digest []byte
			_, err := pgx.ForEachRow(rows, []any{&id, &revision, &digest}, func() error {
				st.outcomes[id] = outcome{store.Revision(revision), digest}
				digest = nil
				return nil
			})
			return err
		})
	}
	st.oldest = store.MaxRevision
	if w.keep.Due() {
		batch.Queue("fealty_oldest").QueryRow(func(row pgx.Row) error {
			var oldest *int64
			err := row.Scan(&oldest)
			if oldest != nil {
				st.oldest = store.Revision(*oldest)
			}
			return err
		})
	}
	if raise {
		batch.Queue("fealty_some").QueryRow(func(row pgx.Row) error { return row.Scan(&st.some) })
	}
	err := conn.SendBatch(ctx, batch).Close()
	return st, err
}

// finish writes p and commits, in one round trip. An error that does not match
// store.ErrUnknownOutcome means that nothing was written.
func (w *writer) finish(ctx context.Context, conn *pgx.Conn, p *plan, compacted, pruneTo store.Revision) error {
	batch := &pgx.Batch{}
	// A small one first: the server gives up on clients that are silent before it.
	batch.Queue("fealty_advance", int64(p.revision), int64(pruneTo), p.logged)
	if len(p.seqs) > 0 {
		batch.Queue("fealty_log", p.seqs, p.keys, p.values)
		puts, deletes := p.final()
		if len(puts) > 0 {
			batch.Queue("fealty_put", puts)
		}
		if len(deletes) > 0 {
			batch.Queue("fealty_delete", deletes)
		}
	}
	if len(p.outcomeIDs) > 0 {
		batch.Queue("fealty_decided", p.outcomeRevisions, p.outcomeIDs, p.outcomeDigests)
	}
	if pruneTo != compacted {
		batch.Queue("fealty_prune_log", (int64(pruneTo)+1)*store.MaxTxOps)
		batch.Queue("fealty_prune_outcomes", int64(pruneTo))
	}
	if p.writes() && !w.quiet() {
		batch.Queue("fealty_notify", w.s.channel, strconv.FormatUint(uint64(p.revision), 10))
	}
	before := batch.Len()
	batch.Queue("fealty_commit")

	w.unconfirmed = false
	sent := conn.SendBatch(ctx, batch)
	for i := 0; i <= before; i++ {
		tag, err := sent.Exec()
		if err != nil {
			sent.Close() // the error to report is the one that brought us here
			pg, ok := errors.AsType[*pgconn.PgError](err)
			switch {
			// The server answers in order and stops at the first error. So one from before
			// COMMIT, of whatever kind, means that COMMIT was not reached.
			case ok && (i < before || severity(pg) == "ERROR"), pgconn.SafeToRetry(err):
				return err
			}
			return &unknownError{noAnswer(err, w.s.opts.Timeout)}
		}
		if i == before && tag.String() != "COMMIT" {
			sent.Close()
			return fmt.Errorf("the server answered COMMIT with %q", tag.String())
		}
	}
	if err := sent.Close(); err != nil {
		w.drop() // it was committed; the connection is of no more use
	}
	if w.unconfirmed {
		return &unknownError{errors.New("it was committed on the primary, but the wait for its synchronous standby was cut short")}
	}
	return nil
}

// noticed gets the server's warnings. One of them says that a commit was
// confirmed though its standby had not done so.
func (w *writer) noticed(n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		w.unconfirmed = true
	}
}

// prune runs a transaction that only prunes. If it fails it is tried again
// after the next tick.
func (w *writer) prune() {
	if _, err := w.attempt(nil); err != nil {
		w.keep.Postpone()
		w.s.opts.Log.Error("old changes could not be pruned, trying again later", "store", w.s.name, "err", err)
	}
}
