package cli_test

import (
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/reference"
	"github.com/fealty-io/fealty/internal/cli/settings"
)

func TestTopics(t *testing.T) {
	for _, x := range reference.Topics() {
		clitest.Run(t, "explain", x.Name).Want(t, 0)
		for _, f := range x.Fields {
			r := clitest.Run(t, "explain", x.Name+"."+f.Name).Want(t, 0)
			if !strings.Contains(r.Stdout, f.Text) {
				t.Errorf("%s.%s:\n%s", x.Name, f.Name, r.Stdout)
			}
		}
	}
	for _, s := range settings.All() {
		r := clitest.Run(t, "explain", "config."+s.Key).Want(t, 0)
		if !strings.Contains(r.Stdout, s.Env()) {
			t.Errorf("config.%s:\n%s", s.Key, r.Stdout)
		}
	}
}
