package program

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// A Command is one before cobra knows it.
type Command struct {
	Use    string // "show KIND/NAME"
	Short  string // one line, lower case
	Long   string
	Sample string // examples
	Groups []settings.Group
	Args   cobra.PositionalArgs // nil: none
	Words  []string             // for completion of the first argument
	Names  bool                 // it lists things with names, for -o name

	// GoesOn says, once its flags are known, whether the command runs until it is told to end. Nil: it ends by itself.
	GoesOn func() bool

	// Complete returns what the first argument can be, as somebody presses TAB. Nil:
	// words are all.
	Complete func(ctx context.Context, cfg *settings.Values) []string
	Run      func(ctx context.Context, cfg *settings.Values, args []string) error
}

// Command makes the command of s, with the settings of its groups as flags.
func (c *CLI) Command(s Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: s.Use, Short: s.Short, Long: s.Long, Example: s.Sample, Args: s.Args,
		ValidArgs: s.Words,
	}
	if s.Args == nil {
		cmd.Args = command.NoArgs
	}
	if s.Long == "" {
		cmd.Long = strings.ToUpper(s.Short[:1]) + s.Short[1:] + "."
	}
	switch {
	case s.Complete != nil:
		once := c.Completion(s.Complete, s.Groups...)
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string,
			cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return once(cmd, args, typed)
		}
	case strings.Contains(s.Use, "FILE"): // shells offer files by themselves
	case len(s.Words) == 0:
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.Flags().SortFlags = false
	settings.Add(cmd.Flags(), s.Groups...)
	c.completeSettings(cmd, s.Groups...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		show, err := cmd.Flags().GetBool("print-config")
		if err != nil {
			return err
		}
		// Before settings are read, which may take as long as somebody likes.
		c.Env.Begins(!show && s.GoesOn != nil && s.GoesOn())
		cfg, err := c.load(cmd, s.Groups...)
		if err != nil {
			return err
		}
		if show {
			return c.printConfig(cfg)
		}
		if c.Format == term.Names && !s.Names {
			return errcode.New(errcode.BadValue, "name", "-o", "value", string(term.Names), "problem",
				cmd.CommandPath()+" does not list things by name", "want", "table, wide, json or yaml")
		}
		return s.Run(cmd.Context(), cfg, args)
	}
	return cmd
}

// Always is [Command.GoesOn] of a command that never ends by itself.
func Always() bool { return true }

// Group makes a command that only has commands below it.
func Group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: strings.ToUpper(short[:1]) + short[1:] + ".",
		Args: oneOfCommands, Annotations: map[string]string{command.GroupMark: "true"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errcode.New(errcode.UnknownCommand, "command", cmd.CommandPath()+" on its own", "guess",
				"it takes one of "+strings.Join(Names(cmd), ", "))
		},
	}
	cmd.AddCommand(verbs...)
	return cmd
}

// Names returns the commands below cmd.
func Names(cmd *cobra.Command) []string {
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
	pairs := []any{"command", cmd.CommandPath() + " " + command.ShownArg(args[0])}
	if g := meant(cmd, args[0]); g != "" {
		pairs = append(pairs, "guess", g)
	} else if g := humanize.Suggest(args[0], Names(cmd)); g != "" {
		pairs = append(pairs, "guess", g)
	} else if cmd.HasParent() {
		pairs = append(pairs, "guess", "there are "+strings.Join(Names(cmd), ", "))
	}
	return errcode.New(errcode.UnknownCommand, pairs...)
}

// flagError words what is wrong with a flag. A command that does not exist is the
// reason for its flags not to exist either.
func (c *CLI) flagError(cmd *cobra.Command, err error) error {
	if command.IsGroup(cmd) {
		if word := c.wordAfter(cmd); word != "" {
			return oneOfCommands(cmd, []string{word})
		}
	}
	if bad, ok := errors.AsType[settings.BadFlag](err); ok {
		pairs := []any{"name", "--" + bad.Setting.Flag(), "problem", bad.Problem, "want", bad.Setting.Want()}
		if v, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			pairs = append(pairs, "value", orBlank(bad.Setting.Shown(v.GetValue())))
		}
		return errcode.New(errcode.BadValue, pairs...)
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name, known := "--"+e.GetSpecifiedName(), flagNames(cmd)
		pairs := []any{"command", cmd.CommandPath()}
		if e.GetSpecifiedShortnames() != "" {
			name = "-" + e.GetSpecifiedName()
		}
		pairs = append(pairs, "flag", name)
		if g := humanize.Suggest(e.GetSpecifiedName(), known); g != "" && len(e.GetSpecifiedName()) > 1 {
			pairs = append(pairs, "guess", strings.Replace(g, "mean ", "mean --", 1))
		} else if argument(cmd, e.GetSpecifiedName()) {
			pairs = append(pairs, "guess", "it is an argument here and not a flag: "+
				strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		}
		return errcode.New(errcode.UnknownFlag, pairs...)
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return errcode.New(errcode.BadValue, "name", "--"+e.GetFlag().Name, "value", "blank",
			"problem", "the flag needs a value", "want",
			"--"+e.GetFlag().Name+" "+strings.ToUpper(e.GetFlag().Value.Type()))
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return errcode.New(errcode.BadValue, "name", "--"+e.GetFlag().Name, "value", orBlank(e.GetValue()),
			"problem", "it is not a "+e.GetFlag().Value.Type(), "want", "a "+e.GetFlag().Value.Type())
	}
	return errcode.Wrap(err, errcode.BadValue, "name", "a flag", "value", "read", "problem", err.Error())
}

// argument reports whether the name of a flag that does not exist is what an argument of cmd is called, or what
// cmd, or the group that it stands in, is about: --token of join TOKEN, --store of conformance store URL,
// --member of member ban MEMBER.
func argument(cmd *cobra.Command, name string) bool {
	_, arguments, _ := strings.Cut(cmd.Use, " ")
	if arguments == "" {
		return false
	}
	for _, word := range strings.FieldsFunc(strings.ToLower(arguments), func(r rune) bool {
		return (r < 'a' || r > 'z') && r != '-'
	}) {
		if word == name {
			return true
		}
	}
	return name == cmd.Name() || cmd.HasParent() && name == cmd.Parent().Name()
}

// wordAfter returns the first argument after the path of cmd that is no flag.
func (c *CLI) wordAfter(cmd *cobra.Command) string {
	path := strings.Fields(cmd.CommandPath())[1:]
	skip := false // it is the value of a flag
	for _, a := range c.Env.Args {
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

// withValues joins a flag that can stand alone with the word after it, where that is a value of it: --wait 3s is
// --wait=3s. pflag takes such a value after "=" alone, and would leave the word among the arguments.
func withValues(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil {
		return args // it is told as it runs
	}
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		out = append(out, args[i])
		name, _, given := strings.Cut(strings.TrimPrefix(args[i], "--"), "=")
		f := cmd.Flag(name)
		switch {
		case args[i] == "--":
			return append(out, args[i+1:]...)
		case !strings.HasPrefix(args[i], "--") || given || f == nil || i+1 == len(args):
		case f.NoOptDefVal == "": // the next word is its value, whatever it looks like
			i++
			out = append(out, args[i])
		case f.Value.Type() == "duration" && isDuration(args[i+1]):
			i++
			out[len(out)-1] += "=" + args[i]
		}
	}
	return out
}

// isDuration reports whether a word was meant as a duration, also one that is none for want of a unit.
func isDuration(word string) bool {
	_, err := settings.ParseDuration(word)
	_, number := strconv.ParseUint(word, 10, 64)
	return err == nil || number == nil
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

func orBlank(value string) string {
	if value == "" {
		return "blank"
	}
	return value
}

// elsewhere makes the command of one that stands in a package of its own.
func elsewhere(c *CLI, of command.Command) *cobra.Command {
	s := Command{
		Use: of.Use, Short: of.Short, Long: of.Long, Sample: of.Sample, Groups: []settings.Group{settings.Client},
		Args: of.Args, Names: of.Names,
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			return of.Run(ctx, surroundings{c, cfg}, args)
		},
	}
	if of.Complete != nil {
		s.Complete = func(ctx context.Context, cfg *settings.Values) []string {
			return of.Complete(ctx, surroundings{c, cfg})
		}
	}
	cmd := c.Command(s)
	if of.Flags != nil {
		of.Flags(cmd.Flags())
	}
	return cmd
}

// Below makes commands of a package of its own that stand in a group.
func Below(c *CLI, all []command.Command) (out []*cobra.Command) {
	for _, one := range all {
		out = append(out, elsewhere(c, one))
	}
	return out
}

// surroundings are what such a command is run in.
type surroundings struct {
	c   *CLI
	cfg *settings.Values
}

func (s surroundings) Ask(do func(grpc.ClientConnInterface) error) error {
	return s.c.Ask(s.cfg, func(all *client.Services) error { return do(all.Line) })
}

func (s surroundings) Print(r command.Result) error {
	return s.c.Print(ResultOf(message.Of(r.Data), r.Show))
}

func (s surroundings) PrintList(names []string, r command.Result) error {
	return s.c.PrintList(names, ResultOf(message.Of(r.Data), r.Show))
}

func (s surroundings) Say(text string, args ...any) { s.c.Say(text, args...) }
func (s surroundings) Planned(what string)          { s.c.Planned(what) }

func (s surroundings) Confirm(ctx context.Context, command, risk string, yes bool) error {
	return s.c.Confirm(ctx, command, risk, yes)
}

func (s surroundings) Member(arg string) (kind, name string, err error) {
	return command.MemberArg(arg)
}
func (s surroundings) Ago(at time.Time) string { return humanize.Relative(at, s.c.Env.Now()) }

// otherWords are what tools of this kind call things that have another name here, each
// with commands that may be meant: the ones that exist in the group are named.
func otherWords() map[string][]string {
	show, list := []string{"show", "get", "member list", "config list"},
		[]string{"list", "member list", "token list", "config list"}
	return map[string][]string{
		"get": show, "describe": show, "inspect": show, "list": list, "ls": list,
		"add": {"create", "put"}, "new": {"create"}, "make": {"create"}, "apply": {"put", "set", "config put"},
		"update": {"put", "set"},
		"delete": {"delete", "remove", "revoke"}, "rm": {"remove", "delete", "revoke"},
		"del":  {"remove", "delete", "revoke"},
		"init": {"manifest init"}, "bootstrap": {"manifest init"}, "server": {"coordinator"}, "serve": {"coordinator"},
		"controller": {"coordinator"},
		"node":       {"member"}, "nodes": {"member"}, "machine": {"member"}, "host": {"member"}, "members": {"member"},
		"client": {"agent"}, "worker": {"agent"},
		"ban": {"member ban"}, "unban": {"member unban"}, "drain": {"member drain"},
		"cordon": {"member drain", "drain"}, "kick": {"member remove", "remove"}, "remove": {"member remove"},
		"evict":  {"member remove", "remove"},
		"policy": {"manifest"}, "allowlist": {"manifest"}, "acl": {"authz"}, "restore": {"backup restore"},
		"snapshots": {"snapshot"},
		"rotate":    {"trust rotate"}, "ca": {"trust"}, "health": {"check", "status"}, "doctor": {"check"},
		"ps": {"status"}, "id": {"whoami"}, "enroll": {"join"}, "enrol": {"join"}, "unseal": {"recover"},
		"logs": {"audit list"}, "log": {"audit list"}, "events": {"audit list"},
		"history": {"manifest history"}, "debug": {"check"},
	}
}

// meant says which command of cmd somebody means who calls it as other tools do, or "".
func meant(cmd *cobra.Command, word string) string {
	var paths []string
	for _, path := range otherWords()[strings.ToLower(word)] {
		if found, rest, err := cmd.Find(strings.Fields(path)); err == nil && len(rest) == 0 && found != cmd {
			paths = append(paths, strings.TrimPrefix(found.CommandPath(), cmd.Root().Name()+" "))
		}
	}
	if len(paths) == 0 {
		return ""
	}
	return "did you mean " + Name + " " + strings.Join(paths, ", or "+Name+" ") + "?"
}
