package program // the form is known before there is a command that says it

import (
	"testing"

	"github.com/fealty-io/fealty/internal/output"
)

func TestFormatIsKnownBeforeParsing(t *testing.T) {
	for _, tt := range []struct {
		args []string
		env  string
		want output.Format
	}{
		{nil, "", output.Table},
		{[]string{"-o", "json"}, "", output.JSON},
		{[]string{"-ojson"}, "", output.JSON},
		{[]string{"-o=yaml"}, "", output.YAML},
		{[]string{"--output", "wide"}, "", output.Wide},
		{[]string{"--output=json"}, "yaml", output.JSON},
		{nil, "json", output.JSON},
		{[]string{"--", "-o", "json"}, "", output.Table},
		{[]string{"-o"}, "", output.Table},
		{[]string{"-o", "frob"}, "", output.Table},
		{[]string{"--outputs", "json"}, "", output.Table},
	} {
		c := New(Env{Environ: []string{"FEALTY_OUTPUT=" + tt.env}})
		if got := c.formatOf(tt.args); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.args, got, tt.want)
		}
	}
}
