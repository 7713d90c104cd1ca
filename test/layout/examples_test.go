// An example that runs is the first code that a stranger copies: each public name is in one,
// or in a list that only shrinks.
package layout

import (
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// programs are the whole programs that a test runs, with the file of that test and the words
// by which it names the program or enters it.
var programs = []struct{ path, test, words string }{
	{"examples/grpc", "examples/examples_test.go", `"./grpc"`},
	{"examples/http", "examples/examples_test.go", `"./http"`},
	{"examples/verify", "examples/examples_test.go", `"./verify"`},
	{"examples/grpc-files", "examples/processes_test.go", `built(t, "grpc-files")`},
	{"examples/grpc-workload", "examples/processes_test.go", `built(t, "grpc-workload")`},
	{"examples/operator", "cmd/fealty/operator_linux_test.go", `"../../examples/operator"`},
	{"examples/provider", "examples/provider/main_test.go", "run(ctx, dir, l)"},
}

// shown is code that a test runs and that a stranger reads: the examples of a package, or a
// program.
type shown struct {
	path  string // below the module
	set   *token.FileSet
	files []*ast.File // of the package, all of them
	roots []ast.Node  // where the code that runs begins
	own   []*ast.File // where the roots stand
	idle  []string    // examples that are compiled, and never run
}

// read returns the files of a folder that are tests outside its package, or are no tests.
func read(path string, tests bool) (*shown, error) {
	s := &shown{path: path, set: token.NewFileSet()}
	dir := filepath.Join("..", "..", path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") != tests {
			continue
		}
		file, err := parser.ParseFile(s.set, filepath.Join(dir, e.Name()), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if !tests || strings.HasSuffix(file.Name.Name, "_test") {
			s.files = append(s.files, file)
		}
	}
	return s, nil
}

// program has all of the package run.
func (s *shown) program() {
	s.own = s.files
	for _, f := range s.files {
		s.roots = append(s.roots, f)
	}
}

// examples has the examples with an output run: go test compiles the others, and nobody sees
// whether they work.
func (s *shown) examples() {
	for _, f := range s.files {
		runs := make(map[string]bool)
		for _, e := range doc.Examples(f) {
			if runs["Example"+e.Name] = e.Output != ""; e.Output == "" {
				s.idle = append(s.idle, "Example"+e.Name)
			}
		}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil && runs[d.Name.Name] {
				s.roots = append(s.roots, d)
				if !slices.Contains(s.own, f) {
					s.own = append(s.own, f)
				}
			}
		}
	}
}

// uses returns the objects that are named in the code that runs, and the types of its
// expressions. A declaration that it uses of its own file counts with it, such as a type that
// keeps a contract. One of another file does not, because nobody reads it with the example.
func (s *shown) uses(from types.Importer) (objects []types.Object, problems []error) {
	info := &types.Info{
		Types: make(map[ast.Expr]types.TypeAndValue),
		Defs:  make(map[*ast.Ident]types.Object),
		Uses:  make(map[*ast.Ident]types.Object),
	}
	// Files without examples may use what only tests see, or import what is not loaded.
	config := types.Config{Importer: from, Error: func(err error) {
		at, ok := errors.AsType[types.Error](err)
		if !ok || slices.ContainsFunc(s.own, func(f *ast.File) bool {
			return f.FileStart <= at.Pos && at.Pos < f.FileEnd
		}) {
			problems = append(problems, err)
		}
	}}
	_, _ = config.Check(module+"/"+s.path+"_test", s.set, s.files, info)
	declared := make(map[types.Object][]ast.Node) // in the same files; methods with their type
	for _, f := range s.own {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				o := info.Defs[d.Name]
				if f, ok := o.(*types.Func); ok && f.Signature().Recv() != nil {
					o = ownerOf(f.Signature().Recv().Type())
				}
				declared[o] = append(declared[o], d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						declared[info.Defs[spec.Name]] = append(declared[info.Defs[spec.Name]], spec)
					case *ast.ValueSpec:
						for _, name := range spec.Names {
							declared[info.Defs[name]] = append(declared[info.Defs[name]], spec)
						}
					}
				}
			}
		}
	}
	seen := make(map[types.Object]bool)
	var look func(ast.Node)
	use := func(o types.Object) {
		if o == nil || seen[o] {
			return
		}
		seen[o] = true
		objects = append(objects, o)
		for _, n := range declared[o] {
			look(n)
		}
	}
	look = func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				use(info.Uses[id])
				if field, ok := info.Uses[id].(*types.Var); ok && field.IsField() { // that is set or read
					made(field.Type(), use)
				}
				if o := info.Defs[id]; o != nil { // a variable, whose type may be written nowhere
					made(o.Type(), use)
				}
			}
			if e, ok := n.(ast.Expr); ok {
				made(info.Types[e].Type, use)
			}
			return true
		})
	}
	for _, root := range s.roots {
		look(root)
	}
	return objects, problems
}

// ownerOf is the name of a type or of what it points to, nil if it has none.
func ownerOf(t types.Type) types.Object {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := types.Unalias(t).(*types.Named); ok {
		return n.Obj()
	}
	return nil
}

// made calls use with the names of what a value of type t is or holds: elements and results,
// and not what a function could be given.
func made(t types.Type, use func(types.Object)) {
	switch t := t.(type) {
	case *types.Alias:
		use(t.Obj())
		made(types.Unalias(t), use)
	case *types.Named:
		use(t.Obj())
		for arg := range t.TypeArgs().Types() {
			made(arg, use)
		}
	case *types.Map:
		made(t.Key(), use)
		made(t.Elem(), use)
	case interface{ Elem() types.Type }: // pointers, slices, arrays and channels
		made(t.Elem(), use)
	case *types.Tuple:
		for v := range t.Variables() {
			made(v.Type(), use)
		}
	}
}

// unshown are public names that no example shows, and why that is so.
type unshown struct {
	path, why string
	names     []string // sorted
}

// values is why the values of a type have no example each. One of the type is needed all the
// same.
const values = "values of a type that has an example: docs/reference/api.txt lists them"

// withoutExample only shrinks: a new name gets its example with it.
var withoutExample = []unshown{
	{"credential", values, []string{
		"Banned", "Expired", "Incomplete", "Malformed", "NoIdentity", "Unreadable", "Untrusted",
	}},
	{"fence", values, []string{
		"ReasonDomain", "ReasonFull", "ReasonLate", "ReasonMalformed", "ReasonOwner", "ReasonUngranted",
		"ReasonUnpromised",
	}},
	{"identity", values, []string{"Witness"}},
	{"mesh", values, []string{"Expired", "NoIdentity", "Protocol", "RootRetired", "ServerRejected"}},
}

// missing says which public names have neither an example nor a row, and which rows have no
// need of their place.
func missing(promised map[string]*types.Package, used map[types.Object]bool, rows []unshown) (says []string) {
	say := func(format string, args ...any) { says = append(says, fmt.Sprintf(format, args...)) }
	known := make(map[string]bool) // as path and name, as in the lists of names
	for path, pkg := range promised {
		for _, name := range pkg.Scope().Names() {
			if pkg.Scope().Lookup(name).Exported() {
				known[path+"."+name] = true
			}
		}
	}
	byName := make(map[string]bool)
	for o := range used {
		if o.Pkg() == nil || o.Parent() != o.Pkg().Scope() {
			continue
		}
		if path, own := strings.CutPrefix(o.Pkg().Path(), module+"/"); own {
			byName[path+"."+o.Name()] = true
		}
	}
	listed := make(map[string]bool)
	for _, row := range rows {
		if row.why == "" || !slices.IsSorted(row.names) {
			say("the row of %s has no reason or no order", row.path)
		}
		for _, name := range row.names {
			full := row.path + "." + name
			switch {
			case !known[full]:
				say("%s is listed, and is no public name", full)
				continue
			case listed[full]:
				say("%s is listed twice", full)
			case byName[full]:
				say("%s has an example: take it off the list", full)
			}
			listed[full] = true
			if row.why != values {
				continue
			}
			value, ok := promised[row.path].Scope().Lookup(name).(*types.Const)
			if !ok || ownerOf(value.Type()) == nil || !byName[row.path+"."+ownerOf(value.Type()).Name()] {
				say("%s is no value of a type that has an example", full)
			}
		}
	}
	for full := range known {
		if !byName[full] && !listed[full] {
			say("%s is in no example that runs: write one that a stranger would copy", full)
		}
	}
	slices.Sort(says)
	return says
}

// Each public name is used by an example that runs or by a program that a test runs, itself
// or as the type of something there. The exceptions are listed.
func TestPublicNamesHaveExamples(t *testing.T) {
	promised, err := exported()
	if err != nil {
		t.Fatal(err)
	}
	var all []*shown
	for path := range promised {
		s, err := read(path, true)
		if err != nil {
			t.Fatal(err)
		}
		s.examples()
		if len(s.roots) == 0 {
			t.Errorf("%s has no example of its own that runs", path)
		}
		for _, name := range s.idle {
			t.Errorf("%s of %s is compiled and never run: give it an output", name, path)
		}
		all = append(all, s)
	}
	for _, p := range programs {
		text, err := os.ReadFile(filepath.Join("..", "..", p.test))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), p.words) {
			t.Errorf("%s does not run %s by %s", p.test, p.path, p.words)
		}
		s, err := read(p.path, false)
		if err != nil {
			t.Fatal(err)
		}
		s.program()
		all = append(all, s)
	}
	imports := make(map[string]bool)
	for _, s := range all {
		for _, f := range s.own {
			for _, i := range f.Imports {
				path, err := strconv.Unquote(i.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				imports[path] = true
			}
		}
	}
	from, _, err := compiled(slices.Sorted(maps.Keys(imports))...)
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[types.Object]bool)
	for _, s := range all {
		objects, problems := s.uses(from)
		for _, problem := range problems {
			t.Errorf("nobody outside can compile an example: %v", problem)
		}
		for _, o := range objects {
			used[o] = true
		}
	}
	for _, says := range missing(promised, used, withoutExample) {
		t.Error(says)
	}
}

// TestShown holds that an example shows what a reader of it sees, and nothing else.
func TestShown(t *testing.T) {
	const public = `package p
type Config struct { Way Way; at int }
type Way string
const (
	One Way = "1"
	Two Way = "2"
)
type Part struct { N int }
type Whole struct { Parts []Part }
func (w *Whole) First() (Part, error) { return w.Parts[0], nil }
func New(c Config) *Whole { return nil }
type Box[T any] struct { V T }
func Fill() Box[Part] { return Box[Part]{} }
type Taken struct{}
func Take(f func(Taken)) {}
type Contract interface { Do() }
`
	lib, err := check("p", map[string][]byte{"a.go": []byte(public)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	from := packagesOf{module + "/p": lib.types}
	for _, tt := range []struct {
		name, text string // of which OUT stands for an output
		other      string // another file of the same tests
		want       string
	}{
		{"by name", "func Example() { _ = p.One; OUT }", "", "One Way"},
		{"without an output", "func Example() { _ = p.One }", "", ""},
		{"of a test", "func Example() { OUT }; func Test() { _ = p.One }", "", ""},
		{"the type of a result, and of a part of it",
			"func Example() { w := p.New(p.Config{}); a, _ := w.First(); _ = a; OUT }", "", "Config New Part Whole"},
		{"a field that is set", "func Example() { _ = p.Config{Way: \"3\"}; OUT }", "", "Config Way"},
		{"a type argument", "func Example() { p.Fill(); OUT }", "", "Box Fill Part"},
		{"what a function takes", "func Example() { _ = p.Take; OUT }", "", "Take"},
		{"a declaration beside it", "func Example() { f(); OUT }; func f() { var _ p.Contract }", "", "Contract"},
		{"a method of a type beside it",
			"func Example() { _ = t{}; OUT }; type t struct{}; func (*t) Do() { _ = p.Two }", "", "Two Way"},
		{"a declaration elsewhere", "func Example() { _ = f(); OUT }", "func f() p.Way { return p.One }", "Way"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &shown{path: "p_test", set: token.NewFileSet()}
			for name, text := range map[string]string{"a_test.go": tt.text, "b_test.go": tt.other} {
				const output = "\n// Output: x\n"
				text = strings.NewReplacer("; OUT", output, "OUT", output, "; ", "\n").Replace(text)
				text = "package p_test\nimport \"" + module + "/p\"\nvar _ p.Way\n" + text
				file, err := parser.ParseFile(s.set, name, text, parser.ParseComments)
				if err != nil {
					t.Fatal(err)
				}
				s.files = append(s.files, file)
			}
			s.examples()
			objects, problems := s.uses(from)
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			var got []string
			for _, o := range objects {
				if o.Pkg() == lib.types && o.Parent() == lib.types.Scope() {
					got = append(got, o.Name())
				}
			}
			slices.Sort(got)
			if strings.Join(got, " ") != tt.want {
				t.Errorf("shown are %q, want %q", got, tt.want)
			}
		})
	}

	// The list has room for nothing else.
	promised := map[string]*types.Package{"p": lib.types}
	used := make(map[types.Object]bool)
	for _, name := range lib.types.Scope().Names() {
		used[lib.types.Scope().Lookup(name)] = name != "Two" && name != "Taken"
	}
	maps.DeleteFunc(used, func(_ types.Object, there bool) bool { return !there })
	foreign := types.NewPackage("p", "p") // of another module
	foreign.Scope().Insert(types.NewTypeName(token.NoPos, foreign, "Taken", types.Typ[types.Int]))
	used[foreign.Scope().Lookup("Taken")] = true
	rest := unshown{"p", "nobody outside makes one", []string{"Taken"}}
	for _, tt := range []struct {
		name string
		rows []unshown
		want string // part of what is said; "" for nothing
	}{
		{"exact", []unshown{rest, {"p", values, []string{"Two"}}}, ""},
		{"a name without an example", []unshown{rest}, "p.Two is in no example"},
		{"a name with one", []unshown{rest, {"p", values, []string{"One", "Two"}}}, "p.One has an example"},
		{"no name", []unshown{rest, {"p", values, []string{"Three", "Two"}}}, "p.Three is listed"},
		{"twice", []unshown{rest, rest, {"p", values, []string{"Two"}}}, "p.Taken is listed twice"},
		{"no reason", []unshown{rest, {"p", "", []string{"Two"}}}, "no reason"},
		{"no order", []unshown{{"p", "rare", []string{"Two", "Taken"}}}, "no order"},
		{"no value", []unshown{{"p", values, []string{"Taken", "Two"}}}, "p.Taken is no value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := missing(promised, used, tt.rows)
			switch {
			case tt.want == "" && len(got) > 0:
				t.Errorf("refused: %q", got)
			case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
				t.Errorf("got %q, want one that says %q", got, tt.want)
			}
		})
	}
}
