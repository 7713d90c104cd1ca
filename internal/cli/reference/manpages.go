package reference

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/errcode"
)

// ManPages returns the pages of the manual, section 1, by their file names: one of each command and of each group of
// commands. release and date (such as 2026-11-30) stand at their foot, and nothing else of them changes from one
// day to the next. root is the tree of commands.
func ManPages(root *cobra.Command, release, date string) map[string][]byte {
	out := make(map[string][]byte)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		out[manName(cmd)+".1"] = []byte(manPage(cmd, release, date))
		for _, sub := range subcommands(cmd) {
			walk(sub)
		}
	}
	walk(root)
	return out
}

// subcommands are those that people are shown.
func subcommands(cmd *cobra.Command) (out []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			out = append(out, sub)
		}
	}
	return out
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func manPage(cmd *cobra.Command, release, date string) string {
	var b strings.Builder
	section := func(title string) { fmt.Fprintf(&b, ".SH %s\n", title) }
	fmt.Fprintf(&b, ".TH %s 1 %s %s %s\n", roffWord(strings.ToUpper(manName(cmd))), roffWord(date),
		roffWord("fealty "+release), roffWord("Fealty"))
	section("NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	section("SYNOPSIS")
	use := strings.TrimSuffix(cmd.UseLine(), " [flags]")
	if command.IsGroup(cmd) {
		use = cmd.CommandPath() + " COMMAND"
	}
	b.WriteString(".nf\n" + roff(use) + "\n.fi\n")
	if cmd.Long != "" {
		section("DESCRIPTION")
		b.WriteString(roffText(cmd.Long))
	}
	subs := subcommands(cmd)
	if len(subs) > 0 {
		section("COMMANDS")
		for _, sub := range subs {
			fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s\n", roffWord(manName(sub)), roff(sub.Short))
		}
	}
	flags := cmd.LocalNonPersistentFlags()
	if !cmd.HasParent() {
		flags = cmd.PersistentFlags()
	}
	if cmd.Runnable() && flags.HasAvailableFlags() {
		section("OPTIONS")
		flags.VisitAll(func(f *pflag.Flag) { b.WriteString(manFlag(f)) })
	}
	if cmd.Example != "" {
		section("EXAMPLES")
		b.WriteString(roffText(cmd.Example))
	}
	if !cmd.HasParent() {
		section("EXIT STATUS")
		for _, row := range errcode.Exits() {
			fmt.Fprintf(&b, ".TP\n%d\n%s\n", int(row.Exit), roff(row.Words))
		}
		return b.String()
	}
	section("SEE ALSO")
	fmt.Fprintf(&b, ".BR %s (1)\n", roffWord(manName(cmd.Parent())))
	if cmd.Parent() != cmd.Root() {
		fmt.Fprintf(&b, ".BR %s (1)\n", roffWord(cmd.Root().Name()))
	}
	return b.String()
}

func manFlag(f *pflag.Flag) string {
	if f.Hidden || f.Name == "help" {
		return ""
	}
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	out := ".TP\n\\fB" + roff(name) + "\\fR"
	if takes := f.Value.Type(); takes != "bool" {
		out += " \\fI" + roff(takes) + "\\fR"
	}
	out += "\n" + roff(f.Usage)
	if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "[]" {
		out += " (default " + roff(d) + ")"
	}
	return out + "\n"
}

// roff returns text that troff shows as it is. A hyphen is one that can be pasted.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...").Replace(strings.ReplaceAll(text, "\n", " "))
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text // else it were a request
	}
	return text
}

// roffWord is one argument of a request.
func roffWord(text string) string { return `"` + strings.ReplaceAll(roff(text), `"`, `\(dq`) + `"` }

// roffText sets paragraphs. One with an indented line keeps its lines.
func roffText(text string) string {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		lines := strings.Split(paragraph, "\n")
		keep := false
		for _, line := range lines {
			keep = keep || strings.HasPrefix(line, " ")
		}
		b.WriteString(".PP\n")
		if keep {
			b.WriteString(".nf\n")
		}
		for _, line := range lines {
			b.WriteString(roff(line) + "\n")
		}
		if keep {
			b.WriteString(".fi\n")
		}
	}
	return b.String()
}
