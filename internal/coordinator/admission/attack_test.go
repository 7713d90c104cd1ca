package admission_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
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
	err = victim.JoinOver(f.Context(), conn, identity.Data, proof.NewTokenProver(tok))
	coordinatortest.WantCode(t, err, errcode.TokenUnknown)
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
		case errors.Is(errcode.Of(err), errcode.TokenSpent):
			spent++
		default:
			t.Errorf("unexpected: %v", err)
		}
	}
	if admitted != 10 || spent != 40 {
		t.Fatalf("%d admitted and %d spent, want 10 and 40", admitted, spent)
	}
	if n := f.C.Parts().Membership.Roster().Count(identity.Data); n != 10 {
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
	coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(tok)), errcode.TokenSpent)
	if err := n.Join(identity.Data, proof.NewTokenProver(tok)); err != nil {
		t.Fatal(err)
	}
	if got := n.Grant.GetOutcome(); got != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
		t.Fatalf("outcome %v, want ALREADY_MEMBER", got)
	}
	if c := f.C.Parts().Membership.Roster().Count(identity.Data); c != 1 {
		t.Fatalf("%d members, want 1", c)
	}
}

// A writer to the store without the seed can make neither a member nor a token of
// it.
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
			coordinatortest.WantCode(t, tc.call(), errcode.StoreForged)

			// What people are told to do: the record as it was, from a dump, counts again at once.
			now, err := f.Store.Get(ctx, tc.key)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Store.CompareAndSwap(ctx, tc.key, now.Version, e.Value); err != nil {
				t.Fatal(err)
			}
			if err := tc.call(); err != nil {
				t.Errorf("with the record as it was: %v", err)
			}
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
	coordinatortest.WantCode(t, err, errcode.StoreForged)
}

// A conflict that never ends is an answer, not a hang.
func TestEndlessConflictIsReported(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Faults.Fail("join.before-commit", &store.ConflictError{Key: history.HeadKey})
	tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(tok)), errcode.StoreBusy)
}
