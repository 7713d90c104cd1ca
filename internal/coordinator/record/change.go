package record

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// LockKey is there while a reseed moves the records: none of them changes then.
const LockKey = "reseed/freeze"

// AuditEntry is one line of the audit log.
type AuditEntry = auditlog.Entry

// AuditPlaces gives audit entries their places in the chains of this process.
type AuditPlaces interface {
	// Stamp gives entries the places that they get if the transaction which they go with
	// is applied. Tell it how that went.
	Stamp(ctx context.Context, entries []AuditEntry) (*auditlog.Stamped, error)
}

// Change collects one transaction. The first error sticks.
type Change struct {
	r Records
	// Tx is the transaction so far, and Err the first error, which Commit returns.
	Tx  store.Tx
	Err error
	// Entries get their places in the audit log when the transaction is committed: one that
	// is not has none, and none waits for another.
	Entries []AuditEntry
	// Withdraws is the path of the member whose keys the change bans; empty: none.
	Withdraws string
}

// NewChange starts a transaction that holds only while the head of the history
// is the one that the caller's state was built from (I1): a replica that lags
// cannot act under an old manifest.
//
// While the records are locked for a reseed it does not hold either.
func (r Records) NewChange(head store.Revision) *Change {
	c := r.LockedChange(head)
	c.Require(LockKey, 0)
	return c
}

// LockedChange is NewChange for the coordinator that moves the locked records.
func (r Records) LockedChange(head store.Revision) *Change {
	return &Change{r: r, Tx: store.Tx{
		ID: store.NewTxID(),
		If: []store.Condition{{Key: history.HeadKey, Version: head}},
	}}
}

// Part starts a transaction that names no head: a part of another one, or one with
// conditions of its own.
func (r Records) Part() *Change { return &Change{r: r} }

// Put replaces a record that was read at version; 0 means that it must be new.
func (c *Change) Put(key string, version store.Revision, value any) {
	w, err := c.r.Seal(key, value)
	if err != nil {
		c.Err = errors.Join(c.Err, err)
		return
	}
	c.Tx.If = append(c.Tx.If, store.Condition{Key: key, Version: version})
	c.Tx.Put = append(c.Tx.Put, w)
}

// Write replaces a record, whatever it was: a condition on another one says that
// nobody else wrote it.
func (c *Change) Write(key string, value any) {
	w, err := c.r.Seal(key, value)
	if err != nil {
		c.Err = errors.Join(c.Err, err)
		return
	}
	c.Tx.Put = append(c.Tx.Put, w)
}

// WriteRaw is Write for exact bytes.
func (c *Change) WriteRaw(key string, value []byte) {
	c.Tx.Put = append(c.Tx.Put, store.Write{Key: key, Value: c.r.Auth.Seal(key, value)})
}

// Drop removes a record, whatever it was; see Write.
func (c *Change) Drop(key string) { c.Tx.Delete = append(c.Tx.Delete, key) }

// Require makes the transaction fail unless key is still at version.
func (c *Change) Require(key string, version store.Revision) {
	c.Tx.If = append(c.Tx.If, store.Condition{Key: key, Version: version})
}

// Delete removes a record that was read at version.
func (c *Change) Delete(key string, version store.Revision) {
	c.Tx.If = append(c.Tx.If, store.Condition{Key: key, Version: version})
	c.Tx.Delete = append(c.Tx.Delete, key)
}

// Audit adds an entry that becomes durable with the change that it describes.
func (c *Change) Audit(now time.Time, e AuditEntry) {
	e.At = now.UTC()
	c.Entries = append(c.Entries, e)
}

// Commit applies the change. An answer that was lost is looked up: the result
// is then known, or an error that matches [store.ErrUnknownOutcome] remains.
func (c *Change) Commit(ctx context.Context) (store.Revision, error) {
	if c.Err != nil {
		return 0, c.Err
	}
	tx := c.Tx
	var places *auditlog.Stamped // nil: nothing to tell
	if len(c.Entries) > 0 {
		var err error
		if places, err = c.r.Audit.Stamp(ctx, c.Entries); err != nil {
			return 0, err
		}
		tx = WithPlaces(tx, places)
	}
	rev, err := timeout.Commit(ctx, c.r.Store, tx)
	switch {
	case places == nil:
	case err == nil:
		places.Applied()
	case errors.Is(err, store.ErrUnknownOutcome):
		places.Unknown()
		c.Tx, c.Entries = tx, nil // whoever writes it again writes the very same
	default:
		places.Discarded()
	}
	return rev, err
}

// WithPlaces returns tx with the entries that got places.
func WithPlaces(tx store.Tx, places *auditlog.Stamped) store.Tx {
	tx.Put = slices.Clone(tx.Put)
	for _, w := range places.Writes {
		tx.Put = append(tx.Put, store.Write(w))
	}
	if places.Begins != "" {
		tx.If = append(slices.Clone(tx.If), store.Condition{Key: places.Begins})
	}
	return tx
}

// Reseal puts a record under the key of c, as it is. The caller vouches for it.
func (c *Change) Reseal(e store.Entry) {
	plain := e.Value[store.SealBytes:]
	c.Tx.If = append(c.Tx.If, store.Condition{Key: e.Key, Version: e.Version})
	c.Tx.Put = append(c.Tx.Put, store.Write{Key: e.Key, Value: c.r.Auth.Seal(e.Key, plain)})
}

// IgnoreConflict drops the error of a transaction that somebody else's overtook:
// the next round looks again.
func IgnoreConflict(err error) error {
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}
