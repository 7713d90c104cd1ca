package cli

import (
	"strings"
	"testing"
	"time"
)

func TestSettingsTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range settings() {
		for _, g := range s.groups {
			if id := string(g) + " " + s.key; seen[id] {
				t.Errorf("%s stands twice", id)
			} else {
				seen[id] = true
			}
		}
		if s.key != strings.ToLower(s.key) || strings.ContainsAny(s.key, "- .") {
			t.Errorf("%s: keys are lower case with underscores", s.key)
		}
		if s.help == "" || s.zero == "" || s.help[:1] != strings.ToLower(s.help[:1]) || strings.HasSuffix(s.help, ".") {
			t.Errorf("%s: help and the meaning of not setting it are phrases without a full stop", s.key)
		}
		if s.init != "" {
			if problem := s.check(s.init); problem != "" {
				t.Errorf("%s: the default %s is refused: %s", s.key, s.init, problem)
			}
		}
		if s.init == "" && (s.form == choiceForm || s.form == durationForm || s.form == switchForm || s.form == numberForm) {
			t.Errorf("%s: a value that is read without a look whether it is set needs a default", s.key)
		}
		if s.form == secretForm && !s.envOnly {
			t.Errorf("%s: a secret is neither a flag nor in a file", s.key)
		}
	}
}

func TestCheckValues(t *testing.T) {
	for _, tt := range []struct {
		form      form
		good, bad []string
	}{
		{durationForm, []string{"1s", "7d", "1d12h", "0.5s"}, []string{"", "0s", "-1s", "-1d", "1", "d", "1d-2h", "x", "99999999999d", "1.5d"}},
		{addressForm, []string{":7443", "127.0.0.1:0", "[::1]:7443", "host:65535"}, []string{"", "host", "host:", "host:x", "host:65536", "a b:1", "host:-1", "a,b:1", "http://x:1"}},
		{peersForm, []string{"a:1", "a:1,b:2", "dns:a:1", "dns:peers.example:7443, [::1]:1"}, []string{"", ":1", "a:0", "a:1,", "a", "dns:a", "dns::1", "dns:10.0.0.1:1", "unix:/x:1", "a b:1"}},
		{addressesForm, []string{"a:1", "a:1,b:2", "a:1, b:2", "[::1]:1"}, []string{"", ":1", "a:0", "a:1,", "a:1,,b:2", "a"}},
		{consumersForm, []string{"root", "0", "@0", "root:route_policy", "1000:route_policy+peer_directory, @0:trust_bundle"}, []string{"", "nobody-of-this-name", "@nobody-of-this-name", "-1", "4294967296", "root:", "root:routes", "root,", "root:route_policy+"}},
		{storeForm, []string{"sqlite:x", "sqlite:/var/x", "postgres://x", "postgresql://u:p@x:5432/db?sslmode=require", "etcd://x:2379", "etcd://u@x:1,y:2/a/b?ca=f"},
			[]string{"", "sqlite", "sqlite:", "postgres:x", "postgres", "postgres://u:p@q@x", "host=x dbname=y", "mysql://x", "etcd://x", "etcd:x:1", "etcd://u:p@x:1/a", "x"}},
		{hexForm, []string{strings.Repeat("0a", 32)}, []string{"", "0a", strings.Repeat("0A", 32), strings.Repeat("zz", 32)}},
		{networksForm, []string{"10.0.0.1", "10.0.0.0/24, ::1", "fd00::/8"}, []string{"", "lb.example", "10.0.0.1/24", "10.0.0.0/33", "10.0.0.1,", "::ffff:10.0.0.0/120", "fe80::1%eth0"}},
		{numberForm, []string{"1", "10", "1000000"}, []string{"", "0", "-1", "1.5", "1e3", "1000001", "many"}},
		{switchForm, []string{"true", "false"}, []string{"", "yes", "1", "True"}},
		{pathForm, []string{"x", "/x", "-"}, []string{"", " "}},
		{textForm, []string{"x"}, []string{"", "\t"}},
	} {
		s := &setting{key: "x", form: tt.form}
		for _, v := range tt.good {
			if problem := s.check(v); problem != "" {
				t.Errorf("%s: %q is refused: %s", tt.form, v, problem)
			}
		}
		for _, v := range tt.bad {
			if s.check(v) == "" {
				t.Errorf("%s: %q is accepted", tt.form, v)
			}
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "90s": 90 * time.Second} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v", text, got, err)
		}
	}
}
