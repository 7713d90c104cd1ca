// Package goldentest compares what a test finds with a golden file beside it, so that each change
// of it shows in a diff that somebody reads.
//
// Tests that import it have a flag -update, which writes the texts anew:
//
//	go test ./internal/coordinator -run TestLogMessages -update
package goldentest

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Compare fails the test unless the file, a path from the folder of the test, holds
// got. With -update it writes got there and fails nothing.
func Compare(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		if err := write(file, got); err != nil {
			t.Fatal(err)
		}
		return
	}
	diff, err := Diff(file, got)
	if err != nil {
		t.Fatal(err)
	}
	if diff != "" {
		t.Errorf("%s is not what was found. If that is meant, run this test with -update. "+
			"Lines with - are only in the file, those with + are new:\n%s", file, diff)
	}
}

// Diff returns how got differs from what the file holds, line by line; "" if it does
// not. A file that is not there holds nothing.
func Diff(file, got string) (string, error) {
	want, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	whole := cmp.Comparer(func(a, b string) bool { return a == b }) // no diff within a line
	return cmp.Diff(lines(string(want)), lines(got), whole), nil
}

// Folder is Compare for all files of a folder, by their names. A file that nothing was
// found for fails the test, and with -update it is removed.
func Folder(t testing.TB, dir string, got map[string]string) {
	t.Helper()
	for name, text := range got {
		Compare(t, filepath.Join(dir, name), text)
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range there {
		if _, ok := got[e.Name()]; ok {
			continue
		}
		file := filepath.Join(dir, e.Name())
		if !*update {
			t.Errorf("nothing is compared with %s: if that is meant, run this test with -update", file)
		} else if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

func write(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

func lines(text string) []string { return strings.Split(text, "\n") }
