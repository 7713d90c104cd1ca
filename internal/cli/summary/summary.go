// Package summary says in words how a fleet is: the verdict, who leads and what may still be lost, and in what
// condition its members and coordinators are. The commands and the dashboard say it by this package, so that they say
// the same. It asks nobody: it is given what a coordinator answered.
package summary

import (
	"fmt"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/coordinator/member/condition"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// VerdictOf returns the verdict on a fleet. A coordinator of an earlier release does not say it.
func VerdictOf(st *fealtyv1.GetStatusResponse) *fealtyv1.Verdict {
	if v := st.GetVerdict(); v != nil {
		return v
	}
	v := &fealtyv1.Verdict{State: st.GetPhase()}
	switch x := st.GetContacts(); {
	case st.GetPhase() != "ready":
	case len(st.GetFindings()) > 0:
		v.State = "attention"
	case x.GetUnknown() > 0:
		v.State, v.Unknown = "unknown", []string{"whether " + humanize.Plural(x.GetUnknown(), "node", "nodes") + " can be reached"}
	default:
		v.State = "well"
	}
	return v
}

// Health says how a fleet is, as an exit status.
func Health(st *fealtyv1.GetStatusResponse) errcode.Exit {
	health := errcode.ExitOK
	for _, f := range st.GetFindings() {
		switch f.GetSeverity() {
		case "critical":
			return errcode.ExitUnhealthy
		case "warning":
			health = errcode.ExitDegraded
		}
	}
	if st.GetPhase() != "ready" {
		return errcode.ExitUnhealthy
	}
	if len(VerdictOf(st).GetUnknown()) > 0 {
		health = errcode.ExitDegraded
	}
	return health
}

// Sentence says in one line how the fleet is, and since when.
func Sentence(st *fealtyv1.GetStatusResponse, now time.Time) string {
	v := VerdictOf(st)
	since := ""
	if at := v.GetSince(); at != nil {
		since = ", since " + command.When(at) + ", " + humanize.Relative(at.AsTime(), now)
	}
	switch st.GetPhase() {
	case "uninitialized":
		return "This coordinator has no cluster yet: it waits for its first manifest."
	case "recovery":
		return command.JoinWords("This coordinator is recovering and changes nothing"+since, ": ", PhaseReason(st)) + "."
	}
	things := humanize.Plural(len(st.GetFindings()), "thing needs", "things need") + " attention"
	out, unread := fmt.Sprintf("Cluster %s is ready", st.GetClusterId()), ""
	if st.GetBaseline() == nil {
		unread = "who its members are is not known now; "
	}
	switch {
	case v.GetState() == "unchangeable":
		return fmt.Sprintf("Nothing can be changed in cluster %s, which serves what it knows: %s%s%s.", st.GetClusterId(),
			unread, things, since)
	case unread != "":
		return out + ", and cannot read its store: " + unread + things + since + "."
	}
	n := Counted(st, now)
	if unknown := st.GetContacts().GetUnknown(); unknown > 0 {
		out += fmt.Sprintf(": %s, at least %d connected and %d unknown", humanize.Plural(n.GetNodes(), "node", "nodes"),
			n.GetConnected(), unknown)
		if who := st.GetContacts().GetUnanswered(); len(who) > 0 {
			out += ", as " + strings.Join(who, ", ") + " did not answer"
		}
	} else {
		out += fmt.Sprintf(": %s, %d connected", humanize.Plural(n.GetNodes(), "node", "nodes"), n.GetConnected())
	}
	switch v.GetState() {
	case "well":
		return out + "; nothing needs attention" + since + "."
	case "settling":
		return out + "; settling, " + humanize.Span(v.GetSettlesIn().AsDuration()) + ": not known is " +
			strings.Join(v.GetUnknown(), "; ") + "."
	case "unknown":
		return out + "; not known is " + strings.Join(v.GetUnknown(), "; ") + since + "."
	}
	return out + "; " + things + since + "."
}

// PhaseReason says why a coordinator is in its phase; empty where a finding says that.
func PhaseReason(st *fealtyv1.GetStatusResponse) string {
	if slices.ContainsFunc(st.GetFindings(), func(f *fealtyv1.Finding) bool {
		return f.GetCode() == string(errcode.RecoveryMode)
	}) {
		return ""
	}
	return st.GetPhaseReason()
}

// Counted counts the members of a fleet. A coordinator of an earlier release does not, and has sent all of them.
func Counted(st *fealtyv1.GetStatusResponse, now time.Time) *fealtyv1.MemberCounts {
	if c := st.GetCounts(); c != nil {
		return c
	}
	return condition.Count(st.GetMembers(), now)
}

// LeastAutonomy says how long every node works without a coordinator, by what the
// nodes themselves reported; "" if none did.
func LeastAutonomy(n *fealtyv1.MemberCounts, now time.Time) string {
	if n.GetLeastAutonomousUntil() == nil {
		return ""
	}
	path, limit := n.GetLeastAutonomous(), n.GetLeastAutonomyLimit()
	if until := n.GetLeastAutonomousUntil().AsTime(); now.Before(until) {
		return "every node for " + humanize.Span(until.Sub(now)) + " at least (" + path + ": " + limit + ")"
	}
	return path + " no longer (" + limit + ")"
}

// FoundBy says which coordinator a finding is of, if it is another one than was asked.
func FoundBy(f *fealtyv1.Finding) string {
	if f.GetCoordinator() == "" {
		return ""
	}
	return "coordinator " + f.GetCoordinator() + " finds: "
}

// BaselineWords says what of the baseline there is, and what is missing.
func BaselineWords(b *fealtyv1.Baseline) string {
	switch {
	case b.GetState() == "": // of an earlier release, which counts who joined
		return fmt.Sprintf("%d of %d data members", b.GetDataMembers(), b.GetNeeded())
	case b.GetNeeded() == 0:
		return fmt.Sprintf("no data members are needed, %d connected", b.GetConnected())
	case b.GetUnknown() > 0:
		return fmt.Sprintf("at least %d of %d data members connected, %d unknown", b.GetConnected(), b.GetNeeded(),
			b.GetUnknown())
	case b.GetMet():
		return fmt.Sprintf("%d of %d data members connected", b.GetConnected(), b.GetNeeded())
	}
	return fmt.Sprintf("%d of %d data members connected, %d missing", b.GetConnected(), b.GetNeeded(),
		b.GetNeeded()-b.GetConnected())
}

// AloneWords says how long a node works without a coordinator.
func AloneWords(until time.Time, limit string, now time.Time) string {
	if !now.Before(until) {
		return "no longer: its time ended " + humanize.Relative(until, now) + " by " + limit
	}
	return "for " + humanize.Span(until.Sub(now)) + ", then " + limit + " ends it"
}
