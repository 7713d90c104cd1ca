package summary

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/coordinator/member/condition"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// contact says in words whether a coordinator hears of the member: its state may
// hide that.
func contact(m *fealtyv1.Member, now time.Time) string {
	last := ""
	if at := m.GetLive().GetLastReport(); at != nil {
		last = ", reported " + humanize.Relative(at.AsTime(), now)
	}
	switch Contact(m) {
	case Connected:
		return "connected"
	case NotHeard:
		return "not heard" + last
	}
	return "unknown: a coordinator that may hear it did not say" + last
}

// Current says how much of what a member holds is the newest that there is: it is
// fresh by the member's own word. A member without freshness is not counted: a bootstrap that
// the runtime took the place of. Of a member that is not connected nobody knows.
func Current(live *fealtyv1.Live) term.Cell {
	fresh, held := condition.Fresh(live)
	if !live.GetConnected() || held == 0 {
		return term.Txt("-")
	}
	switch text := fmt.Sprintf("%d/%d current", fresh, held); {
	case fresh < held:
		return term.Painted(term.Amber, text)
	default:
		return term.Txt(text)
	}
}

// Versions shows what a member holds as scope and epoch.version.
func Versions(held []*fealtyv1.HeldVersion) string {
	var out []string
	for _, h := range held {
		out = append(out, fmt.Sprintf("%s %d.%d", h.GetScope(), h.GetAuthorityEpoch(), h.GetConfigVersion()))
	}
	return strings.Join(out, ", ")
}

// MemberFacts says what is to be said of a member.
func MemberFacts(m *fealtyv1.Member, now time.Time) term.Facts {
	var f term.Facts
	is, live := Member(m, now), m.GetLive()
	f.Add("member", m.GetSpiffeId())
	f.Paint("state", is.Paint, is.Shape+" "+is.Word)
	if m.GetBanned() {
		f.Add("banned for", m.GetBanReason())
	}
	if m.GetDrainingSince() != nil {
		f.Paint("draining", term.Amber,
			command.JoinWords("since "+command.JoinWords(command.When(m.GetDrainingSince()), " by ",
				m.GetDrainedBy()), ": ", m.GetDrainReason()))
	}
	if is != Certified {
		f.Add("contact", contact(m, now))
	}
	f.Add("svid ends", command.When(m.GetSvidNotAfter())+", "+humanize.Relative(m.GetSvidNotAfter().AsTime(), now))
	f.Add("key", m.GetKeyId())
	f.Add("joined", command.JoinWords(command.When(m.GetJoinedAt()), " by ", m.GetJoinedBy()))
	f.Add("entry", m.GetEntry())
	f.Add("labels", strings.Join(m.GetLabels(), ", "))
	f.Add("reported host", command.JoinWords(m.GetReportedHost(), ", ", m.GetReportedOs()))
	f.Add("reported addresses", strings.Join(m.GetReportedAddresses(), ", "))
	f.Add("joined from", m.GetSeenAddress())
	f.Add("roles", strings.Join(m.GetRoles(), ", "))
	f.Add("organizations", strings.Join(m.GetOrganizations(), ", "))
	f.Add("domains", strings.Join(m.GetDomains(), ", "))
	if live.GetLastReport() != nil {
		f.Add("last report", command.When(live.GetLastReport())+", "+humanize.Relative(live.GetLastReport().AsTime(),
			now))
	}
	if p := live.GetProcess(); p != nil {
		words := "called " + command.When(p.GetLastCall()) + ", " + humanize.Relative(p.GetLastCall().AsTime(), now)
		if p.GetIncarnation() != "" {
			words += fmt.Sprintf("; epoch %d.%d, incarnation %s", p.GetEpoch()>>32, p.GetEpoch()&(1<<32-1),
				p.GetIncarnation())
		}
		f.Add("process", words)
		if p.GetPaused() {
			f.Paint("paused", term.Amber, "it decides, and does nothing, by its own word")
		}
	}
	if live.GetAutonomousUntil() != nil {
		f.Add("works alone", AloneWords(live.GetAutonomousUntil().AsTime(), live.GetAutonomyLimit(), now))
	}
	if at := live.GetSvidNotAfter(); at != nil && !at.AsTime().Equal(m.GetSvidNotAfter().AsTime()) {
		f.Add("uses a svid until", command.When(at))
	}
	for _, p := range LastPeriods(live.GetDegradedPeriods()) {
		f.Paint("degraded", term.Amber, PeriodWords(p, now))
	}
	f.Add("release", live.GetRelease())
	if c := Current(live); c.Text != "-" {
		f.Paint("current", c.Paint, c.Text)
	}
	f.Add("holds", Versions(live.GetHeld()))
	f.Paint("refused", term.Amber, live.GetLastRefusal())
	if problem := live.GetLogProblem(); problem != "" {
		f.Paint("log", term.Amber, fmt.Sprintf("lost since %s, %s left out: %s (%s)",
			command.When(live.GetLogProblemSince()), humanize.Plural(int(live.GetLogDropped()), "line", "lines"), problem,
			errcode.LogFailing))
	}
	return f
}

// shownPeriods is how many times in degraded mode a page shows.
const shownPeriods = 3

// LastPeriods are the newest of them, the newest first.
func LastPeriods(all []*fealtyv1.DegradedPeriod) []*fealtyv1.DegradedPeriod {
	all = slices.Clone(all[max(0, len(all)-shownPeriods):])
	slices.Reverse(all)
	return all
}

// PeriodWords says when a node was in degraded mode, and what its guard was asked.
func PeriodWords(p *fealtyv1.DegradedPeriod, now time.Time) string {
	words := "since " + command.When(p.GetSince()) + ", " + humanize.Relative(p.GetSince().AsTime(), now)
	if p.GetUntil() != nil {
		words = "from " + command.When(p.GetSince()) + " to " + command.When(p.GetUntil())
	}
	if p.GetOverAt() != nil {
		words += "; over at " + command.When(p.GetOverAt()) + " by " + p.GetLimit()
	}
	var permitted, refused []string
	for _, t := range p.GetActions() {
		if t.GetPermitted() > 0 {
			permitted = append(permitted, fmt.Sprintf("%s %d", t.GetAction(), t.GetPermitted()))
		}
		if t.GetRefused() > 0 {
			refused = append(refused, fmt.Sprintf("%s %d", t.GetAction(), t.GetRefused()))
		}
	}
	return command.JoinWords(command.JoinWords(words, "; permitted: ", strings.Join(permitted, ", ")),
		"; refused: ", strings.Join(refused, ", "))
}

// BesideFacts are what coordinators keep of a member beside its record.
func BesideFacts(resp *fealtyv1.GetMemberResponse, now time.Time) term.Facts {
	var f term.Facts
	path := resp.GetMember().GetKind() + "/" + resp.GetMember().GetName()
	for _, p := range resp.GetFenced() {
		f.Paint("fenced", term.Amber, fmt.Sprintf("a process of it acts no more, as another one with its identity is in charge: "+
			"epoch %d.%d, incarnation %s, from %s, told so %s", p.GetEpoch()>>32, p.GetEpoch()&(1<<32-1), p.GetIncarnation(),
			cmp.Or(p.GetFrom(), "an unknown address"), humanize.Relative(p.GetHeardAt().AsTime(), now)))
	}
	for _, d := range resp.GetDomains() {
		switch {
		case d.GetMoving() && d.GetOwner() == path:
			f.Paint("moving", term.Amber, d.GetName()+" goes to "+cmp.Or(d.GetNext(), "nobody")+" when it let go"+command.AtTheLatest(d))
		case d.GetMoving():
			f.Paint("waits for", term.Amber, d.GetName()+" comes from "+d.GetOwner()+" when that let go"+command.AtTheLatest(d))
		case d.GetOwnerProblem() != "":
			f.Paint("owns", term.Amber, d.GetName()+", and is not to be counted on: "+d.GetOwnerProblem())
		}
	}
	for _, clause := range resp.GetUnknown() {
		f.Paint("not known", term.Amber, clause)
	}
	return f
}
