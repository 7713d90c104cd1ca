package dashboard

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/dashboard/markup"
	"github.com/fealty-io/fealty/internal/cli/summary"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// Short names: pages are made of little else.
var (
	el   = markup.El
	attr = markup.Attr
)

type (
	text  = markup.Text
	parts = markup.List
)

func class(names string) markup.Part { return attr("class", names) }

// view is what a page is made of: a request, and the fleet as it was answered last.
type view struct {
	*site
	r  *http.Request
	st seen[*fealtyv1.GetStatusResponse]
	// now is the time by the clock of the coordinator that answered: what it says is compared with that.
	now time.Time
}

func (s *site) look(r *http.Request) *view {
	v := &view{site: s, r: r, st: s.source.getStatus(r.Context(), patience)}
	v.now = s.source.now()
	if v.st.known() {
		v.now = v.st.value.GetNow().AsTime().Add(v.now.Sub(v.st.at))
	}
	return v
}

// path is the address of a page.
func (v *view) path(names ...string) string {
	for i, name := range names {
		names[i] = url.PathEscape(name)
	}
	return v.base + strings.Join(names, "/")
}

// member leads to the page of a member.
func (v *view) member(m *fealtyv1.Member) markup.Part {
	return el("a", attr("href", v.path("members", m.GetKind(), m.GetName())), text(m.GetKind()+"/"+m.GetName()))
}

// queryOf is the query with one value.
func queryOf(name, value string) string { return url.Values{name: {value}}.Encode() }

// age shows how long ago a time was, or in how long it is, and the time itself to who points at it. The script counts on.
func (v *view) age(at time.Time) markup.Part {
	if at.IsZero() || at.Unix() == 0 {
		return text("-")
	}
	full := at.UTC().Format(time.RFC3339)
	return el("time", attr("datetime", at.UTC().Format(time.RFC3339Nano)), attr("title", full), attr("data-show", "age"),
		text(humanize.Relative(at, v.now)))
}

func (v *view) ageOf(at *timestamppb.Timestamp) markup.Part {
	if at == nil {
		return text("-")
	}
	return v.age(at.AsTime())
}

// state shows a condition by shape, word and colour.
func state(is summary.Condition) markup.Part {
	return el("span", class("state "+tone(is.Paint)), el("span", attr("aria-hidden", "true"), text(is.Shape)), text(" "+is.Word))
}

// tone is the class of what a terminal shows in a colour.
func tone(p term.Paint) string {
	switch p {
	case term.Green:
		return "ok"
	case term.Amber:
		return "warn"
	case term.Red:
		return "bad"
	case term.Dim:
		return "quiet"
	}
	return "plain"
}

// facts shows names with their values.
func facts(f term.Facts) markup.Part {
	list := parts{class("facts")}
	for name, value := range f.All() {
		list = append(list, el("dt", text(name)), el("dd", class(tone(value.Paint)), text(value.Text)))
	}
	return el("dl", list...)
}

// commands shows a text with commands of the program in it.
func (v *view) commands(s string) markup.Part {
	out := parts{}
	called := v.cfg.Called(s)
	program, _, _ := strings.Cut(v.cfg.Called("fealty status"), " ")
	for i, unit := range term.Units(called, program) {
		if i > 0 {
			out = append(out, text(" "))
		}
		bare := strings.TrimLeft(unit, "`(")
		if !strings.HasPrefix(bare, program+" ") {
			out = append(out, text(unit))
			continue
		}
		command := strings.TrimRight(bare, ";,.:)`")
		lead, tail := unit[:len(unit)-len(bare)], bare[len(command):]
		out = append(out, text(strings.Trim(lead, "`")), el("code", text(command)), text(strings.Trim(tail, "`")))
	}
	return out
}

// section is a part of a page with a heading. It is what the script replaces when it changed.
func section(id, heading string, body ...markup.Part) markup.Part {
	return el("section", append(parts{attr("id", id), attr("aria-labelledby", id+"-h"), attr("data-live", ""),
		el("h2", attr("id", id+"-h"), text(heading))}, body...)...)
}

// table is a table that can be scrolled sideways where it is too wide, also by keyboard.
func table(caption string, columns []string, rows [][]markup.Part) markup.Part {
	head, body := parts{}, parts{}
	for _, c := range columns {
		head = append(head, el("th", attr("scope", "col"), text(c)))
	}
	for _, row := range rows {
		cells := parts{}
		for i, cell := range row {
			if i == 0 {
				cells = append(cells, el("th", attr("scope", "row"), cell))
				continue
			}
			cells = append(cells, el("td", cell))
		}
		body = append(body, el("tr", cells...))
	}
	return el("div", class("scroll"), attr("tabindex", "0"), attr("role", "region"), attr("aria-label", caption),
		el("table", el("caption", text(caption)), el("thead", el("tr", head...)), el("tbody", body...)))
}

// places are the pages of the navigation.
var places = []struct{ path, name string }{
	{"", "Overview"}, {"members", "Members"}, {"config", "Config"}, {"control", "Control plane"}, {"history", "History"},
	{"actuation", "Actuation"}, {"incidents", "Incidents"}, {"audit", "Audit"},
}

// frame is the document around a page.
func (v *view) frame(p page, version string) markup.Part {
	cluster := v.st.value.GetClusterId()
	nav := parts{attr("aria-label", "Pages")}
	for _, at := range places {
		link := parts{attr("href", v.base+at.path)}
		if at.path == p.active {
			link = append(link, attr("aria-current", "page"))
		}
		nav = append(nav, el("a", append(link, text(at.name))...))
	}
	asOf := parts{text("nothing was answered yet")}
	if v.st.known() {
		asOf = parts{text("as of "), v.age(v.st.value.GetNow().AsTime())}
	}
	return el("html", attr("lang", "en"),
		el("head", el("meta", attr("charset", "utf-8")),
			el("meta", attr("name", "viewport"), attr("content", "width=device-width, initial-scale=1")),
			el("meta", attr("name", "color-scheme"), attr("content", "light dark")),
			el("title", text(p.title+" · "+cmp.Or(cluster, "Fealty"))),
			el("link", attr("rel", "icon"), attr("href", v.path("icon.svg")), attr("type", "image/svg+xml")),
			el("link", attr("rel", "stylesheet"), attr("href", v.path("style.css"))),
			el("script", attr("src", v.path("live.js")), attr("defer", ""))),
		el("body",
			el("a", class("skip"), attr("href", "#main"), text("Skip to the content")),
			el("header", el("div", class("brand"), el("strong", text("Fealty")), text(" "), el("span", class("cluster"), text(cluster))),
				el("nav", nav...),
				el("p", attr("id", "as-of"), attr("data-live", ""), class("as-of"), el("span", asOf...),
					el("time", attr("id", "now"), attr("hidden", ""), attr("datetime", v.now.UTC().Format(time.RFC3339Nano))))),
			el("p", attr("id", "lost"), class("banner bad"), attr("role", "status"), attr("aria-live", "polite")),
			el("main", attr("id", "main"), attr("tabindex", "-1"), attr("data-events", v.path("events")), attr("data-live", version),
				v.trouble(), p.body),
			el("footer", attr("id", "foot"), el("p", text("Read-only. It shows what the identity of who runs "),
				el("code", text(v.cfg.Called("fealty dashboard"))), text(" may see, as coordinators answer it."))),
		))
}

// trouble says that no coordinator answers, and how old what is shown is.
func (v *view) trouble() markup.Part {
	box := func(head string, more ...markup.Part) markup.Part {
		return el("section", append(parts{attr("id", "trouble"), class("banner bad"), attr("role", "status"), attr("data-live", ""),
			attr("aria-label", "No coordinator answers"), el("p", el("strong", text("✖ "+head)))}, more...)...)
	}
	old := "Nothing is known of the fleet yet."
	if v.st.known() {
		old = "What is shown is as it was " + humanize.Relative(v.st.at, v.source.now()) + "."
	}
	switch {
	case v.st.err != nil:
		return box("No coordinator answers. "+old, v.failure(v.st.err))
	case v.st.late(v.source.now()):
		return box("No coordinator has answered for " + humanize.Span(v.source.now().Sub(v.st.since)) + ". " + old)
	}
	return el("section", attr("id", "trouble"), attr("data-live", ""), attr("hidden", ""))
}

// failure says what failed, why, and what to do.
func (v *view) failure(err error) markup.Part {
	e := errcode.Of(err)
	return parts{el("p", v.code(string(e.Code)), text(" "+e.What+": "+e.Why)), el("p", class("do"), el("span", text("do ")), v.commands(e.Do))}
}

// code leads to the page of a code.
func (v *view) code(code string) markup.Part {
	if _, ok := errcode.Lookup(errcode.Code(code)); !ok {
		return el("span", class("code"), text(code))
	}
	return el("a", class("code"), attr("href", v.path("help", code)), text(code))
}

// missing is the page of what there is not.
func missing(what string) page {
	return page{title: "Not found", active: "-", status: http.StatusNotFound,
		body: parts{el("section", attr("id", "missing"), el("h1", text("Not found")), el("p", text(what)))}}
}
