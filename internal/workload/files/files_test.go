package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/workload/files"
)

func set(n string) *files.Set {
	return &files.Set{ID: "spiffe://a/workload/b", Certificate: []byte("cert " + n), Key: []byte("key " + n), Bundle: []byte("roots " + n)}
}

// read returns what a program reads that only knows the three files.
func read(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	for _, name := range []string{files.Certificate, files.Key, files.Bundle} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(b))
	}
	return strings.Join(out, ", ")
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for _, n := range []string{"1", "2", "3", "4"} {
		if err := files.Write(dir, set(n)); err != nil {
			t.Fatal(err)
		}
		if got, want := read(t, dir), "cert "+n+", key "+n+", roots "+n; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	info, err := os.Stat(filepath.Join(dir, files.Key))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, %v", info.Mode(), err)
	}
	// The set before stays for who is reading it, and no others.
	sets, err := filepath.Glob(filepath.Join(dir, "..set-*"))
	if err != nil || len(sets) != 2 {
		t.Errorf("%v, %v", sets, err)
	}
}

// A file that is not ours stays, and nothing is written beside it.
func TestForeignFilesStay(t *testing.T) {
	for _, name := range []string{files.Certificate, files.Key, files.Bundle} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := files.Write(dir, set("1")); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		entries, err := os.ReadDir(dir)
		if b, rerr := os.ReadFile(path); err != nil || rerr != nil || string(b) != "mine" || len(entries) != 1 {
			t.Errorf("%s: %q, %v, %v, %v", name, b, entries, err, rerr)
		}
	}
}

// A write that fails, or was cut off, leaves the set before whole, and the next one mends the rest.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	if err := files.Write(dir, set("1")); err != nil {
		t.Fatal(err)
	}
	// A folder where the next link would be made.
	if err := os.MkdirAll(filepath.Join(dir, "..data.next", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	// What is told is what is in the way, and not what follows from it.
	if err := files.Write(dir, set("2")); !errors.Is(err, syscall.ENOTEMPTY) || !strings.Contains(err.Error(), "..data.next") {
		t.Errorf("written in spite of that, or it does not say of what: %v", err)
	}
	if got := read(t, dir); got != "cert 1, key 1, roots 1" {
		t.Errorf("got %q", got)
	}
	if err := os.RemoveAll(filepath.Join(dir, "..data.next")); err != nil {
		t.Fatal(err)
	}
	// As if the process had died after ..data and before the links.
	if err := os.Remove(filepath.Join(dir, files.Bundle)); err != nil {
		t.Fatal(err)
	}
	if err := files.Write(dir, set("3")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir); got != "cert 3, key 3, roots 3" {
		t.Errorf("got %q", got)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !strings.HasPrefix(e.Name(), "..set-") })); n != 2 {
		t.Errorf("%d sets are left", n)
	}
}
