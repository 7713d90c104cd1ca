// This file makes the one line with which fealty status begins: what a look at the cluster came to,
// and since when.

package coordinator

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/platform/watch"
)

// The states of a verdict; see fealtyv1.Verdict. That of a coordinator that is not ready is
// its phase.
const (
	verdictWell         = "well"
	verdictSettling     = "settling"
	verdictUnknown      = "unknown"
	verdictAttention    = "attention"
	verdictUnchangeable = "unchangeable"
)

// lookPause is from one look of a coordinator at its cluster to the next, if nobody asks.
const lookPause = 15 * time.Second

// verdicts remembers since when the verdict is what it is. Its zero value has none yet; its
// methods may be called by several goroutines at once.
type verdicts struct {
	mu    sync.Mutex
	state string    // of the newest verdict; guarded by mu
	since time.Time // guarded by mu
}

// judge returns the verdict on what a look at now came to, of which unknown is what is not
// known. "Nothing needs attention" is a promise: nothing is well of which a part is unknown.
func (v *verdicts) judge(st *fealtyv1.GetStatusResponse, unknown doubt, now time.Time) *fealtyv1.Verdict {
	out := &fealtyv1.Verdict{State: verdictOf(st, unknown), Unknown: unknown.clauses}
	if out.State == verdictSettling {
		out.SettlesIn = durationpb.New(unknown.settles)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != out.State || v.since.After(now) { // the clock went back
		v.state, v.since = out.State, now
	}
	out.Since = timestamppb.New(v.since)
	return out
}

func verdictOf(st *fealtyv1.GetStatusResponse, unknown doubt) string {
	if phase := st.GetPhase(); phase != authority.Ready.String() {
		return phase
	}
	attention := false
	for _, f := range st.GetFindings() {
		if f.GetSeverity() == finding.Critical && changesNothing(errcode.Code(f.GetCode())) && f.GetCoordinator() == "" {
			return verdictUnchangeable
		}
		attention = attention || f.GetSeverity() != finding.Info
	}
	switch {
	case attention:
		return verdictAttention
	case len(unknown.clauses) > 0 && unknown.settles > 0:
		return verdictSettling
	case len(unknown.clauses) > 0:
		return verdictUnknown
	}
	return verdictWell
}

// changesNothing reports whether a critical finding of the code says that every change is
// refused.
func changesNothing(code errcode.Code) bool {
	switch code {
	case errcode.StoreWentBack, errcode.StoreFull, errcode.StoreRefuses, errcode.StoreUnreachable,
		errcode.HistoryInvalid:
		return true
	}
	return false
}

// doubt is what a look could not find out.
type doubt struct {
	clauses []string      // one for each thing
	settles time.Duration // after which what nobody said is so; 0: it is long over
}

// othersUnknown is what is not known where neither the store nor a coordinator told of the others.
const othersUnknown = "which other coordinators there are"

// unknown returns what a look left open. A member that no stream is heard of is one of them
// until it counts as silent: nobody knows yet whether it comes back.
func (c *Coordinator) unknown(s *authority.State, st *fealtyv1.GetStatusResponse) (out doubt) {
	if s.Phase != authority.Ready {
		return doubt{}
	}
	var away []string
	away, out.settles = c.parts.Peers.NotHeard()
	if _, lost := c.parts.Peers.Unanswered(); lost {
		out.clauses = append(out.clauses, othersUnknown)
	}
	if len(away) > 0 {
		out.clauses = append(out.clauses, "whether "+strings.Join(away[:min(len(away), finding.FoldAbove)], ", ")+
			more(len(away)-finding.FoldAbove)+" can be reached")
	}
	x := st.GetContacts()
	if n := x.GetUnknown(); n > 0 {
		out.clauses = append(out.clauses, "whether "+humanize.Plural(n, "node", "nodes")+" can be reached")
	}
	if n := x.GetNotHeard(); n > 0 {
		out.clauses = append(out.clauses, "whether "+humanize.Plural(n, "node", "nodes")+" away will be back")
		out.settles = max(out.settles, peer.SilentAfter-c.now().Sub(c.parts.Membership.ListensSince()))
	}
	return out
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// followVerdict looks at the cluster again and again until ctx ends, so that since when it is
// as it is was seen, and not guessed when somebody asks.
func (c *Coordinator) followVerdict(ctx context.Context) error {
	for {
		_, _, _ = c.look(ctx, c.parts.Head.State(), member.Page{}) // who asks is told what fails
		if err := watch.Sleep(ctx, lookPause); err != nil {
			return err
		}
	}
}
