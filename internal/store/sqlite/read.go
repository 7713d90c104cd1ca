package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"

	"github.com/fealty-io/fealty/internal/store"
)

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
	if err := s.enter(); err != nil {
		return store.Entry{}, err
	}
	defer s.leave()
	e := store.Entry{Key: key}
	err := s.getEntry.QueryRowContext(ctx, key).Scan(&e.Version, &e.Value)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return store.Entry{}, fmt.Errorf("store: read %q: %w", key, orContext(ctx, err))
	}
	return e, nil
}

// orContext returns ctx's error if it ended: SQLite then reports that it was
// interrupted, which tells a caller less.
func orContext(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	return err
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, prefix string) (store.Listing, error) {
	if err := store.CheckPrefix(prefix); err != nil {
		return store.Listing{}, err
	}
	if err := s.enter(); err != nil {
		return store.Listing{}, err
	}
	defer s.leave()
	var l store.Listing
	err := s.view(ctx, func(tx *sql.Tx) error {
		var compacted store.Revision
		if err := tx.QueryRowContext(ctx, selectMeta).Scan(&l.Revision, &compacted); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, "select key, version, value from entries where key >= ? and key < ? order by key",
			prefix, store.PrefixEnd(prefix))
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
		return store.Listing{}, fmt.Errorf("store: list %q: %w", prefix, orContext(ctx, err))
	}
	return l, nil
}

// view runs f in a transaction that sees one committed state.
func (s *Store) view(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.readers.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // reads have nothing to commit
	return f(tx)
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

// A read of changes stops at the first commit after so much, so that neither
// memory nor the time that a reader holds the log open is bounded by the log's
// length. One commit is at most store.MaxTxBytes.
const (
	changesPerRead     = 512
	changeBytesPerRead = 1 << 20
)

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
	if err := s.enter(); err != nil {
		return nil, 0, false, err
	}
	defer s.leave()
	err = s.view(ctx, func(tx *sql.Tx) error {
		var revision, compacted store.Revision
		if err := tx.QueryRowContext(ctx, selectMeta).Scan(&revision, &compacted); err != nil {
			return err
		}
		if after < compacted || after > revision {
			return &store.CompactedError{After: after, Oldest: compacted, Current: revision}
		}
		seen = revision
		if after == revision {
			return nil
		}
		rows, err := tx.QueryContext(ctx, "select seq, key, value is null, value from changes where seq >= ? and key >= ? and key < ? order by seq",
			int64(after+1)*store.MaxTxOps, prefix, store.PrefixEnd(prefix))
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
			at := store.Revision(seq / store.MaxTxOps)
			if len(changes) == 0 || changes[len(changes)-1].Revision != at {
				if len(changes) >= changesPerRead || bytes >= changeBytesPerRead {
					seen, more = changes[len(changes)-1].Revision, true
					return nil
				}
				changes = append(changes, store.Change{Revision: at})
			}
			c := &changes[len(changes)-1]
			if deleted {
				c.Delete = append(c.Delete, key)
			} else {
				c.Put = append(c.Put, store.Entry{Key: key, Value: value, Version: at})
			}
			bytes += len(key) + len(value)
		}
		return rows.Err()
	})
	if err != nil {
		if errors.Is(err, store.ErrCompacted) {
			return nil, 0, false, err
		}
		return nil, 0, false, fmt.Errorf("store: read changes of %q after %d: %w", prefix, after, orContext(ctx, err))
	}
	return changes, seen, more, nil
}
