// Package compile turns a cluster's configuration into what each member may see of it.
//
// A member's view is a function of its roles and organizations alone, but for the
// services that are placed on it by name. So contents are made for a [Group], which
// is all members with exactly the same roles and organizations, and one, the
// service_assignment, for a [Member].
//
// A record is for a group that has its organization, if it has one, and at least
// one of its roles, if it names any. Which parts of it the group's roles may hold
// is the table of package snapshot; see [snapshot.Scope.MayHold]. A peer is shown
// to those that share an organization with the member that it names, or if that
// serves none. Nothing else gets into a content: that is all of I12.
//
// Records that the trust bundle revokes by name are left out, as each member leaves
// them out by itself too. A role that is revoked for a member takes from its
// assignment; what its group gets is the group's.
//
// A record's wish that is not granted is left out, and returned as [Removed]: one
// bad record costs itself and holds up no other.
//
// The package does no I/O, reads no clock and keeps no state but caches: equal
// inputs give equal contents, to the byte.
package compile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/config"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Group is all members with exactly these roles and organizations. Both are
// sorted, without duplicates.
type Group struct{ Roles, Organizations []string }

// Subject is for whom the contents of the group are signed.
func (g Group) Subject() snapshot.Subject { return snapshot.GroupSubject(g.Roles, g.Organizations) }

// Scopes returns the scopes that the group has a content of, sorted.
func (g Group) Scopes() []snapshot.Scope {
	var out []snapshot.Scope
	for _, scope := range groupScopes {
		if scope.MayHold(internalsnapshot.SectionWhole, g.Roles) {
			out = append(out, scope)
		}
	}
	return out
}

// groupScopes are the scopes whose subject is a group, sorted.
var groupScopes = [...]snapshot.Scope{
	snapshot.ScopeDegradedModePolicy, snapshot.ScopePeerDirectory, snapshot.ScopeQoSPolicy,
	snapshot.ScopeRoutePolicy, snapshot.ScopeStorageDirectory,
}

// GroupScopes returns the scopes whose subject is a group, sorted.
func GroupScopes() []snapshot.Scope { return slices.Clone(groupScopes[:]) }

// has reports whether a record is for the group.
func (g Group) has(r config.Common) bool { return g.serves(r.Organization) && g.plays(r.Roles) }

func (g Group) serves(organization string) bool {
	return organization == "" || slices.Contains(g.Organizations, organization)
}

// plays reports whether the group has one of roles; none are for everybody.
func (g Group) plays(roles []string) bool { return len(roles) == 0 || overlap(roles, g.Roles) }

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// Member is a member of the cluster.
type Member struct {
	ID identity.ID
	Group
	// State is what it is doing; "": its name waits for a new machine.
	State snapshot.MemberState
	// Outsider: what narrows it left it no organization. It is shown to nobody.
	Outsider bool
}

// path is what config calls the member.
func (m Member) path() string { return string(m.ID.Kind()) + "/" + m.ID.Name() }

// Input is what there is to compile. It is read only.
type Input struct {
	Config  *config.Set
	Ceiling snapshot.DegradedPolicy // of the manifest; Allow is sorted

	// Member returns the member that config calls path, kind/name.
	Member func(path string) (Member, bool)
	Banned func(identity.ID) bool

	// Revoked is what nobody may rely on any more, by name.
	Revoked snapshot.Revocations
}

// Reason says in a word why something was left out: a metric label.
type Reason string

// The reasons.
const (
	UnknownMember     Reason = "unknown_member"     // no member has the name
	AbsentMember      Reason = "absent_member"      // its name waits for a new machine
	BannedMember      Reason = "banned_member"      // it is banned
	LacksOrganization Reason = "lacks_organization" // the member does not serve the record's organization
	LacksRole         Reason = "lacks_role"         // the member has none of the record's roles
	NotForRole        Reason = "not_for_role"       // no node with these roles may hold it
	TooLarge          Reason = "too_large"          // the content would exceed its limit
	Revoked           Reason = "revoked"            // the trust bundle revokes it by name, or what it leads to
)

// HasService reports whether the config has a record of the service, wherever it is placed.
func (c *Compiler) HasService(name string) bool {
	_, ok := c.in.Config.Get(config.Key{Kind: config.KindService, Name: name})
	return ok
}

// Removed is something that a record asked for and that was not given.
type Removed struct {
	Scope  snapshot.Scope
	Record config.Key
	Reason Reason
	Detail string // what it is about, for people
}

func (r Removed) String() string {
	return fmt.Sprintf("%s of the %s: %s", r.Record, r.Scope, r.Detail)
}

// Do says what people can do about it.
func (r Removed) Do() string {
	again := ", and put the record again"
	switch r.Reason {
	case UnknownMember:
		return "correct the member's name or let it join" + again
	case AbsentMember:
		return "let the new machine join, or take the member out of the record" + again
	case BannedMember:
		return "take the member out of the record" + again
	case LacksOrganization:
		return "give the record an organization that the member serves, or name another member" + again
	case LacksRole:
		return "add the role to the record, or name another member" + again
	case NotForRole:
		return "take the role out of the record, or give the member a role that may hold this, in the manifest"
	case TooLarge:
		return "remove records that nobody needs, or give them the organization or the role that they are for"
	case Revoked:
		return "delete or change the record: what is revoked stays so, and comes back under another name alone"
	}
	return "look at the record"
}

// Compiler compiles one config. It is for one goroutine.
type Compiler struct {
	in      Input
	revokes bool // something is revoked by name

	peers    []*config.Peer
	services []*config.Service
	roles    []*config.Role
	routes   []*config.Route
	classes  []*config.QoS
	storages []*config.Storage
	degraded []*config.Degraded

	named  map[string][]*config.Peer    // peers by the member that they name
	placed map[string][]*config.Service // services by the members that they name
	spread []*config.Service            // services that name none

	// assigned are the assignments of groups, by their subject: a cache.
	assigned map[snapshot.Subject]assignment
}

// New returns a compiler of in.
func New(in Input) *Compiler {
	c := &Compiler{
		in: in, revokes: len(in.Revoked.Things()) > 0,
		peers: in.Config.Peers(), services: in.Config.Services(), roles: in.Config.Roles(), routes: in.Config.Routes(),
		classes: in.Config.QoS(), storages: in.Config.Storages(), degraded: in.Config.Degraded(),
		named: make(map[string][]*config.Peer), placed: make(map[string][]*config.Service),
		assigned: make(map[snapshot.Subject]assignment),
	}
	for _, p := range c.peers {
		c.named[p.Member] = append(c.named[p.Member], p)
	}
	for _, s := range c.services {
		if len(s.Members) == 0 {
			c.spread = append(c.spread, s)
		}
		for _, path := range s.Members {
			c.placed[path] = append(c.placed[path], s)
		}
	}
	return c
}

// ForGroup returns the contents of a group: one of each of its scopes, which may
// have nothing in it.
func (c *Compiler) ForGroup(g Group) (map[snapshot.Scope]snapshot.Content, []Removed) {
	out := make(map[snapshot.Scope]snapshot.Content, len(groupScopes))
	var removed []Removed
	for _, scope := range g.Scopes() {
		s := &subject{group: g, scope: scope}
		switch scope {
		case snapshot.ScopePeerDirectory:
			out[scope] = c.peerDirectory(s)
		case snapshot.ScopeRoutePolicy:
			out[scope] = c.routePolicy(s)
		case snapshot.ScopeQoSPolicy:
			out[scope] = c.qosPolicy(s)
		case snapshot.ScopeStorageDirectory:
			out[scope] = c.storageDirectory(s)
		case snapshot.ScopeDegradedModePolicy:
			out[scope] = c.degradedModePolicy(s)
		}
		out[scope] = c.withdraw(s, out[scope])
		removed = append(removed, s.removed...)
	}
	return out, removed
}

// subject is for whom one content is made.
type subject struct {
	group   Group
	scope   snapshot.Scope
	removed []Removed
}

func (s *subject) remove(r config.Record, reason Reason, detail string) {
	s.removed = append(s.removed, Removed{s.scope, config.KeyOf(r), reason, detail})
}

// takes reports whether a record goes into a section of the content. A record that
// names one of the group's roles asks for it, and is told if that role may not have it.
func (s *subject) takes(r config.Record, section string) bool {
	return s.group.has(r.Base()) && s.holds(r, r.Base().Roles, section)
}

func (s *subject) holds(r config.Record, roles []string, section string) bool {
	if s.scope.MayHold(section, s.group.Roles) {
		return true
	}
	if overlap(roles, s.group.Roles) {
		s.remove(r, NotForRole, fmt.Sprintf("members with roles %s may not hold %s", strings.Join(s.group.Roles, ", "), section))
	}
	return false
}

func (c *Compiler) peerDirectory(s *subject) *snapshot.PeerDirectory {
	d := &snapshot.PeerDirectory{}
	sections := map[string]*[]snapshot.Peer{config.PeerActive: &d.Active, config.PeerBootstrap: &d.Bootstrap, config.PeerWarm: &d.Warm}
	for _, p := range c.peers {
		// The names of the classes are those of the sections.
		if !s.takes(p, p.Class) {
			continue
		}
		m, known := c.in.Member(p.Member)
		switch reason, detail := c.unfit(p, m, known); {
		case reason != "":
			s.remove(p, reason, detail)
		case len(m.Organizations) > 0 && !overlap(m.Organizations, s.group.Organizations):
			// It serves others alone. A record for all gets that from those that may.
		default:
			section := sections[p.Class]
			*section = append(*section, snapshot.Peer{
				Name: p.Name, ID: m.ID, Addresses: slices.Clone(p.Addresses), State: m.State, Organization: p.Organization,
			})
		}
	}
	return d
}

// unfit says why the member that a peer names can be nobody's peer, or "".
func (c *Compiler) unfit(p *config.Peer, m Member, known bool) (Reason, string) {
	switch {
	case !known:
		return UnknownMember, fmt.Sprintf("there is no member %s", p.Member)
	case c.in.Banned(m.ID):
		return BannedMember, fmt.Sprintf("member %s is banned", p.Member)
	case m.State == "":
		return AbsentMember, fmt.Sprintf("member %s waits for a new machine", p.Member)
	case m.Outsider, !m.serves(p.Organization):
		return LacksOrganization, fmt.Sprintf("member %s does not serve it", p.Member)
	}
	return "", ""
}

func (c *Compiler) routePolicy(s *subject) *snapshot.RoutePolicy {
	p := &snapshot.RoutePolicy{}
	for _, r := range c.routes {
		section, list := internalsnapshot.SectionRoutes, &p.Routes
		if r.Entry {
			section, list = internalsnapshot.SectionEntry, &p.Entry
		}
		if s.takes(r, section) {
			*list = append(*list, snapshot.Route{
				Name: r.Name, Organization: r.Organization, Service: r.Service, Match: r.Match, To: slices.Clone(r.To), Via: slices.Clone(r.Via),
				Priority: r.Priority, TTL: r.TTL, Deny: r.Deny,
			})
		}
	}
	return p
}

func (c *Compiler) qosPolicy(s *subject) *snapshot.QoSPolicy {
	p := &snapshot.QoSPolicy{}
	for _, q := range c.classes {
		if s.takes(q, internalsnapshot.SectionClasses) {
			p.Classes = append(p.Classes, snapshot.QoSClass{
				Name: q.Name, Organization: q.Organization, Priority: q.Priority, MinKbps: q.MinKbps, MaxKbps: q.MaxKbps,
			})
		}
	}
	for _, r := range c.rolesOf(s.group) {
		if r.Sessions != nil && s.holds(r, []string{r.Name}, internalsnapshot.SectionSessions) {
			p.Sessions = append(p.Sessions, snapshot.SessionPolicy{Name: r.Name, TTL: r.Sessions.TTL, Idle: r.Sessions.Idle, Max: r.Sessions.Max})
		}
	}
	return p
}

// rolesOf returns what is said of the roles of a group.
func (c *Compiler) rolesOf(g Group) []*config.Role {
	var out []*config.Role
	for _, r := range c.roles {
		if slices.Contains(g.Roles, r.Name) {
			out = append(out, r)
		}
	}
	return out
}

func (c *Compiler) storageDirectory(s *subject) *snapshot.StorageDirectory {
	d := &snapshot.StorageDirectory{}
	for _, r := range c.storages {
		if s.takes(r, internalsnapshot.SectionEndpoints) {
			d.Endpoints = append(d.Endpoints, snapshot.StorageEndpoint{
				Name: r.Name, Organization: r.Organization, URL: r.URL, Families: slices.Clone(r.Families), Priority: r.Priority,
			})
		}
		// The keepers of a storage are told to those that keep them: others get what it
		// offers.
		if r.Shard != nil && s.group.has(r.Base()) && s.scope.MayHold(internalsnapshot.SectionShards, s.group.Roles) {
			d.Shards = append(d.Shards, snapshot.StorageShard{
				Name: r.Name, Organization: r.Organization, Families: slices.Clone(r.Families), Replicas: slices.Clone(r.Shard.Replicas), Factor: r.Shard.Factor,
			})
		}
	}
	return d
}

// degradedModePolicy takes the least of the ceiling and of all that is for the
// group: a record can only narrow.
func (c *Compiler) degradedModePolicy(s *subject) *snapshot.DegradedModePolicy {
	p := &snapshot.DegradedModePolicy{
		Allow: slices.Clone(c.in.Ceiling.Allow), Max: c.in.Ceiling.Max, RouteTTL: c.in.Ceiling.RouteTTL, SessionTTL: c.in.Ceiling.Max,
	}
	narrow := func(v *time.Duration, to *time.Duration) {
		if to != nil {
			*v = min(*v, *to)
		}
	}
	trials := make(map[snapshot.Scope]time.Duration)
	for _, r := range c.degraded {
		if !s.takes(r, internalsnapshot.SectionWhole) {
			continue
		}
		if r.Allow != nil {
			p.Allow = slices.DeleteFunc(p.Allow, func(a string) bool { return !slices.Contains(r.Allow, a) })
		}
		narrow(&p.Max, r.Max)
		narrow(&p.RouteTTL, r.RouteTTL)
		narrow(&p.SessionTTL, r.SessionTTL)
		for _, t := range r.Trials {
			if d, ok := trials[t.Scope]; !ok || t.Duration < d {
				trials[t.Scope] = t.Duration
			}
		}
	}
	p.SessionTTL = min(p.SessionTTL, p.Max)
	for scope, d := range trials {
		p.Trials = append(p.Trials, snapshot.Trial{Scope: scope, Duration: d})
	}
	slices.SortStableFunc(p.Trials, func(a, b snapshot.Trial) int { return cmp.Compare(a.Scope, b.Scope) })
	return p
}
