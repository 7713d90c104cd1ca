package snapshot

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// Limits of a node bootstrap, beside its size.
const (
	maxAddress = 300 // bytes of a coordinator's address
)

// NodeBootstrap is the content of scope node_bootstrap: what a node is told when
// it joins. It fixes the node's kind, roles and organizations until the first
// node_runtime. Lists are sorted, without duplicates, but for Coordinators,
// which are in the order to try them.
type NodeBootstrap struct {
	ClusterID     string
	Node          identity.ID // the header's subject
	Kind          identity.Kind
	Roles         []string // the header's
	Organizations []string // the header's
	Entry         string   // the manifest's entry that admitted it

	// Members are some of the members that the node may see, to find its way by when
	// no coordinator answers; none for roles that may not hold them, see [Scope.MayHold].
	Members []Member

	// Coordinators are the addresses (host:port) to renew and refresh at.
	Coordinators []string

	RenewEvery time.Duration // between renewals of the SVID, without jitter; below SVIDTTL
	SVIDTTL    time.Duration

	Degraded   DegradedPolicy
	Resilience Resilience
}

// Member is one member of the cluster.
type Member struct {
	ID    identity.ID // has the kind
	State MemberState
}

// MemberState is what a member is doing.
type MemberState string

const (
	MemberActive   MemberState = "active"
	MemberDraining MemberState = "draining"
)

// DegradedPolicy is the ceiling of what the node may do out of reach, in whole
// seconds. All zero: nothing.
type DegradedPolicy struct {
	Allow    []string      // names of actions; names that a node does not know allow nothing
	Max      time.Duration // below the SVID's lifetime: an identity bounds autonomy
	RouteTTL time.Duration
}

// Resilience is the resilience baseline when the snapshot was compiled: data
// members there are and data members it takes.
type Resilience struct {
	DataMembers int
	Required    int
}

// Met reports whether the baseline holds.
func (r Resilience) Met() bool { return r.DataMembers >= r.Required }

func (b *NodeBootstrap) scope() Scope { return ScopeNodeBootstrap }

func (b *NodeBootstrap) walk(c *codec) {
	c.Begin()
	c.Member("cluster_id")
	c.Text(&b.ClusterID, internalidentity.MaxClusterBytes)
	c.Member("coordinators")
	c.Names(&b.Coordinators, snapshot.MaxCoordinators, maxAddress)
	c.Member("degraded")
	b.Degraded.walk(c)
	c.Member("entry")
	c.Text(&b.Entry, maxName)
	c.Member("kind")
	c.Text((*string)(&b.Kind), maxName)
	c.Member("members")
	canonical.List(c, &b.Members, snapshot.MaxMembers, func(c *codec, m *Member) {
		c.Begin()
		c.Member("id")
		canonical.ID(c, &m.ID)
		c.Member("state")
		c.Text((*string)(&m.State), maxName)
		c.End()
	})
	c.Member("node")
	canonical.ID(c, &b.Node)
	c.Member("organizations")
	c.Names(&b.Organizations, maxNames, maxName)
	c.Member("renew_seconds")
	c.Seconds(&b.RenewEvery)
	c.Member("resilience")
	c.Begin()
	c.Member("data_members")
	c.Number(&b.Resilience.DataMembers, canonical.MaxSeconds)
	c.Member("required")
	c.Number(&b.Resilience.Required, canonical.MaxSeconds)
	c.End()
	c.Member("roles")
	c.Names(&b.Roles, maxNames, maxName)
	c.Member("svid_ttl_seconds")
	c.Seconds(&b.SVIDTTL)
	c.End()
}

func (p *DegradedPolicy) walk(c *codec) {
	c.Begin()
	c.Member("allow")
	c.Names(&p.Allow, maxNames, maxName)
	c.Member("max_seconds")
	c.Seconds(&p.Max)
	c.Member("route_ttl_seconds")
	c.Seconds(&p.RouteTTL)
	c.End()
}

func (p *DegradedPolicy) clone() DegradedPolicy {
	n := *p
	n.Allow = slices.Clone(p.Allow)
	return n
}

func (b *NodeBootstrap) grants(h *Header) string {
	if msg := grantsOfNode(h, b.Kind, b.Roles, b.Organizations); msg != "" {
		return msg
	}
	if len(b.Members) != 0 && !ScopeNodeBootstrap.MayHold(snapshot.SectionMembers, h.Roles) {
		return fmt.Sprintf("section %s, which roles %.200q may not hold", snapshot.SectionMembers, h.Roles)
	}
	return ""
}

// grantsOfNode is grants of a content that says what its subject, a node, is.
func grantsOfNode(h *Header, kind identity.Kind, roles, organizations []string) string {
	node, _, _ := h.Subject.Node()
	switch {
	case kind != node.Kind():
		return fmt.Sprintf("kind %.40q for a node of kind %q", kind, node.Kind())
	case !slices.Equal(roles, h.Roles):
		return fmt.Sprintf("roles %.200q, the header says %.200q", roles, h.Roles)
	case !slices.Equal(organizations, h.OrganizationIDs):
		return fmt.Sprintf("organizations %.200q, the header says %.200q", organizations, h.OrganizationIDs)
	}
	return ""
}

func (b *NodeBootstrap) fault(h *Header) string {
	node, _, _ := h.Subject.Node()
	switch {
	case b.ClusterID != h.ClusterID:
		return fmt.Sprintf("cluster_id is %.80q, the header's %.80q", b.ClusterID, h.ClusterID)
	case b.Node != node:
		return fmt.Sprintf("node is %.80q, the header's subject %.80q", b.Node, node)
	case !canonical.Ascending(b.Members, func(x, y Member) int { return x.ID.Compare(y.ID) }):
		return "members are out of order or double"
	}
	for _, m := range b.Members {
		if m.ID.Cluster() != b.ClusterID {
			return fmt.Sprintf("member %.80q is of another cluster", m.ID)
		}
		if m.State != MemberActive && m.State != MemberDraining {
			return fmt.Sprintf("member %.80q is in state %.40q", m.ID, m.State)
		}
	}
	return faultOfTerms(b.Entry, b.Coordinators, b.RenewEvery, b.SVIDTTL, &b.Degraded)
}

// faultOfTerms says what is wrong with what node_bootstrap and node_runtime both
// tell a node, or "".
func faultOfTerms(entry string, coordinators []string, renewEvery, svidTTL time.Duration, degraded *DegradedPolicy) string {
	switch {
	case !validName(entry):
		return fmt.Sprintf("entry %.40q is no name", entry)
	case svidTTL <= 0 || renewEvery <= 0 || renewEvery >= svidTTL:
		return fmt.Sprintf("renewal every %v of an identity that lives %v", renewEvery, svidTTL)
	case degraded.Max >= svidTTL:
		return fmt.Sprintf("degraded for up to %v with an identity that lives %v", degraded.Max, svidTTL)
	case len(coordinators) == 0:
		return "no coordinators"
	}
	if msg := faultOfNames(degraded.Allow); msg != "" {
		return "degraded.allow: " + msg
	}
	for _, a := range coordinators {
		if msg := faultOfAddress(a); msg != "" {
			return "coordinator " + msg
		}
	}
	return ""
}

// faultOfAddress says why a is no address to dial, or "".
func faultOfAddress(a string) string {
	host, port, err := net.SplitHostPort(a)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 {
		return fmt.Sprintf("%.80q is no host:port", a)
	}
	return ""
}

// clone returns a copy that shares nothing that can be written.
func (b *NodeBootstrap) clone() NodeBootstrap {
	n := *b
	n.Roles = slices.Clone(b.Roles)
	n.Organizations = slices.Clone(b.Organizations)
	n.Members = slices.Clone(b.Members)
	n.Coordinators = slices.Clone(b.Coordinators)
	n.Degraded = b.Degraded.clone()
	return n
}
