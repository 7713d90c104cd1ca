package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// listPatience is how many timeouts a List may take: it can be long.
const listPatience = 6

// Entry implements [engine.Reader].
func (db *database) Entry(ctx context.Context, key string) (store.Entry, error) {
	var e store.Entry
	err := db.read(ctx, db.opts.Timeout, func(ctx context.Context, conn *pgx.Conn) error {
		var version int64
		var value []byte
		err := conn.QueryRow(ctx, "select version, value from fealty_kv where key = $1", key).Scan(&version, &value)
		e = store.Entry{Key: key, Value: value, Version: store.Revision(version)}
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return e, err
}

// Entries implements [engine.Reader].
func (db *database) Entries(ctx context.Context, prefix string) (store.Listing, error) {
	var l store.Listing
	err := db.read(ctx, listPatience*db.opts.Timeout, func(ctx context.Context, conn *pgx.Conn) error {
		l = store.Listing{}
		batch := &pgx.Batch{}
		view(batch, &l.Revision, new(store.Revision), func(batch *pgx.Batch) {
			const list = "select key, version, value from fealty_kv where key >= $1 and key < $2 order by key"
			batch.Queue(list, prefix, store.PrefixEnd(prefix)).Query(func(rows pgx.Rows) error {
				var key string
				var version int64
				var value []byte
				_, err := pgx.ForEachRow(rows, []any{&key, &version, &value}, func() error {
					l.Entries = append(l.Entries, store.Entry{Key: key, Value: value, Version: store.Revision(version)})
					value = nil // the next one gets bytes of its own
					return nil
				})
				return err
			})
		})
		return conn.SendBatch(ctx, batch).Close()
	})
	return l, err
}

// view queues a transaction that sees one committed state, and reads the
// revisions of that state.
func view(batch *pgx.Batch, revision, compacted *store.Revision, queue func(*pgx.Batch)) {
	batch.Queue("begin isolation level repeatable read read only")
	batch.Queue("select revision, compacted from fealty_revision where only_row").QueryRow(func(row pgx.Row) error {
		var r, c int64
		err := row.Scan(&r, &c)
		*revision, *compacted = store.Revision(r), store.Revision(c)
		return err
	})
	queue(batch)
	batch.Queue("commit")
}

// read gives f a connection. If that turns out to be dead, as all are after a
// restart of the server, f is called again with a new one.
func (db *database) read(ctx context.Context, timeout time.Duration, f func(context.Context, *pgx.Conn) error) error {
	again, once := true, ctx
	for tries := 1; ; {
		err := db.readOnce(once, timeout, f)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case again && died(err):
			again = false
			db.readers.Reset() // the others are no better
			continue
		case errors.Is(err, context.DeadlineExceeded):
			db.readers.Reset() // the others may be as silent
			return db.outage(&silentError{fmt.Sprintf("%s did not answer within %v", db.name, timeout)})
		}
		other := db.login.instead(err)
		if other == nil || tries == trying {
			return db.unread(db.plain(err))
		}
		tries++
		once = other.with(ctx)
	}
}

// unread returns err, with which a read failed, as an outage. Of several servers that are read-only none is
// read, see [validateReading]: then it is no refusal of a write.
func (db *database) unread(err error) error {
	if refused, ok := errors.AsType[*store.RefusedError](err); ok {
		return &store.OutageError{Outage: store.Standby, Said: refused.Err.Error(), Err: refused.Err}
	}
	return db.outage(err)
}

func (db *database) readOnce(
	ctx context.Context, timeout time.Duration, f func(context.Context, *pgx.Conn) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := db.readers.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // not reused unless it is idle
	return f(ctx, conn.Conn())
}

// died reports whether err says that an established connection ended.
func died(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return severity(pg) == "FATAL" && len(pg.Code) == 5 && pg.Code[:3] == "57P"
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return false
	}
	return !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// A read of changes stops at the first commit after so much. One commit has at
// most store.MaxTxOps changes, so a page holds at least one whole.
const (
	changesPerRead     = 2 * engine.RowsPerRevision
	changeBytesPerRead = 1 << 20
)

// selectChanges returns the first changes of a range, whole commits but maybe the
// last, and how many there are in the page before the bound on bytes.
const selectChanges = `
select seq, key, value is null, value, in_page from (
	select seq, key, value, count(*) over () as in_page,
		sum(octet_length(key) + coalesce(octet_length(value), 0))
			over (order by seq / 1024 groups between unbounded preceding and 1 preceding) as bytes_before
	from (select seq, key, value from fealty_log where seq >= $1 and key >= $2 and key < $3 order by seq limit $4) page
) sized
where bytes_before is null or bytes_before < $5
order by seq`

// Page implements [engine.Reader].
func (db *database) Page(ctx context.Context, prefix string, after store.Revision) (engine.Page, error) {
	var page engine.Page
	var revision, compacted store.Revision
	from := int64(math.MaxInt64) // nothing is there
	if after < store.MaxRevision {
		from = int64(after+1) * engine.RowsPerRevision
	}
	rowsGot, inPage := 0, 0
	read := func(rows pgx.Rows) error {
		var seq int64
		var key string
		var deleted bool
		var value []byte
		_, err := pgx.ForEachRow(rows, []any{&seq, &key, &deleted, &value, &inPage}, func() error {
			rowsGot++
			page.Add(store.Revision(seq/engine.RowsPerRevision), key, deleted, value)
			value = nil // the next one gets bytes of its own
			return nil
		})
		return err
	}
	err := db.read(ctx, db.opts.Timeout, func(ctx context.Context, conn *pgx.Conn) error {
		page.Changes, rowsGot, inPage = nil, 0, 0
		batch := &pgx.Batch{}
		view(batch, &revision, &compacted, func(batch *pgx.Batch) {
			batch.Queue(selectChanges, from, prefix, store.PrefixEnd(prefix), changesPerRead, changeBytesPerRead).
				Query(read)
		})
		return conn.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return engine.Page{}, err
	}
	if after < compacted || after > revision {
		return engine.Page{}, &store.CompactedError{After: after, Oldest: compacted, Current: revision}
	}
	if rowsGot == changesPerRead {
		page.Changes = page.Changes[:len(page.Changes)-1] // the page may have cut it
	}
	page.Seen = revision
	if rowsGot < inPage || inPage == changesPerRead {
		if len(page.Changes) == 0 { // no commit writes so much
			return engine.Page{}, fmt.Errorf("read the changes after revision %d: table fealty_log has %d rows of one revision: "+
				"it was altered", after, rowsGot)
		}
		page.Seen, page.More = page.Changes[len(page.Changes)-1].Revision, true
	}
	return page, nil
}
