package snapshot

import (
	"fmt"
	"github.com/fealty-io/fealty/internal/canonical"
	"github.com/fealty-io/fealty/internal/snapshot"
	"slices"
	"time"
)

// RoutePolicy is the content of scope route_policy: which way traffic goes. Lists
// are sorted by name.
type RoutePolicy struct {
	Entry  []Route // for what comes in from outside
	Routes []Route
}

// Route says where traffic of one kind goes. It names what it refers to: the
// service and the peers are in other snapshots, and may not be there.
type Route struct {
	Name         string
	Organization string        // "": the whole cluster's
	Service      string        // "": of any
	Match        string        // what the traffic looks like; "": all of it
	To           []string      // peers or endpoints, in the order of preference; none: where the service is
	Via          []string      // peers to pass, in this order
	Priority     int           // the highest one that matches counts
	TTL          time.Duration // how long a decision may be kept; 0: not
	Deny         bool          // it goes nowhere; To and Via are empty then
}

func (r *RoutePolicy) scope() Scope { return ScopeRoutePolicy }

func (r *RoutePolicy) walk(c *codec) {
	c.Begin()
	c.Member(snapshot.SectionEntry)
	dict(c, &r.Entry, snapshot.MaxRecords, validRecordName)
	c.Member(snapshot.SectionRoutes)
	dict(c, &r.Routes, snapshot.MaxRecords, validRecordName)
	c.End()
}

func (r *Route) key() *string  { return &r.Name }
func (r *Route) owner() string { return r.Organization }

func (r *Route) walk(c *codec) {
	c.Begin()
	c.Member("deny")
	c.Boolean(&r.Deny)
	c.Member("match")
	c.Text(&r.Match, snapshot.MaxText)
	c.Member("organization")
	c.Text(&r.Organization, maxName)
	c.Member("priority")
	c.Number(&r.Priority, canonical.MaxSeconds)
	c.Member("service")
	c.Text(&r.Service, maxRecordName)
	c.Member("to")
	c.Names(&r.To, snapshot.MaxReferences, maxRecordName)
	c.Member("ttl_seconds")
	c.Seconds(&r.TTL)
	c.Member("via")
	c.Names(&r.Via, snapshot.MaxReferences, maxRecordName)
	c.End()
}

func (r *RoutePolicy) grants(h *Header) string {
	if msg := grantsOf(h, snapshot.SectionEntry, r.Entry); msg != "" {
		return msg
	}
	return grantsOf(h, snapshot.SectionRoutes, r.Routes)
}

func (r *RoutePolicy) fault(*Header) string {
	for i := range r.Entry {
		if msg := r.Entry[i].fault(); msg != "" {
			return about(snapshot.SectionEntry, r.Entry[i].Name, msg)
		}
	}
	for i := range r.Routes {
		if msg := r.Routes[i].fault(); msg != "" {
			return about(snapshot.SectionRoutes, r.Routes[i].Name, msg)
		}
	}
	return ""
}

func (r *Route) fault() string {
	switch {
	case r.Service != "" && !validRecordName(r.Service):
		return fmt.Sprintf("service %.80q is no name of a record", r.Service)
	case r.Deny && len(r.To)+len(r.Via) > 0:
		return "it denies, and says where to"
	}
	if msg := faultOfSequence(r.To); msg != "" {
		return "to: " + msg
	}
	if msg := faultOfSequence(r.Via); msg != "" {
		return "via: " + msg
	}
	return ""
}

// clone returns a copy that shares nothing that can be written.
func (r *RoutePolicy) clone() RoutePolicy {
	copied := func(routes []Route) []Route {
		routes = slices.Clone(routes)
		for i := range routes {
			routes[i].To, routes[i].Via = slices.Clone(routes[i].To), slices.Clone(routes[i].Via)
		}
		return routes
	}
	return RoutePolicy{copied(r.Entry), copied(r.Routes)}
}

// QoSPolicy is the content of scope qos_policy: how much of the network, and how
// many sessions, each class and each kind of session gets. Lists are sorted by name.
type QoSPolicy struct {
	Classes  []QoSClass
	Sessions []SessionPolicy
}

// QoSClass is a share of the network. Services name their class.
type QoSClass struct {
	Name         string
	Organization string // "": the whole cluster's
	Priority     int    // the highest one goes first
	MinKbps      uint64
	MaxKbps      uint64 // 0: no bound; else not below MinKbps
}

// SessionPolicy bounds the sessions of one role.
type SessionPolicy struct {
	Name         string
	Organization string        // "": the whole cluster's
	TTL          time.Duration // 0: no bound of its own
	Idle         time.Duration // 0: no bound of its own
	Max          int           // 0: no bound of its own
}

func (q *QoSPolicy) scope() Scope { return ScopeQoSPolicy }

func (q *QoSPolicy) walk(c *codec) {
	c.Begin()
	c.Member(snapshot.SectionClasses)
	dict(c, &q.Classes, snapshot.MaxRecords, validRecordName)
	c.Member(snapshot.SectionSessions)
	dict(c, &q.Sessions, snapshot.MaxRecords, validRecordName)
	c.End()
}

func (q *QoSClass) key() *string  { return &q.Name }
func (q *QoSClass) owner() string { return q.Organization }

func (q *QoSClass) walk(c *codec) {
	c.Begin()
	c.Member("max_kbps")
	c.Number64(&q.MaxKbps)
	c.Member("min_kbps")
	c.Number64(&q.MinKbps)
	c.Member("organization")
	c.Text(&q.Organization, maxName)
	c.Member("priority")
	c.Number(&q.Priority, canonical.MaxSeconds)
	c.End()
}

func (s *SessionPolicy) key() *string  { return &s.Name }
func (s *SessionPolicy) owner() string { return s.Organization }

func (s *SessionPolicy) walk(c *codec) {
	c.Begin()
	c.Member("idle_seconds")
	c.Seconds(&s.Idle)
	c.Member("max")
	c.Number(&s.Max, canonical.MaxSeconds)
	c.Member("organization")
	c.Text(&s.Organization, maxName)
	c.Member("ttl_seconds")
	c.Seconds(&s.TTL)
	c.End()
}

func (q *QoSPolicy) grants(h *Header) string {
	if msg := grantsOf(h, snapshot.SectionClasses, q.Classes); msg != "" {
		return msg
	}
	return grantsOf(h, snapshot.SectionSessions, q.Sessions)
}

func (q *QoSPolicy) fault(*Header) string {
	for i := range q.Classes {
		if class := &q.Classes[i]; class.MaxKbps != 0 && class.MaxKbps < class.MinKbps {
			return about(snapshot.SectionClasses, class.Name, fmt.Sprintf("at most %d kbps, and at least %d", class.MaxKbps, class.MinKbps))
		}
	}
	return ""
}

// clone returns a copy that shares nothing that can be written.
func (q *QoSPolicy) clone() QoSPolicy {
	return QoSPolicy{slices.Clone(q.Classes), slices.Clone(q.Sessions)}
}
