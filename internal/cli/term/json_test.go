package term_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/cli/term"
)

// A text of JSON stays the same value, and nothing in it can move a cursor.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"a <b> & \u00fc": `"a <b> & ü"`,
		"\x1b[2J\x7f":    `"\u001b[2J\u007f"`,
		"\b\f\n\t\r":     `"\u0008\u000c\n\t\r"`,
		"\u202e\u2028":   `"\u202e\u2028"`,
		"\U000e0001":     `"\udb40\udc01"`,
		"a\xffb":         "\"a\ufffdb\"",
		`\ufffd \b`:      `"\\ufffd \\b"`,
	} {
		var b strings.Builder
		if err := term.WriteJSON(&b, in); err != nil {
			t.Fatal(err)
		}
		got := term.Quote(in)
		if got != want || b.String() != want+"\n" {
			t.Errorf("%q is %s, and written %s, want %s", in, got, b.String(), want)
		}
		var back string
		if err := json.Unmarshal([]byte(got), &back); err != nil {
			t.Errorf("%s: %v", got, err)
		}
	}
}

func TestMomentsAndNumbers(t *testing.T) {
	at := time.Date(2026, 11, 20, 13, 0, 0, 5e6, time.FixedZone("", 3600))
	for want, v := range map[string]any{
		`"2026-11-20T12:00:00.005Z"`: term.Moment(at),
		"null":                       term.Moment{},
		"1e+06":                      term.Number(1e6),
		"0.25":                       term.Number(0.25),
		`"NaN"`:                      term.Number(math.NaN()),
	} {
		if text, err := json.Marshal(v); err != nil || string(text) != want {
			t.Errorf("%v is %s (%v), want %s", v, text, err, want)
		}
	}
}
