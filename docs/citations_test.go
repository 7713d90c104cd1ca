// Inside the package: it reads the pages and the sources as the other tests of the docs do.

package docs

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	citedPage = regexp.MustCompile(`(?:^|[^\w./*-])((?:\.\./|[\w-]+/)*[\w-]+\.md)(?:#([\w-]+))?`)
	// elsewhere is cited with the standard that it belongs to.
	elsewhere = regexp.MustCompile(`DSSE v1\.0\.2, protocol\.md`)
	// nowhere is how documents are cited that a reader of the sources does not have.
	nowhere = regexp.MustCompile(`(?i)\bthe (?:first )?design\b|\b(?:design|paper): |\bthe paper\b|\bof the notes\b|\bissue [0-9]+\b`)
	// nowhereWords are those without which nowhere matches nothing: few texts have one, and each is soon told.
	nowhereWords = []string{"design", "paper", "notes", "issue"}
)

// unresolved returns the citations of a text that lead nowhere. A page is cited by its path
// from the root of the module, or as a link from a page in folder.
func unresolved(text, folder string) []string {
	var out []string
	if lower := strings.ToLower(text); slices.ContainsFunc(nowhereWords, func(word string) bool { return strings.Contains(lower, word) }) {
		for _, cited := range nowhere.FindAllString(text, -1) {
			out = append(out, "a document that is not in the repository is cited: "+cited)
		}
	}
	if !strings.Contains(text, ".md") {
		return out
	}
	text = elsewhere.ReplaceAllString(text, "")
	for _, m := range citedPage.FindAllStringSubmatch(text, -1) {
		raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m[1])))
		if err != nil && folder != "" {
			raw, err = os.ReadFile(filepath.Join(root, folder, filepath.FromSlash(m[1])))
		}
		switch {
		case err != nil:
			out = append(out, m[1]+" is not in the repository")
		case m[2] != "" && !slices.Contains(anchors(string(raw)), m[2]):
			out = append(out, m[1]+" has no heading #"+m[2])
		}
	}
	return out
}

// Pages, comments and strings of the code cite no document but those of the repository, by
// headings that they have.
func TestCitations(t *testing.T) {
	t.Parallel()
	cited := 0
	look := func(path string, line int, text, folder string) {
		if strings.Contains(text, ".md") {
			cited += len(citedPage.FindAllString(text, -1))
		}
		for _, problem := range unresolved(text, folder) {
			t.Errorf("%s:%d: %s", path, line, problem)
		}
	}
	for _, p := range pages(t) {
		for _, of := range p.paragraphs() {
			// Links to other sites and anchors are for TestLinks.
			look(p.path, of.line, link.ReplaceAllString(of.text, "]"), filepath.Dir(p.path))
		}
	}
	src := goSource(t)
	for dir, files := range src.files {
		for name, f := range files {
			path := dir + "/" + name
			for _, of := range src.commentParagraphs(f) {
				look(path, of.line, of.text, dir) // a page may stand beside the code
			}
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			folder := dir
			if strings.HasPrefix(dir, "internal/cli") {
				folder = "docs/reference" // of the pages that are made of its strings
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
					look(path, src.set.Position(s.Pos()).Line, s.Value, folder)
				}
				return true
			})
		}
	}
	if cited < 100 {
		t.Errorf("%d citations were found: this test looks at nothing", cited)
	}
}

func TestUnresolved(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"see docs/architecture.md.":                            "",
		"see docs/architecture.md#the-houses":                  "",
		"(docs/architecture.md#the-old-houses)":                "docs/architecture.md has no heading #the-old-houses",
		"docs/design/store.md":                                 "docs/design/store.md is not in the repository",
		"snapshots.md, Scopes":                                 "snapshots.md is not in the repository",
		"after DSSE v1.0.2, protocol.md, \"Signature\"":        "",
		"each file *.md":                                       "",
		"by the numbers of the design":                         "a document that is not in the repository is cited: the design",
		"rule 12 of the notes":                                 "a document that is not in the repository is cited: of the notes",
		"what the plan of a shard says, and notes of a member": "",
	} {
		if got := strings.Join(unresolved(text, ""), "; "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := unresolved("../how-to/monitor.md and limits.md#fencing", "docs/reference"); len(got) > 0 {
		t.Errorf("links from a page: %q", got)
	}
}

var codeSpan = regexp.MustCompile("`[^`]*`")

// mask puts letters in the place of code, which ends no sentence and no cell.
func mask(text string) string {
	return codeSpan.ReplaceAllStringFunc(text, func(code string) string { return strings.Repeat("x", len(code)) })
}

// paragraph is a stretch of prose.
type paragraph struct {
	line int // of its beginning, counted from 1
	text string
}

// paragraphs returns the paragraphs, items and cells of a page. Headings, heads of tables
// and blocks are none.
func (p page) paragraphs() []paragraph {
	var out []paragraph
	open := false
	lines := p.prose()
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "", strings.HasPrefix(line, "#"), comment.MatchString(trimmed):
			open = false
		case strings.HasPrefix(trimmed, "|"):
			open = false
			if i+1 < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[i+1]), "| ---") {
				continue
			}
			at := 0
			for cell := range strings.SplitSeq(mask(trimmed), "|") {
				out = append(out, paragraph{i + 1, strings.TrimSpace(trimmed[at : at+len(cell)])})
				at += len(cell) + 1
			}
		case open && !item.MatchString(line):
			out[len(out)-1].text += " " + trimmed
		default:
			out = append(out, paragraph{i + 1, trimmed})
			open = true
		}
	}
	return out
}

var item = regexp.MustCompile(`^\s*(?:[-*]|[0-9]+\.)\s`)

// joined gathers lines into paragraphs: an empty line or an item ends the one before.
type joined struct {
	out  []paragraph
	open bool // the last one goes on with the next line
}

func (j *joined) add(at int, line string) {
	trimmed := strings.TrimSpace(line)
	switch {
	case trimmed == "":
		j.open = false
	case j.open && !item.MatchString(line):
		j.out[len(j.out)-1].text += " " + trimmed
	default:
		j.out = append(j.out, paragraph{at, trimmed})
		j.open = true
	}
}

// commentParagraphs returns those of the comments of a file. A line that begins with # is a
// heading.
func (s *source) commentParagraphs(f *ast.File) []paragraph {
	var j joined
	for _, group := range f.Comments {
		j.open = false
		for _, c := range group.List {
			first := s.set.Position(c.Pos()).Line
			text := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(c.Text, "/*"), "//"), "*/")
			for i, line := range strings.Split(text, "\n") {
				if strings.HasPrefix(strings.TrimSpace(line), "# ") {
					line = ""
				}
				j.add(first+i, line)
			}
		}
	}
	return j.out
}
