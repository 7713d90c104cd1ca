package postgres

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fealty-io/fealty/internal/store"
)

// listPatience is how many timeouts a List may take: it can be long.
const listPatience = 6

// Get implements [store.KV].
func (s *Store) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := store.CheckKey(key); err != nil {
		return store.Entry{}, err
	}
	e, err := s.get(ctx, key)
	if err == nil && e.Version == 0 {
		return store.Entry{}, fmt.Errorf("store: key %q: %w", key, store.ErrNotFound)
	}
	return e, err
}

// get returns an entry of version 0 for a key that does not exist.
func (s *Store) get(ctx context.Context, key string) (store.Entry, error) {
	var e store.Entry
	err := s.read(ctx, s.opts.Timeout, func(ctx context.Context, conn *pgx.Conn) error {
		var version int64
		var value []byte
		err := conn.QueryRow(ctx, "select version, value from fealty_kv where key = $1", key).Scan(&version, &value)
		e = store.Entry{Key: key, Value: value, Version: store.Revision(version)}
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return store.Entry{}, fmt.Errorf("store: read %q: %w", key, err)
	}
	return e, nil
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, prefix string) (store.Listing, error) {
	if err := store.CheckPrefix(prefix); err != nil {
		return store.Listing{}, err
	}
	var l store.Listing
	err := s.read(ctx, listPatience*s.opts.Timeout, func(ctx context.Context, conn *pgx.Conn) error {
		l = store.Listing{}
		batch := &pgx.Batch{}
		view(batch, &l.Revision, new(store.Revision), func(batch *pgx.Batch) {
			batch.Queue("select key, version, value from fealty_kv where key >= $1 and key < $2 order by key", prefix, store.PrefixEnd(prefix)).Query(func(rows pgx.Rows) error {
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
	if err != nil {
		return store.Listing{}, fmt.Errorf("store: list %q: %w", prefix, err)
	}
	return l, nil
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
func (s *Store) read(ctx context.Context, timeout time.Duration, f func(context.Context, *pgx.Conn) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	for again := true; ; again = false {
		err := s.readOnce(ctx, timeout, f)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case again && died(err):
			s.readers.Reset() // the others are no better
			continue
		case errors.Is(err, context.DeadlineExceeded):
			s.readers.Reset() // the others may be as silent
			return fmt.Errorf("%s did not answer within %v", s.name, timeout)
		}
		return plain(err)
	}
}

func (s *Store) readOnce(ctx context.Context, timeout time.Duration, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := s.readers.Acquire(ctx)
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

// Watch implements [store.KV].
func (s *Store) Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if err := store.CheckKey(key); err != nil {
			yield(store.Entry{}, err)
			return
		}
		changed, stop := s.hub.Subscribe(key) // before the first read, or a change between is missed
		defer stop()
		for first, seen := true, store.Revision(0); ; first = false {
			e, err := s.get(ctx, key)
			if err != nil {
				yield(store.Entry{}, err)
				return
			}
			if (first || e.Version != seen) && !yield(e, nil) {
				return
			}
			seen = e.Version
			if err := s.wait(ctx, changed); err != nil {
				yield(store.Entry{}, err)
				return
			}
		}
	}
}

// wait returns when c has something, ctx ended or the store is closed.
func (s *Store) wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
	case <-ctx.Done():
	case <-s.closing:
		return store.ErrClosed
	}
	return ctx.Err()
}

// A read of changes stops at the first commit after so much. One commit has at
// most store.MaxTxOps changes, so a page holds at least one whole.
const (
	changesPerRead     = 2 * store.MaxTxOps
	changeBytesPerRead = 1 << 20
)

// selectChanges returns the first changes of a range, whole commits but maybe the
// last, and how many there are in the page before the bound on bytes.
const selectChanges = `
select seq, key, value is null, value, in_page from (
	select seq, key, value, count(*) over () as in_page,
		sum(octet_length(key) + coalesce(octet_length(value), 0)) over (order by seq / 1024 groups between unbounded preceding and 1 preceding) as bytes_before
	from (select seq, key, value from fealty_log where seq >= $1 and key >= $2 and key < $3 order by seq limit $4) page
) sized
where bytes_before is null or bytes_before < $5
order by seq`

// Changes implements [store.Store].
func (s *Store) Changes(ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
	return func(yield func(store.Change, error) bool) {
		if err := store.CheckPrefix(prefix); err != nil {
			yield(store.Change{}, err)
			return
		}
		for {
			commit := s.hub.Next() // before the read, or a commit between is missed
			changes, seen, more, err := s.readChanges(ctx, prefix, after)
			if err != nil {
				yield(store.Change{}, err)
				return
			}
			for _, c := range changes {
				if ctx.Err() != nil {
					break // reported below
				}
				if !yield(c, nil) {
					return
				}
			}
			after = seen
			if more {
				err = ctx.Err()
			} else {
				err = s.wait(ctx, commit)
			}
			if err != nil {
				yield(store.Change{}, err)
				return
			}
		}
	}
}

// readChanges returns the first commits after a revision that touched prefix,
// up to which revision the answer is complete, and whether there are more.
func (s *Store) readChanges(ctx context.Context, prefix string, after store.Revision) (changes []store.Change, seen store.Revision, more bool, err error) {
	var revision, compacted store.Revision
	from := int64(math.MaxInt64) // nothing is there
	if after < store.MaxRevision {
		from = int64(after+1) * store.MaxTxOps
	}
	rowsGot, inPage := 0, 0
	err = s.read(ctx, s.opts.Timeout, func(ctx context.Context, conn *pgx.Conn) error {
		changes, rowsGot, inPage = nil, 0, 0
		batch := &pgx.Batch{}
		view(batch, &revision, &compacted, func(batch *pgx.Batch) {
			batch.Queue(selectChanges, from, prefix, store.PrefixEnd(prefix), changesPerRead, changeBytesPerRead).Query(func(rows pgx.Rows) error {
				var seq int64
				var key string
				var deleted bool
				var value []byte
				_, err := pgx.ForEachRow(rows, []any{&seq, &key, &deleted, &value, &inPage}, func() error {
					rowsGot++
					at := store.Revision(seq / store.MaxTxOps)
					if len(changes) == 0 || changes[len(changes)-1].Revision != at {
						changes = append(changes, store.Change{Revision: at})
					}
					c := &changes[len(changes)-1]
					if deleted {
						c.Delete = append(c.Delete, key)
					} else {
						c.Put = append(c.Put, store.Entry{Key: key, Value: value, Version: at})
					}
					value = nil // the next one gets bytes of its own
					return nil
				})
				return err
			})
		})
		return conn.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return nil, 0, false, fmt.Errorf("store: read changes of %q after %d: %w", prefix, after, err)
	}
	if after < compacted || after > revision {
		return nil, 0, false, &store.CompactedError{After: after, Oldest: compacted, Current: revision}
	}
	if rowsGot == changesPerRead {
		changes = changes[:len(changes)-1] // the page may have cut it
	}
	if rowsGot < inPage || inPage == changesPerRead {
		return changes, changes[len(changes)-1].Revision, true, nil
	}
	return changes, revision, false, nil
}
