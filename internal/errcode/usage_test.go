package errcode

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	repoRoot   = "../.."
	importPath = "github.com/fealty-io/fealty/internal/errcode"
)

// plannedCodes are documented ahead of the part that uses them. One that is used
// leaves this list.
var plannedCodes []Code

var codeLiteral = regexp.MustCompile(`\bFE-[A-Z][0-9]{3}\b`)

// usage is what a source file says of codes.
type usage struct {
	constants []string // names selected from package errcode, such as TokenSpent
	literals  []string // codes in string literals
}

// usageOf parses src and returns the codes that it uses. Codes in comments are
// no use.
func usageOf(filename string, src any) (usage, error) {
	var u usage
	file, err := parser.ParseFile(token.NewFileSet(), filename, src, parser.SkipObjectResolution)
	if err != nil {
		return u, err
	}
	local := ""
	for _, imp := range file.Imports {
		if p, _ := strconv.Unquote(imp.Path.Value); p == importPath {
			local = path.Base(importPath)
			if imp.Name != nil {
				local = imp.Name.Name
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && local != "" && x.Name == local {
				u.constants = append(u.constants, n.Sel.Name)
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				u.literals = append(u.literals, codeLiteral.FindAllString(n.Value, -1)...)
			}
		}
		return true
	})
	return u, nil
}

// constants returns the Code constants of codes.go by their names.
func constants(t *testing.T) map[string]Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]Code)
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.CONST {
			continue
		}
		for _, spec := range gen.Specs {
			v := spec.(*ast.ValueSpec)
			for i, name := range v.Names {
				value, err := strconv.Unquote(v.Values[i].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				out[name.Name] = Code(value)
			}
		}
	}
	return out
}

func TestConstantsAndRegistryAgree(t *testing.T) {
	byCode := make(map[Code]string)
	for name, code := range constants(t) {
		if other, twice := byCode[code]; twice {
			t.Errorf("%s and %s are both %s", name, other, code)
		}
		byCode[code] = name
		if _, ok := Lookup(code); !ok {
			t.Errorf("%s (%s) has no page in the registry", name, code)
		}
	}
	for _, code := range Codes() {
		if byCode[code] == "" {
			t.Errorf("%s has no constant", code)
		}
	}
}

// A code that is used must be documented; one that is documented must be used.
func TestCodesInSources(t *testing.T) {
	names := constants(t)
	used := make(map[Code]bool)
	// The codes that this package itself answers with, for errors without one.
	for _, file := range []string{"status.go"} {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for name, code := range names {
			if regexp.MustCompile(`\b` + name + `\b`).Match(src) {
				used[code] = true
			}
		}
	}
	err := filepath.WalkDir(repoRoot, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if file != repoRoot && (strings.HasPrefix(name, ".") || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		// This package itself is looked at above.
		if filepath.Clean(filepath.Dir(file)) == filepath.Clean(filepath.Join(repoRoot, "internal/errcode")) {
			return nil
		}
		switch filepath.Ext(name) {
		case ".go":
			if strings.HasSuffix(name, ".pb.go") {
				return nil
			}
			u, err := usageOf(file, nil)
			if err != nil {
				// The compiler tells about it better.
				t.Logf("not looked at: %v", err)
				return nil
			}
			for _, c := range u.constants {
				if code, ok := names[c]; ok && !strings.HasSuffix(name, "_test.go") {
					used[code] = true
				}
			}
			for _, literal := range u.literals {
				if _, ok := Lookup(Code(literal)); !ok {
					t.Errorf("%s: %s is used and not in the registry", file, literal)
				}
				if !strings.HasSuffix(name, "_test.go") {
					used[Code(literal)] = true
				}
			}
		case ".md", ".txt", ".txtar", ".proto":
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for _, literal := range codeLiteral.FindAllString(string(text), -1) {
				if _, ok := Lookup(Code(literal)); !ok {
					t.Errorf("%s: %s is named and not in the registry", file, literal)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range Codes() {
		switch planned := slices.Contains(plannedCodes, code); {
		case !used[code] && !planned:
			t.Errorf("%s is documented and not used: remove it, or name it among the planned ones", code)
		case used[code] && planned:
			t.Errorf("%s is used: it is planned no more", code)
		}
	}
	for _, code := range plannedCodes {
		if _, ok := Lookup(code); !ok {
			t.Errorf("%s is planned and not in the registry", code)
		}
	}
}

// The scan must see what it is for.
func TestUsageOf(t *testing.T) {
	for _, tt := range []struct {
		name, src           string
		constants, literals []string
	}{
		{"constant", `package p; import "` + importPath + `"; var e = errcode.New(errcode.TokenSpent)`, []string{"New", "TokenSpent"}, nil},
		{"renamed import", `package p; import x "` + importPath + `"; var e = x.TokenSpent`, []string{"TokenSpent"}, nil},
		{"other package of that name", `package p; import "example.com/errcode"; var e = errcode.TokenSpent`, nil, nil},
		{"literal", `package p; const c = "see FE-J104 and FE-Q999."`, nil, []string{"FE-J104", "FE-Q999"}},
		{"comment", "package p\n// FE-J104\n", nil, nil},
		{"not a code", `package p; const c = "SAFE-T100 FE-T1000 FE-J10"`, nil, nil},
	} {
		u, err := usageOf("x.go", tt.src)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(u.constants, tt.constants) || !slices.Equal(u.literals, tt.literals) {
			t.Errorf("%s: %v", tt.name, u)
		}
	}
}
