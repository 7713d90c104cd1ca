package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// Entry implements [engine.Reader].
func (db *database) Entry(ctx context.Context, key string) (store.Entry, error) {
	e := store.Entry{Key: key}
	err := db.getEntry.QueryRowContext(ctx, key).Scan(&e.Version, &e.Value)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return store.Entry{}, orContext(ctx, err)
	}
	return e, nil
}

// orContext returns ctx's error if it ended: SQLite then reports that it was
// interrupted, which tells a caller less. Otherwise it is an outage, where that is known.
func orContext(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	return outage(err)
}

// Entries implements [engine.Reader].
func (db *database) Entries(ctx context.Context, prefix string) (store.Listing, error) {
	var l store.Listing
	err := db.view(ctx, func(tx *sql.Tx) error {
		var compacted store.Revision
		if err := tx.QueryRowContext(ctx, selectMeta).Scan(&l.Revision, &compacted); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, "select key, version, value from entries where key >= ? and key < ? "+
			"order by key", prefix, store.PrefixEnd(prefix))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var e store.Entry
			if err := rows.Scan(&e.Key, &e.Version, &e.Value); err != nil {
				return err
			}
			l.Entries = append(l.Entries, e)
		}
		return rows.Err()
	})
	if err != nil {
		return store.Listing{}, orContext(ctx, err)
	}
	return l, nil
}

// view runs f in a transaction that sees one committed state.
func (db *database) view(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := db.readers.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // reads have nothing to commit
	return f(tx)
}

// A read of changes stops at the first commit after so much, so that neither
// memory nor the time that a reader holds the log open is bounded by the log's
// length. One commit is at most store.MaxTxBytes.
const (
	changesPerRead     = 512
	changeBytesPerRead = 1 << 20
)

// Page implements [engine.Reader].
func (db *database) Page(ctx context.Context, prefix string, after store.Revision) (engine.Page, error) {
	var page engine.Page
	err := db.view(ctx, func(tx *sql.Tx) error {
		var revision, compacted store.Revision
		if err := tx.QueryRowContext(ctx, selectMeta).Scan(&revision, &compacted); err != nil {
			return err
		}
		if after < compacted || after > revision {
			return &store.CompactedError{After: after, Oldest: compacted, Current: revision}
		}
		page.Seen = revision
		if after == revision {
			return nil
		}
		rows, err := tx.QueryContext(ctx, "select seq, key, value is null, value from changes "+
			"where seq >= ? and key >= ? and key < ? order by seq",
			int64(after+1)*engine.RowsPerRevision, prefix, store.PrefixEnd(prefix))
		if err != nil {
			return err
		}
		defer rows.Close()
		bytes := 0
		for rows.Next() {
			var seq int64
			var key string
			var deleted bool
			var value []byte
			if err := rows.Scan(&seq, &key, &deleted, &value); err != nil {
				return err
			}
			at, n := store.Revision(seq/engine.RowsPerRevision), len(page.Changes)
			if n > 0 && page.Changes[n-1].Revision != at && (n >= changesPerRead || bytes >= changeBytesPerRead) {
				page.Seen, page.More = page.Changes[n-1].Revision, true
				return nil
			}
			page.Add(at, key, deleted, value)
			bytes += len(key) + len(value)
		}
		return rows.Err()
	})
	switch {
	case errors.Is(err, store.ErrCompacted):
		return engine.Page{}, err
	case err != nil:
		return engine.Page{}, orContext(ctx, err)
	}
	return page, nil
}
