package coordinatortest

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// MoreCoordinators is an entry that moves authority: another epoch, and mesh CA key.
func MoreCoordinators(t testing.TB) string {
	return "  - {name: more, kind: coordinator, match: [\"key:" +
		proof.KeyClaim(NewTestKey(t).Public().(ed25519.PublicKey)) + "\"]}\n"
}

// NewPeerFleet returns a ready coordinator whose seed no keeper holds, and n replicas that
// the manifest admits and that never ran.
func NewPeerFleet(t testing.TB, n int, config func(*coordinator.Config)) (*Fleet,
	[]*Fleet) {
	t.Helper()
	f := NewFleet(t, config)
	for range n {
		NewReplica(t, f)
	}
	f.People = NewPeople(t, "alice", "bob")
	if err := SetPeople(f, ""); err != nil {
		t.Fatal(err)
	}
	AwaitReplica(f, func(r peer.Record) bool { return r.Phase == "ready" })
	return f, f.Replicas
}

// SetPeople sets a manifest whose seed people own alone.
func SetPeople(f *Fleet, extra string) error {
	f.T.Helper()
	first := f
	if f.First != nil {
		first = f.First
	}
	return f.Set(WithSeed(f.Manifest(extra), first.People.Seed(1, "")))
}

// Audited returns the audit entries of these actions, oldest first.
func Audited(f *Fleet, actions ...string) []record.AuditEntry {
	f.T.Helper()
	st := f.Store
	if f.First != nil {
		st = f.First.Store
	}
	return AuditedIn(f.T, st, actions...)
}

// AuditedIn returns the audit entries with these actions in a store, oldest first.
func AuditedIn(t testing.TB, st store.Store, actions ...string) []record.AuditEntry {
	t.Helper()
	l, err := st.List(context.Background(), auditlog.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	var out []record.AuditEntry
	for _, e := range l.Entries {
		var entry record.AuditEntry
		if err := json.Unmarshal(e.Value, &entry); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(actions, entry.Action) {
			out = append(out, entry)
		}
	}
	slices.SortStableFunc(out,
		func(a, b record.AuditEntry) int { return a.At.Compare(b.At) }) // each process has chains of its own
	return out
}

// Candidate returns a move of f to a manifest with more coordinators, signed, that was
// not written.
func Candidate(f *Fleet, extra string, alter func(*history.Transition)) *transition.Move {
	f.T.Helper()
	s := f.State()
	m, err := manifest.Parse(WithSeed(f.Manifest(extra), f.People.Seed(1, "")))
	if err != nil {
		f.T.Fatal(err)
	}
	mv := &transition.Move{From: s, Manifest: m, Secrets: s.Secrets, Root: s.Root, Mesh: s.MeshCA()}
	t, moves := s.Chain.Next(history.KindSet, m)
	t.Reason = "test"
	if moves {
		if err := mv.NewMesh(t, f.Clock()); err != nil {
			f.T.Fatal(err)
		}
	}
	t.Signatures = []history.Signature{{Key: SignerKey(f.T, f.Signer),
		Signature: [64]byte(ed25519.Sign(f.Signer, history.SetStatement(m.Hash(), s.Head.Hash)))}}
	if alter != nil {
		alter(t)
	}
	if err := mv.Seal(t); err != nil {
		f.T.Fatal(err)
	}
	return mv
}

// AwaitReplica waits until the record of r's coordinator is as want says.
func AwaitReplica(f *Fleet, want func(peer.Record) bool) peer.Record {
	f.T.Helper()
	key, err := peer.Key(f.C.Parts().Self.PrivateKey().Public().(ed25519.PublicKey))
	if err != nil {
		f.T.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	st := f.Store
	if f.First != nil {
		st = f.First.Store
	}
	var last peer.Record
	for e, err := range st.Watch(ctx, key) {
		if err != nil {
			f.T.Fatalf("the record did not come: %v; last was %+v", err, last)
		}
		if e.Version == 0 {
			continue
		}
		if last, err = peer.Open(e); err != nil {
			f.T.Fatal(err)
		}
		if want(last) {
			return last
		}
	}
	f.T.Fatalf("the record did not come; last was %+v", last)
	return last
}

// Keys are those in the store of f that begin with prefix.
func Keys(f *Fleet, prefix string) []string {
	f.T.Helper()
	l, err := f.Store.List(context.Background(), prefix)
	if err != nil {
		f.T.Fatal(err)
	}
	var out []string
	for _, e := range l.Entries {
		out = append(out, e.Key)
	}
	return out
}

// ServePeer serves s over TLS of its own, and returns its address.
func ServePeer(t testing.TB, s fealtyv1.PeerServiceServer) string {
	t.Helper()
	return ServeAlone(t, func(to grpc.ServiceRegistrar) { fealtyv1.RegisterPeerServiceServer(to, s) })
}

// ServeAlone serves what register registers until the test ends, over TLS with a certificate that nobody vouches for,
// and returns the address.
func ServeAlone(t testing.TB, register func(grpc.ServiceRegistrar)) string {
	t.Helper()
	material, err := credential.NewEphemeral(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.NewIssued(material)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(guard.Credentials()), grpc.WaitForHandlers(true))
	register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return l.Addr().String()
}

// HideReplicas makes the store tell a coordinator of no other.
func HideReplicas(e store.Entry) store.Entry {
	if strings.HasPrefix(e.Key, peer.Prefix) {
		e.Value = nil
	}
	return e
}

// Loaded returns the history as the store of f has it.
func Loaded(f *Fleet) *history.History {
	f.T.Helper()
	st := f.Store
	if f.First != nil {
		st = f.First.Store
	}
	h, err := history.New(st).Load(context.Background())
	if err != nil {
		f.T.Fatal(err)
	}
	return h
}

// DialUnproven returns a connection to whoever answers at addr, without a certificate. It reads no more than a
// coordinator would.
func DialUnproven(addr string) (*mesh.Conn, error) {
	return mesh.DialPinned("passthrough:///"+addr, pinned.Unproven(), mesh.Options{GRPC: []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(ratelimit.MaxMessageBytes)),
		grpc.WithMaxHeaderListSize(ratelimit.MaxHeaderBytes),
	}})
}

// BlackHoles returns n addresses that take a connection and then swallow all that is
// said, and what is sent on for each connection.
func BlackHoles(t testing.TB, n int) (addrs []string, reached <-chan struct{}) {
	t.Helper()
	seen := make(chan struct{}, 1024)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var conns []net.Conn
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				conns = append(conns, c)
				select {
				case seen <- struct{}{}:
				default:
				}
			}
		})
		t.Cleanup(func() {
			l.Close()
			wg.Wait()
			for _, c := range conns {
				c.Close()
			}
		})
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, seen
}
