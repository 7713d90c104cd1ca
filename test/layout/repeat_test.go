package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// variables of the environment are the only ones that tests read, besides those that they set for processes of their
// own, with where they are set. Which lane it is and what random courses begin with are test/testlane's to say: a test
// that has a variable of its own runs otherwise than make test and make nightly have it.
var variables = map[string]string{
	"PATH": "the machine: where programs are that tests start",

	"FEALTY_LANE": "tools/test.sh", "FEALTY_SEED": "tools/test.sh", "FEALTY_HELD": "tools/test.sh", // read by testlane alone
	"FEALTY_TEST_PROGRAM":     "tools/test.sh",
	"FEALTY_PGTEST_TEMPLATES": "tools/test.sh",
	"FEALTY_ETCD_BIN":         "tools/etcd.sh",
	"FEALTY_STORE_BIN":        "tools/store.sh",
	"FEALTY_POSTGRES_BIN":     "tools/postgres.sh",
	"CHAOS_TIME":              "Makefile",
	"CHAOS_KEEP":              "Makefile",

	// What stands for etcdctl where pages of the docs are run takes what etcdctl takes.
	"ETCDCTL_CACERT": "docs/how-to/run-on-etcd.md", "ETCDCTL_CERT": "docs/how-to/run-on-etcd.md",
	"ETCDCTL_KEY": "docs/how-to/run-on-etcd.md", "ETCDCTL_ENDPOINTS": "docs/how-to/run-on-etcd.md",
}

// testSource is a Go file that only tests are made of.
type testSource struct {
	name   string // below the module
	syntax *ast.File
}

// testSources returns those below root, by their folders.
func testSources(root string, files []file) (map[string][]testSource, error) {
	all := make(map[string][]testSource)
	for _, f := range files {
		if !f.test() && !testPackage(f.dir) {
			continue
		}
		name := path.Join(f.dir, f.name)
		syntax, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(name)), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		all[f.dir] = append(all[f.dir], testSource{name, syntax})
	}
	return all, nil
}

// called returns the package and the name of what a call names as package.Name, by the imports of its file.
func called(f *ast.File, call *ast.CallExpr) (pkg, name string) {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	of, ok := selector.X.(*ast.Ident)
	if !ok {
		return "", ""
	}
	for _, imp := range f.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			continue
		}
		short := path.Base(strings.TrimSuffix(p, "/v2"))
		if imp.Name != nil {
			short = imp.Name.Name
		}
		if short == of.Name {
			return p, selector.Sel.Name
		}
	}
	return "", ""
}

// notAgain returns what in the test code of one folder may be otherwise the next time: variables of the environment
// that are neither in known nor set for a process of these tests, and numbers that no seed decides. It adds
// the variables of known that are read to read.
func notAgain(folder []testSource, known map[string]string, read map[string]bool) (problems []string) {
	constants, given := make(map[string]string), make(map[string]bool)
	text := func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, _ := strconv.Unquote(e.Value)
			return s
		case *ast.Ident:
			return constants[e.Name]
		}
		return ""
	}
	each := func(see func(f testSource, n ast.Node)) {
		for _, f := range folder {
			ast.Inspect(f.syntax, func(n ast.Node) bool { see(f, n); return true })
		}
	}
	each(func(_ testSource, n ast.Node) {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return
		}
		for i, name := range spec.Names {
			if i < len(spec.Values) {
				if s := text(spec.Values[i]); s != "" {
					constants[name.Name] = s
				}
			}
		}
	})
	each(func(_ testSource, n ast.Node) {
		switch n := n.(type) {
		case *ast.BasicLit: // "NAME=value" of a process that a test starts
			if name, _, found := strings.Cut(text(n), "="); found {
				given[name] = true
			}
		case *ast.BinaryExpr: // name+"="+value
			if strings.HasPrefix(text(n.Y), "=") {
				given[text(n.X)] = true
			}
		}
	})
	each(func(f testSource, n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		switch pkg, name := called(f.syntax, call); {
		case pkg == "os" && (name == "Getenv" || name == "LookupEnv"):
			variable := text(call.Args[0])
			switch {
			case variable == "": // of a table, whose rows are set as they are read
			case known[variable] != "":
				read[variable] = true
			case !given[variable]:
				problems = append(problems, fmt.Sprintf("%s reads the variable %s, which no script sets: a lane, a number of rounds and a seed are test/testlane's to say",
					f.name, variable))
			}
		case (pkg == "math/rand" || pkg == "math/rand/v2") && !strings.HasPrefix(name, "New"):
			problems = append(problems, fmt.Sprintf("%s calls rand.%s, which is another each time: begin with testlane.Seed", f.name, name))
		case (pkg == "math/rand" || pkg == "math/rand/v2") && slices.ContainsFunc(call.Args, func(e ast.Expr) bool { return calls(f.syntax, e, "time", "Now") }):
			problems = append(problems, fmt.Sprintf("%s begins a random course with the time: begin with testlane.Seed", f.name))
		}
	})
	return problems
}

// calls reports whether an expression calls a function of a package somewhere in it.
func calls(f *ast.File, in ast.Expr, pkg, name string) (found bool) {
	ast.Inspect(in, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if p, called := called(f, call); p == pkg && called == name {
				found = true
			}
		}
		return !found
	})
	return found
}

// What passes once passes again: a test goes by its code, its lane and its seed, and by nothing else. Only package
// testlane begins a night with a number that it draws.
func TestTestsRunAgainAsTheyRan(t *testing.T) {
	const root = "../.."
	files, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	all, err := testSources(root, files)
	if err != nil {
		t.Fatal(err)
	}
	read := make(map[string]bool)
	for _, dir := range slices.Sorted(maps.Keys(all)) {
		for _, problem := range notAgain(all[dir], variables, read) {
			if dir == "test/testlane" && strings.Contains(problem, "rand.Uint64N") {
				continue
			}
			t.Error(problem)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if !read[name] {
			t.Errorf("%s stands in variables, and no test reads it", name)
		}
		if name == "PATH" {
			continue
		}
		script, err := os.ReadFile(filepath.Join(root, variables[name]))
		if err != nil || !strings.Contains(string(script), name) {
			t.Errorf("%s is said to be set by %s, which does not name it (%v)", name, variables[name], err)
		}
	}
}

// Each thing that a test must not go by, and what is close to it and may be.
func TestWhatIsNotAgain(t *testing.T) {
	for _, tt := range []struct{ imports, body, want string }{
		{`"os"`, `os.Getenv("MY_ROUNDS")`, "reads the variable MY_ROUNDS"},
		{`"os"`, `_, _ = os.LookupEnv(mine)`, "reads the variable MINE"},
		{`"os"`, `os.Getenv("KNOWN")`, ""},
		{`"os"`, `os.Getenv("MY_ROLE"); cmd.Env = append(os.Environ(), "MY_ROLE=child")`, ""},
		{`"os"`, `os.Getenv(mine); cmd.Env = append(os.Environ(), mine+"="+role)`, ""},
		{`"math/rand/v2"`, `rand.IntN(3)`, "calls rand.IntN"},
		{`old "math/rand"`, `old.Shuffle(3, nil)`, "calls rand.Shuffle"},
		{`"math/rand/v2"`, `r := rand.New(rand.NewPCG(testlane.Seed(t), 1)); r.IntN(3)`, ""},
		{`"math/rand"; "time"`, `rand.New(rand.NewSource(time.Now().UnixNano()))`, "begins a random course with the time"},
		{`"crypto/rand"`, `rand.Read(key)`, ""},
	} {
		syntax, err := parser.ParseFile(token.NewFileSet(), "a_test.go", "package a\nimport ("+strings.ReplaceAll(tt.imports, ";", "\n")+
			")\nconst mine = \"MINE\"\nfunc f() { "+tt.body+" }\n", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(notAgain([]testSource{{"a_test.go", syntax}}, map[string]string{"KNOWN": "x"}, make(map[string]bool)), "\n")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.body, got, tt.want)
		}
	}
}
