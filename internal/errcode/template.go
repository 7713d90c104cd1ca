package errcode

import (
	"fmt"
	"strings"
)

// Fill replaces {name} by the field's value, and {name|words} by the words
// where there is no such field. The value of {name#one#many|words} is a number, and the one or the
// other comes after it: {count#record#records|some records}. Values are not looked at for names again.
func Fill(template string, fields map[string]string) string {
	var b strings.Builder
	for _, p := range Parse(template) {
		switch value, ok := fields[p.Name]; {
		case p.Name == "":
			b.WriteString(p.Words)
		case ok && value != "":
			b.WriteString(value)
			b.WriteString(p.noun(value))
		case p.Words != "":
			b.WriteString(p.Words)
		default:
			b.WriteString("unknown")
		}
	}
	return b.String()
}

// A Part is a stretch of a template: a name with words in its place where there is
// no value, or, with an empty name, the words alone. One and Many are what comes after a value that is
// a number.
type Part struct{ Name, Words, One, Many string }

// noun is what comes after a value: "1", and "at least 1", are one.
func (p Part) noun(value string) string {
	switch {
	case p.Many == "":
		return ""
	case value == "1" || strings.HasSuffix(value, " 1"):
		return " " + p.One
	}
	return " " + p.Many
}

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
			panic(fmt.Sprintf("errcode: template %q does not close a brace", template))
		}
		name, words, _ := strings.Cut(inside, "|")
		name, nouns, _ := strings.Cut(name, "#")
		one, many, _ := strings.Cut(nouns, "#")
		parts = append(parts, Part{name, words, one, many})
		template = after
	}
	return parts
}
