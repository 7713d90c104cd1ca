package peer_test

import (
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/peer"
)

// beat is between two questions in these tests.
const beat = 3 * time.Second

// ask plays rounds of questions from from on, at the end of which it is until, and returns
// who is missed then.
func ask(w *peer.PresenceWatch, from, until time.Duration, answers bool) []peer.Missed {
	for at := from; at <= until; at += beat {
		if answers {
			w.Heard("b", at)
		} else {
			w.Unanswered("b")
		}
	}
	return w.Missed(until)
}

// listening returns a watch that listens for long enough to miss somebody, and until when
// it heard b.
func listening() (*peer.PresenceWatch, time.Duration) {
	w := &peer.PresenceWatch{}
	w.Listen(0)
	w.Expect([]peer.Coordinator{{Key: "b", Name: "coordinator-2", Revision: 1}}, 0)
	ask(w, 0, peer.Settle, true)
	return w, peer.Settle
}

func TestMissed(t *testing.T) {
	t.Parallel()
	b := peer.Coordinator{Key: "b", Name: "coordinator-2", Revision: 1}
	for name, tc := range map[string]struct {
		change func(w *peer.PresenceWatch, at time.Duration) // before the questions that go unanswered
		last   time.Duration                                 // how long they do
		want   bool
	}{
		"after ten seconds": {nil, peer.After, true},
		"a moment before":   {nil, peer.After - 1, false},
		"it said that it stops": {func(w *peer.PresenceWatch, at time.Duration) {
			w.Expect([]peer.Coordinator{{Key: "b", Stopped: true}}, at)
		}, time.Hour, false},
		"it is admitted no more":     {func(w *peer.PresenceWatch, at time.Duration) { w.Expect(nil, at) }, time.Hour, false},
		"who asks began just now":    {func(w *peer.PresenceWatch, at time.Duration) { w.Listen(at) }, peer.Settle - 1, false},
		"who asks began a while ago": {func(w *peer.PresenceWatch, at time.Duration) { w.Listen(at) }, peer.Settle, true},
		"its record is another one": {func(w *peer.PresenceWatch, at time.Duration) {
			again := b
			again.Revision++
			w.Expect([]peer.Coordinator{again}, at)
		}, peer.After, true},
	} {
		w, at := listening()
		if tc.change != nil {
			tc.change(w, at)
		}
		if got := ask(w, at+1, at+tc.last, false); (len(got) == 1) != tc.want {
			t.Errorf("%s: %+v are missed", name, got)
		}
	}
}

// A process that slept for an hour asked nobody in it.
func TestSleepMissesNobody(t *testing.T) {
	t.Parallel()
	w, at := listening()
	at += time.Hour
	if got := w.Missed(at); len(got) > 0 || w.Gone("b", at) {
		t.Errorf("after a sleep %+v are missed", got)
	}
	w.Unanswered("b") // the question that was under way
	if got := w.Missed(at); len(got) > 0 {
		t.Errorf("after a question that the sleep cut off %+v are missed", got)
	}
	w.Heard("b", at)
	if got := ask(w, at, at+peer.After, true); len(got) > 0 {
		t.Errorf("after an answer %+v are missed", got)
	}
}

// One that comes back after it stopped is given its time, and what it was before counts
// no more.
func TestBackAfterStop(t *testing.T) {
	t.Parallel()
	w, at := listening()
	at += time.Hour
	w.Expect([]peer.Coordinator{{Key: "b", Revision: 2, Stopped: true}}, at)
	if _, expected := w.Silent("b", at); expected {
		t.Error("it stopped, and is expected")
	}
	w.Expect([]peer.Coordinator{{Key: "b", Revision: 3}}, at)
	if got := ask(w, at, at+peer.After-1, false); len(got) > 0 {
		t.Errorf("%+v are missed", got)
	}
	got := ask(w, at, at+peer.After, false)
	if len(got) != 1 || got[0].Ever || !got[0].Writes || got[0].For != peer.After {
		t.Errorf("%+v are missed", got)
	}
	if got := w.Missed(at + peer.Writes); len(got) != 1 || got[0].Writes {
		t.Errorf("%+v are missed long after its record", got)
	}
}

// A thing that nobody was asked is not known, and alarms nobody.
func TestWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		connected, all bool
		want           peer.Contact
	}{{true, true, peer.Connected}, {true, false, peer.Connected}, {false, true, peer.NotHeard}, {false, false, peer.Unknown}} {
		if got := peer.ContactOf(tc.connected, tc.all); got != tc.want {
			t.Errorf("connected %v, all answered %v: %s", tc.connected, tc.all, got)
		}
	}
	for _, tc := range []struct {
		needed, connected, unknown uint32
		want                       peer.PresenceState
	}{
		{3, 3, 0, peer.Met}, {3, 3, 9, peer.Met}, {3, 2, 0, peer.NotMet}, {3, 2, 1, peer.NotKnown},
		{3, 0, 2, peer.NotMet}, {0, 0, 0, peer.Met}, {1, 0, 0, peer.NotMet},
	} {
		if got := peer.Enough(tc.needed, tc.connected, tc.unknown); got != tc.want {
			t.Errorf("%d needed, %d connected, %d unknown: %s", tc.needed, tc.connected, tc.unknown, got)
		}
	}
}
