// Package cli puts the commands of fealty together, which people type and scripts read.
//
// These are its promises:
//
//   - Standard output is data, standard error is talk. Data comes as a table, or
//     as JSON and YAML with fixed names under schema fealty.cli/v1.
//   - Every failure is three lines with a stable code, or one JSON object, and
//     ends with the exit status of its code. Nothing else is printed for it.
//   - Settings come from flags, the environment and a file, in this order; a name
//     that is not known is an error. All of them stand in one table (package settings),
//     from which flags, pages and the reference are made.
//   - No command guesses which cluster it is for. A command that changes
//     something takes --dry-run; one that takes something away asks first.
//   - Text from elsewhere cannot move the cursor of a terminal or hide other text.
package cli

import (
	"context"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	terminal "golang.org/x/term"

	"github.com/fealty-io/fealty/internal/cli/actuation"
	"github.com/fealty-io/fealty/internal/cli/audit"
	"github.com/fealty-io/fealty/internal/cli/backup"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/config"
	"github.com/fealty-io/fealty/internal/cli/dev"
	"github.com/fealty-io/fealty/internal/cli/identity"
	"github.com/fealty-io/fealty/internal/cli/manifest"
	"github.com/fealty-io/fealty/internal/cli/member"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/recovery"
	"github.com/fealty-io/fealty/internal/cli/server"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/snapshot"
	"github.com/fealty-io/fealty/internal/cli/status"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/trust"
	"github.com/fealty-io/fealty/internal/cli/workload"
)

// Main runs the program in the environment of its process, until it is done or
// interrupted, and returns the exit status. It is the only place that handles
// signals: the first SIGINT or SIGTERM ends what runs cleanly, the second one ends the
// process. SIGHUP has a process that goes on read its files again.
func Main() int {
	around := takeSurroundings()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // and not at the end: a signal there would replace the exit status
	env := program.Env{
		Stdin: os.Stdin, Stdout: around.stdout, Stderr: around.stderr, Begins: around.begins, Hangups: around.hangups,
		Args: os.Args[1:], Environ: os.Environ(), Program: term.CalledAs(os.Args[0], program.Name),
		IsTerminal: func(stream any) bool {
			f, ok := stream.(interface{ Fd() uintptr })
			return ok && terminal.IsTerminal(int(f.Fd()))
		},
		Width: func() int {
			for _, f := range []*os.File{os.Stdout, os.Stderr} { // one of them may lead elsewhere
				if width, _, err := terminal.GetSize(int(f.Fd())); err == nil {
					return width
				}
			}
			return 0
		},
	}
	defer around.close(ctx)
	return Run(ctx, env)
}

// Run runs the program in an environment, and returns its exit status.
func Run(ctx context.Context, env program.Env) int {
	c := program.New(env)
	return c.Run(ctx, root(c))
}

// Tree returns the commands, for who describes them.
//
//go:generate go run ./genreference ../../docs/reference
func Tree() *cobra.Command { return root(program.New(program.Env{Release: "reference"})) }

// root returns the tree of commands. It is made for each invocation: cobra keeps
// what was parsed in it.
func root(c *program.CLI) *cobra.Command {
	root := &cobra.Command{
		Use:   "fealty",
		Short: "A control plane for fleets of machines",
		Long: `A control plane for fleets of machines: who may join, who is on the other end, who is in charge, what a
node may do, and what happens when the control plane is gone.`,
	}
	c.Prepare(root)
	root.AddGroup(
		&cobra.Group{ID: "processes", Title: "Processes:"},
		&cobra.Group{ID: "node", Title: "A machine:"},
		&cobra.Group{ID: "fleet", Title: "The fleet:"},
		&cobra.Group{ID: "read", Title: "Reading and checking:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, cmd := range cmds {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	own := func(r actuation.Command) *cobra.Command { // one of a package of its own
		var groups []settings.Group
		switch {
		case r.Serves:
			groups = []settings.Group{settings.Process}
		case r.Asks:
			groups = []settings.Group{settings.Timeouts}
		}
		cmd := c.Command(program.Command{Use: r.Use, Short: r.Short, Long: r.Long, Sample: r.Sample, Groups: groups, Args: r.Args,
			GoesOn: func() bool { return r.Serves || r.GoesOn },
			Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
				world := actuation.World{Within: cfg.Within, Out: c.Env.Stdout, Say: c.Say, Now: c.Env.Now,
					JSON:    c.Format == term.JSON || c.Format == term.YAML,
					Metrics: func() (net.Listener, error) { return server.ListenMetrics(ctx, cfg) }}
				if r.Asks {
					world.Args, world.Timeout, world.Log = args, cfg.Duration("timeout"), slog.New(slog.DiscardHandler)
					world.Planned, world.Confirm = c.Planned, c.Confirm
					world.Print = func(data any, show func(*term.Page) error) error { return c.Print(program.ResultOf(data, show)) }
				}
				if !r.Serves {
					return r.Run(ctx, world)
				}
				return server.Serve(ctx, c, cfg, func(ctx context.Context, p server.Running) error {
					world.Log, world.Output, world.Reload, world.Locks, world.Service = p.Log, p.Output, p.Reload, p.Locks, p.Service
					return r.Run(ctx, world)
				})
			}})
		r.Flags(cmd.Flags())
		return cmd
	}
	conformance := conformanceCommand(c)
	conformance.AddCommand(own(actuation.Conformance()))
	shard := own(actuation.Shard())
	shard.AddCommand(program.Below(c, actuation.ShardReports())...)
	add("processes", dev.Command(c), server.Coordinator(c), server.Agent(c), shard,
		program.Group("provider", actuation.Short, append(program.Below(c, actuation.Providers()),
			own(actuation.Process()))...))
	add("node", identity.Command(c), identity.Leave(c), identity.Login(c), identity.Whoami(c), identity.Contexts(c),
		workload.Command(c))
	add("fleet", status.Command(c), dashboardCommand(c), status.Check(c), manifest.Command(c), config.Command(c), member.TokenCommand(c),
		member.Command(c), trust.Command(c), status.Leader(c), audit.Command(c), recovery.Command(c),
		recovery.Verify(c),
		backup.Command(c), conformance)
	var demand []*cobra.Command
	for _, one := range actuation.Demands() {
		demand = append(demand, own(one))
	}
	add("fleet", append(fencingCommands(c), program.Group("demand", actuation.DemandShort, demand...))...)
	add("read", trust.CertCommand(c), snapshot.Command(c), authzCommand(c), explainCommand(c), completionCommand(c),
		versionCommand(c))
	return root
}

// fencingCommands are those over what says who may act.
func fencingCommands(c *program.CLI) (out []*cobra.Command) {
	for _, of := range []struct {
		name, short string
		commands    []command.Command
	}{
		{"domain", "show and change which member owns which domain", actuation.DomainCommands()},
		{"quota", "show and change how many machines tenants may have", actuation.Quotas()},
		{"instruction", "have a member do something once, and show what became of it", actuation.InstructionCommands()},
	} {
		out = append(out, program.Group(of.name, of.short, program.Below(c, of.commands)...))
	}
	return out
}
