package manifest

import "time"

// Bounds of a manifest. A document beyond one of them is refused: it can come
// from a store that nobody vouches for yet
// (docs/explanation/recovery.md#the-ways-back).
const (
	MaxBytes     = 1 << 20 // of the whole document
	MaxDepth     = 24      // of nested objects and lists; a manifest needs 5
	MaxProblems  = 100     // that one error reports
	MaxOwners    = 255     // seed share owners; a share's index is one byte
	MaxSigners   = 64
	MaxEntries   = 10_000
	MaxPatterns  = 64    // selector patterns of one entry
	MaxGlobs     = 1_000 // selector patterns with a * in the whole manifest
	MaxListItems = 256   // of any other list
	MaxMembers   = 1_000_000

	maxFields         = 64      // of an object; none has more than 10
	maxMarks          = 250_000 // characters that begin or end a token; MaxEntries entries of one line each have 200,000
	maxSelectorBytes  = 512
	maxRecipientBytes = 4096
	maxRootsPEMBytes  = 256 << 10
	maxRoots          = 64
)

// Bounds of durations.
const (
	MinSVIDTTL     = time.Minute
	MaxSVIDTTL     = 90 * 24 * time.Hour
	MaxRejoinGrace = 90 * 24 * time.Hour
	MaxRouteTTL    = 7 * 24 * time.Hour
)

// What a manifest means where it says nothing. They are part of the format: a
// history is replayed with them, so a change of one here would change what was
// signed.
const (
	DefaultTrust       = TrustRoot
	DefaultDegradedMax = 24 * time.Hour
	DefaultRouteTTL    = time.Hour // or degraded.max, if that is shorter
	DefaultRejoinGrace = 7 * 24 * time.Hour

	// DefaultBaselineData is the least with which one can be lost while the others still
	// outnumber it.
	DefaultBaselineData = 3

	// DefaultSVIDMargin is how much longer than degraded.max an SVID lives, so
	// that identity never ends degraded mode
	// (docs/explanation/offline.md#what-ends-it).
	DefaultSVIDMargin = time.Hour

	// DefaultPersonTTL is the svid_ttl of kinds admin and readonly, which do not
	// live through degraded mode (docs/how-to/people-and-tools.md).
	DefaultPersonTTL = 8 * time.Hour
)

// DefaultDegradedAllow lists everything that degraded mode may permit: the
// manifest is the ceiling, and what a manifest does not cut a snapshot can.
func DefaultDegradedAllow() []Permission { return Permissions() }
