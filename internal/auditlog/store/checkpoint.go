// Package store keeps the audit log of a cluster in its store: it reads it, makes
// checkpoints of it, and removes what is kept no longer. Package auditlog decides what makes
// the log whole.
package store

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// maxBursts bounds the checkpoints that are made one after the other; more entries than those
// cover wait for the next time.
const maxBursts = 64

// Vouch is what a checkpoint is made with.
type Vouch struct {
	Cluster string
	Now     func() time.Time
	// Signers are the config signing keys in force, and Trusted all that may have signed the
	// last checkpoint, as far as is known. One under another key is taken as it is: only the
	// next reader of all checkpoints can tell.
	Signers []crypto.Signer
	Trusted auditlog.Keys
	// If are conditions of the transaction, beside that nobody else made a checkpoint.
	If []store.Condition
	// Seen is the last checkpoint that this process saw; zero if none.
	Seen auditlog.Known
	// Heads is what this process remembers of chains, which is kept up. With nil the notes in the
	// store are taken as they are.
	Heads *auditlog.Heads
	// Breaks were found elsewhere, and are to be told of.
	Breaks []auditlog.Break
	// First is the first checkpoint that is kept from now on, if that is a later one than before.
	First uint64
	// Again asks for a checkpoint though nothing is new.
	Again bool
}

// Made is what came of it.
type Made struct {
	Last    auditlog.Known   // the last checkpoint there is now
	Covered int              // entries that are behind a checkpoint since
	Breaks  []auditlog.Break // that were found
}

// Checkpoint has the last checkpoint vouch for all that the log has, by making as many as that
// takes. It makes none if nothing is new.
//
// Errors: one that matches [store.ErrConflict] if somebody else was first, or a condition does
// not hold; [store.ErrUnknownOutcome] if it stays unknown whether it was made.
func Checkpoint(ctx context.Context, st store.Store, v Vouch) (Made, error) {
	made := Made{Last: v.Seen}
	for range maxBursts {
		one, more, err := checkpointOnce(ctx, st, v)
		if err != nil {
			return made, err
		}
		made.Last, made.Covered, made.Breaks = one.Last, made.Covered+one.Covered, append(made.Breaks, one.Breaks...)
		v.Seen, v.Breaks, v.Again = one.Last, nil, false
		if !more {
			break
		}
	}
	return made, nil
}

// notes are the heads of the chains that may grow, and which checkpoint is the last, all at
// one revision.
type notes struct {
	revision store.Revision
	last     auditlog.Last
	version  store.Revision // of last; 0: there is none
	unread   bool           // last is there and says nothing
	heads    []head
}

type head struct {
	chain   string
	version store.Revision
	auditlog.Head
	unread  bool
	problem string // with its note, which is made anew
}

func readNotes(ctx context.Context, st store.Store) (notes, error) {
	l, err := st.List(ctx, auditlog.NotePrefix)
	if err != nil {
		return notes{}, fmt.Errorf("read the heads of the audit log: %w", err)
	}
	n := notes{revision: l.Revision}
	for _, e := range l.Entries {
		if e.Key == auditlog.LastKey {
			n.version = e.Version
			n.unread = json.Unmarshal(e.Value, &n.last) != nil
			continue
		}
		chain, ok := strings.CutPrefix(e.Key, auditlog.HeadPrefix)
		if !ok || !auditlog.ValidChain(chain) {
			continue // nobody wrote it who writes the log
		}
		h := head{chain: chain, version: e.Version}
		h.unread = json.Unmarshal(e.Value, &h.Head) != nil
		n.heads = append(n.heads, h)
	}
	return n, nil
}

// Last reads which checkpoint is the last. It is a note, which proves nothing.
func Last(ctx context.Context, st store.Store) (auditlog.Last, error) {
	var last auditlog.Last
	e, err := st.Get(ctx, auditlog.LastKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return last, nil
	case err != nil:
		return last, fmt.Errorf("read which checkpoint is the last: %w", err)
	}
	if err := json.Unmarshal(e.Value, &last); err != nil {
		return auditlog.Last{}, nil // the leader tells of it
	}
	return last, nil
}

// claimOf reads a checkpoint. problem says why there is none that can be read.
func claimOf(ctx context.Context, st store.Store, number uint64) (c *auditlog.Claim, value []byte, problem string, err error) {
	e, err := st.Get(ctx, auditlog.CheckpointKey(number))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil, fmt.Sprintf("checkpoint %d is not there", number), nil
	case err != nil:
		return nil, nil, "", fmt.Errorf("read checkpoint %d of the audit log: %w", number, err)
	}
	if c, err = auditlog.DecodeCheckpoint(e.Value); err != nil {
		return nil, e.Value, fmt.Sprintf("checkpoint %d cannot be read", number), nil
	}
	if c.Number != number {
		return nil, e.Value, fmt.Sprintf("another checkpoint stands in the place of checkpoint %d", number), nil
	}
	return c, e.Value, "", nil
}

// A base is what the next checkpoint stands on.
type base struct {
	was    auditlog.Known   // the one that it follows
	claim  *auditlog.Claim  // that one; nil: there is none that is to be believed
	first  uint64           // that is kept
	breaks []auditlog.Break // in what is there
}

func (b *base) wrong(format string, args ...any) {
	b.breaks = append(b.breaks, auditlog.Break{Problem: fmt.Sprintf(format, args...)})
}

// before decides which checkpoint the next one follows, and what is wrong with what is there.
func before(ctx context.Context, st store.Store, v *Vouch, n *notes) (base, error) {
	b := base{was: auditlog.Known{Number: n.last.Number, Hash: n.last.Hash}, first: 1}
	switch {
	case n.unread:
		b.wrong("the note of the last checkpoint cannot be read")
		b.was = v.Seen
	case b.was.Number < v.Seen.Number:
		b.wrong("the last checkpoint was %d, and is %d", v.Seen.Number, b.was.Number)
		b.was = v.Seen
	case b.was.Number == v.Seen.Number && b.was.Hash != v.Seen.Hash:
		b.wrong("checkpoint %d is another one than before", b.was.Number)
		b.was = v.Seen
	}
	newer, err := newest(ctx, st, b.was.Number, n.version == 0 || n.unread)
	if err != nil {
		return b, err
	}
	if newer.Number > b.was.Number {
		b.wrong("the note of the last checkpoint names %d, and there is %d", n.last.Number, newer.Number)
		b.was = newer
	}
	if b.was.Number == 0 {
		b.was = auditlog.Known{}
		return b, nil
	}
	c, _, problem, err := claimOf(ctx, st, b.was.Number)
	if err != nil {
		return b, err
	}
	if problem == "" && (c.Hash != b.was.Hash || c.Cluster != v.Cluster) {
		problem = fmt.Sprintf("checkpoint %d is another one than was noted", b.was.Number)
	}
	if problem != "" {
		if len(b.breaks) == 0 {
			b.wrong("%s", problem)
		}
		b.first = max(b.was.Number, 1)
		return b, nil
	}
	vouched, forged := v.Trusted.Vouch(c)
	if b.first = c.First; forged != nil {
		b.wrong("checkpoint %d: %v", c.Number, forged)
	} else {
		b.claim = c
	}
	v.Again = v.Again || !vouched // so that the keys in force vouch for it
	return b, nil
}

// newest looks whether there is a checkpoint after the one with number: nothing that is
// there is overwritten. Only where one is, or all asks for it, it reads which is the last.
func newest(ctx context.Context, st store.Store, number uint64, all bool) (auditlog.Known, error) {
	if !all {
		_, err := st.Get(ctx, auditlog.CheckpointKey(number+1))
		if errors.Is(err, store.ErrNotFound) {
			return auditlog.Known{}, nil
		}
		if err != nil {
			return auditlog.Known{}, fmt.Errorf("look for a later checkpoint of the audit log: %w", err)
		}
	}
	l, err := st.List(ctx, auditlog.CheckpointPrefix)
	if err != nil {
		return auditlog.Known{}, fmt.Errorf("read the checkpoints of the audit log: %w", err)
	}
	for _, e := range slices.Backward(l.Entries) {
		if n, ok := auditlog.ParseCheckpointKey(e.Key); ok {
			known := auditlog.Known{Number: n}
			if c, err := auditlog.DecodeCheckpoint(e.Value); err == nil {
				known.Hash = c.Hash
			} else {
				known.Hash = auditlog.HashOf(e.Key, e.Value) // that it cannot be read is told of
			}
			return known, nil
		}
	}
	return auditlog.Known{}, nil
}

// checkpointOnce makes one checkpoint, or none if nothing is new. It reports whether there is
// more.
func checkpointOnce(ctx context.Context, st store.Store, v Vouch) (made Made, more bool, err error) {
	n, err := readNotes(ctx, st)
	if err != nil {
		return made, false, err
	}
	b, err := before(ctx, st, &v, &n)
	if err != nil {
		return made, false, err
	}
	was, first := b.was, b.first
	made.Last = was
	c := auditlog.Checkpoint{
		Cluster: v.Cluster, Number: was.Number + 1, At: v.Now().UTC(), Previous: was.Hash, First: min(max(first, v.First), was.Number+1),
		Breaks: slices.Concat(v.Breaks, b.breaks),
	}
	if v.Heads != nil {
		if err := followHeads(ctx, st, v.Heads, &b, c.At); err != nil {
			return made, false, err
		}
		if n.heads, err = remembered(ctx, st, v.Heads, n.heads, c.At); err != nil {
			return made, false, err
		}
		c.Breaks = append(c.Breaks, v.Heads.Breaks()...)
	}
	tx := store.Tx{ID: store.NewTxID(), If: slices.Concat(v.If, []store.Condition{
		{Key: auditlog.LastKey, Version: n.version}, {Key: auditlog.CheckpointKey(c.Number)},
	})}
	room, bytes := auditlog.MaxCovered, auditlog.MaxCoveredBytes
	for _, h := range n.heads {
		if h.Broken && h.problem == "" {
			continue
		}
		// One chain has two breaks at most, and with each its note is written.
		if len(c.Lines) == auditlog.MaxLines || len(c.Breaks) >= auditlog.MaxBreaks-1 || room == 0 || bytes <= 0 {
			more = true
			break
		}
		if h.problem != "" {
			c.Breaks = append(c.Breaks, auditlog.Break{Chain: h.chain, Problem: h.problem})
		}
		next, grew := h.Head, growth{}
		if !h.Broken {
			if next, grew, err = advance(ctx, st, h, room, bytes); err != nil {
				return made, false, err
			}
		}
		if grew.broken != nil {
			c.Breaks = append(c.Breaks, *grew.broken)
			next.Broken = true
		}
		if next.Number > h.Number {
			c.Lines = append(c.Lines, auditlog.Line{Chain: h.chain, From: h.Number, To: next.Number, Hash: next.Hash})
			room, bytes, made.Covered = room-int(next.Number-h.Number), bytes-grew.bytes, made.Covered+int(next.Number-h.Number)
		}
		if next.Number == h.Number && !next.Broken && h.problem == "" {
			continue
		}
		more = more || grew.more
		next.At = c.At
		value, err := json.Marshal(next)
		if err != nil {
			return made, false, err
		}
		tx.If = append(tx.If, store.Condition{Key: auditlog.HeadPrefix + h.chain, Version: h.version})
		tx.Put = append(tx.Put, store.Write{Key: auditlog.HeadPrefix + h.chain, Value: value})
	}
	if len(c.Breaks) > auditlog.MaxBreaks {
		c.Breaks = c.Breaks[:auditlog.MaxBreaks]
	}
	made.Breaks = c.Breaks
	if len(c.Lines) == 0 && len(c.Breaks) == 0 && c.First == first && !v.Again {
		return made, false, nil
	}
	value, hash, err := c.Sign(v.Signers...)
	if err != nil {
		return made, false, err
	}
	last := n.last
	last.Number, last.Hash = c.Number, hash
	if len(c.Breaks) > 0 {
		last.Broken, last.Found = &c.Breaks[len(c.Breaks)-1], c.At
	}
	note, err := json.Marshal(last)
	if err != nil {
		return made, false, err
	}
	tx.Put = append(tx.Put, store.Write{Key: auditlog.CheckpointKey(c.Number), Value: value}, store.Write{Key: auditlog.LastKey, Value: note})
	if _, err := timeout.Commit(ctx, st, tx); err != nil {
		return made, false, fmt.Errorf("write checkpoint %d of the audit log: %w", c.Number, err)
	}
	made.Last = auditlog.Known{Number: c.Number, Hash: hash}
	if v.Heads != nil {
		claim, err := auditlog.DecodeCheckpoint(value)
		if err != nil {
			return made, false, fmt.Errorf("read checkpoint %d, which was made: %w", c.Number, err)
		}
		v.Heads.Follow(claim)
	}
	return made, more, nil
}

// growth is what a chain has behind no checkpoint.
type growth struct {
	bytes  int
	more   bool // than was to be read
	broken *auditlog.Break
}

// advance follows a chain from its head, as far as one entry follows the other, over at most
// limit entries and some more than limitBytes.
func advance(ctx context.Context, st store.Store, h head, limit, limitBytes int) (auditlog.Head, growth, error) {
	next, grew := h.Head, growth{}
	wrong := func(number uint64, problem string) {
		grew.broken = &auditlog.Break{Chain: h.chain, Number: number, Problem: problem}
	}
	if h.unread {
		wrong(0, "how far it is behind a checkpoint cannot be read")
		return next, grew, nil
	}
	_, err := tail(ctx, st, h.chain, max(h.Number, 1), func(e store.Entry, number uint64) bool {
		if number <= h.Number {
			if number == h.Number && auditlog.HashOf(e.Key, e.Value) != h.Hash {
				wrong(number, "it was altered behind a checkpoint")
			}
			return grew.broken == nil
		}
		if limit == 0 || limitBytes <= 0 {
			grew.more = true
			return false
		}
		decoded, err := auditlog.Decode(e.Key, e.Value)
		switch {
		case number != next.Number+1:
			wrong(next.Number+1, fmt.Sprintf("it is not there, and entry %d is", number))
		case err != nil:
			wrong(number, "it cannot be read")
		case decoded.Previous != next.Hash:
			wrong(number, "it does not follow the entry before it")
		default:
			next.Number, next.Hash = number, auditlog.HashOf(e.Key, e.Value)
			limit, limitBytes, grew.bytes = limit-1, limitBytes-len(e.Value), grew.bytes+len(e.Value)
			return true
		}
		return false
	})
	return next, grew, err
}

// tail calls visit for the entries of chain from number on, in their order, until it returns
// false or there are none. It returns how many bytes were read for that.
func tail(ctx context.Context, st store.Store, chain string, number uint64,
	visit func(e store.Entry, number uint64) bool) (read int, err error) {
	for {
		bucket := auditlog.Bucket(chain, number)
		l, err := st.List(ctx, bucket)
		if err != nil {
			return read, fmt.Errorf("read a chain of the audit log: %w", err)
		}
		for _, e := range l.Entries {
			read += len(e.Value)
		}
		end := (number/auditlog.BucketSize+1)*auditlog.BucketSize - 1
		full := false
		for _, e := range l.Entries {
			_, n, ok := auditlog.ParseKey(e.Key)
			if !ok || n < number {
				continue
			}
			if !visit(e, n) {
				return read, nil
			}
			full = n == end
		}
		if !full {
			return read, nil
		}
		number = end + 1
	}
}
