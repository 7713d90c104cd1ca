package settings_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
)

func TestParseConfig(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       map[string]string // nil: refused
		code       errcode.Code
	}{
		{"nothing", "", map[string]string{}, ""},
		{"comments", "# nothing\n\n", map[string]string{}, ""},
		{"an end without a beginning", "timeout: 3s\n---\n", map[string]string{"timeout": "3s"}, ""},
		{"numbers and words of YAML", "join_rate: 10\nliveness_store: true\n", map[string]string{"join_rate": "10", "liveness_store": "true"}, ""},
		{"invisible characters", "listen: \"a\u202e:1\"\n", nil, errcode.BadSetting},
		{"null", "~\n", map[string]string{}, ""},
		{"one", "listen: 127.0.0.1:1\n", map[string]string{"listen": "127.0.0.1:1"}, ""},
		{"JSON", `{"listen": "127.0.0.1:1", "timeout": "3s"}`, map[string]string{"listen": "127.0.0.1:1", "timeout": "3s"}, ""},
		{"list", "advertise:\n- a:1\n- b:2\n", map[string]string{"advertise": "a:1,b:2"}, ""},
		{"list of one for one", "listen: [\"127.0.0.1:1\"]\n", map[string]string{"listen": "127.0.0.1:1"}, ""},
		{"block", "data: |\n  /x\n", map[string]string{"data": "/x"}, ""},
		{"list for one", "listen: [a, b]\n", nil, errcode.BadSetting},
		{"comma in a list", "advertise: [\"a:1,b:2\"]\n", nil, errcode.BadSetting},
		{"object", "listen: {a: b}\n", nil, errcode.BadSetting},
		{"nested list", "advertise: [[a]]\n", nil, errcode.BadSetting},
		{"no value", "listen:\n", nil, errcode.BadSetting},
		{"twice", "listen: a\nlisten: b\n", nil, errcode.BadSetting},
		{"unknown", "lisen: a\n", nil, errcode.UnknownKey},
		{"flag's spelling", "log-level: info\n", nil, errcode.UnknownKey},
		{"not in a file", "config: x\n", nil, errcode.UnknownKey},
		{"secret", "join_token: x\n", nil, errcode.UnknownKey},
		{"number as key", "1: x\n", nil, errcode.BadSetting},
		{"a list alone", "- a\n", nil, errcode.BadSetting},
		{"a word alone", "listen\n", nil, errcode.BadSetting},
		{"two documents", "listen: a\n---\nlisten: b\n", nil, errcode.BadSetting},
		{"not YAML", "listen: [\n", nil, errcode.BadSetting},
		{"alias", "data: &x /y\nstore: *x\n", nil, errcode.BadSetting},
		{"tag", "data: !!binary x\n", nil, errcode.BadSetting},
		{"merge", "<<: {data: x}\n", nil, errcode.BadSetting},
	} {
		f, err := settings.ParseFile([]byte(tt.text), "c.yaml")
		if tt.want == nil {
			if !errors.Is(err, tt.code) {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.code)
			} else if e := errcode.Of(err); !strings.Contains(e.What, "c.yaml:") {
				t.Errorf("%s: no place in %q", tt.name, e.What)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if len(f.Entries) != len(tt.want) {
			t.Errorf("%s: %v", tt.name, f.Entries)
		}
		for key, want := range tt.want {
			if got := f.Entries[key].Text; got != want {
				t.Errorf("%s: %s is %q, want %q", tt.name, key, got, want)
			}
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{"", "listen: a", "advertise: [a, b]", "{", "a: &b [*b]", "<<: x", "? a\n: b", "- x",
		"---\n...\n", "a: |\n  b", "\xff", "data: \"\\u0000\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := settings.ParseFile(data, "c.yaml")
		if err != nil {
			if code := errcode.Of(err).Code; code != errcode.BadSetting && code != errcode.UnknownKey {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		for key := range file.Entries {
			if !strings.Contains(strings.Join(settings.FileKeys(), " "), key) {
				t.Fatalf("%q was taken", key)
			}
		}
	})
}
