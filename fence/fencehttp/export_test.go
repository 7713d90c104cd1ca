package fencehttp

// The headers, as tests without a [Transport] write them.
const (
	TokenHeader   = tokenHeader
	LineageHeader = lineageHeader
	GrantHeader   = grantHeader
	ReasonHeader  = reasonHeader
)
