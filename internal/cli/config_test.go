package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/explain"
)

func TestParseConfig(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       map[string]string // nil: refused
		code       explain.Code
	}{
		{"nothing", "", map[string]string{}, ""},
		{"comments", "# nothing\n\n", map[string]string{}, ""},
		{"null", "~\n", map[string]string{}, ""},
		{"one", "listen: 127.0.0.1:1\n", map[string]string{"listen": "127.0.0.1:1"}, ""},
		{"JSON", `{"listen": "127.0.0.1:1", "timeout": "3s"}`, map[string]string{"listen": "127.0.0.1:1", "timeout": "3s"}, ""},
		{"list", "advertise:\n- a:1\n- b:2\n", map[string]string{"advertise": "a:1,b:2"}, ""},
		{"list of one for one", "listen: [\"127.0.0.1:1\"]\n", map[string]string{"listen": "127.0.0.1:1"}, ""},
		{"block", "data: |\n  /x\n", map[string]string{"data": "/x"}, ""},
		{"list for one", "listen: [a, b]\n", nil, explain.BadSetting},
		{"comma in a list", "advertise: [\"a:1,b:2\"]\n", nil, explain.BadSetting},
		{"object", "listen: {a: b}\n", nil, explain.BadSetting},
		{"nested list", "advertise: [[a]]\n", nil, explain.BadSetting},
		{"no value", "listen:\n", nil, explain.BadSetting},
		{"twice", "listen: a\nlisten: b\n", nil, explain.BadSetting},
		{"unknown", "lisen: a\n", nil, explain.UnknownKey},
		{"flag's spelling", "log-level: info\n", nil, explain.UnknownKey},
		{"not in a file", "config: x\n", nil, explain.UnknownKey},
		{"secret", "join_token: x\n", nil, explain.UnknownKey},
		{"number as key", "1: x\n", nil, explain.BadSetting},
		{"a list alone", "- a\n", nil, explain.BadSetting},
		{"a word alone", "listen\n", nil, explain.BadSetting},
		{"two documents", "listen: a\n---\nlisten: b\n", nil, explain.BadSetting},
		{"not YAML", "listen: [\n", nil, explain.BadSetting},
		{"alias", "data: &x /y\nstore: *x\n", nil, explain.BadSetting},
		{"tag", "data: !!binary x\n", nil, explain.BadSetting},
		{"merge", "<<: {data: x}\n", nil, explain.BadSetting},
	} {
		f, err := parseConfig([]byte(tt.text), "c.yaml")
		if tt.want == nil {
			if !errors.Is(err, tt.code) {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.code)
			} else if e := explain.Of(err); !strings.Contains(e.What, "c.yaml:") {
				t.Errorf("%s: no place in %q", tt.name, e.What)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if len(f.entries) != len(tt.want) {
			t.Errorf("%s: %v", tt.name, f.entries)
		}
		for key, want := range tt.want {
			if got := f.entries[key].text; got != want {
				t.Errorf("%s: %s is %q, want %q", tt.name, key, got, want)
			}
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{"", "listen: a", "advertise: [a, b]", "{", "a: &b [*b]", "<<: x", "? a\n: b", "- x", "---\n...\n", "a: |\n  b", "\xff", "data: \"\\u0000\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parseConfig(data, "c.yaml")
		if err != nil {
			if code := explain.Of(err).Code; code != explain.BadSetting && code != explain.UnknownKey {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		for key := range file.entries {
			if !strings.Contains(strings.Join(fileKeys(), " "), key) {
				t.Fatalf("%q was taken", key)
			}
		}
	})
}

func TestServiceLinks(t *testing.T) {
	for name, known := range map[string]bool{
		"FEALTY_SERVICE_HOST": true, "FEALTY_SERVICE_PORT": true, "FEALTY_SERVICE_PORT_GRPC": true, "FEALTY_PORT": true,
		"FEALTY_PORT_7443_TCP": true, "FEALTY_PORT_7443_TCP_ADDR": true, "FEALTY_PORT_7443_TCP_PROTO": true,
		"FEALTY_COORDINATOR_READY_SERVICE_HOST": true, "FEALTY_COORDINATOR_PORT_7443_TCP_PORT": true,
		"FEALTY_LISEN": false, "FEALTY_HOST": false, "FEALTY_PORTS": false, "FEALTY_PORT_X": false,
	} {
		r := fixture{env: []string{name + "=x"}}.run(t.Context(), "version")
		if known {
			r.want(t, 0)
		} else {
			r.want(t, int(explain.ExitConfig), "FE-U104", name)
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
		r := fixture{env: tt.env, dir: dir}.run(t.Context(), args...).want(t, 0)
		found := false
		for _, s := range jsonOf(t, r.stdout)["settings"].([]any) {
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
	if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("#"+strings.Repeat("x", maxConfigBytes)), 0o600); err != nil {
		t.Fatal(err)
	}
	fixture{dir: dir}.run(t.Context(), "version", "--config", "c.yaml").want(t, int(explain.ExitConfig), "FE-U105", "more than")
}
