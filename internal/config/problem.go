package config

import (
	"errors"

	"github.com/fealty-io/fealty/internal/document"
)

// ErrInvalid is matched by every error of this package that says that config is not
// what it has to be.
var ErrInvalid = errors.New("invalid config")

// RuleInUse is the rule of a problem with a deletion of what others refer to.
const RuleInUse = "in-use"

// A Problem is one thing that is wrong with a record or a set of them.
type Problem struct {
	Record Key // empty where it is not known, or holds what must not be shown
	document.Problem
}

// Error returns place, record, field, what is wrong and what to do, in one line.
func (p *Problem) Error() string {
	if p.Record == (Key{}) {
		return p.Problem.Error()
	}
	return p.In(p.Record.String())
}

// An InvalidError holds what is wrong, at most [MaxProblems] problems, in the order
// of the text or, without one, of the records.
type InvalidError = document.Invalid[*Problem]

// invalid returns the error of problems, or nil if there are none.
func invalid(problems []*Problem) error {
	if len(problems) == 0 {
		return nil
	}
	return document.NewInvalid(ErrInvalid, problems, MaxProblems, func(p *Problem) *document.Problem { return &p.Problem })
}
