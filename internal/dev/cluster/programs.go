package cluster

import (
	"context"
	"path/filepath"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/shard"
	"github.com/fealty-io/fealty/internal/dev/story"
)

// programsOf is what shards and other programs beside a cluster need of it.
func programsOf(c *Cluster) shard.Config {
	return shard.Config{
		Dir: filepath.Join(c.dir, "shards"), Program: c.opts.Program, Admin: c.withAdmin, Await: c.await,
		Leave: c.StopMember, Note: func(what string) { c.means.Note("", what) }, Log: c.opts.Log,
		Join: func(ctx context.Context, kind identity.Kind, name string) (string, error) {
			if _, err := c.joinAs(ctx, kind, name); err != nil {
				return "", err
			}
			if err := c.RunMember(ctx, name); err != nil {
				return "", err
			}
			return c.MemberDir(name), c.AwaitConnected(ctx, name)
		},
		Metrics: func() (out []string) {
			for _, r := range c.running() {
				out = append(out, r.metrics)
			}
			return out
		},
	}
}

// Shards says what shards run, for a person: a name and a sentence each.
func (c *Cluster) Shards() [][2]string { return c.shards.Describe() }

// shardSteps are the steps of the story that shards show.
func shardSteps() (out []step) {
	for _, s := range shard.Steps() {
		out = append(out, step{s.ID, s.Expected,
			func(ctx context.Context, c *Cluster) (string, error) { return c.shards.Tell(ctx, s) }})
	}
	return out
}

// edgeSteps are those that other programs show: connections between processes.
func edgeSteps() (out []step) {
	var told *story.Edges // of the story that is told
	for _, s := range story.Steps() {
		out = append(out, step{s.ID, s.Expected, func(ctx context.Context, c *Cluster) (string, error) {
			if told == nil {
				p := programsOf(c)
				told = story.NewEdges(story.Config{Dir: filepath.Join(c.dir, "edges"), Program: p.Program, Cluster: c.id,
					Join: p.Join, Leave: p.Leave, Admin: p.Admin, Await: p.Await, Note: p.Note})
			}
			return told.Tell(ctx, s)
		}})
	}
	return out
}
