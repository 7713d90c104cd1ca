package cli

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/failure"
	"github.com/fealty-io/fealty/internal/output"
	"github.com/fealty-io/fealty/internal/term"
)

// formatOf finds the format in arguments that nobody has parsed yet, so that an
// error in them comes in the form that was asked for.
func (c *CLI) formatOf(args []string) output.Format {
	chosen := c.getenv("FEALTY_OUTPUT")
	for i, a := range args {
		if a == "--" {
			break
		}
		for _, name := range []string{"--output", "-o"} {
			switch rest, ok := strings.CutPrefix(a, name); {
			case !ok:
			case rest == "" && i+1 < len(args):
				chosen = args[i+1]
			case rest != "" && (name == "-o" || rest[0] == '='):
				chosen = strings.TrimPrefix(rest, "=")
			}
		}
	}
	if !slices.Contains(output.Formats(), chosen) {
		return output.Table
	}
	return output.Format(chosen)
}

// A result is what a command found out: a struct for programs, which is encoded as JSON
// has it, or an object, and how to show it to people.
type result struct {
	data any
	show func(p *term.Page) error
}

// print writes a result in the format that was asked for, at once.
func (c *CLI) print(r result) error {
	w := bufio.NewWriter(c.env.Stdout)
	var err error
	switch c.format {
	case output.JSON:
		err = writeStamped(w, r.data, writeJSON)
	case output.YAML:
		err = writeStamped(w, r.data, writeYAML)
	default:
		err = r.show(&term.Page{W: w, Wide: c.format == output.Wide, Colour: c.coloured(c.env.Stdout), Width: c.width(),
			Called: c.called})
	}
	if err == nil {
		err = w.Flush()
	}
	return err
}

// printList is print for a command that lists things with names.
func (c *CLI) printList(names []string, r result) error {
	if c.format != output.Names {
		return c.print(r)
	}
	w := bufio.NewWriter(c.env.Stdout)
	for _, name := range names {
		fmt.Fprintln(w, term.Sanitize(name))
	}
	return w.Flush()
}

func stamped(o object) object { return append(object{{"schema", schema}}, o...) }

// writeStamped writes data, which is an object as JSON, with the schema before it.
func writeStamped(w io.Writer, data any, write func(io.Writer, any) error) error {
	tree, err := treeOf(data)
	if err != nil {
		return err
	}
	return write(w, stamped(tree.(object)))
}

// exitError ends a command that printed all there is to say with a status that is
// not 0.
type exitError struct{ exit explain.Exit }

func (e exitError) Error() string { return e.exit.String() }

// fail prints why a command failed and returns its exit status.
func (c *CLI) fail(cmd *cobra.Command, err error) int {
	if e, ok := err.(exitError); ok {
		return int(e.exit)
	}
	what := programName
	if cmd != nil {
		what = cmd.CommandPath()
	}
	e := failure.Of(what, err)
	c.printError(e)
	return int(explain.ExitCode(e))
}

// printError writes an error as three lines, or as one object.
func (c *CLI) printError(e *explain.Error) {
	switch c.format {
	case output.JSON:
		_ = writeJSON(c.env.Stderr, errorObject(e))
	case output.YAML:
		_ = writeYAML(c.env.Stderr, errorObject(e))
	default:
		colour := c.coloured(c.env.Stderr)
		for i, line := range e.Lines() {
			p := term.Plain
			if i == 0 {
				p = term.Red
			}
			fmt.Fprintln(c.env.Stderr, "fealty: "+p.On(term.Sanitize(c.called(line)), colour))
		}
	}
}

func errorObject(e *explain.Error) object {
	fields := object{}
	for _, name := range sortedKeys(e.Fields) {
		fields = fields.with(name, e.Fields[name])
	}
	exit := explain.ExitCode(e)
	return stamped(object{{"error", object{
		{"code", string(e.Code)}, {"what", e.What}, {"why", e.Why}, {"do", e.Do}, {"fields", fields},
		{"exit", int(exit)}, {"exit_words", exit.String()},
	}}})
}
