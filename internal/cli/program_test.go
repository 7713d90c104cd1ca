package cli_test

import (
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/program"
)

// Commands are printed under the name by which the program was called, wherever a
// person may paste them from; what programs read does not depend on it.
func TestPrintedCommands(t *testing.T) {
	f := clitest.Fixture{Program: "./bin/fealty", Dir: t.TempDir()}
	for _, c := range []struct {
		args string
		want string
	}{
		{"mumble", "see them all with ./bin/fealty --help"},
		{"explain FE-U108", "./bin/fealty member list, ./bin/fealty token list"},
		{"explain", "./bin/fealty explain config lists them"},
		{"token create --help", "\n  ./bin/fealty token create --entry nodes\n"},
		{"agent --data d", "join it with ./bin/fealty join --token-file FILE"},
	} {
		r := f.Run(t.Context(), strings.Fields(c.args)...)
		if got := r.Stdout + r.Stderr; !strings.Contains(got, c.want) {
			t.Errorf("fealty %s does not say %q:\n%s", c.args, c.want, got)
		}
	}
	if r := f.Run(t.Context(), "agent", "--data", "d", "-o", "json"); !strings.Contains(r.Stderr, "join it with fealty join --token-file FILE") {
		t.Errorf("in JSON:\n%s", r.Stderr)
	}
	c := program.New(program.Env{Program: "/a b/$1", Args: []string{"version"}})
	c.Run(t.Context(), cli.Tree())
	const text = "fealty status; /usr/bin/fealty status; fealty statues; a fealty of mine; fealty --version"
	if got, want := c.Called(text), "/a b/$1 status; /usr/bin/fealty status; fealty statues; a fealty of mine; /a b/$1 --version"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
