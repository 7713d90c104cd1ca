package docs

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// What make bench-compare writes stands between these lines.
const (
	comparedFrom = "<!-- make bench-compare writes from here -->"
	comparedTo   = "<!-- to here -->"
)

// compared returns what a page has between the lines of make bench-compare.
func compared(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(raw), comparedFrom+"\n")
	text, _, ended := strings.Cut(rest, comparedTo+"\n")
	if !ok || !ended {
		t.Fatalf("%s has no lines %q and %q", path, comparedFrom, comparedTo)
	}
	return text
}

// comparedRow is a row of the table: what, against whom, and the ratio.
type comparedRow struct{ what, peer, ratio string }

func comparedRows(t *testing.T) []comparedRow {
	t.Helper()
	var rows []comparedRow
	for line := range strings.Lines(compared(t, "docs/reference/benchmarks.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 8 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if cells[0] == "what" || strings.HasPrefix(cells[0], "---") {
			continue
		}
		rows = append(rows, comparedRow{cells[0], cells[1], cells[5]})
	}
	if len(rows) == 0 {
		t.Fatal("the table of the comparison has no rows")
	}
	return rows
}

// The README shows four numbers of the comparison with peers, and they are those of the table.
func TestComparisonInTheReadme(t *testing.T) {
	t.Parallel()
	known := make(map[comparedRow]bool)
	for _, r := range comparedRows(t) {
		known[r] = true
	}
	shown := regexp.MustCompile(`^- (.*): \*\*(.*)\*\* × (.*)$`)
	n := 0
	for line := range strings.Lines(compared(t, "README.md")) {
		m := shown.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			t.Errorf("the README has %q among its numbers of the comparison", line)
			continue
		}
		n++
		if r := (comparedRow{m[1], m[3], m[2]}); !known[r] {
			t.Errorf("the README says %q, and the table has no such row", line)
		}
	}
	if n != 4 {
		t.Errorf("the README shows %d numbers of the comparison, want 4", n)
	}
}

// The picture shows the rows of the table, and needs nothing but itself.
func TestComparisonAsAPicture(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(root, "docs", "reference", "benchmarks.svg"))
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	d := xml.NewDecoder(strings.NewReader(string(raw)))
	inText := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			inText = token.Name.Local == "text"
			switch token.Name.Local {
			case "svg", "title", "rect", "line", "text":
			default:
				t.Errorf("the picture has an element %s", token.Name.Local)
			}
			for _, a := range token.Attr {
				if strings.Contains(a.Value, "url(") || strings.Contains(a.Name.Local, "href") || strings.HasPrefix(a.Name.Local, "on") {
					t.Errorf("the picture asks for something else: %s=%q", a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			if inText {
				texts = append(texts, string(token))
			}
		case xml.EndElement:
			inText = false
		}
	}
	drawn := strings.Join(texts, "\n") + "\n"
	for _, r := range comparedRows(t) {
		if !strings.Contains(drawn, r.what+", "+r.peer+"\n"+r.ratio+"\n") {
			t.Errorf("the picture has no bar %q, %s with %s", r.what, r.peer, r.ratio)
		}
	}
}

// The peers are a module of their own: its only replacement is the product, each peer is pinned, and the page about dependencies
// names it with its release. None of them that the product does not use is in the module graph of the product.
func TestPeersAreDocumented(t *testing.T) {
	t.Parallel()
	read := func(name string) *modfile.File {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		mod, err := modfile.Parse(name, raw, nil)
		if err != nil {
			t.Fatal(err)
		}
		return mod
	}
	mod, product := read("bench/compare/go.mod"), read("go.mod")
	raw, err := os.ReadFile(filepath.Join(root, "docs", "explanation", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, page, ok := strings.Cut(string(raw), "## Peers that Fealty is compared with\n")
	page, _, ended := strings.Cut(page, "\n## ")
	if !ok || !ended {
		t.Fatal("the page about dependencies has no section about peers")
	}
	if len(mod.Replace) != 1 || mod.Replace[0].Old.Path != product.Module.Mod.Path || mod.Replace[0].New.Path != "../.." {
		t.Errorf("bench/compare/go.mod replaces %v, want the product alone", mod.Replace)
	}
	used := make(map[string]string)
	for _, r := range product.Require {
		used[r.Mod.Path] = r.Mod.Version
	}
	peers := 0
	for _, r := range mod.Require {
		version, shared := used[r.Mod.Path]
		switch {
		case r.Mod.Path == product.Module.Mod.Path:
		case shared:
			if version != r.Mod.Version {
				t.Errorf("the comparison has %s, and the product %s: run go mod tidy in bench/compare, or it measures another product", r.Mod, version)
			}
		case !r.Indirect:
			peers++
			if release := strings.TrimPrefix(r.Mod.Version, "v"); !strings.Contains(page, "`"+r.Mod.Path+"`") || !strings.Contains(page, release) {
				t.Errorf("the section about peers does not name %s", r.Mod)
			}
		}
	}
	if peers == 0 {
		t.Error("there are no peers")
	}
}
