package story

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// Times of the story's outage, from its begin on. Records are fresh for 15 minutes,
// and an hour after that a node is degraded; the manifest bounds what it does then.
const (
	outageDegraded = 2 * time.Hour
	outageOver     = cluster.DegradedMax + 10*time.Minute
)

// outageMembers are those that the story watches.
var outageMembers = [...]string{"node-a", "node-b", "node-c"}

// local calls f with a connection to what a member serves to local services.
func local(c *cluster.Cluster, member string, f func(fealtyv1.LocalConfigServiceClient) error) error {
	conn, err := mesh.DialLocal(filepath.Join(c.MemberDir(member), agent.ConfigSocketName))
	if err != nil {
		return err
	}
	defer conn.Close()
	return c.Tell(f(fealtyv1.NewLocalConfigServiceClient(conn)))
}

// permit asks a member's guard as a local service does, and returns the code of its
// refusal; "" if it permits.
func permit(ctx context.Context, c *cluster.Cluster, member string, action guard.Action) (errcode.Code, error) {
	err := local(c, member, func(l fealtyv1.LocalConfigServiceClient) error {
		_, err := l.PermitAction(ctx, &fealtyv1.PermitActionRequest{Action: string(action)})
		return err
	})
	if err == nil {
		return "", nil
	}
	refused := errcode.Of(err)
	if !strings.Contains(refused.Error(), string(action)) {
		return refused.Code, fmt.Errorf("the refusal does not name %s: %w", action, err)
	}
	return refused.Code, nil
}

// wantPermits asks each member's guard for each action, and compares.
func wantPermits(ctx context.Context, c *cluster.Cluster, want map[guard.Action]errcode.Code) error {
	for _, name := range outageMembers {
		for action, code := range want {
			got, err := permit(ctx, c, name, action)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if got != code {
				return fmt.Errorf("%s: %s is answered with %q, want %q", name, action, got, code)
			}
		}
	}
	return nil
}

func degraded(ctx context.Context, c *cluster.Cluster) (string, error) {
	err := c.Await(ctx, "members to be fresh", func(ctx context.Context) (bool, error) { return allAre(ctx, c, snapshot.Fresh) })
	if err != nil {
		return "", err
	}
	if err := c.StopCoordinators(); err != nil {
		return "", err
	}
	// Forbidden actions are forbidden from the moment that nobody can be asked, and all
	// else goes on.
	err = c.Await(ctx, "members to notice", func(ctx context.Context) (bool, error) {
		for _, name := range outageMembers {
			if code, err := permit(ctx, c, name, guard.PromotePartition); err != nil || code != errcode.ActionNeedsContact {
				return false, fmt.Errorf("%s: %q, %w", name, code, err)
			}
		}
		return true, nil
	})
	if err != nil {
		return "", err
	}
	if err := wantPermits(ctx, c, map[guard.Action]errcode.Code{guard.ContinueServices: "", guard.PreserveRoutes: "", guard.AdmitSessions: ""}); err != nil {
		return "", fmt.Errorf("at the begin of the outage: %w", err)
	}
	c.Pass(outageDegraded)
	if ok, err := allAre(ctx, c, snapshot.Degraded); !ok {
		return "", fmt.Errorf("after %v without a coordinator: %w", outageDegraded, err)
	}
	if err := wantPermits(ctx, c, map[guard.Action]errcode.Code{guard.ContinueServices: "", guard.PreserveRoutes: "", guard.ReportLater: ""}); err != nil {
		return "", fmt.Errorf("after %v: %w", outageDegraded, err)
	}
	for _, name := range outageMembers {
		if err := gives(ctx, c, name, snapshot.ScopeRoutePolicy); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("without any coordinator for %v, %s are degraded; their services and routes go on by the policy", outageDegraded, strings.Join(outageMembers[:], ", ")), nil
}

// allAre reports whether each member of the story is in a state.
func allAre(ctx context.Context, c *cluster.Cluster, state snapshot.Freshness) (bool, error) {
	for _, name := range outageMembers {
		n, err := c.Node(ctx, name)
		if err != nil {
			return false, err
		}
		if n.GetFreshness() != string(state) {
			var scopes []string
			for _, h := range n.GetHeld() {
				scopes = append(scopes, h.GetScope()+" "+h.GetFreshness())
			}
			return false, fmt.Errorf("%s is %s: %s; refused %v", name, n.GetFreshness(), strings.Join(scopes, ", "), n.GetRefusals())
		}
	}
	return true, nil
}

// gives fails unless a member gives local services what it has of a scope.
func gives(ctx context.Context, c *cluster.Cluster, member string, scope snapshot.Scope) error {
	return local(c, member, func(l fealtyv1.LocalConfigServiceClient) error {
		resp, err := l.GetScope(ctx, &fealtyv1.GetScopeRequest{Scope: string(scope)})
		if err == nil && len(resp.GetContent().GetContent()) == 0 {
			err = errors.New("nothing is in it")
		}
		if err != nil {
			return fmt.Errorf("%s gives no %s: %w", member, scope, err)
		}
		return nil
	})
}

func forbidden(ctx context.Context, c *cluster.Cluster) (string, error) {
	forbidden := []guard.Action{
		guard.ApproveEnrollment, guard.IssueCertificates, guard.AssignRoles, guard.ChangeClusterPolicy, guard.ChangeOrganizationPolicy,
		guard.RotateTrustRoots, guard.PromotePartition, guard.FetchUnrelatedSecrets, guard.CreateServiceAuthority,
	}
	want := map[guard.Action]errcode.Code{
		// Anything new takes a record that is not this old.
		guard.StartServices: errcode.ActionNeedsContact, guard.ResolveSecrets: errcode.ActionNeedsContact, guard.AdmitSessions: errcode.ActionNeedsContact,
	}
	for _, a := range forbidden {
		want[a] = errcode.ActionNeedsContact
	}
	want["something_unheard_of"] = errcode.ActionUnknown // in contact too: a name with a slip in it is never permitted
	if err := wantPermits(ctx, c, want); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d actions are refused by name with %s, and one that nobody knows with %s", len(want)-1, errcode.ActionNeedsContact,
		errcode.ActionUnknown), nil
}

func expiryStops(ctx context.Context, c *cluster.Cluster) (string, error) {
	c.Pass(cluster.RouteTTL + 10*time.Minute - outageDegraded)
	err := wantPermits(ctx, c, map[guard.Action]errcode.Code{guard.PreserveRoutes: errcode.ActionBoundOver, guard.ContinueServices: ""})
	if err != nil {
		return "", fmt.Errorf("after %v: %w", cluster.RouteTTL, err)
	}
	for _, name := range outageMembers {
		if err := gives(ctx, c, name, snapshot.ScopeRoutePolicy); err == nil {
			return "", fmt.Errorf("%s gives its routes out after their time", name)
		}
	}
	c.Pass(outageOver - cluster.RouteTTL - 10*time.Minute)
	err = wantPermits(ctx, c, map[guard.Action]errcode.Code{
		guard.ContinueServices: errcode.ActionBoundOver, guard.PreserveRoutes: errcode.ActionBoundOver, guard.ReconnectPeers: "", guard.ReportLater: "",
	})
	if err != nil {
		return "", fmt.Errorf("after %v: %w", outageOver, err)
	}
	return fmt.Sprintf("routes end after %v and services after %v; the ways back stay open", cluster.RouteTTL, cluster.DegradedMax), nil
}

func reconnect(ctx context.Context, c *cluster.Cluster) (string, error) {
	if err := c.StartCoordinators(ctx); err != nil {
		return "", err
	}
	if err := c.AwaitConnected(ctx, outageMembers[:]...); err != nil {
		return "", err
	}
	err := c.Await(ctx, "members to be fresh again", func(ctx context.Context) (bool, error) { return allAre(ctx, c, snapshot.Fresh) })
	if err != nil {
		return "", err
	}
	if err := wantPermits(ctx, c, map[guard.Action]errcode.Code{guard.ContinueServices: "", guard.PreserveRoutes: "", guard.AdmitSessions: ""}); err != nil {
		return "", err
	}
	var told *fealtyv1.DegradedPeriod
	for _, name := range outageMembers {
		err := c.Await(ctx, name+" to report its time alone", func(ctx context.Context) (bool, error) {
			var live *fealtyv1.Live
			err := c.WithAdmin(func(conn *grpc.ClientConn) error {
				resp, err := fealtyv1.NewMemberServiceClient(conn).GetMember(ctx, &fealtyv1.GetMemberRequest{Kind: "data", Name: name})
				live = resp.GetMember().GetLive()
				return err
			})
			if err != nil {
				return false, err
			}
			// A node that was told of a stolen key had nothing to act on for a moment, too.
			periods := live.GetDegradedPeriods()
			i := slices.IndexFunc(periods, func(p *fealtyv1.DegradedPeriod) bool {
				return p.GetUntil().IsValid() && p.GetOverAt().IsValid() && timeAlone(p) >= cluster.DegradedMax-outageDegraded
			})
			if i < 0 {
				return false, fmt.Errorf("it told of %v, and not of the outage, with the time alone over and then at its end", periods)
			}
			told = periods[i]
			return true, nil
		})
		if err != nil {
			return "", err
		}
	}
	if told.GetLimit() != "degraded.max" {
		return "", fmt.Errorf("it told that its time alone was over by %s, want degraded.max", told.GetLimit())
	}
	alone := timeAlone(told).Round(time.Minute)
	refused := uint64(0)
	for _, a := range told.GetActions() {
		refused += a.GetRefused()
	}
	return fmt.Sprintf("three members are fresh again, and told of their time alone: %s of it degraded, over by %s, %d refusals", alone, told.GetLimit(), refused), nil
}

// timeAlone is how long a node was in degraded mode.
func timeAlone(p *fealtyv1.DegradedPeriod) time.Duration {
	return p.GetUntil().AsTime().Sub(p.GetSince().AsTime())
}
