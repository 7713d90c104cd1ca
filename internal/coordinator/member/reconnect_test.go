package member_test

import (
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/member"
)

// A member that is short of time comes first, a few at a time, and nobody is told over
// and over.
func TestTell(t *testing.T) {
	now := time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC)
	var l member.ReconnectList
	told := func(c *member.ReconnectWait) bool {
		select {
		case <-c.Now():
			return true
		default:
			return false
		}
	}
	if n := l.Tell(now, 2, time.Minute); n != 0 {
		t.Errorf("%d are told of nobody", n)
	}
	late, first, second := l.Add(now.Add(time.Hour)), l.Add(now.Add(time.Minute)), l.Add(now.Add(2*time.Minute))
	gone := l.Add(now)
	l.Remove(gone)
	l.Remove(nil)
	if n := l.Tell(now, 2, time.Minute); n != 2 || !told(first) || !told(second) || told(late) || told(gone) {
		t.Errorf("%d were told, and not the two that are short of time", n)
	}
	if n := l.Tell(now.Add(time.Second), 2, time.Minute); n != 1 || !told(late) || told(first) {
		t.Errorf("%d were told in the second round", n)
	}
	if n := l.Tell(now.Add(2*time.Second), 2, time.Minute); n != 0 {
		t.Errorf("%d were told again at once", n)
	}
	if n := l.Tell(now.Add(time.Minute), 5, time.Minute); n != 2 || !told(first) || l.Len() != 3 {
		t.Errorf("%d were told again after a minute", n)
	}
}
