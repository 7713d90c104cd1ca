package embedded_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/store/embedded"
)

// A server believes no settings that it does not understand.
func TestReadSettings(t *testing.T) {
	for name, row := range map[string]struct{ line, problem string }{
		"as they are written": {`{"protocol":1,"dir":"/var/lib/x"}` + "\n", ""},
		"none":                {"", "no line of settings"},
		"no end of the line":  {`{"protocol":1,"dir":"/var/lib/x"}`, "no line of settings"},
		"too long":            {`{"protocol":1,"dir":"/` + strings.Repeat("x", 70_000) + "\"}\n", "no line of settings"},
		"no JSON":             {"dir=/var/lib/x\n", "invalid character"},
		"another release's":   {`{"protocol":2,"dir":"/var/lib/x"}` + "\n", "another release"},
		"no folder":           {`{"protocol":1}` + "\n", "no folder"},
		"a relative folder":   {`{"protocol":1,"dir":"x"}` + "\n", "no folder"},
		"a quota below 0":     {`{"protocol":1,"dir":"/x","quota_bytes":-1}` + "\n", "quota"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := embedded.ReadSettings(strings.NewReader(row.line))
			switch {
			case row.problem == "" && (err != nil || s.Dir != "/var/lib/x"):
				t.Errorf("%+v, %v", s, err)
			case row.problem != "" && (err == nil || !strings.Contains(err.Error(), row.problem)):
				t.Errorf("%v, want %q in it", err, row.problem)
			}
		})
	}
}

// What is not there, or is no program, is said before anything is made.
func TestCheckProgram(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, problem := range map[string]string{
		filepath.Join(dir, "none"): "no such file or directory",
		text:                       "it is no program",
		dir:                        "it is no program",
	} {
		if err := embedded.CheckProgram(path); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v, want %q in it", path, err, problem)
		}
	}
}

// The program is looked for beside the one that runs.
func TestFindProgram(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if own, err = filepath.EvalSymlinks(own); err != nil {
		t.Fatal(err)
	}
	found, err := embedded.FindProgram("")
	if want := filepath.Join(filepath.Dir(own), "fealty-store"); err != nil || found != want {
		t.Errorf("%s, %v, want %s", found, err, want)
	}
	if found, err := embedded.FindProgram("/opt/store"); err != nil || found != "/opt/store" {
		t.Errorf("the one that is named is %s, %v", found, err)
	}
}
