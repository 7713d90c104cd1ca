// Inside the package: it reads the pages and the sources as the other tests of the docs do.

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A sentence says who does something and then what, so that it can be read once. One that
// begins with a clause in the place of its subject ("What a node has stored is …") makes
// the reader keep it in mind until the verb comes.
//
// Questions begin with these words as well: they end in a question mark. So do headings,
// which name what a section answers, and heads of tables.
var (
	clause   = regexp.MustCompile(`^(?:Who|Whom|Whose|Whoever|What|Whatever)(?:[ ,'’]|$)`)
	endOf    = regexp.MustCompile(`[.!?:]["”)*_]*\s+`)
	codeSpan = regexp.MustCompile("`[^`]*`")
	marks    = regexp.MustCompile(`^[\s>]*(?:(?:[-*]|[0-9]+\.)\s+)?[*_("“\[]*`)
)

// mayBegin reports whether a text holds one of the words at all. Most hold none, and all
// that follows is slow.
func mayBegin(text string) bool {
	return strings.Contains(text, "Who") || strings.Contains(text, "What")
}

// beginsWithAClause returns the sentences of a paragraph that do.
func beginsWithAClause(text string) []string {
	if !mayBegin(text) {
		return nil
	}
	masked := mask(text)
	var out []string
	for from := 0; from < len(text); {
		to := len(text)
		if end := endOf.FindStringIndex(masked[from:]); end != nil {
			to = from + end[1]
		}
		sentence := strings.TrimSpace(marks.ReplaceAllString(text[from:to], ""))
		if clause.MatchString(sentence) && !strings.HasSuffix(strings.TrimRight(sentence, `"”)*_`), "?") {
			out = append(out, sentence)
		}
		from = to
	}
	return out
}

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

// stop is the end of a sentence. A literal without one is a heading or a label.
var stop = regexp.MustCompile(`[.!?:]["”)*_]*(?:\s|$)`)

// literalParagraphs returns the prose of the string literals of a file that [mayBegin] so.
// Literals that are added are one text, in which x stands for an operand of another sort.
// The # of a comment that a literal writes is left out.
func (s *source) literalParagraphs(f *ast.File) []paragraph {
	var j joined
	var visit func(ast.Node) bool
	var value func(ast.Expr) string
	value = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BinaryExpr:
			if e.Op == token.ADD {
				return value(e.X) + value(e.Y)
			}
		case *ast.BasicLit:
			if v, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
				return v
			}
		}
		ast.Inspect(e, visit)
		return "x"
	}
	visit = func(n ast.Node) bool {
		var text string
		switch e := n.(type) {
		case *ast.BinaryExpr:
			if e.Op != token.ADD {
				return true
			}
			text = value(e)
		case *ast.BasicLit:
			if e.Kind != token.STRING {
				return false
			}
			text = value(e)
		default:
			return true
		}
		if mayBegin(text) {
			j.open = false
			for line := range strings.SplitSeq(text, "\n") {
				j.add(s.set.Position(n.Pos()).Line, strings.TrimLeft(line, "# "))
			}
		}
		return false
	}
	ast.Inspect(f, visit)
	return slices.DeleteFunc(j.out, func(of paragraph) bool {
		return !strings.Contains(of.text, " ") || !stop.MatchString(of.text)
	})
}

// markedParagraphs returns those of the comments of a text in which a mark begins each
// comment, alone on its line or after a space.
func markedParagraphs(text, mark string) []paragraph {
	var j joined
	for i, line := range strings.Split(text, "\n") {
		if i == 0 && strings.HasPrefix(line, "#!") {
			continue // which names the interpreter
		}
		if said, alone := strings.CutPrefix(strings.TrimSpace(line), mark); alone {
			j.add(i+1, said)
			continue
		}
		j.open = false
		if _, said, found := strings.Cut(line, " "+mark+" "); found {
			j.add(i+1, said)
			j.open = false
		}
	}
	return j.out
}

// markOf returns the mark that begins comments in a file that is neither a page nor Go.
func markOf(path string) string {
	switch filepath.Ext(path) {
	case ".proto":
		return "//"
	case ".sh", ".txtar", ".yaml", ".yml", ".mod":
		return "#"
	}
	if base := filepath.Base(path); base == "Makefile" || base == "run" && filepath.Base(filepath.Dir(path)) == ".ci" {
		return "#"
	}
	return ""
}

// markedFiles calls look with each file that has a [markOf] its own, and its text.
func markedFiles(t *testing.T, look func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root && d.Name() != ".ci" || d.Name() == "bin"):
			return fs.SkipDir
		case d.IsDir() || markOf(path) == "":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		look(filepath.ToSlash(rel), string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// No sentence of a page, of a comment or of what a program prints begins with a clause in
// the place of its subject.
func TestSentencesBeginWithASubject(t *testing.T) {
	t.Parallel()
	looked := 0
	look := func(file string, of paragraph) {
		looked++
		for _, sentence := range beginsWithAClause(of.text) {
			t.Errorf("%s:%d: begins with a clause: %.90s", file, of.line, sentence)
		}
	}
	for _, p := range pages(t) {
		for _, of := range p.paragraphs() {
			look(p.path, of)
		}
	}
	src := goSource(t)
	for _, dir := range slices.Sorted(maps.Keys(src.files)) {
		for _, name := range slices.Sorted(maps.Keys(src.files[dir])) {
			for _, of := range src.commentParagraphs(src.files[dir][name]) {
				look(dir+"/"+name, of)
			}
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			for _, of := range src.literalParagraphs(src.files[dir][name]) {
				look(dir+"/"+name, of)
			}
		}
	}
	sorts := make(map[string]int)
	markedFiles(t, func(path, text string) {
		sorts[filepath.Ext(path)]++
		if !mayBegin(text) {
			return
		}
		for _, of := range markedParagraphs(text, markOf(path)) {
			look(path, of)
		}
	})
	for ext, least := range map[string]int{".proto": 30, ".txtar": 30, ".sh": 8, ".yaml": 4, "": 2} {
		if sorts[ext] < least {
			t.Errorf("only %d files %q were found, fewer than %d: this test looks at little", sorts[ext], ext, least)
		}
	}
	if looked < 10_000 {
		t.Errorf("only %d paragraphs were found: this test looks at little", looked)
	}
}

// The sentences that [beginsWithAClause] is to find, and those that it is to leave alone.
func TestBeginsWithAClause(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"What is stored is signed.":                         1,
		"Who leads signs.":                                  1,
		"Whoever leads signs. The others follow.":           1,
		"The leader signs. What it signs is kept.":          1,
		"A rule: What it says holds.":                       1,
		"- **Who reads a token first.** It joins.":          1,
		"\"What is stored\" is a name.":                     1,
		"Whatever happens (`a. b`), it holds.":              1,
		"What, then, is stored?":                            0,
		"Who leads? The one that holds the lease.":          0,
		"A node keeps what it verified, and says who knows": 0,
		"`x. What` is code, v1.2 What is a number":          0,
		"Whole files are kept. Whose?":                      0,
	} {
		if got := beginsWithAClause(text); len(got) != want {
			t.Errorf("%q: found %q, want %d", text, got, want)
		}
	}
	p := page{"x.md", strings.Split("# What is stored\n\n| What | Who |\n| --- | --- |\n| What a | b `c|What` |\n\nIt is\n"+
		"so. What\nis stored is kept.\n- What else\n\n```text\nWhat is shown.\n```", "\n")}
	var got []int
	for _, of := range p.paragraphs() {
		for range beginsWithAClause(of.text) {
			got = append(got, of.line)
		}
	}
	if want := []int{5, 7, 10}; !slices.Equal(got, want) {
		t.Errorf("found in the paragraphs of lines %v, want %v", got, want)
	}
}

// Comments of other files than Go, and literals of Go, are found where they are.
func TestBeginsWithAClauseElsewhere(t *testing.T) {
	t.Parallel()
	found := func(in []paragraph) []int {
		var lines []int
		for _, of := range in {
			for range beginsWithAClause(of.text) {
				lines = append(lines, of.line)
			}
		}
		return lines
	}
	for name, c := range map[string]struct {
		path, text string
		want       []int
	}{
		"proto": {"api/a.proto", "// What it holds.\nmessage A {\n  // It is\n  // What is signed.\n  // Kept. Who\n" +
			"  // leads signs.\n\n  // Names\n  //\n  // What follows.\n  string a = 1; // Whom it is for.\n" +
			"  string b = 2 [(x) = \"What a. What b\"];\n}\n", []int{1, 3, 10, 11}},
		"script": {"tools/a.sh", "#!/bin/sh\n# What it does.\necho 'What a.' # Who leads signs.\n" +
			"# Whole\n#\n# What is so\necho ${a#What a}\n", []int{2, 3, 6}},
		"txtar": {"testdata/a.txtar", "# Who leads?\n# What is none.\ngrep '^# Who may' m\n-- m --\n" +
			"# Whoever it is.\n", []int{1, 5}},
		"makefile": {"Makefile", "a:\n\t# What is long.\n\t@echo 'What a.'\n", []int{2}},
		"ci":       {"x/.ci/run", "# What passes.\n", []int{1}},
		"a page":   {"docs/a.md", "# What passes.\n", nil},
		"run":      {"x/run", "# What passes.\n", nil},
	} {
		var got []int
		if mark := markOf(c.path); mark != "" {
			got = found(markedParagraphs(c.text, mark))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: found in the paragraphs of lines %v, want %v", name, got, c.want)
		}
	}

	s := &source{set: token.NewFileSet()}
	f, err := parser.ParseFile(s.set, "a.go", `package a
var a = []string{
	"What it holds.",
	"What it holds",
	"Whole. It is " + b + "kept. Wha" + ("x") + "What",
	"It is kept. What " + "is kept counts",
	f("Who leads signs.") + "x",
	"# Who may join, and as what. A",
	"Who leads?", "What.", "WHAT", "Who",
`+"	`It is\nWhat is signed.\n\nWhoever leads signs.`,"+`
}
// What is in a comment is none.
`, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := found(s.literalParagraphs(f)), []int{3, 6, 7, 8, 10}; !slices.Equal(got, want) {
		t.Errorf("found in the literals of lines %v, want %v", got, want)
	}
}
