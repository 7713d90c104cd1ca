package snapshot

import (
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// NodeRuntime is the content of scope node_runtime: what a node is in its
// cluster, until a newer one says otherwise. From the first one on it takes the
// place of what the node_bootstrap said about roles, organizations, coordinators
// and times. Lists are sorted, without duplicates, but for Coordinators, which
// are in the order to try them.
//
// It does not name the node: the header's subject does. So nodes that are told
// the same share one content, which is compiled and stored once. The group that a
// node is in, and whose snapshots it takes, is that of its Roles and its
// Organizations.
type NodeRuntime struct {
	ClusterID     string
	Kind          identity.Kind
	Roles         []string // the header's
	Organizations []string // the header's
	Entry         string   // the manifest's entry that covers the node
	State         MemberState

	// Companions are the scopes that the node is to hold beside the trust_bundle, the
	// node_bootstrap and the node_runtime: these and no others.
	Companions []Scope

	// Coordinators are the addresses (host:port) to renew and refresh at.
	Coordinators []string

	RenewEvery time.Duration // between renewals of the SVID, without jitter; below SVIDTTL
	SVIDTTL    time.Duration

	// Degraded is the ceiling of what the node may do out of reach. Nil: nothing.
	Degraded *DegradedPolicy
}

func (r *NodeRuntime) scope() Scope { return ScopeNodeRuntime }

func (r *NodeRuntime) walk(c *codec) {
	c.Begin()
	c.Member("cluster_id")
	c.Text(&r.ClusterID, internalidentity.MaxClusterBytes)
	// The member is there if the list is not empty: one content has one form.
	if c.Has("companions", len(r.Companions) > 0) {
		c.Member("companions")
		walkScopes(c, &r.Companions)
		if c.Err() == nil && len(r.Companions) == 0 {
			c.Fail("companions is empty: it is left out then")
		}
	}
	c.Member("coordinators")
	c.Names(&r.Coordinators, snapshot.MaxCoordinators, maxAddress)
	if c.Has("degraded", r.Degraded != nil) {
		if c.Reading() {
			r.Degraded = new(DegradedPolicy)
		}
		c.Member("degraded")
		r.Degraded.walk(c)
	}
	c.Member("entry")
	c.Text(&r.Entry, maxName)
	c.Member("kind")
	c.Text((*string)(&r.Kind), maxName)
	c.Member("organizations")
	c.Names(&r.Organizations, maxNames, maxName)
	c.Member("renew_seconds")
	c.Seconds(&r.RenewEvery)
	c.Member("roles")
	c.Names(&r.Roles, maxNames, maxName)
	c.Member("state")
	c.Text((*string)(&r.State), maxName)
	c.Member("svid_ttl_seconds")
	c.Seconds(&r.SVIDTTL)
	c.End()
}

func (r *NodeRuntime) grants(h *Header) string {
	if msg := grantsOfNode(h, r.Kind, r.Roles, r.Organizations); msg != "" {
		return msg
	}
	if r.Degraded != nil && !ScopeNodeRuntime.MayHold(snapshot.SectionDegraded, h.Roles) {
		return fmt.Sprintf("section %s, which roles %.200q may not hold", snapshot.SectionDegraded, h.Roles)
	}
	for _, scope := range r.Companions {
		if !scope.MayHold(snapshot.SectionWhole, h.Roles) {
			return fmt.Sprintf("companion %.40q, which roles %.200q may not hold", scope, h.Roles)
		}
	}
	return ""
}

func (r *NodeRuntime) fault(h *Header) string {
	switch {
	case r.ClusterID != h.ClusterID:
		return fmt.Sprintf("cluster_id is %.80q, the header's %.80q", r.ClusterID, h.ClusterID)
	case r.State != MemberActive && r.State != MemberDraining:
		return fmt.Sprintf("state %.40q is not known", r.State)
	}
	if msg := faultOfScopes(r.Companions); msg != "" {
		return "companions: " + msg
	}
	for _, scope := range r.Companions {
		if rule := ruleOf(scope); rule == nil || rule.sections == nil {
			return fmt.Sprintf("companions: %s is held in any case", scope)
		}
	}
	var none DegradedPolicy
	policy := r.Degraded
	if policy == nil {
		policy = &none
	}
	return faultOfTerms(r.Entry, r.Coordinators, r.RenewEvery, r.SVIDTTL, policy)
}

// clone returns a copy that shares nothing that can be written.
func (r *NodeRuntime) clone() NodeRuntime {
	n := *r
	n.Roles = slices.Clone(r.Roles)
	n.Organizations = slices.Clone(r.Organizations)
	n.Companions = slices.Clone(r.Companions)
	n.Coordinators = slices.Clone(r.Coordinators)
	if r.Degraded != nil {
		policy := r.Degraded.clone()
		n.Degraded = &policy
	}
	return n
}

// roleRule says which roles may hold a section of a scope. A section without a
// row is for everybody.
type roleRule struct {
	scope   Scope
	section string
	roles   []string
}

// roleRules is the table of docs/explanation/snapshots.md#who-gets-a-record. A thin node holds its identity
// and where to refresh, and neither learns who the others are nor acts on its own;
// an ingress learns what it forwards to, and not who serves it; who works for
// services learns neither the ways in nor how storage is laid out.
var roleRules = []roleRule{
	{ScopeNodeBootstrap, snapshot.SectionMembers, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleIngress, snapshot.RoleEgress, snapshot.RoleStorage}},
	{ScopeNodeRuntime, snapshot.SectionDegraded, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleIngress, snapshot.RoleEgress, snapshot.RoleStorage}},
	{ScopePeerDirectory, snapshot.SectionActive, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleEgress, snapshot.RoleStorage}},
	{ScopePeerDirectory, snapshot.SectionBootstrap, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleIngress, snapshot.RoleEgress, snapshot.RoleStorage, snapshot.RoleThin}},
	{ScopePeerDirectory, snapshot.SectionWarm, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleEgress, snapshot.RoleStorage}},
	{ScopeServiceAssignment, snapshot.SectionEndpoints, []string{snapshot.RoleIngress}},
	{ScopeServiceAssignment, snapshot.SectionEntry, []string{snapshot.RoleIngress}},
	{ScopeServiceAssignment, snapshot.SectionResources, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleEgress}},
	{ScopeServiceAssignment, snapshot.SectionSecrets, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleEgress}},
	{ScopeServiceAssignment, snapshot.SectionServices, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleEgress}},
	{ScopeRoutePolicy, snapshot.SectionEntry, []string{snapshot.RoleCore, snapshot.RoleIngress}},
	{ScopeRoutePolicy, snapshot.SectionRoutes, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleEgress}},
	{ScopeQoSPolicy, snapshot.SectionClasses, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleEgress}},
	{ScopeQoSPolicy, snapshot.SectionSessions, []string{snapshot.RoleCore, snapshot.RoleIngress, snapshot.RoleThin}},
	{ScopeStorageDirectory, snapshot.SectionEndpoints, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleIngress, snapshot.RoleEgress, snapshot.RoleStorage, snapshot.RoleThin}},
	{ScopeStorageDirectory, snapshot.SectionShards, []string{snapshot.RoleStorage}},
	{ScopeDegradedModePolicy, snapshot.SectionWhole, []string{snapshot.NoRole, snapshot.RoleCore, snapshot.RoleIngress, snapshot.RoleEgress, snapshot.RoleStorage}},
}

// MayHold reports whether a node that has roles may hold a section of the scope:
// each of its roles must allow it. A role that is not known here allows nothing
// that has a row. Of "" it reports whether they may hold the scope at
// all, which they may if they may hold one of its sections.
func (s Scope) MayHold(part string, roles []string) bool {
	rule := ruleOf(s)
	if part == snapshot.SectionWhole && rule != nil && rule.sections != nil {
		return slices.ContainsFunc(rule.sections, func(part section) bool { return mayHold(s, part.name, roles) })
	}
	return mayHold(s, part, roles)
}

func mayHold(scope Scope, section string, roles []string) bool {
	for _, rule := range roleRules {
		if rule.scope != scope || rule.section != section {
			continue
		}
		if len(roles) == 0 {
			return slices.Contains(rule.roles, snapshot.NoRole)
		}
		for _, role := range roles {
			if role == snapshot.NoRole || !slices.Contains(rule.roles, role) {
				return false
			}
		}
	}
	return true
}
