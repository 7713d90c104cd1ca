package actuation

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// ShardReports are the commands below fealty shard that ask a coordinator what shards have and do.
func ShardReports() []command.Command { return []command.Command{listShards(), showShard()} }

func listShards() command.Command {
	return command.Command{
		Use: "list", Short: "list the shards, with what they have and do",
		Long: `List the shards, as each said so last to a coordinator: every five seconds while it runs. REPORT says how old
that is. A shard that is late said nothing for three times as long; of one that is silent nobody heard anything, and of
one that is unknown nobody who answered did. SHORT are machines that tenants want and may have, and lack.`,
		Sample: "  fealty shard list\n  fealty shard list -o wide", Names: true,
		Run: func(ctx context.Context, sh command.Shell, _ []string) error {
			all, err := readShards(ctx, sh)
			if err != nil {
				return err
			}
			command.SayAltered(sh.Say, all.GetAltered())
			sayUnheard(sh, all.GetUnanswered(), all.GetUnknown())
			return sh.PrintList(shardNames(all), command.Result{Data: all, Show: func(p *term.Page) error {
				return p.Table(shardTable(all.GetShards()))
			}})
		},
	}
}

// readShards reads all pages.
func readShards(ctx context.Context, sh command.Shell) (*fealtyv1.ListShardsResponse, error) {
	all := &fealtyv1.ListShardsResponse{}
	err := sh.Ask(func(conn grpc.ClientConnInterface) error {
		for token := ""; ; {
			page, err := fealtyv1.NewShardReportServiceClient(conn).ListShards(ctx, &fealtyv1.ListShardsRequest{PageToken: token})
			if err != nil {
				return err
			}
			all.Shards = append(all.Shards, page.GetShards()...)
			all.Altered = append(all.Altered, page.GetAltered()...)
			all.KnownAt, all.Unanswered, all.Unknown = page.GetKnownAt(), page.GetUnanswered(), page.GetUnknown()
			if token = page.GetNextPageToken(); token == "" {
				return nil
			}
		}
	})
	return all, err
}

func shardNames(all *fealtyv1.ListShardsResponse) (out []string) {
	for _, s := range all.GetShards() {
		out = append(out, s.GetMember().GetName())
	}
	return out
}

// completeShards names the shards there are.
func completeShards(ctx context.Context, sh command.Shell) []string {
	all, err := readShards(ctx, sh)
	if err != nil {
		return nil // a person who presses TAB is told nothing
	}
	return shardNames(all)
}

// sayUnheard says what of an answer may not be the newest.
func sayUnheard(sh command.Shell, unanswered, unknown []string) {
	if len(unanswered) > 0 {
		sh.Say("not asked: %s did not answer, and may have heard newer reports", strings.Join(unanswered, ", "))
	}
	if len(unknown) > 0 {
		sh.Say("not known: %s", strings.Join(unknown, ", "))
	}
}

// standing is how a shard stands, with the shape and colour of what it means.
func standing(s *fealtyv1.Shard) term.Cell {
	switch word := s.GetStanding(); {
	case len(s.GetFenced()) > 0 && word == "acts":
		return term.Painted(term.Amber, "▲ acts, fenced one seen")
	case word == "acts":
		return term.Txt("● " + word)
	case word == "unknown", word == "":
		return term.Painted(term.Amber, "? unknown")
	default:
		return term.Painted(term.Amber, "▲ "+word)
	}
}

// since is how long ago something was that a report says was so long before it.
func since(p *fealtyv1.Process, before *durationpb.Duration) string {
	return humanize.Span(before.AsDuration()+p.GetReportAge().AsDuration()) + " ago"
}

func shardTable(shards []*fealtyv1.Shard) *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "STANDING"}, {Title: "SHARD"}, {Title: "REPORT"},
		{Title: "MACHINES", Right: true}, {Title: "WORKING", Right: true}, {Title: "WANTED", Right: true},
		{Title: "SHORT", Right: true}, {Title: "HELD", Right: true}, {Title: "LAST CYCLE"},
		{Title: "HELD BACK", Wide: true}, {Title: "LEFT ALONE", Wide: true}, {Title: "DOMAINS", Wide: true, Right: true},
		{Title: "EPOCH", Wide: true}, {Title: "SHORT OF", Wide: true}, {Title: "HELD OF", Wide: true}}}
	for _, s := range shards {
		p := s.GetMember().GetLive().GetProcess()
		row := []term.Cell{standing(s), term.Txt(s.GetMember().GetName())}
		r := p.GetReport()
		if r == nil {
			row = append(row, term.Txt("none"))
			for len(row) < len(t.Columns) {
				row = append(row, term.Txt("-"))
			}
			t.Add(row...)
			continue
		}
		count := func(n uint64) term.Cell {
			if n > 0 {
				return term.Painted(term.Amber, command.Number(n))
			}
			return term.Txt("0")
		}
		t.Add(append(row, term.Txt(humanize.Span(p.GetReportAge().AsDuration())+" old"),
			term.Txt(strconv.Itoa(int(r.GetMachines()))), term.Txt(strconv.Itoa(int(r.GetWorking()))),
			term.Txt(command.Number(r.GetWanted())), count(r.GetShort()), count(uint64(r.GetHeld())), lastCycle(p),
			term.Txt(command.Dash(tallyWords(r.GetCycle().GetHeldBack()))),
			term.Txt(command.Dash(strings.Join(unlisted(r), ", "))),
			term.Txt(strconv.Itoa(len(s.GetMember().GetDomains()))), term.Txt(epochWords(p.GetEpoch())),
			term.Txt(command.Dash(r.GetShortOf())), term.Txt(command.Dash(r.GetHeldOf())))...)
	}
	return t
}

func epochWords(epoch uint64) string { return fmt.Sprintf("%d.%d", epoch>>32, epoch&(1<<32-1)) }

func lastCycle(p *fealtyv1.Process) term.Cell {
	switch c := p.GetReport().GetCycle(); {
	case c == nil:
		return term.Txt("none yet")
	case c.GetProblem() != "":
		return term.Painted(term.Amber, "▲ "+since(p, c.GetAgo())+", failed")
	default:
		return term.Txt(since(p, c.GetAgo()))
	}
}

func tallyWords(all []*fealtyv1.ShardTally) string {
	var words []string
	for _, t := range all {
		words = append(words, fmt.Sprintf("%d %s", t.GetCount(), t.GetWhat()))
	}
	return strings.Join(words, ", ")
}

func unlisted(r *fealtyv1.ShardReport) (names []string) {
	for _, u := range r.GetCycle().GetUnlisted() {
		names = append(names, u.GetProvider())
	}
	return names
}

func showShard() command.Command {
	return command.Command{
		Use: "show SHARD", Short: "show what a shard has and does",
		Long: `Show what a shard has and does, as it said so last to a coordinator, and how old that is: its machines by
profile and state, what each tenant wants, has and lacks, whose demand it holds, and its last cycle: what became of it, and
what the rails held back. Nothing of it is how it is now, but how it was then.`,
		Sample: "  fealty shard show eu-1",
		Args:   command.Exactly("SHARD"), Complete: completeShards,
		Run: func(ctx context.Context, sh command.Shell, args []string) error {
			return sh.Ask(func(conn grpc.ClientConnInterface) error {
				got, err := fealtyv1.NewShardReportServiceClient(conn).GetShard(ctx,
					&fealtyv1.GetShardRequest{Name: strings.TrimPrefix(args[0], string(identity.Shard)+"/")})
				if err != nil {
					return err
				}
				sayUnheard(sh, got.GetUnanswered(), got.GetUnknown())
				return sh.Print(command.Result{Data: got, Show: func(p *term.Page) error { return showReport(sh, p, got.GetShard()) }})
			})
		},
	}
}

func showReport(sh command.Shell, page *term.Page, s *fealtyv1.Shard) error {
	p := s.GetMember().GetLive().GetProcess()
	r := p.GetReport()
	if err := page.Facts(shardFacts(sh, s)); err != nil || r == nil {
		return err
	}
	if len(r.GetProfiles()) > 0 {
		page.Heading("Machines")
		if err := page.Table(machineTable(r)); err != nil {
			return err
		}
	}
	if len(r.GetDemand()) > 0 {
		page.Heading("Demand")
		if err := page.Table(demandTable(p)); err != nil {
			return err
		}
	}
	return nil
}

// standingWords says what a standing means.
func standingWords(s *fealtyv1.Shard) string {
	switch s.GetStanding() {
	case "paused":
		return "it decides, and does nothing"
	case "late":
		return "its last report is older than it may be: it may have stopped, or reach no coordinator"
	case "silent":
		return "no coordinator heard a report of it"
	case "unknown":
		return "a coordinator that may have heard a newer report did not say, or has not listened for long"
	}
	return ""
}

func shardFacts(sh command.Shell, s *fealtyv1.Shard) (f term.Facts) {
	is, p := standing(s), s.GetMember().GetLive().GetProcess()
	r := p.GetReport()
	f.Add("shard", s.GetMember().GetSpiffeId())
	f.Paint("standing", is.Paint, command.JoinWords(is.Text, ": ", standingWords(s)))
	if p != nil {
		f.Add("process", fmt.Sprintf("epoch %s, incarnation %s, called %s", epochWords(p.GetEpoch()),
			cmp.Or(p.GetIncarnation(), "not said"), sh.Ago(p.GetLastCall().AsTime())))
	}
	for _, one := range s.GetFenced() {
		f.Paint("fenced", term.Amber, fmt.Sprintf("a process of it acts no more, as another one with its identity is in charge: "+
			"epoch %s, incarnation %s, from %s, told so %s", epochWords(one.GetEpoch()), one.GetIncarnation(),
			cmp.Or(one.GetFrom(), "an unknown address"), sh.Ago(one.GetHeardAt().AsTime())))
	}
	for _, d := range s.GetDomains() {
		f.Add("domain", domainWords(d, "shard/"+s.GetMember().GetName()))
	}
	if r == nil {
		f.Paint("report", term.Amber, "none")
		return f
	}
	f.Add("report", humanize.Span(p.GetReportAge().AsDuration())+" old, made at "+command.When(r.GetMadeAt())+" by its own clock")
	if r.GetPausedFor() != nil {
		f.Paint("paused", term.Amber, command.JoinWords(pausedWords(r), ", ", "for "+
			humanize.Span(r.GetPausedFor().AsDuration()+p.GetReportAge().AsDuration())))
	}
	c := r.GetCycle()
	cell := lastCycle(p)
	if c != nil {
		cell.Text += ", took " + c.GetTook().AsDuration().Round(time.Millisecond).String()
		cell.Text = command.JoinWords(command.JoinWords(cell.Text, ": ", tallyWords(c.GetOutcomes())), ": ", c.GetProblem())
	}
	f.Paint("last cycle", cell.Paint, cell.Text)
	f.Paint("held back", term.Amber, tallyWords(c.GetHeldBack()))
	for _, u := range c.GetUnlisted() {
		f.Paint("left alone", term.Amber, "machines of provider "+u.GetProvider()+": "+u.GetProblem())
	}
	f.Add("machines", fmt.Sprintf("%d, of which %d work", r.GetMachines(), r.GetWorking()))
	f.Add("wanted", fmt.Sprintf("%d, by %s", r.GetWanted(), humanize.Plural(r.GetTenants(), "tenant", "tenants")))
	if r.GetShort() > 0 {
		f.Paint("short", term.Amber, fmt.Sprintf("%d: %s", r.GetShort(), r.GetShortOf()))
	}
	for _, h := range r.GetHeldRollUps() {
		f.Paint("held", term.Amber, fmt.Sprintf("the demand of %s, since %s: it drops almost everything, and what was stated before stands",
			h.GetTenant(), since(p, h.GetHeldFor())))
	}
	for _, more := range []struct {
		n    uint32
		what string
	}{{r.GetMoreProfiles(), "profiles"}, {r.GetMoreDemand(), "rows of demand, which lack less"}, {r.GetMoreHeld(), "held roll-ups"}} {
		if more.n > 0 {
			f.Add("left out", fmt.Sprintf("%d more %s", more.n, more.what))
		}
	}
	return f
}

func domainWords(d *fealtyv1.Domain, path string) string {
	switch {
	case d.GetMoving() && d.GetOwner() == path:
		return d.GetName() + ", goes to " + nobody(d.GetNext()) + " when it let go"
	case d.GetMoving():
		return d.GetName() + ", comes from " + d.GetOwner() + " when that let go"
	}
	return d.GetName()
}

// pausedWords says who had a shard pause.
func pausedWords(r *fealtyv1.ShardReport) string {
	var by []string
	if r.GetPausedByFlag() {
		by = append(by, "by --actuation-paused")
	}
	if r.GetPausedByInstruction() {
		by = append(by, "by an instruction")
	}
	return strings.Join(by, " and ")
}

func machineTable(r *fealtyv1.ShardReport) *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "PROFILE"}, {Title: "CONFIGURED", Right: true},
		{Title: "CONFIGURING", Right: true}, {Title: "IDLE", Right: true}, {Title: "DRAINING", Right: true},
		{Title: "FAILED", Right: true}, {Title: "CREATING", Right: true}, {Title: "DELETING", Right: true},
		{Title: "SPECULATIVE", Right: true}}}
	for _, m := range r.GetProfiles() {
		row := []term.Cell{term.Txt(m.GetProfile())}
		for _, n := range []uint32{m.GetConfigured(), m.GetConfiguring(), m.GetIdle(), m.GetDraining(), m.GetFailed(),
			m.GetCreating(), m.GetDeleting(), m.GetSpeculative()} {
			row = append(row, term.Txt(strconv.Itoa(int(n))))
		}
		t.Add(row...)
	}
	return t
}

func demandTable(p *fealtyv1.Process) *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "TENANT"}, {Title: "PROFILE"}, {Title: "WANTED", Right: true},
		{Title: "QUOTA", Right: true}, {Title: "CONFIGURED", Right: true}, {Title: "CONFIGURING", Right: true},
		{Title: "DRAINING", Right: true}, {Title: "FAILED", Right: true}, {Title: "SHORT", Right: true}, {Title: "SINCE"}}}
	for _, d := range p.GetReport().GetDemand() {
		wanted, quota, short, lacks := strconv.Itoa(int(d.GetWanted())), "-", term.Txt("0"), "-"
		if d.GetUnknown() {
			wanted = "unknown"
		}
		if d.Quota != nil {
			quota = strconv.Itoa(int(d.GetQuota()))
		}
		if d.GetShort() > 0 {
			short, lacks = term.Painted(term.Amber, strconv.Itoa(int(d.GetShort()))), since(p, d.GetShortFor())
		}
		t.Add(term.Txt(d.GetTenant()), term.Txt(d.GetProfile()), term.Txt(wanted), term.Txt(quota),
			term.Txt(strconv.Itoa(int(d.GetConfigured()))), term.Txt(strconv.Itoa(int(d.GetConfiguring()))),
			term.Txt(strconv.Itoa(int(d.GetDraining()))), term.Txt(strconv.Itoa(int(d.GetFailed()))), short, term.Txt(lacks))
	}
	return t
}
