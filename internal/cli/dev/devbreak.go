package dev

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/errcode"
)

// breakCommand is fealty dev break, which does harm to a dev cluster that runs.
func breakCommand(c *program.CLI) *cobra.Command {
	leader := harmCommand(c, program.Command{
		Use: "leader", Short: "kill the coordinator that leads",
		Long: `Kill the coordinator that leads, as kill -9 would: it takes no leave, and what it had in memory is ` +
			`gone. Another
one leads in about a second, in a later term. A write that the killed one had sent to the store, and that
arrives later, fails there.`,
		Sample: `  fealty dev break leader`,
	}, func([]string) cluster.Harm { return cluster.Harm{Kind: cluster.BreakLeader} })
	coordinator := harmCommand(c, program.Command{
		Use: "coordinator NAME", Short: "kill one coordinator",
		Long: `Kill one coordinator, as kill -9 would. The others serve, and its members go to them. When it is ` +
			`started again
it gets its secrets back from another one.`,
		Sample: `  fealty dev break coordinator coordinator-2`,
		Args:   command.Exactly("NAME"),
	}, func(args []string) cluster.Harm {
		return cluster.Harm{Kind: cluster.BreakCoordinator, Name: args[0]}
	})
	var member string
	network := harmCommand(c, program.Command{
		Use: "network", Short: "cut a member off from all coordinators",
		Long: `Cut a member off from all coordinators. It goes on by what it holds, within the manifest's policy ` +
			`for that, and
comes back by itself when the network does.`,
		Sample: `  fealty dev break network --member node-a`,
	}, func([]string) cluster.Harm {
		return cluster.Harm{Kind: cluster.BreakNetwork, Name: member}
	})
	network.Flags().StringVar(&member, "member", "", "the member, such as node-a")
	var by time.Duration
	clock := harmCommand(c, program.Command{
		Use: "clock NAME", Short: "set the clock of a coordinator or member wrong",
		Long: `Set the clock of one coordinator or one member, by --by from what is right: ahead, or behind if ` +
			`that is negative.`,
		Sample: `  fealty dev break clock node-a --by 20m`,
		Args:   command.Exactly("NAME"),
	}, func(args []string) cluster.Harm {
		return cluster.Harm{Kind: cluster.BreakClock, Name: args[0], By: by}
	})
	clock.Flags().DurationVar(&by, "by", time.Hour, "how far, such as 20m or -1h")
	shard := harmCommand(c, program.Command{
		Use: "shard", Short: "stop the shard where it stands, and start its successor",
		Long: `Stop the process of the shard where it stands (SIGSTOP), and start another one with its identity, which
works: its tenant wants another number of machines. fealty dev heal wakes the stopped one. It is a zombie: it
believes that it is in charge, and its provider refuses what it tries.`,
		Sample: `  fealty dev break shard
  fealty dev heal
  fealty status`,
	}, func([]string) cluster.Harm { return cluster.Harm{Kind: cluster.BreakShard} })
	return program.Group("break", "do harm to a dev cluster that runs, to see what happens", leader, coordinator,
		network, clock,
		shard)
}

func healCommand(c *program.CLI) *cobra.Command {
	return harmCommand(c, program.Command{
		Use: "heal", Short: "undo all harm that was done to a dev cluster",
		Long: `Undo all that fealty dev break did: coordinators that were killed start again, networks are whole, clocks
are right, and shards that were stopped go on, as zombies. It returns when every coordinator is ready.`,
		Sample: `  fealty dev heal`,
	}, func([]string) cluster.Harm { return cluster.Harm{Kind: cluster.Heal} })
}

// harmDone is what fealty dev break and heal print.
type harmDone struct {
	Did    string     `json:"did"`
	Watch  term.Texts `json:"watch"`
	DryRun bool       `json:"dry_run"`
}

// harmCommand is a command that has a dev cluster do what harm says.
func harmCommand(c *program.CLI, s program.Command, harm func(args []string) cluster.Harm) *cobra.Command {
	var dry bool
	s.Long += `

The cluster is the one in --data, by default that in ./.fealty-dev, and runs in another terminal. Only the user who
runs it can do that.`
	s.Groups = []settings.Group{settings.Dev}
	s.Run = func(ctx context.Context, cfg *settings.Values, args []string) error {
		dir := cfg.Path("data")
		if dir == "" {
			dir = cfg.Within(program.DevFolder)
		}
		h := harm(args)
		h.Dry = dry
		socket := cluster.ControlSocket(dir)
		done, err := cluster.Ask(ctx, socket, h)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return errcode.Wrap(err, errcode.Unreachable, "endpoint", "the dev cluster in "+dir, "problem",
				errcode.Network(err))
		case done.Name != "":
			return errcode.Wrap(errors.New(done.Problem), errcode.BadValue, "name", done.Name, "value", done.Value,
				"problem", done.Problem, "want", "what runs, as fealty dev break --help says")
		case done.Problem != "":
			return errcode.Wrap(errors.New(done.Problem), errcode.WaitRanOut, "what", waited(h), "problem",
				done.Problem)
		}
		did := done.Did
		if dry {
			c.Planned("no harm is done or undone")
			did = "would say: " + did
		}
		return c.Print(program.ResultOf(harmDone{Did: done.Did, Watch: done.Watch, DryRun: dry},
			func(p *term.Page) error {
				p.Advise("%s", did)
				for _, w := range done.Watch {
					p.Advise("watch  %s", w)
				}
				return nil
			}))
	}
	cmd := c.Command(s)
	command.DryRun(cmd.Flags(), &dry)
	return cmd
}

// waited is what a dev cluster waits for to do h.
func waited(h cluster.Harm) string {
	if h.Kind == cluster.Heal {
		return "that every coordinator is ready"
	}
	return "that a coordinator leads"
}
