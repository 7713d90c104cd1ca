package command

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/explain"
)

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return explain.New(explain.BadValue, "name", "the argument of "+cmd.CommandPath(), "value", ShownArg(args[0]),
		"problem", "the command takes none", "want", "flags only")
}

// Exactly wants one argument for each name.
func Exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch want := strings.Join(names, " "); {
		case len(args) < len(names):
			return explain.New(explain.BadValue, "name", names[len(args)], "value", "missing",
				"problem", "the command is "+cmd.CommandPath()+" "+want, "want", names[len(args)])
		case len(args) > len(names):
			return explain.New(explain.BadValue, "name", "the argument after "+names[len(names)-1], "value",
				ShownArg(args[len(names)]),
				"problem", "the command is "+cmd.CommandPath()+" "+want, "want", "one of each")
		}
		return nil
	}
}

// AtMostOne wants no argument or one.
func AtMostOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= 1 {
			return nil
		}
		return Exactly(name)(cmd, args)
	}
}

// ShownArg returns what may be shown of an argument that came to the wrong place:
// it could be a token.
func ShownArg(arg string) string {
	if strings.HasPrefix(arg, "fealty") && len(arg) > 20 {
		return explain.Redact(arg)
	}
	return arg
}
