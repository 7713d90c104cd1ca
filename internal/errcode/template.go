package errcode

import (
	"fmt"
	"strings"
)

// Fill replaces {name} by the field's value, and {name|words} by the words
// where there is no such field. Values are not looked at for names again.
func Fill(template string, fields map[string]string) string {
	var b strings.Builder
	for _, p := range Parse(template) {
		switch value, ok := fields[p.Name]; {
		case p.Name == "":
			b.WriteString(p.Words)
		case ok && value != "":
			b.WriteString(value)
		case p.Words != "":
			b.WriteString(p.Words)
		default:
			b.WriteString("unknown")
		}
	}
	return b.String()
}

// A Part is a stretch of a template: a name with words in its place where there is
// no value, or, with an empty name, the words alone.
type Part struct{ Name, Words string }

// Parse returns the parts of a template. It panics if one does not close a brace.
func Parse(template string) []Part {
	var parts []Part
	for template != "" {
		before, rest, ok := strings.Cut(template, "{")
		if before != "" {
			parts = append(parts, Part{Words: before})
		}
		if !ok {
			break
		}
		inside, after, closed := strings.Cut(rest, "}")
		if !closed {
			panic(fmt.Sprintf("wording: template %q does not close a brace", template))
		}
		name, words, _ := strings.Cut(inside, "|")
		parts = append(parts, Part{name, words})
		template = after
	}
	return parts
}
