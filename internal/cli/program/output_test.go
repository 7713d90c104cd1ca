package program // the form is known before there is a command that says it

import (
	"testing"

	"github.com/fealty-io/fealty/internal/cli/term"
)

func TestFormatIsKnownBeforeParsing(t *testing.T) {
	for _, tt := range []struct {
		args []string
		env  string
		want term.Format
	}{
		{nil, "", term.TableFormat},
		{[]string{"-o", "json"}, "", term.JSON},
		{[]string{"-ojson"}, "", term.JSON},
		{[]string{"-o=yaml"}, "", term.YAML},
		{[]string{"--output", "wide"}, "", term.Wide},
		{[]string{"--output=json"}, "yaml", term.JSON},
		{nil, "json", term.JSON},
		{[]string{"--", "-o", "json"}, "", term.TableFormat},
		{[]string{"-o"}, "", term.TableFormat},
		{[]string{"-o", "frob"}, "", term.TableFormat},
		{[]string{"--outputs", "json"}, "", term.TableFormat},
	} {
		c := New(Env{Environ: []string{"FEALTY_OUTPUT=" + tt.env}})
		if got := c.formatOf(tt.args); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.args, got, tt.want)
		}
	}
}
