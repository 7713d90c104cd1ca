package agent

import (
	"context"
	"testing"

	"github.com/fealty-io/fealty/internal/node/state"
)

// Of many changes while the program runs only the last counts.
func TestHookIsCoalesced(t *testing.T) {
	h := newHooks([]string{"x"})
	for range 100 {
		h.changed(state.Scopes[:]...)
	}
	for _, want := range state.Scopes {
		if got, ok := h.take(); !ok || got != want {
			t.Fatalf("%s, %v, want %s", got, ok, want)
		}
	}
	if got, ok := h.take(); ok {
		t.Errorf("%s is due again", got)
	}
	h = newHooks([]string{"/bin/sh", "-c", "yes | head -c 100000; exit 3"})
	out, err := h.run(context.Background(), nil)
	if err == nil || len(out) > hookOutput {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}
