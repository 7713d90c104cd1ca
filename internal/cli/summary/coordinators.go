package summary

import (
	"fmt"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// Leading says who leads, and how many coordinators may still be lost.
func Leading(st *fealtyv1.GetStatusResponse, now time.Time) string {
	left, stopped := 0, 0
	for _, r := range st.GetReplicas() {
		switch {
		case r.GetStopped():
			stopped++
		case r.GetPhase() == "ready" && (r.GetSelf() || r.GetUnheardFor().AsDuration() < replicaUnheard):
			left++
		}
	}
	var out string
	if l := st.GetLeader(); l.GetTerm() > 0 {
		out = fmt.Sprintf("%s leads, term %d, since %s; ", l.GetName(), l.GetTerm(), humanize.Relative(l.GetSince().AsTime(),
			now))
	} else if l != nil {
		out = "nobody leads, for " + humanize.Span(l.GetNobodyFor().AsDuration()) + "; "
	}
	all := len(st.GetReplicas())
	switch {
	case all == 1 && left == 1:
		return out + "it is the only one: while it is away nobody joins or is renewed, and nothing is changed"
	case left == 1:
		out += fmt.Sprintf("1 of %d is left: the next loss stops joins, renewals and changes", all)
	case left == 0:
		out += fmt.Sprintf("0 of %d are ready", all)
	default:
		out += fmt.Sprintf("%d of %d are ready: %d more may be lost", left, all, left-1)
	}
	if stopped > 0 {
		out += fmt.Sprintf(" (%d stopped in order)", stopped)
	}
	return out
}

// replicaQuiet is from when on a coordinator is quiet that nobody asked: it writes each
// minute. replicaUnheard is from when on one is that does not answer when it is asked.
const (
	replicaQuiet   = 3 * time.Minute
	replicaUnheard = 10 * time.Second
)

// Coordinator says in what condition a coordinator is, and when it was heard last.
func Coordinator(r *fealtyv1.Replica, now time.Time) (is Condition, heard time.Time) {
	is, heard = Condition{r.GetPhase(), "●", term.Green}, r.GetHeardAt().AsTime()
	asked := r.GetUnheardFor() != nil
	if asked {
		heard = now.Add(-r.GetUnheardFor().AsDuration())
	}
	switch {
	case r.GetStopped():
		is = Condition{"stopped", "◌", term.Dim}
	case asked && r.GetUnheardFor().AsDuration() >= replicaUnheard:
		is = Condition{"not heard, was " + r.GetPhase(), "▲", term.Amber}
	case !asked && now.Sub(heard) > replicaQuiet:
		is = Condition{"quiet, was " + r.GetPhase(), "▲", term.Amber}
	case r.GetPhase() != "ready":
		is = Condition{r.GetPhase(), "▲", term.Amber}
	}
	return is, heard
}
