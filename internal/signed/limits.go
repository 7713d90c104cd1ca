package signed

// Bounds of what a statement names, in bytes.
const (
	MaxName      = 320  // of a cluster, holder, domain or resource
	MaxStatement = 2048 // of a statement as it travels
)

// MaxLineage bounds the lives before its own that a holder names. A receiver that heard of none of them wants a new
// grant.
const MaxLineage = 64

// The metadata of a fenced call. The token is always there, the others where the sender has them.
const (
	TokenKey   = "fealty-fence-token"   // fence.Token.String
	LineageKey = "fealty-fence-lineage" // fence.Lineage.String
	GrantKey   = "fealty-fence-grant"   // a signed fence.Grant
)

// ErrorDomain is the domain of the ErrorInfo of a refusal, whose reason is a fence.Reason.
const ErrorDomain = "fence.fealty.io"
