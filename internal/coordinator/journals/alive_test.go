package journals_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
	"github.com/fealty-io/fealty/internal/coordinator/journals"
)

// The question whether journals are alive waits while their lock is held.
func TestAlive(t *testing.T) {
	j := journals.New(journals.Config{})
	alivetest.Waits(t, "(*Journals).Alive", j.Alive, j, "mu")
}
