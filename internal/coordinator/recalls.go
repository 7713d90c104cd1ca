package coordinator

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/watch"
)

// What a coordinator does once its store is whole again for those who were certified
// without it: it asks them to renew, which puts their certificates on record and changes
// the keys that could not be changed. They would come by themselves, but not soon.

const (
	// recallsAtOnce are asked in one recallPause. A renewal is a transaction, and several
	// coordinators ask at once: this is a small part of what a store bears, so that
	// renewals that are due find their place.
	recallsAtOnce = 50
	recallPause   = time.Second
	// recallAgain is how long nobody is asked again: a renewal may fail once more.
	recallAgain = time.Minute
)

// backReason is what the members are told.
const backReason = "the store is back: the present certificate stands in no record"

// unrecorded reports whether a member's certificate is one that an outage or a full store
// kept out of the records, as far as is known: over the key that its record says, and for
// longer.
func (c *Admission) unrecorded(path string, leaf *x509.Certificate) bool {
	rec, ok := c.cfg.Membership.Roster().Find(path)
	return ok && leaf != nil && identity.KeyOf(leaf) == rec.Key && leaf.NotAfter.After(rec.NotAfter)
}

// whole reports whether a renewal should succeed now.
func (c *Admission) whole() bool {
	_, err := c.cfg.Head.Ready()
	return err == nil && c.cfg.StoreGuard.Lost() == nil && c.cfg.Head.StoreAnswers() &&
		c.cfg.Head.ConfirmedAge(c.cfg.Now()) <= authority.DegradedAfter && !c.cfg.StoreGuard.Writes().Blocks()
}

// followRecalls asks members back until ctx ends.
func (c *Admission) followRecalls(ctx context.Context) error {
	for {
		if err := watch.Sleep(ctx, recallPause); err != nil {
			return err
		}
		if c.recalls.Len() > 0 && c.whole() {
			c.recalls.Tell(c.cfg.Now(), recallsAtOnce, recallAgain)
		}
	}
}
