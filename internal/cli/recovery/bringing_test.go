package recovery // what came of a share is decided on types that no other package needs

import (
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
)

// A share whose answer was lost was sent all the same: of a coordinator that is ready
// afterwards nobody is told that none was.
func TestSentShareIsNotForgotten(t *testing.T) {
	t.Parallel()
	type came struct {
		one *broughtOne
		err error
	}
	lost := came{&broughtOne{Owner: "bob", Sent: true}, errcode.New(errcode.Unreachable)}
	unreached := came{&broughtOne{Owner: "bob"}, errcode.New(errcode.Unreachable)}
	taken := came{&broughtOne{Owner: "bob", Sent: true, Progress: recovery.Progress{Brought: []string{"bob"}, Needed: 2}}, nil}
	ready := came{nil, errcode.New(errcode.RecoveryNotNeeded)}
	for name, row := range map[string]struct {
		came      []came
		recovered bool
		want      errcode.Code // of the last; empty: none
	}{
		"its answer was lost":        {[]came{lost, ready}, true, ""},
		"lost, and not reached then": {[]came{lost, unreached, ready}, true, ""},
		"another owner's was last":   {[]came{taken, ready}, true, ""},
		"it was never reached":       {[]came{unreached, ready}, false, errcode.RecoveryNotNeeded},
		"it was ready before":        {[]came{ready}, false, errcode.RecoveryNotNeeded},
		"lost once":                  {[]came{lost}, false, errcode.Unreachable},
		"taken":                      {[]came{taken}, false, ""},
	} {
		var b bringing
		var err error
		for _, c := range row.came {
			one := c.one
			if one != nil {
				of := *one // rows share it
				one = &of
			}
			err = b.take(one, c.err)
		}
		if row.want == "" && err != nil || row.want != "" && !errors.Is(err, row.want) || (b.last != nil && b.last.Progress.Recovered) != row.recovered {
			t.Errorf("%s: %v, %+v", name, err, b.last)
		}
	}
}
