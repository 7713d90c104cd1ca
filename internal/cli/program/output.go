package program

import (
	"bufio"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
)

// formatOf finds the format in arguments that nobody has parsed yet, so that an
// error in them comes in the form that was asked for.
func (c *CLI) formatOf(args []string) term.Format {
	chosen := c.Getenv("FEALTY_OUTPUT")
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
	if !slices.Contains(term.Formats(), chosen) {
		return term.TableFormat
	}
	return term.Format(chosen)
}

// A Result is what a command found out: a struct for programs, which is encoded as JSON
// has it, and how to show it to people.
type Result struct {
	Data any
	show func(p *term.Page) error
}

// ResultOf is a result of both.
func ResultOf(data any, show func(*term.Page) error) Result { return Result{data, show} }

// Print writes a result in the format that was asked for, at once.
func (c *CLI) Print(r Result) error {
	w := bufio.NewWriter(c.Env.Stdout)
	var err error
	switch c.Format {
	case term.JSON, term.YAML:
		err = term.Write(w, c.Format, r.Data)
	default:
		err = r.show(&term.Page{W: w, Wide: c.Format == term.Wide, Colour: c.Coloured(c.Env.Stdout), Width: c.width(c.Env.Stdout), Program: c.Env.Program,
			Called: c.Called})
	}
	if err == nil {
		err = w.Flush()
	}
	return err
}

// PrintList is print for a command that lists things with names.
func (c *CLI) PrintList(names []string, r Result) error {
	if c.Format != term.Names {
		return c.Print(r)
	}
	w := bufio.NewWriter(c.Env.Stdout)
	for _, name := range names {
		fmt.Fprintln(w, term.Sanitize(name))
	}
	return w.Flush()
}

// exitError ends a command that printed all there is to say with a status that is
// not 0.
type exitError struct{ exit errcode.Exit }

// ExitWith ends a command with a status, after it printed all there is to say.
func ExitWith(exit errcode.Exit) error { return exitError{exit} }

func (e exitError) Error() string { return e.exit.String() }

// fail prints why a command failed and returns its exit status.
func (c *CLI) fail(cmd *cobra.Command, err error) int {
	if e, ok := err.(exitError); ok {
		return int(e.exit)
	}
	what := Name
	if cmd != nil {
		what = cmd.CommandPath()
	}
	e := render.Of(what, err)
	c.PrintError(e)
	return int(errcode.ExitCode(e))
}

// PrintError writes an error as three lines, or as one object.
func (c *CLI) PrintError(e *errcode.Error) {
	switch c.Format {
	case term.JSON, term.YAML:
		_ = term.Write(c.Env.Stderr, c.Format, errorOf(e))
	default:
		colour := c.Coloured(c.Env.Stderr)
		for i, line := range e.Lines() {
			p := term.Plain
			if i == 0 {
				p = term.Red
			}
			c.talk("       ", c.Called(line), p, colour)
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

func errorOf(e *errcode.Error) failed {
	exit := errcode.ExitCode(e)
	return failed{Error: failedWith{
		Code: string(e.Code), What: e.What, Why: e.Why, Do: e.Do, Fields: e.Fields,
		Exit: int(exit), ExitWords: exit.String(),
	}}
}
