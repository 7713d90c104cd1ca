package contexts_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/internal/cli/contexts"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

func TestLogins(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "fealty", "logins")
	l := contexts.In(durable.OS(), dir)
	if _, err := l.Current(); !errors.Is(err, contexts.ErrNone) {
		t.Errorf("before any: %v", err)
	}
	if names, err := l.Names(); err != nil || len(names) > 0 {
		t.Errorf("before any: %v, %v", names, err)
	}
	for _, name := range []string{"prod.example", "lab"} {
		if err := l.Use(name); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Current(); got != name || err != nil {
			t.Errorf("current is %q, %v", got, err)
		}
		at, err := l.Dir(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := durable.OS().MkdirAll(at); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := l.Names(); err != nil || !slices.Equal(names, []string{"lab", "prod.example"}) {
		t.Errorf("names %v, %v", names, err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "lab"): 0o700, filepath.Join(dir, "current"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
}

// A name leads to no other folder, whoever wrote it.
func TestNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := contexts.In(durable.OS(), dir)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/etc", "Prod", "current", "a b", "a\n"} {
		if _, err := l.Dir(name); err == nil {
			t.Errorf("%q is a name", name)
		}
		if err := l.Use(name); err == nil {
			t.Errorf("%q became the current one", name)
		}
		if name == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "current"), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Current(); err == nil && name != "a\n" {
			t.Errorf("a file that says %q names %q", name, got)
		}
	}
	if _, err := (contexts.Logins{}).Dir("a"); err == nil {
		t.Error("there is a folder where there is none")
	}
	if _, err := (contexts.Logins{}).Current(); !errors.Is(err, contexts.ErrNone) {
		t.Errorf("without a folder: %v", err)
	}
}
