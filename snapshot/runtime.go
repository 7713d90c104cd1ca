package snapshot

import (
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
)

// NodeRuntime is the content of scope node_runtime: what a node is in its
// cluster, until a newer one says otherwise. From the first one on it takes the
// place of what the node_bootstrap said about roles, organizations, coordinators
// and times. Lists are sorted, without duplicates, but for Coordinators, which
// are in the order to try them.
//
// It does not name the node: the header's subject does. So nodes that are told
// the same share one content, which is compiled and stored once. The groups that
// a node is in, and whose snapshots it takes, are its cluster, its Roles and its
// Organizations; see Subject.
type NodeRuntime struct {
	ClusterID     string
	Kind          identity.Kind
	Roles         []string // the header's
	Organizations []string // the header's
	Entry         string   // the manifest's entry that covers the node
	State         MemberState

	// Coordinators are the addresses (host:port) to renew and refresh at.
	Coordinators []string

	RenewEvery time.Duration // between renewals of the SVID, without jitter; below SVIDTTL
	SVIDTTL    time.Duration

	// Degraded is the ceiling of what the node may do out of reach. Nil: nothing.
	Degraded *DegradedPolicy
}

func (r *NodeRuntime) walk(c *codec) {
	c.begin()
	c.member("cluster_id")
	c.text(&r.ClusterID, identity.MaxClusterBytes)
	c.member("coordinators")
	c.names(&r.Coordinators, MaxCoordinators, maxAddress)
	if c.has("degraded", r.Degraded != nil) {
		if c.reading {
			r.Degraded = new(DegradedPolicy)
		}
		c.member("degraded")
		r.Degraded.walk(c)
	}
	c.member("entry")
	c.text(&r.Entry, maxName)
	c.member("kind")
	c.text((*string)(&r.Kind), maxName)
	c.member("organizations")
	c.names(&r.Organizations, maxNames, maxName)
	c.member("renew_seconds")
	c.seconds(&r.RenewEvery)
	c.member("roles")
	c.names(&r.Roles, maxNames, maxName)
	c.member("state")
	c.text((*string)(&r.State), maxName)
	c.member("svid_ttl_seconds")
	c.seconds(&r.SVIDTTL)
	c.end()
}

func (r *NodeRuntime) grants(h *Header) string {
	if msg := grantsOfNode(h, r.Kind, r.Roles, r.Organizations); msg != "" {
		return msg
	}
	if r.Degraded != nil && !MayHold(ScopeNodeRuntime, SectionDegraded, h.Roles) {
		return fmt.Sprintf("section %s, which roles %.200q may not hold", SectionDegraded, h.Roles)
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
	n.Coordinators = slices.Clone(r.Coordinators)
	if r.Degraded != nil {
		policy := r.Degraded.clone()
		n.Degraded = &policy
	}
	return n
}

// The roles that a node can have, and what stands for a node without one.
const (
	NoRole      = ""
	RoleCore    = "core"
	RoleIngress = "ingress"
	RoleEgress  = "egress"
	RoleStorage = "storage"
	RoleThin    = "thin" // learns nothing of the cluster's topology
)

// Sections of contents that some roles may not hold.
const (
	SectionMembers  = "members"
	SectionDegraded = "degraded"
)

// roleRule says which roles may hold a section of a scope. A section without a
// row is for everybody.
type roleRule struct {
	scope   Scope
	section string
	roles   []string
}

// roleRules is the table of snapshots.md, Scopes, for the scopes that can be
// verified: a thin node holds its identity and where to refresh, and neither
// learns who the others are nor acts on its own.
var roleRules = []roleRule{
	{ScopeNodeBootstrap, SectionMembers, []string{NoRole, RoleCore, RoleIngress, RoleEgress, RoleStorage}},
	{ScopeNodeRuntime, SectionDegraded, []string{NoRole, RoleCore, RoleIngress, RoleEgress, RoleStorage}},
}

// MayHold reports whether a node that has roles may hold a section of scope:
// each of its roles must allow it. A role that is not known here allows nothing
// that has a row.
func MayHold(scope Scope, section string, roles []string) bool {
	for _, rule := range roleRules {
		if rule.scope != scope || rule.section != section {
			continue
		}
		if len(roles) == 0 {
			return slices.Contains(rule.roles, NoRole)
		}
		for _, role := range roles {
			if role == NoRole || !slices.Contains(rule.roles, role) {
				return false
			}
		}
	}
	return true
}
