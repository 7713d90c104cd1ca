// Package status has the commands that show how a fleet, a machine and its coordinators are doing.
// Each begins with one line of verdict, which the coordinators make of their findings.
package status

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/member"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/summary"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/coordinator/member/condition"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/snapshot"
)

func Command(c *program.CLI) *cobra.Command {
	var watch, exit bool
	var data string
	cmd := c.Command(program.Command{
		Use: "status", Short: "the fleet at a glance, or this machine with --data",
		Long: `Show the fleet at a glance: in one line how it is and since when, then what needs attention, causes first, each with
what to do, the coordinators, and the members that need somebody, those first that can work alone for the shortest
time. With -o wide all members are shown, and the hashes and keys that people compare. With --data it is this machine
that is shown, by its agent.

"Nothing needs attention" is said only if everybody was asked and everything was seen. A coordinator that just began to
listen says in its place that it is settling, and for how long at most, while something is not known.

The exit status is 0 if the state could be read, whatever it is; with --exit-code it is 9 if something needs
attention or is not known, and 10 if nothing can be changed, or the cluster, or this machine's identity, is of no use.`,
		Sample: `  fealty status --watch
  fealty status --data /var/lib/fealty/agent
  fealty status -o json`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			look, end, err := look(c, cfg, data)
			if err != nil {
				return err
			}
			defer end()
			if watch {
				return watchStatus(ctx, c, look)
			}
			r, health, err := look(ctx)
			if err == nil {
				err = c.Print(r)
			}
			if err == nil && exit && health != errcode.ExitOK {
				return program.ExitWith(health)
			}
			return err
		},
	})
	cmd.Flags().StringVar(&data, "data", "", "show the node whose agent has this folder")
	cmd.Flags().BoolVar(&watch, "watch", false, "look again every 2 seconds")
	cmd.Flags().BoolVar(&exit, "exit-code", false, "tell by the exit status how it is")
	return cmd
}

// glance is one look at a fleet or a node.
type glance func(ctx context.Context) (program.Result, errcode.Exit, error)

// look returns how to look at what status is to show.
func look(c *program.CLI, cfg *settings.Values, data string) (glance, func(), error) {
	if data != "" {
		l, err := client.Dial(AgentSocket(cfg.Within(data)), cfg.Duration("timeout"))
		if err != nil {
			return nil, nil, err
		}
		node := fealtyv1.NewNodeServiceClient(l)
		return func(ctx context.Context) (program.Result, errcode.Exit, error) {
			n, err := node.GetNode(ctx, &fealtyv1.GetNodeRequest{})
			if err != nil {
				return program.Result{}, 0, err
			}
			now := c.Env.Now()
			return program.ResultOf(message.Of(n), func(p *term.Page) error { return showNode(p, n, now) }),
				nodeHealth(n,
					now), nil
		}, l.Close, nil
	}
	l, err := c.Dial(cfg)
	if err != nil {
		return nil, nil, err
	}
	status := fealtyv1.NewStatusServiceClient(l)
	return func(ctx context.Context) (program.Result, errcode.Exit, error) {
		st, err := getShown(ctx, status, c.Format)
		if err != nil {
			return program.Result{}, 0, err
		}
		return program.ResultOf(message.Of(st), func(p *term.Page) error { return showStatus(p, st) }), summary.Health(st),
			nil
	}, l.Close, nil
}

// getShown returns the status with the members that are shown in a format: without -o those that need somebody.
func getShown(ctx context.Context, status fealtyv1.StatusServiceClient, as term.Format) (*fealtyv1.GetStatusResponse, error) {
	if as != term.TableFormat {
		return client.GetStatus(ctx, status, command.PageSize)
	}
	return client.NeedSomebody(ctx, status)
}

// watch looks again and again, until it is interrupted, which is how it ends. A
// look that fails after one that did not is shown, and the next one is taken.
func watchStatus(ctx context.Context, c *program.CLI, look glance) error {
	redraw := c.Env.IsTerminal(c.Env.Stdout) && (c.Format == term.TableFormat || c.Format == term.Wide)
	for first := true; ; first = false {
		r, _, err := look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			c.PrintError(render.Of(program.Name, err))
		default:
			switch {
			case redraw:
				// Home, and erase below afterwards: the page does not flicker.
				_, err = io.WriteString(c.Env.Stdout, "\x1b[H\x1b[2J")
			case !first:
				_, err = io.WriteString(c.Env.Stdout, "\n")
			}
			if err == nil {
				err = c.Print(r)
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Env.WatchEvery):
		}
	}
}

// showStatus draws the page of a fleet: the verdict in one line, what needs somebody, causes
// before what follows from them, and only then what there is.
func showStatus(p *term.Page, st *fealtyv1.GetStatusResponse) error {
	now := st.GetNow().AsTime() // of the coordinator: its times are compared with its clock
	for _, line := range term.Wrap(term.Sanitize(summary.Sentence(st, now)), p.Width) {
		fmt.Fprintln(p.W, line)
	}
	if len(st.GetFindings()) > 0 {
		p.Heading("needs attention")
		for _, f := range st.GetFindings() {
			showFinding(p, f)
		}
	}
	if len(st.GetReplicas()) > 0 {
		p.Heading("coordinators")
		for _, line := range term.Wrap(term.Sanitize(summary.Leading(st, now)), p.Width) {
			fmt.Fprintln(p.W, line)
		}
		if err := p.Table(ReplicaTable(st.GetReplicas(), now)); err != nil {
			return err
		}
	}
	if err := showMembers(p, st, now); err != nil {
		return err
	}
	p.Heading("cluster")
	return p.Facts(summary.ClusterFacts(st, now, p.Wide))
}

// showMembers shows the members that need somebody, those first that can work alone for the
// shortest time; with -o wide all of them.
func showMembers(p *term.Page, st *fealtyv1.GetStatusResponse, now time.Time) error {
	if p.Wide {
		if len(st.GetMembers()) == 0 {
			return nil
		}
		p.Heading("members")
		return p.Table(member.Table(st.GetMembers(), now, true))
	}
	need := condition.NeedSomebody(st.GetMembers(), now)
	if len(need) == 0 {
		return nil
	}
	p.Heading("members that need somebody")
	shown := need[:min(len(need), client.ShownMembers)]
	if err := p.Table(member.NeedTable(shown, now)); err != nil {
		return err
	}
	if n := int(summary.Counted(st, now).GetNeedSomebody()) - len(shown); n > 0 {
		p.Advise("and %d more: fealty member list", n)
	}
	return nil
}

// ReplicaTable shows the coordinators as they say of themselves, and whether they answer.
func ReplicaTable(replicas []*fealtyv1.Replica, now time.Time) *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "NAME"}, {Title: "PHASE"}, {Title: "INDEX", Right: true},
		{Title: "HEARD"}, {Title: "ADDRESSES", Least: 16}, {Title: "RELEASE", Wide: true}, {Title: "ENROLMENT KEY",
			Wide: true}}}
	for _, r := range replicas {
		name := r.GetName()
		if r.GetSelf() {
			name += " (answers)"
		}
		is, heard := summary.Coordinator(r, now)
		index := "-"
		if r.GetHistoryIndex() > 0 {
			index = command.Itoa(int64(r.GetHistoryIndex()))
		}
		t.Add(term.Txt(name), is.Cell(), term.Txt(index), term.Txt(humanize.Relative(heard, now)),
			term.Txt(strings.Join(r.GetAddresses(),
				", ")), term.Txt(command.Dash(r.GetRelease())), term.Txt(r.GetEnrolmentKey()))
	}
	return t
}

// showFinding shows what needs attention, with what to do under it.
func showFinding(p *term.Page, f *fealtyv1.Finding) {
	shape, colour := "▲", term.Amber
	switch f.GetSeverity() {
	case "critical":
		shape, colour = "✖", term.Red
	case "info":
		shape, colour = "·", term.Dim
	}
	room := 0
	if p.Width > 0 {
		room = max(p.Width-13, 20)
	}
	// Severity is a word too: colour and shape only repeat it.
	head := term.Sanitize(shape + " " + f.GetCode())
	for i, line := range term.Wrap(term.Sanitize(p.Called(f.GetSeverity()+": "+summary.FoundBy(f)+f.GetSummary())),
		room) {
		if i > 0 {
			head = ""
		}
		fmt.Fprintf(p.W, "  %s %s\n", colour.On(term.Padded(head, 9), p.Colour), line)
	}
	lead := "do: "
	for _, line := range term.WrapCommands(term.Sanitize(p.Called(f.GetRemedy())), p.Program,
		max(0, room-len(lead))) {
		fmt.Fprintf(p.W, "  %s %s%s\n", term.Padded("", 9), lead, line)
		lead = "    "
	}
}

// nodeHealth says how a node is, as an exit status.
func nodeHealth(n *fealtyv1.GetNodeResponse, now time.Time) errcode.Exit {
	switch {
	case !now.Before(n.GetSvidNotAfter().AsTime()), len(n.GetHeld()) == 0:
		return errcode.ExitUnhealthy
	case !n.GetConnected(), len(n.GetRefusals()) > 0, n.GetClockBehind() != nil, n.GetLogProblem() != "", len(n.GetLostSockets()) > 0,
		summary.OperatorProblem(n.GetOperatorCertificate(), now) != "":
		return errcode.ExitDegraded
	}
	return errcode.ExitOK
}

// permittedWords lists what the guard of a node permits.
func permittedWords(all []*fealtyv1.ActionPermission) string {
	var out []string
	for _, p := range all {
		if p.GetPermitted() {
			out = append(out, p.GetAction())
		}
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

// isAlone is a node that reaches no coordinator.
var isAlone = summary.Condition{Word: "away", Shape: "▲", Paint: term.Amber}

// showNode draws the page of one node.
func showNode(p *term.Page, n *fealtyv1.GetNodeResponse, now time.Time) error {
	end := n.GetSvidNotAfter().AsTime()
	state := summary.Connected
	words := "is connected to " + n.GetCoordinator()
	switch {
	case !now.Before(end):
		state, words = summary.Expired, "has no valid certificate: it ended "+humanize.Relative(end, now)
	case !n.GetConnected():
		state, words = isAlone, "works on its own: no coordinator is in reach"
	}
	fmt.Fprintf(p.W, "%s %s\n", state.Paint.On(state.Shape+" "+state.Word, p.Colour),
		term.Sanitize(n.GetSpiffeId()+" "+words+"."))
	var f term.Facts
	switch n.GetMemberState() {
	case "draining":
		f.Paint("member", term.Amber, "draining: it is to go, and gets no new domains")
	default:
		f.Add("member", n.GetMemberState())
	}
	f.Add("svid", fmt.Sprintf("from %s to %s, ends %s", command.When(n.GetSvidNotBefore()),
		command.When(n.GetSvidNotAfter()), humanize.Relative(end, now)))
	if n.GetNextRenewal() != nil {
		f.Add("renewal", humanize.Relative(n.GetNextRenewal().AsTime(), now))
	}
	if n.GetAutonomousUntil() != nil {
		f.Add("works alone", summary.AloneWords(n.GetAutonomousUntil().AsTime(), n.GetAutonomyLimit(), now))
	}
	if n.GetContactLostAt() != nil {
		f.Paint("out of reach", term.Amber,
			"since "+command.When(n.GetContactLostAt())+", "+humanize.Relative(n.GetContactLostAt().AsTime(), now))
	}
	f.Add("key", n.GetKeyId())
	f.Add("coordinator", n.GetCoordinator())
	f.Paint("last error", term.Amber, n.GetLastError())
	if c := n.GetOperatorCertificate(); c != nil {
		f.Add("own PKI", summary.OwnPKI(c, now))
		f.Paint("PKI problem", term.Amber, summary.OperatorProblem(c, now))
	}
	for _, lost := range n.GetLostSockets() {
		f.Paint("socket", term.Amber, lost)
	}
	f.Add("authority", fmt.Sprintf("epoch %d", n.GetAuthorityEpoch()))
	switch state := snapshot.Freshness(n.GetFreshness()); state {
	case snapshot.Fresh:
		f.Add("news", string(state))
	default:
		f.Paint("news", term.Amber, string(state))
	}
	if p := n.GetPartition(); p != "" && p != "connected" {
		f.Paint("partition", term.Amber, p)
		f.Add("permitted", permittedWords(n.GetPermissions()))
	}
	for _, p := range summary.LastPeriods(n.GetDegradedPeriods()) {
		f.Paint("degraded", term.Amber, summary.PeriodWords(p, now))
	}
	if d := n.GetClockBehind(); d != nil {
		f.Paint("clock", term.Amber,
			"the machine's is "+humanize.Span(d.AsDuration())+" behind what was signed; the node goes by that: set it")
	}
	if problem := n.GetLogProblem(); problem != "" {
		f.Paint("log", term.Amber, fmt.Sprintf("lost since %s, %s: of standard error, %s (%s)",
			command.When(n.GetLogProblemSince()), humanize.Plural(int(n.GetLogDropped()), "line", "lines"), problem,
			errcode.LogFailing))
	}
	f.Add("release", n.GetRelease())
	p.Heading("node")
	if err := p.Facts(f); err != nil {
		return err
	}
	p.Heading("snapshots")
	t := &term.Table{Columns: []term.Column{{Title: "SCOPE"}, {Title: "EPOCH", Right: true}, {Title: "VERSION",
		Right: true}, {Title: "NEWS"}, {Title: "CONTENT", Least: 16}}}
	for _, h := range n.GetHeld() {
		t.Add(term.Txt(h.GetScope()), term.Txt(command.Itoa(int64(h.GetAuthorityEpoch()))),
			term.Txt(command.Itoa(int64(h.GetConfigVersion()))), term.Txt(command.Dash(h.GetFreshness())),
			term.Txt(hex.EncodeToString(h.GetContentHash())))
	}
	if err := p.Table(t); err != nil {
		return err
	}
	if len(n.GetRefusals()) == 0 {
		return nil
	}
	p.Heading("refused")
	r := &term.Table{Columns: []term.Column{{Title: "SCOPE"}, {Title: "REASON"}, {Title: "DETAIL", Least: 20}}}
	for _, x := range n.GetRefusals() {
		r.Add(term.Txt(x.GetScope()), term.Painted(term.Amber, "▲ "+x.GetReason()), term.Txt(x.GetDetail()))
	}
	return p.Table(r)
}

// AgentSocket is where the agent with this folder serves its local API.
func AgentSocket(folder string) string { return filepath.Join(folder, dir.SocketName) }
