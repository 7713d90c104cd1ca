package layers

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testedFromOutside are rooms whose tests are users of them: they stand in packages of their own,
// whose names end in _test, so that what is inside can be rebuilt and no test has to change.
var testedFromOutside = []string{"internal/agent", "internal/cli", "internal/enroll", "internal/node"}

// leastOutsidePercent is how many of a hundred lines of tests stand outside, in each of the rooms.
// The others are doors for the tests, and tests of decisions that nothing outside can be asked for.
const leastOutsidePercent = 80

// testLines counts the lines of tests below a folder: those in packages of their own, and all.
func testLines(root string) (outside, all int, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.PackageClauseOnly)
		if err != nil {
			return err
		}
		n := bytes.Count(text, []byte("\n"))
		if all += n; strings.HasSuffix(file.Name.Name, "_test") {
			outside += n
		}
		return nil
	})
	return outside, all, err
}

// The agent and the commands are tested through what they promise to others.
func TestTestsStandOutside(t *testing.T) {
	t.Parallel()
	for _, room := range testedFromOutside {
		outside, all, err := testLines(filepath.Join("..", "..", filepath.FromSlash(room)))
		if err != nil {
			t.Fatal(err)
		}
		if all < 100 {
			t.Errorf("%s has %d lines of tests: this test does not find them", room, all)
		}
		if outside*100 < all*leastOutsidePercent {
			t.Errorf("%s: %d of %d lines of tests stand in packages of their own, and %d %% have to: write the tests "+
				"that are new in package x_test", room, outside, all, leastOutsidePercent)
		}
	}
}

// Lines count by the package of their file, whatever the file is called, and only in tests.
func TestTestLines(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"x.go":               "package x\n\n",
		"x_test.go":          "// Package x_test is not its name.\npackage x\n",
		"outside_test.go":    "package x_test\n\n\n",
		"below/y_test.go":    "// A comment.\n\npackage y_test\n\n",
		"below/door_test.go": "package y\n",
	} {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if outside, all, err := testLines(root); outside != 7 || all != 10 || err != nil {
		t.Errorf("%d of %d lines, %v, want 7 of 10", outside, all, err)
	}
}
