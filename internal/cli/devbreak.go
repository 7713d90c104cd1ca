package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/devcluster"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/output"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/term"
	"github.com/fealty-io/fealty/internal/wording"
)

// breakCommand is fealty dev break, which does harm to a dev cluster that runs.
func breakCommand(c *CLI) *cobra.Command {
	leader := harmCommand(c, spec{
		use: "leader", short: "kill the coordinator that leads",
		long: `Kill the coordinator that leads, as kill -9 would: it takes no leave, and what it had in memory is gone. Another
one leads in about a second, in a later term. What the killed one had sent to the store, and arrives later,
fails there.`,
		sample: `  fealty dev break leader`,
	}, func([]string) devcluster.Harm { return devcluster.Harm{Kind: devcluster.BreakLeader} })
	coordinator := harmCommand(c, spec{
		use: "coordinator NAME", short: "kill one coordinator",
		long: `Kill one coordinator, as kill -9 would. The others serve, and its members go to them. When it is started again
it gets its secrets back from another one.`,
		sample: `  fealty dev break coordinator coordinator-2`,
		args:   command.Exactly("NAME"),
	}, func(args []string) devcluster.Harm {
		return devcluster.Harm{Kind: devcluster.BreakCoordinator, Name: args[0]}
	})
	var member string
	network := harmCommand(c, spec{
		use: "network", short: "cut a member off from all coordinators",
		long: `Cut a member off from all coordinators. It goes on by what it holds, within the manifest's policy for that, and
comes back by itself when the network does.`,
		sample: `  fealty dev break network --member node-a`,
	}, func([]string) devcluster.Harm {
		return devcluster.Harm{Kind: devcluster.BreakNetwork, Name: member}
	})
	network.Flags().StringVar(&member, "member", "", "the member, such as node-a")
	var by time.Duration
	clock := harmCommand(c, spec{
		use: "clock NAME", short: "set the clock of a coordinator or member wrong",
		long:   `Set the clock of one coordinator or one member, by --by from what is right: ahead, or behind if that is negative.`,
		sample: `  fealty dev break clock node-a --by 20m`,
		args:   command.Exactly("NAME"),
	}, func(args []string) devcluster.Harm {
		return devcluster.Harm{Kind: devcluster.BreakClock, Name: args[0], By: by}
	})
	clock.Flags().DurationVar(&by, "by", time.Hour, "how far, such as 20m or -1h")
	shard := harmCommand(c, spec{
		use: "shard", short: "stop the shard where it stands, and start its successor",
		long: `Stop the process of the shard where it stands (SIGSTOP), and start another one with its identity, which
works: its tenant wants another number of machines. fealty dev heal wakes the stopped one. It is a zombie: it
believes that it is in charge, and its provider refuses what it tries.`,
		sample: `  fealty dev break shard
  fealty dev heal
  fealty status`,
	}, func([]string) devcluster.Harm { return devcluster.Harm{Kind: devcluster.BreakShard} })
	return noun("break", "do harm to a dev cluster that runs, to see what happens", leader, coordinator, network, clock,
		shard)
}

func healCommand(c *CLI) *cobra.Command {
	return harmCommand(c, spec{
		use: "heal", short: "undo all harm that was done to a dev cluster",
		long: `Undo all that fealty dev break did: coordinators that were killed start again, networks are whole, clocks
are right, and shards that were stopped go on, as zombies. It returns when every coordinator is ready.`,
		sample: `  fealty dev heal`,
	}, func([]string) devcluster.Harm { return devcluster.Harm{Kind: devcluster.Heal} })
}

// harmDone is what fealty dev break and heal print.
type harmDone struct {
	Did    string       `json:"did"`
	Watch  output.Texts `json:"watch"`
	DryRun bool         `json:"dry_run"`
}

// harmCommand is a command that has a dev cluster do what harm says.
func harmCommand(c *CLI, s spec, harm func(args []string) devcluster.Harm) *cobra.Command {
	var dry bool
	s.long += `

The cluster is the one in --data, by default that in ./.fealty-dev, and runs in another terminal. Only the user who
runs it can do that.`
	s.groups = []settings.Group{settings.Dev}
	s.run = func(ctx context.Context, cfg *settings.Values, args []string) error {
		dir := cfg.Path("data")
		if dir == "" {
			dir = cfg.Within(devFolder)
		}
		h := harm(args)
		h.Dry = dry
		socket := devcluster.ControlSocket(dir)
		done, err := devcluster.Ask(ctx, socket, h)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return explain.Wrap(err, explain.Unreachable, "endpoint", "the dev cluster in "+dir, "problem", wording.Network(err))
		case done.Name != "":
			return explain.Wrap(errors.New(done.Problem), explain.BadValue, "name", done.Name, "value", done.Value, "problem", done.Problem, "want", "what runs, as fealty dev break --help says")
		case done.Problem != "":
			return explain.Wrap(errors.New(done.Problem), explain.WaitRanOut, "what", waited(h), "problem", done.Problem)
		}
		did := done.Did
		if dry {
			c.planned("no harm is done or undone")
			did = "would say: " + did
		}
		return c.print(result{harmDone{Did: done.Did, Watch: done.Watch, DryRun: dry},
			func(p *term.Page) error {
				p.Advise("%s", did)
				for _, w := range done.Watch {
					p.Advise("watch  %s", w)
				}
				return nil
			}})
	}
	cmd := c.command(s)
	command.DryRun(cmd.Flags(), &dry)
	return cmd
}

// waited is what a dev cluster waits for to do h.
func waited(h devcluster.Harm) string {
	if h.Kind == devcluster.Heal {
		return "that every coordinator is ready"
	}
	return "that a coordinator leads"
}
