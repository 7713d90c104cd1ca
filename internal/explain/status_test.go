package explain

import (
	"testing"

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
