// Package fencehttp fences an HTTP service with a few lines at either end: see [Server]
// and [Transport].
//
// Requests of the methods that RFC 9110, section 9.2.1, calls safe (GET, HEAD, OPTIONS,
// TRACE) pass: they change nothing, and what they answer may be out of date. All others
// are fenced. The token travels in a header, Fealty-Fence-Token, and the reason of a refusal
// in another, Fealty-Fence-Reason, so that clients in any language can tell what happened.
// A sender has Fealty-Fence-Lineage and Fealty-Fence-Grant beside its token. The status 412 is for fencing alone.
package fencehttp

import (
	"net/http"

	"github.com/fealty-io/fealty/fence"
)

// The headers of a fenced request, and of the answer to one that was refused. The token is
// always there, lineage and grant where the sender has them.
const (
	tokenHeader   = "Fealty-Fence-Token"   // [fence.Token.String]
	lineageHeader = "Fealty-Fence-Lineage" // [fence.Lineage.String]
	grantHeader   = "Fealty-Fence-Grant"   // a signed [fence.Grant]
	reasonHeader  = "Fealty-Fence-Reason"  // a [fence.Reason]
)

// statusOf is the status of a refusal. A reason that the sender is not in charge, or that it has
// been there before, has the status that is for nothing else (RFC 9110, section
// 15.5.13: the condition is the sender's token).
func statusOf(r fence.Reason) int {
	switch r {
	case fence.ReasonStale, fence.ReasonMoved, fence.ReasonClone, fence.ReasonOwner, fence.ReasonDuplicate:
		return http.StatusPreconditionFailed
	case fence.ReasonUngranted:
		return http.StatusForbidden
	case fence.ReasonUnpromised, fence.ReasonLate:
		return http.StatusConflict
	case fence.ReasonFull:
		return http.StatusInsufficientStorage
	}
	return http.StatusBadRequest // domain, malformed
}

func safe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}
