package layout

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
)

// states are the variables of packages that change while a program runs, and why nobody can own them. All other state
// has an owner who makes it and hands it on, so that a program or a test can have two.
var states = map[string]string{
	"internal/keyring.pages":              "how much memory a process may lock is one bound for the whole process",
	"internal/platform/durable.ofProcess": "of two file systems that do not know of each other, one would sweep what the other is writing",
	"internal/platform/freeport.given":    "it is for tests, and of two in one process none gets a port of the other",
	"internal/platform/freeport.mu":       "it guards given",
}

// written returns the variables of the package that functions write to, or give other packages to write to, or that hold
// a lock, a channel or an atomic value, each with why. What package sync computes once or uses again (Once, Pool) is no
// state: nobody sees whether it was there.
func written(s *source) map[string]string {
	out := make(map[string]string)
	note := func(e ast.Expr, why string) {
		if v := rootVar(s, e); v != nil {
			out[v.Name()] = why
		}
	}
	for _, f := range s.files {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, left := range n.Lhs {
					note(left, "it is assigned to")
				}
			case *ast.IncDecStmt:
				note(n.X, "it is counted")
			case *ast.RangeStmt:
				note(n.Key, "a loop writes to it")
				note(n.Value, "a loop writes to it")
			case *ast.CallExpr:
				switch f := callee(s, n).(type) {
				case *types.Builtin:
					if slices.Contains([]string{"delete", "clear", "copy"}, f.Name()) {
						note(n.Args[0], f.Name()+" writes to it")
					}
				case *types.Func:
					if f.Pkg() == s.types {
						break
					}
					for _, arg := range n.Args {
						if address, ok := arg.(*ast.UnaryExpr); ok && address.Op == token.AND {
							note(address.X, f.FullName()+" gets its address")
						}
					}
				}
			}
			return true
		})
	}
	scope := s.types.Scope()
	for _, name := range scope.Names() {
		if v, ok := scope.Lookup(name).(*types.Var); ok {
			if holds := changing(v.Type(), nil); holds != "" {
				out[name] = "it holds " + holds
			}
		}
	}
	return out
}

// rootVar returns the variable of the package that writing to e changes; nil: none.
func rootVar(s *source, e ast.Expr) *types.Var {
	for {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.Ident:
			if v, ok := s.info.Uses[x].(*types.Var); ok && v.Parent() == s.types.Scope() {
				return v
			}
			return nil
		default:
			return nil
		}
	}
}

// callee returns the function that is called by its name; nil: it is another one.
func callee(s *source, call *ast.CallExpr) types.Object {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return s.info.Uses[f]
	case *ast.SelectorExpr:
		return s.info.Uses[f.Sel]
	}
	return nil
}

// changing returns what in a type can be changed behind a variable that stays as it is; "": nothing that is seen. Types of
// other modules are not looked into.
func changing(t types.Type, above []types.Type) string {
	if slices.Contains(above, t) {
		return ""
	}
	above = append(above, t)
	switch t := t.(type) {
	case *types.Pointer:
		return changing(t.Elem(), above)
	case *types.Array:
		return changing(t.Elem(), above)
	case *types.Chan:
		return "a channel"
	case *types.Named:
		p := t.Obj().Pkg()
		switch {
		case p == nil:
			return ""
		case p.Path() == "sync/atomic" || p.Path() == "sync" && !slices.Contains([]string{"Once", "Pool"}, t.Obj().Name()):
			return "a " + p.Name() + "." + t.Obj().Name()
		case !strings.HasPrefix(p.Path(), module+"/"):
			return ""
		}
		return changing(t.Underlying(), above)
	case *types.Struct:
		for f := range t.Fields() {
			if holds := changing(f.Type(), above); holds != "" {
				return holds
			}
		}
	}
	return ""
}

// No package has state of its own: see states.
func TestNoPackageHasState(t *testing.T) {
	t.Parallel()
	unmet := maps.Clone(states)
	for _, s := range allSources(t) {
		if testPackage(s.path) {
			continue
		}
		for v, why := range written(s) {
			at := s.path + "." + v
			if _, allowed := states[at]; !allowed {
				t.Errorf("%s is a variable of a package, and %s: whoever starts what needs it makes it, and hands it on", at, why)
			}
			delete(unmet, at)
		}
	}
	for at := range unmet {
		t.Errorf("%s has no state any more: take it off the list", at)
	}
}

// The rule finds what it is for.
func TestWritten(t *testing.T) {
	t.Parallel()
	const text = `package p

import ("sync"; "sync/atomic")

type inner struct{ mu sync.Mutex; n int }
type outer struct{ in *inner }

var (
	assigned, field, element, counted, taken, deleted int
	m = map[string]int{}
	s struct{ n int }
	looped, pointed *int
	locked outer
	flag atomic.Bool
	events = make(chan int)
	once sync.Once
	used sync.Pool
	number int64
	value = sync.OnceValue(func() int { return 1 })
	table = []string{"a"}
	constant = map[string]int{"a": 1}
)

func f() {
	assigned = 1
	s.n = 1
	m["a"]++
	counted += table2()
	p, q := &taken, &table
	atomic.AddInt64(&number, int64(*p+len(*q)))
	*pointed = 1
	used.Put(nil)
	delete(constant2, "a")
	for looped2 = range table {
	}
	table := []string{"b"} // another one
	table[0] = constant3
	_, _, _ = field, element, deleted
	_ = value() + constant["a"]
	once.Do(f)
}

var (
	constant2 = map[string]int{}
	constant3 = "a"
	looped2 int
)

func table2() int { return 0 }
`
	from, _, err := compiled("sync", "sync/atomic")
	if err != nil {
		t.Fatal(err)
	}
	s, err := check("p", map[string][]byte{"a.go": []byte(text)}, from)
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(maps.Keys(written(s)))
	want := []string{"assigned", "constant2", "counted", "events", "flag", "locked", "looped2", "m", "number", "pointed", "s"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("found %v, want %v", got, want)
	}
}
