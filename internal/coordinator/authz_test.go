package coordinator_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
)

// caller is one row of the matrix: how somebody connects, and as whom.
type caller struct {
	name     string
	conn     coordinatortest.Conn
	kind     identity.Kind // empty: nobody
	bound    string        // the name in its certificate
	noAnswer bool          // it does not get as far as a call
	past     bool          // the authorizer of a coordinator that is not ready
}

// callers returns one row for each kind under mTLS, and one for each other way to
// connect.
func callers(f *coordinatortest.Fleet) []caller {
	f.T.Helper()
	const name = "caller"
	var out []caller
	// Plain crypto/tls, because our own client refuses to present such certificates.
	dial := func(chain []*x509.Certificate, key any) coordinatortest.Conn {
		cert := tls.Certificate{PrivateKey: key}
		for _, c := range chain {
			cert.Certificate = append(cert.Certificate, c.Raw)
		}
		conn, err := grpc.NewClient("passthrough:///"+f.Addr,
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
				Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
			})))
		if err != nil {
			f.T.Fatal(err)
		}
		f.T.Cleanup(func() { conn.Close() })
		return conn
	}
	for _, k := range identity.Kinds() {
		chain, key := coordinatortest.Certified(f.T, f.State(), "spiffe://"+coordinatortest.Cluster+"/"+string(k)+"/"+name)
		out = append(out, caller{name: "mTLS " + string(k), conn: dial(chain, key), kind: k, bound: name})
	}
	stranger, err := mesh.DialPinned(f.Addr, pinned.Root(coordinatortest.Cluster, f.Pin()),
		mesh.Options{Now: f.Clock})
	if err != nil {
		f.T.Fatal(err)
	}
	plain, err := grpc.NewClient("passthrough:///"+f.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() { stranger.Close(); plain.Close() })
	two, twoKey := coordinatortest.Certified(f.T, f.State(), "spiffe://"+coordinatortest.Cluster+"/admin/"+name,
		"spiffe://"+coordinatortest.Cluster+"/data/"+name)
	zero, zeroKey := coordinatortest.Certified(f.T, f.State())
	foreign, foreignKey := coordinatortest.Certified(f.T, f.State(), "spiffe://other.example/admin/"+name)
	// A whole other cluster, whose coordinator happens to trust ours.
	other := pkitest.NewAuthority(f.T, "other.example")
	otherID, err := identity.New("other.example", identity.Admin, name)
	if err != nil {
		f.T.Fatal(err)
	}
	otherChain, otherKey := other.Issue(f.T, otherID)
	return append(out,
		caller{name: "no client certificate", conn: stranger},
		caller{name: "plaintext", conn: plain, noAnswer: true},
		caller{name: "two identities", conn: dial(two, twoKey)},
		caller{name: "no identity", conn: dial(zero, zeroKey)},
		caller{name: "foreign identity under our CA", conn: dial(foreign, foreignKey)},
		caller{name: "other cluster", conn: dial(otherChain, otherKey), noAnswer: true},
	)
}

// TestAuthorizationMatrix calls every RPC of a running coordinator as every kind,
// with the right and a wrong name, over every way to connect. The expected rules
// come from the options in the descriptors, not from the code that enforces them.
// No cell is left out: a new RPC or a new kind is a new row by itself.
func TestAuthorizationMatrix(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	services, err := authz.Services(coordinator.Services()...)
	if err != nil {
		t.Fatal(err)
	}
	callers := callers(f)
	cells, passed := 0, 0
	for _, svc := range services {
		for i := range svc.Methods().Len() {
			m := svc.Methods().Get(i)
			rule := proto.GetExtension(m.Options(), fealtyv1.E_Authorization).(*fealtyv1.Authorization)
			for j, cl := range callers {
				for _, name := range coordinatortest.InTurn(i+j, cl.bound, "somebody-else") {
					cells++
					want := rule.GetOpen() || cl.kind != "" && slices.Contains(rule.GetKinds(), string(cl.kind)) &&
						(rule.GetBind() == "" || name == cl.bound)
					err := call(f.Context(), cl.conn, m, rule.GetBind(), name)
					refused := refusedByAuthz(err)
					where := fmt.Sprintf("%s as %s with name %q", m.FullName(), cl.name, name)
					switch {
					case cl.noAnswer && status.Code(err) != codes.Unavailable:
						t.Errorf("%s: %v, want no connection", where, err)
					case cl.noAnswer:
					case want && refused:
						t.Errorf("%s: refused (%v), want it served", where, err)
					case !want && !refused:
						t.Errorf("%s: served (%v), want it refused", where, err)
					case want:
						passed++
					}
				}
			}
		}
	}
	if want := 0; passed == want {
		t.Fatal("no cell was served: the matrix proves nothing")
	}
	// A method that no service has is refused by the same gate, and so logged and
	// counted.
	for _, cl := range callers {
		err := cl.conn.Invoke(f.Context(), "/fealty.v1.TokenService/GiveMeEverything", &fealtyv1.GetStatusRequest{},
			&fealtyv1.GetStatusResponse{})
		if !cl.noAnswer && !refusedByAuthz(err) {
			t.Errorf("an unknown method as %s: %v, want a refusal of the authorizer", cl.name, err)
		}
	}
	t.Logf("%d cells, %d served", cells, passed)
}

// A coordinator that serves a method of which nobody said who may call it does not
// serve at all (I3).
func TestServesNothingUndeclared(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	services, err := authz.Services(coordinator.Services()[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	table, err := authz.NewTable(services...)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := authz.New(table, authz.Options{ClusterID: func() string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.C.GrpcServer(gate); !errors.Is(err, authz.ErrTable) ||
		!strings.Contains(err.Error(), coordinator.Services()[0]) {
		t.Errorf("%v, want a refusal that names a method of %s", err, coordinator.Services()[0])
	}
}

// refusedByAuthz tells a refusal of the caller from a failure of what it asked.
func refusedByAuthz(err error) bool {
	return err != nil && strings.HasPrefix(string(errcode.Of(err).Code), "FE-A")
}

// call invokes any RPC with an empty request in which field is name.
func call(ctx context.Context, conn coordinatortest.Conn, m protoreflect.MethodDescriptor, field, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, resp := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
	if field != "" {
		req.Set(m.Input().Fields().ByName(protoreflect.Name(field)), protoreflect.ValueOfString(name))
	}
	method := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingClient() && !m.IsStreamingServer() {
		return conn.Invoke(ctx, method, req, resp)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req); err != nil {
		return stream.RecvMsg(resp) // holds the reason
	}
	if !m.IsStreamingClient() {
		if err := stream.CloseSend(); err != nil {
			return err
		}
	}
	return stream.RecvMsg(resp)
}
