package cluster

import (
	"context"
	"path/filepath"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/shard"
)

// Programs is what shards and other programs beside a cluster need of it.
func (c *Cluster) Programs() shard.Config {
	return shard.Config{
		Dir: filepath.Join(c.dir, "shards"), Program: c.opts.Program, Admin: c.WithAdmin, Await: c.Await,
		Join: c.Enlist, Metrics: c.CoordinatorMetrics, Log: c.opts.Log,
	}
}

// Enlist makes a member of a kind, has its agent run, and returns the agent's folder.
func (c *Cluster) Enlist(ctx context.Context, kind identity.Kind, name string) (dir string, err error) {
	if _, err := c.joinAs(ctx, kind, name); err != nil {
		return "", err
	}
	if err := c.RunMember(ctx, name); err != nil {
		return "", err
	}
	return c.MemberDir(name), c.AwaitConnected(ctx, name)
}

// Shards says what shards run, for a person: a name and a sentence each.
func (c *Cluster) Shards() [][2]string { return c.shards.Describe() }
