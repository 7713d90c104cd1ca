package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each station of a walk is a function of the file that the page names, and a walk has five to nine of them.
func TestStationsAreThere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs/explanation/three-walks.md"))
	if err != nil {
		t.Fatal(err)
	}
	station := regexp.MustCompile("(?m)^\\| \\d+ \\| `([\\w.]+)` in `([^`]+)` \\|")
	walks := strings.Split(string(text), "\n## ")[1:]
	if len(walks) != 3 {
		t.Fatalf("%d walks", len(walks))
	}
	for _, walk := range walks {
		title, _, _ := strings.Cut(walk, "\n")
		stations := station.FindAllStringSubmatch(walk, -1)
		if len(stations) < 5 || len(stations) > 9 {
			t.Errorf("%s: %d stations", title, len(stations))
		}
		for _, s := range stations {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, s[2]), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("%s: %v", title, err)
				continue
			}
			found := false
			for _, decl := range file.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok {
					name := f.Name.Name
					found = found || s[1] == nameOfFunc(f) || s[1] == file.Name.Name+"."+name && f.Recv == nil
				}
			}
			if !found {
				t.Errorf("%s: %s has no function %s", title, s[2], s[1])
			}
		}
	}
}

// nameOfFunc returns Type.Method or Func.
func nameOfFunc(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name + "." + f.Name.Name
	}
	return f.Name.Name
}
