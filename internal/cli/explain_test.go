package cli_test

import (
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/reference"
	"github.com/fealty-io/fealty/internal/settings"
)

func TestTopics(t *testing.T) {
	for _, x := range reference.Topics() {
		run(t, "explain", x.Name).want(t, 0)
		for _, f := range x.Fields {
			r := run(t, "explain", x.Name+"."+f.Name).want(t, 0)
			if !strings.Contains(r.stdout, f.Text) {
				t.Errorf("%s.%s:\n%s", x.Name, f.Name, r.stdout)
			}
		}
	}
	for _, s := range settings.All() {
		r := run(t, "explain", "config."+s.Key).want(t, 0)
		if !strings.Contains(r.stdout, s.Env()) {
			t.Errorf("config.%s:\n%s", s.Key, r.stdout)
		}
	}
}
