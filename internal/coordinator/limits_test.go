package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// Nothing of a stranger's request is waited for: it is refused by its headers, or
// else it could park a request in memory for as long as it likes.
func TestStrangersAreRefusedBeforeTheirRequestIsRead(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	conn := coordinatortest.Stranger(f)
	services, err := authz.Services(coordinator.Services()...)
	if err != nil {
		t.Fatal(err)
	}
	for _, svc := range services {
		for i := range svc.Methods().Len() {
			m := svc.Methods().Get(i)
			rule := proto.GetExtension(m.Options(), fealtyv1.E_Authorization).(*fealtyv1.Authorization)
			if rule.GetOpen() {
				if !m.IsStreamingClient() && !m.IsStreamingServer() {
					t.Errorf("%s is open, and gRPC reads its requests without a bound on the time", m.FullName())
				}
				continue
			}
			ctx, cancel := context.WithTimeout(f.Context(), coordinator.RequestTimeout/2)
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
				fmt.Sprintf("/%s/%s", svc.FullName(), m.Name()))
			if err == nil {
				err = stream.RecvMsg(dynamicpb.NewMessage(m.Output()))
			}
			cancel()
			if !refusedByAuthz(err) {
				t.Errorf("%s: %v, want a refusal of who calls", m.FullName(), err)
			}
		}
	}
}

func TestRequestsThatNeverEndAreGivenUp(t *testing.T) {
	c := unopened(t, slog.Default())
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := ratelimit.Receive(ctx, c.Readers(), func() (any, error) { <-t.Context().Done(); return nil, nil })
	if got := c.Word(t.Context(), "/method", err); status.Code(got) != codes.DeadlineExceeded {
		t.Fatalf("told %v", got)
	}
}

func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	ctx := metadata.AppendToOutgoingContext(f.Context(), "x", strings.Repeat("x", 2*ratelimit.MaxHeaderBytes))
	_, err := coordinatortest.NewClients(f.Member("node-a").Conn()).Status.GetStatus(ctx, &fealtyv1.GetStatusRequest{})
	if err == nil || !strings.Contains(err.Error(), "header list size") {
		t.Fatalf("%v, want a refusal of the headers", err)
	}
}

// Failures and clone alarms fill no log, whoever causes them; all alarms count.
func TestFailuresFillNoLog(t *testing.T) {
	var b bytes.Buffer
	c := unopened(t, slog.New(slog.NewTextHandler(&b, nil)))
	reg := prometheus.NewRegistry()
	c.Parts().Membership.RegisterMetrics(reg)
	const each = 2 * ratelimit.LogBurst
	for range each {
		c.Word(t.Context(), "/method", errors.New("broken"))
		c.Parts().Membership.OlderKey(t.Context(), identity.Data, "a", "detail")
	}
	if n := strings.Count(b.String(), "\n"); n < ratelimit.LogBurst || n > 3*ratelimit.LogBurst/2 {
		t.Errorf("%d lines of %d, want about %d", n, 2*each, ratelimit.LogBurst)
	}
	if n := coordinatortest.CounterOf(reg, "fealty_clone_alarms_total"); n != each {
		t.Errorf("%v alarms counted, want %d", n, each)
	}
}

// unopened returns a coordinator that opened nothing.
func unopened(t testing.TB, log *slog.Logger) *coordinator.Coordinator {
	t.Helper()
	ephemeral, err := credential.NewEphemeral(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	c, err := coordinator.Assemble(coordinator.Config{Log: log}, coordinatortest.NewTestKey(t), credential.NewIssued(
		ephemeral))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
