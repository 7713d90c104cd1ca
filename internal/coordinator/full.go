package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

// What a coordinator does while its store answers and takes no writes, because a disk
// is full or a quota used up.
//
// It is ready: it serves what it reads, and it has the head of the history confirmed,
// so that there is no end to it as there is to an outage. It admits nobody and changes
// nothing, and nobody leads. It certifies the recorded key of a known member again, as
// in an outage and until the same moment after what the record says; but first it
// reads from the store what the refused transaction would have been conditional on:
// record, head and bans.

// fullFor is how long after the last refused write a store counts as full that takes
// other writes: what is small may find space where the rest does not.
const fullFor = 30 * time.Second

// fullness is what the writes of this coordinator came to.
type fullness struct {
	mu    sync.Mutex
	since time.Time // of the first refusal for want of space; zero: it is not full; guarded by mu
	last  time.Time // refusal; guarded by mu
	took  bool      // it took a write after last; guarded by mu
}

// note takes in how a write ended, and reports what is news: that the store is full, or
// that it is not any more.
func (f *fullness) note(err error, now time.Time) (full, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.sinceLocked(now)
	switch {
	case errors.Is(err, store.ErrFull):
		if was.IsZero() {
			f.since = now
		}
		f.last, f.took = now, false
	case err == nil && !f.since.IsZero():
		f.took = true
		if f.sinceLocked(now).IsZero() {
			f.since = time.Time{}
			return false, true
		}
	}
	return was.IsZero() && !f.sinceLocked(now).IsZero(), false
}

// fullSince is since when the store is full; zero if it is not, as far as is known.
func (f *fullness) fullSince(now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sinceLocked(now)
}

func (f *fullness) sinceLocked(now time.Time) time.Time {
	if f.took && now.Sub(f.last) > fullFor {
		return time.Time{}
	}
	return f.since
}

// observedStore notes which writes find no space.
type observedStore struct {
	store.Store
	c *Coordinator
}

func (o observedStore) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	rev, err := o.Store.Commit(ctx, tx)
	o.c.noteWrite(err)
	return rev, err
}

func (o observedStore) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	rev, err := o.Store.CompareAndSwap(ctx, key, old, value)
	o.c.noteWrite(err)
	return rev, err
}

func (c *Coordinator) noteWrite(err error) {
	switch full, over := c.full.note(err, c.now()); {
	case full:
		c.log.LogAttrs(context.Background(), slog.LevelError, "the store takes no writes: known members are certified again, nobody is admitted and nothing is changed until there is space", slog.Any("err", err))
	case over:
		c.log.LogAttrs(context.Background(), slog.LevelInfo, "the store takes writes again")
	}
}

// renewFull certifies the recorded key of a member again whose renewal found no space.
// rec is what the store shows of the member, and cause how it refused. A key of the gap
// of a restore is in no record that can be shown, so it is not certified.
func (c *Coordinator) renewFull(ctx context.Context, s *state, peer identity.Peer, r renewRequest, rec versioned[memberRecord], turn func(identity.Kind, string) error, cause error) ([][]byte, error) {
	id := peer.ID
	for _, want := range []store.Condition{{Key: history.HeadKey, Version: s.headVersion}, {Key: memberKey(id.Kind(), id.Name()), Version: rec.version}} {
		e, err := s.records.store.Get(ctx, want.Key)
		switch {
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return nil, c.storeError("read what the renewal depends on", err)
		case e.Version != want.Version:
			c.kickHead()
			return nil, errBusy("the renewal")
		}
	}
	for _, key := range []identity.KeyID{r.key, peer.Key} {
		if err := c.bannedNow(ctx, s, id, key); err != nil {
			return nil, err
		}
	}
	return c.recertify(ctx, s, peer, r, rec.value, outageStretch, turn, cause)
}

// fullFindings says that the store is full, if it is.
func (c *Coordinator) fullFindings() []*fealtyv1.Finding {
	since := c.full.fullSince(c.now())
	if since.IsZero() {
		return nil
	}
	return []*fealtyv1.Finding{finding(explain.StoreFull, "what", "every change since "+since.UTC().Format(time.RFC3339))}
}

// fullReason says that the store is full; empty if it is not.
func (c *Coordinator) fullReason() string {
	now := c.now()
	since := c.full.fullSince(now)
	if since.IsZero() {
		return ""
	}
	return fmt.Sprintf("the store has taken no writes for %s, because it has no space left or was made read-only: known members are certified again, and nothing else is changed", now.Sub(since).Round(time.Second))
}
