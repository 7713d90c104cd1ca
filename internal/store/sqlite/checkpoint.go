package sqlite

import (
	"context"
	"database/sql"
)

// Bounds on the log, in pages of the database.
const (
	// checkpointPages is after how many more pages in the log it is copied into the
	// database, in the background. One small change writes some ten pages.
	checkpointPages = 512

	// longLog is from which length on the writer pauses to let the log be copied whole,
	// so that it can begin again from its start. Most of it was copied by then.
	longLog = 2 * checkpointPages

	// tooLong is from which length on the writer copies the log itself before it takes
	// another change, however slow the disk makes the background; and again after as
	// many pages more as lie between longLog and this, for as long as a reader keeps the
	// log from beginning again.
	tooLong = longLog + checkpointPages/2

	// keptLogBytes is what a log keeps of its file when it begins again: what is written
	// over costs less than what is added.
	keptLogBytes = checkpointPages * pageBytes
)

// How to copy the log, and what to do with it then.
const (
	measureLog  = "pragma wal_checkpoint(noop)"
	copyLog     = "pragma wal_checkpoint(passive)"  // waits for nobody
	truncateLog = "pragma wal_checkpoint(truncate)" // waits for readers, and empties the file
)

// logState is what SQLite says of its log.
type logState struct {
	busy   bool // somebody kept it from being copied whole
	pages  int
	copied int // of pages, into the database
}

// logMarks are lengths of the log, in pages.
type logMarks struct {
	woken  int // when the checkpointer was woken
	copied int // when the writer copied it itself, because it had become too long
}

// measure asks for the length of the log.
func measure(conn *sql.Conn) (logState, error) { return ask(conn, measureLog) }

// checkpoint copies the log in one of these ways, after whoever does it now: SQLite
// itself would not wait for that, and copy nothing.
func (db *database) checkpoint(conn *sql.Conn, how string) (logState, error) {
	db.copying <- struct{}{}
	defer func() { <-db.copying }()
	return ask(conn, how)
}

func ask(conn *sql.Conn, how string) (s logState, err error) {
	err = conn.QueryRowContext(context.Background(), how).Scan(&s.busy, &s.pages, &s.copied)
	return s, err
}

// checkpointer copies the log into the database whenever it is woken, beside
// the writer and the readers, until the store is closed. SQLite's own way does
// it within some caller's commit, which then waits for the copying.
func (db *database) checkpointer(conn *sql.Conn, w *writer) {
	defer conn.Close()
	for {
		select {
		case <-db.closing:
			return
		case <-w.checkpoint:
		}
		log, err := db.checkpoint(conn, copyLog)
		if isFull(err) {
			continue // the writer makes room when it needs some
		}
		if err != nil {
			// The log holds everything, so nothing is lost; it grows.
			db.opts.Log.Error("log could not be copied into the database, trying again later",
				"store", db.path, "err", err)
			continue
		}
		if log.pages > longLog {
			w.long.Store(true)
			rouse(w.logLong)
		}
	}
}

// checkpointNow copies the rest of a long log while nobody writes. Then the
// next write starts the log anew, unless a reader still needs it.
func (w *writer) checkpointNow() {
	if _, err := w.db.checkpoint(w.conn, copyLog); err != nil && !isFull(err) {
		w.db.opts.Log.Error("long log could not be copied into the database, trying again later",
			"store", w.db.path, "err", err)
	}
}

// watchLog wakes the checkpointer when enough was written. The log's own length
// counts: a change of a few bytes writes whole pages.
func (w *writer) watchLog() {
	log, err := measure(w.conn)
	if err != nil {
		rouse(w.checkpoint) // which says what is wrong
		return
	}
	if log.pages < w.at.woken || log.pages < w.at.copied {
		w.at = logMarks{} // it began again
	}
	if log.pages-max(w.at.copied, longLog) >= tooLong-longLog {
		w.at = logMarks{woken: log.pages, copied: log.pages}
		w.checkpointNow()
		return
	}
	if log.pages-w.at.woken >= checkpointPages {
		w.at.woken = log.pages
		rouse(w.checkpoint)
	}
}

// shrinkLog copies the log into the database and gives the space of its file back. It
// reports whether there was any to give.
func (w *writer) shrinkLog() bool {
	before, err := measure(w.conn)
	if err != nil || before.pages == 0 {
		return false
	}
	log, err := w.db.checkpoint(w.conn, truncateLog)
	if isFull(err) && w.db.spare.release() == nil {
		log, err = w.db.checkpoint(w.conn, truncateLog)
	}
	w.keepSpare()
	if err != nil {
		w.db.opts.Log.Error("log could not be copied into the database to make room", "store", w.db.path, "err", err)
		return false
	}
	w.at = logMarks{}
	return !log.busy
}

// keepSpare makes the spare if it is not there. Without one the store works as well,
// until the disk is full.
func (w *writer) keepSpare() {
	if err := w.db.spare.keep(); err != nil {
		w.db.opts.Log.Warn("no space is set aside for a full disk, which may then need to be freed by hand",
			"store", w.db.path, "err", err)
	}
}
