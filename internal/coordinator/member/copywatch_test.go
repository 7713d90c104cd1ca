package member_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/coordinator/member"
)

var start = time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC)

func TestOpened(t *testing.T) {
	type opened struct {
		run   string
		after time.Duration
	}
	const s = time.Second
	for _, tc := range []struct {
		name  string
		opens []opened
		alarm bool
	}{
		{"one process that comes back", []opened{{"a", 0}, {"a", s}, {"a", s}, {"a", s}}, false},
		{"restarts", []opened{{"a", 0}, {"b", s}, {"c", s}, {"d", s}, {"e", s}}, false},
		{"a copy", []opened{{"a", 0}, {"b", 15 * s}, {"a", 15 * s}, {"b", 15 * s}}, true},
		{"three of them", []opened{{"a", 0}, {"b", s}, {"c", s}, {"a", s}, {"b", s}}, true},
		{"a copy that comes once", []opened{{"a", 0}, {"b", s}, {"a", s}}, false},
		{"a copy, and each comes back twice", []opened{{"a", 0}, {"b", s}, {"b", s}, {"a", s}, {"a", s}, {"b", s}}, true},
		{"a copy of what ran for long", []opened{{"a", 0}, {"b", 1000 * s}, {"a", 15 * s}, {"b", 15 * s}}, true},
		{"seldom", []opened{{"a", 0}, {"b", 70 * s}, {"a", 70 * s}, {"b", 70 * s}}, false},
		{"no word of its process", []opened{{"", 0}, {"a", s}, {"", s}, {"b", s}, {"", s}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var w member.CopyWatch
			now, alarm := start, false
			for _, o := range tc.opens {
				now = now.Add(o.after)
				_, alarm = w.Opened("data/a", o.run, "at "+o.run, now)
				if _, other := w.Opened("data/other", o.run, "", now); other && !alarm {
					t.Error("members are mixed up")
				}
			}
			if alarm != tc.alarm {
				t.Errorf("alarm %t, want %t", alarm, tc.alarm)
			}
			members, at := w.Alarms(now)
			if want := tc.alarm; slices.Contains(members, "data/a") != want || (at["data/a"].At == now) != want {
				t.Errorf("standing alarms %v", at)
			}
			if members, _ := w.Alarms(now.Add(member.Quiet)); len(members) != 0 {
				t.Errorf("alarms stand for ever: %v", members)
			}
			w.Forget("data/a")
			if members, _ := w.Alarms(now); slices.Contains(members, "data/a") {
				t.Error("the alarm of who is gone stands")
			}
		})
	}
}

// For anything that one machine does, there is no alarm: its process ends, and never
// comes back as one of before.
func TestOneMachineRaisesNoAlarm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w member.CopyWatch
		now, process := start, 0
		for range 1000 {
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				process++
			}
			if _, alarm := w.Opened("data/a", fmt.Sprint(process), "", now); alarm {
				t.Fatalf("an alarm at %v, in process %d", now, process)
			}
		}
	})
}

// A process that presents an earlier key is a second machine at once, for as long as it goes on.
func TestOlderKey(t *testing.T) {
	var w member.CopyWatch
	if a := w.OlderKey("data/a", "192.0.2.1:9", start); !a.First || !slices.Equal(a.From, []string{"192.0.2.1:9"}) {
		t.Errorf("the first: %+v", a)
	}
	if a := w.OlderKey("data/a", "192.0.2.1:9", start.Add(time.Minute)); a.First {
		t.Errorf("the second: %+v", a)
	}
	w.Opened("data/b", "run", "", start)
	last := start.Add(time.Minute)
	if members, at := w.OlderKeys(last); !slices.Equal(members, []string{"data/a"}) || at["data/a"].At != last {
		t.Errorf("earlier keys of %v at %v", members, at)
	}
	if members, _ := w.Alarms(last); len(members) != 0 {
		t.Errorf("two processes of %v", members)
	}
	if members, _ := w.OlderKeys(last.Add(member.Quiet)); len(members) != 0 {
		t.Errorf("told for ever: %v", members)
	}
	w.Forget("data/a")
	if members, _ := w.OlderKeys(last); len(members) != 0 {
		t.Errorf("the alarm of who is gone stands: %v", members)
	}
}

// An alarm names the addresses of the two, says once that it is the first, and is as long
// whoever comes from wherever.
func TestAlarmNamesBoth(t *testing.T) {
	var w member.CopyWatch
	now, first := start, 0
	for i := range 200 {
		now = now.Add(10 * time.Second)
		run, from := "a", "192.0.2.1:7"
		if i%2 == 1 {
			run, from = "b", fmt.Sprintf("198.51.100.%d:9%s", i, strings.Repeat("9", i))
		}
		a, alarm := w.Opened("data/a", run, from, now)
		if alarm != (i >= 3) {
			t.Fatalf("stream %d: alarm %t", i, alarm)
		}
		if !alarm {
			continue
		}
		if a.First {
			first++
		}
		if len(a.From) != 2 || !slices.Contains(a.From, "192.0.2.1:7") || len(a.From[0]) > 64 || len(a.From[1]) > 64 {
			t.Fatalf("stream %d is from %v", i, a.From)
		}
	}
	if first != 1 {
		t.Errorf("%d were the first", first)
	}
}

// Who starts a copy again and again hides it neither from the machine that it was copied from
// nor behind it.
func TestManyRunsHideNothing(t *testing.T) {
	var w member.CopyWatch
	now, alarmed := start, false
	for i := range 6 {
		now = now.Add(time.Second)
		_, alarm := w.Opened("data/a", "genuine", "", now)
		alarmed = alarmed || alarm
		for j := range 15 {
			w.Opened("data/a", fmt.Sprint(i, "/", j), "", now)
		}
	}
	if !alarmed {
		t.Error("no alarm")
	}
}
