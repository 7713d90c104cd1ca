// The measures are for this module alone and stand in tests: nothing outside could call
// them, so their tests are inside.
package layers

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// A measure says how big a package is, or how tangled.
type measure string

const (
	code    measure = "lines of code"
	fields  measure = "fields of one struct"
	methods measure = "methods of one struct"
	knot    measure = "files in one knot"
	wide    measure = "lines above 120 characters"
)

// bounds are for each package below internal/, and for the public ones. They are there to ask early whose promise
// something is: a package above them has more than one, and a struct above them knows
// every part of it.
//
//	lines of code     without blank ones, comments, tests and generated files
//	fields            those of embedded structs of the package and of inline ones count
//	methods           functions of the package that take a pointer to the struct count
//	files in a knot   each of them needs each of the others, by the names that it uses
//	long lines        a tab is as wide as four characters
var bounds = map[measure]int{code: 3000, fields: 20, methods: 40, knot: 8, wide: 0}

const maxColumns = 120

// An exception lets a package be above a bound.
type exception struct {
	path    string
	measure measure
	ceiling int // what was measured when somebody last wrote it down
	why     string
}

// exceptions only shrink: no figure grows above its ceiling, and whoever makes one
// smaller writes the new one down.
var exceptions = []exception{
	{"internal/devcluster", code, 3976, story},
	{"internal/devcluster", fields, 21, story},
	{"internal/devcluster", methods, 138, story},
	{"internal/devcluster", knot, 16, story},
	{"snapshot", code, 4064, format},
	{"snapshot", knot, 17, format},
	{"credential", wide, 28, unwrapped},
	{"fence", wide, 9, unwrapped},
	{"fence/durable", wide, 9, unwrapped},
	{"fence/fencegrpc", wide, 8, unwrapped},
	{"fence/fencehttp", wide, 3, unwrapped},
	{"identity", wide, 44, unwrapped},
	{"mesh", wide, 21, unwrapped},
	{"provider", wide, 6, unwrapped},
	{"snapshot", wide, 94, unwrapped},
	{"internal/auditlog", wide, 13, unwrapped},
	{"internal/auditstore", wide, 11, unwrapped},
	{"internal/authz", wide, 9, unwrapped},
	{"internal/backup", wide, 25, unwrapped},
	{"internal/ca", wide, 12, unwrapped},
	{"internal/chaos", wide, 3, unwrapped},
	{"internal/compiler", wide, 25, unwrapped},
	{"internal/config", wide, 88, unwrapped},
	{"internal/copies", wide, 2, unwrapped},
	{"internal/devcluster", wide, 136, unwrapped},
	{"internal/document", wide, 15, unwrapped},
	{"internal/durable", wide, 6, unwrapped},
	{"internal/enrolment", wide, 7, unwrapped},
	{"internal/explain", wide, 126, unwrapped},
	{"internal/history", wide, 93, unwrapped},
	{"internal/keyring", wide, 50, unwrapped},
	{"internal/leadership", wide, 5, unwrapped},
	{"internal/logins", wide, 1, unwrapped},
	{"internal/mirror", wide, 11, unwrapped},
	{"internal/presence", wide, 2, unwrapped},
	{"internal/proof", wide, 53, unwrapped},
	{"internal/recovery", wide, 41, unwrapped},
	{"internal/regress", wide, 1, unwrapped},
	{"internal/replica", wide, 1, unwrapped},
	{"internal/sealed", wide, 2, unwrapped},
	{"internal/store", wide, 3, unwrapped},
	{"internal/store/conformance", wide, 23, unwrapped},
	{"internal/store/etcd/etcdtest", wide, 11, unwrapped},
	{"internal/store/patience", wide, 3, unwrapped},
	{"internal/store/postgres/pgtest", wide, 8, unwrapped},
	{"internal/store/storetest", wide, 6, unwrapped},
	{"internal/store/writable", wide, 2, unwrapped},
	{"internal/tlsfiles", wide, 1, unwrapped},
}

// Why a package may be above a bound for now.
const (
	format = "the types of signed content, the checks of each and the headers that sign them are one public format, " +
		"whose names a program imports from one package: in two, each name that both need would be public twice"
	story     = "the cluster, its network, its people and the story that they play are one struct"
	unwrapped = "its lines are older than the bound: wrap those that you touch"
)

// slackPercent is how far below its ceiling a figure may be before the ceiling has to
// follow. Without it, each line that is wrapped would change the list.
const slackPercent = 5

// figure is what one measure found in a package.
type figure struct {
	n  int
	of string // the struct, or the files
}

// figures measures a package.
func figures(s *source) map[measure]figure {
	out := map[measure]figure{knot: {n: 1}}
	grow := func(m measure, n int, of string) {
		if n > out[m].n {
			out[m] = figure{n, of}
		}
	}
	own := make(map[*types.TypeName]int) // methods of each struct
	uses := make(map[string]map[string]bool)
	for _, f := range s.files {
		if ast.IsGenerated(f.syntax) {
			continue
		}
		out[code] = figure{n: out[code].n + codeLines(f.text)}
		out[wide] = figure{n: out[wide].n + wideLines(f.text)}
		uses[f.name] = make(map[string]bool)
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				for _, t := range structsOf(s, n) {
					own[t]++
				}
			case *ast.TypeSpec:
				if t, ok := s.info.Defs[n.Name].Type().Underlying().(*types.Struct); ok {
					grow(fields, countFields(s.types, t, nil), n.Name.Name)
				}
			case *ast.Ident:
				if obj := s.info.Uses[n]; obj != nil && obj.Pkg() == s.types {
					uses[f.name][s.fset.Position(obj.Pos()).Filename] = true
				}
			}
			return true
		})
	}
	for t, n := range own {
		grow(methods, n, t.Name())
	}
	tied := largestKnot(uses)
	grow(knot, len(tied), strings.Join(tied, " "))
	return out
}

// structsOf returns the structs of the package whose method f is, or could as well be: it
// takes a pointer to them.
func structsOf(s *source, f *ast.FuncDecl) []*types.TypeName {
	signature := s.info.Defs[f.Name].(*types.Func).Signature()
	var out []*types.TypeName
	add := func(t types.Type) {
		named, ok := types.Unalias(t).(*types.Named)
		if !ok || named.Obj().Pkg() != s.types {
			return
		}
		if _, ok := named.Underlying().(*types.Struct); ok && !slices.Contains(out, named.Obj()) {
			out = append(out, named.Obj())
		}
	}
	if receiver := signature.Recv(); receiver != nil {
		t := receiver.Type()
		if pointer, ok := types.Unalias(t).(*types.Pointer); ok {
			t = pointer.Elem()
		}
		add(t)
		return out
	}
	for parameter := range signature.Params().Variables() {
		if pointer, ok := types.Unalias(parameter.Type()).(*types.Pointer); ok {
			add(pointer.Elem())
		}
	}
	return out
}

// countFields counts the fields of a struct, and in place of an inline struct and of an
// embedded one of the package those that are in it. above holds what t is embedded in.
func countFields(own *types.Package, t *types.Struct, above []*types.Struct) int {
	above = append(slices.Clip(above), t)
	n := 0
	for field := range t.Fields() {
		of := types.Unalias(field.Type())
		if pointer, ok := of.(*types.Pointer); ok {
			of = types.Unalias(pointer.Elem())
		}
		inner, ok := of.Underlying().(*types.Struct)
		named, isNamed := of.(*types.Named)
		inside := ok && (!isNamed || field.Embedded() && named.Obj().Pkg() == own)
		if inside && !slices.Contains(above, inner) {
			n += countFields(own, inner, above)
		} else {
			n++
		}
	}
	return n
}

// codeLines counts the lines that hold something other than comments.
func codeLines(text []byte) int {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(text))
	s.Init(file, text, nil, 0)
	lines := make(map[int]bool)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		for i, part := range strings.Split(literal, "\n") { // a literal in backquotes has several
			if i == 0 || strings.TrimSpace(part) != "" {
				lines[file.Line(pos)+i] = true
			}
		}
	}
}

// wideLines counts the lines above maxColumns.
func wideLines(text []byte) int {
	n := 0
	for line := range bytes.Lines(text) {
		line = bytes.TrimRight(line, "\r\n")
		if utf8.RuneCount(line)+3*bytes.Count(line, []byte("\t")) > maxColumns {
			n++
		}
	}
	return n
}

// largestKnot returns the largest set of files of which each needs each other, over as
// many others as it may be: the largest strongly connected component.
func largestKnot(uses map[string]map[string]bool) []string {
	// Files are few, so each one's reach is simply walked.
	reach := make(map[string]map[string]bool)
	for from := range uses {
		seen := make(map[string]bool)
		for next := []string{from}; len(next) > 0; {
			at := next[len(next)-1]
			next = next[:len(next)-1]
			for to := range uses[at] {
				if !seen[to] {
					seen[to] = true
					next = append(next, to)
				}
			}
		}
		reach[from] = seen
	}
	var largest []string
	for _, from := range slices.Sorted(maps.Keys(reach)) {
		tied := []string{from}
		for to := range reach[from] {
			if to != from && reach[to][from] {
				tied = append(tied, to)
			}
		}
		if len(tied) > len(largest) {
			slices.Sort(tied)
			largest = tied
		}
	}
	return largest
}

// judge compares the figures of packages, by path, with the bounds and the exceptions
// from them, and says what is wrong, sorted.
func judge(found map[string]map[measure]figure, exceptions []exception) []string {
	var out []string
	excepted := make(map[string]bool)
	for _, row := range exceptions {
		excepted[row.path+" "+string(row.measure)] = true
		bound, got := bounds[row.measure], found[row.path][row.measure]
		which := fmt.Sprintf("%s: %d %s%s", row.path, got.n, row.measure, got.whose())
		advice := "put what is new where it is its own promise, or take as much out"
		if row.measure == wide {
			advice = "wrap them"
		}
		switch {
		case got.n <= bound:
			out = append(out, fmt.Sprintf("%s: within the bound of %d: take its row out of exceptions", which, bound))
		case got.n > row.ceiling:
			out = append(out, fmt.Sprintf("%s: the bound is %d, and not even its exception of %d is kept: %s", which, bound, row.ceiling, advice))
		case got.n*100 < row.ceiling*(100-slackPercent):
			out = append(out, fmt.Sprintf("%s: its exception still says %d: write %d", which, row.ceiling, got.n))
		}
	}
	for path, of := range found {
		for m, got := range of {
			if got.n <= bounds[m] || excepted[path+" "+string(m)] {
				continue
			}
			advice := "make two rooms of it, each with a promise of its own"
			if m == wide {
				advice = "wrap them"
			}
			out = append(out, fmt.Sprintf("%s: %d %s%s: the bound is %d: %s", path, got.n, m, got.whose(), bounds[m], advice))
		}
	}
	slices.Sort(out)
	return out
}

func (f figure) whose() string {
	if f.of == "" {
		return ""
	}
	return " (" + f.of + ")"
}

func TestRooms(t *testing.T) {
	found := make(map[string]map[measure]figure)
	for _, s := range allSources(t) {
		if within(s.path, "internal") || withinAny(s.path, public) {
			found[s.path] = figures(s)
		}
	}
	if len(found) < 20 {
		t.Fatalf("only %d packages were found", len(found))
	}
	for _, problem := range judge(found, exceptions) {
		t.Error(problem)
	}
	seen := make(map[string]bool)
	for _, row := range exceptions {
		if key := row.path + " " + string(row.measure); seen[key] || row.why == "" {
			t.Errorf("exceptions: %s stands twice or has no reason", key)
		} else {
			seen[key] = true
		}
	}
}

// An exception has no room above it, and little below.
func TestExceptionsOnlyShrink(t *testing.T) {
	rows := []exception{{"internal/house", methods, 200, "a test"}}
	for _, tt := range []struct {
		name   string
		path   string
		m      measure
		n      int
		refuse string // part of what is said; "" for nothing
	}{
		{"at its ceiling", "internal/house", methods, 200, ""},
		{"a little below", "internal/house", methods, 190, ""},
		{"above", "internal/house", methods, 201, "not even its exception of 200 is kept"},
		{"far below", "internal/house", methods, 189, "still says 200: write 189"},
		{"within the bound", "internal/house", methods, 40, "take its row out"},
		{"another measure", "internal/house", knot, 9, "the bound is 8: make two"},
		{"another package", "internal/shed", methods, 41, "the bound is 40: make two"},
		{"a package at the bound", "internal/shed", methods, 40, ""},
		{"a long line", "internal/shed", wide, 1, "the bound is 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found := map[string]map[measure]figure{"internal/house": {methods: {n: 195}}}
			if found[tt.path] == nil {
				found[tt.path] = make(map[measure]figure)
			}
			found[tt.path][tt.m] = figure{n: tt.n}
			got := judge(found, rows)
			switch {
			case tt.refuse == "" && len(got) > 0:
				t.Errorf("refused: %v", got)
			case tt.refuse != "" && (len(got) != 1 || !strings.Contains(got[0], tt.refuse)):
				t.Errorf("got %q, want one that says %q", got, tt.refuse)
			}
		})
	}
}

func TestFigures(t *testing.T) {
	other, err := check("internal/other", map[string][]byte{"a.go": []byte("package other\ntype Part struct{ A, B, C int }\n")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	from := packagesOf{module + "/internal/other": other.types}
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  map[measure]figure
	}{
		{"code is what is no comment and no blank", map[string]string{"a.go": "// A comment.\npackage p\n\n/* another\n*/\nvar a = 1 // b\n\nvar s = `x\n\n// y`\n"},
			map[measure]figure{code: {n: 4}}},
		{"what is generated is no code", map[string]string{"a.go": "// Code generated by x. DO NOT EDIT.\n\npackage p\n\nvar a = 1\n", "b.go": "package p\n"},
			map[measure]figure{code: {n: 1}}},
		{"a line of 121", map[string]string{"a.go": "package p\n\n//" + strings.Repeat("ü", 118) + "\n//" + strings.Repeat("ü", 119) + "\nvar (\n\t//" + strings.Repeat("x", 115) + "\n\ta = 1\n)\n"},
			map[measure]figure{wide: {n: 2}}},
		{"fields of embedded and inline structs", map[string]string{"a.go": `package p
type small struct{ a, b, c, d int }
type large struct {
	part
	*other
	small        small // named, and not embedded: one field
	inline       struct{ a, b int }
	pointer      *struct{ c int }
	list         []struct{ a, b, c int }
}
type part struct{ x, y int }
type other struct { *other; z int }
`}, map[measure]figure{fields: {9, "large"}}},
		{"an alias hides no fields", map[string]string{"a.go": "package p\ntype part struct{ x, y, z int }\ntype alias = part\ntype large struct { alias; a int }\n"},
			map[measure]figure{fields: {4, "large"}}},
		{"a struct of another package is one field", map[string]string{"a.go": "package p\nimport \"" + module + "/internal/other\"\ntype large struct { other.Part; a int }\n"},
			map[measure]figure{fields: {2, "large"}}},
		{"fields of a struct in a function", map[string]string{"a.go": "package p\nfunc f() { type inner struct { a, b int }; _ = inner{} }\n"},
			map[measure]figure{fields: {2, "inner"}}},
		{"a function that takes a pointer is a method", map[string]string{"a.go": `package p
type house struct{}
type alias = house
type generic[T any] struct{ t T }
type list []int
func (h *house) a() {}
func (house) b()    {}
func c(h *house)    {}
func d(n int, h *alias) {}
func e(h, i *house) {}
func f(h house)     {}
func g() *house     { return nil }
func (h *house) with(i *house) {}
func (g *generic[T]) a() {}
func (list) a() {}
`}, map[measure]figure{methods: {6, "house"}}},
		{"methods of a generic struct", map[string]string{"a.go": "package p\ntype generic[T any] struct{ t T }\nfunc (*generic[T]) a() {}\nfunc (generic[T]) b() {}\nfunc c(*generic[int]) {}\n"},
			map[measure]figure{methods: {3, "generic"}}},
		{"files that need each other in a circle", map[string]string{
			"a.go": "package p\nfunc a() { b() }\n", "b.go": "package p\nfunc b() { c() }\n", "c.go": "package p\nfunc c() { a(); d() }\n",
			"d.go": "package p\nfunc d() {}\n", "e.go": "package p\nfunc e() { a() }\n"},
			map[measure]figure{knot: {3, "a.go b.go c.go"}}},
		{"a method ties files", map[string]string{
			"a.go": "package p\ntype t struct{}\nfunc (t) a() { t{}.b() }\n", "b.go": "package p\nfunc (t) b() {}\n"},
			map[measure]figure{knot: {2, "a.go b.go"}}},
		{"types tie files, inferred ones by what they are inferred from", map[string]string{
			"a.go": "package p\ntype t struct{ f int }\nvar a = c\n", "b.go": "package p\nfunc b() (x t) { return }\n", "c.go": "package p\nvar c = b().f\n"},
			map[measure]figure{knot: {3, "a.go b.go c.go"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			texts := make(map[string][]byte)
			for name, text := range tt.files {
				texts[name] = []byte(text)
			}
			s, err := check("internal/p", texts, from)
			if err != nil {
				t.Fatal(err)
			}
			got := figures(s)
			for m, want := range tt.want {
				if want.of == "" {
					want.of = got[m].of
				}
				if got[m] != want {
					t.Errorf("%s: %v, want %v", m, got[m], want)
				}
			}
		})
	}
}
