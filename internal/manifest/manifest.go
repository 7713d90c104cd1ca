// Package manifest reads the trust policy of a cluster: who may join as what,
// and who may change that.
//
// [Parse] accepts a document only if nothing in it is ambiguous: no field that
// we do not know, no value of another type, no entry that can match nothing, no
// two entries that could give one candidate two kinds. It explains what
// it refuses, all of it at once, each problem with its line, its column and a way
// to mend it. An accepted manifest is immutable, and identified by the SHA-256 of
// the exact bytes ([Manifest.Hash]), because those are what signers sign.
//
// A manifest admits nobody by itself. A proof turns a candidate into selectors
// (facts such as x509:subject:CN=node-c), and [Manifest.Match] says which entry,
// if any, admits them, and under which name. [AuthorityMoves] says whether
// setting one manifest after another changes who holds authority, and with it
// the authority epoch.
//
// The bounds of a manifest, the meaning of what it leaves out, and its words stand in form.go.
// Labels, each KEY=VALUE, help people to find members and decide nothing.
//
// The package does no I/O and reads no clock. Its answers for a given document
// do not change from release to release: histories are replayed with them.
package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/document"
)

// A Manifest is a document that [Parse] accepted. Its fields, defaults filled
// in, are for reading: it is shared, and never changed.
type Manifest struct {
	Cluster     string // SPIFFE trust domain
	Seed        Seed
	Signers     Signers
	Proofs      Proofs
	Admit       []Entry // in document order
	Trust       Trust
	Degraded    Degraded
	RejoinGrace time.Duration // 0: an expired SVID never rejoins by its old key
	Baseline    Baseline
	TokenIssuer string // who JWT-SVIDs say signed them, an https URL; "": they do not say

	raw  []byte
	hash Hash
	// findings are what Parse refuses and ParseAccepted takes.
	findings []*Problem
	exact    map[string]patternRef // by canonical selector; unique in a manifest
	globs    []patternRef          // in document order
}

// Hash is the SHA-256 of the exact bytes of a manifest.
type Hash [sha256.Size]byte

// String returns the hash in lower-case hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Seed says who can bring the seed back after a total loss.
type Seed struct {
	Threshold int // people needed, from 1 to len(People()); 1 if there are none
	Owners    []Owner
}

// People returns the owners who hold a share each, in document order: who have a
// recipient. The index of a share is its owner's place among them, from 1.
func (s Seed) People() []Owner {
	return slices.DeleteFunc(slices.Clone(s.Owners), func(o Owner) bool { return o.Keeper != "" })
}

// Keepers returns the owners that hold the whole seed, sealed, and bring it back
// without a human, in document order.
func (s Seed) Keepers() []Owner {
	return slices.DeleteFunc(slices.Clone(s.Owners), func(o Owner) bool { return o.Keeper == "" })
}

// An Owner is a person's key, which holds one share of the seed, or a keeper, which
// holds all of it: exactly one of the two.
type Owner struct {
	Name      string
	Recipient string // age1…, ssh-ed25519 … or ssh-rsa …
	Keeper    string // file:/path or exec:/path
}

// Signers says who may set the next manifest.
type Signers struct {
	Threshold int // distinct keys needed, from 1 to len(Keys)
	Keys      []Signer
}

// A Signer is a named key; no two of a manifest share the name or the key.
type Signer struct {
	Name string
	Key  Key
}

// Proofs holds what proofs are verified against.
type Proofs struct {
	X509   *X509Proof   // nil: no x509 proof is accepted
	SEVSNP *SEVSNPProof // nil: no sevsnp proof is accepted
}

// X509Proof holds the roots of the operator's own PKI.
type X509Proof struct {
	RootsPEM string   // as written
	RootsDER [][]byte // the certificates in it, in order
}

// SEVSNPProof holds the reference values of AMD SEV-SNP guests.
type SEVSNPProof struct {
	Measurements []string // launch measurements, 96 lower-case hex digits
	MinTCB       TCB
}

// TCB is the least version of each component of the platform.
type TCB struct {
	Bootloader, TEE, SNP, Microcode uint8
}

// An Entry says that candidates who show one of its selectors are admitted.
type Entry struct {
	// Name is unique in the manifest, and the member's name where the selector
	// that matched captures none.
	Name string

	Kind          identity.Kind
	Match         []Pattern     // any of these
	Roles         []Role        // in document order
	Organizations []string      // names
	MaxMembers    int           // 0: no limit
	SVIDTTL       time.Duration // above degraded.max, except for people
	DNSNames      []string      // put into the certificate, never identify
	IPs           []netip.Addr  // likewise
	Labels        []string      // KEY=VALUE, sorted; members are found by them, and they decide nothing

	// PlatformMayReadSeed admits coordinators by a Kubernetes service account:
	// whoever runs the cluster's API server can then obtain the seed.
	PlatformMayReadSeed bool
}

// AdmitsTokens reports whether join tokens may be made for the entry.
func (e *Entry) AdmitsTokens() bool { return slices.ContainsFunc(e.Match, Pattern.IsToken) }

// A Role says what a member may hold (docs/explanation/snapshots.md#who-gets-a-record).
type Role string

// The roles.
const (
	RoleCore    Role = "core"
	RoleIngress Role = "ingress"
	RoleEgress  Role = "egress"
	RoleStorage Role = "storage"
	RoleThin    Role = "thin"
)

// Roles returns every role.
func Roles() []Role { return []Role{RoleCore, RoleIngress, RoleEgress, RoleStorage, RoleThin} }

// Trust says what data owners pin, and so when the mesh CA key changes.
type Trust string

// Trust modes.
const (
	TrustRoot Trust = "root" // the mesh CA key changes when authority moves
	TrustMesh Trust = "mesh" // it changes with every set: one key, one manifest
)

// A Permission is something that a node may do in degraded mode.
type Permission string

// The permissions (docs/explanation/offline.md#one-guard-decides).
const (
	ContinueServices    Permission = "continue_services"
	PreserveRoutes      Permission = "preserve_routes"
	ReconnectPeers      Permission = "reconnect_peers"
	ValidatePeers       Permission = "validate_peers"
	UseStorageEndpoints Permission = "use_storage_endpoints"
	ReportLater         Permission = "report_later"
)

// Permissions returns every permission.
func Permissions() []Permission {
	return []Permission{ContinueServices, PreserveRoutes, ReconnectPeers, ValidatePeers, UseStorageEndpoints,
		ReportLater}
}

// Degraded bounds what nodes may do out of reach of coordinators. A snapshot
// can narrow it, never widen it.
type Degraded struct {
	Allow    []Permission
	Max      time.Duration // below every svid_ttl of a node; 0: no degraded mode
	RouteTTL time.Duration // at most Max
}

// Baseline says what a fleet has to have to be well. It decides nothing: people are told
// when it is not so.
type Baseline struct {
	Data int // data members that are connected; 0: none are needed

	stated bool // and not left to the default
}

// Kinds returns the kinds that an entry may have: everything that joins, and the
// people. Workloads get their identity from the member that runs them.
func Kinds() []identity.Kind {
	return []identity.Kind{identity.Coordinator, identity.Data, identity.Witness, identity.Shard,
		identity.Operator, identity.Provider, identity.Admin, identity.Readonly}
}

// Parse reads a manifest in YAML or JSON. The error is an [*InvalidError] with
// every problem found; it matches [ErrInvalid]. Parse keeps its own copy of data.
func Parse(data []byte) (*Manifest, error) {
	roots, problems := format().Read(data)
	if problems != nil {
		return nil, invalid(problems)
	}
	m, err := decodeManifest(data, roots[0])
	if err != nil {
		return nil, err
	}
	if m.findings != nil {
		return nil, invalid(m.findings)
	}
	return m, nil
}

// ParseAccepted reads a manifest that is in force or was, so that a signed history
// stands behind it. parseRules that came after a release that accepted it refuse nothing
// here: what breaks them is in [Manifest.Findings]. Otherwise a stricter release would
// take a running cluster's authority away. A new document goes through [Parse].
func ParseAccepted(data []byte) (*Manifest, error) {
	f := format()
	roots, problems := f.ReadAccepted(data)
	if problems != nil {
		return nil, invalid(problems)
	}
	m, err := decodeManifest(data, roots[0])
	if err != nil {
		return nil, err
	}
	if newer := f.Newer(data, roots); newer != nil {
		m.findings = append(invalid(newer).Problems, m.findings...)
	}
	return m, nil
}

// decodeManifest reads root, the document that data holds.
func decodeManifest(data []byte, root *node) (*Manifest, error) {
	d := &decoder{document.NewDecoder(4 * MaxProblems)}
	m := d.manifest(root)
	d.check(m, checks[:])
	if d.Problems != nil {
		return nil, invalid(d.Problems)
	}
	if d.check(m, newerChecks[:]); d.Problems != nil {
		m.findings = invalid(d.Problems).Problems
	}
	m.raw = slices.Clone(data)
	m.hash = sha256.Sum256(data)
	m.index()
	return m, nil
}

// Findings returns what [Parse] refuses in a manifest that [ParseAccepted] took; the
// next manifest has to mend it.
func (m *Manifest) Findings() []*Problem { return slices.Clone(m.findings) }

// format bounds the document of a manifest.
func format() *document.Format {
	return &document.Format{
		Noun: "a manifest", Start: "start from the output of: fealty manifest init",
		TooLong: "use patterns in place of single entries",
		Bytes:   MaxBytes, Documents: 1, Depth: MaxDepth, Fields: maxFields,
		Items: MaxEntries, Marks: maxMarks, Problems: MaxProblems,
	}
}

// Bytes returns a copy of the exact bytes that were parsed.
func (m *Manifest) Bytes() []byte { return slices.Clone(m.raw) }

// Hash returns the SHA-256 of the exact bytes that were parsed.
func (m *Manifest) Hash() Hash { return m.hash }

// EntryByName returns the entry called name.
func (m *Manifest) EntryByName(name string) (*Entry, bool) {
	i := slices.IndexFunc(m.Admit, func(e Entry) bool { return e.Name == name })
	if i < 0 {
		return nil, false
	}
	return &m.Admit[i], true
}

// LongestSVIDTTL returns the longest svid_ttl of any entry. The mesh CA lives
// twice as long, so that no SVID outlives it (docs/explanation/trust.md#5-renewal-and-rejoin).
func (m *Manifest) LongestSVIDTTL() time.Duration {
	var longest time.Duration
	for i := range m.Admit {
		longest = max(longest, m.Admit[i].SVIDTTL)
	}
	return longest
}
