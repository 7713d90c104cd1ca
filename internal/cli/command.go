package cli

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/internal/explain"
)

// A spec is a command before cobra knows it.
type spec struct {
	use    string // "show KIND/NAME"
	short  string // one line, lower case
	long   string
	sample string // examples
	groups []group
	args   cobra.PositionalArgs // nil: none
	words  []string             // for completion of the first argument
	names  bool                 // it lists things with names, for -o name

	// complete returns what the first argument can be, as somebody presses TAB. Nil:
	// words are all.
	complete func(ctx context.Context, cfg *config) []string
	run      func(ctx context.Context, cfg *config, args []string) error
}

// command makes the command of s, with the settings of its groups as flags.
func (c *CLI) command(s spec) *cobra.Command {
	cmd := &cobra.Command{
		Use: s.use, Short: s.short, Long: s.long, Example: s.sample, Args: s.args,
		ValidArgs: s.words,
	}
	if s.args == nil {
		cmd.Args = noArgs
	}
	if s.long == "" {
		cmd.Long = strings.ToUpper(s.short[:1]) + s.short[1:] + "."
	}
	switch {
	case s.complete != nil:
		once := c.completion(s.complete, s.groups...)
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return once(cmd, args, typed)
		}
	case len(s.words) == 0:
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.Flags().SortFlags = false
	c.addSettings(cmd.Flags(), s.groups...)
	c.completeSettings(cmd, s.groups...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := c.load(cmd, s.groups...)
		if err != nil {
			return err
		}
		if show, err := cmd.Flags().GetBool("print-config"); err != nil || show {
			return errors.Join(err, c.printConfig(cfg))
		}
		if c.format == asName && !s.names {
			return explain.New(explain.BadValue, "name", "-o", "value", string(asName), "problem", cmd.CommandPath()+" does not list things by name", "want", "table, wide, json or yaml")
		}
		return s.run(cmd.Context(), cfg, args)
	}
	return cmd
}

// nounMark marks a command that does nothing itself.
const nounMark = "noun"

// isNoun reports whether a command only has commands below it. One may have some, and do
// something itself: fealty coordinator.
func isNoun(cmd *cobra.Command) bool {
	return cmd.HasSubCommands() && (!cmd.HasParent() || cmd.Annotations[nounMark] != "")
}

// noun makes a command that only has commands below it.
func noun(use, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: strings.ToUpper(short[:1]) + short[1:] + ".",
		Args: oneOfCommands, Annotations: map[string]string{nounMark: "true"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return explain.New(explain.UnknownCommand, "command", cmd.CommandPath()+" on its own", "guess", "it takes one of "+strings.Join(names(cmd), ", "))
		},
	}
	cmd.AddCommand(verbs...)
	return cmd
}

// names returns the commands below cmd.
func names(cmd *cobra.Command) []string {
	var out []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() || sub.Name() == "help" {
			out = append(out, sub.Name())
		}
	}
	slices.Sort(out)
	return out
}

// helpCommand is fealty help COMMAND.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "print the help of a command", GroupID: "read",
		Long: "Print the help of a command: the same as COMMAND --help.",
		Args: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 && found.HasSubCommands() {
				return oneOfCommands(found, rest)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			found, _, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			return found.Help()
		},
	}
}

// oneOfCommands refuses arguments that name no command.
func oneOfCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	pairs := []any{"command", cmd.CommandPath() + " " + shownArg(args[0])}
	if g := meant(cmd, args[0]); g != "" {
		pairs = append(pairs, "guess", g)
	} else if g := guess(args[0], names(cmd)); g != "" {
		pairs = append(pairs, "guess", g)
	} else if cmd.HasParent() {
		pairs = append(pairs, "guess", "there are "+strings.Join(names(cmd), ", "))
	}
	return explain.New(explain.UnknownCommand, pairs...)
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return explain.New(explain.BadValue, "name", "the argument of "+cmd.CommandPath(), "value", shownArg(args[0]),
		"problem", "the command takes none", "want", "flags only")
}

// exactly wants one argument for each name.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch want := strings.Join(names, " "); {
		case len(args) < len(names):
			return explain.New(explain.BadValue, "name", names[len(args)], "value", "missing",
				"problem", "the command is "+cmd.CommandPath()+" "+want, "want", names[len(args)])
		case len(args) > len(names):
			return explain.New(explain.BadValue, "name", "the argument after "+names[len(names)-1], "value", shownArg(args[len(names)]),
				"problem", "the command is "+cmd.CommandPath()+" "+want, "want", "one of each")
		}
		return nil
	}
}

// atMostOne wants no argument or one.
func atMostOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= 1 {
			return nil
		}
		return exactly(name)(cmd, args)
	}
}

// flagError words what is wrong with a flag. A command that does not exist is the
// reason for its flags not to exist either.
func (c *CLI) flagError(cmd *cobra.Command, err error) error {
	if isNoun(cmd) {
		if word := c.wordAfter(cmd); word != "" {
			return oneOfCommands(cmd, []string{word})
		}
	}
	if bad, ok := errors.AsType[badFlag](err); ok {
		pairs := []any{"name", "--" + bad.setting.flag(), "problem", bad.problem, "want", bad.setting.want()}
		if v, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			pairs = append(pairs, "value", orBlank(bad.setting.shown(v.GetValue())))
		}
		return explain.New(explain.BadValue, pairs...)
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name, known := "--"+e.GetSpecifiedName(), flagNames(cmd)
		pairs := []any{"command", cmd.CommandPath()}
		if e.GetSpecifiedShortnames() != "" {
			name = "-" + e.GetSpecifiedName()
		}
		pairs = append(pairs, "flag", name)
		if g := guess(e.GetSpecifiedName(), known); g != "" && len(e.GetSpecifiedName()) > 1 {
			pairs = append(pairs, "guess", strings.Replace(g, "mean ", "mean --", 1))
		}
		return explain.New(explain.UnknownFlag, pairs...)
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return explain.New(explain.BadValue, "name", "--"+e.GetFlag().Name, "value", "blank",
			"problem", "the flag needs a value", "want", "--"+e.GetFlag().Name+" "+strings.ToUpper(e.GetFlag().Value.Type()))
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return explain.New(explain.BadValue, "name", "--"+e.GetFlag().Name, "value", orBlank(e.GetValue()),
			"problem", "it is not a "+e.GetFlag().Value.Type(), "want", "a "+e.GetFlag().Value.Type())
	}
	return explain.Wrap(err, explain.BadValue, "name", "a flag", "value", "read", "problem", err.Error())
}

// wordAfter returns the first argument after the path of cmd that is no flag.
func (c *CLI) wordAfter(cmd *cobra.Command) string {
	path := strings.Fields(cmd.CommandPath())[1:]
	skip := false // it is the value of a flag
	for _, a := range c.env.Args {
		switch {
		case skip:
			skip = false
		case strings.HasPrefix(a, "-"):
			skip = a == "-o" || a == "--output" || a == "--config"
		case len(path) > 0 && a == path[0]:
			path = path[1:]
		case len(path) == 0:
			return a
		}
	}
	return ""
}

func flagNames(cmd *cobra.Command) []string {
	var out []string
	visit := func(f *pflag.Flag) {
		if !f.Hidden {
			out = append(out, f.Name)
		}
	}
	cmd.LocalFlags().VisitAll(visit)
	cmd.InheritedFlags().VisitAll(visit)
	return out
}

// shownArg returns what may be shown of an argument that came to the wrong place:
// it could be a token.
func shownArg(arg string) string {
	if strings.HasPrefix(arg, "fealty") && len(arg) > 20 {
		return explain.Redact(arg)
	}
	return arg
}

func orBlank(value string) string {
	if value == "" {
		return "blank"
	}
	return value
}
