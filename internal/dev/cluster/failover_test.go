package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/test/testlane"
)

// started starts a cluster that ends with the test.
func started(t *testing.T, opts Options) *Cluster {
	t.Helper()
	opts.Release, opts.Log = "test", quiet()
	c, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// firstAt orders addresses so that the named coordinator is asked first.
func (c *Cluster) firstAt(t *testing.T, name string) []string {
	t.Helper()
	addr, err := c.AddressOf(name)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat([]string{addr}, slices.DeleteFunc(c.Addresses(), func(a string) bool { return a == addr }))
}

// A join whose answer was lost with its coordinator is resumed at the next one: it is
// the same join, so that a token of one use is not used up by it, and one member comes
// of it.
func TestJoinResumesElsewhere(t *testing.T) {
	ctx := t.Context()
	c := started(t, Options{Members: []string{"node-a"}})
	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: PoolEntry})
	if err != nil {
		t.Fatal(err)
	}
	if len(tok.Addresses) != 3 {
		t.Fatalf("the token leads to %v", tok.Addresses)
	}
	tok.Addresses = c.firstAt(t, "coordinator-2")
	r, err := c.replica("coordinator-2")
	if err != nil {
		t.Fatal(err)
	}
	w := r.run.wire
	// The next commit of a member reaches the store, and its coordinator is cut off before anybody hears of it.
	w.arm(&trap{
		func(tx store.Tx) bool {
			return slices.ContainsFunc(tx.Put, func(p store.Write) bool { return strings.HasPrefix(p.Key, "member/") })
		},
		func(ctx context.Context, tx store.Tx) (store.Revision, error) {
			_, err := w.store.Commit(ctx, tx)
			w.cut()
			return 0, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, errors.Join(errKilled, err))
		},
	})
	joined, err := enroll.Join(ctx, enroll.JoinConfig{DataDir: t.TempDir(), Proof: enroll.ByToken(tok), Kind: identity.Data, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if !r.run.wire.isCut() {
		t.Fatal("no answer was lost: the test shows nothing")
	}
	if err := c.KillCoordinator("coordinator-2"); err != nil {
		t.Fatal(err)
	}
	// The second one finds the candidate's key on record.
	if joined.Coordinator == tok.Addresses[0] || joined.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
		t.Errorf("it joined at %s as %v", joined.Coordinator, joined.Outcome)
	}
	err = c.WithAdmin(func(conn *grpc.ClientConn) error {
		resp, err := fealtyv1.NewTokenServiceClient(conn).GetToken(ctx, &fealtyv1.GetTokenRequest{Id: tok.ID})
		if used := resp.GetToken().GetUsed(); err == nil && used != 1 {
			t.Errorf("the token was used %d times", used)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enroll.Join(ctx, enroll.JoinConfig{DataDir: t.TempDir(), Proof: enroll.ByToken(tok), Kind: identity.Data, Log: quiet()}); !errors.Is(errcode.Of(err), errcode.TokenSpent) {
		t.Errorf("a second machine with the same token: %v", err)
	}
	st, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(st.GetMembers()) != 2 {
		t.Errorf("%d members, want node-a and one more", len(st.GetMembers()))
	}
}

// A coordinator that takes connections and says nothing holds nobody up for long: not
// a join, nor a member that is connected elsewhere, nor one that was connected to it.
func TestBlackHole(t *testing.T) {
	ctx := t.Context()
	c := started(t, Options{Members: []string{"node-a"}})
	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: PoolEntry})
	if err != nil {
		t.Fatal(err)
	}
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close() // what it has in its backlog nobody ever reads
	tok.Addresses = append([]string{hole.Addr().String()}, c.Addresses()...)
	// Whatever a busy machine takes: who waits for an answer of the hole waits for ever.
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if _, err := enroll.Join(ctx, enroll.JoinConfig{DataDir: t.TempDir(), Proof: enroll.ByToken(tok), Kind: identity.Data, Log: quiet()}); err != nil {
		t.Fatal(err)
	}

	// Two of three are lost to node-a, among them the one that it is connected to: with
	// every turn it renews at the third.
	n, err := c.Node(ctx, "node-a")
	if err != nil {
		t.Fatal(err)
	}
	here := c.at(n.GetCoordinator())
	if here == nil {
		t.Fatalf("node-a is connected to %s", n.GetCoordinator())
	}
	left := c.CoordinatorNames()
	left = slices.DeleteFunc(left, func(name string) bool { return name == here.name })
	for _, name := range []string{here.name, left[0]} {
		c.networkOf("node-a").setHole(name, true)
	}
	renew := func() error {
		return c.WithNode("node-a", func(n fealtyv1.NodeServiceClient) error {
			_, err := n.RenewIdentity(ctx, &fealtyv1.RenewIdentityRequest{})
			return err
		})
	}
	if err := renew(); err != nil {
		t.Fatal(err)
	}
}

// A member goes on to another coordinator when its own is killed, stopped, or cannot be
// reached by it, and learns where a coordinator is that moved.
func TestMembersMove(t *testing.T) {
	ctx := t.Context()
	c := started(t, Options{Members: []string{"node-a"}})
	at := func() string {
		t.Helper()
		if err := c.AwaitConnected(ctx, "node-a"); err != nil {
			t.Fatal(err)
		}
		n, err := c.Node(ctx, "node-a")
		if err != nil {
			t.Fatal(err)
		}
		r := c.at(n.GetCoordinator())
		if r == nil {
			t.Fatalf("node-a is at %q", n.GetCoordinator())
		}
		return r.name
	}
	for range testlane.Rounds(1, 3) {
		for _, end := range []func(string) error{c.KillCoordinator, c.StopCoordinator} {
			was := at()
			if err := end(was); err != nil {
				t.Fatal(err)
			}
			err := c.Await(ctx, "node-a to go elsewhere", func(ctx context.Context) (bool, error) {
				n, err := c.Node(ctx, "node-a")
				if err != nil {
					return false, err
				}
				r := c.at(n.GetCoordinator())
				return n.GetConnected() && r != nil && r.name != was, errors.New(n.GetLastError())
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(c.StartCoordinator(ctx, was), c.AwaitReady(ctx)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
