package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fealty-io/fealty/internal/cli"
	cliprogram "github.com/fealty-io/fealty/internal/cli/program"
)

// commandLines runs the commands of scripts.
type commandLines struct {
	t   *testing.T
	dir string // of the scripts

	mu    sync.Mutex
	names map[string][]string // of variables, by the name of the script; guarded by mu
}

// oneShot reports whether a command of fealty ends by itself and changes nothing of its process. Such a command is
// given all that it sees of the world besides files and sockets ([cliprogram.Env]): hundreds of them within one
// process, each in the folder and the environment of its script, do what as many processes do, without a start each.
// What goes on until it is told to end is a process: it takes signals, keeps its memory out of core dumps, and
// leaves its locks to the kernel when it is killed. Scripts have an exec before some one-shot commands too: before
// those that read what a script gives as standard input or terminal, that start a program, which would not be in
// the script's folder, and that show the path of a file, which is shown as it was typed by a process alone, and as a
// whole by a command that is given its folder.
func oneShot(args []string) bool {
	if slices.Contains(args, "--print-config") {
		return true
	}
	switch word := append(slices.Clone(args), "", ""); word[0] {
	case "shard":
		return word[1] == "list" || word[1] == "show"
	case "agent", "coordinator", "provider":
		return false
	case "dev":
		return word[1] == "break" || word[1] == "heal"
	default:
		return !slices.Contains(args, "--run")
	}
}

// setting finds the variables that a line of a script sets.
var setting = regexp.MustCompile(`(?m)^(?:\[.*\] +)?(?:env|address) +(.*)$`)

// environ is the environment of a script. A script tells the value of a variable by its name, and no names: they are
// in its text.
func (c *commandLines) environ(ts *testscript.TestScript) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := c.names[ts.Name()]
	if names == nil {
		text, err := os.ReadFile(filepath.Join(c.dir, ts.Name()+".txtar"))
		ts.Check(err)
		script, _, _ := strings.Cut(string(text), "\n-- ")
		names = []string{"HOME", "PATH", "TMPDIR", "WORK", "XDG_CONFIG_HOME", "ETCDURL", "PGADDR", "PGPASS", "PGURL"}
		for _, line := range setting.FindAllStringSubmatch(script, -1) {
			for word := range strings.FieldsSeq(line[1]) {
				name, _, _ := strings.Cut(word, "=")
				names = append(names, name)
			}
		}
		if c.names == nil {
			c.names = make(map[string][]string)
		}
		c.names[ts.Name()] = names
	}
	var all []string
	for _, name := range names {
		all = append(all, name+"="+ts.Getenv(name))
	}
	return all
}

// status runs a command, as a process or within this one, and returns its exit status. Show has the script see what it
// printed; one that is tried again shows its last try.
func (c *commandLines) status(ts *testscript.TestScript, args []string) (exit int, show func()) {
	if args[0] == cliprogram.Name && oneShot(args[1:]) {
		// A command that hangs ends before the tests are ended without a word.
		ctx, cancel := context.WithCancel(context.Background())
		if end, bounded := c.t.Deadline(); bounded {
			ctx, cancel = context.WithDeadline(ctx, end.Add(-10*time.Second))
		}
		defer cancel()
		var out, errs bytes.Buffer
		exit = cli.Run(ctx, cliprogram.Env{Stdout: &out, Stderr: &errs, Args: args[1:], Environ: c.environ(ts), Dir: ts.MkAbs(".")})
		return exit, func() {
			_, _ = ts.Stdout().Write(out.Bytes()) // both are in memory
			_, _ = ts.Stderr().Write(errs.Bytes())
		}
	}
	if args[0] == "exec" {
		args = args[1:]
	}
	err := ts.Exec(args[0], args[1:]...)
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return failed.ExitCode(), func() {}
	}
	ts.Check(err)
	return 0, func() {}
}

// run is fealty ARGUMENT…: a command that ends by itself, and well; with ! it has to fail.
func (c *commandLines) run(ts *testscript.TestScript, neg bool, args []string) {
	if !oneShot(args) || len(args) > 0 && strings.HasSuffix(args[len(args)-1], "&") {
		ts.Fatalf("this command goes on: use exec fealty")
	}
	got, show := c.status(ts, append([]string{cliprogram.Name}, args...))
	show()
	switch {
	case got == 0 && neg:
		ts.Fatalf("unexpected command success")
	case got != 0 && !neg:
		ts.Fatalf("exit status %d", got)
	}
}

// exits STATUS [exec] COMMAND… runs a command that has to end with this very status.
func (c *commandLines) exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS [exec] COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got, show := c.status(ts, args[1:])
	if show(); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// until [exec] COMMAND… runs a command again until it succeeds.
func (c *commandLines) until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: until [exec] COMMAND…")
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		got, show := c.status(ts, args)
		if got == 0 {
			show()
			return
		}
		if time.Now().After(end) {
			show()
			ts.Fatalf("it never succeeded: exit status %d", got)
		}
	}
}
