package cli_test

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/reference"
)

// Each command has its page of the manual, with all of its flags, and nothing in one is taken for a request to troff.
func TestManual(t *testing.T) {
	pages := reference.ManPages(cli.Tree(), "v0.1.0", "2026-11-30")
	if again := reference.ManPages(cli.Tree(), "v0.1.0", "2026-11-30"); !maps.EqualFunc(pages, again, bytes.Equal) {
		t.Error("the pages are others the second time")
	}
	unmet := maps.Clone(pages)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if !cmd.IsAvailableCommand() && cmd.HasParent() || cmd.Name() == "help" {
			return
		}
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		page := string(pages[name])
		delete(unmet, name)
		if !strings.Contains(page, ".SH NAME\n") || !strings.Contains(page, `"2026\-11\-30" "fealty v0.1.0"`) {
			t.Errorf("%s does not begin as a page of this release:\n%.300s", name, page)
		}
		for _, usage := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z-]+)`).FindAllStringSubmatch(cmd.LocalNonPersistentFlags().FlagUsages(), -1) {
			if usage[1] != "--help" && cmd.HasParent() && !strings.Contains(page, strings.ReplaceAll(usage[1], "-", `\-`)+`\fR`) {
				t.Errorf("%s does not have %s", name, usage[1])
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(cli.Tree())
	for _, name := range slices.Sorted(maps.Keys(unmet)) {
		t.Errorf("%s is the page of no command", name)
	}
	if len(pages) < 50 {
		t.Errorf("there are %d pages", len(pages))
	}
	request := regexp.MustCompile(`^\.(TH|SH|TP|PP|nf|fi|BR)\b`)
	for name, page := range pages {
		for i, line := range strings.Split(string(page), "\n") {
			if (strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'")) && !request.MatchString(line) {
				t.Errorf("%s:%d: troff takes %q for a request", name, i+1, line)
			}
			if at := strings.IndexFunc(line, func(r rune) bool { return r > 126 }); at >= 0 {
				t.Errorf("%s:%d: %q has what some terminals cannot show", name, i+1, line[at:])
			}
		}
	}
}

// Text that troff would take for something else is shown as it is.
func TestManualShowsTextAsItIs(t *testing.T) {
	cmd := &cobra.Command{Use: "x", Short: "a", Long: ".SH dot first\n'quote first\n\nC:\\path - a\n\n  kept\n    as it is",
		Run: func(*cobra.Command, []string) {}}
	page := string(reference.ManPages(cmd, "v1", "d")["x.1"])
	want := ".SH DESCRIPTION\n.PP\n\\&.SH dot first\n\\&'quote first\n.PP\nC:\\epath \\- a\n.PP\n.nf\n  kept\n    as it is\n.fi\n"
	if !strings.Contains(page, want) {
		t.Errorf("the page is\n%s\nand has not\n%s", page, want)
	}
}
