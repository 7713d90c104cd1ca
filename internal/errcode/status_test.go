package errcode

import (
	"errors"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Either side of a connection refuses what is above its limit in words of
// grpc-go, without a code.
func TestMessageTooLarge(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Code
		why  string
	}{
		{"grpc: received message larger than max (2097215 vs. 1048576)", MessageTooLarge, "it has 2097215 bytes, at most 1048576 are allowed"},
		{"grpc: trying to send message larger than max (5 vs. 4)", MessageTooLarge, "it has 5 bytes, at most 4 are allowed"},
		{"larger than max (\x1b[31m vs. 4)", Internal, ""},
		{"stream terminated by RST_STREAM with error code: ENHANCE_YOUR_CALM", Internal, ""},
	} {
		e := Of(status.Error(codes.ResourceExhausted, tt.text))
		if e.Code != tt.want || tt.why != "" && e.Why != tt.why {
			t.Errorf("%q: %s, %q", tt.text, e.Code, e.Why)
		}
	}
}

// A case of a wider code is told with both: a peer of a release that knows the wider one alone goes by that, and
// one that knows a later case of it as well. Whose trouble it was does not become the caller's exit status.
func TestCasesOfACode(t *testing.T) {
	err := New(StoreLoginRefused, "what", "the renewal", "cause", "no").GRPCStatus().Err()
	info, ok := status.Convert(err).Details()[0].(*errdetails.ErrorInfo)
	if !ok || info.GetReason() != string(StoreUnreachable) || info.GetMetadata()["exact"] != string(StoreLoginRefused) ||
		status.Code(err) != codes.Unavailable {
		t.Fatalf("sent: %v, %v", info, err)
	}
	got := Of(err)
	if got.Code != StoreLoginRefused || !errors.Is(got, StoreUnreachable) || !errors.Is(got, StoreLoginRefused) ||
		errors.Is(got, StoreHeld) || ExitCode(err) != ExitUnreachable {
		t.Errorf("read: %v, exit status %d", got, ExitCode(err))
	}
	if here := New(StoreLoginRefused); ExitCode(here) != ExitDenied {
		t.Errorf("here: exit status %d", ExitCode(here))
	}
	for _, exact := range []string{"FE-S999", string(TokenSpent), ""} {
		st, err := status.New(codes.Unavailable, "x").WithDetails(&errdetails.ErrorInfo{Domain: Domain,
			Reason: string(StoreUnreachable), Metadata: map[string]string{"exact": exact, "cause": "c"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := Of(st.Err()); got.Code != StoreUnreachable || got.Why != "c" {
			t.Errorf("of %q: %v", exact, got)
		}
	}
}
