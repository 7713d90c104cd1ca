package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/store"
)

// End is how far a chain goes, behind a checkpoint or not.
type End struct {
	Number uint64 // of the last entry that follows the one before it; 0: there is none
	Hash   auditlog.Hash
	// Broken: it is known, or was found, that something does not follow.
	Broken bool
	// Read is how many bytes of entries were read to find it, but for those of single ones.
	Read int

	chain string
	note  store.Revision // 0: it has none
}

// EndOf reads how far a chain goes. was is what it returned before, of any chain, or the zero value: what
// came before that is not read again.
func EndOf(ctx context.Context, st store.Store, chain string, was End) (End, error) {
	end := End{chain: chain}
	var note auditlog.Head
	e, err := st.Get(ctx, auditlog.HeadPrefix+chain)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return end, fmt.Errorf("read how far a chain of the audit log goes: %w", err)
	case json.Unmarshal(e.Value, &note) != nil:
		end.note, end.Broken = e.Version, true // whoever makes the next checkpoint tells of it
		return end, nil
	default:
		end.note = e.Version
	}
	end.Number, end.Hash, end.Broken = note.Number, note.Hash, note.Broken
	if was.chain == chain && was.Number > end.Number {
		// A store that went back does not have it.
		switch e, err := st.Get(ctx, auditlog.Key(chain, was.Number)); {
		case err == nil && auditlog.HashOf(e.Key, e.Value) == was.Hash:
			end.Number, end.Hash = was.Number, was.Hash
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return end, fmt.Errorf("read an entry of the audit log: %w", err)
		}
	}
	if end.Number > 0 {
		// Mostly there is nothing after it, and a bucket is a hundred times as long.
		switch _, err := st.Get(ctx, auditlog.Key(chain, end.Number+1)); {
		case errors.Is(err, store.ErrNotFound):
			return end, nil
		case err != nil:
			return end, fmt.Errorf("read an entry of the audit log: %w", err)
		}
	}
	end.Read, err = tail(ctx, st, chain, end.Number+1, func(e store.Entry, number uint64) bool {
		decoded, err := auditlog.Decode(e.Key, e.Value)
		if err != nil || number != end.Number+1 || decoded.Previous != end.Hash {
			end.Broken = true
			return false
		}
		end.Number, end.Hash = number, auditlog.HashOf(e.Key, e.Value)
		return true
	})
	return end, err
}

// Noted reports whether the next checkpoint finds the chain already.
func (e End) Noted() bool { return e.note != 0 }

// Follow returns what a transaction needs that puts entries after the end: they are there only
// if nobody else put any meanwhile, and the next checkpoint finds them.
func (e End) Follow(now time.Time) (conditions []store.Condition, put []store.Write, err error) {
	conditions = []store.Condition{{Key: auditlog.HeadPrefix + e.chain, Version: e.note},
		{Key: auditlog.Key(e.chain, e.Number+1)}}
	if e.note != 0 {
		return conditions, nil, nil
	}
	// The note of a chain that got nothing for a day was removed, and what it had is behind a
	// checkpoint.
	note, err := json.Marshal(auditlog.Head{Number: e.Number, Hash: e.Hash, At: now.UTC()})
	return conditions, []store.Write{{Key: auditlog.HeadPrefix + e.chain, Value: note}}, err
}
