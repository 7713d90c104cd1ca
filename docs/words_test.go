// Inside the package: it reads the pages and the sources as the other tests of the docs do.

package docs

import (
	"go/ast"
	"maps"
	"regexp"
	"slices"
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

// beginsWithAClause returns the sentences of a paragraph that do.
func beginsWithAClause(text string) []string {
	if !strings.Contains(text, "Who") && !strings.Contains(text, "What") {
		return nil // as most do; the rest of this function is slow
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

// commentParagraphs returns those of the comments of a file. A line that begins with # is a
// heading.
func (s *source) commentParagraphs(f *ast.File) []paragraph {
	var out []paragraph
	for _, group := range f.Comments {
		open := false
		for _, c := range group.List {
			first := s.set.Position(c.Pos()).Line
			text := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(c.Text, "/*"), "//"), "*/")
			for i, line := range strings.Split(text, "\n") {
				trimmed := strings.TrimSpace(line)
				switch {
				case trimmed == "", strings.HasPrefix(trimmed, "# "):
					open = false
				case open && !item.MatchString(line):
					out[len(out)-1].text += " " + trimmed
				default:
					out = append(out, paragraph{first + i, trimmed})
					open = true
				}
			}
		}
	}
	return out
}

// No sentence of a page or of a comment begins with a clause in the place of its subject.
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
