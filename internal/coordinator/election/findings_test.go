package election_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/explain"
)

// Where nobody leads, the finding says why, and what helps. A store that takes no writes comes
// first: by better terms nobody could lead either.
func TestNobodyLeads(t *testing.T) {
	for _, tc := range []struct {
		refuses string
		low     bool
		want    string
	}{
		{"", false, "none that is ready can reach the store"},
		{"", true, "its revisions were not raised"},
		{"its disk is full", false, "its disk is full"},
		{"its disk is full", true, "its disk is full"},
	} {
		got := election.NobodyLeads(90*time.Second, tc.refuses, tc.low)
		if got.GetCode() != string(explain.NobodyLeads) || !strings.Contains(got.GetSummary(), tc.want) ||
			!strings.Contains(got.GetSummary(), "1m30s") {
			t.Errorf("refuses %q, low %v: %v, want %q", tc.refuses, tc.low, got, tc.want)
		}
	}
}
