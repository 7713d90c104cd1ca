package render_test

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/mesh"
)

func TestHandshakeCodes(t *testing.T) {
	for reason, want := range map[mesh.Reason]errcode.Code{
		mesh.PeerUntrusted: errcode.PeerUntrusted, mesh.IdentityMismatch: errcode.PeerIdentityMismatch, mesh.NoIdentity: errcode.PeerNoIdentity,
		mesh.Expired: errcode.PeerExpired, mesh.ClientRejected: errcode.PeerRejectedUs, mesh.Protocol: errcode.PeerProtocol,
	} {
		h := &mesh.HandshakeError{Reason: reason, Endpoint: "c1:7443", Expected: "spiffe://c/coordinator"}
		wrapped := fmt.Errorf("call: %w", &mesh.NoEndpointsError{Target: "c1:7443", Failures: []error{h}})
		err := render.OverNetwork(wrapped, "c1:7443", "SetManifest", false, true, "30s")
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", reason, err)
		}
		if e := errcode.Of(err); e.Fields["endpoint"] != "c1:7443" {
			t.Errorf("%s: %v", reason, e.Fields)
		}
	}
}

// The failure of a request means what is known of it.
func TestOverNetwork(t *testing.T) {
	late, gone := status.Error(codes.DeadlineExceeded, "late"), status.Error(codes.Unavailable, "gone")
	shaken := &mesh.NoEndpointsError{Failures: []error{&mesh.HandshakeError{Reason: mesh.PeerUntrusted}}}
	unreached := &mesh.NoEndpointsError{Failures: []error{&mesh.EndpointError{Endpoint: "c1:1", Err: errors.New("x")}}}
	told := errcode.New(errcode.Denied).GRPCStatus().Err()
	for _, tt := range []struct {
		name          string
		err           error
		sent, changes bool
		want          errcode.Code
	}{
		{"late, not sent", late, false, true, errcode.Unreachable},
		{"late question, not sent", late, false, false, errcode.Unreachable},
		{"late", late, true, true, errcode.OutcomeUnknown},
		{"late question", late, true, false, errcode.Unreachable},
		{"gone, not sent", gone, false, true, errcode.Unreachable},
		{"gone", gone, true, true, errcode.OutcomeUnknown},
		{"gone question", gone, true, false, errcode.Unreachable},
		{"no handshake", shaken, false, true, errcode.PeerUntrusted},
		{"no endpoint", unreached, false, true, errcode.Unreachable},
		{"a failed handshake after it was sent", fmt.Errorf("%w: %w", gone, shaken), true, true,
			errcode.OutcomeUnknown},
		{"an answer", told, true, true, errcode.Denied},
		{"an answer without a code", status.Error(codes.NotFound, "x"), true, true, errcode.NotFound},
	} {
		err := render.OverNetwork(tt.err, "c1:1", "CreateToken", tt.sent, tt.changes, "30s")
		if got := errcode.Of(err).Code; got != tt.want {
			t.Errorf("%s: %s, want %s (%v)", tt.name, got, tt.want, err)
		}
	}
}
