package errcode

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

const section = `## FE-A101: a title

- what: {what|the call} failed: "no", it said
- why: {cause|a reason}
- do: wait
- exit: refused by a safety rule
- rpc: Unavailable

A page of
two lines.

# And more: of it
`

// A section is taken as it stands, and a page that says too much, too little or something else is refused.
func TestParse(t *testing.T) {
	second := strings.NewReplacer("A101", "A102", "- rpc: Unavailable", "- rpc: Unavailable\n- of: FE-A101").Replace(section)
	entries, err := parse("# Codes\n\nWords.\n\n" + section + "\n" + second)
	if err != nil {
		t.Fatal(err)
	}
	want := Entry{Code: "FE-A101", Title: "a title", What: `{what|the call} failed: "no", it said`, Why: "{cause|a reason}", Do: "wait",
		Exit: ExitRefused, GRPC: codes.Unavailable, Page: "A page of\ntwo lines.\n\n# And more: of it"}
	if len(entries) != 2 || entries[0] != want || entries[1].Code != "FE-A102" || entries[1].Of != "FE-A101" {
		t.Errorf("read: %+v", entries)
	}
	for name, page := range map[string]string{
		"no section":            "# Codes\n",
		"a code twice":          section + section,
		"not in order":          second + section,
		"no title":              strings.Replace(section, ": a title", "", 1),
		"no page":               section[:strings.Index(section, "A page")],
		"another heading":       section + "\n## More\n\nwords\n",
		"an unknown key":        strings.Replace(section, "- why:", "- wyh:", 1),
		"a key without a mark":  strings.Replace(section, "- why:", "why:", 1),
		"a key without a value": strings.Replace(section, "- do: wait", "- do:", 1),
		"space behind a value":  strings.Replace(section, "wait", "wait ", 1),
		"a key twice":           strings.Replace(section, "- do: wait", "- do: wait\n- do: go", 1),
		"no blank line":         strings.Replace(section, "Unavailable\n\n", "Unavailable\n", 1),
		"an unknown exit":       strings.Replace(section, "refused by", "denied by", 1),
		"exit ok":               strings.Replace(section, "refused by a safety rule", "ok", 1),
		"an unknown rpc":        strings.Replace(section, "Unavailable", "UNAVAILABLE", 1),
		"rpc ok":                strings.Replace(section, "Unavailable", "OK", 1),
		"of an unknown code":    strings.Replace(section, "Unavailable", "Unavailable\n- of: FE-A100", 1),
		"no what":               without(section, "what"),
		"no why":                without(section, "why"),
		"no do":                 without(section, "do"),
		"no exit":               without(section, "exit"),
		"no rpc":                without(section, "rpc"),
	} {
		if entries, err := parse("# Codes\n\n" + page); err == nil {
			t.Errorf("%s: read as %+v", name, entries)
		}
	}
}

// without takes the line of a key out of a section.
func without(section, key string) string {
	before, from, _ := strings.Cut(section, "- "+key+": ")
	_, after, _ := strings.Cut(from, "\n")
	return before + after
}

// BenchmarkParse measures what the first error of a process costs more than the others.
func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		if _, err := parse(texts); err != nil {
			b.Fatal(err)
		}
	}
}
