package errcode_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/errcode"
)

func TestFill(t *testing.T) {
	t.Parallel()
	fields := map[string]string{"a": "x", "b": "{a}", "empty": "", "n0": "0", "n1": "1", "n2": "2",
		"n3": "at least 1", "n4": "11"}
	for template, want := range map[string]string{
		"":                           "",
		"plain":                      "plain",
		"{a} and {b}":                "x and {a}", // a value is not looked at again
		"{c}":                        "unknown",
		"{c|some words}":             "some words",
		"{empty|none}, {a|not this}": "none, x",
		"{n0#machine is#machines are|none is} there": "0 machines are there",
		"{n1#machine is#machines are|none is} there": "1 machine is there",
		"{n2#machine is#machines are|none is} there": "2 machines are there",
		"{n3#machine is#machines are|none is} there": "at least 1 machine is there",
		"{n4#machine is#machines are|none is} there": "11 machines are there",
		"{c#machine is#machines are|none is} there":  "none is there",
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
