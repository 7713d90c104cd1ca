package settings_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/cli/settings"
)

func TestSettingsTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range settings.All() {
		for _, g := range s.Groups {
			if id := string(g) + " " + s.Key; seen[id] {
				t.Errorf("%s stands twice", id)
			} else {
				seen[id] = true
			}
		}
		if s.Key != strings.ToLower(s.Key) || strings.ContainsAny(s.Key, "- .") {
			t.Errorf("%s: keys are lower case with underscores", s.Key)
		}
		if s.Help == "" || s.Zero == "" || s.Help[:1] != strings.ToLower(s.Help[:1]) || strings.HasSuffix(s.Help, ".") {
			t.Errorf("%s: help and the meaning of not setting it are phrases without a full stop", s.Key)
		}
		if s.Init != "" {
			if problem := s.Check(s.Init); problem != "" {
				t.Errorf("%s: the default %s is refused: %s", s.Key, s.Init, problem)
			}
		}
		if s.Init == "" && (s.Form == settings.ChoiceForm || s.Form == settings.DurationForm ||
			s.Form == settings.SwitchForm || s.Form == settings.NumberForm) {
			t.Errorf("%s: a value that is read without a look whether it is set needs a default", s.Key)
		}
		if s.Form == settings.SecretForm && !s.EnvOnly {
			t.Errorf("%s: a secret is neither a flag nor in a file", s.Key)
		}
	}
}

func TestCheckValues(t *testing.T) {
	for _, tt := range []struct {
		Form      settings.Form
		good, bad []string
	}{
		{settings.DurationForm, []string{"1s", "7d", "1d12h", "0.5s"}, []string{"", "0s", "-1s", "-1d", "1", "d",
			"1d-2h", "x", "99999999999d", "1.5d"}},
		{settings.AddressForm, []string{":7443", "127.0.0.1:0", "[::1]:7443", "host:65535"}, []string{"", "host",
			"host:", "host:x", "host:65536", "a b:1", "host:-1", "a,b:1", "http://x:1"}},
		{settings.PeersForm, []string{"a:1", "a:1,b:2", "dns:a:1", "dns:peers.example:7443, [::1]:1"}, []string{"",
			":1", "a:0", "a:1,", "a", "dns:a", "dns::1", "dns:10.0.0.1:1", "unix:/x:1", "a b:1"}},
		{settings.AddressesForm, []string{"a:1", "a:1,b:2", "a:1, b:2", "[::1]:1"}, []string{"", ":1", "a:0", "a:1,",
			"a:1,,b:2", "a"}},
		{settings.ConsumersForm, []string{"root", "0", "@0", "root:route_policy",
			"1000:route_policy+peer_directory, " +
				"@0:trust_bundle"}, []string{"", "nobody-of-this-name", "@nobody-of-this-name", "-1", "4294967296", "root:", "root:routes", "root,", "root:route_policy+"}},
		{settings.StoreForm, []string{"sqlite:x", "sqlite:/var/x", "postgres://x",
			"postgresql://u:p@x:5432/db?sslmode=require", "etcd://x:2379", "etcd://u@x:1,y:2/a/b?ca=f"},
			[]string{"", "sqlite", "sqlite:", "postgres:x", "postgres", "postgres://u:p@q@x", "host=x dbname=y",
				"mysql://x", "etcd://x", "etcd:x:1", "etcd://u:p@x:1/a", "x"}},
		{settings.HexForm, []string{strings.Repeat("0a", 32)}, []string{"", "0a", strings.Repeat("0A", 32),
			strings.Repeat("zz", 32)}},
		{settings.NetworksForm, []string{"10.0.0.1", "10.0.0.0/24, ::1", "fd00::/8"}, []string{"", "lb.example",
			"10.0.0.1/24", "10.0.0.0/33", "10.0.0.1,", "::ffff:10.0.0.0/120", "fe80::1%eth0"}},
		{settings.NumberForm, []string{"1", "10", "1000000"}, []string{"", "0", "-1", "1.5", "1e3", "1000001", "many"}},
		{settings.SwitchForm, []string{"true", "false"}, []string{"", "yes", "1", "True"}},
		{settings.PathForm, []string{"x", "/x", "-"}, []string{"", " "}},
		{settings.TextForm, []string{"x"}, []string{"", "\t"}},
	} {
		s := &settings.Setting{Key: "x", Form: tt.Form}
		for _, v := range tt.good {
			if problem := s.Check(v); problem != "" {
				t.Errorf("%s: %q is refused: %s", tt.Form, v, problem)
			}
		}
		for _, v := range tt.bad {
			if s.Check(v) == "" {
				t.Errorf("%s: %q is accepted", tt.Form, v)
			}
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour,
		"90s": 90 * time.Second} {
		if got, err := settings.ParseDuration(text); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v", text, got, err)
		}
	}
}
