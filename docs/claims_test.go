// Inside the package: it reads the pages as the other tests of the docs do.

package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A claim of the two models is a row or a paragraph of one of these sections. It names a
// test, or its beginning stands in [withoutATest].
var claims = map[string][]string{
	"docs/explanation/threat-model.md": {"Who might try, and what stops them", "What this does not protect against"},
	"docs/explanation/failure-model.md": {
		"What fails, and what happens", "What a single coordinator costs", "What limits a node that works alone", "Invariants",
	},
}

// withoutATest is what promises nothing, is assumed, or is not built yet. It only shrinks.
var withoutATest = []string{
	"- **What a member does with what it may do.**",
	"- **Traffic analysis.**",
	"- **The supply of Go, its modules and this code.**",
	"| the coordinator's disk loses what it confirmed |",
	"| **I5 Once** |",
	"| **I6 Fence** |",
	"| **I7 One owner** |",
	"| **I17 Rails** |",
	"Numbers are those that code and tests refer to.",
}

var testName = regexp.MustCompile("`[a-z][a-z0-9/]*\\.Test[A-Z]\\w*`|`Test[A-Z]\\w*`")

// Each claim of the threat model and of the failure model names a test. That it exists is
// for [TestTests].
func TestClaimsNameTheirTests(t *testing.T) {
	excused := make(map[string]bool)
	for path, sections := range claims {
		found := make(map[string]int)
		for _, p := range pages(t) {
			if p.path != path {
				continue
			}
			section, claim := "", ""
			end := func(line int) {
				text := claim
				claim = ""
				if text == "" || !slices.Contains(sections, section) {
					return
				}
				found[section]++
				i := slices.IndexFunc(withoutATest, func(begins string) bool { return strings.HasPrefix(text, begins) })
				if i >= 0 {
					excused[withoutATest[i]] = true
				}
				if named := testName.MatchString(text); named == (i >= 0) {
					t.Errorf("%s:%d: names a test: %v; stands in the list of those without: %v: %.80s…", path, line, named, i >= 0, text)
				}
			}
			for i, line := range p.prose() {
				switch row := strings.HasPrefix(line, "| "); {
				case strings.HasPrefix(line, "#"):
					end(i)
					section = strings.TrimLeft(line, "# ")
				case row && i+1 < len(p.lines) && strings.HasPrefix(p.lines[i+1], "| --- "), strings.HasPrefix(line, "| --- "):
					end(i) // the head of a table
				case row, strings.HasPrefix(line, "- "):
					end(i)
					claim = line
				case strings.TrimSpace(line) == "":
					end(i)
				default:
					claim = strings.TrimSpace(claim + " " + strings.TrimSpace(line))
				}
			}
			end(len(p.lines))
		}
		for _, s := range sections {
			if found[s] == 0 {
				t.Errorf("%s has no claim below %q", path, s)
			}
		}
	}
	for _, begins := range withoutATest {
		if !excused[begins] {
			t.Errorf("no claim begins with %q any more: take it out of the list", begins)
		}
	}
}
