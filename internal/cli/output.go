package cli

import (
	"bufio"
	"fmt"
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
// has it, and how to show it to people.
type result struct {
	data any
	show func(p *term.Page) error
}

// print writes a result in the format that was asked for, at once.
func (c *CLI) print(r result) error {
	w := bufio.NewWriter(c.env.Stdout)
	var err error
	switch c.format {
	case output.JSON, output.YAML:
		err = output.Write(w, c.format, r.data)
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
	case output.JSON, output.YAML:
		_ = output.Write(c.env.Stderr, c.format, errorOf(e))
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

// failedWith is why it did.
type failedWith struct {
	Code      string            `json:"code"`
	What      string            `json:"what"`
	Why       string            `json:"why"`
	Do        string            `json:"do"`
	Fields    map[string]string `json:"fields"`
	Exit      int               `json:"exit"`
	ExitWords string            `json:"exit_words"`
}

// failed is what a command prints that failed.
type failed struct {
	Error failedWith `json:"error"`
}

func errorOf(e *explain.Error) failed {
	exit := explain.ExitCode(e)
	return failed{Error: failedWith{
		Code: string(e.Code), What: e.What, Why: e.Why, Do: e.Do, Fields: e.Fields,
		Exit: int(exit), ExitWords: exit.String(),
	}}
}
