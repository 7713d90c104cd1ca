package snapshot

import (
	"fmt"
	"github.com/fealty-io/fealty/internal/snapshot"
	"slices"
	"time"
)

// DegradedModePolicy is the content of scope degraded_mode_policy: what a group may
// do out of reach, and how it tries what is new. It only narrows the ceiling that
// the node's own node_runtime sets: the lesser of both counts.
type DegradedModePolicy struct {
	Allow []string // names of actions, sorted; names that a node does not know allow nothing

	// Max, RouteTTL and SessionTTL bound how long a node works alone, and how long
	// routes and sessions from before that stay valid. 0: not at all.
	Max        time.Duration
	RouteTTL   time.Duration
	SessionTTL time.Duration

	Trials []Trial // sorted by scope
}

// Trial says how long a new snapshot of a scope is on trial after its activation.
type Trial struct {
	Scope    Scope
	Duration time.Duration // above 0, at most 24 hours
}

func (p *DegradedModePolicy) scope() Scope { return ScopeDegradedModePolicy }

func (p *DegradedModePolicy) walk(c *codec) {
	c.Begin()
	c.Member("allow")
	c.Names(&p.Allow, maxNames, maxName)
	c.Member("max_seconds")
	c.Seconds(&p.Max)
	c.Member("route_ttl_seconds")
	c.Seconds(&p.RouteTTL)
	c.Member("session_ttl_seconds")
	c.Seconds(&p.SessionTTL)
	c.Member("trials")
	dict(c, &p.Trials, len(Scopes()), validRecordName)
	c.End()
}

func (t *Trial) key() *string { return (*string)(&t.Scope) }

func (t *Trial) walk(c *codec) { c.Seconds(&t.Duration) }

// grants: without a row for the scope in the table of roles nothing is in it.
func (p *DegradedModePolicy) grants(h *Header) string { return grantsOfSection(h, "") }

func (p *DegradedModePolicy) fault(*Header) string {
	if msg := faultOfNames(p.Allow); msg != "" {
		return "allow: " + msg
	}
	for _, t := range p.Trials {
		switch {
		case ruleOf(t.Scope) == nil:
			return fmt.Sprintf("trials: %.40q is no scope", t.Scope)
		case t.Duration <= 0 || t.Duration > snapshot.MaxTrial:
			return fmt.Sprintf("trials: %s for %v, want above 0 and at most %v", t.Scope, t.Duration, snapshot.MaxTrial)
		}
	}
	return ""
}

// clone returns a copy that shares nothing that can be written.
func (p *DegradedModePolicy) clone() DegradedModePolicy {
	n := *p
	n.Allow, n.Trials = slices.Clone(p.Allow), slices.Clone(p.Trials)
	return n
}
