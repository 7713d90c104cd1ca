package audit_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/audit"
	"github.com/fealty-io/fealty/test/alivetest"
)

// The question whether journals are alive waits while their lock is held.
func TestAlive(t *testing.T) {
	j := audit.NewJournals(audit.JournalsConfig{})
	alivetest.Waits(t, "(*Journals).Alive", j.Alive, j, "mu")
}
