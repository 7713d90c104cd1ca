// These tests measure the packages of the module, of which none is their subject: they
// stand inside, beside the rules of layers_test.go.
package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// source is a package of the module with its types: what is built for this platform,
// without tests.
type source struct {
	path  string // below the module
	fset  *token.FileSet
	files []sourceFile
	types *types.Package
	info  *types.Info
}

type sourceFile struct {
	name   string // without its folder
	text   []byte
	syntax *ast.File
}

// check parses and type-checks the files of one package, by name.
func check(path string, texts map[string][]byte, from types.Importer) (*source, error) {
	s := &source{path: path, fset: token.NewFileSet(), info: &types.Info{
		Types: make(map[ast.Expr]types.TypeAndValue),
		Defs:  make(map[*ast.Ident]types.Object),
		Uses:  make(map[*ast.Ident]types.Object),
	}}
	var syntax []*ast.File
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		file, err := parser.ParseFile(s.fset, name, texts[name], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, sourceFile{name, texts[name], file})
		syntax = append(syntax, file)
	}
	config := types.Config{Importer: from}
	var err error
	s.types, err = config.Check(module+"/"+path, s.fset, syntax, s.info)
	return s, err
}

// sources returns the packages of the module but those that are made of the protos.
//
// Their imports are not type-checked again: it is read from what the compiler left in
// Go's build cache. The settings are those of tools/lint.sh and of the program that is
// shipped, so that it is there already, and what is compiled here serves them in turn.
// The system is Linux everywhere: some files are for one system, and they are counted.
var sources = sync.OnceValues(func() ([]*source, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Export,Standard", "./...")
	list.Dir = filepath.Join("..", "..")
	list.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false -trimpath -tags=grpcnotrace,nethttpomithttp2")
	out, err := list.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		Standard                bool
	}
	exports := make(map[string]string)
	var own []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if p.ImportPath == "net/http" && slices.Contains(p.GoFiles, "h2_bundle.go") {
			return nil, errors.New("the HTTP/2 of net/http is in the program: the tag nethttpomithttp2 leaves it out")
		}
		exports[p.ImportPath] = p.Export
		if strings.HasPrefix(p.ImportPath, module+"/") {
			own = append(own, p)
		}
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	var all []*source
	for _, p := range own {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		if within(path, "api") {
			continue // it imports nothing that these tests are about
		}
		texts := make(map[string][]byte)
		for _, name := range p.GoFiles {
			if texts[name], err = os.ReadFile(filepath.Join(p.Dir, name)); err != nil {
				return nil, err
			}
		}
		s, err := check(path, texts, from)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
})

// allSources returns the packages of the module.
func allSources(t *testing.T) []*source {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	return all
}
