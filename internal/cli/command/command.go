package command

import (
	"net"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
)

// NoArgs refuses arguments, and says which flag takes such a one where its form tells that.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	want := "flags only"
	if flag := flagFor(cmd, args[0]); flag != "" {
		want = "it with its flag, --" + flag + " " + ShownArg(args[0])
	}
	return errcode.New(errcode.BadValue, "name", "the argument of "+cmd.CommandPath(), "value", ShownArg(args[0]),
		"problem", "the command takes none", "want", want)
}

// flagFor returns the flag of cmd that an argument was probably meant for, by its form: an address, a URL, a member, a
// path or a word. It is blank where there is no such flag or the form says nothing.
func flagFor(cmd *cobra.Command, arg string) string {
	host, port, err := net.SplitHostPort(arg)
	kind, _, member := strings.Cut(arg, "/")
	var flags []string
	switch {
	case arg == "", strings.ContainsAny(arg, " \t\n"):
	case strings.Contains(arg, "://"):
		flags = []string{"store"}
	case ShownArg(arg) != arg:
	case err == nil && host != "" && port != "":
		flags = []string{"address", "coordinator", "listen"}
	case member && identity.Kind(kind).Valid():
		flags = []string{"member"}
	case strings.ContainsRune(arg, filepath.Separator):
		flags = []string{"data", "manifest"}
	default:
		flags = []string{"entry", "action", "cluster"}
	}
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f != nil && !f.Changed {
			return name
		}
	}
	return ""
}

// Exactly wants one argument for each name.
func Exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch want := strings.Join(names, " "); {
		case len(args) < len(names):
			return errcode.New(errcode.BadValue, "name", names[len(args)], "value", "missing",
				"problem", "the command is "+cmd.CommandPath()+" "+want, "want", names[len(args)])
		case len(args) > len(names):
			return errcode.New(errcode.BadValue, "name", "the argument after "+names[len(names)-1], "value",
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
// it could be a token, or a URL with a password.
func ShownArg(arg string) string {
	if strings.HasPrefix(arg, "fealty") && len(arg) > 20 {
		return errcode.Redact(arg)
	}
	if scheme, rest, ok := strings.Cut(arg, "://"); ok && strings.Contains(rest, "@") {
		return scheme + ":…"
	}
	return arg
}
