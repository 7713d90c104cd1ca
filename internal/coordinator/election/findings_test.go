package election // inside: no store gives a term that is not above those of before when a test wants it

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
)

// Where nobody may lead, as the store gives terms that are not above those of before, the
// finding says so, and what helps.
func TestLowTermsAreAFinding(t *testing.T) {
	e := &Election{lead: &lead{}, cfg: Config{
		Head:    authority.NewHead(authority.HeadConfig{}),
		Now:     time.Now,
		Elapsed: func() time.Duration { return time.Hour },
		StoreGuard: storeguard.New(storeguard.Config{
			FS: durabletest.NewDisk().FS(), Now: time.Now, Log: slog.New(slog.DiscardHandler),
		}),
	}}
	e.lead.c = e
	for low, want := range map[bool]string{true: "its revisions were not raised", false: "none that is ready can reach the store"} {
		e.lead.view.Store(&leadView{ledUntil: time.Hour - NobodyAfter, low: low})
		got := e.Findings()
		if len(got) != 1 || got[0].GetCode() != string(errcode.NobodyLeads) || !strings.Contains(got[0].GetSummary(), want) {
			t.Errorf("low %v: %v, want %q", low, got, want)
		}
		if critical := got[0].GetSeverity() == finding.Critical; critical != low { // else joins are served
			t.Errorf("low %v: it is %s", low, got[0].GetSeverity())
		}
	}
}
