package document

import (
	"fmt"
	"strings"
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
		if d := editDistance(s, k); d < bestDistance && d < len(k) {
			best, bestDistance = k, d
		}
	}
	return best
}

// editDistance is the Levenshtein distance of a and b in bytes, cut off at 3
// for strings that are too long to be a slip of any name that we know.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 3
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
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
