// Package reference makes the pages of the reference that come from the code: commands, settings, errors,
// checks, metrics and fields, and the words that fealty explain knows.
package reference

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/doctor"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Pages returns the pages of the reference that are made from the code, by
// their file names below docs/reference. They are the same on every machine. root
// is the tree of commands.
func Pages(root *cobra.Command) (map[string][]byte, error) {
	authorization, err := authorizationPage()
	if err != nil {
		return nil, err
	}
	metrics, err := metricsPage()
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{
		"metrics.md":       []byte(metrics),
		"configuration.md": []byte(configurationPage()),
		"commands.md":      []byte(commandsPage(root)),
		"errors.md":        []byte(errorsPage()),
		"authorization.md": []byte(authorization),
		"exit-codes.md":    []byte(exitCodesPage()),
		"checks.md":        []byte(checksPage()),

		"degraded-actions.md": []byte(degradedPage()),
		"manifest.md":         []byte(manifestPage()),
		"config.md":           []byte(desiredPage()),
	}
	return out, nil
}

const generatedNote = "<!-- made by make generate from the code; a test fails when it is not current -->\n\n"

func configurationPage() string {
	var b strings.Builder
	b.WriteString("# Configuration\n\n" + generatedNote)
	b.WriteString(`Every setting can come from a flag, from the environment, or from a YAML file that ` +
		`` + "`--config`" + ` names. A flag
counts more than the environment, the environment more than the file, and the file more than the default.
` + "`--print-config`" + ` on any command shows what is in force and where each value is from.

A name that is not known is an error, in the file with its line. A file may hold settings of several commands:
each takes those that it knows. So is a variable that begins with ` + "`FEALTY_`" + ` and is none of these, except ` +
		`for those
that Kubernetes sets beside a service called fealty, such as ` + "`FEALTY_SERVICE_HOST`" + `. A blank variable is ` +
		`not set.

` + "```yaml" + `
data: /var/lib/fealty/coordinator
listen: 10.0.0.1:7443
advertise: [c1.prod.example:7443]
metrics: 127.0.0.1:9443
log_format: json
` + "```\n")
	var groups []settings.Group
	for _, s := range settings.All() {
		if !slices.Contains(groups, s.Groups[0]) {
			groups = append(groups, s.Groups[0])
		}
	}
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## For: %s\n\n| setting | flag | environment | takes | not set |\n| --- | --- | --- | --- "+
			"| --- |\n", g)
		var notes []string
		for _, s := range settings.All() {
			if s.Groups[0] != g {
				continue
			}
			key, flag := code(s.Key), "-"
			if s.HasFlag() {
				flag = code("--" + s.Flag())
				if s.Short != "" {
					flag += ", " + code("-"+s.Short)
				}
			}
			if !s.InFile() {
				key += " (not in a file)"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", key, flag, code(s.Env()), s.Want(), s.Zero)
			note := fmt.Sprintf("%s: %s.", code(s.Key), s.Help)
			if s.More != "" {
				note += " " + s.More
			}
			notes = append(notes, "- "+note+"\n")
		}
		b.WriteString("\n" + strings.Join(notes, ""))
	}
	return b.String()
}

func code(s string) string { return "`" + s + "`" }

// commandsPage walks the tree of commands.
func commandsPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Commands\n\n" + generatedNote)
	b.WriteString("Standard output is data, standard error is talk. Every command takes these:\n\n")
	writeFlags(&b, root.PersistentFlags())
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if !sub.IsAvailableCommand() || sub.Name() == "help" {
				continue
			}
			if sub.Runnable() && !command.IsGroup(sub) {
				writeCommand(&b, sub)
			}
			walk(sub)
		}
	}
	walk(root)
	return b.String()
}

func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	use := strings.TrimSuffix(cmd.UseLine(), " [flags]")
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n```\n%s\n```\n", cmd.CommandPath(), cmd.Long, use)
	if cmd.Example != "" {
		var lines []string
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			lines = append(lines, strings.TrimPrefix(line, "  "))
		}
		fmt.Fprintf(b, "\nExamples:\n\n```\n%s\n```\n", strings.Join(lines, "\n"))
	}
	if cmd.LocalNonPersistentFlags().HasAvailableFlags() {
		b.WriteString("\n")
		writeFlags(b, cmd.LocalNonPersistentFlags())
	}
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | takes | meaning |\n| --- | --- | --- |\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		takes := f.Value.Type()
		if takes == "bool" {
			takes = "-"
		}
		if f.NoOptDefVal != "" && takes != "-" {
			takes += ", or nothing for " + f.NoOptDefVal
		}
		meaning := f.Usage
		if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "[]" {
			meaning += " (default " + code(d) + ")"
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", code(name), takes, strings.ReplaceAll(meaning, "|", `\|`))
	})
}

func errorsPage() string {
	var b strings.Builder
	b.WriteString("# Errors and findings\n\n" + generatedNote)
	b.WriteString("Every failure has a stable code. `fealty explain CODE` prints the same page.\n")
	for _, area := range errcode.Areas() {
		fmt.Fprintf(&b, "\n## %s\n", strings.ToUpper(area.Title[:1])+area.Title[1:])
		for _, c := range errcode.Codes() {
			e, _ := errcode.Lookup(c)
			if string(c)[len("FE-")] != area.Letter {
				continue
			}
			// Its heading is one level below that of its area.
			b.WriteString("\n##" + e.Text())
		}
	}
	return b.String()
}

func authorizationPage() (string, error) {
	rules, err := Rules()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Authorization\n\n" + generatedNote)
	b.WriteString(`These are the callers of each method, as servers enforce them. A method that is not in this table ` +
		`is refused to everybody. *Bound to* is
the field of the request that has to be the name in the caller's certificate. *Socket* says whether the method is
served on the local socket too, to the process's own user and root. ` + "`fealty authz`" + ` prints this table.

| method | callers | bound to | socket | why |
| --- | --- | --- | --- | --- |
`)
	for _, r := range rules {
		bind := "-"
		if r.Bind != "" {
			bind = code(r.Bind)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", code(MethodName(r)), Callers(r), bind, Socket(r), r.Why)
	}
	return b.String(), nil
}

func checksPage() string {
	var b strings.Builder
	b.WriteString("# Checks\n\n" + generatedNote)
	b.WriteString(`These are the checks of ` + "`fealty check`" + `. A check is *ok*, a *warning*, *failed*, ` +
		`*unknown* (the caller may not see it), *not
asked* (nothing says where to look), or *not checked*, because one that it needs is not ok: that one is the cause. ` +
		`The exit
status is 10 if a check failed, 9 with a warning or something unknown, and 0 otherwise. ` +
		`` + "`fealty explain check.ID`" + ` prints
one.
`)
	for _, group := range doctor.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", group)
		for _, k := range doctor.All() {
			if k.Group() == group {
				b.WriteString("\n##" + k.Page())
			}
		}
	}
	return b.String()
}

func exitCodesPage() string {
	var b strings.Builder
	b.WriteString("# Exit codes\n\n" + generatedNote)
	b.WriteString("Scripts may rely on them. The code of an error decides; its page names the status.\n\n| status | " +
		"meaning | codes |\n| --- | --- | --- |\n")
	for _, row := range errcode.Exits() {
		var codes []string
		for _, c := range errcode.Codes() {
			if e, _ := errcode.Lookup(c); e.Exit == row.Exit {
				codes = append(codes, string(c))
			}
		}
		fmt.Fprintf(&b, "| %d | %s | %s |\n", int(row.Exit), row.Words, strings.Join(codes, " "))
	}
	return b.String()
}
