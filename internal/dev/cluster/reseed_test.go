package cluster

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// reseed gives the cluster a new seed, and returns the key of its root.
func (c *Cluster) reseed(ctx context.Context) (root identity.KeyID, err error) {
	err = c.WithAdmin(func(conn *grpc.ClientConn) error {
		client := fealtyv1.NewReseedServiceClient(conn)
		p, err := client.PrepareReseed(ctx, &fealtyv1.PrepareReseedRequest{})
		if err != nil {
			return err
		}
		key, err := manifest.NewKey(c.signer.Public().(ed25519.PublicKey))
		if err != nil {
			return err
		}
		done, err := client.CommitReseed(ctx, &fealtyv1.CommitReseedRequest{
			Change: p.GetChange(), Reason: "test",
			Signatures: []*fealtyv1.ManifestSignature{{Key: key.String(), Signature: ed25519.Sign(c.signer, snapshot.PAE(snapshot.TypeRootChange, c.ID(), p.GetChange()))}},
		})
		copy(root[:], done.GetRootKey())
		return err
	})
	return root, err
}

// awaitRoot waits until a member presents a certificate under the root.
func (c *Cluster) awaitRoot(ctx context.Context, name string, root identity.KeyID) error {
	return c.Await(ctx, name+" to come under the new root", func(ctx context.Context) (bool, error) {
		c.mu.Lock()
		p := c.members[name]
		c.mu.Unlock()
		m, err := p.agent.Source().Current(ctx)
		if err != nil {
			return false, err
		}
		chain := m.Chain()
		if len(chain) != 3 {
			return false, fmt.Errorf("%s presents %d certificates", name, len(chain))
		}
		if got := identity.KeyOf(chain[2]); got != root {
			return false, fmt.Errorf("%s is under root %s", name, got)
		}
		return true, nil
	})
}

// A reseed takes a running cluster to another root: members that are connected
// follow without being cut off, those that were away follow when they come back,
// however many changes they missed, and what they have on disk then is whole.
func TestReseed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := Start(ctx, Options{Release: "test", Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.AwaitConnected(ctx, "node-a", "node-b", "node-c"))
	must(c.StopMember("node-c"))
	root, err := c.reseed(ctx)
	must(err)
	for _, name := range []string{"node-a", "node-b"} {
		must(c.awaitRoot(ctx, name, root))
	}
	must(c.AwaitConnected(ctx, "node-a", "node-b"))
	// One that was away finds its way, and so does one that starts from its disk.
	must(c.RunMember(ctx, "node-c"))
	must(c.awaitRoot(ctx, "node-c", root))
	must(c.AwaitConnected(ctx, "node-c"))
	must(c.StopMember("node-a"))
	must(c.RunMember(ctx, "node-a"))
	must(c.awaitRoot(ctx, "node-a", root))
	must(c.AwaitConnected(ctx, "node-a"))
	// It was stopped as soon as it knew the root, maybe before it was sent what the keys
	// under that signed: then it refuses what is on its disk, until it is.
	wait.UntilNil(t, "node-a holds all", func() error {
		n, err := c.Node(ctx, "node-a")
		must(err)
		if len(n.GetRefusals()) > 0 || len(n.GetHeld()) <= 2 {
			return fmt.Errorf("it holds %v, and refused %v", n.GetHeld(), n.GetRefusals())
		}
		return nil
	})

	// Two more, and a coordinator that started anew, while one is away.
	must(c.StopMember("node-b"))
	_, err = c.reseed(ctx)
	must(err)
	root, err = c.reseed(ctx)
	must(err)
	must(c.StopCoordinators())
	must(c.StartCoordinators(ctx))
	for _, name := range []string{"node-a", "node-c"} {
		must(c.awaitRoot(ctx, name, root))
	}
	must(c.RunMember(ctx, "node-b"))
	must(c.awaitRoot(ctx, "node-b", root))
	must(c.AwaitConnected(ctx, "node-a", "node-b", "node-c"))
	st, err := c.Status(ctx)
	must(err)
	if st.GetSeedEpoch() != 4 || identity.KeyID(st.GetRootPin()) != root {
		t.Errorf("seed epoch %d under root %x, want 4 under %s", st.GetSeedEpoch(), st.GetRootPin(), root)
	}

	// New members join under the new root.
	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: PoolEntry, Name: "node-d"})
	must(err)
	if tok.Pin != root {
		t.Errorf("a token pins %s, want %s", tok.Pin, root)
	}
	candidate, err := c.Candidate(ctx)
	must(err)
	if _, err := candidate.Join(ctx, identity.Data, proof.NewTokenProver(tok)); err != nil {
		t.Error(err)
	}
}
