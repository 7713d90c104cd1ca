package cli

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/mesh"
)

func TestHandshakeCodes(t *testing.T) {
	for reason, want := range map[mesh.Reason]explain.Code{
		mesh.PeerUntrusted: explain.PeerUntrusted, mesh.IdentityMismatch: explain.PeerIdentityMismatch, mesh.NoIdentity: explain.PeerNoIdentity,
		mesh.Expired: explain.PeerExpired, mesh.ClientRejected: explain.PeerRejectedUs, mesh.Protocol: explain.PeerProtocol,
	} {
		h := &mesh.HandshakeError{Reason: reason, Endpoint: "c1:7443", Expected: "spiffe://c/coordinator"}
		wrapped := fmt.Errorf("call: %w", &mesh.NoEndpointsError{Target: "c1:7443", Failures: []error{h}})
		err := overNetwork(wrapped, "c1:7443", "SetManifest", false, true, "30s")
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", reason, err)
		}
		if e := explain.Of(err); e.Fields["endpoint"] != "c1:7443" {
			t.Errorf("%s: %v", reason, e.Fields)
		}
	}
}

// What is known of a request decides what its failure means.
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
		{"a failed handshake after it was sent", fmt.Errorf("%w: %w", gone, shaken), true, true, explain.OutcomeUnknown},
		{"an answer", told, true, true, explain.Denied},
		{"an answer without a code", status.Error(codes.NotFound, "x"), true, true, explain.NotFound},
	} {
		err := overNetwork(tt.err, "c1:1", "CreateToken", tt.sent, tt.changes, "30s")
		if got := explain.Of(err).Code; got != tt.want {
			t.Errorf("%s: %s, want %s (%v)", tt.name, got, tt.want, err)
		}
	}
}

// A wait that ends is told as that, with the last failure that was one of its own.
func TestUntil(t *testing.T) {
	refused, busy := explain.New(explain.Denied), explain.New(explain.RecoveryMode)
	type answer struct {
		done bool
		err  error
		hang bool // until the context ends
	}
	for _, tt := range []struct {
		name    string
		wait    time.Duration
		answers []answer
		want    explain.Code
		calls   int
	}{
		{"done at once", 0, []answer{{done: true}}, "", 1},
		{"without a wait it is tried once", 0, []answer{{err: busy}}, explain.RecoveryMode, 1},
		{"without a wait, not done", 0, []answer{{}}, "", 1},
		{"done later", time.Minute, []answer{{err: busy}, {}, {done: true}}, "", 3},
		{"refused for good", time.Minute, []answer{{err: busy}, {done: true, err: refused}}, explain.Denied, 2},
		{"never done", 20 * time.Millisecond, []answer{{err: busy}}, explain.WaitRanOut, 0},
		{"cut off by its end", 20 * time.Millisecond, []answer{{done: true, hang: true, err: refused}}, explain.WaitRanOut, 1},
	} {
		n := 0
		pause := time.Millisecond
		_, err := until(t.Context(), waiting{tt.wait}, "x", func(ctx context.Context) (int, bool, error) {
			a := tt.answers[min(n, len(tt.answers)-1)]
			n++
			if a.hang {
				<-ctx.Done()
				return 0, a.done, a.err
			}
			return n, a.done, a.err
		}, &pause)
		got := explain.Code("")
		if err != nil {
			got = explain.Of(err).Code
		}
		if got != tt.want || tt.calls > 0 && n != tt.calls {
			t.Errorf("%s: %v after %d calls; want %q after %d", tt.name, err, n, tt.want, tt.calls)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	pause := time.Millisecond
	_, err := until(ctx, waiting{time.Minute}, "x", func(context.Context) (int, bool, error) { cancel(); return 0, false, busy }, &pause)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
