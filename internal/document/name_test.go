package document_test

import (
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/document"
)

// A name is refused with words that say which of the rules it breaks, and that fit on one line.
func TestProblem(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("x", document.MaxNameBytes)
	for _, tc := range []struct{ title, name, want string }{
		{"a letter", "a", ""},
		{"the lowest character", "!", ""},
		{"the highest character", "~", ""},
		{"all that is printable but no letter", `!"#$%&'()*+,-./:;<=>?@[\]^_{|}~` + "`", ""},
		{"the longest name", longest, ""},
		{"nothing", "", "is missing"},
		{"one byte too many", longest + "x", "has 129 bytes, above 128"},
		{"far too many", strings.Repeat("x", 1<<20), "has 1048576 bytes, above 128"},
		{"too many bytes, which are blanks", strings.Repeat(" ", document.MaxNameBytes+1), "has 129 bytes, above 128"},
		{"a blank alone", " ", `is " ", want printable ASCII without blanks`},
		{"a blank before it", " a", `is " a", want printable ASCII without blanks`},
		{"a blank within", "a b", `is "a b", want printable ASCII without blanks`},
		{"a blank after it", "a ", `is "a ", want printable ASCII without blanks`},
		{"a tab", "a\tb", `is "a\tb", want printable ASCII without blanks`},
		{"a line end", "a\n", `is "a\n", want printable ASCII without blanks`},
		{"a NUL", "a\x00", `is "a\x00", want printable ASCII without blanks`},
		{"a DEL", "a\x7f", `is "a\x7f", want printable ASCII without blanks`},
		{"a letter that is no ASCII", "caf\u00e9", "is \"caf\u00e9\", want printable ASCII without blanks"},
		{"a blank that is no ASCII", "a\u00a0b", `is "a\u00a0b", want printable ASCII without blanks`},
		{"half a letter", "a\xc3", `is "a\xc3", want printable ASCII without blanks`},
		{"a last byte at the bound", longest[1:] + "\n",
			`is "` + longest[1:] + `\n", want printable ASCII without blanks`},
	} {
		if got := document.NameProblem(tc.name); got != tc.want {
			t.Errorf("%s: it %q, want %q", tc.title, got, tc.want)
		}
	}
}

// Each byte is in a name or is not, wherever it stands.
func TestBytes(t *testing.T) {
	t.Parallel()
	for n := range 256 {
		b := string([]byte{byte(n)})
		want := n >= '!' && n <= '~'
		for _, name := range []string{b, "a" + b, b + "a", "a" + b + "a"} {
			if got := document.NameProblem(name); (got == "") != want {
				t.Errorf("%q: %q", name, got)
			}
		}
	}
}
