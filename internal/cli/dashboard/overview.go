package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/dashboard/markup"
	"github.com/fealty-io/fealty/internal/cli/summary"
	"github.com/fealty-io/fealty/internal/coordinator/member/condition"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// How much of each the first page shows.
const (
	shownFindings     = 5
	shownCoordinators = 32
	shownExpiries     = 5
	shownEntries      = 8
)

// overview is the first page: how the fleet is, what to do first, and what runs out next.
func (v *view) overview() page {
	p := page{title: "Overview"}
	st := v.st.value
	if !v.st.known() {
		p.body = parts{el("section", attr("id", "verdict"), class("verdict quiet"), attr("data-live", ""),
			el("h1", text("? How the fleet is, is not known")),
			el("p", text("No coordinator has answered since this dashboard was started.")))}
		return p
	}
	p.body = parts{v.verdict(st), v.attention(st), v.cards(st), el("div", class("columns"), v.coordinators(st), v.expiries(st)),
		v.needSomebody(st), v.lastEntries()}
	return p
}

// verdict says in one sentence how the fleet is.
func (v *view) verdict(st *fealtyv1.GetStatusResponse) markup.Part {
	look, shape, when := "ok", "●", ""
	switch {
	case v.st.err != nil || v.st.late(v.source.now()):
		look, shape, when = "quiet", "?", "When it was last seen: "
	case summary.Health(st) == errcode.ExitUnhealthy:
		look, shape = "bad", "✖"
	case summary.Health(st) != errcode.ExitOK:
		look, shape = "warn", "▲"
	}
	who := "a coordinator"
	for _, r := range st.GetReplicas() {
		if r.GetSelf() {
			who = r.GetName()
		}
	}
	return el("section", attr("id", "verdict"), class("verdict "+look), attr("data-live", ""),
		el("h1", el("span", attr("aria-hidden", "true"), text(shape+" ")), text(when+summary.Sentence(st, v.now))),
		el("p", text("As "+who+" saw it "), v.age(st.GetNow().AsTime()), text(".")))
}

// attention shows the causes that need somebody, the most urgent first, each with what to do.
func (v *view) attention(st *fealtyv1.GetStatusResponse) markup.Part {
	all := st.GetFindings()
	if len(all) == 0 {
		return el("section", attr("id", "attention"), attr("data-live", ""), attr("hidden", ""))
	}
	list := parts{class("findings")}
	for _, f := range all[:min(len(all), shownFindings)] {
		look, shape := "warn", "▲"
		switch f.GetSeverity() {
		case "critical":
			look, shape = "bad", "✖"
		case "info":
			look, shape = "quiet", "·"
		}
		list = append(list, el("li", class(look),
			el("p", el("span", class("state "+look), el("span", attr("aria-hidden", "true"), text(shape)), text(" "+f.GetSeverity())),
				text(" "), v.code(f.GetCode()), text(" "+summary.FoundBy(f)), v.commands(f.GetSummary())),
			el("p", class("do"), el("span", text("do ")), v.commands(f.GetRemedy()))))
	}
	body := parts{el("ol", list...)}
	if more := len(all) - shownFindings; more > 0 {
		body = append(body, el("p", v.commands(fmt.Sprintf("and %d more: fealty status", more))))
	}
	return section("attention", "Needs attention", body...)
}

// card is one number with what it says.
func card(look, number, what string, more ...markup.Part) markup.Part {
	return el("li", class("card "+look), el("p", class("number"), text(number)), el("p", class("what"), text(what)),
		el("p", append(parts{class("more")}, more...)...))
}

// cards are the four numbers that people look at first.
func (v *view) cards(st *fealtyv1.GetStatusResponse) markup.Part {
	seen := parts{text("seen "), v.age(st.GetNow().AsTime())}
	n := summary.Counted(st, v.now)
	ready, all := 0, 0
	for _, r := range st.GetReplicas() {
		if is, _ := summary.Coordinator(r, v.now); is.Word == "ready" {
			ready++
		}
		all++
	}
	look := func(ok bool) string {
		if ok {
			return "ok"
		}
		return "warn"
	}
	may := "none may be lost"
	if ready > 1 {
		may = fmt.Sprintf("%d more may be lost", ready-1)
	}
	list := parts{class("cards"),
		card(look(ready == all && ready > 1 && st.GetLeader().GetTerm() > 0), fmt.Sprintf("%d of %d", ready, all),
			"coordinators ready, "+may, seen...)}
	connected := fmt.Sprintf("%d of %d", n.GetConnected(), n.GetNodes())
	if unknown := st.GetContacts().GetUnknown(); unknown > 0 {
		connected = "≥ " + connected
	}
	list = append(list, card(look(n.GetConnected() == n.GetNodes()), connected, "nodes connected", seen...))
	switch until := n.GetLeastAutonomousUntil(); {
	case until == nil:
		list = append(list, card("quiet", "unknown", "how long nodes work alone: none has said", seen...))
	case !v.now.Before(until.AsTime()):
		list = append(list, card("bad", "over", n.GetLeastAutonomous()+" works alone no longer ("+n.GetLeastAutonomyLimit()+")", seen...))
	default:
		list = append(list, card("ok", humanize.Span(until.AsTime().Sub(v.now)),
			"every node works alone that long at least ("+n.GetLeastAutonomous()+": "+n.GetLeastAutonomyLimit()+")", seen...))
	}
	if u := st.GetUpkeep(); u == nil {
		list = append(list, card("quiet", "unknown", "when the last backup was made", seen...))
	} else {
		number, backup := "never", "warn"
		switch at := u.GetBackupAt(); {
		case at != nil:
			number, backup = humanize.Relative(at.AsTime(), v.now), "ok"
		case u.GetBackupBy() != "":
			number = "unknown"
		}
		list = append(list, card(backup, number, "last backup; last drill "+v.drill(u), seen...))
	}
	return el("section", attr("id", "cards"), attr("data-live", ""), attr("aria-label", "At a glance"), el("ul", list...))
}

// drill says when shares of the seed were last shown to be good.
func (v *view) drill(u *fealtyv1.Upkeep) string {
	f := summary.LastDrill(u, v.now)
	return cmp.Or(f.Text, "not needed: keepers alone own the seed")
}

func (v *view) coordinators(st *fealtyv1.GetStatusResponse) markup.Part {
	var rows [][]markup.Part
	for _, r := range st.GetReplicas()[:min(len(st.GetReplicas()), shownCoordinators)] {
		is, heard := summary.Coordinator(r, v.now)
		role := ""
		if l := st.GetLeader(); l.GetTerm() > 0 && l.GetEnrolmentKey() == r.GetEnrolmentKey() {
			role = "leads"
		}
		if r.GetSelf() {
			role, heard = strings.TrimPrefix(role+", answers", ", "), st.GetNow().AsTime()
		}
		rows = append(rows, []markup.Part{text(r.GetName()), state(is), text(role), v.age(heard), text(r.GetRelease())})
	}
	body := parts{el("p", text(summary.Leading(st, v.now)+"."))}
	if len(rows) > 0 {
		body = append(body, table("Coordinators", []string{"Name", "State", "Role", "Heard", "Release"}, rows))
	}
	return section("coordinators", "Coordinators", body...)
}

// ending is something that runs out.
type ending struct {
	what string
	at   time.Time
}

// expiries shows what runs out next.
func (v *view) expiries(st *fealtyv1.GetStatusResponse) markup.Part {
	var all []ending
	add := func(what string, at interface{ AsTime() time.Time }, set bool) {
		if set {
			all = append(all, ending{what, at.AsTime()})
		}
	}
	add("certificate of the mesh CA", st.GetMeshCaNotAfter(), st.GetMeshCaNotAfter() != nil)
	add("certificate of the root", st.GetRootNotAfter(), st.GetRootNotAfter() != nil)
	if c := st.GetOperatorCertificate(); c != nil {
		add("certificate of your own PKI, "+c.GetSubject(), c.GetNotAfter(), c.GetNotAfter() != nil)
	}
	if until := summary.Counted(st, v.now).GetLeastAutonomousUntil(); until != nil {
		add("what "+summary.Counted(st, v.now).GetLeastAutonomous()+" works on alone", until, true)
	}
	for _, m := range st.GetMembers() { // those that need somebody: the others renew by themselves
		if condition.Of(m, v.now) != condition.Banned && m.GetSvidNotAfter() != nil {
			add("certificate of "+m.GetKind()+"/"+m.GetName(), m.GetSvidNotAfter(), true)
		}
	}
	slices.SortStableFunc(all, func(a, b ending) int { return a.at.Compare(b.at) })
	list := parts{class("expiries")}
	for _, e := range all[:min(len(all), shownExpiries)] {
		look := "plain"
		switch left := e.at.Sub(v.now); {
		case left <= 0:
			look = "bad"
		case left < time.Hour:
			look = "warn"
		}
		list = append(list, el("li", el("span", class("when "+look), v.age(e.at)), el("span", text(e.what))))
	}
	return section("expiries", "Runs out next", el("p", class("note"), text("Certificates of nodes that are well are not listed: their agents renew them.")),
		el("ol", list...))
}

// needSomebody shows the members that need somebody, those first that can work alone for the shortest time.
func (v *view) needSomebody(st *fealtyv1.GetStatusResponse) markup.Part {
	need := condition.NeedSomebody(st.GetMembers(), v.now)
	if len(need) == 0 {
		return el("section", attr("id", "need"), attr("data-live", ""), attr("hidden", ""))
	}
	var rows [][]markup.Part
	for _, m := range need[:min(len(need), client.ShownMembers)] {
		rows = append(rows, v.memberRow(m))
	}
	body := parts{table("Members that need somebody, those first that can work alone for the shortest time", memberColumns, rows)}
	if more := int(summary.Counted(st, v.now).GetNeedSomebody()) - len(rows); more > 0 {
		body = append(body, el("p", v.commands(fmt.Sprintf("and %d more: fealty member list, or ", more)), el("a", attr("href", v.path("members")+"?sort=alone"), text("all members")), text(".")))
	}
	return section("need", "Members that need somebody", body...)
}

var memberColumns = []string{"Member", "State", "Works alone", "Certificate ends", "Reported", "Scopes", "Host", "Release"}

func (v *view) memberRow(m *fealtyv1.Member) []markup.Part {
	live := m.GetLive()
	current := summary.Current(live)
	return []markup.Part{v.member(m), state(summary.Member(m, v.now)), text(summary.Alone(m, v.now)), v.ageOf(m.GetSvidNotAfter()),
		v.ageOf(live.GetLastReport()), el("span", class(tone(current.Paint)), text(current.Text)),
		text(cmp.Or(m.GetReportedHost(), "-")), text(cmp.Or(live.GetRelease(), "-"))}
}

// lastEntries shows the newest entries of the audit log.
func (v *view) lastEntries() markup.Part {
	entries, err := v.source.lastAudit()
	body := parts{}
	if err != nil {
		body = append(body, el("div", class("note"), v.failure(err)))
	}
	if len(entries) == 0 && err == nil {
		body = append(body, el("p", text("There is none of the last day.")))
	}
	list := parts{class("entries")}
	for _, e := range entries[:min(len(entries), shownEntries)] {
		list = append(list, el("li", v.entry(e)))
	}
	return section("audit", "Last in the audit log", append(body, el("ol", list...))...)
}

// entry is a line of the audit log: who did what to whom, and why.
func (v *view) entry(e *fealtyv1.AuditEntry) markup.Part {
	out := parts{el("span", class("when"), v.ageOf(e.GetAt())), el("strong", text(e.GetAction())), text(" "), el("span", text(e.GetTarget()))}
	if e.GetActor() != "" {
		out = append(out, text(" by "+e.GetActor()))
	}
	if e.GetReason() != "" {
		out = append(out, text(": "+e.GetReason()))
	}
	return out
}
