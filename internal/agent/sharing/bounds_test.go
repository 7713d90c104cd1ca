package sharing_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/agent/sharing"
)

// A member that is refused because all others were given too much is given its own once there is room.
func TestNobodyPaysForOthers(t *testing.T) {
	l, now := sharing.NewBounds(), time.Unix(1e9, 0)
	for i := range 8 {
		if err := l.Give(fmt.Sprintf("data/other-%d", i), 8<<20, now); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if l.Give("data/a", 8<<20, now) == nil {
			t.Fatal("more is given than all may be")
		}
	}
	now = now.Add(10 * time.Second)
	for i := range 2 {
		if err := l.Give("data/a", 8<<20, now.Add(time.Duration(i)*4*time.Second)); err != nil {
			t.Errorf("time %d: %v", i+1, err)
		}
	}
	if l.Give("data/a", 8<<20, now.Add(20*time.Second)) == nil {
		t.Error("a member is given more than one may be")
	}
}

// A member that leaves the answers it asked for holds no place for a while; one may be bad luck.
func TestAnswersThatAreLeft(t *testing.T) {
	l, now := sharing.NewBounds(), time.Unix(1e9, 0)
	asks := func(member string, at time.Duration) error {
		end, err := l.Begin(member, now.Add(at))
		if err == nil {
			end()
		}
		return err
	}
	l.Untaken("data/a", now)
	if err := asks("data/a", time.Second); err != nil {
		t.Errorf("after one: %v", err)
	}
	l.Untaken("data/a", now.Add(time.Second))
	for _, at := range []time.Duration{time.Second, sharing.UntakenEvery - 2*time.Second} {
		if asks("data/a", at) == nil {
			t.Errorf("after two it is answered again, %v later", at)
		}
		if err := asks("data/b", at); err != nil {
			t.Errorf("another one: %v", err)
		}
	}
	if err := asks("data/a", sharing.UntakenEvery+2*time.Second); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}
