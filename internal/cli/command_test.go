package cli_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
)

// commands returns every command that does something.
func commands() []*cobra.Command {
	var out []*cobra.Command
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if !command.IsGroup(sub) {
				out = append(out, sub)
			}
			walk(sub)
		}
	}
	walk(cli.Tree())
	return out
}

func TestCommandsAreDescribed(t *testing.T) {
	for _, cmd := range commands() {
		path := cmd.CommandPath()
		if cmd.Short == "" || cmd.Long == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short is a phrase, long is text", path)
		}
		if cmd.Short[:1] != strings.ToLower(cmd.Short[:1]) {
			t.Errorf("%s: %q begins with a capital letter", path, cmd.Short)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("%s --%s: usage is a phrase: %q", path, f.Name, f.Usage)
			}
		})
		if cmd.Args == nil {
			t.Errorf("%s: takes any arguments, and so ignores mistakes", path)
		}
	}
}

// A command that changes something can be tried without a change, and one that takes something away asks.
func TestChangesCanBeTried(t *testing.T) {
	changes := []string{"fealty manifest set", "fealty manifest reshare", "fealty manifest reseed", "fealty manifest keeper forget", "fealty coordinator forget", "fealty token create", "fealty token revoke", "fealty member drain", "fealty member undrain", "fealty member remove", "fealty member replace", "fealty member ban", "fealty member unban", "fealty recover", "fealty verify", "fealty backup create", "fealty backup restore", "fealty domain assign", "fealty domain unassign", "fealty quota put", "fealty quota delete", "fealty demand set", "fealty provider put", "fealty provider delete", "fealty instruction give", "fealty leader transfer", "fealty trust rotate", "fealty trust revoke", "fealty trust emergency apply", "fealty config put", "fealty config delete", "fealty dev break clock", "fealty dev break coordinator", "fealty dev break leader", "fealty dev break network", "fealty dev break shard", "fealty dev heal"}
	dangerous := []string{"fealty domain assign", "fealty domain unassign", "fealty provider delete", "fealty quota put", "fealty demand set", "fealty manifest keeper forget", "fealty coordinator forget", "fealty member remove", "fealty member replace", "fealty member ban", "fealty leave", "fealty trust rotate", "fealty trust revoke", "fealty trust emergency apply", "fealty recover"}
	// All changes of a member take --yes, so that scripts need not know which of them ask.
	dangerous = append(dangerous, "fealty member drain", "fealty member undrain", "fealty member unban")
	waits := []string{"fealty join", "fealty member wait", "fealty member drain", "fealty recover", "fealty leader show", "fealty trust rotate"}
	for _, cmd := range commands() {
		for flag, want := range map[string][]string{"dry-run": changes, "yes": dangerous, "wait": waits} {
			if has := cmd.Flags().Lookup(flag) != nil; has != slices.Contains(want, cmd.CommandPath()) {
				t.Errorf("%s: --%s: %v", cmd.CommandPath(), flag, has)
			}
		}
	}
}

// Every command takes its settings in every way, and shows them.
func TestPrintConfigEverywhere(t *testing.T) {
	for _, cmd := range commands() {
		if cmd.Name() == "help" {
			continue
		}
		args := strings.Fields(cmd.CommandPath())[1:]
		for range strings.Count(strings.TrimSuffix(cmd.Use, "[TOKEN]"), " ") {
			args = append(args, "x")
		}
		if cmd.Name() == "explain" {
			args = args[:1]
		}
		r := clitest.Run(t, append(args, "--print-config", "-o", "json")...).Want(t, 0)
		if r.Exit == 0 {
			clitest.JSONOf(t, r.Stdout)
		}
	}
}

// The answer is one error with a code, whatever is wrong with the arguments.
func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"frob"}, {"frob", "--frob"}, {"member"}, {"member", "frob"}, {"member", "frob", "-x"}, {"--frob"}, {"-x"}, {"-xyz"}, {"member", "list", "--frob=1"},
		{"member", "list", "extra"}, {"member", "show"}, {"member", "show", "a", "b"}, {"member", "list", "--timeout"}, {"member", "list", "--timeout="},
		{"member", "ban", "data/x", "--dry-run=maybe", "--reason", "r"}, {"token", "create", "--uses=-1"}, {"token", "create", "--ttl", "x"}, {"member", "list", "--kind", "frob"},
		{"member", "show", "data/"}, {"member", "show", "/x"}, {"join", "a", "b"}, {"completion"}, {"completion", "tcsh"}, {"completion", "a", "b"}, {"explain", "a", "b"},
		{"help", "frob"}, {"help", "member", "frob"}, {"token", "show", "short"}, {"token", "revoke", "fealty1_AAAABBBBCCCCDDDDEEEEFFFF"}, {"token", "show", "../members"},
	} {
		r := clitest.Run(t, args...).Want(t, int(errcode.ExitUsage), "fealty: error FE-", "fealty:   why: ", "fealty:   do:  ")
		if n := strings.Count(r.Stderr, "\n"); n != 3 || r.Stdout != "" || strings.Contains(r.Stderr, "BBBB") {
			t.Errorf("%v: %d lines on stderr, %q on stdout:\n%s", args, n, r.Stdout, r.Stderr)
		}
		r = clitest.Run(t, append([]string{"-o", "json"}, args...)...).Want(t, int(errcode.ExitUsage))
		e := clitest.JSONOf(t, r.Stderr)["error"].(map[string]any)
		if e["exit"] != float64(errcode.ExitUsage) || e["exit_words"] != "usage" || !strings.HasPrefix(e["code"].(string), "FE-") {
			t.Errorf("%v: %v", args, e)
		}
	}
}

func TestExplainEveryCode(t *testing.T) {
	for _, code := range errcode.Codes() {
		e, _ := errcode.Lookup(code)
		r := clitest.Run(t, "explain", string(code)).Want(t, 0)
		if !strings.HasPrefix(r.Stdout, "# "+string(code)+": "+e.Title+"\n") || !strings.Contains(r.Stdout, "Exit status of a command:") {
			t.Errorf("%s:\n%s", code, r.Stdout)
		}
		v := clitest.JSONOf(t, clitest.Run(t, "explain", string(code), "-o", "json").Want(t, 0).Stdout)
		if v["code"] != string(code) || v["page"] == "" || v["exit"] != float64(e.Exit) {
			t.Errorf("%s: %v", code, v)
		}
	}
}

// Colour needs a terminal, and NO_COLOR takes it away there.
func TestColour(t *testing.T) {
	for _, tt := range []struct {
		name string
		f    clitest.Fixture
		want bool
	}{
		{"file", clitest.Fixture{}, false},
		{"terminal", clitest.Fixture{Terminals: []any{"stderr"}}, true},
		{"NO_COLOR", clitest.Fixture{Terminals: []any{"stderr"}, Env: []string{"NO_COLOR=1"}}, false},
		{"dumb", clitest.Fixture{Terminals: []any{"stderr"}, Env: []string{"TERM=dumb"}}, false},
	} {
		r := tt.f.Run(t.Context(), "frob")
		if got := strings.Contains(r.Stderr, "\x1b["); got != tt.want {
			t.Errorf("%s: colour %v in %q", tt.name, got, r.Stderr)
		}
	}
	if r := (clitest.Fixture{Terminals: []any{"stdout"}, Width: 60}).Run(t.Context(), "authz"); r.Exit != 0 {
		t.Fatal(r.Stderr)
	} else {
		for line := range strings.SplitSeq(r.Stdout, "\n") {
			if n := term.Columns(stripColour(line)); n > 120 {
				t.Errorf("a line of %d columns on a narrow terminal: %s", n, line)
			}
		}
	}
}

func stripColour(s string) string {
	for {
		before, rest, ok := strings.Cut(s, "\x1b[")
		if !ok {
			return s
		}
		_, after, _ := strings.Cut(rest, "m")
		s = before + after
	}
}
