package agent

import (
	"maps"
	"slices"
	"time"

	"github.com/fealty-io/fealty/snapshot"
)

// What can end the time that a node works alone, beside a snapshot's scope.
const (
	limitSVID     = "svid"
	limitDegraded = "degraded.max"
)

// autonomy is what bounds the time that a node works without any coordinator.
type autonomy struct {
	connected   bool
	lastContact time.Time // the last time that a coordinator was surely there; of no meaning when connected
	svidEnd     time.Time
	snapshots   map[snapshot.Scope]time.Time // when those in use end
	// max is degraded.max of the policy in use; 0 is no degraded mode, or no policy.
	max time.Duration
}

// until returns when the node stops to work alone, if no coordinator is reached
// from now on, and what ends it first. It is in the past if that has happened.
func (a autonomy) until(now time.Time) (time.Time, string) {
	from := a.lastContact
	if a.connected {
		from = now
	}
	end, limit := from.Add(a.max), limitDegraded
	if a.svidEnd.Before(end) {
		end, limit = a.svidEnd, limitSVID
	}
	for _, scope := range slices.Sorted(maps.Keys(a.snapshots)) {
		if a.snapshots[scope].Before(end) {
			end, limit = a.snapshots[scope], string(scope)
		}
	}
	return end, limit
}

// alone returns until when the node works without a coordinator, and what ends it.
func (a *Agent) alone() (time.Time, string) {
	b, v, leaf := a.beliefs.Load(), a.status.view(), a.svid.Load().leaf()
	in := autonomy{connected: v.connected, lastContact: v.lost, svidEnd: leaf.NotAfter, max: b.degraded().Max, snapshots: make(map[snapshot.Scope]time.Time, len(b.held))}
	// Whoever certified this node was there. After a start it is all that is known.
	if leaf.NotBefore.After(in.lastContact) {
		in.lastContact = leaf.NotBefore
	}
	for scope, h := range b.held {
		if scope == snapshot.ScopeNodeBootstrap && b.terms() != h {
			continue // a node_runtime took its place
		}
		in.snapshots[scope] = h.v.Header().ExpiresAt
	}
	if b.held[snapshot.ScopeTrustBundle] == nil {
		in.snapshots[snapshot.ScopeTrustBundle] = in.lastContact // without one nothing is believed
	}
	return in.until(a.now())
}
