package command

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/fealty-io/fealty/internal/cli/term"
)

// Command is a command that asks a coordinator, before the CLI knows it.
type Command struct {
	Use    string // "show NAME"
	Short  string // one line, lower case
	Long   string // empty: as Short
	Sample string // examples

	Args  cobra.PositionalArgs // nil: none
	Names bool                 // it lists things with names, for -o name

	// Complete returns what the first argument can be, as somebody presses TAB. Nil: nothing.
	Complete func(ctx context.Context, sh Shell) []string
	// Flags adds flags of its own. Nil: it has none.
	Flags func(f *pflag.FlagSet)
	// Run is the command. Required.
	Run func(ctx context.Context, sh Shell, args []string) error
}

// Result is what a command found out: a message for programs, and how to show it to people.
type Result struct {
	Data proto.Message
	Show func(p *term.Page) error
}

// Shell is what a command is run in.
type Shell interface {
	// Ask connects to the coordinator that the settings name, for as long as do runs.
	Ask(do func(conn grpc.ClientConnInterface) error) error

	// Print writes a result in the format that was asked for, and PrintList that of a command
	// that lists things with names.
	Print(Result) error
	PrintList(names []string, r Result) error

	// Say writes a line to standard error, and Planned what a dry run would do.
	Say(text string, args ...any)
	Planned(what string)

	// Confirm asks a person about a risk, unless yes says that they agreed.
	Confirm(ctx context.Context, command, risk string, yes bool) error

	// Member takes the KIND/NAME of a member apart.
	Member(arg string) (kind, name string, err error)

	// Ago says how long ago a time was.
	Ago(at time.Time) string
}

// GroupMark is the annotation of a command that does nothing itself.
const GroupMark = "group"

// IsGroup reports whether a command only has commands below it. One may have some, and do
// something itself: fealty coordinator.
func IsGroup(cmd *cobra.Command) bool {
	return cmd.HasSubCommands() && (!cmd.HasParent() || cmd.Annotations[GroupMark] != "")
}
