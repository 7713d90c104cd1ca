package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
)

// What was freed in the database goes back to the disk once it is much, in small steps while nobody waits: SQLite's
// incremental vacuum (https://sqlite.org/pragma.html#pragma_auto_vacuum). A database has to be made for it. One of an
// earlier release is not, and is written anew when it is opened, where that gives much back and takes little.
//
// All bounds are in pages.
const (
	// muchFree is from how much on space goes back, if it is a quarter of the database. Less is
	// kept, for what is written next.
	muchFree = 1024

	// freedAtOnce is what a step gives back, so that who writes next does not wait for long.
	freedAtOnce = 256

	// mostRewritten is what may be in use of a database that is written anew: that much memory is taken meanwhile.
	mostRewritten = 16384
)

// extent is how long the database is.
type extent struct{ pages, free int64 }

// wasteful reports whether so much is free that it is to go back.
func (e extent) wasteful() bool { return e.free >= muchFree && e.free >= e.pages/4 }

// create makes the empty file at path a database that can give space back. It has to be the first to open it.
func create(ctx context.Context, path string) (err error) {
	name := url.URL{Scheme: "file", OmitHost: true, Path: path}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	// The second writes the first page, which has the first.
	_, err = conn.ExecContext(ctx, "pragma auto_vacuum = incremental; pragma journal_mode = wal")
	return err
}

// incremental reports whether the database behind conn was made to give space back.
func incremental(ctx context.Context, conn *sql.Conn) (bool, error) {
	var mode int
	err := conn.QueryRowContext(ctx, "pragma auto_vacuum").Scan(&mode)
	return mode == 2, err
}

// rewrite writes a database of an earlier release anew if much of it is free, so that it shrinks now and can later. If
// it cannot, it leaves all as it was.
func rewrite(ctx context.Context, conn *sql.Conn) (done bool, err error) {
	made, err := incremental(ctx, conn)
	if made || err != nil {
		return false, err
	}
	var e extent
	if err := errors.Join(conn.QueryRowContext(ctx, "pragma page_count").Scan(&e.pages),
		conn.QueryRowContext(ctx, "pragma freelist_count").Scan(&e.free)); err != nil {
		return false, err
	}
	if !e.wasteful() || e.pages-e.free > mostRewritten {
		return false, nil
	}
	// What it copies meanwhile is in memory: a folder for temporary files may be small, and is of others too.
	for _, do := range []string{"pragma temp_store = memory", "pragma auto_vacuum = incremental", "vacuum"} {
		if _, err = conn.ExecContext(ctx, do); err != nil {
			err = fmt.Errorf("%s: %w", do, err)
			break
		}
	}
	_, back := conn.ExecContext(ctx, "pragma temp_store = default")
	return err == nil, errors.Join(err, back)
}

// extent asks how long the database is; nothing, if that fails.
func (w *writer) extent() (e extent) {
	ctx := context.Background()
	if !w.shrinks || errors.Join(w.do.pageCount.QueryRowContext(ctx).Scan(&e.pages),
		w.do.freeCount.QueryRowContext(ctx).Scan(&e.free)) != nil {
		return extent{}
	}
	return e
}

// shrink gives a part of what is free in the database back to the disk, if it is much. It reports whether there is
// more to give.
func (w *writer) shrink() (more bool) {
	before := w.extent()
	if !before.wasteful() {
		return false
	}
	rows, err := w.do.giveBack.QueryContext(context.Background())
	if err == nil {
		for rows.Next() { // one for each page
		}
		err = errors.Join(rows.Err(), rows.Close())
	}
	if err != nil {
		// Nothing is lost: what is free is there for what is written next.
		if !isFull(err) {
			w.db.opts.Log.Warn("space could not be given back to the disk, trying again later", "store", w.db.path, "err", err)
		}
		return false
	}
	w.watchLog()
	if e := w.extent(); e.wasteful() {
		return e.free < before.free
	}
	w.checkpointNow() // which cuts the file
	return false
}
