package storeguard_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store/embedded"
)

type ended embedded.Ends

func (e ended) Ends() embedded.Ends { return embedded.Ends(e) }

// That the process of an embedded store died is told for an hour, and nothing where none did, or there is none.
func TestProcessFindings(t *testing.T) {
	now := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	for name, row := range map[string]struct {
		process storeguard.Process
		told    bool
	}{
		"no process":             {nil, false},
		"never":                  {ended{}, false},
		"just now":               {ended{Count: 3, Last: now, Said: "signal: killed"}, true},
		"an hour ago":            {ended{Count: 3, Last: now.Add(-time.Hour), Said: "signal: killed"}, true},
		"more than an hour ago":  {ended{Count: 3, Last: now.Add(-time.Hour - time.Second), Said: "signal: killed"}, false},
		"by a clock that is off": {ended{Count: 3, Last: now.Add(time.Hour), Said: "signal: killed"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := storeguard.New(storeguard.Config{Now: func() time.Time { return now }, Process: row.process})
			found := g.ProcessFindings()
			if !row.told {
				if len(found) > 0 {
					t.Errorf("found %v", found)
				}
				return
			}
			if len(found) != 1 || found[0].GetCode() != string(errcode.StoreProcessEnded) ||
				!strings.Contains(found[0].GetSummary(), "3 times") || !strings.Contains(found[0].GetSummary(), "signal: killed") {
				t.Errorf("found %v", found)
			}
		})
	}
}
