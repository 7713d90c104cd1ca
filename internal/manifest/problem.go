package manifest

import (
	"errors"

	"github.com/fealty-io/fealty/internal/document"
)

// ErrInvalid is matched by every error of [Parse].
var ErrInvalid = errors.New("invalid manifest")

// A Problem is one thing that is wrong with a manifest, and how to mend it.
type Problem = document.Problem

// An InvalidError holds the problems of a manifest, at most MaxProblems.
type InvalidError = document.Invalid[*Problem]

func invalid(problems []*Problem) *InvalidError {
	return document.NewInvalid(ErrInvalid, problems, MaxProblems, func(p *Problem) *Problem { return p })
}
