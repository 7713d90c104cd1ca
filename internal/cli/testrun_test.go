package cli_test

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
	"github.com/fealty-io/fealty/internal/output"
)

// testNow is the clock of commands under test.
var testNow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// ran is what a command did.
type ran struct {
	exit           int
	stdout, stderr string
}

// fixture is the world of a command under test.
type fixture struct {
	env       []string
	stdin     io.Reader
	dir       string
	terminals []any // of "stdin", "stdout", "stderr"
	width     int
	program   string // as it was called
}

// run runs a command as the program would.
func (f fixture) run(ctx context.Context, args ...string) ran {
	var out, errs bytes.Buffer
	env := program.Env{
		Stdin: f.stdin, Stdout: &out, Stderr: &errs, Args: args, Environ: f.env, Dir: f.dir,
		Now: func() time.Time { return testNow }, Release: "1.2.3", Program: f.program,
		Width: func() int { return f.width },
	}
	env.IsTerminal = func(stream any) bool {
		for _, t := range f.terminals {
			switch t {
			case "stdin":
				if stream == f.stdin {
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
	env.WatchEvery = time.Millisecond
	exit := cli.Run(ctx, env)
	return ran{exit, out.String(), errs.String()}
}

func run(t testing.TB, args ...string) ran {
	t.Helper()
	return fixture{}.run(t.Context(), args...)
}

// want fails the test unless the command ended so, and said so.
func (r ran) want(t testing.TB, exit int, stderr ...string) ran {
	t.Helper()
	if r.exit != exit {
		t.Errorf("exit status %d, want %d\nstdout: %s\nstderr: %s", r.exit, exit, r.stdout, r.stderr)
	}
	for _, s := range stderr {
		if !strings.Contains(r.stderr, s) {
			t.Errorf("stderr does not say %q:\n%s", s, r.stderr)
		}
	}
	return r
}

// jsonOf parses what has to be one JSON object with the schema.
func jsonOf(t testing.TB, text string) map[string]any {
	t.Helper()
	var v map[string]any
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, text)
	}
	if d.More() {
		t.Fatalf("more than one object:\n%s", text)
	}
	if v["schema"] != output.Schema {
		t.Fatalf("schema is %v", v["schema"])
	}
	return v
}
