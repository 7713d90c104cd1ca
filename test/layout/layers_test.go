package layout

import (
	"fmt"
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

const module = "github.com/fealty-io/fealty"

// levels says which way imports point: a package imports what stands in a lower row, and what is of the same entry.
// The longest entry that fits a package counts. docs/architecture.md shows the same as a picture.
var levels = [][]string{
	{"internal/platform/errorinfo"},
	{"api", "internal/errcode", "internal/identity", "internal/mesh", "internal/pki/pemfile", "internal/platform",
		"internal/provider", "internal/quarantine", "internal/signed", "internal/store", "internal/cli/term"},
	{"identity", "fence", "internal/document", "internal/keyring", "internal/snapshot", "internal/platform/logging",
		"internal/platform/watch", "internal/store/sqlite", "internal/store/postgres", "internal/store/etcd"},
	{"internal/canonical", "internal/platform/localsocket", "internal/signed/order"},
	{"credential", "snapshot", "internal/authz", "internal/instruction", "internal/manifest", "internal/pki", "internal/quota",
		"internal/cli/command", "internal/cli/term/message"},
	{"internal/auditlog", "internal/jwtsvid", "internal/mesh/pinned", "internal/store/embedded"},
	{"mesh", "internal/trust"},
	{"internal/history", "internal/platform/ratelimit", "internal/proof"},
	{"provider", "internal/backup", "internal/mirror", "internal/node", "internal/pki/enterprise", "internal/shard", "internal/store/sealed"},
	{"operator", "internal/errcode/render", "internal/keyring/recovery", "internal/node/client", "internal/provider/client",
		"internal/provider/conformance", "internal/provider/process", "internal/workload"},
	{"internal/agent", "internal/config", "internal/shard/process"},
	{"node", "internal/coordinator"},
	{"internal/cli/settings", "internal/dev"},
	{"internal/cli"},
	{"cmd", "bench", "docs", "examples", "test"},
}

// roots are the processes that meet over the API alone: an agent goes on when every coordinator is gone, and the
// surest way for it not to call one on its hot path is not to be able to.
var roots = []string{"internal/coordinator", "internal/agent", "internal/shard"}

// drivers lists who alone may import a driver of a database: its engine.
var drivers = []struct{ module, engine string }{
	{"modernc.org/sqlite", "internal/store/sqlite"},
	{"github.com/jackc/pgx", "internal/store/postgres"},
	{"go.etcd.io/etcd", "internal/store/etcd"},
}

// wiring is who opens a store by its address, or words the errors of each engine.
var wiring = []string{"internal/cli/settings", "internal/cli/doctor", "internal/cli", "internal/errcode/render", "internal/dev/cluster", "bench"}

// public packages are what programs of other people import. Examples import nothing else.
var public = []string{"identity", "credential", "mesh", "fence", "snapshot", "provider", "operator", "node"}

// testOnly is what no program contains: it stands in _test.go files and in packages for tests.
var testOnly = []string{
	"testing", "net/http/httptest",
	"github.com/google/go-cmp", "pgregory.net/rapid", "go.uber.org/goleak",
	"github.com/anishathalye/porcupine", "github.com/rogpeppe/go-internal", "github.com/chromedp",
	"github.com/coreos/go-oidc",
}

// pure packages decide and leave acting to others: see "Deciding code does not act" in docs/architecture.md.
var pure = []string{
	"fence", "snapshot", "internal/manifest", "internal/document", "internal/store/health", "internal/auditlog",
	"internal/config", "internal/node/guard", "internal/quarantine", "internal/shard/scheduler",
	"test/chaos",
}

// splitsAddresses are those of them that read HOST:PORT, with package net.
var splitsAddresses = []string{"snapshot", "internal/manifest", "internal/config"}

// accepted is what a member has accepted: it asks nobody and serves nobody.
var accepted = []string{"internal/node/accept", "internal/node/dir", "internal/node/guard", "internal/node/state"}

// shard is where a shard decides and acts. It goes on with every coordinator gone, so nothing that it is made of
// dials: not by itself, and not by what it imports. Session speaks the API to operators, and process runs a shard;
// both stand above it.
const shard = "internal/shard"

// dashboard is what browsers are shown, and dashboardNeeds what it may be made of: the API, the way to a coordinator, and words.
const dashboard = "internal/cli/dashboard"

var dashboardNeeds = []string{"api", "internal/cli/client", "internal/cli/summary", "internal/cli/term", "internal/coordinator/member/condition",
	"internal/errcode", "internal/history", "internal/manifest", "internal/platform/humanize"}

// file is a Go file of the module, as far as these rules look at it.
type file struct {
	dir     string // of its package, below the module; "" for the root
	name    string
	imports []string
}

func (f file) test() bool { return strings.HasSuffix(f.name, "_test.go") }

// within reports whether p is prefix or stands below it.
func within(p, prefix string) bool { return p == prefix || strings.HasPrefix(p, prefix+"/") }

func withinAny(p string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return within(p, prefix) })
}

// testPackage reports whether the package is there for tests alone.
func testPackage(dir string) bool {
	base := path.Base(dir)
	return strings.HasSuffix(base, "test") && base != "attest" || within(dir, "test")
}

// placeOf returns the entry of levels that fits dir best, and its row.
func placeOf(dir string) (entry string, level int) {
	level = -1
	for i, row := range levels {
		for _, e := range row {
			if within(dir, e) && len(e) > len(entry) {
				entry, level = e, i
			}
		}
	}
	return entry, level
}

// rule looks at one import of a file and says what is wrong with it, or "".
// imported is the path below the module if own is set, a whole one otherwise.
type rule struct {
	name  string
	check func(f file, imported string, own bool) string
}

var rules = []rule{
	{"levels", func(f file, imported string, own bool) string {
		if !own || f.test() || testPackage(f.dir) {
			return ""
		}
		from, high := placeOf(f.dir)
		to, low := placeOf(imported)
		if low < high || from == to {
			return ""
		}
		return fmt.Sprintf("%s stands in row %d and %s in row %d: imports point down", from, high, to, low)
	}},
	{"roots apart", func(f file, imported string, own bool) string {
		for _, from := range roots {
			for _, to := range roots {
				if !own || from == to || !within(f.dir, from) || !within(imported, to) {
					continue
				}
				// Tests of a shard let it meet the services of a coordinator in one process.
				if f.test() && from == shard {
					continue
				}
				return "coordinator, agent and shard meet over the API"
			}
		}
		return ""
	}},
	{"drivers", func(f file, imported string, own bool) string {
		for _, d := range drivers {
			if !own && within(imported, d.module) && !within(f.dir, d.engine) {
				return "only " + d.engine + " imports this driver"
			}
		}
		return ""
	}},
	{"engines", func(f file, imported string, own bool) string {
		if !own || f.test() || testPackage(f.dir) || withinAny(f.dir, wiring) {
			return ""
		}
		for _, d := range drivers {
			if within(imported, d.engine) && !within(f.dir, d.engine) {
				return "an engine is imported by who opens a store by its address, and by tests"
			}
		}
		return ""
	}},
	{"examples", func(f file, imported string, own bool) string {
		if !own || f.test() || !within(f.dir, "examples") || withinAny(imported, public) {
			return ""
		}
		return "an example is what somebody else can write: it imports public packages alone"
	}},
	{"dashboard", func(f file, imported string, own bool) string {
		switch from, to := within(f.dir, dashboard), own && within(imported, dashboard); {
		case to && !from && f.dir != "internal/cli" && !f.test():
			return "nothing needs the dashboard: the command alone serves it"
		case own && from && !to && !f.test() && !withinAny(imported, dashboardNeeds):
			return "the dashboard shows what coordinators answer, and has nothing else of the product"
		}
		return ""
	}},
	{"no clock", func(f file, imported string, own bool) string {
		if imported != "time" || f.test() || !within(f.dir, "fence") {
			return ""
		}
		return "whether an attempt is admitted depends on no clock"
	}},
	{"pure", func(f file, imported string, own bool) string {
		if own || f.test() || !slices.Contains(pure, f.dir) || !withinAny(imported, []string{"net", "os"}) ||
			withinAny(imported, []string{"net/netip", "net/url"}) || imported == "net" && slices.Contains(splitsAddresses, f.dir) {
			return ""
		}
		return f.dir + " decides and does no I/O"
	}},
	{"node state", func(f file, imported string, own bool) string {
		if f.test() || !slices.Contains(accepted, f.dir) ||
			!withinAny(imported, []string{"google.golang.org/grpc", "github.com/prometheus", "net"}) && !(own && within(imported, "mesh")) {
			return ""
		}
		return "what a member accepted is verified and kept without asking or telling anybody"
	}},
	{"tests apart", func(f file, imported string, own bool) string {
		if f.test() || testPackage(f.dir) {
			return ""
		}
		if !own && withinAny(imported, testOnly) || own && testPackage(imported) {
			return "what is for tests stands in _test.go files, in *test packages and below test"
		}
		return ""
	}},
}

// violations returns what breaks a rule, sorted.
func violations(files []file) []string {
	var out []string
	for _, f := range files {
		if _, level := placeOf(f.dir); level < 0 {
			out = append(out, fmt.Sprintf("no level: %s stands in no row of levels", f.dir))
		}
		for _, imported := range f.imports {
			below, own := strings.CutPrefix(imported, module+"/")
			if !own {
				below = imported
			}
			for _, r := range rules {
				if problem := r.check(f, below, own); problem != "" {
					out = append(out, fmt.Sprintf("%s: %s imports %s: %s", r.name, path.Join(f.dir, f.name), below, problem))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// load reads the import clauses of all Go files below root.
func load(root string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == root {
				return nil
			}
			// Not part of the module: what the go command leaves out too, and modules
			// of their own.
			if base := d.Name(); strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "bin" {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		f := file{dir: filepath.ToSlash(dir), name: d.Name()}
		for _, imp := range parsed.Imports {
			p, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, p)
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

func TestImports(t *testing.T) {
	files, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(files, func(f file) bool { return f.dir == "test/layout" }) {
		t.Fatal("this very package was not found")
	}
	for _, v := range violations(files) {
		t.Error(v)
	}
	seen := make(map[string]bool)
	for _, row := range levels {
		for _, entry := range row {
			if seen[entry] {
				t.Errorf("%s stands in levels twice", entry)
			}
			seen[entry] = true
			if !slices.ContainsFunc(files, func(f file) bool { return within(f.dir, entry) }) {
				t.Errorf("%s stands in levels, and there is no such package", entry)
			}
		}
	}
}

// Every rule has a case that it refuses, and one close to it that it lets pass.
func TestRules(t *testing.T) {
	const m = module + "/"
	imports := func(dir, name string, paths ...string) file { return file{dir, name, paths} }
	covered := make(map[string]bool)
	for _, tt := range []struct {
		rule      string // that refuses bad
		bad, good file
	}{
		{"levels", imports("internal/store", "a.go", m+"mesh"), imports("mesh", "a.go", m+"internal/platform/durable")},
		{"levels", imports("credential", "a.go", m+"mesh"), imports("mesh", "a.go", m+"credential")},
		{"levels", imports("identity", "a.go", m+"fence"), imports("identity", "a_test.go", m+"internal/pki/pkitest", m+"mesh")},
		{"levels", imports("internal/store", "a.go", m+"internal/history"), imports("internal/history", "a.go", m+"internal/store")},
		{"levels", imports("internal/node", "a.go", m+"internal/agent"), imports("internal/agent", "a.go", m+"internal/node/state")},
		{"levels", imports("internal/node", "a.go", m+"internal/shard"), imports("internal/shard/process", "a.go", m+"internal/node/client")},
		{"levels", imports("internal/coordinator", "a.go", m+"internal/cli"), imports("cmd/fealty", "a.go", m+"internal/cli")},
		{"levels", imports("internal/cli", "a.go", m+"cmd/fealty"), imports("internal/cli", "a.go", m+"internal/agent", m+"internal/coordinator")},
		{"levels", imports("internal/store", "a.go", m+"internal/store/sqlite"), imports("internal/store/sqlite/hub", "a.go", m+"internal/store/sqlite/lock")},
		{"roots apart", imports("internal/agent", "a.go", m+"internal/coordinator"), imports("internal/agent", "a.go", m+"api/fealty/v1")},
		{"roots apart", imports("internal/shard", "a.go", m+"internal/agent"), imports("internal/shard", "a_test.go", m+"internal/coordinator/coordinatortest")},
		{"roots apart", imports("internal/agent", "a_test.go", m+"internal/coordinator/coordinatortest"), imports("test/sim", "a_test.go", m+"internal/coordinator/coordinatortest", m+"internal/agent")},
		{"roots apart", imports("internal/coordinator/delivery", "a_test.go", m+"internal/agent"), imports("internal/coordinator/record", "a_test.go", m+"internal/coordinator/member")},
		{"dashboard", imports("internal/cli/status", "a.go", m+"internal/cli/dashboard"), imports("internal/cli", "a.go", m+"internal/cli/dashboard")},
		{"dashboard", imports("internal/cli/dashboard", "a.go", m+"internal/cli/server"), imports("internal/cli/dashboard", "a.go", m+"internal/cli/client", m+"internal/cli/dashboard/markup")},
		{"drivers", imports("internal/coordinator", "a_test.go", "modernc.org/sqlite"), imports("internal/store/sqlite", "a.go", "modernc.org/sqlite", "modernc.org/sqlite/lib")},
		{"drivers", imports("internal/store/sqlite", "a.go", "github.com/jackc/pgx/v5"), imports("internal/store/postgres", "a.go", "github.com/jackc/pgx/v5/pgxpool")},
		{"drivers", imports("internal/store/postgres", "a.go", "go.etcd.io/etcd/api/v3"), imports("internal/store/etcd", "a.go", "go.etcd.io/etcd/api/v3")},
		{"engines", imports("internal/coordinator", "a.go", m+"internal/store/sqlite"), imports("internal/cli", "a.go", m+"internal/store/sqlite")},
		{"engines", imports("internal/store/etcd", "a.go", m+"internal/store/sqlite"), imports("internal/coordinator", "a_test.go", m+"internal/store/sqlite")},
		{"pure", imports("fence", "a.go", "net/http"), imports("fence", "a_test.go", "os")},
		{"pure", imports("fence", "a.go", "net"), imports("fence/durable", "a.go", "os")},
		{"pure", imports("internal/manifest", "a.go", "os/exec"), imports("internal/manifest", "a.go", "net/netip", "net")},
		{"pure", imports("internal/shard/scheduler", "a.go", "os"), imports("internal/shard/scheduler", "a_test.go", "os")},
		{"no clock", imports("fence", "ledger.go", "time"), imports("fence", "ledger_test.go", "time")},
		{"no clock", imports("fence/durable", "a.go", "time"), imports("fence/durable", "a_test.go", "time")},
		{"node state", imports("internal/node/state", "a.go", m+"mesh"), imports("internal/node/state", "a_test.go", m+"mesh")},
		{"node state", imports("internal/node/accept", "a.go", "google.golang.org/grpc/codes"),
			imports("internal/node/accept", "a.go", "google.golang.org/protobuf/types/known/timestamppb", m+"api/fealty/v1")},
		{"node state", imports("internal/node/state", "a.go", "net/http"), imports("internal/node/client", "a.go", m+"mesh", "google.golang.org/grpc")},
		{"tests apart", imports("internal/agent", "a.go", "testing"), imports("internal/store/storetest", "a.go", "testing", "github.com/anishathalye/porcupine")},
		{"tests apart", imports("internal/agent", "a.go", m+"test/testlane"), imports("test/testlane", "a.go", "testing")},
		{"tests apart", imports("internal/agent", "a.go", m+"internal/pki/pkitest"), imports("internal/agent", "a_test.go", m+"internal/pki/pkitest")},
		{"examples", imports("examples/provider", "a.go", m+"internal/platform/durable"), imports("examples/provider", "a.go", m+"provider", m+"fence/durable")},
		{"no level", imports("internal/novelty", "a.go"), imports("internal/store/sqlite/migrations", "a.go")},
	} {
		refused := false
		bad := violations([]file{tt.bad})
		for _, v := range bad {
			refused = refused || strings.HasPrefix(v, tt.rule+": ")
		}
		if !refused {
			t.Errorf("%s: %+v was let pass (%v)", tt.rule, tt.bad, bad)
		}
		if good := violations([]file{tt.good}); len(good) > 0 {
			t.Errorf("%s: refused: %v", tt.rule, good)
		}
		covered[tt.rule] = true
	}
	for _, r := range rules {
		if !covered[r.name] {
			t.Errorf("rule %q has no case that it refuses", r.name)
		}
	}
}

// All that a shard decides and acts with reaches nothing that dials, over whatever packages of the
// module: so no hot path can come to ask a coordinator.
func TestHotPathDialsNobody(t *testing.T) {
	files, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	imports := make(map[string][]string)
	for _, f := range files {
		if !f.test() && !testPackage(f.dir) {
			imports[f.dir] = append(imports[f.dir], f.imports...)
		}
	}
	reached := make(map[string]bool)
	var follow func(dir string)
	follow = func(dir string) {
		if reached[dir] {
			return
		}
		reached[dir] = true
		for _, imported := range imports[dir] {
			below, own := strings.CutPrefix(imported, module+"/")
			switch {
			case own:
				follow(below)
			case within(imported, "google.golang.org/grpc"), imported == "net/http":
				t.Errorf("%s reaches %s by %s", shard, imported, dir)
			}
		}
	}
	follow(shard)
	for _, dir := range []string{"fence", shard + "/scheduler", shard + "/execute"} {
		if !reached[dir] {
			t.Errorf("%s was not looked at", dir)
		}
	}
}

// docs/architecture.md is the page that people read first: it shows each public package and each folder of
// internal, and names no path that is not there.
func TestHousesAreOnTheMap(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	missing := make(map[string]bool)
	for _, f := range files {
		parts := strings.Split(f.dir, "/")
		house := parts[0]
		if house == "internal" || house == "cmd" {
			house = path.Join(parts[:2]...)
		}
		if !strings.Contains(string(text), "`"+house+"`") {
			missing[house] = true
		}
	}
	for house := range missing {
		t.Errorf("docs/architecture.md does not show %s: give it a row that says what it does", house)
	}
	// The picture of the imports is the table of levels, the highest first.
	var picture []string
	for _, row := range slices.Backward(levels) {
		picture = append(picture, strings.Join(row, " "))
	}
	if !strings.Contains(string(text), "```\n"+strings.Join(picture, "\n")+"\n```") {
		t.Errorf("docs/architecture.md does not show which way imports point as levels has it:\n%s", strings.Join(picture, "\n"))
	}
	for _, named := range regexp.MustCompile("`((?:internal|test|cmd|docs|identity|fence|mesh|node)/[^`]*)`").FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat(filepath.Join("../..", named[1])); err != nil {
			t.Errorf("docs/architecture.md names %s: %v", named[1], err)
		}
	}
}
