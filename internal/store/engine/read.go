package engine

import (
	"context"
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
	e, err := s.cfg.Reader.Entry(ctx, key)
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
	if err := s.enter(); err != nil {
		return store.Listing{}, err
	}
	defer s.leave()
	l, err := s.cfg.Reader.Entries(ctx, prefix)
	if err != nil {
		return store.Listing{}, fmt.Errorf("store: list %q: %w", prefix, err)
	}
	return l, nil
}

// Watch implements [store.KV].
func (s *Store) Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if err := store.CheckKey(key); err != nil {
			yield(store.Entry{}, err)
			return
		}
		changed, stop := s.cfg.Hub.Subscribe(key) // before the first read, or a change between is missed
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

// Changes implements [store.Store].
func (s *Store) Changes(ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
	return func(yield func(store.Change, error) bool) {
		if err := store.CheckPrefix(prefix); err != nil {
			yield(store.Change{}, err)
			return
		}
		for {
			commit := s.cfg.Hub.Next() // before the read, or a commit between is missed
			page, err := s.page(ctx, prefix, after)
			if err != nil {
				yield(store.Change{}, err)
				return
			}
			for _, c := range page.Changes {
				if ctx.Err() != nil {
					break // reported below
				}
				if !yield(c, nil) {
					return
				}
			}
			after = page.Seen
			if page.More {
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

func (s *Store) page(ctx context.Context, prefix string, after store.Revision) (Page, error) {
	if err := s.enter(); err != nil {
		return Page{}, err
	}
	defer s.leave()
	page, err := s.cfg.Reader.Page(ctx, prefix, after)
	if err != nil && !errors.Is(err, store.ErrCompacted) {
		err = fmt.Errorf("store: read changes of %q after %d: %w", prefix, after, err)
	}
	return page, err
}

// Add adds what a revision did to a key. Calls come in the order of what was done.
func (p *Page) Add(at store.Revision, key string, deleted bool, value []byte) {
	if n := len(p.Changes); n == 0 || p.Changes[n-1].Revision != at {
		p.Changes = append(p.Changes, store.Change{Revision: at})
	}
	c := &p.Changes[len(p.Changes)-1]
	if deleted {
		c.Delete = append(c.Delete, key)
	} else {
		c.Put = append(c.Put, store.Entry{Key: key, Value: value, Version: at})
	}
}
