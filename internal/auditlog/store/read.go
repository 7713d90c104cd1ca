package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// Entries of a release before chains stand at 20 digits of nanoseconds. Without the last 14
// these name buckets of 28 hours. Those of the last year are looked at for removal, and those
// of the 90 days for which entries are kept, and some more, by who reads.
const (
	oldDigits  = 20
	oldCut     = 14
	oldBucket  = 100_000_000_000_000
	oldBuckets = 320
	oldRead    = 82
)

// fewEntries are read one by one, and more with what stands beside them.
const fewEntries = 4

// Item is one record of the log: a checkpoint, or an entry.
type Item struct {
	Key   string
	Value []byte
	// Checkpoint is the one that the entry is behind, or its own number; 0: behind none.
	Checkpoint uint64
}

// Read calls visit for the log from since on, all of it if that is zero: first what is of
// releases before chains, then each checkpoint with the entries behind it, and at last the
// entries behind none. It holds one checkpoint's entries, or those of a day before chains.
// It returns the revision up to which it read: what is written later it leaves out.
func Read(ctx context.Context, st store.Store, since, now time.Time, visit func(Item) error) (store.Revision, error) {
	n, err := readNotes(ctx, st)
	if err != nil {
		return 0, err
	}
	if err := readOld(ctx, st, since, now, visit); err != nil {
		return 0, err
	}
	if n.last.Number > 0 {
		first, err := firstSince(ctx, st, n.last.Number, since)
		if err != nil {
			return 0, err
		}
		for number := first; number <= n.last.Number; number++ {
			if err := readBehind(ctx, st, number, visit); err != nil {
				return 0, err
			}
		}
	}
	for _, h := range n.heads {
		var failed error
		_, err := tail(ctx, st, h.chain, h.Number+1, func(e store.Entry, _ uint64) bool {
			if e.Version > n.revision {
				return false
			}
			failed = visit(Item{Key: e.Key, Value: e.Value})
			return failed == nil
		})
		if err = errors.Join(err, failed); err != nil {
			return 0, err
		}
	}
	return n.revision, nil
}

// readOld reads what no chain has.
func readOld(ctx context.Context, st store.Store, since, now time.Time, visit func(Item) error) error {
	end := now.UnixNano()/oldBucket + 1 // clocks differ
	begin := max(end-oldRead, 0)
	if !since.IsZero() {
		begin = max(begin, since.UnixNano()/oldBucket)
	}
	for ; begin <= end; begin++ {
		entries, err := oldEntries(ctx, st, begin)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := visit(Item{Key: e.Key, Value: e.Value}); err != nil {
				return err
			}
		}
	}
	return nil
}

func oldEntries(ctx context.Context, st store.Store, bucket int64) ([]store.Entry, error) {
	l, err := st.List(ctx, auditlog.Prefix+fmt.Sprintf("%0*d", oldDigits, bucket*oldBucket)[:oldDigits-oldCut])
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return l.Entries, nil
}

// firstSince finds the first checkpoint that is kept, and not of before since.
func firstSince(ctx context.Context, st store.Store, last uint64, since time.Time) (uint64, error) {
	c, _, problem, err := claimOf(ctx, st, last)
	if err != nil || problem != "" {
		return last, err
	}
	low, high := c.First, last // the one that is looked for is among these
	for !since.IsZero() && low < high {
		middle := low + (high-low)/2
		c, _, problem, err := claimOf(ctx, st, middle)
		if err != nil {
			return 0, err
		}
		if problem != "" {
			return low, nil // all of it is read then
		}
		if c.At.Before(since) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, nil
}

// readBehind reads a checkpoint and the entries behind it.
func readBehind(ctx context.Context, st store.Store, number uint64, visit func(Item) error) error {
	c, value, problem, err := claimOf(ctx, st, number)
	if err != nil {
		return err
	}
	if value != nil {
		if err := visit(Item{auditlog.CheckpointKey(number), value, number}); err != nil {
			return err
		}
	}
	if problem != "" {
		return nil // a verifier tells of it
	}
	for _, line := range c.Lines {
		err := readLine(ctx, st, line, func(e store.Entry) error { return visit(Item{e.Key, e.Value, number}) })
		if err != nil {
			return err
		}
	}
	return nil
}

// readLine reads those entries of a line that are there.
func readLine(ctx context.Context, st store.Store, l auditlog.Line, visit func(store.Entry) error) error {
	if l.To-l.From <= fewEntries {
		for n := l.From + 1; n <= l.To; n++ {
			e, err := st.Get(ctx, auditlog.Key(l.Chain, n))
			if errors.Is(err, store.ErrNotFound) {
				continue
			}
			if err != nil {
				return fmt.Errorf("read an entry of the audit log: %w", err)
			}
			if err := visit(e); err != nil {
				return err
			}
		}
		return nil
	}
	for n := l.From + 1; n <= l.To; n = (n/auditlog.BucketSize + 1) * auditlog.BucketSize {
		found, err := st.List(ctx, auditlog.Bucket(l.Chain, n))
		if err != nil {
			return fmt.Errorf("read a chain of the audit log: %w", err)
		}
		for _, e := range found.Entries {
			if _, number, ok := auditlog.ParseKey(e.Key); ok && number > l.From && number <= l.To {
				if err := visit(e); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Recheck reads a checkpoint and what is behind it again, and returns what is wrong there, and
// which one comes next: the first that is kept after the last.
func Recheck(ctx context.Context, st store.Store, cluster string, number uint64) (wrong []auditlog.Break, next uint64, err error) {
	last, err := Last(ctx, st)
	if err != nil || last.Number == 0 {
		return nil, 0, err
	}
	c, _, problem, err := claimOf(ctx, st, last.Number)
	if err != nil || problem != "" {
		return nil, 0, err // whoever makes the next one tells of it
	}
	if number < c.First || number > last.Number {
		number = c.First
	}
	v := auditlog.NewVerifier(cluster, nil)
	read := false
	err = readBehind(ctx, st, number, func(i Item) error {
		read = true
		v.Add(i.Key, i.Value)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	if !read {
		return []auditlog.Break{{Problem: fmt.Sprintf("checkpoint %d is not there", number)}}, number + 1, nil
	}
	for _, p := range v.Close().Problems {
		switch p.Rule {
		case auditlog.RuleEntry, auditlog.RuleMissing, auditlog.RuleAltered, auditlog.RuleCheckpoint, auditlog.RuleCluster:
			if len(wrong) < auditlog.MaxBreaks {
				wrong = append(wrong, auditlog.Break{Chain: p.Chain, Number: p.Number, Problem: p.Problem})
			}
		}
	}
	return wrong, number + 1, nil
}

// Limits of what is removed at once.
const (
	retireAtOnce = 1024 // checkpoints
	// headAge is after which a chain that got no entry gets none, and is remembered no more.
	headAge = auditlog.HeadsAge + 2*time.Hour
)

// FirstSince returns the first checkpoint that is to be kept if all of before is over: at most
// the last. It returns 0 if that is the one that is the first already.
func FirstSince(ctx context.Context, st store.Store, before time.Time) (uint64, error) {
	last, err := Last(ctx, st)
	if err != nil || last.Number == 0 {
		return 0, err
	}
	c, _, problem, err := claimOf(ctx, st, last.Number)
	if err != nil || problem != "" {
		return 0, err
	}
	first := c.First
	for range retireAtOnce {
		if first == last.Number {
			break
		}
		next, _, problem, err := claimOf(ctx, st, first)
		if err != nil {
			return 0, err
		}
		if problem == "" && !next.At.Before(before) {
			break
		}
		first++
	}
	if first == c.First {
		return 0, nil
	}
	return first, nil
}

// Retire removes what is behind the checkpoints that the last one says are over, and then
// those. conditions hold for each of its transactions.
func Retire(ctx context.Context, st store.Store, conditions []store.Condition) error {
	for range retireAtOnce {
		n, err := readNotes(ctx, st)
		if err != nil || n.last.Number == 0 {
			return err
		}
		c, _, problem, err := claimOf(ctx, st, n.last.Number)
		if err != nil || problem != "" || n.last.Dropped+1 >= c.First {
			return err
		}
		number := n.last.Dropped + 1
		over, _, problem, err := claimOf(ctx, st, number)
		if err != nil {
			return err
		}
		if problem == "" {
			if err := dropBehind(ctx, st, over, conditions); err != nil {
				return err
			}
		}
		n.last.Dropped = number
		note, err := json.Marshal(n.last)
		if err != nil {
			return err
		}
		_, err = timeout.Commit(ctx, st, store.Tx{
			ID: store.NewTxID(), If: slices.Concat(conditions, []store.Condition{{Key: auditlog.LastKey, Version: n.version}}),
			Put: []store.Write{{Key: auditlog.LastKey, Value: note}}, Delete: []string{auditlog.CheckpointKey(number)},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func dropBehind(ctx context.Context, st store.Store, c *auditlog.Claim, conditions []store.Condition) error {
	var keys []string
	for _, l := range c.Lines {
		for n := l.From + 1; n <= l.To; n++ {
			keys = append(keys, auditlog.Key(l.Chain, n))
		}
	}
	every := store.Tx{If: conditions}
	for batch := range store.Cut(keys, every, func(key string) (int, int) { return 1, len(key) }) {
		if _, err := timeout.Commit(ctx, st, store.Tx{ID: store.NewTxID(), If: conditions, Delete: batch}); err != nil {
			return err
		}
	}
	return nil
}

// Forget removes the notes of chains that get no entry any more, and are behind a checkpoint. Time
// is what passed between checkpoints: after a day without any, a chain may have entries that are
// behind none.
func Forget(ctx context.Context, st store.Store, conditions []store.Condition) error {
	n, err := readNotes(ctx, st)
	if err != nil || n.last.Number == 0 {
		return err
	}
	last, _, problem, err := claimOf(ctx, st, n.last.Number)
	if err != nil || problem != "" {
		return err
	}
	var old []head
	for _, h := range n.heads {
		if h.Number > 0 && last.At.Sub(h.At) > headAge {
			old = append(old, h)
		}
	}
	cost := func(h head) (ops, bytes int) { return 3, 2*len(auditlog.HeadPrefix+h.chain) + store.MaxKeyBytes }
	for batch := range store.Cut(old, store.Tx{If: conditions}, cost) {
		tx := store.Tx{ID: store.NewTxID(), If: slices.Clone(conditions)}
		for _, h := range batch {
			// The chain of a shard may have got an entry since the last checkpoint, which finds it by
			// the note.
			next := auditlog.Key(h.chain, h.Number+1)
			switch _, err := st.Get(ctx, next); {
			case err == nil:
				continue
			case !errors.Is(err, store.ErrNotFound):
				return fmt.Errorf("read an entry of the audit log: %w", err)
			}
			tx.If = append(tx.If, store.Condition{Key: auditlog.HeadPrefix + h.chain, Version: h.version},
				store.Condition{Key: next})
			tx.Delete = append(tx.Delete, auditlog.HeadPrefix+h.chain)
		}
		if len(tx.Delete) == 0 {
			continue
		}
		if _, err := timeout.Commit(ctx, st, tx); err != nil {
			return err
		}
	}
	return nil
}

// Old calls visit for the entries of releases before chains that were made before a time, those
// of one bucket at a time from the oldest on.
func Old(ctx context.Context, st store.Store, before time.Time, visit func([]store.Entry) error) error {
	end := before.UnixNano()
	for bucket := max(end/oldBucket-oldBuckets, 0); bucket <= end/oldBucket; bucket++ {
		entries, err := oldEntries(ctx, st, bucket)
		if err != nil {
			return err
		}
		over := slices.DeleteFunc(entries, func(e store.Entry) bool {
			stamp, _, _ := strings.Cut(strings.TrimPrefix(e.Key, auditlog.Prefix), "-")
			nanos, err := strconv.ParseInt(stamp, 10, 64)
			return err != nil || nanos >= end
		})
		if len(over) == 0 {
			continue
		}
		if err := visit(over); err != nil {
			return err
		}
	}
	return nil
}
