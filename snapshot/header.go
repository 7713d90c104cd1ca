package snapshot

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// Scope is one kind of config that is given to a node. The set is closed.
type Scope string

// The scopes.
const (
	ScopeNodeBootstrap      Scope = "node_bootstrap"
	ScopeNodeRuntime        Scope = "node_runtime"
	ScopePeerDirectory      Scope = "peer_directory"
	ScopeServiceAssignment  Scope = "service_assignment"
	ScopeRoutePolicy        Scope = "route_policy"
	ScopeQoSPolicy          Scope = "qos_policy"
	ScopeTrustBundle        Scope = "trust_bundle"
	ScopeStorageDirectory   Scope = "storage_directory"
	ScopeDegradedModePolicy Scope = "degraded_mode_policy"
)

// Scopes returns all scopes, sorted.
func Scopes() []Scope {
	return []Scope{
		ScopeDegradedModePolicy, ScopeNodeBootstrap, ScopeNodeRuntime, ScopePeerDirectory, ScopeQoSPolicy,
		ScopeRoutePolicy, ScopeServiceAssignment, ScopeStorageDirectory, ScopeTrustBundle,
	}
}

// Limits. Sizes are in bytes; what exceeds one is refused before it is looked at.
const (
	maxNames   = 64  // roles, organizations, scope ids of one header
	maxName    = 128 // bytes of one of them
	maxID      = internalidentity.MaxIDBytes
	maxSubject = maxID + 80
)

// schemaVersion is the only version of header, record and contents so far.
const schemaVersion = 1

// Base names the version of a snapshot right before, to the same subject and of the
// same epoch: the only one that a patch applies to.
type Base struct {
	ConfigVersion uint64
	ContentHash   Digest
}

// fault says why b cannot be the base of version, or "".
func (b *Base) fault(version uint64) string {
	if !inVersions(b.ConfigVersion) || b.ConfigVersion >= version || b.ContentHash.IsZero() {
		return fmt.Sprintf("version %d with content %s is no base of version %d", b.ConfigVersion, b.ContentHash, version)
	}
	return ""
}

// Header is what is signed of a snapshot. Times are UTC in whole seconds.
type Header struct {
	// SnapshotID is unique, and sorts by time of issue. Its author sets it.
	SnapshotID string

	// SchemaVersion is 1. Its author sets it.
	SchemaVersion int

	ClusterID string
	Subject   Subject
	ScopeType Scope

	// ScopeIDs names the parts of the scope that the content covers. ScopeIDs, Roles
	// and OrganizationIDs are sorted, without duplicates, and may be empty. Roles and
	// OrganizationIDs are those for which there is content inside.
	ScopeIDs        []string
	Roles           []string
	OrganizationIDs []string

	// AuthorityEpoch, then ConfigVersion order the snapshots of a (scope, subject).
	// Both are within 1 and 2^53.
	ConfigVersion  uint64
	AuthorityEpoch uint64

	IssuedAt     time.Time
	ValidFrom    time.Time
	ExpiresAt    time.Time // exclusive: the hard end
	RefreshAfter time.Time // when a node asks for a newer one; before ExpiresAt

	// ContentHash and ContentSize bind the whole content, also where a patch is sent
	// in its place. Its author sets them.
	ContentHash Digest
	ContentSize int

	// Base is what a patch to this version applies to. One header serves both: the
	// whole content, and a patch. Nil in the first version of an epoch, and in a scope
	// that always goes whole.
	Base *Base
}

func (h *Header) walk(c *codec) {
	c.Begin()
	c.Member("authority_epoch")
	c.Number64(&h.AuthorityEpoch)
	if c.Has("base_config_version", h.Base != nil) {
		if c.Reading() {
			h.Base = new(Base)
		}
		c.Member("base_config_version")
		c.Number64(&h.Base.ConfigVersion)
		c.Member("base_content_hash")
		c.Fixed(h.Base.ContentHash[:])
	}
	c.Member("cluster_id")
	c.Text(&h.ClusterID, internalidentity.MaxClusterBytes)
	c.Member("config_version")
	c.Number64(&h.ConfigVersion)
	c.Member("content_hash")
	c.Fixed(h.ContentHash[:])
	c.Member("content_size")
	c.Number(&h.ContentSize, snapshot.MaxContent)
	c.Member("expires_at")
	c.Instant(&h.ExpiresAt)
	c.Member("issued_at")
	c.Instant(&h.IssuedAt)
	c.Member("organization_ids")
	c.Names(&h.OrganizationIDs, maxNames, maxName)
	c.Member("refresh_after")
	c.Instant(&h.RefreshAfter)
	c.Member("roles")
	c.Names(&h.Roles, maxNames, maxName)
	c.Member("schema_version")
	c.Number(&h.SchemaVersion, 1<<15)
	c.Member("scope_ids")
	c.Names(&h.ScopeIDs, maxNames, maxName)
	c.Member("scope_type")
	c.Text((*string)(&h.ScopeType), maxName)
	c.Member("snapshot_id")
	c.Text(&h.SnapshotID, maxName)
	c.Member("subject")
	h.Subject.walk(c)
	c.Member("valid_from")
	c.Instant(&h.ValidFrom)
	c.End()
}

// clone returns a copy that shares nothing that can be written.
func (h Header) clone() Header {
	h.ScopeIDs = slices.Clone(h.ScopeIDs)
	h.Roles = slices.Clone(h.Roles)
	h.OrganizationIDs = slices.Clone(h.OrganizationIDs)
	if h.Base != nil {
		base := *h.Base
		h.Base = &base
	}
	return h
}

// fault says what is wrong with a header whatever signed it, or "".
func (h *Header) fault() string {
	switch {
	case h.SchemaVersion != schemaVersion:
		return fmt.Sprintf("schema version %d, supported is %d", h.SchemaVersion, schemaVersion)
	case !validName(h.SnapshotID):
		return fmt.Sprintf("snapshot_id %.40q is no name", h.SnapshotID)
	case h.Subject.IsZero():
		return "no subject"
	}
	for _, l := range []struct {
		member string
		names  []string
	}{{"scope_ids", h.ScopeIDs}, {"roles", h.Roles}, {"organization_ids", h.OrganizationIDs}} {
		if msg := faultOfNames(l.names); msg != "" {
			return l.member + ": " + msg
		}
	}
	return ""
}

// faultOfNames says why names are no sorted set of names, or "".
func faultOfNames(names []string) string {
	for i, n := range names {
		if !validName(n) {
			return fmt.Sprintf("%.40q is no name of 1 to %d of a-z A-Z 0-9 . _ - : /", n, maxName)
		}
		if i > 0 && names[i-1] >= n {
			return fmt.Sprintf("%.40q is out of order or a duplicate", n)
		}
	}
	return ""
}

// validName reports whether s may name a role, an organization, a part of a
// scope, an entry or a signer of the manifest: whatever may there may here.
func validName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		if !nameBytes[s[i]] {
			return false
		}
	}
	return true
}

// schemaOf reads the schema version of a header whose other members are not
// ours, leniently: it is signed, and its only use is to say why it is refused.
// -1: there is none.
func schemaOf(header []byte) int {
	d := jsontext.NewDecoder(strings.NewReader(string(header)))
	if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
		return -1
	}
	for {
		t, err := d.ReadToken()
		if err != nil || t.Kind() != '"' {
			return -1
		}
		if t.String() != "schema_version" {
			if d.SkipValue() != nil {
				return -1
			}
			continue
		}
		t, err = d.ReadToken()
		if err != nil || t.Kind() != '0' {
			return -1
		}
		if v, err := strconv.Atoi(t.String()); err == nil {
			return v
		}
		return -1
	}
}

// Subject says for which nodes a snapshot is: one node in one incarnation, or a group of
// nodes that share the content. Subjects are comparable; the zero Subject is
// nobody.
type Subject struct {
	node        identity.ID
	incarnation identity.KeyID
	group       string
}

// NodeSubject returns the node with id that enrolled with the key incarnation. A node
// that enrolls again, under the same name, is another subject.
func NodeSubject(id identity.ID, incarnation identity.KeyID) Subject {
	return Subject{node: id, incarnation: incarnation}
}

// ClusterSubject returns every member.
func ClusterSubject() Subject { return Subject{group: clusterGroup} }

// GroupSubject returns every member with exactly these roles and exactly these
// organizations, in whatever order they are given here. The view of such a member
// is a function of the two, so that its group's content is made and kept once.
func GroupSubject(roles, organizations []string) Subject {
	// Counts and lengths in front, so that no two pairs of sets give the same bytes.
	label := []byte("fealty/group/v1")
	for _, set := range [][]string{roles, organizations} {
		set = slices.Compact(slices.Sorted(slices.Values(set)))
		label = strconv.AppendInt(append(label, ' '), int64(len(set)), 10)
		for _, name := range set {
			label = strconv.AppendInt(append(label, ' '), int64(len(name)), 10)
			label = append(append(label, ' '), name...)
		}
	}
	return Subject{group: groupPrefix + DigestOf(label).String()}
}

const (
	clusterGroup = "cluster"
	groupPrefix  = "group:"
)

// ParseSubject reads what [Subject.String] prints.
func ParseSubject(s string) (Subject, error) {
	if rest, ok := strings.CutPrefix(s, "node:"); ok {
		uri, key, _ := strings.Cut(rest, "#")
		id, err := identity.Parse(uri)
		if err != nil {
			return Subject{}, fmt.Errorf("snapshot: subject %.80q: %w", s, err)
		}
		var incarnation identity.KeyID
		if !canonical.ParseHex(incarnation[:], key) {
			return Subject{}, fmt.Errorf("snapshot: subject %.80q has no incarnation: want #, then the 64 lower case hex digits of the key's hash", s)
		}
		return NodeSubject(id, incarnation), nil
	}
	hash, isGroup := strings.CutPrefix(s, groupPrefix)
	if s == clusterGroup || isGroup && canonical.ParseHex(new(Digest)[:], hash) {
		return Subject{group: s}, nil
	}
	return Subject{}, fmt.Errorf("snapshot: %.80q is no subject: want node:<id>#<incarnation>, group:<64 hex digits> or cluster", s)
}

// String returns "node:<id>#<incarnation>", "group:<64 hex digits>" or "cluster";
// "" for the zero Subject.
func (s Subject) String() string {
	if s.node.IsZero() {
		return s.group
	}
	return "node:" + s.node.String() + "#" + hex.EncodeToString(s.incarnation[:])
}

// IsZero reports whether s names nobody.
func (s Subject) IsZero() bool { return s == Subject{} }

// Node returns the node and its incarnation, if s is one node.
func (s Subject) Node() (identity.ID, identity.KeyID, bool) {
	return s.node, s.incarnation, !s.node.IsZero()
}

func (s *Subject) walk(c *codec) {
	var text string
	if !c.Reading() {
		text = s.String()
	}
	c.Text(&text, maxSubject)
	if c.Err() != nil || !c.Reading() {
		return
	}
	parsed, err := ParseSubject(text)
	if err != nil {
		c.Fail("%v", err)
		return
	}
	*s = parsed
}

// subjectKind is a kind of subject, as a bit.
type subjectKind uint8

const (
	subjectNode subjectKind = 1 << iota
	subjectCluster
	subjectGroup
)

func (s Subject) kind() subjectKind {
	switch {
	case !s.node.IsZero():
		return subjectNode
	case s.group == clusterGroup:
		return subjectCluster
	case s.group != "":
		return subjectGroup
	}
	return 0
}

// Content is the typed content of a scope: a *TrustBundle, a *NodeBootstrap, a
// *NodeRuntime, a *PeerDirectory, a *ServiceAssignment, a *RoutePolicy, a
// *QoSPolicy, a *StorageDirectory or a *DegradedModePolicy.
type Content interface {
	walker

	// scope is the one whose content it is.
	scope() Scope

	// grants says what the content gives beyond what its header and the verifier's
	// id allow, or "".
	grants(h *Header) string

	// fault says why the content is not valid for its schema under h, or "".
	fault(h *Header) string
}

// scopeRule is what the verifier knows of a scope.
type scopeRule struct {
	scope       Scope
	maxContent  int
	subjects    subjectKind // allowed, as a set
	algorithm   string      // the only one
	establishes bool        // it says which roles and organizations the node has: they are not asked of Trust
	increments  bool        // a header may name a base, and a patch of sections may come instead of the content
	sections    []section   // in the order of the content; each has a row in roleRules. Nil: a node holds the scope in any case
	content     func() Content
}

// scopeRules is the table of the scopes that can be verified. A new scope is a
// row here, a type with the methods of Content, and an accessor of Verified.
var scopeRules = []scopeRule{
	{scope: ScopeNodeBootstrap, maxContent: snapshot.DefaultContent, subjects: subjectNode, algorithm: snapshot.AlgorithmTree, establishes: true,
		content: func() Content { return new(NodeBootstrap) }},
	{scope: ScopeNodeRuntime, maxContent: snapshot.DefaultContent, subjects: subjectNode, algorithm: snapshot.AlgorithmTree, establishes: true,
		content: func() Content { return new(NodeRuntime) }},
	{scope: ScopeTrustBundle, maxContent: snapshot.DefaultContent, subjects: subjectCluster, algorithm: snapshot.AlgorithmEd25519,
		content: func() Content { return new(TrustBundle) }},
	{scope: ScopePeerDirectory, maxContent: snapshot.MaxContent, subjects: subjectGroup, algorithm: snapshot.AlgorithmTree, increments: true,
		sections: []section{{snapshot.SectionActive, true}, {snapshot.SectionBootstrap, true}, {snapshot.SectionWarm, true}},
		content:  func() Content { return new(PeerDirectory) }},
	{scope: ScopeServiceAssignment, maxContent: snapshot.DefaultContent, subjects: subjectNode, algorithm: snapshot.AlgorithmTree, increments: true,
		sections: []section{{snapshot.SectionEndpoints, true}, {snapshot.SectionEntry, false}, {snapshot.SectionResources, true}, {snapshot.SectionSecrets, true}, {snapshot.SectionServices, true}},
		content:  func() Content { return new(ServiceAssignment) }},
	{scope: ScopeRoutePolicy, maxContent: snapshot.DefaultContent, subjects: subjectGroup, algorithm: snapshot.AlgorithmTree, increments: true,
		sections: []section{{snapshot.SectionEntry, true}, {snapshot.SectionRoutes, true}},
		content:  func() Content { return new(RoutePolicy) }},
	{scope: ScopeQoSPolicy, maxContent: snapshot.DefaultContent, subjects: subjectGroup, algorithm: snapshot.AlgorithmTree, increments: true,
		sections: []section{{snapshot.SectionClasses, true}, {snapshot.SectionSessions, true}},
		content:  func() Content { return new(QoSPolicy) }},
	{scope: ScopeStorageDirectory, maxContent: snapshot.DefaultContent, subjects: subjectGroup, algorithm: snapshot.AlgorithmTree, increments: true,
		sections: []section{{snapshot.SectionEndpoints, true}, {snapshot.SectionShards, true}},
		content:  func() Content { return new(StorageDirectory) }},
	{scope: ScopeDegradedModePolicy, maxContent: snapshot.DefaultContent, subjects: subjectGroup, algorithm: snapshot.AlgorithmTree,
		sections: []section{{snapshot.SectionWhole, false}},
		content:  func() Content { return new(DegradedModePolicy) }},
}

// Increments reports whether headers of the scope name the version before as their
// base, so that a patch of it may come in place of the content.
func (s Scope) Increments() bool {
	rule := ruleOf(s)
	return rule != nil && rule.increments
}

func ruleOf(s Scope) *scopeRule {
	for i := range scopeRules {
		if scopeRules[i].scope == s {
			return &scopeRules[i]
		}
	}
	return nil
}
