package member_test

import (
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/member"
)

// A count is of one name, and of connections that ended after the mark or the time.
func TestLog(t *testing.T) {
	var l member.ClosedLog
	at := time.Unix(1000, 0)
	if l.After("a", 0) != 0 || l.Since("a", at) != 0 {
		t.Error("something was counted before anything ended")
	}
	l.Add("a", at)
	mark := l.Mark()
	l.Add("b", at.Add(time.Second))
	l.Add("a", at.Add(2*time.Second))
	for _, tc := range []struct {
		what string
		got  uint32
		want uint32
	}{
		{"a in all", l.After("a", 0), 2},
		{"a after the mark", l.After("a", mark), 1},
		{"b after the mark", l.After("b", mark), 1},
		{"a from the first on", l.Since("a", at), 2},
		{"a later", l.Since("a", at.Add(time.Second)), 1},
		{"a after all", l.Since("a", at.Add(time.Minute)), 0},
		{"nobody", l.After("c", 0), 0},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %d, want %d", tc.what, tc.got, tc.want)
		}
	}
}

// However many connections end, no more than Kept are held, and the newest are.
func TestLogIsBounded(t *testing.T) {
	var l member.ClosedLog
	at := time.Unix(1000, 0)
	l.Add("first", at)
	mark := l.Mark()
	for range member.MaxClosed {
		l.Add("a", at)
	}
	if got := l.After("a", mark); got != member.MaxClosed {
		t.Errorf("%d are counted, want %d", got, member.MaxClosed)
	}
	if l.After("first", 0) != 0 {
		t.Error("more is held than Kept")
	}
	l.Add("last", at)
	if l.After("last", l.Mark()-1) != 1 || l.After("a", mark) != member.MaxClosed-1 {
		t.Error("the newest is not counted, or the oldest still is")
	}
}
