package recovery

import (
	"cmp"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
)

// expected is a flag that says what the cluster has to be. A blank one is refused, and is not one
// that nobody gave: a script whose variable is empty would verify less than it was written to.
type expected struct {
	text  string
	given bool
}

func (e *expected) String() string { return e.text }

func (e *expected) Set(text string) error {
	e.text, e.given = text, true
	return nil
}

func (*expected) Type() string { return "string" }

// pin returns the pin of --root-pin, and the zero one where it was not given.
func (e *expected) pin() (identity.KeyID, error) {
	if !e.given {
		return identity.KeyID{}, nil
	}
	const want = "the root pin, as fealty status showed it, or leave it out"
	pin, err := identity.ParseKeyID(e.text)
	if err != nil {
		return pin, errcode.Wrap(err, errcode.BadValue, "name", "--root-pin", "value", cmp.Or(e.text, "blank"), "problem",
			"it is not 64 lower-case hex digits", "want", want)
	}
	if pin.IsZero() { // by which any root would do
		return pin, errcode.New(errcode.BadValue, "name", "--root-pin", "value", e.text, "problem",
			"it is the pin of no key", "want", want)
	}
	return pin, nil
}
