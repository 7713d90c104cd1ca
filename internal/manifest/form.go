package manifest

import "time"

// Bounds of a manifest. A document beyond one of them is refused: it can come
// from a store that nobody vouches for yet
// (docs/explanation/recovery.md#the-ways-back).
const (
	MaxBytes     = 1 << 20   // of the whole document
	LongBytes    = 511 << 10 // above which a store has it in parts, which earlier releases cannot read
	MaxDepth     = 24        // of nested objects and lists; a manifest needs 5
	MaxProblems  = 100       // that one error reports
	MaxOwners    = 255       // seed share owners; a share's index is one byte
	MaxSigners   = 64
	MaxEntries   = 10_000
	MaxPatterns  = 64    // selector patterns of one entry
	MaxGlobs     = 1_000 // selector patterns with a * in the whole manifest
	MaxListItems = 256   // of any other list
	MaxMembers   = 1_000_000
)

// Bounds of durations.
const (
	MinSVIDTTL     = time.Minute
	MaxSVIDTTL     = 90 * 24 * time.Hour
	MaxRejoinGrace = 90 * 24 * time.Hour
	MaxRouteTTL    = 7 * 24 * time.Hour
)

// The meaning of a manifest where it says nothing. They are part of the format: a
// history is replayed with them, so a change of one here would change what was
// signed.
const (
	DefaultDegradedMax = 24 * time.Hour
	DefaultRouteTTL    = time.Hour // or degraded.max, if that is shorter
	DefaultRejoinGrace = 7 * 24 * time.Hour

	// DefaultBaselineData is the least with which one can be lost while the others still
	// outnumber it.
	DefaultBaselineData = 3

	// DefaultSVIDMargin is how much longer than degraded.max an SVID lives, so
	// that identity never ends degraded mode (docs/explanation/offline.md#what-ends-it).
	DefaultSVIDMargin = time.Hour

	// DefaultPersonTTL is the svid_ttl of kinds admin and readonly, which do not
	// live through degraded mode (docs/how-to/people-and-tools.md).
	DefaultPersonTTL = 8 * time.Hour
)

// Families of selectors.
const (
	FamilyToken      = "token"
	FamilyKey        = "key"
	FamilyX509       = "x509"
	FamilyTPM        = "tpm"
	FamilySEVSNP     = "sevsnp"
	FamilyKubernetes = "k8s"
)

// Keeper schemes that this build knows.
const (
	KeeperFile = "file"
	KeeperExec = "exec"
)

// Parts of authority, as AuthorityMoves names them.
const (
	AuthorityCluster      = "cluster"
	AuthorityCoordinators = "coordinators"
	AuthoritySigners      = "signers"
	AuthoritySeed         = "seed"
	AuthorityProofs       = "proofs"
	AuthorityTrust        = "trust"
	AuthorityEverySet     = "trust: mesh" // with it every set moves authority
)

// IsName reports whether s can be the name of an owner, a signer, an entry or a
// member: letters, digits, dots, hyphens and underscores, at most 128 of them, and
// neither "." nor "..". So it can name a file too, and is one SPIFFE path segment (SPIFFE-ID §2.2): what a * captures
// comes from a peer.
func IsName(s string) bool {
	if s == "" || len(s) > MaxNameBytes || s == "." || s == ".." {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return true
}

// MaxNameBytes bounds a member's name; a SPIFFE id may have 2,048 bytes in all.
const MaxNameBytes = 128
