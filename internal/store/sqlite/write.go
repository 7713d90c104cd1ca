package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// writer is the only one who writes to the database. All its fields, but those that wake
// others, belong to the goroutine that makes turns.
type writer struct {
	db   *database
	conn *sql.Conn
	do   statements

	// tight: no page may be added to the database, whose file could not grow.
	tight bool

	shrinks bool // the database was made to give space back

	logged int64 // bytes of changes ever counted, those at the start included

	at         logMarks
	checkpoint chan struct{} // capacity 1: wakes the checkpointer
	logLong    chan struct{} // capacity 1: the checkpointer cannot keep up alone
	long       atomic.Bool   // logLong had something, and the log was not copied since
}

var _ engine.Writer = (*writer)(nil)

// statements are the writer's, of its connection.
type statements struct {
	view, begin, commit, rollback                *sql.Stmt
	getMeta, setMeta                             *sql.Stmt
	getVersion, put, del, addChange              *sql.Stmt
	getOutcome, addOutcome                       *sql.Stmt
	pruneChanges, pruneOutcomes, anEntry, oldest *sql.Stmt
	pageCount, freeCount, giveBack               *sql.Stmt
}

// all returns where each statement is kept, and its text.
func (d *statements) all() map[**sql.Stmt]string {
	return map[**sql.Stmt]string{
		&d.view:     "begin deferred",
		&d.begin:    "begin immediate",
		&d.commit:   "commit",
		&d.rollback: "rollback",
		&d.getMeta:  selectMeta,
		&d.setMeta: "update meta set value = case name when 'revision' then ? when 'compacted' then ? end " +
			"where name in ('revision', 'compacted')",
		&d.getVersion: "select version from entries where key = ?",
		&d.put: "insert into entries (key, version, value) values (?, ?, ?) " +
			"on conflict (key) do update set version = excluded.version, value = excluded.value",
		&d.del:          "delete from entries where key = ?",
		&d.addChange:    "insert into changes (seq, key, value) values (?, ?, ?)",
		&d.getOutcome:   "select revision, digest from outcomes where id = ?",
		&d.addOutcome:   "insert into outcomes (revision, id, digest) values (?, ?, ?)",
		&d.pruneChanges: "delete from changes where seq < ?",
		&d.oldest: "select min(coalesce((select min(seq) / 1024 from changes), ?1), " +
			"coalesce((select min(revision) from outcomes), ?1))",
		&d.pruneOutcomes: "delete from outcomes where revision <= ?",
		&d.pageCount:     "pragma page_count",
		&d.freeCount:     "pragma freelist_count",
		&d.giveBack:      fmt.Sprintf("pragma incremental_vacuum(%d)", freedAtOnce),
		&d.anEntry:       "select exists (select 1 from entries)",
	}
}

func newWriter(ctx context.Context, db *database, conn *sql.Conn) (_ *writer, found engine.Found, err error) {
	w := &writer{db: db, conn: conn, checkpoint: make(chan struct{}, 1), logLong: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	for stmt, text := range w.do.all() {
		if *stmt, err = conn.PrepareContext(ctx, text); err != nil {
			return nil, found, err
		}
	}
	if w.shrinks, err = incremental(ctx, conn); err != nil {
		return nil, found, err
	}
	if found.Revision, found.Compacted, err = w.meta(ctx); err != nil {
		return nil, found, err
	}
	if found.Parts, err = keptChanges(ctx, conn, found.Compacted, found.Revision); err != nil {
		return nil, found, err
	}
	for _, p := range found.Parts {
		w.logged += p.Bytes
	}
	found.Logged = w.logged
	return w, found, nil
}

// close gives the connection back. With a statement left open, SQLite would
// keep the connection, and with it the files, for ever.
func (w *writer) close() {
	for stmt := range w.do.all() {
		if *stmt != nil {
			(*stmt).Close() // frees memory; there is nothing left to fail
		}
	}
	w.conn.Close()
}

// keptChanges measures the changes from earlier runs, in as many parts as
// the window of what is kept tells apart.
func keptChanges(ctx context.Context, conn *sql.Conn, compacted, revision store.Revision) ([]engine.Part, error) {
	width := int64(revision-compacted)/engine.MarksPerWindow + 1
	rows, err := conn.QueryContext(ctx, "select max(seq), sum(length(key) + coalesce(length(value), 0)) "+
		"from changes group by seq / ? order by 1", width*engine.RowsPerRevision)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var parts []engine.Part
	for rows.Next() {
		var seq, bytes int64
		if err := rows.Scan(&seq, &bytes); err != nil {
			return nil, err
		}
		parts = append(parts, engine.Part{Revision: store.Revision(seq / engine.RowsPerRevision), Bytes: bytes})
	}
	return parts, rows.Err()
}

func (w *writer) meta(ctx context.Context) (revision, compacted store.Revision, err error) {
	err = w.do.getMeta.QueryRowContext(ctx).Scan(&revision, &compacted)
	return revision, compacted, err
}

// Read implements [engine.Writer]. Nobody else writes, so what it returns still
// holds when Write begins; only somebody with a tool could have changed it.
func (w *writer) Read(ctx context.Context, ask engine.Ask) (st engine.State, err error) {
	if _, err := w.do.view.ExecContext(ctx); err != nil {
		return st, err
	}
	defer w.undo(ctx)
	// Read anew each time, so that no failure leaves a counter behind that is
	// not the database's.
	if st.Revision, st.Compacted, err = w.meta(ctx); err != nil {
		return st, err
	}
	st.Logged = w.logged
	st.Versions = make(map[string]store.Revision, len(ask.Keys))
	for _, key := range ask.Keys {
		var version store.Revision
		switch err := w.do.getVersion.QueryRowContext(ctx, key).Scan(&version); {
		case errors.Is(err, sql.ErrNoRows):
			continue
		case err != nil:
			return st, err
		}
		st.Versions[key] = version
	}
	st.Outcomes = make(map[string]engine.Outcome, len(ask.IDs))
	for _, id := range ask.IDs {
		var o engine.Outcome
		switch err := w.do.getOutcome.QueryRowContext(ctx, id).Scan(&o.Revision, &o.Digest); {
		case errors.Is(err, sql.ErrNoRows):
			continue
		case err != nil:
			return st, err
		}
		st.Outcomes[id] = o
	}
	if ask.Some {
		if err := w.do.anEntry.QueryRowContext(ctx).Scan(&st.Some); err != nil {
			return st, err
		}
	}
	if ask.Oldest {
		err = w.do.oldest.QueryRowContext(ctx, int64(store.MaxRevision)).Scan(&st.Oldest)
	}
	return st, err
}

// Leave implements [engine.Writer].
func (w *writer) Leave() { w.loosen() }

// undo ends the open transaction.
func (w *writer) undo(ctx context.Context) {
	// A failed commit may have rolled back already; then this fails, harmlessly.
	_, _ = w.do.rollback.ExecContext(ctx)
}

// errMeddled: the database is not the one that the group was decided on.
var errMeddled = errors.New("someone else wrote to the database right now, although this process holds its lock")

// Write implements [engine.Writer]. With an error nothing of p is visible; if the
// error is of an unknown outcome, a crash, or whoever puts the file back, could bring it
// back.
//
// SQLite leaves the pages of a transaction that failed in its commit in the log, maybe
// complete, although nobody sees them, until a later one overwrites them.
func (w *writer) Write(ctx context.Context, p *engine.Plan) error {
	err := w.write(ctx, p)
	if errors.Is(err, store.ErrUnknownOutcome) && codeOf(err) == sqliteIOErr {
		w.shrinkLog() // a log that cannot be written gets a chance to be again
	}
	if err == nil || errors.Is(err, store.ErrUnknownOutcome) {
		w.loosen()
	}
	return err
}

func (w *writer) write(ctx context.Context, p *engine.Plan) error {
	if _, err := w.do.begin.ExecContext(ctx); err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			w.undo(ctx)
		}
	}()
	switch revision, compacted, err := w.meta(ctx); {
	case err != nil:
		return err
	case revision != p.Before || compacted != p.Compacted:
		return errMeddled
	}
	if err := w.place(ctx, p); err != nil {
		return err
	}
	if !p.Writes() && p.Prune == p.Compacted {
		// It confirms what may be in the log, and a page that stays as it is would not be
		// written: there, and back below.
		if _, err := w.do.setMeta.ExecContext(ctx, int64(p.Revision), int64(p.Prune)+1); err != nil {
			return err
		}
	}
	if _, err := w.do.setMeta.ExecContext(ctx, int64(p.Revision), int64(p.Prune)); err != nil {
		return err
	}
	if w.tight {
		if err := w.fits(ctx); err != nil {
			return err
		}
	}
	if err := w.db.inPlace(); err != nil {
		return err
	}
	if _, err := w.do.commit.ExecContext(ctx); err != nil {
		if leftNothing(err) {
			return err
		}
		return engine.Unknown(w.db.refusal(err))
	}
	committed = true
	w.logged = p.Logged
	// Once more, because it may have been moved meanwhile: then the group is in that
	// file, and whether it comes back is for people to decide.
	if err := w.db.inPlace(); err != nil {
		return engine.Unknown(err)
	}
	return nil
}

// place writes the changes and outcomes of p, and deletes those that are given up.
func (w *writer) place(ctx context.Context, p *engine.Plan) error {
	for _, row := range p.Rows() {
		if _, err := w.do.addChange.ExecContext(ctx, row.Seq, row.Key, row.Value); err != nil {
			return err
		}
		var err error
		switch {
		case !row.Last:
		case row.Value == nil:
			_, err = w.do.del.ExecContext(ctx, row.Key)
		default:
			_, err = w.do.put.ExecContext(ctx, row.Key, int64(row.Version), row.Value)
		}
		if err != nil {
			return err
		}
	}
	for _, c := range p.Changes {
		if c.Tx.ID == "" {
			continue
		}
		if _, err := w.do.addOutcome.ExecContext(ctx, int64(c.Revision), c.Tx.ID, c.Digest); err != nil {
			return err
		}
	}
	if p.Prune == p.Compacted {
		return nil
	}
	if _, err := w.do.pruneChanges.ExecContext(ctx, (int64(p.Prune)+1)*engine.RowsPerRevision); err != nil {
		return err
	}
	_, err := w.do.pruneOutcomes.ExecContext(ctx, int64(p.Prune))
	return err
}

// fits returns an error if what the open transaction wrote takes more pages than the
// file of the database has.
func (w *writer) fits(ctx context.Context) error {
	var pages int64
	if err := w.do.pageCount.QueryRowContext(ctx).Scan(&pages); err != nil {
		return err
	}
	info, err := os.Stat(w.db.path)
	if err != nil || pages*pageBytes <= info.Size() {
		return err
	}
	more := pages*pageBytes - info.Size()
	return &store.RefusedError{Reason: store.NoSpace, Err: fmt.Errorf("it takes %d bytes more", more)}
}

// Mend implements [engine.Writer]. If there is no space, what the log takes is given
// back, and then the spare, which what fits into the database as it stands may take for
// its log.
func (w *writer) Mend(_ context.Context, err error, tries int) error {
	switch {
	case errors.Is(err, errMeddled) && tries < 3:
		return nil
	case w.tight:
		w.loosen()
	case !isFull(err):
	case tries == 1 && w.shrinkLog():
		return nil
	case w.db.spare.release() == nil:
		w.tight = true
		return nil
	}
	busy := codeOf(err) == sqliteBusy
	err = outage(w.db.refusal(err))
	switch r := store.ReasonOf(err); {
	case busy, r == store.FileGone, r == store.ReadOnly, r == store.Forbidden:
		return err // of no group: each of its jobs would wait for it in turn
	}
	return &engine.RejectedError{Err: err}
}

// loosen ends an attempt with the spare's space.
func (w *writer) loosen() {
	if w.tight {
		w.tight = false
		w.shrinkLog()
		w.keepSpare()
	}
}

// Upkeep implements [engine.Writer].
func (w *writer) Upkeep(when engine.Occasion) bool {
	switch when {
	case engine.Answered:
		w.watchLog()
	case engine.Ticked, engine.Idle:
		if w.long.CompareAndSwap(true, false) {
			w.checkpointNow()
		}
		if when == engine.Idle {
			return w.shrink()
		}
		return w.extent().wasteful()
	}
	return false
}

func rouse(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
