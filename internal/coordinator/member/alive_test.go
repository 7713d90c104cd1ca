package member_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/test/alivetest"
)

// The question whether the roster is alive waits while its lock is held.
func TestAlive(t *testing.T) {
	x := member.NewRoster()
	alivetest.Waits(t, "(*Roster).Alive", x.Alive, x, "mu")
}
