package node

import (
	"errors"
	"regexp"
	"strings"

	"github.com/fealty-io/fealty/internal/errcode"
)

// option finds an option of the commands of fealty in what an error advises.
var option = regexp.MustCompile(`(?:^|\s)--?[a-z]`)

// advice is what a program on the member says of an error of the agent. The options of fealty's commands are
// none of that program, so advice that names one is left to the page of the error.
func advice(e *errcode.Error) string {
	if option.MatchString(e.Do) {
		return "fealty explain " + string(e.Code) + " says what to do"
	}
	return e.Do
}

// advised is an error with its advice for such a program.
type advised struct {
	error
	text string
}

func (e advised) Error() string { return e.text }

func (e advised) Unwrap() error { return e.error }

func advise(err error) error {
	e, ok := errors.AsType[*errcode.Error](err)
	if !ok {
		return err
	}
	return advised{err, strings.Replace(err.Error(), e.Do, advice(e), 1)}
}
