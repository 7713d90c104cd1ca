package failure_test

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/failure"
	"github.com/fealty-io/fealty/mesh"
)

func TestHandshakeCodes(t *testing.T) {
	for reason, want := range map[mesh.Reason]explain.Code{
		mesh.PeerUntrusted: explain.PeerUntrusted, mesh.IdentityMismatch: explain.PeerIdentityMismatch, mesh.NoIdentity: explain.PeerNoIdentity,
		mesh.Expired: explain.PeerExpired, mesh.ClientRejected: explain.PeerRejectedUs, mesh.Protocol: explain.PeerProtocol,
	} {
		h := &mesh.HandshakeError{Reason: reason, Endpoint: "c1:7443", Expected: "spiffe://c/coordinator"}
		wrapped := fmt.Errorf("call: %w", &mesh.NoEndpointsError{Target: "c1:7443", Failures: []error{h}})
		err := failure.OverNetwork(wrapped, "c1:7443", "SetManifest", false, true, "30s")
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", reason, err)
		}
		if e := explain.Of(err); e.Fields["endpoint"] != "c1:7443" {
			t.Errorf("%s: %v", reason, e.Fields)
		}
	}
}

// The failure of a request means what is known of it.
func TestOverNetwork(t *testing.T) {
	late, gone := status.Error(codes.DeadlineExceeded, "late"), status.Error(codes.Unavailable, "gone")
	shaken := &mesh.NoEndpointsError{Failures: []error{&mesh.HandshakeError{Reason: mesh.PeerUntrusted}}}
	unreached := &mesh.NoEndpointsError{Failures: []error{&mesh.EndpointError{Endpoint: "c1:1", Err: errors.New("x")}}}
	told := explain.New(explain.Denied).GRPCStatus().Err()
	for _, tt := range []struct {
		name          string
		err           error
		sent, changes bool
		want          explain.Code
	}{
		{"late, not sent", late, false, true, explain.Unreachable},
		{"late question, not sent", late, false, false, explain.Unreachable},
		{"late", late, true, true, explain.OutcomeUnknown},
		{"late question", late, true, false, explain.Unreachable},
		{"gone, not sent", gone, false, true, explain.Unreachable},
		{"gone", gone, true, true, explain.OutcomeUnknown},
		{"gone question", gone, true, false, explain.Unreachable},
		{"no handshake", shaken, false, true, explain.PeerUntrusted},
		{"no endpoint", unreached, false, true, explain.Unreachable},
		{"a failed handshake after it was sent", fmt.Errorf("%w: %w", gone, shaken), true, true,
			explain.OutcomeUnknown},
		{"an answer", told, true, true, explain.Denied},
		{"an answer without a code", status.Error(codes.NotFound, "x"), true, true, explain.NotFound},
	} {
		err := failure.OverNetwork(tt.err, "c1:1", "CreateToken", tt.sent, tt.changes, "30s")
		if got := explain.Of(err).Code; got != tt.want {
			t.Errorf("%s: %s, want %s (%v)", tt.name, got, tt.want, err)
		}
	}
}
