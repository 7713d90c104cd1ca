package client // where a call goes next is decided on what no caller sees

import (
	"testing"

	"github.com/fealty-io/fealty/internal/errcode"
)

// A question to a coordinator that cannot read its store is asked of the next; a change
// is not tried twice.
func TestStoreElsewhere(t *testing.T) {
	for _, changes := range []bool{false, true} {
		if got := (&Line{}).elsewhere(true, changes, errcode.New(errcode.StoreUnreachable)); got == changes {
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
		{"not reached", false, true, errcode.New(errcode.Unreachable), true},
		{"not trusted", false, true, errcode.New(errcode.PeerUntrusted), true},
		{"recovering", true, true, errcode.New(errcode.RecoveryMode), true},
		{"done before it was recovering", true, true, errcode.New(errcode.DoneNotInForce), false},
		{"refused", true, false, errcode.New(errcode.Denied), false},
		{"unknown", true, true, errcode.New(errcode.OutcomeUnknown), false},
		{"a change that was lost", true, true, errcode.New(errcode.Unreachable), false},
		{"a question that was lost", true, false, errcode.New(errcode.Unreachable), true},
	} {
		if got := (&Line{}).elsewhere(tt.sent, tt.changes, tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	// A change that was sent is made again after two answers alone: those of a coordinator
	// which did nothing.
	for _, code := range errcode.Codes() {
		if got := (&Line{}).elsewhere(true, true, errcode.New(code)); got != (code == errcode.RecoveryMode || code == errcode.HeadNotFollowed) {
			t.Errorf("after %s a change is made again elsewhere: %v", code, got)
		}
	}
}
