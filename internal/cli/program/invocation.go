// Package program is one invocation of fealty: its settings, streams and clock, which every command
// is given.
package program

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
)

// watchPause is between two looks of status --watch.
const watchPause = 2 * time.Second

// Env is all that a command sees of the world, besides files and sockets.
type Env struct {
	// Stdin, Stdout and Stderr are the streams. Nil: empty, or discarded.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Begins is told, before a command runs, whether it goes on until it is told to end, or ends by itself. Nil:
	// nobody is told.
	Begins func(goesOn bool)

	// Hangups receives when a command that goes on is to read its files again. Nil: never.
	Hangups <-chan os.Signal

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

	// WatchEvery is between two looks of status --watch. Zero means 2 seconds.
	WatchEvery time.Duration

	// WaitAtFirst is the first pause of a command with --wait, before it asks again. Zero means what the command
	// takes for it, up to a second.
	WaitAtFirst time.Duration

	// Program is the name under which it was called, for the commands that it prints.
	// Empty: fealty.
	Program string
}

// CLI is one invocation. Make it with [New], run it once with [CLI.Run].
//
// It does no more than its [Env] lets it: streams, arguments, environment, clock and folder
// are values, so that tests run commands as the program does.
type CLI struct {
	Env    Env
	Format term.Format // of data and errors; known as soon as it can be

	commands *regexp.Regexp // finds those of this program in a text; nil: they stand as they are
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
	if env.Begins == nil {
		env.Begins = func(bool) {}
	}
	if env.Now == nil {
		env.Now = time.Now
	}
	if env.Release == "" {
		env.Release = Built().Release
	}
	if env.Program == "" {
		env.Program = Name
	}
	if env.WatchEvery == 0 {
		env.WatchEvery = watchPause
	}
	return &CLI{Env: env}
}

// Run runs the command of root that the arguments name, and returns its exit status, after
// everything that there is to say was written.
func (c *CLI) Run(ctx context.Context, root *cobra.Command) int {
	c.Format = c.formatOf(c.Env.Args)
	if c.Env.Program != Name {
		c.commands = commandsIn(Names(root))
	}
	root.SetContext(ctx)
	root.SetArgs(withValues(root, c.Env.Args))
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return int(errcode.ExitOK)
	}
	return c.fail(cmd, err)
}

// Prepare has root take its arguments, streams and settings from c, and word its mistakes as
// all commands do.
func (c *CLI) Prepare(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	// Without a template of our own: text/template would keep every method in the binary.
	root.Version = c.Env.Release
	root.Args = oneOfCommands
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.CompletionOptions.DisableDefaultCmd = true // there is one of our own
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(settings.FlagNow(name))
	})
	root.SetArgs(c.Env.Args)
	root.SetIn(c.Env.Stdin)
	root.SetOut(c.Env.Stdout)
	root.SetErr(c.Env.Stderr)
	root.SetFlagErrorFunc(c.flagError)
	root.PersistentFlags().SortFlags = false
	settings.Add(root.PersistentFlags(), settings.Everywhere)
	c.completeSettings(root, settings.Everywhere)
	root.PersistentFlags().Bool("print-config", false,
		"print the settings in force and where each is from, and do nothing")
	root.SetHelpCommand(helpCommand())
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var b strings.Builder
		out := cmd.OutOrStdout()
		cmd.SetOut(&b)
		help(cmd, args)
		cmd.SetOut(out)
		_, _ = io.WriteString(out, c.Called(b.String()))
	})
}

// Pause returns the first pause of a command that waits: usual, unless its environment says otherwise.
func (c *CLI) Pause(usual time.Duration) time.Duration { return cmp.Or(c.Env.WaitAtFirst, usual) }

// Say prints one line for a person.
func (c *CLI) Say(text string, args ...any) {
	c.talk("", c.Called(fmt.Sprintf(text, args...)), term.Plain, false)
}

// talk writes a text to stderr under the program's name; hanging is before what continues it
// on a terminal that is narrower, and as long as the word that the text begins with, which keeps its blanks.
func (c *CLI) talk(hanging, text string, paint term.Paint, colour bool) {
	const lead = "fealty: "
	width := c.width(c.Env.Stderr)
	if width > 0 {
		width = max(width-len(lead)-len(hanging), 20)
	}
	n := len(text) - len(strings.TrimLeft(text, " "))
	if n > 0 && len(text) > len(hanging) {
		n = max(n, len(hanging))
	}
	before, text := text[:n], text[n:]
	for _, line := range term.WrapCommands(term.Sanitize(text), c.Env.Program, width) {
		fmt.Fprintln(c.Env.Stderr, lead+paint.On(before+line, colour))
		before = hanging
	}
}

// Getenv returns a variable of the environment; the last one of a name counts.
func (c *CLI) Getenv(name string) string { return settings.Getenv(c.Env.Environ, name) }

// unknownWidth is how many columns a terminal has that does not say it.
const unknownWidth = 80

// width is how many columns a stream has; 0: as many as a line takes, as nobody looks at a
// terminal there, and scripts read lines.
func (c *CLI) width(stream io.Writer) int {
	if !c.Env.IsTerminal(stream) {
		return 0
	}
	if n, err := strconv.Atoi(c.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if n := c.Env.Width(); n > 0 {
		return n
	}
	return unknownWidth
}

// Coloured reports whether a stream takes colour (no-color.org).
func (c *CLI) Coloured(stream io.Writer) bool {
	return c.Getenv("NO_COLOR") == "" && c.Getenv("TERM") != "dumb" && c.Env.IsTerminal(stream)
}

// Name is what the program is called in pages, in JSON and in logs.
const Name = "fealty"

// commandsIn finds the commands of this program in a text, given the words that follow
// its name. A path before the name is another program's, or was put there already.
func commandsIn(words []string) *regexp.Regexp {
	return regexp.MustCompile(`(^|[^A-Za-z0-9_./-])` + Name + ` (--[a-z]|(?:` + strings.Join(words, "|") + `)\b)`)
}

// Called returns a text for a person, with the commands in it under the name by
// which this program was called: they are there to be pasted. Output for
// programs (JSON, YAML) has the plain name, whoever asked.
func (c *CLI) Called(text string) string {
	if c.commands == nil {
		return text
	}
	return c.commands.ReplaceAllString(text, "${1}"+strings.ReplaceAll(c.Env.Program, "$", "$$")+" $2")
}

// Confirm asks whether to go on with something that takes something away. Where
// nobody can be asked, it has to be said beforehand.
func (c *CLI) Confirm(ctx context.Context, command, risk string, yes bool) error {
	if yes {
		return nil
	}
	refuse := func(problem string) error {
		return errcode.New(errcode.NotConfirmed, "command", command, "risk", risk, "problem", problem)
	}
	if !c.Env.IsTerminal(c.Env.Stdin) {
		return refuse("there is no terminal to ask on")
	}
	fmt.Fprintf(c.Env.Stderr, "fealty: %s\nfealty: go on? [y/N] ", term.Sanitize(c.Called(risk)))
	answer := make(chan string, 1)
	// The read ends with the process: a terminal cannot be told to stop waiting.
	go func() {
		line, _ := bufio.NewReader(c.Env.Stdin).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(c.Env.Stderr)
		return ctx.Err()
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
		return refuse("the answer was no")
	}
}

// Planned prints what a dry run would have done.
func (c *CLI) Planned(what string) {
	c.Say("dry run: %s; nothing was changed", what)
}
