package record_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
)

func TestCheckReason(t *testing.T) {
	for _, tc := range []struct {
		name     string
		reason   string
		required bool
		want     error
	}{
		{"none is asked for", "", false, nil},
		{"one is asked for", "", true, errcode.RequestField},
		{"the longest", strings.Repeat("x", record.MaxReasonBytes), true, nil},
		{"one that is too long", strings.Repeat("x", record.MaxReasonBytes+1), false, errcode.RequestField},
	} {
		if err := record.CheckReason(tc.reason, tc.required); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
}

// The audit log names whoever proved an identity by it, and the others by the way they came.
func TestActor(t *testing.T) {
	if got := record.Actor(t.Context()); got != "setup token" {
		t.Errorf("a call without a peer is by %q", got)
	}
	local := identity.NewContext(t.Context(), identity.Peer{Local: &identity.Local{UID: 7}})
	if got := record.Actor(local); got != "local uid 7" {
		t.Errorf("a call on the local socket is by %q", got)
	}
}
