package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/store"
)

// Limits of what is read of old checkpoints by who remembers none.
const (
	maxReadBack      = 4096
	maxReadBackBytes = 16 << 20
)

// followHeads has h read the checkpoints up to the one that b stands on: those that are new since
// it read the last, or those of a day back from it. If that one is not to be believed, h knows nothing
// of what began before now.
func followHeads(ctx context.Context, st store.Store, h *auditlog.Heads, b *base, now time.Time) error {
	last := h.Last()
	switch {
	case b.was == last:
		return nil
	case b.claim == nil:
		h.Forget(now)
		return nil
	case last.Number > 0 && b.was.Number > last.Number && b.was.Number-last.Number <= maxReadBack:
		return eachClaim(ctx, st, last.Number+1, b.was.Number, h.Follow)
	}
	// From the newest one back, each names the hash of the one before it.
	claims, size := []*auditlog.Claim{b.claim}, 0
	for oldest := b.claim; oldest.Number > 1 && len(claims) < maxReadBack && size < maxReadBackBytes && b.claim.At.Sub(oldest.At) < auditlog.HeadsAge; {
		from := max((oldest.Number-1)/auditlog.BucketSize*auditlog.BucketSize, 1)
		var some []*auditlog.Claim
		if err := eachClaim(ctx, st, from, oldest.Number-1, func(c *auditlog.Claim) { some = append(some, c) }); err != nil {
			return err
		}
		followed := len(claims)
		for _, c := range slices.Backward(some) {
			if c.Number != oldest.Number-1 || c.Hash != oldest.Previous {
				break
			}
			claims, oldest, size = append(claims, c), c, size+c.Size()
		}
		if len(claims) == followed || oldest.Number > from {
			break // one is gone, or another one than it was
		}
	}
	oldest, since := claims[len(claims)-1], time.Time{}
	if oldest.Number > 1 {
		since = oldest.At
	}
	h.Forget(since)
	for _, c := range slices.Backward(claims) {
		h.Follow(c)
	}
	return nil
}

// eachClaim calls visit for those checkpoints of a span that can be read, in their order.
func eachClaim(ctx context.Context, st store.Store, from, to uint64, visit func(*auditlog.Claim)) error {
	if to-from < fewEntries {
		for n := from; n <= to; n++ {
			c, _, problem, err := claimOf(ctx, st, n)
			if err != nil {
				return err
			}
			if problem == "" {
				visit(c)
			}
		}
		return nil
	}
	for n := from; n <= to; n = (n/auditlog.BucketSize + 1) * auditlog.BucketSize {
		l, err := st.List(ctx, auditlog.CheckpointBucket(n))
		if err != nil {
			return fmt.Errorf("read the checkpoints of the audit log: %w", err)
		}
		for _, e := range l.Entries {
			number, ok := auditlog.ParseCheckpointKey(e.Key)
			if !ok || number < from || number > to {
				continue
			}
			if c, err := auditlog.DecodeCheckpoint(e.Value); err == nil && c.Number == number {
				visit(c)
			}
		}
	}
	return nil
}

// remembered compares the notes of chains with what h remembers, and returns the heads to go on
// from: those of the chains, too, whose notes are gone.
func remembered(ctx context.Context, st store.Store, h *auditlog.Heads, heads []head, now time.Time) ([]head, error) {
	noted := make(map[string]bool, len(heads))
	for i := range heads {
		n := &heads[i]
		noted[n.chain] = true
		if is, problem := h.Check(n.chain, n.Head, n.unread); problem != "" {
			n.Head, n.unread, n.problem = is, false, problem
		}
	}
	for _, chain := range h.Missing(noted) {
		is := h.Head(chain)
		if !auditlog.MayGrow(chain, now) {
			// The note of a chain that is over is removed.
			_, err := st.Get(ctx, auditlog.Key(chain, is.Number+1))
			if errors.Is(err, store.ErrNotFound) {
				h.Over(chain)
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read an entry of the audit log: %w", err)
			}
		}
		heads = append(heads, head{chain: chain, Head: is, problem: "the note of how far it is behind a checkpoint is gone"})
	}
	slices.SortStableFunc(heads, func(a, b head) int { return strings.Compare(a.chain, b.chain) })
	return heads, nil
}
