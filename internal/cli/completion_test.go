package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/cli/clitest"
)

// The script of bash works in a bash that has nothing but the script: most servers and containers have no package
// bash-completion. What the program would answer is written down by the one that the script calls here.
func TestBashCompletionNeedsBashAlone(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	got := clitest.Run(t, "completion", "bash")
	if got.Exit != 0 {
		t.Fatal(got.Stderr)
	}
	dir := t.TempDir()
	script, asked := filepath.Join(dir, "fealty.bash"), filepath.Join(dir, "asked")
	fake := "#!/bin/sh\nprintf '[%s]' \"$@\" > " + asked + "\nprintf 'data/node-a\\ndata/node-b\\n:4\\n'\n"
	for path, text := range map[string]string{script: got.Stdout, filepath.Join(dir, "fealty"): fake} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		line   string   // up to the cursor
		pieces []string // as bash divides it by COMP_WORDBREAKS
		asked  string
		want   string
	}{
		{"fealty member show ", []string{"fealty", "member", "show", ""}, "[__complete][member][show][]", "data/node-a data/node-b"},
		{"fealty member show data/node-b", []string{"fealty", "member", "show", "data/node-b"},
			"[__complete][member][show][data/node-b]", "data/node-b"},
		{"fealty member list --kind=da", []string{"fealty", "member", "list", "--kind", "=", "da"},
			"[__complete][member][list][--kind=da]", "data/node-a data/node-b"},
		{"fealty member show --coordinator a:1 d", []string{"fealty", "member", "show", "--coordinator", "a", ":", "1", "d"},
			"[__complete][member][show][--coordinator][a:1][d]", "data/node-a data/node-b"},
	} {
		quoted := make([]string, len(row.pieces))
		for i, p := range row.pieces {
			quoted[i] = "'" + p + "'"
		}
		run := "set -eu; . " + script + "; set +e; PATH=" + dir + ":$PATH COMP_TYPE=9\n" +
			"COMP_LINE='" + row.line + "' COMP_POINT=" + strconv.Itoa(len(row.line)) + " COMP_CWORD=" + strconv.Itoa(len(row.pieces)-1) +
			" COMP_WORDS=(" + strings.Join(quoted, " ") + ")\n__start_fealty\nprintf '%s\\n' \"${COMPREPLY[@]-}\""
		cmd := exec.Command(bash, "--noprofile", "--norc", "-c", run)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		offered := strings.Fields(string(out))
		slices.Sort(offered)
		if err != nil || strings.Join(offered, " ") != row.want {
			t.Errorf("%s: %v, offered %q, want %q:\n%s", row.line, err, offered, row.want, stderr.String())
		}
		if text, err := os.ReadFile(asked); err != nil || string(text) != row.asked {
			t.Errorf("%s: it asked %s, want %s (%v)", row.line, text, row.asked, err)
		}
		os.Remove(asked)
	}
}
