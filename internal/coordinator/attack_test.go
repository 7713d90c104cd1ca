package coordinator_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
)

// A man in the middle has a session with the candidate and one with the seed,
// and passes everything on. The proof is bound to the candidate's session, so the
// seed refuses it; the same proof over one session is accepted.
func TestRelayedProofIsRefused(t *testing.T) {
	f := coordinatortest.ReadyFleet(t, nil)
	tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "victim"})
	before := f.Catalog()

	// The relay shows the candidate a certificate of its own. A real candidate
	// refuses that one already, by the pin; this one is careless, so that the
	// binding alone has to hold.
	relay := newRelay(t, f)
	victim := f.Node()
	conn, err := grpc.NewClient("passthrough:///"+relay.addr,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true,
			MinVersion: tls.VersionTLS13})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = careless{victim}.join(conn, proof.NewTokenProver(tok))
	coordinatortest.WantCode(t, err, explain.TokenUnknown)
	if !relay.forwarded() {
		t.Fatal("the relay forwarded nothing: the test proves nothing")
	}
	if f.Catalog() != before {
		t.Fatal("the catalog changed")
	}
	// A pinned candidate does not even speak to the relay.
	pinned := f.Node()
	pinned.Dialer.Dialer = func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", relay.addr)
	}
	if err := pinned.Join(identity.Data, proof.NewTokenProver(tok)); err == nil {
		t.Fatal("a pinned candidate spoke to the relay")
	}
	if err := f.Node().Join(identity.Data, proof.NewTokenProver(tok)); err != nil {
		t.Fatalf("the same token over one session: %v", err)
	}
}

// careless is a candidate that does not check whom it talks to.
type careless struct{ *coordinatortest.Node }

func (n careless) join(conn coordinatortest.Conn, prover proof.Prover) error {
	stream, err := fealtyv1.NewAdmissionServiceClient(conn).Join(n.Fleet.Context())
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	p, _ := peer.FromContext(stream.Context())
	binding, err := proof.Binding(p.AuthInfo.(credentials.TLSInfo).State)
	if err != nil {
		return err
	}
	req, err := n.Request(identity.Data, first.GetChallenge().GetNonce(), binding, prover)
	if err != nil {
		return err
	}
	if err := stream.Send(req); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// relay is a man in the middle of Join.
type relay struct {
	fealtyv1.UnimplementedAdmissionServiceServer
	f    *coordinatortest.Fleet
	addr string

	mu    sync.Mutex
	count int // guarded by mu
}

func newRelay(t *testing.T, f *coordinatortest.Fleet) *relay {
	t.Helper()
	key, err := coordinatortest.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{f: f, addr: l.Addr().String()}
	server := grpc.NewServer(grpc.Creds(
		credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
			MinVersion: tls.VersionTLS13})))
	fealtyv1.RegisterAdmissionServiceServer(server, r)
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return r
}

func (r *relay) forwarded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count > 0
}

func (r *relay) Join(victim fealtyv1.AdmissionService_JoinServer) error {
	conn, err := grpc.NewClient("passthrough:///"+r.f.Addr,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true,
			MinVersion: tls.VersionTLS13})))
	if err != nil {
		return err
	}
	defer conn.Close()
	seed, err := fealtyv1.NewAdmissionServiceClient(conn).Join(victim.Context())
	if err != nil {
		return err
	}
	challenge, err := seed.Recv()
	if err != nil {
		return err
	}
	if err := victim.Send(challenge); err != nil {
		return err
	}
	req, err := victim.Recv()
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.count++
	r.mu.Unlock()
	if err := seed.Send(req); err != nil {
		return err
	}
	grant, err := seed.Recv()
	if err != nil {
		return err
	}
	return victim.Send(grant)
}

// What a candidate may not do to its own request: every alteration is refused,
// and the catalog stays as it was.
func TestBadJoinRequests(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("node-a")
	spent := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "spent"})
	if err := f.Node().Join(identity.Data, proof.NewTokenProver(spent)); err != nil {
		t.Fatal(err)
	}
	revoked := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	if _, err := f.Local().Token.RevokeToken(f.Context(), &fealtyv1.RevokeTokenRequest{Id: revoked.ID}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Node().Join(identity.Data,
			proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "small"}))); err != nil {
			t.Fatal(err)
		}
	}
	var recorded *fealtyv1.JoinRequest
	recorder := f.Node()
	recorder.Alter = func(r *fealtyv1.JoinRequest) { recorded = r }
	if err := recorder.Join(identity.Data,
		proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 3}))); err != nil {
		t.Fatal(err)
	}
	before := f.Catalog()

	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr := func(template *x509.CertificateRequest, key any) func(*fealtyv1.JoinRequest) {
		der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
		if err != nil {
			t.Fatal(err)
		}
		return func(r *fealtyv1.JoinRequest) { r.Csr = der }
	}
	cases := []struct {
		name  string
		token *proof.JoinToken // nil: a fresh one
		kind  identity.Kind
		alter func(*fealtyv1.JoinRequest)
		want  explain.Code
	}{
		{name: "no proof", alter: func(r *fealtyv1.JoinRequest) { r.Proof = nil }, want: explain.ProofUnknownType},
		{name: "larger than a message of strangers may be",
			alter: func(r *fealtyv1.JoinRequest) { r.Member = strings.Repeat("x", coordinator.MaxStrangerBytes) },
			want:  explain.MessageTooLarge},
		{name: "unknown type of proof", alter: func(r *fealtyv1.JoinRequest) { r.Proof.Type = "telepathy" },
			want: explain.ProofUnknownType},
		{name: "forged signature", alter: func(r *fealtyv1.JoinRequest) { r.Proof.Evidence[0] ^= 1 },
			want: explain.TokenUnknown},
		{name: "unknown token", alter: func(r *fealtyv1.JoinRequest) { r.Proof.Claim = strings.Repeat("a", 16) },
			want: explain.TokenUnknown},
		{name: "token id that is a path", alter: func(r *fealtyv1.JoinRequest) { r.Proof.Claim = "../trust/state" },
			want: explain.TokenUnknown},
		{name: "token proof sold as a key", alter: func(r *fealtyv1.JoinRequest) { r.Proof.Type = "key" },
			want: explain.JoinUnauthorized},
		{name: "replayed request",
			alter: func(r *fealtyv1.JoinRequest) { r.Proof, r.Csr = recorded.Proof, recorded.Csr },
			want:  explain.TokenUnknown},
		{name: "spent token, another key", token: &spent, want: explain.TokenSpent},
		{name: "revoked token", token: &revoked, want: explain.TokenRevoked},
		{name: "wrong cluster", alter: func(r *fealtyv1.JoinRequest) { r.ClusterId = "other.example" },
			want: explain.JoinWrongCluster},
		{name: "empty cluster", alter: func(r *fealtyv1.JoinRequest) { r.ClusterId = "" },
			want: explain.JoinWrongCluster},
		{name: "wrong kind", kind: identity.Shard, want: explain.JoinKindMismatch},
		{name: "kind coordinator", kind: identity.Coordinator, want: explain.JoinKindMismatch},
		{name: "kind workload", kind: identity.Workload, want: explain.JoinKindMismatch},
		{name: "no kind", kind: "-", want: explain.JoinKindMismatch},
		{name: "no CSR", alter: func(r *fealtyv1.JoinRequest) { r.Csr = nil }, want: explain.JoinBadCSR},
		{name: "garbage CSR", alter: func(r *fealtyv1.JoinRequest) { r.Csr = []byte("garbage") },
			want: explain.JoinBadCSR},
		{name: "somebody else's CSR", alter: csr(&x509.CertificateRequest{}, p384), want: explain.TokenUnknown},
		{name: "oversized CSR", alter: func(r *fealtyv1.JoinRequest) { r.Csr = make([]byte, 9<<10) },
			want: explain.JoinBadCSR},
		{name: "RSA key", alter: csr(&x509.CertificateRequest{}, rsaKey), want: explain.TokenUnknown},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			tok := tc.token
			if tok == nil {
				fresh := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
				tok = &fresh
			}
			kind := tc.kind
			switch kind {
			case "":
				kind = identity.Data
			case "-":
				kind = ""
			}
			n := f.Node()
			n.Alter = tc.alter
			coordinatortest.WantCode(t, n.Join(kind, proof.NewTokenProver(*tok)), tc.want)
			if got := f.Catalog(); got != before {
				t.Fatalf("the catalog changed:\n%s", got)
			}
		})
	}

	// A CSR over the candidate's own key, whose proof is good, with names in it.
	for _, tc := range []struct {
		name     string
		template *x509.CertificateRequest
	}{
		{"foreign DNS name", &x509.CertificateRequest{DNSNames: []string{"bank.example"}}},
		{"own subject", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "root"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := f.Node()
			n.Alter = csr(tc.template, n.Key)
			tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
			coordinatortest.WantCode(t, n.Join(identity.Data, proof.NewTokenProver(tok)), explain.JoinBadCSR)
			if f.Catalog() != before {
				t.Fatal("the catalog changed")
			}
		})
	}
	t.Run("entry full", func(t *testing.T) {
		tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "small"})
		coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(tok)), explain.JoinEntryFull)
	})
	t.Run("name taken", func(t *testing.T) {
		tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "node-a"})
		coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(tok)), explain.JoinNameTaken)
	})
	t.Run("expired token", func(t *testing.T) {
		tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Ttl: durationpb.New(time.Minute)})
		f.Advance(time.Minute + time.Second)
		coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(tok)), explain.TokenExpired)
	})
	t.Run("oversized message", func(t *testing.T) {
		n := f.Node()
		n.Alter = func(r *fealtyv1.JoinRequest) { r.Proof.Evidence = make([]byte, 2<<20) }
		err := n.Join(identity.Data, proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})))
		coordinatortest.WantCode(t, err, explain.MessageTooLarge)
	})
	if f.Catalog() != before {
		t.Fatal("the catalog changed")
	}
}

// 100 candidates race with one token of 10 uses: exactly 10 are admitted, and the
// others are told that it is spent.
func TestConcurrentJoinsUseATokenUp(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 10})
	errs := make(chan error, 50)
	for range cap(errs) {
		n := f.Node()
		go func() {
			for {
				err := n.Join(identity.Data, proof.NewTokenProver(tok))
				if status.Code(err) == codes.Unavailable {
					continue // not reached in time, as on a busy machine: an agent tries again
				}
				errs <- err
				return
			}
		}()
	}
	admitted, spent := 0, 0
	for range cap(errs) {
		switch err := <-errs; {
		case err == nil:
			admitted++
		case errors.Is(explain.Of(err), explain.TokenSpent):
			spent++
		default:
			t.Errorf("unexpected: %v", err)
		}
	}
	if admitted != 10 || spent != 40 {
		t.Fatalf("%d admitted and %d spent, want 10 and 40", admitted, spent)
	}
	if n := f.C.Rooms().Membership.Roster().Count(identity.Data); n != 10 {
		t.Fatalf("%d members, want 10", n)
	}
}

// A grant that was lost: the same key with the same one-use token is the same
// member, and uses nothing up; another key gets nothing.
func TestLostGrantIsAskedForAgain(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	n := f.Node()
	f.Faults.FailNext("join.after-commit", 1, errors.New("the answer is lost"))
	if err := n.Join(identity.Data, proof.NewTokenProver(tok)); err == nil {
		t.Fatal("the answer was not lost")
	}
	coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(tok)), explain.TokenSpent)
	if err := n.Join(identity.Data, proof.NewTokenProver(tok)); err != nil {
		t.Fatal(err)
	}
	if got := n.Grant.GetOutcome(); got != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
		t.Fatalf("outcome %v, want ALREADY_MEMBER", got)
	}
	if c := f.C.Rooms().Membership.Roster().Count(identity.Data); c != 1 {
		t.Fatalf("%d members, want 1", c)
	}
}

// Two people set a manifest for the same head: one wins, and the other is shown
// the new head.
func TestConcurrentSetsHaveOneWinner(t *testing.T) {
	f := coordinatortest.ReadyFleet(t, nil)
	head := f.C.Rooms().Head.State().Head
	errs := make(chan error, 2)
	for i := range cap(errs) {
		req := &fealtyv1.SetManifestRequest{Manifest: f.Manifest(fmt.Sprintf("  - {name: extra-%d, kind: data, match: "+
			"[\"token:extra-%d\"]}\n", i, i))}
		f.Sign(req, head.Hash)
		client := f.Local().Manifest
		go func() {
			_, err := client.SetManifest(f.Context(), req)
			errs <- err
		}()
	}
	won := 0
	for range cap(errs) {
		if err := <-errs; err == nil {
			won++
		} else {
			coordinatortest.WantCode(t, err, explain.ManifestStale)
		}
	}
	if won != 1 {
		t.Fatalf("%d sets won, want 1", won)
	}
	if got := f.C.Rooms().Head.State().Head; got.Index != head.Index+1 || got.Previous != head.Hash {
		t.Fatalf("the head is index %d after %v, want the child of %v", got.Index, got.Previous, head.Hash)
	}
}

func TestBadSets(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	head := f.C.Rooms().Head.State().Head
	_, foreign, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	foreignKey, err := manifest.NewKey(foreign.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	good := f.Manifest("  - {name: extra, kind: data, match: [\"token:extra\"]}\n")
	signed := func(change func(*fealtyv1.SetManifestRequest)) *fealtyv1.SetManifestRequest {
		req := &fealtyv1.SetManifestRequest{Manifest: good}
		f.Sign(req, head.Hash)
		change(req)
		return req
	}
	for _, tc := range []struct {
		name string
		req  *fealtyv1.SetManifestRequest
		want explain.Code
	}{
		{"malformed", signed(func(r *fealtyv1.SetManifestRequest) { r.Manifest = []byte("cluster: [") }),
			explain.ManifestInvalid},
		{"contradictory", signed(func(r *fealtyv1.SetManifestRequest) {
			r.Manifest = append(r.Manifest, []byte("  - {name: pool, kind: witness, match: [\"token:pool\"]}\n")...)
		}), explain.ManifestInvalid},
		{"unsigned", signed(func(r *fealtyv1.SetManifestRequest) { r.Signatures = nil }), explain.ManifestUnsigned},
		{"signature over another manifest",
			signed(func(r *fealtyv1.SetManifestRequest) {
				r.Manifest = append(r.Manifest,
					'\n')
			}), explain.ManifestMissigned},
		{"flipped signature", signed(func(r *fealtyv1.SetManifestRequest) { r.Signatures[0].Signature[3] ^= 1 }),
			explain.ManifestMissigned},
		{"foreign signer", signed(func(r *fealtyv1.SetManifestRequest) {
			r.Signatures = []*fealtyv1.ManifestSignature{{Key: foreignKey.String(),
				Signature: ed25519.Sign(foreign, make([]byte, 10))}}
		}), explain.SignatureForeign},
		{"for an older head", signed(func(r *fealtyv1.SetManifestRequest) { r.CurrentTransition = make([]byte, 32) }),
			explain.ManifestStale},
		{"a first set again", signed(func(r *fealtyv1.SetManifestRequest) { r.CurrentTransition = nil }),
			explain.HistoryInitialized},
		{"without this coordinator", signed(func(r *fealtyv1.SetManifestRequest) {
			r.Manifest = []byte(strings.Replace(string(r.Manifest), f.C.Rooms().Self.EnrolmentKey(),
				foreignKey.String(),
				1))
		}), explain.ManifestLeavesOut},
		{"another cluster", signed(func(r *fealtyv1.SetManifestRequest) {
			r.Manifest = []byte(strings.Replace(string(r.Manifest), coordinatortest.Cluster, "other.example", 1))
		}), explain.RequestField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := f.Local().Manifest.SetManifest(f.Context(), tc.req)
			coordinatortest.WantCode(t, err, tc.want)
			if got := f.C.Rooms().Head.State().Head.Hash; got != head.Hash {
				t.Fatal("the head moved")
			}
		})
	}
	t.Run("replayed onto the next head", func(t *testing.T) {
		req := signed(func(*fealtyv1.SetManifestRequest) {})
		if _, err := f.Local().Manifest.SetManifest(f.Context(), req); err != nil {
			t.Fatal(err)
		}
		now := f.C.Rooms().Head.State().Head.Hash
		req.CurrentTransition = now[:]
		_, err := f.Local().Manifest.SetManifest(f.Context(), req)
		coordinatortest.WantCode(t, err, explain.ManifestMissigned)
	})
}

// A member that is banned while its stream is open: the stream ends with the
// reason, its connection is closed, and neither a new connection nor a TLS ticket
// brings it back.
func TestBanEndsOpenConnections(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	before := n.Bundle()
	cert := tls.Certificate{PrivateKey: n.Key}
	for _, c := range n.Chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	tickets := tls.NewLRUClientSessionCache(8)
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
		ClientSessionCache: tickets}
	conn, err := grpc.NewClient("passthrough:///"+f.Addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := coordinatortest.NewClients(conn).Agent.Connect(f.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "node-a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // node_bootstrap
		t.Fatal(err)
	}
	ban, err := f.Local().Member.BanMember(f.Context(),
		&fealtyv1.BanMemberRequest{Kind: "data", Name: "node-a", Reason: "stolen"})
	if err != nil {
		t.Fatal(err)
	}
	if ban.GetConnectionsClosed() == 0 {
		t.Error("the ban says that it closed no connection")
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if c := status.Code(err); c != codes.PermissionDenied && c != codes.Unavailable {
		t.Fatalf("the stream ended with %v, want PermissionDenied or a closed connection", err)
	}
	raw, err := tls.Dial("tcp", f.Addr, &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true,
		MinVersion: tls.VersionTLS13, ClientSessionCache: tickets, NextProtos: []string{"h2"}})
	if err == nil {
		if raw.ConnectionState().DidResume {
			t.Error("a ticket was accepted")
		}
		// In TLS 1.3 a refused client learns of it on its first read.
		if _, err = raw.Read(make([]byte, 1)); err == nil {
			t.Fatal("a banned member was connected again")
		}
		raw.Close()
	}
	n.Believes = before
	if err := n.Renew(false); err == nil {
		t.Fatal("a banned member was renewed")
	}
}

// Whoever writes the store, and has no seed, can make neither a member nor a
// token of it.
func TestForgedRecordsAreRefused(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 2})
	ctx := f.Context()
	for _, tc := range []struct {
		name, key string
		call      func() error
	}{
		{"token", admission.TokenKey(tok.ID),
			func() error { return f.Node().Join(identity.Data, proof.NewTokenProver(tok)) }},
		{"member", record.MemberKey(identity.Data, "node-a"), func() error { return n.Renew(false) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := f.Store.Get(ctx, tc.key)
			if err != nil {
				t.Fatal(err)
			}
			altered := append([]byte(nil), e.Value...)
			altered[len(altered)-1] ^= 1
			if _, err := f.Store.CompareAndSwap(ctx, tc.key, e.Version, altered); err != nil {
				t.Fatal(err)
			}
			coordinatortest.WantCode(t, tc.call(), explain.StoreForged)
		})
	}
	// A record moved to another key.
	e, err := f.Store.Get(ctx, admission.TokenKey(tok.ID))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Store.CompareAndSwap(ctx, admission.TokenKey(strings.Repeat("b", 16)), 0, e.Value); err != nil {
		t.Fatal(err)
	}
	_, err = f.Local().Token.GetToken(ctx, &fealtyv1.GetTokenRequest{Id: strings.Repeat("b", 16)})
	coordinatortest.WantCode(t, err, explain.StoreForged)
}

// A set whose answer was lost between the swap and its adoption: the loop that
// follows the head brings the coordinator to it, with the key that was sealed.
func TestSetThatDiedAfterTheSwap(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	f.Faults.FailNext("set.after-swap", 1, errors.New("crash"))
	// A new coordinator entry moves authority, and with it the mesh CA key.
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := manifest.NewKey(other.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Set(f.Manifest(fmt.Sprintf("  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
		key))); err == nil {
		t.Fatal("the set did not die")
	}
	f.C.Rooms().Moves.Succession.Look(f.Context())
	s := f.C.Rooms().Head.State()
	if s.Phase != authority.Ready || s.Head.Index != 2 || s.Head.AuthorityEpoch != 2 {
		t.Fatalf("phase %v, index %d, epoch %d; want ready, 2, 2 (%s)", s.Phase, s.Head.Index, s.Head.AuthorityEpoch,
			s.Reason)
	}
	if err := n.Renew(true); err != nil {
		t.Fatalf("an SVID of the epoch before does not renew: %v", err)
	}
	if got := identity.KeyOf(n.Chain[1]); got != s.MeshKey {
		t.Fatal("the renewed SVID is not signed by the new mesh CA")
	}
}

// A conflict that never ends is an answer, not a hang.
func TestEndlessConflictIsReported(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Faults.Fail("join.before-commit", &store.ConflictError{Key: history.HeadKey})
	tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(tok)), explain.StoreBusy)
}
