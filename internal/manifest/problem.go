package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/document"
)

// ErrInvalid is matched by every error of [Parse].
var ErrInvalid = errors.New("invalid manifest")

// A Problem is one thing that is wrong with a manifest, and how to mend it.
type Problem struct {
	// parseRule is the stable name of the rule that was broken, one of parseRules.
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
// document; at most MaxProblems. errors.As finds it, and its problems.
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

func invalid(found []*document.Problem) *InvalidError {
	problems := make([]*Problem, len(found))
	for i, p := range found {
		problems[i] = (*Problem)(p)
	}
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
