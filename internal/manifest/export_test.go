package manifest

// Overlaps reports whether one selector may match both.
func Overlaps(p, q Pattern) bool { return p.overlaps(q) }

// Covers reports whether p matches all that q matches.
func Covers(p, q Pattern) bool { return p.covers(q) }

// SharesAfter reports whether the first patterns with a * of two manifests share a selector, or may, as the search for an
// example ended because it is bounded. It has made all the lookups before that one may make, but as many as left.
func SharesAfter(old, new *Manifest, left int) bool {
	r := &reach{old: old, new: new, middles: middles(), lookups: maxLookups - left}
	return r.share(old.globs[0], new.globs[0])
}

// SearchLookups is how many lookups one search makes that finds nothing.
func SearchLookups() int { return len(middles()) }

// The classes of changes, and the rules.
const (
	ChangeCluster          = changeCluster
	ChangeCanJoin          = changeCanJoin
	ChangeCannotJoin       = changeCannotJoin
	ChangeTokens           = changeTokens
	ChangeKind             = changeKind
	ChangeName             = changeName
	ChangeEntry            = changeEntry
	ChangeMaxMembers       = changeMaxMembers
	ChangeRoles            = changeRoles
	ChangeOrganizations    = changeOrganizations
	ChangeSVIDTTL          = changeSVIDTTL
	ChangeCertificateNames = changeCertificateNames
	ChangeLabels           = changeLabels
	ChangeProofs           = changeProofs
	ChangeSigners          = changeSigners
	ChangeSignersThreshold = changeSignersThreshold
	ChangeSeedOwners       = changeSeedOwners
	ChangeSeedThreshold    = changeSeedThreshold
	ChangeDegraded         = changeDegraded
	ChangeRejoinGrace      = changeRejoinGrace
	ChangeBaseline         = changeBaseline
	ChangeTokenIssuer      = changeTokenIssuer
	ChangeTrust            = changeTrust
	ChangeAuthorityEpoch   = changeAuthorityEpoch
)

// The tables.
var (
	ChangeClasses = changeClasses
	Rules         = parseRules
)
