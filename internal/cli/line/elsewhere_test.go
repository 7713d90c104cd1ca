package line // where a call goes next is decided on what no caller sees

import (
	"testing"

	"github.com/fealty-io/fealty/internal/explain"
)

// A question to a coordinator that cannot read its store is asked of the next; a change
// is not tried twice.
func TestStoreElsewhere(t *testing.T) {
	for _, changes := range []bool{false, true} {
		if got := (&Line{}).elsewhere(true, changes, explain.New(explain.StoreUnreachable)); got == changes {
			t.Errorf("changes %v: %v", changes, got)
		}
	}
}

// Calls go to the next endpoint only where nothing can have happened.
func TestElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name          string
		sent, changes bool
		err           error
		want          bool
	}{
		{"not reached", false, true, explain.New(explain.Unreachable), true},
		{"not trusted", false, true, explain.New(explain.PeerUntrusted), true},
		{"recovering", true, true, explain.New(explain.RecoveryMode), true},
		{"done before it was recovering", true, true, explain.New(explain.DoneNotInForce), false},
		{"refused", true, false, explain.New(explain.Denied), false},
		{"unknown", true, true, explain.New(explain.OutcomeUnknown), false},
		{"a change that was lost", true, true, explain.New(explain.Unreachable), false},
		{"a question that was lost", true, false, explain.New(explain.Unreachable), true},
	} {
		if got := (&Line{}).elsewhere(tt.sent, tt.changes, tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	// A change that was sent is made again after two answers alone: those of a coordinator
	// which did nothing.
	for _, code := range explain.Codes() {
		if got := (&Line{}).elsewhere(true, true, explain.New(code)); got != (code == explain.RecoveryMode || code == explain.HeadNotFollowed) {
			t.Errorf("after %s a change is made again elsewhere: %v", code, got)
		}
	}
}
