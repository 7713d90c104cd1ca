package coordinator_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/test/goldentest"
)

// madeMessages are the messages that are not constants, as the golden file has them:
// with … for what only the program knows. Each has its reason.
var madeMessages = map[string]string{
	"clone alarm: … [ERROR]": "its callers say which of two clones they met",
}

// levelsByName are methods of a logger that have their level in their names.
var levelsByName = map[string]string{"Debug": "DEBUG", "Info": "INFO", "Warn": "WARN", "Error": "ERROR"}

// People filter logs and alert on them by their messages and levels: one of them
// changes only where somebody means it.
func TestLogMessages(t *testing.T) {
	l := logLines{t: t, set: token.NewFileSet(), found: make(map[string]bool)}
	look := func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasSuffix(d.Name(), "test")):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(l.set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			l.look(decl)
		}
		return nil
	}
	// Its parts, and what words their panics and failures.
	for _, dir := range []string{".", "../platform/ratelimit/panicked.go", "../platform/watch/forever.go"} {
		if err := filepath.WalkDir(dir, look); err != nil {
			t.Fatal(err)
		}
	}
	for made := range madeMessages {
		if !slices.Contains(l.made, made) {
			t.Errorf("no message is made as %q any more: take it from the list", made)
		}
	}
	var rows []string
	for row := range l.found {
		rows = append(rows, row)
	}
	slices.Sort(rows)
	goldentest.Compare(t, "testdata/logs.txt", strings.Join(rows, "\n")+"\n")
}

// logLines gathers what is logged.
type logLines struct {
	t     *testing.T
	set   *token.FileSet
	found map[string]bool // "message [LEVEL]"
	made  []string        // messages that are no constants
}

// look finds what is logged in one declaration.
//
// A call logs if a level is among its arguments, which is a constant of slog or a
// variable that such a constant is assigned to in this declaration: then the message is
// what follows. Or it is a method of a logger that has a level for a name, or one
// followed by Context.
func (l *logLines) look(decl ast.Decl) {
	levels := make(map[string][]string) // by variable or parameter
	placed := make(map[ast.Node]bool)   // constants that are accounted for
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field: // a parameter: the caller says it
			if text(n.Type) == "slog.Level" {
				for _, name := range n.Names {
					levels[name.Name] = append(levels[name.Name], "…")
				}
			}
		case *ast.AssignStmt:
			for i, right := range n.Rhs {
				if level := slogLevel(right); level != "" && len(n.Lhs) == len(n.Rhs) {
					levels[text(n.Lhs[i])] = append(levels[text(n.Lhs[i])], level)
					placed[right] = true
				}
			}
		}
		return true
	})
	ast.Inspect(decl, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		for i, arg := range call.Args {
			found := levels[text(arg)]
			if level := slogLevel(arg); level != "" {
				found = []string{level}
			}
			if len(found) == 0 {
				continue
			}
			placed[arg] = true
			if i+1 < len(call.Args) {
				l.add(call, found, call.Args[i+1])
			}
			// The last case is the level of a handler, or of a logger for other code.
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		level, isContext := strings.CutSuffix(method.Sel.Name, "Context")
		if levelsByName[level] == "" || !logger(method.X) {
			return true
		}
		at := 0
		if isContext {
			at = 1
		}
		if len(call.Args) > at {
			l.add(call, []string{levelsByName[level]}, call.Args[at])
		}
		return true
	})
	ast.Inspect(decl, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok && slogLevel(e) != "" && !placed[e] {
			l.t.Errorf("%s: this test does not see what is logged with this level", l.set.Position(n.Pos()))
		}
		return true
	})
}

// logger reports whether a value with this name can be a logger: x.log, slog, logger.
func logger(x ast.Expr) bool {
	name := strings.ToLower(text(x))
	return strings.HasSuffix(name, "log") || strings.HasSuffix(name, "logger") || strings.HasSuffix(name, "log()")
}

// add writes down a message that is logged at one of levels.
func (l *logLines) add(call ast.Node, levels []string, message ast.Expr) {
	msg, constant := join(message)
	slices.Sort(levels)
	row := fmt.Sprintf("%s [%s]", msg, strings.Join(slices.Compact(levels), " or "))
	l.found[row] = true
	if !constant {
		if madeMessages[row] == "" {
			l.t.Errorf("%s: the message of %q is no constant: make it one, or list it with its reason",
				l.set.Position(call.Pos()), row)
		}
		l.made = append(l.made, row)
	}
}

// join returns a text that is written as literals joined by +, with … for what is no
// literal.
func join(e ast.Expr) (text string, constant bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil {
			return s, true
		}
	case *ast.ParenExpr:
		return join(e.X)
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			left, a := join(e.X)
			right, b := join(e.Y)
			return left + right, a && b
		}
	}
	return "…", false
}

// slogLevel returns the level that e names, as in slog.LevelWarn; "" if it names none.
func slogLevel(e ast.Expr) string {
	level, ok := strings.CutPrefix(text(e), "slog.Level")
	if !ok {
		return ""
	}
	return strings.ToUpper(level)
}

// text writes names, selections of names and calls of them without arguments; "" for
// everything else.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if x := text(e.X); x != "" {
			return x + "." + e.Sel.Name
		}
	case *ast.CallExpr:
		if f := text(e.Fun); f != "" && len(e.Args) == 0 {
			return f + "()"
		}
	}
	return ""
}
