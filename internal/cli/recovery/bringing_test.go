package recovery // what came of a share is decided on types that no other package needs

import (
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/recovery"
)

// A share whose answer was lost was sent all the same: of a coordinator that is ready
// afterwards nobody is told that none was.
func TestSentShareIsNotForgotten(t *testing.T) {
	t.Parallel()
	type came struct {
		one *broughtOne
		err error
	}
	lost := came{&broughtOne{Owner: "bob", Sent: true}, explain.New(explain.Unreachable)}
	unreached := came{&broughtOne{Owner: "bob"}, explain.New(explain.Unreachable)}
	taken := came{&broughtOne{Owner: "bob", Sent: true, Progress: recovery.Progress{Brought: []string{"bob"}, Needed: 2}}, nil}
	ready := came{nil, explain.New(explain.RecoveryNotNeeded)}
	for name, row := range map[string]struct {
		came      []came
		recovered bool
		want      explain.Code // of the last; empty: none
	}{
		"its answer was lost":        {[]came{lost, ready}, true, ""},
		"lost, and not reached then": {[]came{lost, unreached, ready}, true, ""},
		"another owner's was last":   {[]came{taken, ready}, true, ""},
		"it was never reached":       {[]came{unreached, ready}, false, explain.RecoveryNotNeeded},
		"it was ready before":        {[]came{ready}, false, explain.RecoveryNotNeeded},
		"lost once":                  {[]came{lost}, false, explain.Unreachable},
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
