package story

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// configText is the config of the story: two organizations, each with routes of its
// own. acmeRoutes is how many acme has beside the one that changes.
const acmeRoutes = 40

func configText() string {
	var b strings.Builder
	b.WriteString(`kind: organization
name: acme
---
kind: organization
name: globex
---
kind: peer
name: store-a
organization: acme
member: data/node-a
addresses: ["127.0.0.1:7001"]
class: active
---
kind: peer
name: store-c
organization: globex
member: data/node-c
addresses: ["127.0.0.1:7003"]
class: active
---
kind: route
name: globex-orders
organization: globex
match: host=orders.globex.example
to: [store-c]
`)
	for i := range acmeRoutes {
		fmt.Fprintf(&b, "---\nkind: route\nname: acme-%02d\norganization: acme\nmatch: host=shop-%02d.acme.example\nto: [store-a]\npriority: %d\n", i, i, i)
	}
	return b.String() + routeText(100)
}

// routeText is the route that changes.
func routeText(priority int) string {
	return fmt.Sprintf("---\nkind: route\nname: acme-shop\norganization: acme\nmatch: host=shop.acme.example\nto: [store-a]\npriority: %d\n", priority)
}

// awaitContent waits until each member uses a content of scope that holds text.
func awaitContent(ctx context.Context, c *cluster.Cluster, scope snapshot.Scope, text string, names ...string) error {
	return c.Await(ctx, fmt.Sprintf("%s of %s to be in use", scope, strings.Join(names, ", ")), func(ctx context.Context) (bool, error) {
		for _, name := range names {
			s, _, err := c.Active(ctx, name, scope)
			if err != nil {
				return false, fmt.Errorf("%s: %w", name, err)
			}
			if !bytes.Contains(s.Content, []byte(text)) {
				return false, fmt.Errorf("%s has another content", name)
			}
		}
		return true, nil
	})
}

// metric returns the value of a member's metric, which is named with its labels; 0
// if it is not there yet.
func metric(ctx context.Context, c *cluster.Cluster, member, name string) (float64, error) {
	at, err := c.MemberMetrics(member)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var v float64
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			_, err := fmt.Sscan(rest, &v)
			return v, err
		}
	}
	return 0, nil
}

func routeChange(ctx context.Context, c *cluster.Cluster) (string, error) {
	if err := c.PutConfig(ctx, configText()); err != nil {
		return "", err
	}
	if err := awaitContent(ctx, c, snapshot.ScopeRoutePolicy, `"priority":100`, "node-a", "node-b"); err != nil {
		return "", err
	}
	if err := awaitContent(ctx, c, snapshot.ScopeRoutePolicy, "globex-orders", "node-c"); err != nil {
		return "", err
	}
	_, before, err := c.Active(ctx, "node-c", snapshot.ScopeRoutePolicy)
	if err != nil {
		return "", err
	}
	if err := c.PutConfig(ctx, routeText(101)); err != nil {
		return "", err
	}
	if err := awaitContent(ctx, c, snapshot.ScopeRoutePolicy, `"priority":101`, "node-a", "node-b"); err != nil {
		return "", err
	}
	_, a, err := c.Active(ctx, "node-a", snapshot.ScopeRoutePolicy)
	if err != nil {
		return "", err
	}
	other, after, err := c.Active(ctx, "node-c", snapshot.ScopeRoutePolicy)
	if err != nil {
		return "", err
	}
	switch {
	case after.GetConfigVersion() != before.GetConfigVersion() || !bytes.Equal(after.GetContentHash(), before.GetContentHash()):
		return "", fmt.Errorf("node-c, which does not serve acme, went from version %d to %d", before.GetConfigVersion(), after.GetConfigVersion())
	case bytes.Contains(other.Content, []byte("acme")):
		return "", errors.New("node-c, which does not serve acme, holds something of it")
	}
	return fmt.Sprintf("node-a and node-b use routes of version %d; node-c stays at %d and has nothing of acme", a.GetConfigVersion(), after.GetConfigVersion()), nil
}

func increment(ctx context.Context, c *cluster.Cluster) (string, error) {
	const count = `fealty_snapshot_received_total{form="patch",scope="route_policy"}`
	before, err := metric(ctx, c, "node-a", count)
	if err != nil {
		return "", err
	}
	if err := c.PutConfig(ctx, routeText(102)); err != nil {
		return "", err
	}
	if err := awaitContent(ctx, c, snapshot.ScopeRoutePolicy, `"priority":102`, "node-a", "node-b"); err != nil {
		return "", err
	}
	after, err := metric(ctx, c, "node-a", count)
	if err != nil {
		return "", err
	}
	if after != before+1 {
		return "", fmt.Errorf("node-a took %g patches of its routes, and one changed", after-before)
	}
	a, _, err := c.Active(ctx, "node-a", snapshot.ScopeRoutePolicy)
	if err != nil {
		return "", err
	}
	// Another coordinator than the one that sent it may see it a moment later.
	err = c.Await(ctx, "what node-a made of the patch to be what each coordinator has", func(ctx context.Context) (bool, error) {
		for _, name := range c.RunningCoordinators() {
			err := c.WithAdminOf(name, func(conn *grpc.ClientConn) error {
				resp, err := fealtyv1.NewSnapshotServiceClient(conn).GetSnapshot(ctx, &fealtyv1.GetSnapshotRequest{Kind: "data", Name: "node-a", Scope: string(snapshot.ScopeRoutePolicy)})
				if err != nil {
					return err
				}
				whole, err := snapshot.Unmarshal(resp.GetSnapshot().GetEnvelope())
				if err == nil && !bytes.Equal(a.Content, whole.Content) {
					err = errors.New("it has something else")
				}
				return err
			})
			if err != nil {
				return false, fmt.Errorf("%s: %w", name, err)
			}
		}
		return true, nil
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("one of %d routes came as a patch; the %d bytes that it led to are those of the whole", acmeRoutes+1, len(a.Content)), nil
}

// scopesInUse is how many scopes a member of the story uses: the trust bundle, what it
// is, and the five of its group.
const scopesInUse = 7

// inUse returns what a member holds, but for what something else took the place of.
func inUse(n *fealtyv1.GetNodeResponse) []*fealtyv1.HeldSnapshot {
	return slices.DeleteFunc(slices.Clone(n.GetHeld()), func(h *fealtyv1.HeldSnapshot) bool { return h.GetFreshness() == "" })
}

// awaitSigner waits until all that the members use is signed by the key alone.
func awaitSigner(ctx context.Context, c *cluster.Cluster, key string, names ...string) error {
	return c.Await(ctx, "all config to be signed by key "+key, func(ctx context.Context) (bool, error) {
		for _, name := range names {
			n, err := c.Node(ctx, name)
			if err != nil {
				return false, err
			}
			counted := 0
			for _, h := range inUse(n) {
				// The config root key signs the bundle.
				if h.GetScope() != string(snapshot.ScopeTrustBundle) && !slices.Equal(h.GetSigners(), []string{key}) {
					return false, fmt.Errorf("%s of %s is signed by %v", h.GetScope(), name, h.GetSigners())
				}
				counted++
			}
			if counted < scopesInUse {
				return false, fmt.Errorf("%s holds %d scopes", name, counted)
			}
		}
		return true, nil
	})
}

func configKeyRotation(ctx context.Context, c *cluster.Cluster) (string, error) {
	old, err := c.SigningKey(ctx)
	if err != nil {
		return "", err
	}
	// Candidates that joined and run nowhere would never confirm.
	if err := removeIdle(ctx, c); err != nil {
		return "", err
	}
	// The members are watched from before the rotation until after it.
	watched := make(chan error, 1)
	watch, stop := context.WithCancel(ctx)
	go func() { watched <- watchHeld(watch, c, "node-a", "node-b", "node-c") }()
	trust, err := c.Rotate(ctx, &fealtyv1.RotateConfigKeyRequest{Reason: "the story rotates it"})
	var now *fealtyv1.TrustConfigKey
	if err == nil {
		if now, err = c.SigningKey(ctx); err == nil {
			err = awaitSigner(ctx, c, now.GetKeyId(), "node-a", "node-b", "node-c")
		}
	}
	stop()
	if err := errors.Join(err, <-watched); err != nil {
		return "", err
	}
	ended := trust.GetLastRotation()
	switch {
	case now.GetKeyId() == old.GetKeyId():
		return "", fmt.Errorf("the rotation ended as %v, and %s still signs", ended, now.GetKeyId())
	case ended.GetEnded() != "confirmed" || len(ended.GetMissing()) > 0:
		return "", fmt.Errorf("the rotation ended before every member had confirmed: %v", ended)
	}
	return fmt.Sprintf("keys %s and %s signed together until every member had confirmed; %s signs alone, and no node lost a scope", old.GetKeyId(), now.GetKeyId(), now.GetKeyId()), nil
}

// removeIdle removes the members that joined and do not run.
func removeIdle(ctx context.Context, c *cluster.Cluster) error {
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	running := c.RunningMembers()
	for _, m := range st.GetMembers() {
		if slices.Contains(running, m.GetName()) {
			continue
		}
		if err := remove(ctx, c, m.GetName()); err != nil {
			return fmt.Errorf("remove %s: %w", m.GetName(), err)
		}
	}
	return nil
}

// watchHeld looks at members until ctx ends, and returns an error if one lost a scope
// that it had, or refused what it was sent.
func watchHeld(ctx context.Context, c *cluster.Cluster, names ...string) error {
	had := make(map[string]int)
	for {
		asked := time.Now()
		for _, name := range names {
			n, err := c.Node(ctx, name)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			case len(inUse(n)) < had[name] || len(n.GetRefusals()) > 0:
				return fmt.Errorf("%s uses %d scopes of %d, and refused %v", name, len(inUse(n)), had[name], n.GetRefusals())
			}
			had[name] = len(inUse(n))
		}
		select {
		case <-time.After(cluster.UntilNext(asked)):
		case <-ctx.Done():
			return nil
		}
	}
}

// forgeRoute signs a newer version of the routes of a member, with one of the thief's.
func forgeRoute(ctx context.Context, c *cluster.Cluster, member string, key crypto.Signer) (*snapshot.Signed, error) {
	s, _, err := c.Active(ctx, member, snapshot.ScopeRoutePolicy)
	if err != nil {
		return nil, err
	}
	claims, err := s.Claims()
	if err != nil {
		return nil, err
	}
	h, r := claims.Header, *claims.Record
	h.Base, h.ConfigVersion, r.Generation = nil, h.ConfigVersion+1000, r.Generation+1000
	h.IssuedAt = c.Now().UTC().Truncate(time.Second)
	r.IssuedAt, r.FreshUntil = h.IssuedAt, h.IssuedAt.Add(time.Hour)
	draft, err := snapshot.Compose(h, &snapshot.RoutePolicy{Routes: []snapshot.Route{{
		Name: "all-to-the-thief", To: []string{"thief"}, Priority: 1 << 20}}})
	if err != nil {
		return nil, err
	}
	return draft.Publish(r, key)
}

func stolenKey(ctx context.Context, c *cluster.Cluster) (string, error) {
	stolen, err := c.SigningKey(ctx)
	if err != nil {
		return "", err
	}
	key, err := c.StealConfigKey(ctx, stolen.GetNumber())
	if err != nil {
		return "", fmt.Errorf("steal the key: %w", err)
	}
	c.Means().Note("", "the key taken from a coordinator's memory; what it signs, verified with a node's files")
	forged, err := forgeRoute(ctx, c, "node-a", key)
	if err != nil {
		return "", fmt.Errorf("forge a snapshot: %w", err)
	}
	verify := func() error {
		now := c.Now()
		look, err := state.ReadTrustView(durable.OS(), c.MemberDir("node-a"), now)
		if err != nil {
			return err
		}
		_, err = snapshot.Verify(forged, look.Trust, look.Marks, now)
		return err
	}
	if err := verify(); err != nil {
		return "", fmt.Errorf("before it is revoked, the stolen key is as good as the owner's: %w", err)
	}
	if _, err := c.Rotate(ctx, &fealtyv1.RotateConfigKeyRequest{Compromised: stolen.GetKeyId(), Reason: "the story says that it was stolen"}); err != nil {
		return "", err
	}
	now, err := c.SigningKey(ctx)
	if err != nil {
		return "", err
	}
	if err := awaitSigner(ctx, c, now.GetKeyId(), "node-a", "node-b", "node-c"); err != nil {
		return "", err
	}
	err = verify()
	rejected, ok := errors.AsType[*snapshot.RejectedError](err)
	if !ok || rejected.Reason != internalsnapshot.ReasonSigner {
		return "", fmt.Errorf("what the stolen key signed: %v, want it refused for its signer", err)
	}
	return fmt.Sprintf("key %s is revoked, %s signs all that is in use; a route of the thief's is refused: %s", stolen.GetKeyId(), now.GetKeyId(), rejected.Detail), nil
}
