package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

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
	diskFull: store.NoSpace, readOnlyTransaction: store.ReadOnly, insufficientPrivilege: store.Forbidden,
	ioError: store.DiskFailed,
}

// The writer's statements, by the names they are prepared under.
var statements = []struct{ name, text string }{
	{"fealty_begin", "begin isolation level read committed"},
	{"fealty_commit", "commit"},
	{"fealty_rollback", "rollback"},
	{"fealty_lock", "select revision, compacted, logged from fealty_revision where only_row for update"},
	{"fealty_versions", "select key, version from fealty_kv where key = any($1::text[])"},
	{"fealty_outcomes", "select id, revision, digest from fealty_outcome where id = any($1::text[])"},
	{"fealty_oldest", "select least((select min(seq) / 1024 from fealty_log), " +
		"(select min(revision) from fealty_outcome))"},
	{"fealty_some", "select exists (select from fealty_kv)"},
	{"fealty_advance", "update fealty_revision set revision = $1, compacted = $2, logged = $3 where only_row"},
	{"fealty_log", "insert into fealty_log (seq, key, value) " +
		"select * from unnest($1::bigint[], $2::text[], $3::bytea[])"},
	// From the log, so that values travel once.
	{"fealty_put", "insert into fealty_kv (key, version, value) " +
		"select key, seq / 1024, value from fealty_log where seq = any($1::bigint[]) " +
		"on conflict (key) do update set version = excluded.version, value = excluded.value"},
	{"fealty_delete", "delete from fealty_kv where key = any($1::text[])"},
	{"fealty_decided", "insert into fealty_outcome (revision, id, digest) " +
		"select * from unnest($1::bigint[], $2::text[], $3::bytea[])"},
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

// writer is the only one of this process who writes. All its fields belong to the
// goroutine that makes turns.
type writer struct {
	db   *database
	conn *pgx.Conn // nil until it is needed

	// unconfirmed: the server warned that a standby did not confirm a commit. It may be
	// visible and yet not be safe.
	unconfirmed bool
	quietUntil  time.Time // no notices until then: they made a commit fail
}

var _ engine.Writer = (*writer)(nil)

// start connects, and measures what is there.
func (w *writer) start(ctx context.Context) (found engine.Found, err error) {
	conn, err := w.connection(ctx)
	if err != nil {
		return found, err
	}
	var revision, compacted, logged int64
	err = conn.QueryRow(ctx, "select revision, compacted, logged from fealty_revision where only_row").
		Scan(&revision, &compacted, &logged)
	if err != nil {
		return found, err
	}
	// The changes from earlier, in as many parts as retention tells apart.
	width := (revision-compacted)/engine.MarksPerWindow + 1
	rows, err := conn.Query(ctx, "select max(seq), sum(octet_length(key) + coalesce(octet_length(value), 0))::bigint "+
		"from fealty_log group by seq / $1 order by 1", width*engine.RowsPerRevision)
	if err != nil {
		return found, err
	}
	var seq, bytes int64
	if _, err := pgx.ForEachRow(rows, []any{&seq, &bytes}, func() error {
		part := engine.Part{Revision: store.Revision(seq / engine.RowsPerRevision), Bytes: bytes}
		found.Parts = append(found.Parts, part)
		return nil
	}); err != nil {
		return found, err
	}
	found.Compacted, found.Revision, found.Logged = store.Revision(compacted), store.Revision(revision), logged
	w.db.hub.Notify(found.Revision, logged, nil, true)
	return found, nil
}

// connection returns a connection that was in order when it was last used.
func (w *writer) connection(ctx context.Context) (*pgx.Conn, error) {
	if w.conn != nil && !w.conn.IsClosed() {
		return w.conn, nil
	}
	w.drop()
	conn, err := w.db.connect(ctx, writing, w.noticed)
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

// Mend implements [engine.Writer].
func (w *writer) Mend(_ context.Context, err error, _ int) error {
	if _, lost := errors.AsType[*lostError](err); lost {
		return nil // the connection had died unnoticed, as after a restart of the server
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if ok && pg.Code == programLimitExceeded && !w.quiet() {
		// The queue of notices is full, because someone listens and does not read. The
		// log is what counts; heartbeats read it.
		w.db.opts.Log.Error("commits go without notices for a while: "+
			"other processes see changes with their next heartbeat", "store", w.db.name, "err", err)
		w.quietUntil = time.Now().Add(quietFor)
		return nil
	}
	refused := isRefusal(err)
	if ok && severity(pg) == "ERROR" && refusals[pg.Code] != 0 {
		err = &store.RefusedError{Reason: refusals[pg.Code], Err: err}
	}
	err = w.db.outage(err)
	if refused {
		return &engine.RejectedError{Err: err}
	}
	return err
}

// Upkeep implements [engine.Writer]: there is none.
func (w *writer) Upkeep(engine.Occasion) bool { return false }

// quietFor is how long no notices are sent after they made a commit fail.
const quietFor = time.Minute

func (w *writer) quiet() bool { return time.Now().Before(w.quietUntil) }

// isRefusal reports whether the server refused what was to be written, rather
// than anybody's writing.
func isRefusal(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && severity(pg) == "ERROR" &&
		pg.Code != lockNotAvailable && pg.Code != readOnlyTransaction && pg.Code != insufficientPrivilege
}

// severity does not depend on the server's language.
func severity(e *pgconn.PgError) string {
	if e.SeverityUnlocalized != "" {
		return e.SeverityUnlocalized
	}
	return e.Severity
}

// Read implements [engine.Writer]. With a *lostError the connection was bad from the
// start.
func (w *writer) Read(ctx context.Context, ask engine.Ask) (engine.State, error) {
	before := w.conn
	connecting, cancel := context.WithTimeout(ctx, 2*w.db.opts.Timeout)
	defer cancel()
	conn, err := w.connection(connecting)
	if err != nil {
		return engine.State{}, noAnswer(err, 2*w.db.opts.Timeout)
	}
	begin, stop := context.WithTimeout(ctx, w.db.opts.Timeout)
	defer stop()
	st, err := w.begin(begin, conn, ask)
	if err == nil {
		return st, nil
	}
	w.Leave()
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && severity(pg) == "ERROR" {
		if pg.Code == readOnlyTransaction {
			w.drop() // another server of the URL may take writes
		}
		if pg.Code == lockNotAvailable {
			return st, fmt.Errorf("somebody else has held a lock for %v, as the commit of another process does, "+
				"nothing was written: %w", w.db.opts.Timeout/2, err)
		}
		return st, fmt.Errorf("nothing was written: %w", err)
	}
	w.drop()
	if conn != before || begin.Err() != nil {
		return st, fmt.Errorf("nothing was written: %w", noAnswer(err, w.db.opts.Timeout))
	}
	return st, &lostError{err}
}

// Write implements [engine.Writer].
func (w *writer) Write(ctx context.Context, p *engine.Plan) error {
	ctx, stop := context.WithTimeout(ctx, w.db.opts.Timeout)
	defer stop()
	err := w.finish(ctx, w.conn, p)
	switch {
	case errors.Is(err, store.ErrUnknownOutcome):
		w.drop()
	case err != nil:
		w.Leave()
		err = fmt.Errorf("nothing was written: %w", err)
	}
	return err
}

// unknown returns the error of a commit whose answer was lost because of err, which says
// nothing to callers.
func unknown(err error) error { return engine.Unknown(errors.New(err.Error())) }

// noAnswer replaces a deadline of our own, which a caller would take for theirs.
func noAnswer(err error, within time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &silentError{fmt.Sprintf("the server did not answer within %v", within)}
	}
	return err
}

// Leave implements [engine.Writer]: it ends a transaction that wrote nothing worth
// keeping.
func (w *writer) Leave() {
	if w.conn == nil || w.conn.IsClosed() {
		w.drop()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.db.opts.Timeout)
	defer cancel()
	if _, err := w.conn.Exec(ctx, "fealty_rollback"); err != nil {
		w.drop()
	}
}

// begin begins a transaction, waits for its turn, and reads what group is to be
// decided on.
func (w *writer) begin(ctx context.Context, conn *pgx.Conn, ask engine.Ask) (engine.State, error) {
	st := engine.State{
		Versions: map[string]store.Revision{}, Outcomes: map[string]engine.Outcome{}, Oldest: store.MaxRevision,
	}
	// In one round trip. Each statement sees what was committed before it began, and
	// those after the lock begin when nobody else can commit.
	batch := &pgx.Batch{}
	batch.Queue("fealty_begin")
	batch.Queue("fealty_lock").QueryRow(func(row pgx.Row) error {
		var revision, compacted int64
		err := row.Scan(&revision, &compacted, &st.Logged)
		st.Revision, st.Compacted = store.Revision(revision), store.Revision(compacted)
		return err
	})
	if len(ask.Keys) > 0 {
		batch.Queue("fealty_versions", ask.Keys).Query(func(rows pgx.Rows) error {
			var key string
			var version int64
			_, err := pgx.ForEachRow(rows, []any{&key, &version}, func() error {
				st.Versions[key] = store.Revision(version)
				return nil
			})
			return err
		})
	}
	if len(ask.IDs) > 0 {
		batch.Queue("fealty_outcomes", ask.IDs).Query(func(rows pgx.Rows) error {
			var id string
			var revision int64
			var digest []byte
			_, err := pgx.ForEachRow(rows, []any{&id, &revision, &digest}, func() error {
				st.Outcomes[id] = engine.Outcome{Revision: store.Revision(revision), Digest: digest}
				digest = nil
				return nil
			})
			return err
		})
	}
	if ask.Oldest {
		batch.Queue("fealty_oldest").QueryRow(func(row pgx.Row) error {
			var oldest *int64
			err := row.Scan(&oldest)
			if oldest != nil {
				st.Oldest = store.Revision(*oldest)
			}
			return err
		})
	}
	if ask.Some {
		batch.Queue("fealty_some").QueryRow(func(row pgx.Row) error { return row.Scan(&st.Some) })
	}
	err := conn.SendBatch(ctx, batch).Close()
	return st, err
}

// place queues the changes and outcomes of p.
func place(batch *pgx.Batch, p *engine.Plan) {
	var seqs, puts []int64 // the latter of values to be kept
	var keys, deletes []string
	var values [][]byte
	for _, row := range p.Rows() {
		seqs, keys, values = append(seqs, row.Seq), append(keys, row.Key), append(values, row.Value)
		switch {
		case !row.Last:
		case row.Value == nil:
			// It may be that the group itself created it; then this deletes nothing.
			deletes = append(deletes, row.Key)
		default:
			puts = append(puts, row.Seq)
		}
	}
	if len(seqs) > 0 {
		batch.Queue("fealty_log", seqs, keys, values)
	}
	if len(puts) > 0 {
		batch.Queue("fealty_put", puts)
	}
	if len(deletes) > 0 {
		batch.Queue("fealty_delete", deletes)
	}
	var ids []string
	var revisions []int64
	var digests [][]byte
	for _, c := range p.Changes {
		if c.Tx.ID != "" {
			ids, revisions, digests = append(ids, c.Tx.ID), append(revisions, int64(c.Revision)),
				append(digests, c.Digest)
		}
	}
	if len(ids) > 0 {
		batch.Queue("fealty_decided", revisions, ids, digests)
	}
}

// finish writes p and commits, in one round trip. An error that does not match
// store.ErrUnknownOutcome means that nothing was written.
func (w *writer) finish(ctx context.Context, conn *pgx.Conn, p *engine.Plan) error {
	batch := &pgx.Batch{}
	// A small one first: the server gives up on clients that are silent before it.
	batch.Queue("fealty_advance", int64(p.Revision), int64(p.Prune), p.Logged)
	place(batch, p)
	if p.Prune != p.Compacted {
		batch.Queue("fealty_prune_log", (int64(p.Prune)+1)*engine.RowsPerRevision)
		batch.Queue("fealty_prune_outcomes", int64(p.Prune))
	}
	if p.Writes() && !w.quiet() {
		batch.Queue("fealty_notify", w.db.channel, strconv.FormatUint(uint64(p.Revision), 10))
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
			return unknown(noAnswer(err, w.db.opts.Timeout))
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
		return engine.Unknown(errors.New("it was committed on the primary, " +
			"but the wait for its synchronous standby was cut short"))
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
