package agent

import (
	"errors"
	"time"

	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
)

// facts are what the guard decides by now.
func (a *Agent) facts() guard.Facts { return a.factsOf(a.beliefs.Load()) }

// factsOf are those of a node that believes b. What they come from is decisive, but for
// contact, which does not make a node degraded.
func (a *Agent) factsOf(b *state.Beliefs) guard.Facts {
	known := a.known.Load()
	if known == nil || known.Of != b {
		known = &state.FactsOfBeliefs{Of: b, Facts: b.Facts()}
		a.known.Store(known)
	}
	svid, f := a.svid.Load(), known.Facts
	leaf := svid.Leaf()
	f.Contact, f.Behind, f.SVIDEnd = a.status.View().Connected, *a.behind.Load(), leaf.NotAfter
	if b.Contact.Banned(a.me.ID, svid.Key.ID) {
		f.Withdrawn = guard.LimitIdentity
	}
	// Whoever certified this node was there.
	if leaf.NotBefore.After(f.Word) {
		f.Word = leaf.NotBefore
	}
	return f
}

// alone returns until when the node works without news, and what ends it.
func (a *Agent) alone() (time.Time, string) { return a.facts().Alone() }

// Permit decides whether this node, or a service on it, may do action now; nil
// permits it. A refusal is a [*RefusedError], and counted. Out of contact with the
// cluster what is not in the table is refused.
func (a *Agent) Permit(action guard.Action) error {
	err := a.facts().Permit(action, a.now())
	if refused, ok := errors.AsType[*guard.RefusedError](err); ok {
		a.metrics.refused.WithLabelValues(guard.LabelOf(action), refused.Reason).Inc()
	}
	a.degraded.Count(action, err == nil)
	return err
}
