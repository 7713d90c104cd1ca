package sqlite

import (
	"context"
	"database/sql"
)

// longWAL is the length, in pages, from which on the writer pauses to let the
// log be copied whole, so that it can start again from its beginning: 64 MiB.
const longWAL = 64 << 20 / pageBytes

// checkpointer copies the log into the database whenever it is woken, beside
// the writer and the readers, until the store is closed. SQLite's own way does
// it within some caller's commit, which then waits for the copying.
func (s *Store) checkpointer(conn *sql.Conn, wake <-chan struct{}, long chan<- struct{}) {
	defer conn.Close()
	for {
		select {
		case <-s.closing:
			return
		case <-wake:
		}
		pages, err := checkpoint(conn)
		if err != nil {
			// The log holds everything, so nothing is lost; it grows.
			s.opts.Log.Error("log could not be copied into the database, trying again later", "store", s.path, "err", err)
			continue
		}
		if pages > longWAL {
			select {
			case long <- struct{}{}:
			default:
			}
		}
	}
}

// checkpointNow copies the rest of a long log while nobody writes. Then the
// next write starts the log anew, unless a reader still needs it.
func (w *writer) checkpointNow() {
	if _, err := checkpoint(w.conn); err != nil {
		w.s.opts.Log.Error("long log could not be copied into the database, trying again later", "store", w.s.path, "err", err)
	}
}

// checkpoint copies what it can without waiting for anyone, and returns the
// length of the log in pages.
func checkpoint(conn *sql.Conn) (pages int, err error) {
	var busy, copied int
	err = conn.QueryRowContext(context.Background(), "pragma wal_checkpoint(passive)").Scan(&busy, &pages, &copied)
	return pages, err
}
