// Inside the package: it reads the pages as the other tests of the docs do.

package docs

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

// A claim of these pages is a row or a paragraph of one of these sections. It names a
// test, or its beginning stands in [withoutATest].
var claims = map[string][]string{
	"docs/explanation/threat-model.md": {"Who might try, and what stops them", "What this does not protect against"},
	"docs/explanation/failure-model.md": {
		"What fails, and what happens", "What a single coordinator costs", "What limits a node that works alone", "Invariants",
	},
	"docs/explanation/mutual-tls.md": {"The promises, and what holds them"},
}

// withoutATest is what promises nothing, is assumed, or is not built yet. It only shrinks.
var withoutATest = []string{
	"- **Traffic analysis.**",
	"| the coordinator's disk loses what it confirmed |",
}

var testName = regexp.MustCompile("`[a-z][a-z0-9/]*\\.Test[A-Z]\\w*`|`Test[A-Z]\\w*`")

// Each claim of the models, and of the page about mutual TLS, names a test. That it exists is
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

// Each row of a table has as many cells as its head: a bar within a cell would cut it in two.
func TestTablesAreWhole(t *testing.T) {
	t.Parallel()
	rows := 0
	for _, p := range pages(t) {
		cells := 0 // of the table that goes on
		for i, line := range p.prose() {
			if !strings.HasPrefix(line, "|") {
				cells = 0
				continue
			}
			n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") - 1
			switch {
			case cells == 0:
				cells = n
			case n != cells:
				t.Errorf("%s:%d: the row has %d cells, and its head %d: a bar within a cell is written \\|", p.path, i+1, n, cells)
			}
			rows++
		}
	}
	if rows < 500 {
		t.Errorf("%d rows were looked at", rows)
	}
}

// The page about trust names the interval of renewals that members are told.
func TestTrustPageNamesTheRenewal(t *testing.T) {
	t.Parallel()
	ttl := manifest.DefaultDegradedMax + manifest.DefaultSVIDMargin
	want := fmt.Sprintf("%d hours unless the manifest says otherwise, renewed about every %d minutes",
		int(ttl.Hours()), int(record.RenewEvery(ttl).Minutes()))
	for _, p := range pages(t) {
		if p.path == "docs/explanation/trust.md" && !strings.Contains(strings.Join(p.prose(), " "), want) {
			t.Errorf("%s does not say %q", p.path, want)
		}
	}
}

// familyOf reads what the keys of a family of the store begin with, out of the constant that says so.
var familyOf = regexp.MustCompile(`^"([a-z]+/)[a-z/]*"$`)

// The list of what is in the store has each family of keys that code names by a constant.
func TestStoreKeysAreListed(t *testing.T) {
	t.Parallel()
	listed := ""
	for _, p := range pages(t) {
		if p.path == "docs/reference/files-and-ports.md" {
			_, listed, _ = strings.Cut(strings.Join(p.lines, "\n"), "The content of the store, by key:")
		}
	}
	families := make(map[string]bool)
	for dir, files := range goSource(t).files {
		if !strings.HasPrefix(dir, "internal/coordinator") && !slices.Contains(
			[]string{"internal/history", "internal/auditlog", "internal/backup", "internal/store/sealed"}, dir) {
			continue
		}
		for name, f := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			for _, decl := range f.Decls {
				d, ok := decl.(*ast.GenDecl)
				if !ok || d.Tok != token.CONST {
					continue
				}
				for _, spec := range d.Specs {
					v := spec.(*ast.ValueSpec)
					for i, id := range v.Names {
						if i >= len(v.Values) || !strings.HasSuffix(id.Name, "Prefix") && !strings.HasSuffix(id.Name, "Key") {
							continue
						}
						if lit, ok := v.Values[i].(*ast.BasicLit); ok {
							if m := familyOf.FindStringSubmatch(lit.Value); m != nil {
								families[m[1]] = true
							}
						}
					}
				}
			}
		}
	}
	for family := range families {
		if !strings.Contains(listed, "`"+family) {
			t.Errorf("docs/reference/files-and-ports.md does not say what stands below %s in the store", family)
		}
	}
	if len(families) < 20 {
		t.Errorf("%d families were found: %v", len(families), families)
	}
}

var (
	numberedRow = regexp.MustCompile(`^\| \*\*([IF][0-9]+)[ .]`)
	numbered    = regexp.MustCompile(`\b[IF][0-9]{1,2}\b`)
)

// The invariants and rules that code, tests and pages name by their numbers are rows of the
// failure model and, with an F, of the page about fencing.
func TestInvariantsAreNumbered(t *testing.T) {
	t.Parallel()
	listed := make(map[string]bool)
	all := pages(t)
	for _, p := range all {
		if p.path != "docs/explanation/failure-model.md" && p.path != "docs/explanation/fencing.md" {
			continue
		}
		for _, line := range p.lines {
			if m := numberedRow.FindStringSubmatch(line); m != nil {
				if listed[m[1]] {
					t.Errorf("%s lists %s twice", p.path, m[1])
				}
				listed[m[1]] = true
			}
		}
	}
	named := 0
	look := func(path, text string) {
		for _, number := range numbered.FindAllString(text, -1) {
			named++
			if !listed[number] {
				t.Errorf("%s names %s, which no page lists", path, number)
			}
		}
	}
	for _, p := range all {
		look(p.path, strings.Join(p.prose(), "\n"))
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || strings.HasPrefix(d.Name(), ".") && path != root):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		raw, err := os.ReadFile(path)
		look(path, string(raw))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if named == 0 || len(listed) < 20 {
		t.Errorf("%d invariants are listed and %d named: this test looks at nothing", len(listed), named)
	}
}

// Each module is pinned by a hash of what is in it, none is put in the place of another,
// and the page about dependencies names those that the code uses.
func TestModulesArePinned(t *testing.T) {
	t.Parallel()
	read := func(name string) []byte {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	mod, err := modfile.Parse("go.mod", read("go.mod"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(mod.Replace) > 0 {
		t.Errorf("go.mod replaces %d modules", len(mod.Replace))
	}
	pinned := strings.Split(string(read("go.sum")), "\n")
	page := string(read("docs/explanation/dependencies.md"))
	for _, r := range mod.Require {
		begins := r.Mod.Path + " " + r.Mod.Version + " h1:"
		if !slices.ContainsFunc(pinned, func(line string) bool { return strings.HasPrefix(line, begins) }) {
			t.Errorf("go.sum has no hash of %s", r.Mod)
		}
		if !r.Indirect && !strings.Contains(page, "`"+r.Mod.Path+"`") {
			t.Errorf("the page about dependencies does not name %s", r.Mod.Path)
		}
	}
	if len(mod.Require) == 0 {
		t.Error("go.mod requires nothing")
	}
}

// The numbers that the README gives before its first command are those of the benchmarks.
func TestNumbersOfTheReadme(t *testing.T) {
	t.Parallel()
	text := make(map[string]string)
	for _, p := range pages(t) {
		text[p.path] = strings.Join(p.lines, "\n")
	}
	screen, _, ok := strings.Cut(text["README.md"], "```sh")
	if !ok {
		t.Error("the README has no command")
	}
	for said, measured := range map[string]string{
		"240 joins":                        "| `BenchmarkJoin/one-connection`, 1,155 joins | 240 |",
		"329 renewals":                     "| `BenchmarkRenew` | 329 |",
		"a ban at 10,000 agents in 1.24 s": "| 10,000, 5 rounds | 1.24 s |",
		"within 1.2 s (median)":            "| PostgreSQL | 1,128 ms |",
	} {
		if !strings.Contains(strings.ReplaceAll(screen, "\n", " "), said) {
			t.Errorf("the README says nothing like %q any more", said)
		}
		if !strings.Contains(text["docs/reference/benchmarks.md"], measured) {
			t.Errorf("the README says %q, and the benchmarks have no row %q", said, measured)
		}
	}
}

// The page about operating a cluster has each of the four things.
func TestOperateHasItsSections(t *testing.T) {
	t.Parallel()
	all := pages(t)
	i := slices.IndexFunc(all, func(p page) bool { return p.path == "docs/how-to/operate.md" })
	if i < 0 {
		t.Fatal("the page is gone")
	}
	headings := regexp.MustCompile(`(?m)^## .*$`).FindAllString(strings.Join(all[i].lines, "\n"), -1)
	for _, thing := range []string{"alerts", "a backup", "upgrade", "worst day"} {
		if !slices.ContainsFunc(headings, func(h string) bool { return strings.Contains(h, thing) }) {
			t.Errorf("%s has no section about %s: %q", all[i].path, thing, headings)
		}
	}
}

// The numbers that pages give of what they show, or of what the code has, are right.
func TestPagesCountRight(t *testing.T) {
	t.Parallel()
	numbers := map[string]int{"five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twenty": 20, "twenty-three": 23}
	text := make(map[string]string)
	for _, p := range pages(t) {
		text[p.path] = strings.Join(p.lines, "\n")
	}
	lines := func(path, begins string) int {
		return len(regexp.MustCompile(`(?m)^`+begins).FindAllString(text[path], -1))
	}
	for _, tc := range []struct {
		path, says string // with the number as a group
		is         int
	}{
		{"README.md", `signed snapshots of (\w+) scopes`, len(snapshot.Scopes())},
		{"README.md", `trust in (\w+) pictures`, lines("docs/explanation/trust.md", `## [0-9]\. `)},
		{"docs/README.md", `ten minutes and ([a-z-]+) commands`, lines("docs/tutorial/first-fleet.md", `fealty [a-z]`)},
		{"docs/how-to/use-the-library.md", `(\w+) packages are for that`, lines("docs/how-to/use-the-library.md", "\\| `[a-z/]+` \\|")},
	} {
		m := regexp.MustCompile(tc.says).FindStringSubmatch(text[tc.path])
		if m == nil {
			t.Errorf("%s says nothing like %q any more", tc.path, tc.says)
		} else if said, ok := numbers[strings.ToLower(m[1])]; !ok || said != tc.is {
			t.Errorf("%s says %q, and there are %d", tc.path, m[0], tc.is)
		}
	}
}
