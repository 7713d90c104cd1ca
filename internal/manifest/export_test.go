package manifest

// Overlaps reports whether one selector may match both.
func Overlaps(p, q Pattern) bool { return p.overlaps(q) }

// Covers reports whether p matches all that q matches.
func Covers(p, q Pattern) bool { return p.covers(q) }

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
