package document_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/document"
)

// What is no YAML is told in words of who wrote it, with the line, and not in those of the parser.
func TestSlipsOfYAML(t *testing.T) {
	format := &document.Format{Noun: "a text", Start: "begin it with kind:", TooLong: "shorten it", Bytes: 1 << 16, Documents: 4,
		Depth: 8, Fields: 64, Items: 64, Marks: 1 << 12, Problems: 4}
	for text, want := range map[string]string{
		"name: x\nvalue y\nz: 1\n": "2:1 this line has no colon after its key; write it as KEY: VALUE",
		"name:x\nvalue: y\n":       "1:1 this line has no colon after its key",
		"name x\nvalue: y\n":       "1:1 this line has no colon after its key",
		"a: b\n- c\n":              "2:1 an item of a list stands among fields",
		"a: b: c\n":                "1:4 a value goes on with another colon",
		"a: b\n  c: d\n":           "1:4 a value goes on with another colon, or with fields below it",
		"a: - b\n":                 "1:4 a list begins on the line of its key",
		"a: {b: c\n":               "1:4 a { is not closed",
		"a: [b\nc: d\n":            "2:1 a [ is not closed",
		"a: ]\n":                   "1:4 a ] closes nothing",
		"a: 'b\nc: d\n":            "1:4 a quoted text does not end",
		"a: \"b\nc: d\n":           "1:4 a quoted text does not end",
		"a: @b\n":                  "1:4 a value begins with a character that YAML keeps for itself; quote the value",
		"a:\n\tb: c\n":             "2:1 a tab stands where YAML takes spaces only",
		"- a\nb: c\n":              "2:1 this does not go on with what stands above it",
	} {
		_, problems := format.Read([]byte(text))
		if len(problems) == 0 {
			t.Errorf("%q: taken", text)
			continue
		}
		p := problems[0]
		if got := fmt.Sprintf("%d:%d %s; %s", p.Line, p.Column, p.What, p.Do); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
