package cli_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Every command that the program tells somebody to type exists: each command in a page of the
// registry and in a message of the program, with its flags.
func TestRemediesExist(t *testing.T) {
	t.Parallel()
	root := cli.Tree()
	found := 0
	look := func(where, text string) {
		for _, line := range commandLines(text) {
			found++
			if problem := resolve(root, line); problem != "" {
				t.Errorf("%s: %q: %s", where, "fealty "+line, problem)
			}
		}
	}
	for _, code := range errcode.Codes() {
		e, _ := errcode.Lookup(code)
		look(string(code), strings.Join([]string{e.What, e.Why, e.Do, e.Page}, "\n"))
	}
	const dir = "../.."
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && file != dir && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go"):
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, text := range textsOf(parsed) {
			look(file, text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 250 {
		t.Errorf("%d commands were found: this test looks at nothing", found)
	}
}

// The scan finds what it is for.
func TestResolve(t *testing.T) {
	root := cli.Tree()
	for line, ok := range map[string]bool{
		"member drain {member|MEMBER} --wait, then remove it": true,
		"status":                                 true,
		"check store --store URL, and start":     true,
		"member show data/node-c":                true,
		"debug bundle collects what":             false,
		"member shew data/node-c":                false,
		"member show data/node-c --watch":        false,
		"ledger shows request {request|ids}":     false,
		"manifest":                               true,
		"token create --entry ENTRY --name node": true,
		"dev --wait":                             false,
	} {
		if problem := resolve(root, line); (problem == "") != ok {
			t.Errorf("fealty %s: %q", line, problem)
		}
	}
	if got := commandLines("see why: fealty status; then `fealty join -` and fealty: talk, a fealty of mine, \"./bin/fealty x\""); len(got) != 2 {
		t.Errorf("found %q", got)
	}
}

// textsOf returns the strings of a file, each concatenation as one: what is put in
// between is X.
func textsOf(file *ast.File) (out []string) {
	var text func(n ast.Expr) (string, bool)
	text = func(n ast.Expr) (string, bool) {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				s, err := strconv.Unquote(n.Value)
				return s, err == nil
			}
		case *ast.ParenExpr:
			return text(n.X)
		case *ast.BinaryExpr:
			if n.Op == token.ADD {
				x, isX := text(n.X)
				y, isY := text(n.Y)
				return x + y, isX || isY
			}
		}
		return "X", false
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if _, ok := n.(*ast.ImportSpec); ok {
			return false
		}
		if e, ok := n.(ast.Expr); ok {
			if s, ok := text(e); ok {
				out = append(out, s)
				return false
			}
		}
		return true
	})
	return out
}

// noCommands follow the name of the program where it is no command: in prose, and in
// labels of what is signed or encrypted.
var noCommands = []string{
	"of ", "is ", "called ", "wrote it",
	"audit entry v1", "config set v1", "handover ", "history head v1", "history statement v1", "identity bundle 1", "replica v1", "seed share ",
	"sent share ", "store migrations", "store record v1",
}

var (
	afterName  = regexp.MustCompile("(?:^|[^A-Za-z0-9_./:-])fealty ((?:[a-z]|--[a-z])[^`\n\"]*)")
	endOfWords = regexp.MustCompile(`[.,;:)?!]$`)
)

// commandLines returns what stands behind the name of the program, up to the end of
// the line. Prose in which fealty is no command is not among them.
func commandLines(text string) (out []string) {
	for _, m := range afterName.FindAllStringSubmatch(text, -1) {
		rest := m[1]
		if more := strings.Index(rest, " fealty "); more >= 0 {
			out = append(out, commandLines(rest[more:])...)
			rest = rest[:more]
		}
		if !slices.ContainsFunc(noCommands, func(words string) bool { return strings.HasPrefix(rest, words) }) {
			out = append(out, rest)
		}
	}
	return out
}

// resolve says what is wrong with a command line, or "". It ends at the first word
// that is neither of the path, a flag, nor a value: prose goes on from there.
func resolve(root *cobra.Command, line string) string {
	cmd, value, args := root, false, 0
	for _, word := range strings.Fields(line) {
		bare := strings.TrimRight(endOfWords.ReplaceAllString(word, ""), "'")
		ends := bare != word
		name, _, given := strings.Cut(strings.TrimPrefix(bare, "--"), "=")
		switch sub := subcommand(cmd, bare); {
		case sub != nil && args == 0 && !value:
			cmd = sub
		case strings.HasPrefix(bare, "--") && len(name) > 0:
			f := cmd.Flag(name)
			if f == nil && cmd == root && (name == "version" || name == "help") || name == "help" {
				return ""
			}
			if f == nil {
				return fmt.Sprintf("%s has no flag --%s", cmd.CommandPath(), name)
			}
			value = f.NoOptDefVal == "" && !given
		case strings.HasPrefix(bare, "-") && len(bare) == 2:
			if cmd.Flags().ShorthandLookup(bare[1:]) == nil && cmd.InheritedFlags().ShorthandLookup(bare[1:]) == nil && bare != "--" {
				return fmt.Sprintf("%s has no flag %s", cmd.CommandPath(), bare)
			}
			value = true
		case value:
			value = false
		case cmd == root:
			return "there is no such command"
		case bare == "X" && cmd.HasSubCommands():
			return "" // which one is decided as it runs
		case cmd.HasSubCommands() && isWord(bare) && args == 0 && !prose(bare):
			return cmd.CommandPath() + " has no command " + bare
		case isWord(bare):
			return "" // prose
		default:
			args++
		}
		if ends {
			break
		}
	}
	return ""
}

func subcommand(cmd *cobra.Command, name string) *cobra.Command {
	for _, sub := range cmd.Commands() {
		if sub.Name() == name {
			return sub
		}
	}
	if cmd.Parent() == nil && name == "help" {
		return cmd
	}
	return nil
}

// isWord reports whether text is a word as commands and prose have them.
func isWord(text string) bool { return regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(text) }

// prose are words that follow a noun whose commands are meant together.
func prose(word string) bool {
	switch word {
	case "and", "or", "says", "shows", "does", "did":
		return true
	}
	return false
}
