package document

import (
	"fmt"
	"slices"
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

// Error returns place, field, what is wrong and what to do, in one line.
func (p *Problem) Error() string { return p.In("") }

// In is Error of a problem in a part of the document, which is named before the field; "": none.
func (p *Problem) In(part string) string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", p.Line, p.Column)
	}
	for _, s := range []string{part, p.Field} {
		if s != "" {
			b.WriteString(s + ": ")
		}
	}
	b.WriteString(p.What)
	if p.Do != "" {
		b.WriteString(": " + p.Do)
	}
	return b.String()
}

// Invalid is the error of documents in which something is wrong: problems of type P, in the order of the text.
// errors.As finds it, and its problems. Make it with [NewInvalid].
type Invalid[P error] struct {
	Problems []P

	kind error
}

// NewInvalid returns the error of some problems, of which it keeps the first most, by their places. It matches
// kind, whose text it begins with.
func NewInvalid[P error](kind error, problems []P, most int, place func(P) *Problem) *Invalid[P] {
	slices.SortStableFunc(problems, func(a, b P) int {
		x, y := place(a), place(b)
		if x.Line != y.Line {
			return x.Line - y.Line
		}
		return x.Column - y.Column
	})
	return &Invalid[P]{Problems: problems[:min(len(problems), most)], kind: kind}
}

// Error returns the first problem, and how many more there are.
func (e *Invalid[P]) Error() string {
	switch len(e.Problems) {
	case 0:
		return e.kind.Error()
	case 1:
		return fmt.Sprintf("%v: %v", e.kind, e.Problems[0])
	default:
		return fmt.Sprintf("%v: %v (and %d more problems)", e.kind, e.Problems[0], len(e.Problems)-1)
	}
}

// Is reports whether target is the kind.
func (e *Invalid[P]) Is(target error) bool { return target == e.kind }

// Unwrap returns the problems.
func (e *Invalid[P]) Unwrap() []error {
	errs := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		errs[i] = p
	}
	return errs
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
