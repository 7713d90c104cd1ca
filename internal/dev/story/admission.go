package story

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
)

func firstSet(ctx context.Context, c *cluster.Cluster) (string, error) {
	before, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	if before.GetPhase() != "uninitialized" {
		return "", fmt.Errorf("the coordinator is %s before the first set", before.GetPhase())
	}
	if err := c.SetFirstManifest(ctx); err != nil {
		return "", err
	}
	st, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	if st.GetAuthorityEpoch() != 1 || st.GetHistoryIndex() != 1 {
		return "", fmt.Errorf("epoch %d, index %d", st.GetAuthorityEpoch(), st.GetHistoryIndex())
	}
	return fmt.Sprintf("cluster %s is %s, authority epoch %d", st.GetClusterId(), st.GetPhase(), st.GetAuthorityEpoch()), nil
}

func join(ctx context.Context, c *cluster.Cluster) (string, error) {
	for _, name := range dataMembers() {
		joined, err := c.Join(ctx, name)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if !joined {
			return "", fmt.Errorf("%s was a member already", name)
		}
		if err := c.RunMember(ctx, name); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := c.AwaitConnected(ctx, dataMembers()...); err != nil {
		return "", err
	}
	st, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range st.GetMembers() {
		if len(m.GetDomains()) > 0 {
			return "", fmt.Errorf("%s owns %d domains", m.GetName(), len(m.GetDomains()))
		}
	}
	if !st.GetBaseline().GetMet() {
		return "", fmt.Errorf("the baseline is not met: %d of %d", st.GetBaseline().GetDataMembers(), st.GetBaseline().GetNeeded())
	}
	return fmt.Sprintf("%d members admitted and connected, baseline %d of %d met", len(st.GetMembers()), st.GetBaseline().GetDataMembers(), st.GetBaseline().GetNeeded()), nil
}

func x509Join(ctx context.Context, c *cluster.Cluster) (string, error) {
	own, err := NewPKI("operator root")
	if err != nil {
		return "", err
	}
	if err := c.TrustRoot(ctx, own.RootPEM()); err != nil {
		return "", fmt.Errorf("name the root in the manifest: %w", err)
	}
	paths, err := own.Files(filepath.Join(c.Dir(), "pki", "rack-a"), "rack-a.racks.example")
	if err != nil {
		return "", err
	}
	joined, err := c.JoinByFiles(ctx, "rack-a", paths)
	if err != nil {
		return "", err
	}
	if joined.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED || joined.ID.Name() != "rack-a" {
		return "", fmt.Errorf("%v as %s", joined.Outcome, joined.ID)
	}
	if err := c.RunMember(ctx, "rack-a"); err != nil {
		return "", err
	}
	// A foreign CA may have the very same name.
	foreign, err := NewPKI("operator root")
	if err != nil {
		return "", err
	}
	stolen, err := foreign.Files(filepath.Join(c.Dir(), "pki", "rack-b"), "rack-b.racks.example")
	if err != nil {
		return "", err
	}
	seen, err := refusal(ctx, c, errcode.JoinCertificateForeign, func() error {
		_, err := c.JoinByFiles(ctx, "rack-b", stolen)
		return err
	})
	if err != nil {
		return "", err
	}
	// The new manifest moved the epoch: what follows begins when all know it.
	st, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	members := append(dataMembers(), "rack-a")
	err = c.Await(ctx, "members to follow the new manifest", func(ctx context.Context) (bool, error) {
		for _, name := range members {
			n, err := c.Node(ctx, name)
			if err != nil {
				return false, fmt.Errorf("%s: %w", name, err)
			}
			if n.GetAuthorityEpoch() != st.GetAuthorityEpoch() || !n.GetConnected() {
				return false, fmt.Errorf("%s is at epoch %d, connected %v", name, n.GetAuthorityEpoch(), n.GetConnected())
			}
		}
		return true, nil
	})
	if err != nil {
		return "", err
	}
	if err := c.AwaitConnected(ctx, members...); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s admitted by its certificate, authority epoch %d; the foreign one %s", joined.ID, st.GetAuthorityEpoch(), seen), nil
}

// withUnchangedCatalog runs f and fails if the membership is another one after.
func withUnchangedCatalog(ctx context.Context, c *cluster.Cluster, f func() (string, error)) (string, error) {
	list := func() ([]string, error) {
		st, err := c.Status(ctx)
		if err != nil {
			return nil, err
		}
		var out []string
		for _, m := range st.GetMembers() {
			out = append(out, m.GetSpiffeId()+" "+m.GetState()+" "+m.GetJoinedAt().AsTime().String())
		}
		return out, nil
	}
	before, err := list()
	if err != nil {
		return "", err
	}
	seen, err := f()
	if err != nil {
		return "", err
	}
	after, err := list()
	if err != nil {
		return "", err
	}
	if !slices.Equal(before, after) {
		return "", fmt.Errorf("the catalog changed from %v to %v", before, after)
	}
	return seen, nil
}

// refusal runs a join that must be refused with want, and leave the catalog alone.
func refusal(ctx context.Context, c *cluster.Cluster, want errcode.Code, join func() error) (string, error) {
	return withUnchangedCatalog(ctx, c, func() (string, error) {
		err := c.Tell(join())
		if err == nil {
			return "", errors.New("it was admitted")
		}
		if got := errcode.Of(err); got.Code != want {
			return "", fmt.Errorf("refused with %s instead of %s: %w", got.Code, want, err)
		}
		return "refused: " + errcode.Of(err).Error(), nil
	})
}

func rejoin(ctx context.Context, c *cluster.Cluster) (string, error) {
	n, err := c.Candidate(ctx)
	if err != nil {
		return "", err
	}
	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: cluster.PoolEntry, Name: "node-e"})
	if err != nil {
		return "", err
	}
	first, err := n.Join(ctx, identity.Data, proof.NewTokenProver(tok))
	if err != nil {
		return "", err
	}
	return withUnchangedCatalog(ctx, c, func() (string, error) {
		again, err := n.Join(ctx, identity.Data, proof.NewSVIDProver(identity.Data, "node-e", n.Key))
		if err != nil {
			return "", err
		}
		if first.GetOutcome() != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED || again.GetOutcome() != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
			return "", fmt.Errorf("first %v, then %v", first.GetOutcome(), again.GetOutcome())
		}
		return "first ADMITTED, then ALREADY_MEMBER, the catalog unchanged", nil
	})
}

func wrongCluster(ctx context.Context, c *cluster.Cluster) (string, error) {
	return refusal(ctx, c, errcode.JoinWrongCluster, func() error {
		n, err := c.Candidate(ctx)
		if err != nil {
			return err
		}
		_, key, err := ed25519.GenerateKey(rand.Reader) // which no manifest names
		if err != nil {
			return err
		}
		n.Cluster = "another.example"
		_, err = n.Join(ctx, identity.Data, proof.NewKeyProver(key))
		return err
	})
}

func stranger(ctx context.Context, c *cluster.Cluster) (string, error) {
	return refusal(ctx, c, errcode.JoinUnauthorized, func() error { return c.Stranger(ctx) })
}

func kindMismatch(ctx context.Context, c *cluster.Cluster) (string, error) {
	return refusal(ctx, c, errcode.JoinKindMismatch, func() error {
		return joinFresh(ctx, c, identity.Witness, &fealtyv1.CreateTokenRequest{Entry: cluster.PoolEntry})
	})
}

func nameTaken(ctx context.Context, c *cluster.Cluster) (string, error) {
	return refusal(ctx, c, errcode.JoinNameTaken, func() error {
		return joinFresh(ctx, c, identity.Data, &fealtyv1.CreateTokenRequest{Entry: cluster.PoolEntry, Name: "node-a"})
	})
}

// joinFresh joins a new candidate with a new token.
func joinFresh(ctx context.Context, c *cluster.Cluster, kind identity.Kind, req *fealtyv1.CreateTokenRequest) error {
	tok, err := c.Token(ctx, req)
	if err != nil {
		return err
	}
	n, err := c.Candidate(ctx)
	if err != nil {
		return err
	}
	_, err = n.Join(ctx, kind, proof.NewTokenProver(tok))
	return err
}

func spentToken(ctx context.Context, c *cluster.Cluster) (string, error) {
	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: cluster.PoolEntry, Name: "node-f"})
	if err != nil {
		return "", err
	}
	join := func() error {
		n, err := c.Candidate(ctx)
		if err != nil {
			return err
		}
		_, err = n.Join(ctx, identity.Data, proof.NewTokenProver(tok))
		return err
	}
	if err := join(); err != nil {
		return "", fmt.Errorf("the first use: %w", err)
	}
	return refusal(ctx, c, errcode.TokenSpent, join)
}

func renewal(ctx context.Context, c *cluster.Cluster) (string, error) {
	before, err := c.Node(ctx, "node-a")
	if err != nil {
		return "", err
	}
	err = c.WithNode("node-a", func(n fealtyv1.NodeServiceClient) error {
		_, err := n.RenewIdentity(ctx, &fealtyv1.RenewIdentityRequest{})
		return err
	})
	if err != nil {
		return "", err
	}
	after, err := c.Node(ctx, "node-a")
	if err != nil {
		return "", err
	}
	switch {
	case after.GetKeyId() == before.GetKeyId():
		return "", errors.New("the key is the same")
	case after.GetSpiffeId() != before.GetSpiffeId():
		return "", fmt.Errorf("the identity changed from %s to %s", before.GetSpiffeId(), after.GetSpiffeId())
	case after.GetAuthorityEpoch() != before.GetAuthorityEpoch():
		return "", fmt.Errorf("the epoch moved from %d to %d", before.GetAuthorityEpoch(), after.GetAuthorityEpoch())
	}
	if err := c.AwaitConnected(ctx, "node-a"); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s holds key %.8s after %.8s, epoch %d", after.GetSpiffeId(), after.GetKeyId(), before.GetKeyId(), after.GetAuthorityEpoch()), nil
}

func drain(ctx context.Context, c *cluster.Cluster) (string, error) {
	before, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	members := func(f func(fealtyv1.MemberServiceClient) error) error {
		return c.WithAdmin(func(conn *grpc.ClientConn) error { return f(fealtyv1.NewMemberServiceClient(conn)) })
	}
	// shows waits until the membership, the baseline and the node itself agree.
	shows := func(state string, counted uint32) error {
		return c.Await(ctx, "node-d to be "+state, func(ctx context.Context) (bool, error) {
			st, err := c.Status(ctx)
			if err != nil {
				return false, err
			}
			i := slices.IndexFunc(st.GetMembers(), func(m *fealtyv1.Member) bool { return m.GetName() == "node-d" })
			if i < 0 {
				return false, errors.New("node-d is no member")
			}
			n, err := c.Node(ctx, "node-d")
			if err != nil {
				return false, err
			}
			m, b := st.GetMembers()[i], st.GetBaseline()
			named := slices.Contains(b.GetDraining(), "data/node-d")
			if m.GetState() == state && n.GetMemberState() == state && n.GetConnected() && m.GetLive().GetConnected() && b.GetDataMembers() == counted && named == (state == "draining") {
				return true, nil
			}
			return false, fmt.Errorf("the record says %s, the node %s, connected %v; baseline %v", m.GetState(), n.GetMemberState(), n.GetConnected(), b)
		})
	}
	had := before.GetBaseline().GetDataMembers()
	err = members(func(m fealtyv1.MemberServiceClient) error {
		_, err := m.DrainMember(ctx, &fealtyv1.DrainMemberRequest{Kind: "data", Name: "node-d", Reason: "the story moves it"})
		return err
	})
	if err != nil {
		return "", err
	}
	if err := shows("draining", had-1); err != nil {
		return "", err
	}
	err = members(func(m fealtyv1.MemberServiceClient) error {
		_, err := m.UndrainMember(ctx, &fealtyv1.UndrainMemberRequest{Kind: "data", Name: "node-d"})
		return err
	})
	if err != nil {
		return "", err
	}
	if err := shows("active", had); err != nil {
		return "", err
	}
	seen, err := refusal(ctx, c, errcode.MemberInContact, func() error {
		return members(func(m fealtyv1.MemberServiceClient) error {
			_, err := m.RemoveMember(ctx, &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "node-d"})
			return err
		})
	})
	if err != nil {
		return "", err
	}
	if err := remove(ctx, c, "node-e"); err != nil {
		return "", err
	}
	err = members(func(m fealtyv1.MemberServiceClient) error {
		_, err := m.GetMember(ctx, &fealtyv1.GetMemberRequest{Kind: "data", Name: "node-e"})
		switch {
		case err == nil:
			return errors.New("node-e was removed and is a member")
		case errcode.Of(err).Code != errcode.NotFound:
			return err
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d data members counted, %d while node-d drained, %d after; at work it was %s; node-e was drained and removed", had, had-1, had, seen), nil
}

// remove drains a member that is not at work, and removes it.
func remove(ctx context.Context, c *cluster.Cluster, name string) error {
	return c.WithAdmin(func(conn *grpc.ClientConn) error {
		m := fealtyv1.NewMemberServiceClient(conn)
		if _, err := m.DrainMember(ctx, &fealtyv1.DrainMemberRequest{Kind: "data", Name: name}); err != nil {
			return err
		}
		_, err := m.RemoveMember(ctx, &fealtyv1.RemoveMemberRequest{Kind: "data", Name: name})
		return err
	})
}

func ban(ctx context.Context, c *cluster.Cluster) (string, error) {
	n, err := c.Node(ctx, "node-d")
	if err != nil {
		return "", err
	}
	connected := c.CoordinatorAt(n.GetCoordinator())
	if connected == "" {
		return "", fmt.Errorf("node-d is connected to %q", n.GetCoordinator())
	}
	// Another coordinator than the one that has its connection is told.
	names := slices.DeleteFunc(c.CoordinatorNames(), func(name string) bool { return name == connected })
	told := names[0]
	began := time.Now()
	var ban *fealtyv1.BanMemberResponse
	err = c.WithAdminOf(told, func(conn *grpc.ClientConn) (err error) {
		ban, err = fealtyv1.NewMemberServiceClient(conn).BanMember(ctx, &fealtyv1.BanMemberRequest{
			Kind: "data", Name: "node-d", Reason: "the story says that it was stolen",
		})
		return err
	})
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(ban.GetEnded(), func(e *fealtyv1.EndedConnections) bool {
		return e.GetCoordinator() == connected && e.GetAnswered() && e.GetConnections() > 0
	}) {
		return "", fmt.Errorf("%s does not tell that a connection ended at %s: %v", told, connected, ban.GetEnded())
	}
	err = c.Await(ctx, "node-d to be refused", func(ctx context.Context) (bool, error) {
		n, err := c.Node(ctx, "node-d")
		if err != nil {
			return false, err
		}
		return !n.GetConnected() && n.GetLastError() != "", fmt.Errorf("connected %v, last error %q", n.GetConnected(), n.GetLastError())
	})
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	err = c.WithNode("node-d", func(n fealtyv1.NodeServiceClient) error {
		_, err := n.RenewIdentity(ctx, &fealtyv1.RenewIdentityRequest{})
		return err
	})
	if err == nil {
		return "", errors.New("the banned member renewed its identity")
	}
	return fmt.Sprintf("banned at %s, which tells that its connection to %s ended; it noticed after %d ms; renewal refused", told, connected, took.Milliseconds()), nil
}
