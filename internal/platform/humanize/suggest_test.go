package humanize_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/humanize"
)

func TestGuess(t *testing.T) {
	names := []string{"list", "show", "wait", "replace", "remove", "ban", "unban"}
	for in, want := range map[string]string{
		"lsit": "list", "shw": "show", "rmove": "remove", "Ban": "ban", "unbann": "unban", "waite": "wait",
		"xyzzyx": "", "": "", "repl": "replace",
		"prt": "", "lost": "list", "wat": "wait", "bun": "ban", "stop": "", "clear": "", "removal": "remove",
	} {
		got := humanize.Suggest(in, names)
		if want == "" && got != "" || want != "" && got != "did you mean "+want+"?" {
			t.Errorf("guess(%q) = %q, want %q", in, got, want)
		}
	}
	if d := humanize.Distance(strings.Repeat("a", 1000), strings.Repeat("b", 1000)); d != 1000 {
		t.Errorf("long texts are %d apart", d)
	}
	if got := humanize.Suggest("fsh", []string{"bash", "zsh", "fish"}); got != "did you mean fish?" {
		t.Errorf("of equals the one with the same first letter is meant, not %q", got)
	}
	if !slices.Contains(names, "list") {
		t.Error("guess changed its argument")
	}
}
