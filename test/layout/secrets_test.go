// These tests look into the packages of the module, of which none is their subject: they
// stand inside, beside the rules of layers_test.go.
package layout

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
)

// A kind of secret says which packages may handle it.
type kind string

const (
	seeds  kind = "a seed, what derives from it, or a mesh CA key"
	shares kind = "shares of a seed, or what opens them"
)

// secretNames are the types that hold secrets of a cluster or open them, and the
// functions and methods that give or take secret bytes without such a type. A handle
// that signs or seals and gives no bytes is none: keyring.Signer, ca.Issuer.
var secretNames = map[string]kind{
	"internal/keyring.Seed":               seeds,
	"internal/keyring.Keys":               seeds,
	"internal/keyring.Handed":             seeds,
	"internal/keyring.OpenMesh":           seeds,
	"internal/keyring.SealMesh":           seeds,
	"internal/keyring.Keeper.Open":        seeds,
	"internal/keyring.FileKeeper.Open":    seeds,
	"internal/keyring.ExecKeeper.Open":    seeds,
	"internal/pki.MeshCA.Key":             seeds,
	"internal/pki.LoadMeshCA":             seeds,
	"internal/keyring.Share":              shares,
	"internal/keyring.ShareFile":          shares,
	"internal/keyring.EphemeralRecipient": shares,
}

// secretPackages may handle secrets, each for its promise.
var secretPackages = []struct {
	path string
	kind kind
	why  string
}{
	{"internal/keyring", seeds, "it holds them"},
	{"internal/keyring", shares, "it makes and joins them"},
	{"internal/pki", seeds, "it holds mesh CA keys"},
	{"internal/keyring/recovery", shares, "it says which of them bring a seed back"},
	{"internal/dev/cluster", seeds, "it plays a thief"},
	{"internal/dev/cluster", shares, "it plays the owners"},
	{"internal/dev/story", shares, "it has an owner bring a wrong one"},
	{"internal/coordinator/coordinatortest", seeds, "it plays a thief"},
	{"internal/coordinator/coordinatortest", shares, "it plays the owners"},
	{"internal/coordinator/authority", seeds, "the one part of a coordinator that holds them"},
	{"internal/coordinator/authority", shares, "it makes them, and a seed of them"},
	{"internal/coordinator/authority/transition", shares, "it splits a seed among its owners, and seals each share"},
	{"internal/coordinator/recovery/owner", shares, "it gathers them"},
}

// secretReaches are the declarations in other packages that reach a secret. The list only
// shrinks: one that is not here may not, and one that has no need of its place leaves it.
var secretReaches = map[string]map[kind][]string{
	"internal/cli/recovery": {
		shares: {
			"bringAt",
			"bringShare",
			"bringShares",
			"drill",
			"openShares",
			"recover",
		},
	},
	"internal/coordinator/recovery/peer": {
		shares: {
			"PeerRecovery.takeKey",
			"asking.askSecrets",
			"asking.steps",
			"peerServer.Prepare",
		},
	},
}

// secrets finds what reaches a secret of one kind in one package.
type secrets struct {
	*source
	kind kind
	memo map[types.Type]string
}

// looked is a type, and whether what has it may be looked into if it is a named struct.
type looked struct {
	t    types.Type
	open bool
}

// reaches returns the declarations of the package that reach a secret, by name, with the
// file and the first way in which each does.
//
// A declaration reaches one if it names it, or has an expression whose type is one: a
// variable that it was inferred for, a field, what a call gives. A type made of it counts,
// as a slice or a function of it, and so does a struct with a field of it that can be
// named there; what merely holds such a struct does not, until somebody takes it out.
// Code that reads memory or fields by reflection is not seen.
func (s secrets) reaches() map[string]string {
	out := make(map[string]string)
	for _, f := range s.files {
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					name = receiver(s.info.Defs[d.Name]) + "." + name
				}
				s.note(out, name, d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						s.note(out, spec.Name.Name, spec)
					case *ast.ValueSpec:
						s.note(out, spec.Names[0].Name, spec)
					}
				}
			}
		}
	}
	return out
}

// receiver returns the name of the type that a method belongs to.
func receiver(method types.Object) string {
	t := method.(*types.Func).Signature().Recv().Type()
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	if named, ok := t.(*types.Named); ok {
		return named.Obj().Name()
	}
	return t.String() // an interface that is written out
}

func (s secrets) note(out map[string]string, name string, in ast.Node) {
	ast.Inspect(in, func(n ast.Node) bool {
		var how string
		if id, ok := n.(*ast.Ident); ok {
			how = s.named(s.info.Uses[id])
		}
		if e, ok := n.(ast.Expr); ok && how == "" {
			how = s.held(s.info.Types[e].Type)
		}
		if how != "" && out[name] == "" {
			out[name] = fmt.Sprintf("%s: %s", s.fset.Position(n.Pos()), how)
		}
		return out[name] == ""
	})
}

// named returns the name of obj if it is a secret, or "".
func (s secrets) named(obj types.Object) string {
	if obj == nil || obj.Pkg() == nil {
		return ""
	}
	name := obj.Name()
	if f, ok := obj.(*types.Func); ok && f.Signature().Recv() != nil {
		name = receiver(f) + "." + name
	}
	below, _ := strings.CutPrefix(obj.Pkg().Path(), module+"/")
	if name = below + "." + name; secretNames[name] == s.kind {
		return name
	}
	return ""
}

// held returns the secret that t is, is made of, or has a field of, or "".
func (s secrets) held(t types.Type) string {
	how, ok := s.memo[t]
	if !ok {
		how = s.search(looked{t, true}, make(map[looked]bool))
		s.memo[t] = how
	}
	return how
}

// search looks into at, but not into what is in seen: there it has been, or is.
func (s secrets) search(at looked, seen map[looked]bool) string {
	t := types.Unalias(at.t)
	if t == nil || seen[looked{t, at.open}] {
		return ""
	}
	seen[looked{t, at.open}] = true
	first := func(list ...types.Type) string {
		for _, t := range list {
			if how := s.search(looked{t, at.open}, seen); how != "" {
				return how
			}
		}
		return ""
	}
	switch t := t.(type) {
	case *types.Named:
		if how := s.named(t.Obj()); how != "" {
			return how
		}
		for of := range t.TypeArgs().Types() {
			if how := first(of); how != "" {
				return how
			}
		}
		if _, ok := t.Underlying().(*types.Struct); ok && !at.open {
			return ""
		}
		return first(t.Underlying())
	case *types.Struct:
		for field := range t.Fields() {
			if !field.Exported() && field.Pkg().Path() != s.types.Path() && !field.Embedded() {
				continue
			}
			if how := s.search(looked{field.Type(), field.Embedded()}, seen); how != "" {
				return how
			}
		}
	case *types.Interface:
		for method := range t.Methods() {
			if how := first(method.Type()); how != "" {
				return how
			}
		}
	case *types.Signature:
		return first(t.Params(), t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			if how := first(v.Type()); how != "" {
				return how
			}
		}
	case *types.Map:
		return first(t.Key(), t.Elem())
	case interface{ Elem() types.Type }: // a pointer, slice, array or channel
		return first(t.Elem())
	}
	return ""
}

func reachesOf(s *source, k kind) map[string]string {
	return secrets{s, k, make(map[types.Type]string)}.reaches()
}

func TestSecretsStayWhereListed(t *testing.T) {
	all := allSources(t)
	if !slices.ContainsFunc(all, func(s *source) bool { return s.path == "internal/keyring" }) {
		t.Fatal("the packages do not contain internal/keyring")
	}
	for _, s := range all {
		for _, k := range []kind{seeds, shares} {
			own := false
			for _, row := range secretPackages {
				own = own || row.kind == k && within(s.path, row.path)
			}
			listed := secretReaches[s.path][k]
			if own {
				if len(listed) > 0 {
					t.Errorf("%s may handle %s: take its rows out of secretReaches", s.path, k)
				}
				continue
			}
			found := reachesOf(s, k)
			for _, name := range slices.Sorted(maps.Keys(found)) {
				if !slices.Contains(listed, name) {
					t.Errorf("%s: %s of %s reaches %s, and may not: let it call who may, and get a signature or sealed bytes of them",
						found[name], name, s.path, k)
				}
			}
			for i, name := range listed {
				if found[name] == "" {
					t.Errorf("%s of %s does not reach %s any more: take it out of secretReaches", name, s.path, k)
				}
				if i > 0 && listed[i-1] >= name {
					t.Errorf("secretReaches: %s of %s is not in order, or stands twice", name, s.path)
				}
			}
		}
	}
	for path := range secretReaches {
		if !slices.ContainsFunc(all, func(s *source) bool { return s.path == path }) {
			t.Errorf("secretReaches: there is no package %s", path)
		}
	}
	for _, row := range secretPackages {
		i := slices.IndexFunc(all, func(s *source) bool { return s.path == row.path })
		switch {
		case i < 0:
			t.Errorf("secretPackages: there is no package %s", row.path)
		case len(reachesOf(all[i], row.kind)) == 0:
			t.Errorf("secretPackages: %s reaches no secret of this kind: %s", row.path, row.kind)
		}
	}
	// A name that is misspelt would guard nothing.
	for name := range secretNames {
		if !slices.ContainsFunc(all, func(s *source) bool { return s.declares(name) }) {
			t.Errorf("secretNames: nothing is called %s", name)
		}
	}
}

// declares reports whether name, as in secretNames, is of this package.
func (s *source) declares(name string) bool {
	below, ok := strings.CutPrefix(name, s.path+".")
	if !ok {
		return false
	}
	of, method, ok := strings.Cut(below, ".")
	obj := s.types.Scope().Lookup(of)
	if obj == nil || !ok {
		return obj != nil
	}
	found, _, _ := types.LookupFieldOrMethod(obj.Type(), true, s.types, method)
	return found != nil
}

// packagesOf imports what was checked before.
type packagesOf map[string]*types.Package

func (p packagesOf) Import(path string) (*types.Package, error) {
	if found := p[path]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("no package %s", path)
}

func TestReaches(t *testing.T) {
	from := make(packagesOf)
	for path, text := range map[string]string{
		"internal/keyring": `package keyring
type Seed struct{ secret []byte }
func NewSeed() Seed { return Seed{} }
func (s Seed) Derive() Keys { return Keys{} }
func (s *Seed) Wipe() {}
type Keys struct{ held []byte }
func (k Keys) Signer() Signer { return Signer{} }
type Signer struct{ key []byte }
type Share struct{ b byte }
type Sealed struct{ share Share; Name string }
type Shown struct{ Share Share; Name string }
func OpenMesh() []byte { return nil }
type Keeper interface { Open() []byte; Name() string }
`,
		"internal/pki": `package ca
type MeshCA struct{ key []byte }
func (m *MeshCA) Key() []byte { return m.key }
func (m *MeshCA) Cert() []byte { return nil }
`,
	} {
		s, err := check(path, map[string][]byte{"a.go": []byte(text)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		from[module+"/"+path] = s.types
	}
	for _, tt := range []struct {
		name   string
		text   string
		seeds  string // what reaches one, sorted
		shares string
	}{
		{"by name", "func f(s keyring.Seed) {}; func g(h keyring.Signer) {}; var v, w = keyring.Keys{}, 1; type t keyring.Seed", "f t v", ""},
		{"an inferred variable", "func f() { s := keyring.NewSeed(); _ = s }; func g() { s := 1; _ = s }", "f", ""},
		{"what a call gives", "func f() { a(b()) }; func a(int, any) {}; func b() (int, keyring.Seed) { return 0, keyring.NewSeed() }",
			"b f", ""},
		{"a field", "type in struct { seed keyring.Seed; n int }; type out struct { in *in; n int }; func f(o *out) { _ = o.in.n }; func g(o *out) int { h(o); return o.n }; func h(*out) {}",
			"f in out", ""},
		{"an alias", "type a = keyring.Seed; func f(s a) {}; type b = *a; func g(s b) {}", "a b f g", ""},
		{"an embedded field", "type in struct { keyring.Seed }; type out struct { *in; n int }; func f(o *out) { o.Wipe() }; func g(o out) { o.n++ }; func h(i any) { _ = i }",
			"f g in out", ""},
		{"what is made of it", "type s []keyring.Seed; func a(s) {}; func b(m map[string]*keyring.Seed) {}; func c(f func() keyring.Keys) {}; func d(c chan [2]keyring.Seed) {}; func e(i interface{ Seed() keyring.Seed }) {}; func f(v struct{ s keyring.Seed }) {}",
			"a b c d e f s", ""},
		{"what is made of it, where it has no name", "type m map[string]keyring.Seed; func a(m) {}; type f func(keyring.Seed); func b(f) {}; type g func() keyring.Seed; func c(g) {}; type i interface { Seed() keyring.Seed }; func d(i) {}; type n interface { i }; func e(n) {}",
			"a b c d e f g i m n", ""},
		{"a type argument", "type box[T any] struct { at *T }; func (b *box[T]) get() *T { return b.at }; type out struct { seed box[keyring.Seed]; n int }; func f(o *out) { _ = o.seed }; func g(b *box[int]) { b.get() }",
			"f out", ""},
		{"a type argument, where it has no name", "type ref[T any] struct { at func(int) }; type seed = ref[keyring.Seed]; func f(s seed) {}", "f seed", ""},
		{"a method, and a function within one", "type t struct{}; func (t) f() { go func() { keyring.NewSeed() }() }; func (*t) g() {}", "t.f", ""},
		{"what gives bytes", "func f() { keyring.OpenMesh() }; func g(m *ca.MeshCA) { m.Key() }; func h(m *ca.MeshCA) { m.Cert() }; func i(k keyring.Keeper) { _ = k.Open }; func j(k keyring.Keeper) { k.Name() }",
			"f g i", ""},
		{"a handle", "func f(k keyring.Keys) keyring.Signer { return k.Signer() }; var v keyring.Signer; func g(h keyring.Signer) { g(v) }", "f", ""},
		{"shares are another kind", "func f(s keyring.Share) {}; func g(s keyring.Shown) string { return s.Name }; func h(s keyring.Sealed) string { return s.Name }; func i(s keyring.Share) { keyring.NewSeed() }",
			"i", "f g i"},
		{"a type that is made of itself", "type t struct { next *t; *u }; type u struct { *t }; type v []v; func f(a *t, b v) {}", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := "package p\nimport (\"" + module + "/internal/pki\"; \"" + module + "/internal/keyring\")\nvar _ ca.MeshCA\nvar _ keyring.Signer\n" +
				strings.ReplaceAll(tt.text, "; ", "\n")
			s, err := check("internal/p", map[string][]byte{"a.go": []byte(text)}, from)
			if err != nil {
				t.Fatal(err)
			}
			for k, want := range map[kind]string{seeds: tt.seeds, shares: tt.shares} {
				if got := strings.Join(slices.Sorted(maps.Keys(reachesOf(s, k))), " "); got != want {
					t.Errorf("%s is reached by %q, want %q", k, got, want)
				}
			}
		})
	}
}

// The parts of a coordinator are for tests: whoever else took one would go past what the
// coordinator says of itself, and past its order of starting and ending.
func TestPartsAreForTests(t *testing.T) {
	const parts = "(*" + module + "/internal/coordinator.Coordinator).Parts"
	there := false
	for _, s := range allSources(t) {
		for _, o := range s.info.Defs {
			f, ok := o.(*types.Func)
			there = there || ok && f.FullName() == parts
		}
		if testPackage(s.path) {
			continue
		}
		for id, o := range s.info.Uses {
			if f, ok := o.(*types.Func); ok && f.FullName() == parts {
				t.Errorf("%s: only tests reach into a coordinator: let it say what is asked of it", s.fset.Position(id.Pos()))
			}
		}
	}
	if !there {
		t.Errorf("there is no %s: this test looks for nothing", parts)
	}
}
