package dashboard

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/dashboard/markup"
	"github.com/fealty-io/fealty/internal/cli/summary"
	"github.com/fealty-io/fealty/internal/coordinator/member/condition"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// membersShown is how many members one page has, and shownGroups how many rows a picture.
const (
	membersShown = 50
	shownGroups  = 12
)

// wanted is what somebody looks for among the members.
type wanted struct {
	text, state, kind, by, sort string
	page                        int
}

func (v *view) wantedMembers() wanted {
	q := v.r.URL.Query()
	page, err := strconv.Atoi(q.Get("page"))
	if err != nil || page < 1 {
		page = 1
	}
	return wanted{strings.ToLower(strings.TrimSpace(q.Get("q"))), q.Get("state"), q.Get("kind"), q.Get("by"), q.Get("sort"), page}
}

// query is the address of the same search on another page.
func (w wanted) query(page int) string {
	q := url.Values{"q": {w.text}, "state": {w.state}, "kind": {w.kind}, "by": {w.by}, "sort": {w.sort}, "page": {strconv.Itoa(page)}}
	return "?" + q.Encode()
}

// matches reports whether a member is looked for: the text stands in its name, its host, its release or a label.
func (w wanted) matches(v *view, m *fealtyv1.Member) bool {
	if w.kind != "" && m.GetKind() != w.kind || w.state != "" && summary.Member(m, v.now).Word != w.state {
		return false
	}
	if w.text == "" {
		return true
	}
	return slices.ContainsFunc(append([]string{m.GetKind() + "/" + m.GetName(), m.GetReportedHost(), m.GetLive().GetRelease()}, m.GetLabels()...),
		func(s string) bool { return strings.Contains(strings.ToLower(s), w.text) })
}

// membersPage lists the members that somebody looks for.
func (v *view) membersPage() page {
	p := page{title: "Members", active: "members"}
	all := v.source.getMembers(v.r.Context(), patience)
	if !all.known() {
		p.body = parts{el("section", attr("id", "members"), attr("data-live", ""), el("h1", text("Members")), v.unanswered(all.err))}
		return p
	}
	w := v.wantedMembers()
	var found []*fealtyv1.Member
	kinds, states := map[string]int{}, map[string]int{}
	for _, m := range all.value.list {
		kinds[m.GetKind()]++
		states[summary.Member(m, v.now).Word]++
		if w.matches(v, m) {
			found = append(found, m)
		}
	}
	if w.sort == "alone" {
		slices.SortStableFunc(found, func(a, b *fealtyv1.Member) int {
			x, _ := condition.AloneUntil(a)
			y, _ := condition.AloneUntil(b)
			return x.Compare(y)
		})
	}
	pages := max(1, (len(found)+membersShown-1)/membersShown)
	w.page = min(w.page, pages)
	from := (w.page - 1) * membersShown
	var rows [][]markup.Part
	for _, m := range found[from:min(from+membersShown, len(found))] {
		rows = append(rows, v.memberRow(m))
	}
	body := parts{el("p", text(humanize.Plural(len(found), "member", "members")+" of "+strconv.Itoa(len(all.value.list))+", asked "),
		v.localAge(all.at), text("."))}
	if all.err != nil {
		body = append(body, v.failure(all.err))
	}
	if all.value.knownAt != nil {
		body = append(body, el("p", class("warn"), text("▲ The coordinator's store is out of reach: these are the members as it knew them "),
			v.ageOf(all.value.knownAt), text(".")))
	}
	if n := len(all.value.altered); n > 0 {
		body = append(body, el("p", class("bad"), text("✖ "+humanize.Plural(n, "record was", "records were")+" altered in the store, and nothing is told of whom they are.")))
	}
	if all.value.more {
		body = append(body, el("p", class("warn"), text("▲ There are more members than a dashboard keeps, which is "+strconv.Itoa(mostMembers)+".")))
	}
	if len(rows) > 0 {
		body = append(body, table("Members", memberColumns, rows))
	}
	if pages > 1 {
		nav := parts{class("pages"), attr("aria-label", "Pages of the list")}
		if w.page > 1 {
			nav = append(nav, el("a", attr("href", w.query(w.page-1)), text("← before")))
		}
		nav = append(nav, el("span", text("page "+strconv.Itoa(w.page)+" of "+strconv.Itoa(pages))))
		if w.page < pages {
			nav = append(nav, el("a", attr("href", w.query(w.page+1)), text("next →")))
		}
		body = append(body, el("nav", nav...))
	}
	p.body = parts{
		el("section", attr("id", "search"), el("h1", text("Members")), v.memberForm(w, kinds, states)),
		section("members", "List", body...),
		v.groups(w, found),
	}
	return p
}

// memberForm is what somebody fills in who looks for members.
func (v *view) memberForm(w wanted, kinds, states map[string]int) markup.Part {
	choice := func(name, label, all string, of map[string]int, chosen string) markup.Part {
		list := parts{attr("name", name), el("option", attr("value", ""), text(all))}
		for _, value := range sortedKeys(of) {
			option := parts{attr("value", value)}
			if value == chosen {
				option = append(option, attr("selected", ""))
			}
			list = append(list, el("option", append(option, text(value+" ("+strconv.Itoa(of[value])+")"))...))
		}
		return el("label", text(label), el("select", list...))
	}
	sorted := parts{attr("value", "alone"), text("time that they work alone")}
	if w.sort == "alone" {
		sorted = append(sorted, attr("selected", ""))
	}
	return el("form", attr("method", "get"), attr("action", v.path("members")), attr("role", "search"),
		el("label", text("Name, host, release or label"), el("input", attr("type", "search"), attr("name", "q"), attr("value", w.text), attr("maxlength", "128"))),
		choice("state", "State", "any", states, w.state), choice("kind", "Kind", "any", kinds, w.kind),
		el("label", text("Group by label"), el("input", attr("type", "text"), attr("name", "by"), attr("value", w.by), attr("maxlength", "64"), attr("placeholder", "rack"))),
		el("label", text("In order of"), el("select", attr("name", "sort"), el("option", attr("value", ""), text("kind and name")), el("option", sorted...))),
		el("button", attr("type", "submit"), text("Show")))
}

// groups are pictures of the members that were found: by a label or their hosts' place, and by release.
func (v *view) groups(w wanted, found []*fealtyv1.Member) markup.Part {
	key := cmp.Or(w.by, "site")
	places, releases := map[string]*group{}, map[string]*group{}
	count := func(in map[string]*group, name string, m *fealtyv1.Member) {
		g := in[name]
		if g == nil {
			g = &group{name: name}
			in[name] = g
		}
		g.all++
		if is := summary.Member(m, v.now); is.Word == summary.Connected.Word || is.Word == summary.Certified.Word {
			g.well++
		}
	}
	for _, m := range found {
		if condition.IsPerson(m) {
			continue
		}
		place := "no label " + key
		for _, label := range m.GetLabels() {
			if value, ok := strings.CutPrefix(label, key+"="); ok {
				place = value
			}
		}
		count(places, place, m)
		count(releases, cmp.Or(m.GetLive().GetRelease(), "not said"), m)
	}
	return el("div", class("columns"), section("places", "By label "+key, bars("Members by label "+key, places)),
		section("releases", "By release", bars("Members by release", releases)))
}

// memberPage shows one member.
func (v *view) memberPage() page {
	kind, name := v.r.PathValue("kind"), v.r.PathValue("name")
	p := page{title: kind + "/" + name, active: "members"}
	ctx, cancel := v.within()
	defer cancel()
	resp, err := v.source.services.Members.GetMember(ctx, &fealtyv1.GetMemberRequest{Kind: kind, Name: name})
	if err != nil {
		p.body = parts{el("section", attr("id", "member"), attr("data-live", ""), el("h1", text(kind+"/"+name)), v.failure(err))}
		return p
	}
	m := resp.GetMember()
	p.body = parts{el("section", attr("id", "member"), attr("data-live", ""),
		el("h1", state(summary.Member(m, v.now)), text(" "+m.GetKind()+"/"+m.GetName())),
		facts(append(summary.MemberFacts(m, v.now), summary.BesideFacts(resp, v.now)...)))}
	var rows [][]markup.Part
	for _, h := range m.GetLive().GetHeld() {
		rows = append(rows, []markup.Part{text(h.GetScope()), text(strconv.FormatUint(h.GetAuthorityEpoch(), 10)),
			text(strconv.FormatUint(h.GetConfigVersion(), 10)), text(cmp.Or(h.GetFreshness(), "-"))})
	}
	if len(rows) > 0 {
		p.body = append(p.body, section("held", "What it holds, by its own word", table("Scopes that it holds", []string{"Scope", "Epoch", "Version", "News"}, rows)))
	}
	path := "spiffe://" + v.st.value.GetClusterId() + "/" + kind + "/" + name
	entries, _ := v.source.lastAudit()
	list := parts{class("entries")}
	for _, e := range entries {
		if e.GetTarget() == path || e.GetActor() == path {
			list = append(list, el("li", v.entry(e)))
		}
		if len(list) > 2*shownEntries {
			break
		}
	}
	if len(list) > 1 {
		p.body = append(p.body, section("done", "What it did, and what was done to it, of late", el("ol", list...)))
	}
	return p
}
