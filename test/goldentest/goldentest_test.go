package goldentest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/test/goldentest"
)

func TestDiff(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.txt")
	if err := os.WriteFile(file, []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, file, got string
		want            []string // parts of the diff; none: there is no diff
	}{
		{"the same", file, "one\ntwo\nthree\n", nil},
		{"two lines swapped", file, "two\none\nthree\n", []string{"-", "+", `"one"`}},
		{"a line more", file, "one\ntwo\nthree\nfour\n", []string{"+", `"four"`}},
		{"no last newline", file, "one\ntwo\nthree", []string{"-"}},
		{"no file", file + ".none", "one\n", []string{"+", `"one"`}},
	} {
		diff, err := goldentest.Diff(tt.file, tt.got)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if (diff != "") != (tt.want != nil) {
			t.Errorf("%s: the diff is %q", tt.name, diff)
		}
		for _, part := range tt.want {
			if !strings.Contains(diff, part) {
				t.Errorf("%s: the diff does not show %q:\n%s", tt.name, part, diff)
			}
		}
	}
	if _, err := goldentest.Diff(t.TempDir(), ""); err == nil {
		t.Error("a folder was read as a file")
	}
}
