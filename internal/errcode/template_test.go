package errcode_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/errcode"
)

func TestFill(t *testing.T) {
	t.Parallel()
	fields := map[string]string{"a": "x", "b": "{a}", "empty": ""}
	for template, want := range map[string]string{
		"":                           "",
		"plain":                      "plain",
		"{a} and {b}":                "x and {a}", // a value is not looked at again
		"{c}":                        "unknown",
		"{c|some words}":             "some words",
		"{empty|none}, {a|not this}": "none, x",
	} {
		if got := errcode.Fill(template, fields); got != want {
			t.Errorf("%q: %q, want %q", template, got, want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a brace that does not close passed")
		}
	}()
	errcode.Fill("{a", fields)
}
