// Package errorinfo reads and adds the google.rpc.ErrorInfo of a gRPC status: the reason of a failure for
// programs, under the domain of whoever names it. A status may carry several, of several domains.
package errorinfo

import (
	"iter"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// All returns those of a domain that s carries, in their order. They are what the sender of s says.
func All(s *status.Status, domain string) iter.Seq[*errdetails.ErrorInfo] {
	return func(yield func(*errdetails.ErrorInfo) bool) {
		for _, detail := range s.Details() {
			if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain && !yield(info) {
				return
			}
		}
	}
}

// Reason returns the first reason that the status of err carries under a domain, or "".
func Reason(err error, domain string) string {
	for info := range All(status.Convert(err), domain) {
		return info.GetReason()
	}
	return ""
}

// With returns s with infos beside what it carries. A status of success carries none and is returned as it is.
func With(s *status.Status, infos ...*errdetails.ErrorInfo) *status.Status {
	for _, info := range infos {
		if with, err := s.WithDetails(info); err == nil {
			s = with
		}
	}
	return s
}
