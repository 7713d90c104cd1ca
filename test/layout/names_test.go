// The names that public packages promise are read from what the compiler exports of them.
package layout

import (
	"bytes"
	"errors"
	"fmt"
	"go/constant"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/test/goldentest"
)

// promised is where the public names stand, for people who review a change of them.
const promised = "../../docs/reference/api.txt"

// exported loads the public packages as the compiler exported them for Linux, by their
// paths below the module.
func exported() (map[string]*types.Package, error) {
	patterns := make([]string, 0, len(public))
	for _, p := range public {
		patterns = append(patterns, "./"+p+"/...")
	}
	from, paths, err := compiled(patterns...)
	if err != nil {
		return nil, err
	}
	all := make(map[string]*types.Package)
	for _, p := range paths {
		if below, own := strings.CutPrefix(p, module+"/"); own && withinAny(below, public) {
			if all[below], err = from.Import(p); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// compiled imports what packages and those below them export, as the compiler left it in
// Go's build cache for Linux. It returns their paths too.
func compiled(patterns ...string) (types.Importer, []string, error) {
	list := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, patterns...)...)
	list.Dir = filepath.Join("..", "..")
	list.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0",
		"GOFLAGS=-buildvcs=false -trimpath -tags=grpcnotrace,nethttpomithttp2")
	out, err := list.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, nil, fmt.Errorf("go list: %w", err)
	}
	files := make(map[string]string)
	for line := range bytes.Lines(out) {
		p, file, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		files[p] = file
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(files[path])
	}), slices.Sorted(maps.Keys(files)), nil
}

// promises lists what pkg promises, a line for each: top-level names, exported fields, and
// exported methods. names counts the first.
func promises(pkg *types.Package) (lines []string, names int) {
	show := func(t types.Type) string {
		return types.TypeString(t, func(p *types.Package) string {
			if p == pkg {
				return ""
			}
			return p.Name()
		})
	}
	for _, name := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		names++
		switch o := o.(type) {
		case *types.Const:
			value := o.Val().ExactString()
			if o.Val().Kind() == constant.Float {
				value = o.Val().String()
			}
			lines = append(lines, fmt.Sprintf("const %s %s = %s", name, show(o.Type()), value))
		case *types.Var:
			lines = append(lines, fmt.Sprintf("var %s %s", name, show(o.Type())))
		case *types.Func:
			lines = append(lines, "func "+name+strings.TrimPrefix(show(unnamed(o.Signature())), "func"))
		case *types.TypeName:
			lines = append(lines, ofType(o, show)...)
		}
	}
	return lines, names
}

// ofType lists a type with its exported fields and methods, promoted ones too.
func ofType(o *types.TypeName, show func(types.Type) string) []string {
	if o.IsAlias() {
		return []string{fmt.Sprintf("type %s = %s", o.Name(), show(types.Unalias(o.Type())))}
	}
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, "type "+o.Name()+fmt.Sprintf(format, args...)) }
	switch under := o.Type().Underlying().(type) {
	case *types.Struct:
		add(" struct")
		for field := range under.Fields() {
			if field.Exported() {
				add(" struct, %s %s", field.Name(), show(field.Type()))
			}
		}
	case *types.Interface:
		add(" interface")
		for method := range under.Methods() {
			if method.Exported() {
				add(" interface, %s%s", method.Name(), strings.TrimPrefix(show(unnamed(method.Signature())), "func"))
			} else {
				add(" interface, with methods that nobody outside has")
			}
		}
		return slices.Compact(lines)
	default:
		add(" %s", show(under))
	}
	byValue := types.NewMethodSet(o.Type())
	methods := types.NewMethodSet(types.NewPointer(o.Type()))
	for selection := range methods.Methods() {
		m, ok := selection.Obj().(*types.Func)
		if !ok || !m.Exported() {
			continue
		}
		receiver := "*" + o.Name()
		if byValue.Lookup(m.Pkg(), m.Name()) != nil {
			receiver = o.Name()
		}
		lines = append(lines, fmt.Sprintf("method (%s) %s%s", receiver, m.Name(), strings.TrimPrefix(show(unnamed(m.Signature())), "func")))
	}
	return lines
}

// unnamed is s without the names of its parameters, which are no promise.
func unnamed(s *types.Signature) *types.Signature {
	plain := func(t *types.Tuple) *types.Tuple {
		var vars []*types.Var
		for v := range t.Variables() {
			vars = append(vars, types.NewParam(token.NoPos, nil, "", v.Type()))
		}
		return types.NewTuple(vars...)
	}
	return types.NewSignatureType(nil, nil, slices.Collect(s.TypeParams().TypeParams()), plain(s.Params()), plain(s.Results()), s.Variadic())
}

// The public names are those of the file. After a change
// that is meant: go test ./test/layout -update
func TestPublicNames(t *testing.T) {
	packages, err := exported()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	counts := map[string]int{"all": 0}
	for _, p := range slices.Sorted(maps.Keys(packages)) {
		lines, names := promises(packages[p])
		fmt.Fprintf(&text, "package %s: %d names\n", p, names)
		for _, line := range lines {
			fmt.Fprintf(&text, "%s: %s\n", p, line)
		}
		counts[p] = names
		counts["all"] += names
	}
	goldentest.Compare(t, promised, text.String())
	for _, p := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%-22s %4d top-level names", p, counts[p])
	}
}
