package publication

import (
	"cmp"
	"crypto"
	"crypto/ed25519"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/config/compile"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Record is publication/state.
type Record struct {
	// Change numbers the writes, so that each makes a new value.
	Change uint64 `json:"change"`
	// Record is the signed record in force; null before the first and while there is
	// no member.
	Record     []byte               `json:"record"`
	Signatures []snapshot.Signature `json:"signatures"`

	// The words of the record, for its maker.
	Generation     uint64    `json:"generation"`
	AuthorityEpoch uint64    `json:"authority_epoch"`
	Root           string    `json:"root"`
	Revocations    string    `json:"revocations"`
	IssuedAt       time.Time `json:"issued_at"`
	FreshUntil     time.Time `json:"fresh_until"`

	// Since is the generation from which everything was made anew, because somebody had
	// altered it: a header of a lower version is a left-over. It lets a repair that takes
	// many generations go on where another coordinator, or a start, finds it.
	Since uint64 `json:"since"`

	// Coordinators are the addresses that each coordinator advertises, by its
	// enrolment key, as one entry may admit several: what a header says must not depend
	// on which replica compiles it.
	Coordinators map[string][]string `json:"coordinators"`

	// Bins is how many bins the leaves of the tree lie in; 0: they are in the order of the headers' paths.
	Bins int `json:"bins,omitempty"`
}

// binsOf returns how many bins there are for n headers.
func (r Record) binsOf(n int) int {
	if n == 0 || !isBins(r.Bins) {
		return 0 // of what no leader writes, the root is another
	}
	return r.Bins
}

// Addresses returns the addresses of all coordinators, by key.
func (r Record) Addresses() []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(r.Coordinators)) {
		for _, a := range r.Coordinators[key] {
			if !slices.Contains(out, a) && len(out) < internalsnapshot.MaxCoordinators {
				out = append(out, a)
			}
		}
	}
	return out
}

// HeaderRecord is the current header of one subject in one scope, with what its
// maker needs to know of it.
type HeaderRecord struct {
	Header  []byte `json:"header"`
	Content string `json:"content"` // SHA-256, hex: the name of its record
	Subject string `json:"subject"`
	// Group is that of the roles and organizations of the subject; empty if it is given
	// nothing that is for groups.
	Group          string    `json:"group"`
	AuthorityEpoch uint64    `json:"authority_epoch"`
	ConfigVersion  uint64    `json:"config_version"`
	IssuedAt       time.Time `json:"issued_at"`

	// The version right before, of the same epoch and group, where the scope has
	// increments; 0 and "" for none. Its content is kept for as long as this header is.
	BaseVersion uint64 `json:"base_version,omitempty"`
	Base        string `json:"base,omitempty"` // as Content
}

// Published is one header in a publication.
type Published struct {
	HeaderPath
	Header HeaderRecord
	Leaf   snapshot.Digest
	packed bool // how it is stored
}

// key returns where the header is stored.
func (h *Published) key() string {
	if h.packed {
		return PackedKey(h.HeaderPath)
	}
	return HeaderKey(h.HeaderPath)
}

// HeaderPath says which header it is: its key, without the prefix, in parts. It is
// a member's or a group's.
type HeaderPath struct {
	Scope  snapshot.Scope
	member string // <kind>/<name>
	Group  string // the hex digits of the group's subject
}

// String returns the path as keys have it.
func (p HeaderPath) String() string {
	if p.Group != "" {
		return string(p.Scope) + "/" + groupMark + p.Group
	}
	return string(p.Scope) + "/" + nodeMark + p.member
}

// The parts with which the path of a header goes on after its scope.
const (
	nodeMark  = "node/"
	groupMark = "group/"
)

// parseHeaderPath reads what String prints, and nothing else.
func parseHeaderPath(s string) (HeaderPath, bool) {
	scope, rest, _ := strings.Cut(s, "/")
	p := HeaderPath{Scope: snapshot.Scope(scope)}
	if group, ok := strings.CutPrefix(rest, groupMark); ok {
		p.Group = group
		_, err := snapshot.ParseSubject(groupSubjectPrefix + group)
		return p, err == nil && slices.Contains(compile.GroupScopes(), p.Scope)
	}
	member, ok := strings.CutPrefix(rest, nodeMark)
	kind, name, named := strings.Cut(member, "/")
	p.member = member
	return p, ok && named && name != "" && identity.Kind(kind).Valid() && slices.Contains(nodeScopes(), p.Scope)
}

const groupSubjectPrefix = "group:"

// groupOf returns the hex digits of a group's subject.
func groupOf(g compile.Group) string {
	return strings.TrimPrefix(g.Subject().String(), groupSubjectPrefix)
}

// nodeScopes are the scopes in which each member has a header of its own.
func nodeScopes() []snapshot.Scope {
	return []snapshot.Scope{snapshot.ScopeNodeRuntime, snapshot.ScopeServiceAssignment}
}

// RuntimePath is the path of a member's node_runtime.
func RuntimePath(member string) HeaderPath { return nodePath(snapshot.ScopeNodeRuntime, member) }

func nodePath(scope snapshot.Scope, member string) HeaderPath {
	return HeaderPath{Scope: scope, member: member}
}

func groupPath(scope snapshot.Scope, group string) HeaderPath {
	return HeaderPath{Scope: scope, Group: group}
}

// compareHeaders is the order of headers: that of the leaves of a tree without bins.
func compareHeaders(a, b HeaderPath) int {
	return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Group, b.Group), cmp.Compare(a.member, b.member))
}

// groupOfRecord is the group of a member that its entry covers.
func groupOfRecord(rec record.Member) compile.Group {
	return compile.Group{Roles: rec.RoleNames(), Organizations: slices.Sorted(slices.Values(rec.Organizations))}
}

// KeyIDs are the ids of the keys that signed the record in force, in one text.
func (r Record) KeyIDs() string {
	ids := make([]string, len(r.Signatures))
	for i, sig := range r.Signatures {
		ids[i] = sig.KeyID
	}
	return strings.Join(ids, " ")
}

// SharesKey reports whether one of the keys in ids, as of keyIDs, signed it too.
func (r Record) SharesKey(ids string) bool {
	return slices.ContainsFunc(r.Signatures,
		func(sig snapshot.Signature) bool { return slices.Contains(strings.Fields(ids), sig.KeyID) })
}

// signedBy reports whether the record in force is signed by the keys that would
// sign it now.
func (r Record) signedBy(keys []crypto.Signer) bool {
	return slices.EqualFunc(r.Signatures, keys, func(sig snapshot.Signature, key crypto.Signer) bool {
		public, ok := key.Public().(ed25519.PublicKey)
		return ok && sig.KeyID == internalsnapshot.KeyIDOf(public)
	})
}

// ContentKey returns where the content with the hash is.
func ContentKey(hash string) string { return ContentPrefix + hash }

// indexKey returns where the index of a divided content is, and partKey where a part is.
func indexKey(hash string) string { return IndexPrefix + hash }
func partKey(hash string) string  { return PartPrefix + hash }

// HeaderKey returns where a header is that is not packed, and PackedKey where one is that is.
func HeaderKey(path HeaderPath) string { return HeaderPrefix + path.String() }
func PackedKey(path HeaderPath) string { return PackedPrefix + path.String() }
