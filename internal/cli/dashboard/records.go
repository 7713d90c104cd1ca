package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/dashboard/markup"
	"github.com/fealty-io/fealty/internal/cli/summary"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// Bounds of pages that ask for what they show.
const (
	callTimeout  = 10 * time.Second
	recordsShown = 50
	linksShown   = 25
	domainsShown = 100
	entriesShown = 200
	shardsShown  = 32
)

// within is the time that a page may take to ask.
func (v *view) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(v.r.Context(), callTimeout)
}

// unanswered says that there is no answer yet.
func (v *view) unanswered(err error) markup.Part {
	if err != nil {
		return v.failure(err)
	}
	return el("p", text("No coordinator has answered yet."))
}

// localAge is how long ago an answer came, by the clock of this machine, as the script counts it.
func (v *view) localAge(at time.Time) markup.Part { return v.age(v.now.Add(at.Sub(v.source.now()))) }

func sortedKeys(of map[string]int) []string {
	out := make([]string, 0, len(of))
	for k := range of {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// configPage lists the desired config, and how far its versions have come.
func (v *view) configPage() page {
	p := page{title: "Config", active: "config"}
	ctx, cancel := v.within()
	defer cancel()
	resp, err := v.source.services.Config.ListConfig(ctx, &fealtyv1.ListConfigRequest{PageSize: recordsShown, PageToken: v.r.URL.Query().Get("after")})
	if err != nil {
		p.body = parts{el("section", attr("id", "config"), attr("data-live", ""), el("h1", text("Config")), v.failure(err)), v.versions()}
		return p
	}
	body := parts{attr("id", "config"), attr("data-live", ""), el("h1", text("Config")),
		el("p", text(fmt.Sprintf("Version %d of what operators put. Snapshots are compiled from it.", resp.GetVersion())))}
	if len(resp.GetRecords()) == 0 {
		body = append(body, el("p", text("There is no record.")))
	}
	for _, r := range resp.GetRecords() {
		var shown bytes.Buffer
		record := r.GetRecord()
		if json.Indent(&shown, record, "", "  ") == nil && shown.Len() <= maxTextBytes {
			record = shown.Bytes()
		}
		body = append(body, el("details", attr("id", "record-"+r.GetKind()+"-"+r.GetName()),
			el("summary", text(r.GetKind()+" "+r.GetName()+", "+humanize.Plural(len(r.GetRecord()), "byte", "bytes"))),
			el("pre", el("code", markup.Lines(cut(string(record), maxTextBytes))))))
	}
	if next := resp.GetNextPageToken(); next != "" {
		body = append(body, el("p", class("pages"), el("a", attr("href", "?"+queryOf("after", next)), text("next →"))))
	}
	p.body = parts{el("section", body...), v.versions()}
	return p
}

// cut returns the beginning of a text that is too long, and says so.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + fmt.Sprintf("\n… and %d bytes more", len(s)-most)
}

// versions shows which versions of which scope how many nodes hold.
func (v *view) versions() markup.Part {
	all := v.source.getMembers(v.r.Context(), patience)
	if !all.known() {
		return section("versions", "Versions on nodes", v.unanswered(all.err))
	}
	spread := map[string]map[string]*group{}
	for _, m := range all.value.list {
		for _, h := range m.GetLive().GetHeld() {
			scope := spread[h.GetScope()]
			if scope == nil {
				scope = map[string]*group{}
				spread[h.GetScope()] = scope
			}
			name := fmt.Sprintf("%d.%d %s", h.GetAuthorityEpoch(), h.GetConfigVersion(), h.GetFreshness())
			g := scope[name]
			if g == nil {
				g = &group{name: name}
				scope[name] = g
			}
			g.all++
			if m.GetLive().GetConnected() {
				g.well++
			}
		}
	}
	body := parts{el("p", class("note"), text("By the word of each node, as epoch and version; asked "), v.localAge(all.at), text("."))}
	scopes := make([]string, 0, len(spread))
	for scope := range spread {
		scopes = append(scopes, scope)
	}
	slices.Sort(scopes)
	for _, scope := range scopes[:min(len(scopes), shownGroups)] {
		body = append(body, el("h3", text(scope)), bars("Versions of "+scope, spread[scope]))
	}
	return section("versions", "Versions on nodes", body...)
}

// controlPage shows the coordinators and what the cluster stands on.
func (v *view) controlPage() page {
	p := page{title: "Control plane", active: "control"}
	if !v.st.known() {
		p.body = parts{el("section", attr("id", "cluster"), attr("data-live", ""), el("h1", text("Control plane")), v.unanswered(nil))}
		return p
	}
	st := v.st.value
	var rows [][]markup.Part
	for _, r := range st.GetReplicas()[:min(len(st.GetReplicas()), shownCoordinators)] {
		is, heard := summary.Coordinator(r, v.now)
		if r.GetSelf() {
			heard = st.GetNow().AsTime()
		}
		var keepers []string
		for _, k := range r.GetKeepers() {
			word := "does not open"
			if k.GetOpens() {
				word = "opens"
			}
			keepers = append(keepers, k.GetName()+" "+word)
		}
		rows = append(rows, []markup.Part{text(r.GetName()), state(is), v.age(heard), v.ageOf(r.GetStartedAt()),
			text(strconv.FormatUint(r.GetHistoryIndex(), 10)), text(cmp.Or(strings.Join(keepers, ", "), "-")), text(strings.Join(r.GetAddresses(), ", ")),
			text(r.GetRelease()), el("code", text(r.GetEnrolmentKey()))})
	}
	p.body = parts{
		el("h1", class("unseen"), text(p.title)),
		section("coordinators", "Coordinators", el("p", text(summary.Leading(st, v.now)+".")),
			table("Coordinators", []string{"Name", "State", "Heard", "Started", "Index", "Keepers", "Addresses", "Release", "Enrolment key"}, rows)),
		section("cluster", "Cluster", facts(summary.ClusterFacts(st, v.now, true))),
		v.reigns(),
	}
	return p
}

// historyPage shows the chain of manifests: what each changed, and who signed it.
func (v *view) historyPage() page {
	p := page{title: "History", active: "history"}
	fail := func(err error) page {
		p.body = parts{el("section", attr("id", "history"), attr("data-live", ""), el("h1", text("History")), v.failure(err))}
		return p
	}
	ctx, cancel := v.within()
	defer cancel()
	resp, err := client.WholeHistory(ctx, v.source.services)
	if err != nil {
		return fail(err)
	}
	h := client.HistoryOf(resp)
	parsed, err := x509.ParsePKIXPublicKey(resp.GetTransactionKey())
	key, ok := parsed.(ed25519.PublicKey)
	if err != nil || !ok {
		return fail(fmt.Errorf("the history's transaction key is not an Ed25519 key: %w", err))
	}
	verified, err := history.Verify(h, key)
	if err != nil {
		return fail(err)
	}
	links := verified.Links()
	before, err := strconv.Atoi(v.r.URL.Query().Get("before"))
	if err != nil || before < 1 || before > len(links) {
		before = len(links)
	}
	from := max(0, before-linksShown)
	manifests := map[manifest.Hash]*manifest.Manifest{}
	of := func(i int) *manifest.Manifest {
		if i < 0 {
			return nil
		}
		m, ok := manifests[links[i].Manifest]
		if !ok {
			// What verified parses.
			m, _ = manifest.ParseAccepted(h.Manifests[links[i].Manifest])
			manifests[links[i].Manifest] = m
		}
		return m
	}
	body := parts{attr("id", "history"), attr("data-live", ""), el("h1", text("History")),
		el("p", class("ok"), text("● "+humanize.Plural(len(links), "transition", "transitions")+" verified by this dashboard, from genesis to head, by the key that came with them.")),
		el("p", v.commands("To verify it by a key that you know: fealty manifest verify-history."))}
	for i := before - 1; i >= from; i-- {
		body = append(body, transition(links[i], of(i-1), of(i)))
	}
	if from > 0 {
		body = append(body, el("p", class("pages"), el("a", attr("href", "?"+queryOf("before", strconv.Itoa(from))), text("older →"))))
	}
	p.body = parts{el("section", body...)}
	return p
}

// transition shows one link of the history.
func transition(l history.Link, old, next *manifest.Manifest) markup.Part {
	head := fmt.Sprintf("%d · %s, authority epoch %d", l.Index, l.Kind, l.AuthorityEpoch)
	out := parts{el("h3", text(head))}
	if l.Reason != "" {
		out = append(out, el("p", text("“"+l.Reason+"”")))
	}
	signers := next
	if old != nil {
		signers = old // those of the manifest that was in force consent to the next
	}
	var names []string
	for _, s := range l.Signatures {
		name := s.Key.String()
		if signers != nil {
			for _, k := range signers.Signers.Keys {
				if k.Key == s.Key {
					name = k.Name
				}
			}
		}
		names = append(names, name)
	}
	by := "no signature of a signer is in it"
	if len(names) > 0 {
		by = "signed by " + strings.Join(names, ", ")
	}
	out = append(out, el("p", class("note"), text(by+"; transition "), el("code", text(hex.EncodeToString(l.Hash[:8])+"…"))))
	if old != nil && next != nil && old != next {
		changes := manifest.Diff(old, next)
		list := parts{}
		for _, c := range changes.List[:min(len(changes.List), recordsShown)] {
			sign, look := "~", "plain"
			switch {
			case c.Wider && !c.Narrower:
				sign, look = "+", "added"
			case c.Narrower && !c.Wider:
				sign, look = "−", "removed"
			}
			list = append(list, el("li", el("span", class(look), text(sign+" "+c.Class+" ")), el("strong", text(c.Subject)),
				text(" "+cmp.Or(c.Before, "nothing")+" → "+cmp.Or(c.After, "nothing")+": "+c.Means)))
		}
		if len(changes.List) > recordsShown {
			list = append(list, el("li", text(fmt.Sprintf("and %d more", len(changes.List)-recordsShown))))
		}
		if len(list) == 0 {
			list = append(list, el("li", text("nothing changes in effect")))
		}
		out = append(out, el("ul", append(parts{class("entries")}, list...)...))
	}
	return el("div", out...)
}

// actuationPage shows who owns which domain, what tenants may have, and where machines come from.
func (v *view) actuationPage() page {
	p := page{title: "Actuation", active: "actuation"}
	ctx, cancel := v.within()
	defer cancel()
	p.body = parts{el("h1", class("unseen"), text(p.title)), v.domains(ctx), v.shards(), v.registry(ctx)}
	return p
}

func (v *view) domains(ctx context.Context) markup.Part {
	domains, err := fealtyv1.NewDomainServiceClient(v.source.services.Line).ListDomains(ctx,
		&fealtyv1.ListDomainsRequest{PageSize: domainsShown, After: v.r.URL.Query().Get("after")})
	if err != nil {
		return section("domains", "Domains", v.failure(err))
	}
	var rows [][]markup.Part
	for _, d := range domains.GetDomains() {
		owner := parts{text(cmp.Or(d.GetOwner(), "nobody"))}
		if kind, name, ok := strings.Cut(d.GetOwner(), "/"); ok {
			owner = parts{el("a", attr("href", v.path("members", kind, name)), text(d.GetOwner()))}
		}
		what := parts{text("-")}
		switch {
		case d.GetMoving():
			what = parts{el("span", class("warn"), text("▲ moves to "+cmp.Or(d.GetNext(), "nobody")))}
			if d.GetWaitsUntil() != nil {
				what = append(what, text(", at the latest "), v.ageOf(d.GetWaitsUntil()))
			}
		case d.GetOwnerProblem() != "":
			what = parts{el("span", class("warn"), text("▲ "+d.GetOwnerProblem()))}
		}
		rows = append(rows, []markup.Part{text(d.GetName()), owner, text(strconv.FormatUint(d.GetOwnership(), 10)), what, v.ageOf(d.GetChangedAt()),
			text(cmp.Or(d.GetChangedBy(), "-")), text(cmp.Or(d.GetReason(), "-"))})
	}
	if len(rows) == 0 {
		return section("domains", "Domains", el("p", text("There is none.")))
	}
	body := parts{table("Domains", []string{"Domain", "Owner", "Ownership", "State", "Changed", "By", "Reason"}, rows)}
	if n := len(domains.GetAltered()); n > 0 {
		body = append(body, el("p", class("bad"), text("✖ "+humanize.Plural(n, "record was", "records were")+" altered in the store, and nothing is told of them.")))
	}
	if domains.GetMore() {
		last := domains.GetDomains()[len(domains.GetDomains())-1].GetName()
		body = append(body, el("p", class("pages"), el("a", attr("href", "?"+queryOf("after", last)), text("next →"))))
	}
	return section("domains", "Domains", body...)
}

// shardsOf are the shards of a fleet.
func shardsOf(all []*fealtyv1.Member) (out []*fealtyv1.Member) {
	for _, m := range all {
		if m.GetKind() == "shard" && len(out) < shardsShown {
			out = append(out, m)
		}
	}
	return out
}

func (v *view) shards() markup.Part {
	all := v.source.getMembers(v.r.Context(), patience)
	if !all.known() {
		return section("shards", "Shards", v.unanswered(all.err))
	}
	var rows [][]markup.Part
	for _, m := range shardsOf(all.value.list) {
		pr := m.GetLive().GetProcess()
		doing, epoch := markup.Part(text("no process of it has asked")), "-"
		if pr != nil {
			doing, epoch = text("acts"), fmt.Sprintf("%d.%d", pr.GetEpoch()>>32, pr.GetEpoch()&(1<<32-1))
			if pr.GetPaused() {
				doing = el("span", class("warn"), text("▲ paused: it decides, and does nothing"))
			}
		}
		rows = append(rows, []markup.Part{v.member(m), state(summary.Member(m, v.now)), doing, text(epoch), v.ageOf(pr.GetLastCall()),
			text(cmp.Or(strings.Join(m.GetDomains(), ", "), "-"))})
	}
	if len(rows) == 0 {
		return section("shards", "Shards", el("p", text("There is none.")))
	}
	return section("shards", "Shards", table("Shards", []string{"Shard", "State", "Process", "Epoch", "Called", "Domains"}, rows),
		el("p", class("note"), v.commands("What tenants want and have is known to their shard alone: fealty demand show.")))
}

func (v *view) registry(ctx context.Context) markup.Part {
	registry := fealtyv1.NewRegistryServiceClient(v.source.services.Line)
	out := parts{class("columns")}
	if quotas, err := registry.ListQuotas(ctx, &fealtyv1.ListQuotasRequest{}); err != nil {
		out = append(out, section("quotas", "Quotas", v.failure(err)))
	} else {
		var rows [][]markup.Part
		for _, q := range quotas.GetQuotas()[:min(len(quotas.GetQuotas()), domainsShown)] {
			rows = append(rows, []markup.Part{text(q.GetTenant()), text(q.GetProfile()), text(strconv.Itoa(int(q.GetMachines()))), v.ageOf(q.GetChangedAt())})
		}
		out = append(out, section("quotas", "Quotas", listed("Quotas", []string{"Tenant", "Profile", "Machines", "Changed"}, rows, len(quotas.GetQuotas()))...))
	}
	if providers, err := registry.ListProviders(ctx, &fealtyv1.ListProvidersRequest{}); err != nil {
		out = append(out, section("providers", "Providers", v.failure(err)))
	} else {
		var rows [][]markup.Part
		for _, q := range providers.GetProviders()[:min(len(providers.GetProviders()), domainsShown)] {
			rows = append(rows, []markup.Part{text(q.GetName()), text(q.GetAddress()), v.ageOf(q.GetChangedAt())})
		}
		out = append(out, section("providers", "Providers", listed("Providers", []string{"Provider", "Address", "Changed"}, rows, len(providers.GetProviders()))...))
	}
	return el("div", out...)
}

// listed is a table, or that there is nothing in it, and how much is left out.
func listed(what string, columns []string, rows [][]markup.Part, all int) parts {
	if len(rows) == 0 {
		return parts{el("p", text("There is none."))}
	}
	out := parts{table(what, columns, rows)}
	if more := all - len(rows); more > 0 {
		out = append(out, el("p", text(fmt.Sprintf("and %d more", more))))
	}
	return out
}

// incidentsPage shows the processes that were fenced: what they sent was refused, as another one is in charge.
func (v *view) incidentsPage() page {
	p := page{title: "Incidents", active: "incidents"}
	body := parts{attr("id", "incidents"), attr("data-live", ""), el("h1", text("Incidents")),
		el("p", text("A process is fenced when a receiver refused what it sent, because another process with its identity is in charge. It acts no more. Each is listed for a day after its last word."))}
	all := v.source.getMembers(v.r.Context(), patience)
	if !all.known() {
		p.body = parts{el("section", append(body, v.unanswered(all.err))...)}
		return p
	}
	ctx, cancel := v.within()
	defer cancel()
	var rows [][]markup.Part
	for _, m := range shardsOf(all.value.list) {
		resp, err := v.source.services.Members.GetMember(ctx, &fealtyv1.GetMemberRequest{Kind: m.GetKind(), Name: m.GetName()})
		if err != nil {
			body = append(body, v.failure(err))
			break
		}
		for _, f := range resp.GetFenced() {
			rows = append(rows, []markup.Part{v.member(m), text(f.GetIncarnation()), text(fmt.Sprintf("%d.%d", f.GetEpoch()>>32, f.GetEpoch()&(1<<32-1))),
				text(cmp.Or(f.GetFrom(), "-")), v.ageOf(f.GetToldAt()), v.ageOf(f.GetHeardAt()), text(f.GetProblem())})
		}
	}
	if len(rows) == 0 {
		body = append(body, el("p", class("ok"), text("● No process is known to be fenced.")))
	} else {
		body = append(body, table("Fenced processes", []string{"Shard", "Incarnation", "Epoch", "From", "Told first", "Heard last", "Refusal"}, rows))
	}
	p.body = parts{el("section", body...)}
	return p
}

// auditPage lists who did what, as somebody looks for it.
func (v *view) auditPage() page {
	p := page{title: "Audit", active: "audit"}
	q := v.r.URL.Query()
	ago, err := time.ParseDuration(cmp.Or(q.Get("since"), "24h"))
	if err != nil || ago <= 0 || ago > 100*24*time.Hour {
		ago = auditWindow
	}
	ctx, cancel := v.within()
	defer cancel()
	entries, more, err := v.source.searchAudit(ctx, &fealtyv1.GetAuditRequest{Since: timestamppb.New(v.now.Add(-ago)),
		Member: q.Get("member"), Action: q.Get("action")})
	body := parts{}
	if err != nil {
		body = append(body, v.failure(err))
	}
	var rows [][]markup.Part
	for _, e := range entries {
		vouched := markup.Part(text("not yet"))
		switch {
		case e.GetChain() == "":
			vouched = el("span", class("warn"), text("▲ nothing"))
		case e.GetCheckpoint() > 0:
			vouched = text("checkpoint " + strconv.FormatUint(e.GetCheckpoint(), 10))
		}
		rows = append(rows, []markup.Part{v.ageOf(e.GetAt()), text(e.GetAction()), text(e.GetTarget()), text(cmp.Or(e.GetActor(), "-")),
			text(cmp.Or(e.GetReason(), "-")), vouched})
	}
	if len(rows) == 0 && err == nil {
		body = append(body, el("p", text("There is no such entry.")))
	}
	if len(rows) > 0 {
		body = append(body, table("Entries, the newest first", []string{"When", "Action", "Target", "By", "Reason", "Vouched for by"}, rows))
	}
	if more > 0 {
		body = append(body, el("p", v.commands(fmt.Sprintf("%d older entries are left out: fealty audit list --limit N", more))))
	}
	field := func(name, label, hint string) markup.Part {
		return el("label", text(label), el("input", attr("type", "text"), attr("name", name), attr("value", cut(q.Get(name), 256)), attr("maxlength", "256"), attr("placeholder", hint)))
	}
	p.body = parts{el("section", attr("id", "search"), el("h1", text("Audit")), el("form", attr("method", "get"), attr("action", v.path("audit")), attr("role", "search"),
		field("member", "Who did it, or whom it was done to", "data/node-a"), field("action", "Action", "member.ban"), field("since", "Since", "24h"),
		el("button", attr("type", "submit"), text("Show")))), section("entries", "Entries", body...)}
	return p
}

// searchAudit returns the newest entries that are asked for, the newest first, and how many older ones there are.
func (s *source) searchAudit(ctx context.Context, req *fealtyv1.GetAuditRequest) (out []*fealtyv1.AuditEntry, more int, err error) {
	stream, _, end, err := client.FirstOf(ctx, s.services.Line, "GetAudit",
		func(ctx context.Context) (grpc.ServerStreamingClient[fealtyv1.GetAuditResponse], error) {
			return s.services.Audit.GetAudit(ctx, req)
		})
	if err != nil {
		return nil, 0, err
	}
	defer end()
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, 0, s.services.Line.OfStream(ctx, err, "GetAudit")
		}
		if e := part.GetEntry(); e != nil {
			out = append(out, e)
		}
		if len(out) >= 2*entriesShown {
			more += len(out) - entriesShown
			out = slices.Clone(out[len(out)-entriesShown:])
		}
	}
	if n := len(out) - entriesShown; n > 0 {
		more, out = more+n, out[n:]
	}
	slices.SortStableFunc(out, func(a, b *fealtyv1.AuditEntry) int { return b.GetAt().AsTime().Compare(a.GetAt().AsTime()) })
	return out, more, nil
}
