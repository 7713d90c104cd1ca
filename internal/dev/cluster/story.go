package cluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/story"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
)

// StepResult is what one step of the story showed.
type StepResult struct {
	Step     string  `json:"step"`
	Expected string  `json:"expected"`
	Seen     string  `json:"seen"`
	How      string  `json:"how"` // what was done in the process in place of what happens to machines
	OK       bool    `json:"ok"`
	Seconds  float64 `json:"seconds"`
}

// step is one thing that the story shows. run returns what was seen; it is as
// expected if err is nil.
type step struct {
	id       string
	expected string
	run      func(ctx context.Context, c *Cluster) (seen string, err error)
}

// Steps returns the ids of the story's steps, in order.
func Steps() []string {
	var ids []string
	for _, s := range storySteps() {
		ids = append(ids, s.id)
	}
	return ids
}

// storyMembers are the members of the story: the last one is banned in it.
func storyMembers() []string { return []string{"node-a", "node-b", "node-c", "node-d"} }

// Story runs every step on the cluster, which [Prepare] made without members,
// and reports each as it ends. It goes on after a step that failed, and returns
// whether all were as expected.
func (c *Cluster) Story(ctx context.Context, report func(StepResult)) bool {
	all := true
	for _, s := range storySteps() {
		started := time.Now()
		c.means.Take() // what was done before is not of this step
		stepCtx, cancel := context.WithTimeout(ctx, stepLimit)
		seen, err := s.run(stepCtx, c)
		cancel()
		r := StepResult{Step: s.id, Expected: s.expected, Seen: seen, How: c.means.Take(), OK: err == nil, Seconds: time.Since(started).Seconds()}
		if err != nil {
			r.Seen = err.Error()
			all = false
		}
		report(r)
	}
	return all
}

// stepLimit bounds one step, which waits several times: each wait has its own bound.
const stepLimit = 4 * awaitLimit

// storySteps are those of the story. Those of programs come while all coordinators are as they were.
func storySteps() []step { return slices.Concat(firstSteps(), shardSteps(), edgeSteps(), laterSteps()) }

func firstSteps() []step {
	return []step{
		{"first-set", "the first manifest creates the cluster: ready, authority epoch 1", storyFirstSet},
		{"join", "members with tokens are ADMITTED, own nothing, and meet the baseline of three", storyJoin},
		{"x509-join", "a member joins by a certificate of the operator's own PKI; one of a foreign CA is refused with " + string(errcode.JoinCertificateForeign), storyX509Join},
		{"rejoin", "a member that comes back is ALREADY_MEMBER, and nothing else changes", storyRejoin},
		{"wrong-cluster", "a join that names another cluster is refused with " + string(errcode.JoinWrongCluster), storyWrongCluster},
		{"stranger", "a stranger with a key of its own is refused with " + string(errcode.JoinUnauthorized), storyStranger},
		{"kind-mismatch", "a token for data does not make a witness: " + string(errcode.JoinKindMismatch), storyKindMismatch},
		{"name-taken", "a token does not take over a name that exists: " + string(errcode.JoinNameTaken), storyNameTaken},
		{"spent-token", "a token of one use does not admit a second machine: " + string(errcode.TokenSpent), storySpentToken},
		{"relay", "a valid proof that is relayed over another TLS session is refused with " + string(errcode.TokenUnknown), storyRelay},
		{"renewal", "a member renews under a new key; same identity, same epoch, its stream stays", storyRenewal},
		{"drain", "a drained member works on, the baseline does without it, undrain brings it back; a drained one can be removed, one at work cannot: " + string(errcode.MemberInContact), storyDrain},
		{"route-change", "a route changes, and the nodes in its scope use it; one of another organization sees nothing", storyRouteChange},
		{"increment", "one route of many comes as a patch, and what it makes is what the whole would be", storyIncrement},
		{"config-key-rotation", "a new config key signs beside the old one until every member confirmed it; no node loses config", storyConfigKeyRotation},
		{"stolen-key", "a stolen config key is revoked, and what it signed is refused", storyStolenKey},
		{"ban", "a banned member's connection ends, and it does not come back", storyBan},
	}
}

func laterSteps() []step {
	return []step{
		{"leader-killed", "the leader is killed; another coordinator leads, in a later term, and what it publishes is used", storyLeaderKilled},
		{"late-write", "what a killed leader had sent arrives late, and fails in the store by name: " + leaderKey, storyLateWrite},
		{"peer-recovery", "a coordinator that lost everything but its enrolment key becomes ready from a peer, without a human and without a keeper", storyPeerRecovery},
		{"mesh-epoch", "under trust: mesh the mesh CA key changes with every set, and with the epoch; members renew by themselves, and no epoch has two keys", storyMeshEpoch},
		{"restore", "the cluster goes back to a backup while its members run: they follow by themselves, every clock is above those of before, a ban that they know of is in force again, tokens are void", storyRestore},
		{"restart", "all coordinators stop and come back as the same cluster at the same epoch, and members return by themselves", storyRestart},
		{"owner-recovery", "all coordinators stop and lose their keeper; two of three shares, brought to different ones, bring all back; a wrong one is refused by its owner's name; members renew by themselves", storyOwnerRecovery},
		{"degraded", "all coordinators stop, and the nodes go on by their snapshots and the policy", storyDegraded},
		{"forbidden-in-degraded", "what is not a node's to decide is refused by name: " + string(errcode.ActionNeedsContact), storyForbidden},
		{"expiry-stops", "when a bound of the policy is over, so is what it bounds: " + string(errcode.ActionBoundOver), storyExpiryStops},
		{"reconnect", "the coordinator comes back; members are fresh again and report their time alone", storyReconnect},
	}
}

func storyFirstSet(ctx context.Context, c *Cluster) (string, error) {
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

func storyJoin(ctx context.Context, c *Cluster) (string, error) {
	for _, name := range storyMembers() {
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
	if err := c.AwaitConnected(ctx, storyMembers()...); err != nil {
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

func storyX509Join(ctx context.Context, c *Cluster) (string, error) {
	own, err := story.NewPKI("operator root")
	if err != nil {
		return "", err
	}
	if err := c.trust(ctx, own); err != nil {
		return "", fmt.Errorf("name the root in the manifest: %w", err)
	}
	paths, err := own.Files(filepath.Join(c.dir, "pki", "rack-a"), "rack-a.racks.example")
	if err != nil {
		return "", err
	}
	joined, err := c.joinByFiles(ctx, "rack-a", paths)
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
	foreign, err := story.NewPKI("operator root")
	if err != nil {
		return "", err
	}
	stolen, err := foreign.Files(filepath.Join(c.dir, "pki", "rack-b"), "rack-b.racks.example")
	if err != nil {
		return "", err
	}
	seen, err := refusal(ctx, c, errcode.JoinCertificateForeign, func() error {
		_, err := c.joinByFiles(ctx, "rack-b", stolen)
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
	members := append(storyMembers(), "rack-a")
	err = c.await(ctx, "members to follow the new manifest", func(ctx context.Context) (bool, error) {
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
func withUnchangedCatalog(ctx context.Context, c *Cluster, f func() (string, error)) (string, error) {
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
func refusal(ctx context.Context, c *Cluster, want errcode.Code, join func() error) (string, error) {
	return withUnchangedCatalog(ctx, c, func() (string, error) {
		err := c.tell(join())
		if err == nil {
			return "", errors.New("it was admitted")
		}
		if got := errcode.Of(err); got.Code != want {
			return "", fmt.Errorf("refused with %s instead of %s: %w", got.Code, want, err)
		}
		return "refused: " + errcode.Of(err).Error(), nil
	})
}

func storyRejoin(ctx context.Context, c *Cluster) (string, error) {
	n, err := c.Candidate(ctx)
	if err != nil {
		return "", err
	}
	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: poolEntry, Name: "node-e"})
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

// strangerKey makes a key that no manifest names.
func strangerKey() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return key, err
}

func storyWrongCluster(ctx context.Context, c *Cluster) (string, error) {
	return refusal(ctx, c, errcode.JoinWrongCluster, func() error {
		n, err := c.Candidate(ctx)
		if err != nil {
			return err
		}
		key, err := strangerKey()
		if err != nil {
			return err
		}
		n.Cluster = "another.example"
		_, err = n.Join(ctx, identity.Data, proof.NewKeyProver(key))
		return err
	})
}

func storyStranger(ctx context.Context, c *Cluster) (string, error) {
	return refusal(ctx, c, errcode.JoinUnauthorized, func() error { return c.Stranger(ctx) })
}

// Stranger tries to join with a key that nobody named, and returns the refusal.
func (c *Cluster) Stranger(ctx context.Context) error {
	n, err := c.Candidate(ctx)
	if err != nil {
		return err
	}
	key, err := strangerKey()
	if err != nil {
		return err
	}
	_, err = n.Join(ctx, identity.Data, proof.NewKeyProver(key))
	return err
}

func storyKindMismatch(ctx context.Context, c *Cluster) (string, error) {
	return refusal(ctx, c, errcode.JoinKindMismatch, func() error {
		return c.joinFresh(ctx, identity.Witness, &fealtyv1.CreateTokenRequest{Entry: poolEntry})
	})
}

func storyNameTaken(ctx context.Context, c *Cluster) (string, error) {
	return refusal(ctx, c, errcode.JoinNameTaken, func() error {
		return c.joinFresh(ctx, identity.Data, &fealtyv1.CreateTokenRequest{Entry: poolEntry, Name: "node-a"})
	})
}

// joinFresh joins a new candidate with a new token.
func (c *Cluster) joinFresh(ctx context.Context, kind identity.Kind, req *fealtyv1.CreateTokenRequest) error {
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

func storySpentToken(ctx context.Context, c *Cluster) (string, error) {
	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: poolEntry, Name: "node-f"})
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

func storyRelay(ctx context.Context, c *Cluster) (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	c.means.Note("", "a relay in this process, between the machine and the coordinator")
	middle := &relay{seed: c.Address()}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13})))
	fealtyv1.RegisterAdmissionServiceServer(server, middle)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // ends with Stop, and is waited for
	defer func() { server.Stop(); <-served }()

	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: poolEntry})
	if err != nil {
		return "", err
	}
	seen, err := refusal(ctx, c, errcode.TokenUnknown, func() error {
		victim, err := c.Candidate(ctx)
		if err != nil {
			return err
		}
		_, err = victim.carelessJoin(ctx, l.Addr().String(), identity.Data, proof.NewTokenProver(tok))
		return err
	})
	if err != nil {
		return "", err
	}
	if middle.forwarded.Load() != 1 {
		return "", fmt.Errorf("the relay passed on %d proofs", middle.forwarded.Load())
	}
	// The proof was good: over one session it admits.
	honest, err := c.Candidate(ctx)
	if err != nil {
		return "", err
	}
	if _, err := honest.Join(ctx, identity.Data, proof.NewTokenProver(tok)); err != nil {
		return "", fmt.Errorf("the same token without the relay: %w", err)
	}
	return seen + "; without the relay the same token admits", nil
}

func storyRenewal(ctx context.Context, c *Cluster) (string, error) {
	before, err := c.Node(ctx, "node-a")
	if err != nil {
		return "", err
	}
	err = c.withNode("node-a", func(n fealtyv1.NodeServiceClient) error {
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

func storyDrain(ctx context.Context, c *Cluster) (string, error) {
	before, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	members := func(f func(fealtyv1.MemberServiceClient) error) error {
		return c.withAdmin(func(conn *grpc.ClientConn) error { return f(fealtyv1.NewMemberServiceClient(conn)) })
	}
	// shows waits until the membership, the baseline and the node itself agree.
	shows := func(state string, counted uint32) error {
		return c.await(ctx, "node-d to be "+state, func(ctx context.Context) (bool, error) {
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
	if err := c.remove(ctx, "node-e"); err != nil {
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
func (c *Cluster) remove(ctx context.Context, name string) error {
	return c.withAdmin(func(conn *grpc.ClientConn) error {
		m := fealtyv1.NewMemberServiceClient(conn)
		if _, err := m.DrainMember(ctx, &fealtyv1.DrainMemberRequest{Kind: "data", Name: name}); err != nil {
			return err
		}
		_, err := m.RemoveMember(ctx, &fealtyv1.RemoveMemberRequest{Kind: "data", Name: name})
		return err
	})
}

func storyBan(ctx context.Context, c *Cluster) (string, error) {
	n, err := c.Node(ctx, "node-d")
	if err != nil {
		return "", err
	}
	connected := c.at(n.GetCoordinator())
	if connected == nil {
		return "", fmt.Errorf("node-d is connected to %q", n.GetCoordinator())
	}
	// Another coordinator than the one that has its connection is told.
	names := slices.DeleteFunc(c.CoordinatorNames(), func(name string) bool { return name == connected.name })
	told, err := c.replica(names[0])
	if err != nil {
		return "", err
	}
	began := time.Now()
	var ban *fealtyv1.BanMemberResponse
	err = withSocket(c.socketOf(told), func(conn *grpc.ClientConn) (err error) {
		ban, err = fealtyv1.NewMemberServiceClient(conn).BanMember(ctx, &fealtyv1.BanMemberRequest{
			Kind: "data", Name: "node-d", Reason: "the story says that it was stolen",
		})
		return err
	})
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(ban.GetEnded(), func(e *fealtyv1.EndedConnections) bool {
		return e.GetCoordinator() == connected.name && e.GetAnswered() && e.GetConnections() > 0
	}) {
		return "", fmt.Errorf("%s does not tell that a connection ended at %s: %v", told.name, connected.name, ban.GetEnded())
	}
	err = c.await(ctx, "node-d to be refused", func(ctx context.Context) (bool, error) {
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
	err = c.withNode("node-d", func(n fealtyv1.NodeServiceClient) error {
		_, err := n.RenewIdentity(ctx, &fealtyv1.RenewIdentityRequest{})
		return err
	})
	if err == nil {
		return "", errors.New("the banned member renewed its identity")
	}
	return fmt.Sprintf("banned at %s, which tells that its connection to %s ended; it noticed after %d ms; renewal refused", told.name, connected.name, took.Milliseconds()), nil
}

func storyRestart(ctx context.Context, c *Cluster) (string, error) {
	before, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	if err := c.StopCoordinators(); err != nil {
		return "", err
	}
	if err := c.StartCoordinators(ctx); err != nil {
		return "", err
	}
	if err := c.AwaitReady(ctx); err != nil {
		return "", err
	}
	after, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	switch {
	case after.GetPhase() != "ready":
		return "", fmt.Errorf("the coordinator is %s: %s", after.GetPhase(), after.GetPhaseReason())
	case after.GetClusterId() != before.GetClusterId() || !bytes.Equal(after.GetRootPin(), before.GetRootPin()):
		return "", fmt.Errorf("it is another cluster: %s", after.GetClusterId())
	case after.GetAuthorityEpoch() != before.GetAuthorityEpoch() || !bytes.Equal(after.GetHead(), before.GetHead()):
		return "", fmt.Errorf("the epoch moved from %d to %d", before.GetAuthorityEpoch(), after.GetAuthorityEpoch())
	case len(after.GetMembers()) != len(before.GetMembers()):
		return "", fmt.Errorf("%d members, before %d", len(after.GetMembers()), len(before.GetMembers()))
	}
	if err := c.AwaitConnected(ctx, "node-a", "node-b", "node-c"); err != nil {
		return "", err
	}
	return fmt.Sprintf("cluster %s, epoch %d, same root and head; three members are back", after.GetClusterId(), after.GetAuthorityEpoch()), nil
}
