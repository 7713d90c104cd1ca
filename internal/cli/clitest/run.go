// Package clitest runs commands for tests, and has a server that answers as a test says.
package clitest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/term"
)

// Now is the clock of commands under test.
var Now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// Result is what a command did.
type Result struct {
	Exit           int
	Stdout, Stderr string
}

// Fixture is the world of a command under test.
type Fixture struct {
	Env       []string
	Stdin     io.Reader
	Dir       string
	Terminals []any // of "stdin", "stdout", "stderr"
	Width     int
	Program   string // as it was called
}

// Run runs a command as the program would.
func (f Fixture) Run(ctx context.Context, args ...string) Result {
	var out, errs bytes.Buffer
	env := program.Env{
		Stdin: f.Stdin, Stdout: &out, Stderr: &errs, Args: args, Environ: f.Env, Dir: f.Dir,
		Now: func() time.Time { return Now }, Release: "1.2.3", Program: f.Program,
		Width: func() int { return f.Width },
	}
	env.IsTerminal = func(stream any) bool {
		for _, t := range f.Terminals {
			switch t {
			case "stdin":
				if stream == f.Stdin {
					return true
				}
			case "stdout":
				if stream == io.Writer(&out) {
					return true
				}
			case "stderr":
				if stream == io.Writer(&errs) {
					return true
				}
			}
		}
		return false
	}
	env.WatchEvery, env.WaitAtFirst = time.Millisecond, time.Millisecond
	exit := cli.Run(ctx, env)
	return Result{exit, out.String(), errs.String()}
}

func Run(t testing.TB, args ...string) Result {
	t.Helper()
	return Fixture{}.Run(t.Context(), args...)
}

// Want fails the test unless the command ended so, and said so.
func (r Result) Want(t testing.TB, exit int, stderr ...string) Result {
	t.Helper()
	if r.Exit != exit {
		t.Errorf("exit status %d, want %d\nstdout: %s\nstderr: %s", r.Exit, exit, r.Stdout, r.Stderr)
	}
	for _, s := range stderr {
		if !strings.Contains(r.Stderr, s) {
			t.Errorf("stderr does not say %q:\n%s", s, r.Stderr)
		}
	}
	return r
}

// JSONOf parses what has to be one JSON object with the schema.
func JSONOf(t testing.TB, text string) map[string]any {
	t.Helper()
	var v map[string]any
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, text)
	}
	if d.More() {
		t.Fatalf("more than one object:\n%s", text)
	}
	if v["schema"] != term.Schema {
		t.Fatalf("schema is %v", v["schema"])
	}
	return v
}
