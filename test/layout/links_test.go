package layout

import (
	"fmt"
	"go/ast"
	"go/types"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// docLink is what links of comments look like: [Name], [Type.Name], [pkg.Name] or [pkg.Type.Name].
var docLink = regexp.MustCompile(`\[\*?([A-Za-z]\w*(?:\.[A-Za-z]\w*){0,2})\]`)

// linksIn returns the links of a text, without their brackets. Right behind a word it is an index, and right before one a
// type; (, : and [ make a link of another form.
func linksIn(text string) (out []string) {
	for _, m := range docLink.FindAllStringSubmatchIndex(text, -1) {
		before, after := text[:m[0]], text[m[1]:]
		if !word.MatchString(lastOf(before)) && !word.MatchString(firstOf(after)) && !strings.ContainsAny(firstOf(after), "(:[") {
			out = append(out, text[m[2]:m[3]])
		}
	}
	return out
}

var word = regexp.MustCompile(`[\w\]]`)

func lastOf(s string) string  { return s[max(0, len(s)-1):] }
func firstOf(s string) string { return s[:min(1, len(s))] }

// links returns the links of the comments of a package that lead nowhere, each with its place. A package is looked for by
// its name, here and among byName.
func links(s *source, byName map[string][]*types.Package) []string {
	var out []string
	for _, f := range s.files {
		for _, group := range f.syntax.Comments {
			for _, link := range linksIn(proseOf(group)) {
				if names := strings.Split(link, "."); !leads(s.types, byName[names[0]], names) && !leads(s.types, imported(s, f, names[0]), names) {
					out = append(out, fmt.Sprintf("%s/%s:%d: [%s]", s.path, f.name, s.fset.Position(group.Pos()).Line, link))
				}
			}
		}
	}
	return out
}

// proseOf is the text of a comment without its code. gofmt indents code with a tab, and the lines of lists with spaces.
func proseOf(group *ast.CommentGroup) string {
	var b strings.Builder
	for line := range strings.Lines(group.Text()) {
		if !strings.HasPrefix(line, "\t") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// imported returns the package that a file imports by a name of its own.
func imported(s *source, f sourceFile, name string) []*types.Package {
	for _, spec := range f.syntax.Imports {
		if path, err := strconv.Unquote(spec.Path.Value); err == nil && spec.Name != nil && spec.Name.Name == name {
			return slices.DeleteFunc(slices.Clone(s.types.Imports()), func(p *types.Package) bool { return p.Path() != path })
		}
	}
	return nil
}

// leads reports whether names are those of something here, or in one of the packages that the first one names. Names that nobody exports are
// no link.
func leads(here *types.Package, named []*types.Package, names []string) bool {
	if ast.IsExported(names[0]) {
		return has(here, names)
	}
	if len(names) == 1 || !ast.IsExported(names[1]) {
		return true
	}
	return slices.ContainsFunc(named, func(p *types.Package) bool { return has(p, names[1:]) })
}

// has reports whether a package declares a name, or a type with a field or method of the second name.
func has(p *types.Package, names []string) bool {
	o := p.Scope().Lookup(names[0])
	if o == nil || len(names) == 1 {
		return o != nil
	}
	if len(names) > 2 {
		return false
	}
	member, _, _ := types.LookupFieldOrMethod(o.Type(), true, p, names[1])
	return member != nil
}

// Comments refer to what there is.
func TestLinksOfComments(t *testing.T) {
	t.Parallel()
	all := allSources(t)
	byName := make(map[string][]*types.Package)
	for _, s := range all {
		byName[s.types.Name()] = append(byName[s.types.Name()], s.types)
		for _, p := range s.types.Imports() {
			if !strings.HasPrefix(p.Path(), module+"/") || within(strings.TrimPrefix(p.Path(), module+"/"), "api") {
				byName[p.Name()] = append(byName[p.Name()], p)
			}
		}
	}
	for _, s := range all {
		for _, lost := range links(s, byName) {
			t.Errorf("%s leads nowhere", lost)
		}
	}
}

// The rule finds what it is for.
func TestLinks(t *testing.T) {
	t.Parallel()
	const text = `package p

// T is like [p.T], [T.M] and [*T.F], and not like [Gone], [T.Gone], [gone.T] or [p.Gone]. A [link] of [Another](form) or
// [of this]: a slice x[I] and []T, [1] and [CONSTANT]string. [io.Reader]
//
//	in code [Gone2]
//
//   - of a list [Gone4], and
//     [T.Gone5]
//  1. with a number [Gone6]
type T struct{ F int }

// M is [q.T.M].
func (T) M() {
	// [Gone3] within
}
`
	s, err := check("p", map[string][]byte{"a.go": []byte(text)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := links(s, map[string][]*types.Package{"p": {s.types}, "q": {s.types}})
	want := []string{"p/a.go:3: [Gone]", "p/a.go:3: [T.Gone]", "p/a.go:3: [gone.T]", "p/a.go:3: [p.Gone]", "p/a.go:3: [io.Reader]",
		"p/a.go:3: [Gone4]", "p/a.go:3: [T.Gone5]", "p/a.go:3: [Gone6]", "p/a.go:15: [Gone3]"}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
