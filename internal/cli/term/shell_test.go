package term_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fealty-io/fealty/internal/cli/term"
)

func TestCalledAs(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"fealty", "fealty-2"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	for argv0, want := range map[string]string{
		"":                                 "fealty",
		"fealty":                           "fealty",
		"./bin/fealty":                     "./bin/fealty",
		"../it's here/fealty":              `'../it'\''s here/fealty'`,
		filepath.Join(dir, "fealty"):       "fealty",
		filepath.Join(dir, "fealty-2"):     "fealty-2",
		filepath.Join(dir, "nowhere", "f"): filepath.Join(dir, "nowhere", "f"),
	} {
		if got := term.CalledAs(argv0, "fealty"); got != want {
			t.Errorf("called as %q: %q, want %q", argv0, got, want)
		}
	}
}
