package document

import (
	"fmt"
	"strings"

	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// A Problem is one thing that is wrong with a document, and how to mend it.
type Problem struct {
	Rule         string // stable name of the rule that was broken
	Line, Column int    // from 1, the column in characters; 0: the whole document
	Field        string // path of the field, such as admit[2].kind; empty: the whole document
	What         string // what is wrong, with the value found
	Do           string // what to write instead
}

// Nearest returns the member of known that s was most likely meant to be, or ""
// if none is close.
func Nearest(s string, known []string) string {
	best, bestDistance := "", 3 // more than two slips is another word
	for _, k := range known {
		if d := humanize.Distance(s, k); d < bestDistance && d < len(k) {
			best, bestDistance = k, d
		}
	}
	return best
}

// oneOf renders a choice for a problem's Do.
func oneOf(known []string) string { return strings.Join(known, ", ") }

// Suggest says what to write instead of the unknown word s.
func Suggest(s string, known []string) string {
	if n := Nearest(s, known); n != "" {
		return fmt.Sprintf("did you mean %s? Known: %s", n, oneOf(known))
	}
	return "use one of: " + oneOf(known)
}

// Shown cuts a value of the document to what fits into a message.
func Shown(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return fmt.Sprintf("%q", s)
}
