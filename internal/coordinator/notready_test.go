package coordinator_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/reseal"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
	"github.com/fealty-io/fealty/test/testlane"
)

// inRecovery says what the methods that answer in recovery mode say there to an empty
// request: a code, or "" for an answer. Every other method of every service says that
// it is in recovery mode.
var inRecovery = map[string]struct{ far, local errcode.Code }{
	// Shows the phase, and why.
	"StatusService.GetStatus": {"", ""},
	// Says that there is a manifest, before it reads anything.
	"ManifestService.FirstSet": {errcode.HistoryInitialized, errcode.HistoryInitialized},
	// Only the owners can open them, and they need them to bring the seed back.
	"ManifestService.GetSeedShares": {errcode.RecoveryMode, ""},
	// It is how owners bring it back.
	"RecoveryService.Recover": {"", errcode.JoinNoBinding},
	// It proves itself and shows the history, and no authority.
	"VerifyService.Verify": {errcode.RequestField, errcode.RequestField},
}

// In recovery mode a coordinator serves its last state to nobody: each method of each
// service says so to whoever may call it at all, but for those that bring it back or
// tell why. That holds for one that never was ready, and for one that was; and each
// method looks for itself, behind an authorizer that knows the caller.
func TestEveryMethodInRecoveryMode(t *testing.T) {
	t.Parallel()
	services, err := authz.Services(coordinator.Services()...)
	coordinatortest.WantOnly(t, "services", err, "")
	for name := range inRecovery {
		service, method, _ := strings.Cut(name, ".")
		if !slices.ContainsFunc(services, func(s protoreflect.ServiceDescriptor) bool {
			return string(s.Name()) == service && s.Methods().ByName(protoreflect.Name(method)) != nil
		}) {
			t.Errorf("there is no method %s", name)
		}
	}
	walk := func(t *testing.T, f *coordinatortest.Fleet, callers []caller, headReads bool) {
		t.Helper()
		before := decided(t, f.Store)
		served := 0
		for _, svc := range services {
			for i := range svc.Methods().Len() {
				m := svc.Methods().Get(i)
				rule := proto.GetExtension(m.Options(), fealtyv1.E_Authorization).(*fealtyv1.Authorization)
				name := fmt.Sprintf("%s.%s", svc.Name(), m.Name())
				exception, answers := inRecovery[name]
				for j, cl := range callers {
					if testlane.Rounds(true, false) && !answers && (i+j)%4 != 0 {
						continue
					}
					local := cl.name == "local"
					want := errcode.RecoveryMode
					switch {
					case cl.noAnswer, cl.past && rule.GetOpen(): // nobody, or the same as before
						continue
					case answers && local:
						want = exception.local
					case answers:
						want = exception.far
					}
					if name == "RecoveryService.Recover" && !local && !headReads {
						want = errcode.HistoryInvalid // there is nothing to bring a share for
					}
					if name == "ManifestService.GetSeedShares" && local && !headReads {
						want = errcode.HistoryInvalid
					}
					err := call(f.Context(), cl.conn, m, rule.GetBind(), cl.bound)
					if may := rule.GetOpen() || local && rule.GetLocal() || cl.kind != "" &&
						slices.Contains(rule.GetKinds(), string(cl.kind)); !may {
						if err == nil || !refusedByAuthz(err) && errcode.Of(err).Code != errcode.RecoveryMode {
							t.Errorf("%s as %s, who may not: %v", name, cl.name, err)
						}
						continue
					}
					got := errcode.Code("")
					if err != nil {
						got = errcode.Of(err).Code
					}
					if cl.kind != "" && !cl.past && !rule.GetOpen() {
						want = errcode.RecoveryMode // it is not known of which cluster an identity is
					}
					if got != want {
						t.Errorf("%s as %s: %q (%v), want %q", name, cl.name, got, err, want)
					}
					if got == "" {
						served++
					}
				}
			}
		}
		if served == 0 {
			t.Error("nothing was served: the walk proves nothing")
		}
		wantExchanges(t, f)
		if after := decided(t, f.Store); after != before {
			t.Errorf("the store was changed in recovery mode:\n%s\nbefore:\n%s", after, before)
		}
	}

	t.Run("never ready", func(t *testing.T) {
		f, _ := coordinatortest.NewOwnedFleet(t, nil)
		coordinatortest.LoseKeeper(f)
		stranger, err := coordinatortest.DialUnproven(f.Addr)
		coordinatortest.WantOnly(t, "dial", err, "")
		defer stranger.Close()
		walk(t, f, []caller{{name: "no client certificate", conn: stranger},
			{name: "local", conn: f.LocalConn()}}, true)
	})
	t.Run("was ready", func(t *testing.T) {
		f, _ := coordinatortest.NewOwnedFleet(t, nil)
		callers := append(callers(f), caller{name: "local", conn: f.LocalConn()})
		// One server more, behind an authorizer that takes every identity of the cluster.
		table, err := authz.NewTable(services...)
		coordinatortest.WantOnly(t, "table", err, "")
		gate, err := authz.New(table, authz.Options{Logger: f.C.Log(),
			ClusterID: func() string { return coordinatortest.Cluster }})
		coordinatortest.WantOnly(t, "gate", err, "")
		server, err := f.C.GrpcServer(gate)
		coordinatortest.WantOnly(t, "server", err, "")
		l, err := net.Listen("tcp", "127.0.0.1:0")
		coordinatortest.WantOnly(t, "listen", err, "")
		done := make(chan error, 1)
		go func() { done <- server.Serve(l) }()
		defer func() { server.Stop(); <-done }()
		behind := make([]caller, 0, len(callers))
		for _, cl := range callers {
			if cl.kind == "" {
				continue
			}
			chain, key := coordinatortest.Certified(f.T, f.State(),
				"spiffe://"+coordinatortest.Cluster+"/"+string(cl.kind)+"/"+cl.bound)
			cert := tls.Certificate{PrivateKey: key}
			for _, c := range chain {
				cert.Certificate = append(cert.Certificate, c.Raw)
			}
			conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
				grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
					Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
				})))
			coordinatortest.WantOnly(t, "dial", err, "")
			defer conn.Close()
			behind = append(behind, caller{name: cl.name + " past the authorizer", conn: conn, kind: cl.kind,
				bound: cl.bound, past: true})
		}
		spoilt := func(e store.Entry) store.Entry {
			if e.Key == history.HeadKey {
				e.Value = []byte("{}")
			}
			return e
		}
		f.Link.Lie(spoilt)
		f.C.Parts().Head.LookAgain()
		f.Await(authority.Recovery)
		walk(t, f, callers, false)
		walk(t, f, behind, false)
		// Everything it held is served again when the store is mended.
		f.Link.Lie(nil)
		f.C.Parts().Head.LookAgain()
		f.Await(authority.Ready)
	})
}

// wantExchanges shows what the methods that answer first go on to say.
func wantExchanges(t *testing.T, f *coordinatortest.Fleet) {
	t.Helper()
	st, err := f.Local().Status.GetStatus(f.Context(), &fealtyv1.GetStatusRequest{})
	coordinatortest.WantOnly(t, "status", err, "")
	if st.GetPhase() != "recovery" || st.GetPhaseReason() == "" || st.GetClusterId() != "" ||
		len(st.GetMembers()) > 0 || len(st.GetRootPin()) > 0 {
		t.Errorf("status says %+v", st)
	}
	_, err = f.Local().Manifest.SetManifest(f.Context(), &fealtyv1.SetManifestRequest{Manifest: f.Manifest("")})
	coordinatortest.WantCode(t, err, errcode.RecoveryMode)

	conn, err := coordinatortest.DialUnproven(f.Addr)
	coordinatortest.WantOnly(t, "dial", err, "")
	defer conn.Close()
	first, err := fealtyv1.NewManifestServiceClient(conn).FirstSet(f.Context())
	coordinatortest.WantOnly(t, "first set", err, "")
	_, err = first.Recv()
	coordinatortest.WantCode(t, err, errcode.HistoryInitialized)

	shown, err := fealtyv1.NewVerifyServiceClient(conn).Verify(f.Context(),
		&fealtyv1.VerifyRequest{Nonce: make([]byte, proof.NonceBytes)})
	coordinatortest.WantOnly(t, "verify", err, "")
	if answer, err := shown.Recv(); err == nil {
		if c := answer.GetClaim(); c.GetReady() || len(c.GetRoot()) > 0 || len(c.GetMeshCa()) > 0 ||
			len(c.GetTransactionKey()) > 0 {
			t.Errorf("it claims authority: %+v", c)
		}
	} else {
		coordinatortest.WantCode(t, err, errcode.HistoryInvalid) // the head does not read
	}
}

// decided is all that a store holds of what calls decide. Writes that a leader makes by
// itself, and those under way when the coordinator left its head, are not.
func decided(t *testing.T, s store.Store) string {
	t.Helper()
	var b strings.Builder
	for _, prefix := range []string{"history/", record.MemberPrefix, admission.TokenPrefix, admission.TokenUsePrefix,
		record.CountPrefix,
		bundle.Prefix, sealed.Prefix, desired.Prefix, "seed/", reseal.Prefix, trust.RolloutPrefix} {
		l, err := s.List(t.Context(), prefix)
		coordinatortest.WantOnly(t, "list", err, "")
		for _, e := range l.Entries {
			fmt.Fprintf(&b, "%s %d\n", e.Key, e.Version)
		}
	}
	return b.String()
}
