package identity

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fealty-io/fealty/internal/identity"
)

const (
	// maxLabelBytes bounds one dot-separated label of a cluster's name (RFC 1035
	// §2.3.4), because X.509 parsers take the authority of a URI SAN for a DNS name.
	maxLabelBytes = 63

	scheme = "spiffe://"
)

// Kind is what a process is in its cluster. It is the first path segment of an id.
type Kind string

// The kinds. A coordinator is a replica of the control plane; data, witness, shard,
// operator and provider are members that join; a workload is a local process that a
// member vouches for; admin and readonly are people and their tools.
const (
	Coordinator Kind = "coordinator"
	Data        Kind = "data"
	Witness     Kind = "witness"
	Shard       Kind = "shard"
	Operator    Kind = "operator"
	Provider    Kind = "provider"
	Workload    Kind = "workload"
	Admin       Kind = "admin"
	Readonly    Kind = "readonly"
)

// Kinds returns every kind, in the order in which they are documented.
func Kinds() []Kind {
	return []Kind{Coordinator, Data, Witness, Shard, Operator, Provider, Workload, Admin, Readonly}
}

// Valid reports whether k is one of the kinds above.
func (k Kind) Valid() bool {
	switch k {
	case Coordinator, Data, Witness, Shard, Operator, Provider, Workload, Admin, Readonly:
		return true
	}
	return false
}

// ErrInvalidID is matched by every error of [New] and [Parse].
var ErrInvalidID = errors.New("invalid identity")

// idError says which text is not an id (or not a part of one), and why.
type idError struct {
	Part  string // "cluster", "kind", "name" or "id"
	Value string // what was given
	Why   string // what is wrong with it, and what would be right
}

func (e *idError) Error() string {
	return fmt.Sprintf("%s %s refused: %s", e.Part, identity.Clip(e.Value), e.Why)
}

// Is makes every idError match [ErrInvalidID].
func (e *idError) Is(target error) bool { return target == ErrInvalidID }

// ID is one identity of one cluster. It is comparable, so == and map keys work: two
// IDs are equal when their URIs are. The zero ID is no identity; [New] and [Parse] are
// the only ways to make another.
type ID struct {
	uri string // spiffe://cluster/kind/name, or ""
	// Where kind and name begin in uri. They follow from uri, so that == compares uri.
	kindAt, nameAt uint16
}

// New returns the identity of name as kind in cluster.
//
// A cluster is a SPIFFE trust domain: lowercase letters, digits, '.', '-' and '_', at
// most identity.MaxClusterBytes, without empty labels. A name is one SPIFFE path segment
// (letters, digits, '.', '-', '_', not "." or ".."); that of a workload may be several,
// separated by '/'. The whole id is at most identity.MaxIDBytes.
//
// Errors: they match [ErrInvalidID].
func New(cluster string, kind Kind, name string) (ID, error) {
	if err := CheckCluster(cluster); err != nil {
		return ID{}, err
	}
	if err := checkKind(kind); err != nil {
		return ID{}, err
	}
	if err := checkName(kind, name); err != nil {
		return ID{}, err
	}
	uri := scheme + cluster + "/" + string(kind) + "/" + name
	if len(uri) > identity.MaxIDBytes {
		return ID{}, &idError{"id", uri, fmt.Sprintf("it has %d bytes, at most %d are allowed: choose a shorter name", len(uri), identity.MaxIDBytes)}
	}
	return ID{
		uri:    uri,
		kindAt: uint16(len(scheme) + len(cluster) + 1),
		nameAt: uint16(len(scheme) + len(cluster) + 1 + len(kind) + 1),
	}, nil
}

// Parse reads an id as [ID.String] prints it. There is exactly one spelling of each
// identity: nothing is decoded, trimmed or lowered. The ID keeps uri, not a copy.
//
// Errors: they match [ErrInvalidID].
func Parse(uri string) (ID, error) {
	if id, ok := scan(uri); ok {
		return id, nil
	}
	return parseSlowly(uri)
}

// parseSlowly says what an id is, in terms of go-spiffe and [New], and what is wrong with
// uri if it is none.
func parseSlowly(uri string) (ID, error) {
	sid, err := spiffeid.FromString(uri)
	if err != nil {
		return ID{}, &idError{"id", uri, "it is not a SPIFFE id (" + err.Error() + "): write spiffe://<cluster>/<kind>/<name>"}
	}
	kind, name, _ := strings.Cut(strings.TrimPrefix(sid.Path(), "/"), "/")
	return New(sid.TrustDomain().Name(), Kind(kind), name)
}

// scan reads a well-formed id in one pass and without allocating: a trust bundle may hold
// identity.MaxBans of them. It may refuse what parseSlowly takes, and never the reverse.
func scan(uri string) (ID, bool) {
	if len(uri) > identity.MaxIDBytes || !strings.HasPrefix(uri, scheme) {
		return ID{}, false
	}
	// The cluster: labels between dots.
	i, label := len(scheme), len(scheme)
	for ; i < len(uri) && uri[i] != '/'; i++ {
		switch c := uri[i]; {
		case c == '.':
			if i == label || i-label > maxLabelBytes {
				return ID{}, false
			}
			label = i + 1
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_':
		default:
			return ID{}, false
		}
	}
	if i == len(uri) || i == label || i-label > maxLabelBytes || i-len(scheme) > identity.MaxClusterBytes {
		return ID{}, false
	}
	kindAt := i + 1
	kind, _, found := strings.Cut(uri[kindAt:], "/")
	if !found || !Kind(kind).Valid() {
		return ID{}, false
	}
	// The name: segments between slashes.
	nameAt := kindAt + len(kind) + 1
	segment := nameAt
	for i = nameAt; i < len(uri); i++ {
		switch c := uri[i]; {
		case c == '/':
			if Kind(kind) != Workload || !isSegment(uri[segment:i]) {
				return ID{}, false
			}
			segment = i + 1
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.':
		default:
			return ID{}, false
		}
	}
	if !isSegment(uri[segment:]) {
		return ID{}, false
	}
	return ID{uri: uri, kindAt: uint16(kindAt), nameAt: uint16(nameAt)}, true
}

// isSegment reports whether s can be a path segment, if its bytes can (SPIFFE-ID §2.2).
func isSegment(s string) bool { return s != "" && s != "." && s != ".." }

// CheckCluster reports whether name can be a cluster's name: see [New].
//
// Errors: they match [ErrInvalidID].
func CheckCluster(name string) error {
	refuse := func(why string) error { return &idError{"cluster", name, why} }
	switch {
	case name == "":
		return refuse("it is blank: name the cluster, such as prod.example")
	case len(name) > identity.MaxClusterBytes:
		return refuse(fmt.Sprintf("it has %d bytes, at most %d are allowed", len(name), identity.MaxClusterBytes))
	case strings.Contains(name, "/"):
		// TrustDomainFromString would take a whole id for the name of its trust domain.
		return refuse("it holds a '/': give the name alone, such as prod.example")
	}
	if _, err := spiffeid.TrustDomainFromString(name); err != nil {
		return refuse("it is not a SPIFFE trust domain: " + err.Error())
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabelBytes {
			return refuse(fmt.Sprintf("each label between dots needs 1 to %d bytes", maxLabelBytes))
		}
	}
	return nil
}

func checkKind(kind Kind) error {
	if kind.Valid() {
		return nil
	}
	why := "it is not a kind"
	if kind == "" {
		why = "it is blank"
	}
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return &idError{"kind", string(kind), why + ": use one of " + strings.Join(names, ", ")}
}

func checkName(kind Kind, name string) error {
	refuse := func(why string) error { return &idError{"name", name, why} }
	if name == "" {
		return refuse("it is blank: an identity of kind " + string(kind) + " needs a name")
	}
	if kind != Workload && strings.Contains(name, "/") {
		return refuse("a name of kind " + string(kind) + " is one path segment; only workloads have several")
	}
	for segment := range strings.SplitSeq(name, "/") {
		if err := spiffeid.ValidatePathSegment(segment); err != nil {
			return refuse("it is not made of SPIFFE path segments: " + err.Error())
		}
	}
	return nil
}

// Cluster returns the cluster's name, which is the SPIFFE trust domain.
func (id ID) Cluster() string {
	if id.IsZero() {
		return ""
	}
	return id.uri[len(scheme) : id.kindAt-1]
}

// Kind returns what the process is in its cluster.
func (id ID) Kind() Kind {
	if id.IsZero() {
		return ""
	}
	return Kind(id.uri[id.kindAt : id.nameAt-1])
}

// Name returns the part after the kind; for a workload it may hold slashes.
func (id ID) Name() string {
	if id.IsZero() {
		return ""
	}
	return id.uri[id.nameAt:]
}

// String returns the URI, or "" for the zero ID.
func (id ID) String() string { return id.uri }

// URL returns the URI as a new value for a certificate template, or nil for the zero ID.
func (id ID) URL() *url.URL {
	if id.IsZero() {
		return nil
	}
	return &url.URL{Scheme: "spiffe", Host: id.Cluster(), Path: "/" + string(id.Kind()) + "/" + id.Name()}
}

// IsZero reports whether id is no identity.
func (id ID) IsZero() bool { return id.uri == "" }

// Compare orders ids by their URIs, bytewise; the zero ID is first.
func (id ID) Compare(other ID) int { return strings.Compare(id.uri, other.uri) }

// MarshalText returns the URI; "" for the zero ID, which fields should leave out with
// omitzero, because UnmarshalText refuses it.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.uri), nil }

// UnmarshalText is [Parse]; blank text is refused, and id then keeps its value.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}
