package term_test

import (
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/cli/term"
)

func TestSanitize(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"plain", "node-c é 漢", "node-c é 漢"},
		{"escape sequence", "a\x1b[2Jb", `a\u001b[2Jb`},
		{"control of the second set", "a\u009bb", `a\u009bb`},
		{"line ends and tabs", "a\r\n\tb", "a   b"},
		{"direction", "a\u202eb", `a\u202eb`},
		{"zero width", "a\u200bb", `a\u200bb`},
		{"line separator", "a\u2028b", `a\u2028b`},
		{"not UTF-8", "a\xffb", `a\xffb`},
		{"above the basic plane", "a\U000e0001b", `a\U000e0001b`},
		{"no-break space", "a\u00a0b", `a\u00a0b`},
	} {
		if got := term.Sanitize(tt.in); got != tt.want {
			t.Errorf("%s: sanitize(%q) = %q, want %q", tt.name, tt.in, got, tt.want)
		}
	}
}

func TestSanitizedTextPrints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		got := term.Sanitize(in)
		for _, r := range got {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q holds %U", got, r)
			}
		}
		if term.Sanitize(got) != got {
			t.Fatalf("%q changes when sanitized again", got)
		}
	})
}

func TestCutFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := term.Sanitize(rapid.String().Draw(t, "text"))
		width := rapid.IntRange(0, 40).Draw(t, "width")
		got := term.Cut(s, width)
		if term.Columns(got) > width {
			t.Fatalf("cut(%q, %d) = %q takes %d columns", s, width, got, term.Columns(got))
		}
		if term.Columns(s) <= width && got != s {
			t.Fatalf("cut(%q, %d) = %q, though it fits", s, width, got)
		}
		if got != s && width > 0 && !strings.HasSuffix(got, "…") {
			t.Fatalf("cut(%q, %d) = %q does not say that it is cut", s, width, got)
		}
	})
}

func TestColumns(t *testing.T) {
	for s, want := range map[string]int{"": 0, "abc": 3, "漢字": 4, "e\u0301": 1, "●": 1, "…": 1, "한": 2, "ｆ": 2} {
		if got := term.Columns(s); got != want {
			t.Errorf("columns(%q) = %d, want %d", s, got, want)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, tt := range []struct {
		in    string
		width int
		want  string
	}{
		{"one two three", 0, "one two three"},
		{"one two three", 7, "one two|three"},
		{"one two three", 3, "one|two|three"},
		{"a-very-long-word x", 4, "a-very-long-word|x"},
		{"", 4, ""},
	} {
		if got := strings.Join(term.Wrap(tt.in, tt.width), "|"); got != tt.want {
			t.Errorf("wrap(%q, %d) = %s, want %s", tt.in, tt.width, got, tt.want)
		}
	}
}

// A command of the program stays on its line, also in quotes, so that it can be pasted.
func TestWrapCommands(t *testing.T) {
	for in, want := range map[string]string{
		"say fealty a b c; then go":       "say|fealty a b c;|then go",
		"it is what `fealty a b` wrote":   "it is|what|`fealty a b`|wrote",
		"as `fealty` does, and (`fealty`": "as|`fealty`|does, and|(`fealty`",
		"no fealtyd is meant":             "no|fealtyd|is meant",
	} {
		if got := strings.Join(term.WrapCommands(in, "fealty", 9), "|"); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
