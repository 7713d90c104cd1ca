package layers

import (
	"bytes"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testScript runs the rounds: what is done whole without the race detector.
const testScript = "tools/test.sh"

// TestRounds holds that what a test leaves out under the race detector is done without it:
// the script that runs all tests names it among its rounds, with its package.
func TestRounds(t *testing.T) {
	root := filepath.Join("..", "..")
	script, err := os.ReadFile(filepath.Join(root, testScript))
	if err != nil {
		t.Fatal(err)
	}
	rounds, skipped, folders := roundsOf(t, root, script)
	named := make(map[string]bool)
	covered := func(dir string) bool { return slices.Contains(folders, dir) }
	for dir, tests := range lessUnderDetector(t, root) {
		for _, name := range tests {
			named[name] = true
			if !covered(dir) || !rounds.MatchString(name) {
				t.Errorf("%s of %s does less under the race detector, and is not among the rounds of %s", name, dir, testScript)
			}
		}
	}
	// Those that the second run leaves out are in the first.
	alone := 0
	for dir, tests := range testNames(t, root) {
		for _, name := range tests {
			if skipped.MatchString(name) {
				if alone++; !covered(dir) || !rounds.MatchString(name) {
					t.Errorf("%s of %s is left out under the race detector, and is not among the rounds of %s", name, dir, testScript)
				}
			}
		}
	}
	if alone < 10 {
		t.Errorf("only %d tests are left out under the race detector: this test does not find them", alone)
	}
	if len(named) < 30 {
		t.Fatalf("only %d tests do less under the race detector: this test does not find them", len(named))
	}
}

// testNames returns the names of all tests below root, by folder.
func testNames(t *testing.T, root string) map[string][]string {
	t.Helper()
	names := make(map[string][]string)
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		dir = filepath.ToSlash(dir)
		for _, m := range declared.FindAllSubmatch(source, -1) {
			names[dir] = append(names[dir], string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// roundsOf returns which tests the script runs without the race detector, which of them it
// leaves out under it, and the folders of the packages that it builds for the first run.
func roundsOf(t *testing.T, root string, script []byte) (rounds, alone *regexp.Regexp, folders []string) {
	t.Helper()
	// The shell puts the expression together from its parts, and looks for what has such tests.
	parts := regexp.MustCompile(`(?m)^[a-z]+\+?='[^']*'$|^rounds=.*$`).FindAll(script, -1)
	search := regexp.MustCompile(`(?m)^mapfile -t of_rounds < <\((?s:.*?)\)$`).Find(script)
	if search == nil || !bytes.Contains(script, []byte("\nproduct test \"${options[@]}\" -run \"^($rounds)\\$\" \"${of_rounds[@]}\" | passed_on ||")) {
		t.Fatalf("%s runs its rounds in a way that this test does not know", testScript)
	}
	text := append(bytes.Join(append(parts, search), []byte("\n")), "\n"+`echo "$rounds"; echo "$alone"; printf '%s\n' "${of_rounds[@]}"`...)
	shell := exec.Command("bash", "-euc", string(text))
	shell.Dir = root
	all, err := shell.Output()
	if err != nil {
		t.Fatalf("the rounds of %s: %v", testScript, err)
	}
	if !bytes.Contains(script, []byte("\ngo test -race \"${options[@]}\" -skip \"^($alone)\\$\" ")) {
		t.Fatalf("%s leaves out tests in a way that this test does not know", testScript)
	}
	lines := strings.Fields(string(all))
	for _, f := range lines[2:] {
		folders = append(folders, strings.TrimPrefix(f, "./"))
	}
	return regexp.MustCompile("^(" + lines[0] + ")$"), regexp.MustCompile("^(" + lines[1] + ")$"), folders
}

// lessUnderDetector returns the tests that do less under the race detector, by folder: those
// that are not built with it, and those that name the constant raceDetector, or a function
// that does, of their package or of a harness.
func lessUnderDetector(t *testing.T, root string) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	ofHarness := make(map[string]bool)
	for _, harness := range harnesses {
		for name := range lessNames(t, filepath.Join(root, harness), "*.go", map[string]bool{"RaceDetector": true}) {
			ofHarness["."+strings.TrimPrefix(name, ".")] = true // as those that import it name it
		}
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		rel, err := filepath.Rel(root, path)
		if tests := lessIn(t, path, ofHarness); len(tests) > 0 {
			found[filepath.ToSlash(rel)] = tests
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// harnesses are packages whose constants and functions tests of several others use.
var harnesses = []string{"internal/coordinator/coordinatortest", "internal/fleettest"}

func lessIn(t *testing.T, dir string, ofHarness map[string]bool) []string {
	t.Helper()
	less := maps.Clone(ofHarness)
	less["raceDetector"] = true
	less = lessNames(t, dir, "*_test.go", less)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(less)), func(n string) bool { return !strings.HasPrefix(n, "Test") })
}

// lessNames returns less, with the functions of some files that do less because they name
// what is in it; a method has a dot before its name.
func lessNames(t *testing.T, dir, pattern string, less map[string]bool) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string][]string) // what each function names
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		notBuilt := !builtWith(file, "race")
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if notBuilt && strings.HasPrefix(f.Name.Name, "Test") {
				less[f.Name.Name] = true
			}
			name := f.Name.Name
			if f.Recv != nil {
				name = "." + name
			}
			names[name] = append(names[name], named(f.Body)...)
		}
	}
	for grew := true; grew; {
		grew = false
		for f, all := range names {
			if !less[f] && slices.ContainsFunc(all, func(n string) bool { return less[n] }) {
				less[f], grew = true, true
			}
		}
	}
	return less
}

// named returns the functions and constants that body names, and methods with a dot
// before them.
func named(body *ast.BlockStmt) (all []string) {
	var look func(n ast.Node) bool
	look = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			all = append(all, "."+n.Sel.Name)
			ast.Inspect(n.X, look)
			return false
		case *ast.KeyValueExpr:
			if _, field := n.Key.(*ast.Ident); !field {
				ast.Inspect(n.Key, look)
			}
			ast.Inspect(n.Value, look)
			return false
		case *ast.Ident:
			// The parser knows what is declared in the function, by what it is.
			if n.Obj == nil || n.Obj.Kind == ast.Fun || strings.EqualFold(n.Name, "raceDetector") {
				all = append(all, n.Name)
			}
		}
		return true
	}
	if body != nil {
		ast.Inspect(body, look)
	}
	return all
}

// builtWith reports whether a file is built where all tags are set.
func builtWith(file *ast.File, tag string) bool {
	for _, group := range file.Comments {
		for _, c := range group.List {
			if c.Pos() > file.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			if x, err := constraint.Parse(c.Text); err == nil && !x.Eval(func(t string) bool { return t == tag || t == "linux" || t == "unix" }) {
				return false
			}
		}
	}
	return true
}
