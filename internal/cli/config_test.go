package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
)

func TestServiceLinks(t *testing.T) {
	for name, known := range map[string]bool{
		"FEALTY_SERVICE_HOST": true, "FEALTY_SERVICE_PORT": true, "FEALTY_SERVICE_PORT_GRPC": true, "FEALTY_PORT": true,
		"FEALTY_PORT_7443_TCP": true, "FEALTY_PORT_7443_TCP_ADDR": true, "FEALTY_PORT_7443_TCP_PROTO": true,
		"FEALTY_COORDINATOR_READY_SERVICE_HOST": true, "FEALTY_COORDINATOR_PORT_7443_TCP_PORT": true,
		"FEALTY_LISEN": false, "FEALTY_HOST": false, "FEALTY_PORTS": false, "FEALTY_PORT_X": false,
	} {
		r := clitest.Fixture{Env: []string{name + "=x"}}.Run(t.Context(), "version")
		if known {
			r.Want(t, 0)
		} else {
			r.Want(t, int(errcode.ExitConfig), "FE-U104", name)
		}
	}
}

// Of flag, variable, file and default the first counts, and the last of a variable.
func TestPrecedence(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("timeout: 3s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, env := []string{"--config", "c.yaml"}, []string{"FEALTY_TIMEOUT=1s", "FEALTY_TIMEOUT=2s"}
	for _, tt := range []struct {
		name        string
		env, args   []string
		value, from string
	}{
		{"default", nil, nil, "30s", "default"},
		{"file", nil, file, "3s", "c.yaml:1"},
		{"environment", env, file, "2s", "FEALTY_TIMEOUT"},
		{"flag", env, append(file, "--timeout", "1s"), "1s", "--timeout"},
		{"a blank variable is none", []string{"FEALTY_TIMEOUT="}, file, "3s", "c.yaml:1"},
		{"a flag that repeats the default counts too", env, []string{"--timeout", "30s"}, "30s", "--timeout"},
	} {
		args := append([]string{"token", "list", "--print-config", "-o", "json"}, tt.args...)
		r := clitest.Fixture{Env: tt.env, Dir: dir}.Run(t.Context(), args...).Want(t, 0)
		found := false
		for _, s := range clitest.JSONOf(t, r.Stdout)["settings"].([]any) {
			s := s.(map[string]any)
			if s["key"] == "timeout" {
				found = true
				if s["value"] != tt.value || s["from"] != tt.from {
					t.Errorf("%s: %v", tt.name, s)
				}
			}
		}
		if !found {
			t.Errorf("%s: no timeout", tt.name)
		}
	}
}

func TestConfigLimit(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("#"+strings.Repeat("x", settings.MaxFileBytes)), 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.Fixture{Dir: dir}.Run(t.Context(), "version", "--config", "c.yaml").Want(t, int(errcode.ExitConfig), "FE-U105", "more than")
}
