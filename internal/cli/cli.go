// Package cli is the commands: what a person types, and what a script reads.
//
// What is promised:
//
//   - Standard output is data, standard error is talk. Data comes as a table, or
//     as JSON and YAML with fixed names under schema fealty.cli/v1.
//   - Every failure is three lines with a stable code, or one JSON object, and
//     ends with the exit status of its code. Nothing else is printed for it.
//   - Settings come from flags, the environment and a file, in this order; a name
//     that is not known is an error. All of them stand in one table (settings.go),
//     from which flags, pages and the reference are made.
//   - No command guesses which cluster it is for. What changes something takes
//     --dry-run; what takes something away asks first.
//   - Text from elsewhere cannot move the cursor of a terminal or hide other text.
//
// A [CLI] does no more than its [Env] lets it: streams, arguments, environment,
// clock and folder are values, so that tests run commands as the program does.
package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	terminal "golang.org/x/term"

	"github.com/fealty-io/fealty/internal/cli/actuation"
	"github.com/fealty-io/fealty/internal/cli/shell"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/output"
	"github.com/fealty-io/fealty/internal/registrycmd"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/term"
)

// Env is all that a command sees of the world, besides files and sockets.
type Env struct {
	// Stdin, Stdout and Stderr are the streams. Nil: empty, or discarded.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Args are the arguments, without the name of the program.
	Args []string

	// Environ is the environment as NAME=value.
	Environ []string

	// Dir is the folder that relative paths start from. Empty: that of the process.
	Dir string

	// IsTerminal reports whether one of the streams is a terminal. Nil: none is.
	IsTerminal func(stream any) bool

	// Width returns the columns of the terminal behind Stdout, 0 if there is none.
	// Nil: there is none.
	Width func() int

	// Now is the clock. Nil means time.Now.
	Now func() time.Time

	// Release is the release of the program. Empty: from the build.
	Release string

	// Program is the name under which it was called, for the commands that it prints.
	// Empty: fealty.
	Program string
}

// CLI is one invocation. Make it with [New], run it once with [CLI.Run].
type CLI struct {
	env    Env
	format output.Format // of data and errors; known as soon as it can be

	commands *regexp.Regexp // finds those of this program in a text; nil: they stand as they are

	watchEvery time.Duration // between two looks of status --watch
}

// New returns the invocation that env describes. It starts nothing.
func New(env Env) *CLI {
	if env.Stdin == nil {
		env.Stdin = strings.NewReader("")
	}
	if env.Stdout == nil {
		env.Stdout = io.Discard
	}
	if env.Stderr == nil {
		env.Stderr = io.Discard
	}
	if env.IsTerminal == nil {
		env.IsTerminal = func(any) bool { return false }
	}
	if env.Width == nil {
		env.Width = func() int { return 0 }
	}
	if env.Now == nil {
		env.Now = time.Now
	}
	if env.Release == "" {
		env.Release = release()
	}
	if env.Program == "" {
		env.Program = programName
	}
	return &CLI{env: env, watchEvery: watchPause}
}

// Main runs the program in the environment of its process, until it is done or
// interrupted, and returns the exit status. It is the only place that handles
// signals: the first one ends what runs cleanly, the second one ends the process.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // and not at the end: a signal there would replace the exit status
	env := Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Args: os.Args[1:], Environ: os.Environ(), Program: shell.CalledAs(os.Args[0], programName),
		IsTerminal: func(stream any) bool {
			f, ok := stream.(*os.File)
			return ok && terminal.IsTerminal(int(f.Fd()))
		},
		Width: func() int {
			width, _, err := terminal.GetSize(int(os.Stdout.Fd()))
			if err != nil {
				return 0
			}
			return width
		},
	}
	return New(env).Run(ctx)
}

// Run runs the command and returns its exit status, after everything that there
// is to say was written.
func (c *CLI) Run(ctx context.Context) int {
	c.format = c.formatOf(c.env.Args)
	root := root(c)
	if c.env.Program != programName {
		c.commands = commandsIn(names(root))
	}
	root.SetContext(ctx)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return int(explain.ExitOK)
	}
	return c.fail(cmd, err)
}

// Tree returns the commands, for who describes them.
//
//go:generate go run ./genreference ../../docs/reference
func Tree() *cobra.Command { return root(New(Env{Release: "reference"})) }

// root returns the tree of commands. It is made for each invocation: cobra keeps
// what was parsed in it.
func root(c *CLI) *cobra.Command {
	root := &cobra.Command{
		Use:   "fealty",
		Short: "A control plane for fleets of machines",
		Long: `A control plane for fleets of machines: who may join, who is on the other end, who is in charge, what a
node may do, and what happens when the control plane is gone.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       c.env.Release, // without a template of our own: text/template would keep every method in the binary
		Args:          oneOfCommands,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		CompletionOptions: cobra.CompletionOptions{
			DisableDefaultCmd: true, // completion.go has our own
		},
	}
	root.SetArgs(c.env.Args)
	root.SetIn(c.env.Stdin)
	root.SetOut(c.env.Stdout)
	root.SetErr(c.env.Stderr)
	root.SetFlagErrorFunc(c.flagError)
	root.PersistentFlags().SortFlags = false
	settings.Add(root.PersistentFlags(), settings.Everywhere)
	c.completeSettings(root, settings.Everywhere)
	root.PersistentFlags().Bool("print-config", false, "print the settings in force and where each is from, and do nothing")
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
	room := func(r actuation.Command) *cobra.Command { // one of a package of its own
		cmd := c.command(spec{use: r.Use, short: r.Short, long: r.Long, sample: r.Sample,
			groups: map[bool][]settings.Group{true: {settings.Process}}[r.Serves],
			run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
				return r.Run(ctx, actuation.World{Within: cfg.Within, Out: c.env.Stdout, Say: c.talk, Now: c.env.Now,
					JSON: c.format == output.JSON || c.format == output.YAML, Log: func() *slog.Logger { return logger(c, cfg) },
					Metrics: func() (net.Listener, error) { return listenMetrics(ctx, c, cfg) }})
			}})
		r.Flags(cmd.Flags())
		return cmd
	}
	conformance := conformanceCommand(c)
	conformance.AddCommand(room(actuation.Conformance()))
	add("processes", devCommand(c), coordinatorCommand(c), agentCommand(c), room(actuation.Shard()),
		noun("provider", actuation.Short, append(below(c, registrycmd.Providers()), room(actuation.Process()))...))
	add("node", joinCommand(c), leaveCommand(c), loginCommand(c), whoamiCommand(c), contextCommand(c))
	add("fleet", statusCommand(c), checkCommand(c), manifestCommand(c), configCommand(c), tokenCommand(c), memberCommand(c), trustCommand(c), leaderCommand(c), auditCommand(c), recoverCommand(c), verifyCommand(c), backupCommand(c), conformance)
	add("fleet", fencingCommands(c)...)
	add("read", certCommand(c), snapshotCommand(c), authzCommand(c), explainCommand(c), completionCommand(c), versionCommand(c))
	root.SetHelpCommand(helpCommand())
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var b strings.Builder
		out := cmd.OutOrStdout()
		cmd.SetOut(&b)
		help(cmd, args)
		cmd.SetOut(out)
		_, _ = io.WriteString(out, c.called(b.String()))
	})
	return root
}

// talk prints one line for a person.
func (c *CLI) talk(text string, args ...any) {
	fmt.Fprintf(c.env.Stderr, "fealty: %s\n", term.Sanitize(c.called(fmt.Sprintf(text, args...))))
}

// getenv returns a variable of the environment; the last one of a name counts.
func (c *CLI) getenv(name string) string { return settings.Getenv(c.env.Environ, name) }

// width is how many columns there are for a table; 0: as many as it takes.
func (c *CLI) width() int {
	if !c.env.IsTerminal(c.env.Stdout) {
		return 0
	}
	if n, err := strconv.Atoi(c.getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return c.env.Width()
}

// coloured reports whether a stream takes colour (no-color.org).
func (c *CLI) coloured(stream io.Writer) bool {
	return c.getenv("NO_COLOR") == "" && c.getenv("TERM") != "dumb" && c.env.IsTerminal(stream)
}

// release returns the release that the build names.
func release() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
