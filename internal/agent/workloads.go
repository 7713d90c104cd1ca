package agent

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/workload/host"
	"github.com/fealty-io/fealty/snapshot"
)

// hostOf returns what gives the processes of the node their identities.
func hostOf(a *Agent, cfg Config) (*host.Host, error) {
	return host.New(host.Config{
		Me: a.node.Me().ID, FS: cfg.FS, Dir: cfg.DataDir, Socket: cfg.Sockets.Workloads, Locks: cfg.Locks,
		Registry: a.metrics.registry, Now: a.node.Now, Log: a.log,
		Node: host.Node{
			Services: func() ([]snapshot.Service, error) {
				v, err := a.node.Autonomy.Use(snapshot.ScopeServiceAssignment)
				if err != nil {
					return nil, err
				}
				assignment, _ := v.ServiceAssignment()
				return assignment.Services, nil
			},
			Trust:      func() *identity.Bundle { return a.node.TrustState().Contact },
			ConfigKeys: func() []snapshot.ConfigKey { return configKeysOf(a.node.TrustState()) },
			Changed:    a.node.Autonomy.Changed.Wait,
			Ask: func(ctx context.Context, f func(context.Context, grpc.ClientConnInterface) error) error {
				return a.contact.Ask(ctx, func(ctx context.Context, _ string,
					conn grpc.ClientConnInterface) error {
					return f(ctx, conn)
				})
			},
		},
	})
}

// configKeysOf returns the config signing keys that the trust bundle in use lists. Those that an
// emergency statement revokes are revoked.
func configKeysOf(b *state.TrustState) []snapshot.ConfigKey {
	h := b.Active[snapshot.ScopeTrustBundle]
	if h == nil {
		return nil
	}
	bundle, ok := h.Verified.TrustBundle()
	if !ok {
		return nil
	}
	keys := bundle.ConfigKeys
	for i := range keys {
		for _, e := range b.Emergencies {
			keys[i].Revoked = keys[i].Revoked || slices.Contains(e.ConfigKeys, snapshot.DigestOf(keys[i].Key))
		}
	}
	return keys
}
