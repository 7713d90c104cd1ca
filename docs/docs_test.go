package docs

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/errcode"
)

// page is one Markdown file, by its path from the root of the module.
type page struct {
	path  string
	lines []string
}

// root is the folder of the module, from here.
const root = ".."

// pages returns README.md, CHANGELOG.md and all pages below docs.
func pages(t *testing.T) []page {
	t.Helper()
	paths := []string{"README.md", "CHANGELOG.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".md") {
			rel, relErr := filepath.Rel(root, path)
			paths, err = append(paths, filepath.ToSlash(rel)), relErr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var out []page
	for _, p := range paths {
		raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(p)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, page{p, strings.Split(string(raw), "\n")})
	}
	return out
}

// fence is a fenced block of a page.
type fence struct {
	lang  string
	line  int      // of its first line within, counted from 1
	above []string // the comment lines right above it, without their marks, topmost first
	text  string   // with a line end at its end, unless empty
}

var comment = regexp.MustCompile(`^<!--\s*(.*?)\s*-->$`)

// fences returns the blocks of a page, in order.
func (p page) fences(t *testing.T) []fence {
	t.Helper()
	var out []fence
	var open *fence
	var above []string
	for i, line := range p.lines {
		lang, fenced := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case open == nil && fenced:
			open = &fence{lang: lang, line: i + 2, above: above}
			above = nil
		case open != nil && fenced:
			out = append(out, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		default:
			if m := comment.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
				above = append(above, m[1])
			} else if strings.TrimSpace(line) != "" {
				above = nil
			}
		}
	}
	if open != nil {
		t.Errorf("%s:%d: a fenced block does not end", p.path, open.line-1)
	}
	return out
}

// prose returns the lines outside of fenced blocks; those within are blank.
func (p page) prose() []string {
	out := slices.Clone(p.lines)
	inside := false
	for i, line := range out {
		fenced := strings.HasPrefix(strings.TrimSpace(line), "```")
		if inside || fenced {
			out[i] = ""
		}
		if fenced {
			inside = !inside
		}
	}
	return out
}

var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// Every relative link leads to a file, and its anchor to a heading.
func TestLinks(t *testing.T) {
	for _, p := range pages(t) {
		for i, line := range p.prose() {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				target, anchor, _ := strings.Cut(m[1], "#")
				if strings.Contains(target, "://") {
					continue
				}
				file := filepath.Join(root, filepath.FromSlash(p.path))
				if target != "" {
					file = filepath.Join(filepath.Dir(file), filepath.FromSlash(target))
				}
				raw, err := os.ReadFile(file)
				if err != nil {
					if info, statErr := os.Stat(file); statErr != nil || !info.IsDir() {
						t.Errorf("%s:%d: the link %s leads nowhere", p.path, i+1, m[1])
					}
					continue
				}
				if anchor != "" && !slices.Contains(anchors(string(raw)), anchor) {
					t.Errorf("%s:%d: %s has no heading #%s", p.path, i+1, target, anchor)
				}
			}
		}
	}
}

// anchors returns what headings can be linked by.
func anchors(text string) []string {
	var out []string
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "#") {
			heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
			out = append(out, strings.ReplaceAll(drop.ReplaceAllString(heading, ""), " ", "-"))
		}
	}
	return out
}

// Every page can be reached from the first one.
func TestEveryPageIsLinked(t *testing.T) {
	all := pages(t)
	byPath := make(map[string]page)
	for _, p := range all {
		byPath[p.path] = p
	}
	seen := make(map[string]bool)
	var visit func(path string)
	visit = func(path string) {
		p, ok := byPath[path]
		if !ok || seen[path] {
			return
		}
		seen[path] = true
		for _, line := range p.prose() {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				target, _, _ := strings.Cut(m[1], "#")
				visit(filepath.ToSlash(filepath.Join(filepath.Dir(path), target)))
			}
		}
	}
	visit("README.md")
	for _, p := range all {
		if !seen[p.path] && p.path != "CHANGELOG.md" {
			t.Errorf("%s: no page links to it", p.path)
		}
	}
}

// Every code that a page mentions exists.
func TestCodes(t *testing.T) {
	code := regexp.MustCompile(`FE-[A-Z][0-9]{3}`)
	for _, p := range pages(t) {
		for i, line := range p.lines {
			for _, c := range code.FindAllString(line, -1) {
				if _, ok := errcode.Lookup(errcode.Code(c)); !ok {
					t.Errorf("%s:%d: there is no code %s", p.path, i+1, c)
				}
			}
		}
	}
}

// command is a command line that a page shows.
type command struct {
	line int
	text string
}

var (
	span      = regexp.MustCompile("`([^`]+)`")
	nested    = regexp.MustCompile(`(?:^|[;|&(]\s*|\$\(\s*)(?:\./bin/|bin/)?fealty ([^;|&)]*)`)
	redirects = regexp.MustCompile(`\s[0-9]?>+\s*\S+|\s<\s*\S+`)
)

// commands returns every command line that begins with fealty: in blocks, also
// within a substitution or a pipe, and as a span of a sentence.
func (p page) commands(t *testing.T) []command {
	t.Helper()
	var out []command
	add := func(line int, text string) {
		for _, m := range nested.FindAllStringSubmatch(strings.TrimSpace(text), -1) {
			out = append(out, command{line, redirects.ReplaceAllString(" "+m[1], "")})
		}
	}
	for _, f := range p.fences(t) {
		if f.lang != "sh" && f.lang != "" && f.lang != "text" {
			continue
		}
		text := strings.ReplaceAll(f.text, "\\\n", " ")
		for i, line := range strings.Split(text, "\n") {
			line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
			if f.lang != "sh" && !strings.HasPrefix(line, "fealty ") && !strings.HasPrefix(line, "./bin/fealty ") {
				continue
			}
			add(f.line+i, line)
		}
	}
	for i, line := range p.prose() {
		for _, m := range span.FindAllStringSubmatch(line, -1) {
			if strings.HasPrefix(m[1], "fealty ") || strings.HasPrefix(m[1], "bin/fealty ") || strings.HasPrefix(m[1], "./bin/fealty ") {
				add(i+1, m[1])
			}
		}
	}
	return out
}

// Every command line that a page shows has a command that exists, and only flags
// that it has.
func TestCommands(t *testing.T) {
	found := 0
	checked := make(map[string]string)
	for _, p := range pages(t) {
		for _, c := range p.commands(t) {
			found++
			problem, ok := checked[c.text]
			if !ok {
				problem = checkCommand(c.text)
				checked[c.text] = problem
			}
			if problem != "" {
				t.Errorf("%s:%d: fealty%s: %s", p.path, c.line, c.text, problem)
			}
			// A command line is read by every user of the machine.
			if m := tokenArgument.FindString(c.text); m != "" {
				t.Errorf("%s:%d: fealty%s: a token as an argument: use --token-file, or - for standard input", p.path, c.line, c.text)
			}
		}
	}
	if found < 20 {
		t.Errorf("%d command lines were found: this test looks at nothing", found)
	}
}

// tokenArgument finds a token among the arguments of a command.
var tokenArgument = regexp.MustCompile(`^ ?(?:join|login) .*(?:"?\$\(|"?\$[A-Z]*TOKEN|fealty1_| TOKEN\b)`)

// checkCommand asks the command for its help with the same flags, and says what
// is wrong with it.
func checkCommand(text string) string {
	args := words(text)
	for i, a := range args {
		if a == "HEX" || a == "$PIN" || a == "$KEY" && args[i-1] == "--transaction-key" {
			args[i] = strings.Repeat("0", 64)
		}
	}
	var path []string
	for _, a := range args {
		if strings.HasPrefix(a, "-") || !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(a) {
			break
		}
		path = append(path, a)
	}
	if len(path) == 0 {
		return "it names no command"
	}
	exit, help, problem := helpOf(args)
	if exit != 0 && strings.HasPrefix(args[len(args)-1], "--") { // a flag that takes a value, shown without one
		exit, help, problem = helpOf(append(args, "x"))
	}
	if exit != 0 {
		return problem
	}
	usage := regexp.MustCompile(`(?m)^\s+fealty ([a-z -]*[a-z])`).FindStringSubmatch(help)
	if usage == nil {
		return "its help shows no usage"
	}
	// Of a command that does not exist the one above it shows its help.
	got := strings.Fields(usage[1])
	if got[0] != path[0] {
		return "there is no such command; its help is that of fealty " + usage[1]
	}
	if len(path) > len(got) && strings.Contains(help, "Commands:") {
		return "fealty " + usage[1] + " has no command " + path[len(got)]
	}
	return ""
}

// helpOf asks for the help of a command with these arguments.
func helpOf(args []string) (exit int, help, problem string) {
	var out, errs strings.Builder
	exit = cli.Run(context.Background(), program.Env{Args: append(slices.Clone(args), "--help"), Stdout: &out, Stderr: &errs})
	return exit, out.String(), strings.TrimSpace(errs.String())
}

// words splits a command line as a shell would, as far as the docs need it.
func words(text string) []string {
	var out []string
	var word strings.Builder
	quote, started := rune(0), false
	for _, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, started = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			if started {
				out = append(out, word.String())
				word.Reset()
				started = false
			}
		case quote == 0 && r == '#' && !started:
			return out
		default:
			word.WriteRune(r)
			started = true
		}
	}
	if started {
		out = append(out, word.String())
	}
	return out
}

// source is what the tests read from the Go files of the module.
type source struct {
	files map[string]map[string]*ast.File // by folder and file
	set   *token.FileSet
}

var (
	parsed     *source
	parsedErr  error
	parsedOnce sync.Once
)

// goSource parses every Go file of the module but those that are generated.
func goSource(t *testing.T) *source {
	t.Helper()
	parsedOnce.Do(func() {
		s := &source{files: make(map[string]map[string]*ast.File), set: token.NewFileSet()}
		parsedErr = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "bin" || d.Name() == "testdata"):
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go"):
				return nil
			}
			f, err := parser.ParseFile(s.set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil // of code that is being written; its own tests say so
			}
			rel, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			dir := filepath.ToSlash(rel)
			if s.files[dir] == nil {
				s.files[dir] = make(map[string]*ast.File)
			}
			s.files[dir][d.Name()] = f
			return nil
		})
		parsed = s
	})
	if parsedErr != nil {
		t.Fatal(parsedErr)
	}
	return parsed
}

// Every test that a page names exists; where the line names its package, there.
func TestTests(t *testing.T) {
	src := goSource(t)
	where := make(map[string][]string)
	for dir, files := range src.files {
		for name, f := range files {
			if !strings.HasSuffix(name, "_test.go") {
				continue
			}
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
					where[fn.Name.Name] = append(where[fn.Name.Name], dir)
				}
			}
		}
	}
	mention := regexp.MustCompile("`([a-z][a-z0-9/]*)\\.((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`")
	bare := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	for _, p := range pages(t) {
		for i, line := range p.lines {
			placed := make(map[string]bool)
			for _, m := range mention.FindAllStringSubmatch(line, -1) {
				placed[m[2]] = true
				if !slices.Contains(where[m[2]], m[1]) {
					t.Errorf("%s:%d: there is no %s in %s", p.path, i+1, m[2], m[1])
				}
			}
			for _, name := range bare.FindAllString(line, -1) {
				if !placed[name] && len(where[name]) == 0 {
					t.Errorf("%s:%d: there is no test %s", p.path, i+1, name)
				}
			}
		}
	}
}

// The limits page says what the constants say.
func TestLimits(t *testing.T) {
	src := goSource(t)
	row := regexp.MustCompile("^\\| `([a-z][a-z0-9/]*)\\.(\\w+)` \\| ([^|]+) \\|")
	rows := 0
	for _, p := range pages(t) {
		if p.path != "docs/reference/limits.md" {
			continue
		}
		for i, line := range p.lines {
			m := row.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			rows++
			want, err := quantity(strings.TrimSpace(m[3]))
			if err != nil {
				t.Errorf("%s:%d: %v", p.path, i+1, err)
				continue
			}
			got, err := src.constant(m[1], m[2])
			if err != nil {
				t.Errorf("%s:%d: %v", p.path, i+1, err)
				continue
			}
			if got != want {
				t.Errorf("%s:%d: %s.%s is %v, the page says %s (%v)", p.path, i+1, m[1], m[2], got, strings.TrimSpace(m[3]), want)
			}
		}
	}
	if rows < 40 {
		t.Errorf("%d limits were compared: this test looks at nothing", rows)
	}
}

// Options whose default is not a constant say it in their documentation.
func TestDefaultsOfFields(t *testing.T) {
	src := goSource(t)
	row := regexp.MustCompile("^\\| `([a-z][a-z0-9/]*)\\.(\\w+)\\.(\\w+)` \\| ([^|]+) \\|")
	rows := 0
	for _, p := range pages(t) {
		if p.path != "docs/reference/limits.md" {
			continue
		}
		for i, line := range p.lines {
			m := row.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			rows++
			doc := src.fieldDoc(m[1], m[2], m[3])
			if want := "Zero means " + strings.TrimSpace(m[4]); !strings.Contains(doc, want) {
				t.Errorf("%s:%d: the field is documented as %q, the page says %q", p.path, i+1, doc, want)
			}
		}
	}
	if rows == 0 {
		t.Error("no field was compared")
	}
}

var units = map[string]float64{
	"": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20,
	"ms": float64(time.Millisecond), "s": float64(time.Second), "min": float64(time.Minute), "h": float64(time.Hour),
	"d": float64(24 * time.Hour), "y": float64(365 * 24 * time.Hour),
}

// quantity reads what the limits page writes: 1,024 · 64 KiB · 30 s · 7 d, and sums
// of such.
func quantity(text string) (float64, error) {
	total := 0.0
	for part := range strings.SplitSeq(text, "+") {
		number, unit, _ := strings.Cut(strings.TrimSpace(part), " ")
		n, err := strconv.ParseFloat(strings.ReplaceAll(number, ",", ""), 64)
		scale, ok := units[strings.TrimSpace(unit)]
		if err != nil || !ok {
			return 0, fmt.Errorf("%q is not a quantity", text)
		}
		total += n * scale
	}
	return total, nil
}

// constant evaluates a constant of a package, as far as limits need it.
func (s *source) constant(dir, name string) (float64, error) {
	if dir == "time" {
		v, ok := map[string]time.Duration{
			"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
		}[name]
		if !ok {
			return 0, fmt.Errorf("time.%s is not known here", name)
		}
		return float64(v), nil
	}
	for _, f := range s.files[dir] {
		for _, decl := range f.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.CONST {
				continue
			}
			for _, spec := range gen.Specs {
				v := spec.(*ast.ValueSpec)
				for i, id := range v.Names {
					if id.Name == name && i < len(v.Values) {
						return s.eval(dir, f, v.Values[i])
					}
				}
			}
		}
	}
	return 0, fmt.Errorf("there is no constant %s.%s", dir, name)
}

func (s *source) eval(dir string, f *ast.File, e ast.Expr) (float64, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strconv.ParseFloat(strings.ReplaceAll(e.Value, "_", ""), 64)
	case *ast.ParenExpr:
		return s.eval(dir, f, e.X)
	case *ast.Ident:
		return s.constant(dir, e.Name)
	case *ast.SelectorExpr:
		pkg := e.X.(*ast.Ident).Name
		for _, imp := range f.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			called := filepath.Base(path)
			if imp.Name != nil {
				called = imp.Name.Name
			}
			if err == nil && called == pkg {
				return s.constant(strings.TrimPrefix(path, "github.com/fealty-io/fealty/"), e.Sel.Name)
			}
		}
	case *ast.BinaryExpr:
		x, err := s.eval(dir, f, e.X)
		if err != nil {
			return 0, err
		}
		y, err := s.eval(dir, f, e.Y)
		if err != nil {
			return 0, err
		}
		switch e.Op {
		case token.MUL:
			return x * y, nil
		case token.ADD:
			return x + y, nil
		case token.SUB:
			return x - y, nil
		case token.SHL:
			return x * float64(uint64(1)<<uint64(y)), nil
		}
	}
	return 0, fmt.Errorf("%s has a constant that cannot be evaluated here", dir)
}

// fieldDoc returns the comment of a field of a struct.
func (s *source) fieldDoc(dir, typ, field string) string {
	doc := ""
	for _, f := range s.files[dir] {
		ast.Inspect(f, func(n ast.Node) bool {
			ts, ok := n.(*ast.TypeSpec)
			if !ok || ts.Name.Name != typ {
				return true
			}
			if st, ok := ts.Type.(*ast.StructType); ok {
				for _, fl := range st.Fields.List {
					for _, id := range fl.Names {
						if id.Name == field {
							doc = strings.Join(strings.Fields(fl.Doc.Text()), " ")
						}
					}
				}
			}
			return false
		})
	}
	return doc
}

// metric is what a program counts, or what a page says of it.
type metric struct{ name, labels, help string }

// metrics returns what the programs register: every metric is made with its name,
// help and labels as literals in one call.
func (s *source) metrics() map[string]metric {
	var text func(ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			if v, err := strconv.Unquote(e.Value); e.Kind == token.STRING && err == nil {
				return v
			}
		case *ast.BinaryExpr: // one text in several lines
			return text(e.X) + text(e.Y)
		}
		return ""
	}
	labels := func(e ast.Expr) string {
		list, ok := e.(*ast.CompositeLit)
		if !ok {
			return ""
		}
		var out []string
		for _, x := range list.Elts {
			out = append(out, text(x))
		}
		return strings.Join(out, ", ")
	}
	out := make(map[string]metric)
	for dir, files := range s.files {
		for name, f := range files {
			if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(dir, "docs") {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) == 0 {
					return true
				}
				var m metric
				if opts, ok := call.Args[0].(*ast.CompositeLit); ok {
					for _, e := range opts.Elts {
						kv, ok := e.(*ast.KeyValueExpr)
						if !ok {
							continue
						}
						switch key, ok := kv.Key.(*ast.Ident); {
						case !ok:
						case key.Name == "Name":
							m.name = text(kv.Value)
						case key.Name == "Help":
							m.help = text(kv.Value)
						}
					}
					if len(call.Args) > 1 {
						m.labels = labels(call.Args[1])
					}
				} else if len(call.Args) > 1 {
					m.name, m.help = text(call.Args[0]), text(call.Args[1])
					if len(call.Args) > 2 {
						m.labels = labels(call.Args[2])
					}
				}
				if strings.HasPrefix(m.name, "fealty_") && m.help != "" {
					key := m.name + " of " + dir
					out[key] = m
				}
				return true
			})
		}
	}
	return out
}

// views returns the views that the PostgreSQL engine makes for people.
func views(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "internal/store/postgres/migrations/*.sql"))
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]bool)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^create view (\w+)`).FindAllSubmatch(text, -1) {
			out[string(m[1])] = true
		}
	}
	return out
}

// The page about PostgreSQL lists every view.
func TestViews(t *testing.T) {
	all := views(t)
	if len(all) < 2 {
		t.Fatalf("%d views were found in the migrations: this test looks at nothing", len(all))
	}
	for _, p := range pages(t) {
		if p.path != "docs/how-to/run-on-postgres.md" {
			continue
		}
		for v := range all {
			if !slices.ContainsFunc(p.lines, func(line string) bool { return strings.HasPrefix(line, "| `"+v+"` |") }) {
				t.Errorf("%s has no row for the view %s", p.path, v)
			}
		}
		return
	}
	t.Error("the page is gone")
}

// The metrics page lists every metric that a program registers, with its labels
// and its help, and none that does not exist. No other page names one.
func TestMetrics(t *testing.T) {
	registered := goSource(t).metrics()
	if len(registered) < 15 {
		t.Fatalf("%d metrics were found in the sources: this test looks at nothing", len(registered))
	}
	names := views(t) // which pages name as well
	for _, m := range registered {
		names[m.name] = true
	}
	row := regexp.MustCompile("^\\| `(fealty_\\w+)` \\| ([^|]*) \\| ([^|]*) \\|$")
	name := regexp.MustCompile(`\bfealty_[a-z_]+`)
	documented := make(map[metric]bool)
	for _, p := range pages(t) {
		for i, line := range p.lines {
			for _, n := range name.FindAllString(line, -1) {
				base := n
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					base = strings.TrimSuffix(base, suffix)
				}
				if strings.HasSuffix(n, "_") { // of several
					continue
				}
				if !names[n] && !names[base] {
					t.Errorf("%s:%d: there is no metric %s", p.path, i+1, n)
				}
			}
			if m := row.FindStringSubmatch(line); m != nil && p.path == "docs/reference/metrics.md" {
				documented[metric{m[1], strings.ReplaceAll(strings.TrimSpace(m[2]), "`", ""), strings.TrimSpace(m[3])}] = true
			}
		}
	}
	for where, m := range registered {
		if !documented[m] {
			t.Errorf("docs/reference/metrics.md lacks this row, for %s:\n| `%s` | %s | %s |", where, m.name, code(m.labels), m.help)
		}
	}
}

func code(labels string) string {
	if labels == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(labels, ", ", "`, `") + "`"
}
