package storeguard

import (
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/store/embedded"
)

// A Process is that of an embedded store.
type Process interface {
	// Ends returns how often it ended that nobody told to.
	Ends() embedded.Ends
}

// endToldFor is how long it is a finding that a process ended.
const endToldFor = time.Hour

// ProcessFindings says that the process of an embedded store ended of late; nil if it did not.
func (g *Guard) ProcessFindings() []*fealtyv1.Finding {
	if g.cfg.Process == nil {
		return nil
	}
	ends := g.cfg.Process.Ends()
	if ends.Count == 0 || g.cfg.Now().Sub(ends.Last) > endToldFor {
		return nil
	}
	return []*fealtyv1.Finding{finding.New(errcode.StoreProcessEnded, "times", humanize.Plural(ends.Count, "time", "times"),
		"last", ends.Last.UTC().Format(time.RFC3339), "cause", ends.Said)}
}
