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
	"github.com/fealty-io/fealty/identity/identitytest"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
)

func (f *fleet) stranger() grpcConn {
	f.t.Helper()
	conn, err := mesh.DialPinned(f.addr, credential.RootPin(testCluster, f.pin()), mesh.Options{Now: f.clock})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

// Nothing of a stranger's request is waited for: it is refused by its headers, or
// else it could park a request in memory for as long as it likes.
func TestStrangersAreRefusedBeforeTheirRequestIsRead(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	conn := f.stranger()
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
			ctx, cancel := context.WithTimeout(f.ctx(), coordinator.RequestTimeout/2)
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
	_, err := flowcontrol.Receive(ctx, c.Readers(), func() (any, error) { <-t.Context().Done(); return nil, nil })
	if got := c.Word(t.Context(), "/method", err); status.Code(got) != codes.DeadlineExceeded {
		t.Fatalf("told %v", got)
	}
}

func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	ctx := metadata.AppendToOutgoingContext(f.ctx(), "x", strings.Repeat("x", 2*flowcontrol.MaxHeaderBytes))
	_, err := newClients(f.member("node-a").conn()).status.GetStatus(ctx, &fealtyv1.GetStatusRequest{})
	if err == nil || !strings.Contains(err.Error(), "header list size") {
		t.Fatalf("%v, want a refusal of the headers", err)
	}
}

// Each renewal and each rejoin by the last key is a write and a certificate.
func TestCertificatesAreLimitedByMember(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, func(c *coordinator.Config) { c.Rates.PerMember, c.Rates.MemberBurst = 0.01, 4 })
	n, other := f.member("node-a"), f.member("node-b")
	old := *n
	for range 2 { // the first key is an older one then
		if err := n.renew(true); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		wantCode(t, old.renew(false), explain.RenewOlderKey)
	}
	for range 2 { // the older key used up no turn
		if err := n.join(identity.Data, proof.NewSVIDProver(identity.Data, "node-a", n.key)); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, n.renew(true), explain.RateLimited)
	wantCode(t, n.join(identity.Data, proof.NewSVIDProver(identity.Data, "node-a", n.key)), explain.RateLimited)
	if err := other.renew(true); err != nil {
		t.Fatalf("another member: %v", err)
	}
	f.advance(100 * time.Second)
	if err := n.renew(true); err != nil {
		t.Fatalf("after the pause: %v", err)
	}
}

// So is each rejoin by another proof, also of a key that is certified already.
func TestRejoinsByEveryProofAreLimitedByMember(t *testing.T) {
	t.Parallel()
	pki := identitytest.NewPKI(t, "corp", nil)
	f := newFleet(t, func(c *coordinator.Config) { c.Rates.PerMember, c.Rates.MemberBurst = 0.01, 4 })
	if err := f.set(f.manifest(corpEntries(pki))); err != nil {
		t.Fatal(err)
	}
	for name, prover := range map[string]proof.Prover{
		"certificate": corpProver(t, pki, commonName("node-c")),
		"token whose grant was lost": proof.NewTokenProver(f.token(&fealtyv1.CreateTokenRequest{Entry: "pool",
			Name: "node-d"})),
		"certificate of a person": corpProver(t, pki, commonName("alice")),
	} {
		kind := identity.Data
		if name == "certificate of a person" {
			kind = identity.Admin
		}
		n := f.node()
		for i := range 5 { // the first one is no rejoin
			if err := n.join(kind, prover); err != nil {
				t.Fatalf("%s, join %d: %v", name, i, err)
			}
		}
		before := f.catalog()
		wantCode(t, n.join(kind, prover), explain.RateLimited)
		if f.catalog() != before {
			t.Errorf("%s: the catalog changed", name)
		}
	}
}

// Failures and clone alarms fill no log, whoever causes them; all alarms count.
func TestFailuresFillNoLog(t *testing.T) {
	var b bytes.Buffer
	c := unopened(t, slog.New(slog.NewTextHandler(&b, nil)))
	reg := prometheus.NewRegistry()
	c.Rooms().Membership.RegisterMetrics(reg)
	const each = 2 * flowcontrol.LogBurst
	for range each {
		c.Word(t.Context(), "/method", errors.New("broken"))
		c.Rooms().Membership.OlderKey(t.Context(), identity.Data, "a", "detail")
	}
	if n := strings.Count(b.String(), "\n"); n < flowcontrol.LogBurst || n > 3*flowcontrol.LogBurst/2 {
		t.Errorf("%d lines of %d, want about %d", n, 2*each, flowcontrol.LogBurst)
	}
	if n := counterOf(reg, "fealty_clone_alarms_total"); n != each {
		t.Errorf("%v alarms counted, want %d", n, each)
	}
}
