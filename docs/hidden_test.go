// Inside the package: it judges the pages by what session_test.go runs of them.

package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A reader has what the page shows and nothing else. These lists hold what is not so yet; they only
// shrink: a page that needs a new entry is to be written in another way.
var (
	// hidden are the commands that a test runs in place of what a page shows.
	hidden = map[string]int{
		"README.md": 1, // make run, in a folder of its own and without building the program again
	}
	// notRun are the blocks that no test runs. A how-to names them in its first line.
	notRun = map[string]int{
		"README.md":                    2, // make run, make test
		"docs/tutorial/first-fleet.md": 1, // make build

		"docs/how-to/run-on-kubernetes.md":     2, // kubectl
		"docs/how-to/install-from-packages.md": 3, // apt, systemctl; test/release installs the deb on an empty root, and judges the units
	}
	// notRunAtAll are the how-tos without a block that is run.
	notRunAtAll = []string{"docs/how-to/run-on-kubernetes.md", "docs/how-to/install-from-packages.md"}
)

// firstLine begins the first line of a how-to that needs what a test cannot have.
const firstLine = "Not run by a test"

// No page that is run has commands, files or stops that its reader does not see.
func TestNothingIsHidden(t *testing.T) {
	known := []*regexp.Regexp{
		runLine, behindLine, startLine, stopLine, fileLine, notRunLine,
		regexp.MustCompile("^(output|" + bothLine + "|" + nightLine + "|" + enoughLine + ")$"),
	}
	ran := 0
	for _, p := range pages(t) {
		if p.path == "docs/README.md" {
			for _, r := range standsFor {
				says := func(line string) bool { return strings.HasPrefix(line, "| "+r.shown) }
				if !slices.ContainsFunc(p.lines, says) {
					t.Errorf("%s does not say what stands for %s in a test", p.path, r.shown)
				}
			}
		}
		if !isRun(p) {
			continue
		}
		ran++
		comments := make(map[string]int)
		section := "" // what the reader saw since the last heading
		for i, line := range p.prose() {
			m := comment.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				if strings.HasPrefix(line, "#") {
					section = ""
				}
				section += line + "\n"
				continue
			}
			if mark := strings.TrimSpace(line); mark == comparedFrom || mark == comparedTo {
				continue // a tool writes what stands between them, and readers see it
			}
			if !slices.ContainsFunc(known, func(r *regexp.Regexp) bool { return r.MatchString(m[1]) }) {
				t.Errorf("%s:%d: nothing is known that is called %q", p.path, i+1, m[1])
			}
			word, _, _ := strings.Cut(m[1], " ")
			comments[strings.TrimSuffix(word, ",")]++
			if v := fileLine.FindStringSubmatch(m[1]); v != nil && !strings.Contains(section, "`"+v[1]+"`") {
				t.Errorf("%s:%d: the page does not say that this is the file %s", p.path, i+1, v[1])
			}
			if stopLine.MatchString(m[1]) && !stopWord.MatchString(section) {
				t.Errorf("%s:%d: the page does not say that something is stopped here", p.path, i+1)
			}
		}
		if comments["start"] != hidden[p.path] {
			t.Errorf("%s has %d commands that a reader does not see, the list says %d", p.path, comments["start"], hidden[p.path])
		}
		if comments["not"] != notRun[p.path] {
			t.Errorf("%s has %d blocks that are not run, the list says %d", p.path, comments["not"], notRun[p.path])
		}
		if !strings.HasPrefix(p.path, "docs/how-to/") {
			continue
		}
		whole := slices.Contains(notRunAtAll, p.path)
		if whole != (comments["run"] == 0) {
			t.Errorf("%s has %d blocks that are run; in the list of pages without: %v", p.path, comments["run"], whole)
		}
		says := len(p.lines) > 2 && strings.HasPrefix(p.lines[2], firstLine)
		if says != (whole || notRun[p.path] > 0) {
			t.Errorf("%s: begins with %q: %v, and has %d blocks that are not run", p.path, firstLine, says, notRun[p.path])
		}
	}
	for _, list := range []map[string]int{hidden, notRun} {
		for path := range list {
			if !slices.ContainsFunc(pages(t), func(p page) bool { return p.path == path }) {
				t.Errorf("%s is in a list, and is gone", path)
			}
		}
	}
	if ran < 5 {
		t.Errorf("%d pages were looked at", ran)
	}
}

var stopWord = regexp.MustCompile(`(?i)\bstop\b|Ctrl-C`)

// isRun reports whether the blocks of a page are run by [TestPages].
func isRun(p page) bool {
	return p.path == "README.md" || strings.HasPrefix(p.path, "docs/tutorial/") || strings.HasPrefix(p.path, "docs/how-to/")
}
