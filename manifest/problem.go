package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrInvalid is matched by every error of [Parse].
var ErrInvalid = errors.New("invalid manifest")

// A Problem is one thing that is wrong with a manifest, and how to mend it.
type Problem struct {
	// Rule is the stable name of the rule that was broken, one of [Rules].
	Rule string

	// Line and Column say where, both from 1, the column in characters. Both are
	// 0 for what concerns the whole document, such as its size.
	Line, Column int

	// Field is the path of the field, such as admit[2].kind. Empty for the whole
	// document.
	Field string

	What string // what is wrong, with the value found
	Do   string // what to write instead
}

// Error returns place, field, what is wrong and what to do, in one line.
func (p *Problem) Error() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", p.Line, p.Column)
	}
	if p.Field != "" {
		fmt.Fprintf(&b, "%s: ", p.Field)
	}
	b.WriteString(p.What)
	if p.Do != "" {
		b.WriteString(": " + p.Do)
	}
	return b.String()
}

// Is reports that a problem makes a manifest invalid: errors.Is(p, ErrInvalid).
func (p *Problem) Is(target error) bool { return target == ErrInvalid }

// An InvalidError holds every problem of a manifest, in the order of the
// document; at most [MaxProblems]. errors.As finds it, and its problems.
type InvalidError struct {
	Problems []*Problem
}

// Error returns the first problem, and how many more there are.
func (e *InvalidError) Error() string {
	switch len(e.Problems) {
	case 0:
		return ErrInvalid.Error()
	case 1:
		return fmt.Sprintf("%v: %v", ErrInvalid, e.Problems[0])
	default:
		return fmt.Sprintf("%v: %v (and %d more problems)", ErrInvalid, e.Problems[0], len(e.Problems)-1)
	}
}

// Is reports whether target is [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Unwrap returns the problems.
func (e *InvalidError) Unwrap() []error {
	errs := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		errs[i] = p
	}
	return errs
}

func invalid(problems []*Problem) *InvalidError {
	slices.SortStableFunc(problems, func(a, b *Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	if len(problems) > MaxProblems {
		problems = problems[:MaxProblems]
	}
	return &InvalidError{Problems: problems}
}

// nearest returns the member of known that s was most likely meant to be, or ""
// if none is close.
func nearest(s string, known []string) string {
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

// suggest says what to write instead of the unknown word s.
func suggest(s string, known []string) string {
	if n := nearest(s, known); n != "" {
		return fmt.Sprintf("did you mean %s? Known: %s", n, oneOf(known))
	}
	return "use one of: " + oneOf(known)
}

// shown cuts a value of the document to what fits into a message.
func shown(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return fmt.Sprintf("%q", s)
}
