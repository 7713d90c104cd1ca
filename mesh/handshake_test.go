package mesh_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A peer wrote what a status carries: whatever it is, reading it gives
// few and short errors of known reasons that fit into a log line.
func FuzzFromStatus(f *testing.F) {
	seed := func(errs ...*mesh.HandshakeError) {
		st := status.New(codes.Unavailable, "x")
		for _, e := range errs {
			var err error
			if st, err = st.WithDetails(&errdetails.ErrorInfo{Reason: string(e.Reason), Domain: "fealty", Metadata: map[string]string{"endpoint": e.Endpoint, "expected": e.Expected}}); err != nil {
				f.Fatal(err)
			}
		}
		b, err := proto.Marshal(st.Proto())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	seed()
	seed(&mesh.HandshakeError{Reason: mesh.Expired, Endpoint: "10.0.0.1:7443"})
	seed(&mesh.HandshakeError{Reason: "Imaginary", Endpoint: "10.0.0.1:7443"})
	seed(&mesh.HandshakeError{Reason: mesh.Protocol, Endpoint: "a\nlevel=INFO msg=\"all is well\"\x1b[2J", Expected: strings.Repeat("é", 4000)})
	many := make([]*mesh.HandshakeError, 20)
	for i := range many {
		many[i] = &mesh.HandshakeError{Reason: mesh.NoIdentity}
	}
	seed(many...)
	f.Fuzz(func(t *testing.T, b []byte) {
		var p spb.Status
		if proto.Unmarshal(b, &p) != nil {
			return
		}
		errs := mesh.FromStatus(status.FromProto(&p))
		if len(errs) > 8 {
			t.Fatalf("%d errors", len(errs))
		}
		for _, e := range errs {
			text := e.Error()
			if len(text) > 8192 || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) }) || strings.Contains(text, "the handshake failed") {
				t.Fatalf("reads %q", text)
			}
		}
	})
}
