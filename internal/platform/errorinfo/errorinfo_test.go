package errorinfo_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/platform/errorinfo"
)

func TestErrorInfo(t *testing.T) {
	s := errorinfo.With(status.New(codes.Aborted, "x"), &errdetails.ErrorInfo{Domain: "other", Reason: "theirs"},
		&errdetails.ErrorInfo{Domain: "ours", Reason: "first"})
	s, err := s.WithDetails(&errdetails.RequestInfo{RequestId: "1"})
	if err != nil {
		t.Fatal(err)
	}
	s = errorinfo.With(s, &errdetails.ErrorInfo{Domain: "ours", Reason: "second", Metadata: map[string]string{"k": "v"}})
	if s.Code() != codes.Aborted || s.Message() != "x" || len(s.Details()) != 4 {
		t.Fatalf("With returned %v", s)
	}
	var reasons []string
	for info := range errorinfo.All(s, "ours") {
		reasons = append(reasons, info.GetReason()+info.GetMetadata()["k"])
	}
	if !slices.Equal(reasons, []string{"first", "secondv"}) {
		t.Errorf("All: %q", reasons)
	}
	for _, tt := range []struct {
		err          error
		domain, want string
	}{
		{s.Err(), "ours", "first"},
		{fmt.Errorf("wrapped: %w", s.Err()), "other", "theirs"},
		{s.Err(), "nobody", ""},
		{s.Err(), "", ""},
		{errors.New("no status"), "ours", ""},
		{nil, "ours", ""},
	} {
		if got := errorinfo.Reason(tt.err, tt.domain); got != tt.want {
			t.Errorf("Reason(%v, %q) = %q, want %q", tt.err, tt.domain, got, tt.want)
		}
	}
	if ok := errorinfo.With(status.New(codes.OK, ""), &errdetails.ErrorInfo{Domain: "ours"}); ok.Code() != codes.OK || len(ok.Details()) != 0 {
		t.Errorf("success carries %v", ok)
	}
}
