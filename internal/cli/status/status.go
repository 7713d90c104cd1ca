// Package status has the commands that show how a fleet, a machine and its coordinators are doing.
// Each begins with one line of verdict, which the coordinators make of their findings.
package status

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/doctor"
	"github.com/fealty-io/fealty/internal/cli/member"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
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
		return program.ResultOf(message.Of(st), func(p *term.Page) error { return showStatus(p, st) }), fleetHealth(st),
			nil
	}, l.Close, nil
}

// getShown returns the status with the members that are shown in a format: without -o those that need somebody.
func getShown(ctx context.Context, status fealtyv1.StatusServiceClient, as term.Format) (*fealtyv1.GetStatusResponse, error) {
	if as != term.TableFormat {
		return GetStatus(ctx, status, command.PageSize)
	}
	return NeedSomebody(ctx, status)
}

// NeedSomebody returns the status with the first of the members that need somebody, and the counts of all. A coordinator
// of an earlier release sends all members and no counts.
func NeedSomebody(ctx context.Context, status fealtyv1.StatusServiceClient) (*fealtyv1.GetStatusResponse, error) {
	first, err := status.GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: shownMembers, NeedSomebody: true})
	if err != nil {
		return nil, err
	}
	return withRest(ctx, status, first, command.PageSize)
}

// GetStatus returns the status with all members, which it asks for page by page.
// All but the members is of the first page.
func GetStatus(ctx context.Context, status fealtyv1.StatusServiceClient, size uint32) (*fealtyv1.GetStatusResponse,
	error) {
	first, err := status.GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: size})
	if err != nil {
		return nil, err
	}
	return withRest(ctx, status, first, size)
}

// withRest adds to a first page the members of the pages after it.
func withRest(ctx context.Context, status fealtyv1.StatusServiceClient, all *fealtyv1.GetStatusResponse,
	size uint32) (*fealtyv1.GetStatusResponse, error) {
	for token := all.GetNextPageToken(); token != ""; {
		resp, err := status.GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: size, PageToken: token})
		if err != nil {
			return nil, err
		}
		all.Members = append(all.Members, resp.GetMembers()...)
		if token = resp.GetNextPageToken(); len(resp.GetMembers()) == 0 {
			break
		}
	}
	all.NextPageToken = ""
	return all, nil
}

// counted counts the members of a fleet. A coordinator of an earlier release does not, and has sent all of them.
func counted(st *fealtyv1.GetStatusResponse, now time.Time) *fealtyv1.MemberCounts {
	if c := st.GetCounts(); c != nil {
		return c
	}
	return condition.Count(st.GetMembers(), now)
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

// fleetHealth says how a fleet is, as an exit status.
func fleetHealth(st *fealtyv1.GetStatusResponse) errcode.Exit {
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
	if len(verdictOf(st).GetUnknown()) > 0 {
		health = errcode.ExitDegraded
	}
	return health
}

// verdictOf returns the verdict on a fleet. A coordinator of an earlier release does not say it.
func verdictOf(st *fealtyv1.GetStatusResponse) *fealtyv1.Verdict {
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

// showStatus draws the page of a fleet: the verdict in one line, what needs somebody, causes
// before what follows from them, and only then what there is.
func showStatus(p *term.Page, st *fealtyv1.GetStatusResponse) error {
	now := st.GetNow().AsTime() // of the coordinator: its times are compared with its clock
	for _, line := range term.Wrap(term.Sanitize(sentence(st, now)), p.Width) {
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
		for _, line := range term.Wrap(term.Sanitize(leading(st, now)), p.Width) {
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
	return p.Facts(clusterFacts(st, now, p.Wide))
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
	shown := need[:min(len(need), shownMembers)]
	if err := p.Table(member.NeedTable(shown, now)); err != nil {
		return err
	}
	if n := int(counted(st, now).GetNeedSomebody()) - len(shown); n > 0 {
		p.Advise("and %d more: fealty member list", n)
	}
	return nil
}

// shownMembers is how many members that need somebody are shown without -o wide.
const shownMembers = 20

// leading says who leads, and how many coordinators may still be lost.
func leading(st *fealtyv1.GetStatusResponse, now time.Time) string {
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
		phase, heard := term.Painted(term.Green, "● "+r.GetPhase()), r.GetHeardAt().AsTime()
		asked := r.GetUnheardFor() != nil
		if asked {
			heard = now.Add(-r.GetUnheardFor().AsDuration())
		}
		switch {
		case r.GetStopped():
			phase = term.Painted(term.Dim, "◌ stopped")
		case asked && r.GetUnheardFor().AsDuration() >= replicaUnheard:
			phase = term.Painted(term.Amber, "▲ not heard, was "+r.GetPhase())
		case !asked && now.Sub(heard) > replicaQuiet:
			phase = term.Painted(term.Amber, "▲ quiet, was "+r.GetPhase())
		case r.GetPhase() != "ready":
			phase = term.Painted(term.Amber, "▲ "+r.GetPhase())
		}
		index := "-"
		if r.GetHistoryIndex() > 0 {
			index = command.Itoa(int64(r.GetHistoryIndex()))
		}
		t.Add(term.Txt(name), phase, term.Txt(index), term.Txt(humanize.Relative(heard, now)),
			term.Txt(strings.Join(r.GetAddresses(),
				", ")), term.Txt(command.Dash(r.GetRelease())), term.Txt(r.GetEnrolmentKey()))
	}
	return t
}

// sentence says in one line how the fleet is, and since when.
func sentence(st *fealtyv1.GetStatusResponse, now time.Time) string {
	v := verdictOf(st)
	since := ""
	if at := v.GetSince(); at != nil {
		since = ", since " + command.When(at) + ", " + humanize.Relative(at.AsTime(), now)
	}
	switch st.GetPhase() {
	case "uninitialized":
		return "This coordinator has no cluster yet: it waits for its first manifest."
	case "recovery":
		return command.JoinWords("This coordinator is recovering and changes nothing"+since, ": ", phaseReason(st)) + "."
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
	n := counted(st, now)
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

// phaseReason says why a coordinator is in its phase; empty where a finding says that.
func phaseReason(st *fealtyv1.GetStatusResponse) string {
	if slices.ContainsFunc(st.GetFindings(), func(f *fealtyv1.Finding) bool {
		return f.GetCode() == string(errcode.RecoveryMode)
	}) {
		return ""
	}
	return st.GetPhaseReason()
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
	for i, line := range term.Wrap(term.Sanitize(p.Called(f.GetSeverity()+": "+doctor.FoundBy(f)+f.GetSummary())),
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

// clusterFacts says what there is; wide: with hashes and keys, which are for comparing.
func clusterFacts(st *fealtyv1.GetStatusResponse, now time.Time, wide bool) term.Facts {
	var f term.Facts
	ready := st.GetPhase() == "ready"
	f.Add("cluster", st.GetClusterId())
	if !ready {
		f.Paint("phase", term.Amber, command.JoinWords(st.GetPhase(), ": ", phaseReason(st)))
	}
	if ready && wide {
		f.Paint("phase", term.Green, st.GetPhase())
		f.Add("authority", fmt.Sprintf("epoch %d, history index %d", st.GetAuthorityEpoch(), st.GetHistoryIndex()))
		f.Add("head", hex.EncodeToString(st.GetHead()))
		if epoch := st.GetSeedEpoch(); epoch > 0 { // an older coordinator does not say
			f.Add("seed epoch", command.Itoa(int64(epoch)))
		}
		f.Add("root pin", hex.EncodeToString(st.GetRootPin()))
		f.Add("mesh CA", hex.EncodeToString(st.GetMeshCaKey()))
	}
	if wide {
		addLeader(&f, st.GetLeader(), now)
	}
	f.Add("members", member.CountWords(counted(st, now)))
	if b := st.GetBaseline(); b != nil {
		met := term.Painted(term.Green, "met")
		if !b.GetMet() {
			met = term.Painted(term.Amber, cmp.Or(b.GetState(), "not met"))
		}
		draining := ""
		if n := b.GetDrainingCount(); n > 0 {
			draining = fmt.Sprintf("; %d draining and not counted", n)
		}
		f.Paint("baseline", met.Paint, met.Text+": "+doctor.BaselineWords(b)+draining)
	}
	f.Add("works alone", leastAutonomy(counted(st, now), now))
	if u := st.GetUpkeep(); u != nil {
		addUpkeep(&f, u, now)
	}
	f.Add("coordinator", command.JoinWords(st.GetRelease(), ", up for ",
		humanize.Span(now.Sub(st.GetStartedAt().AsTime()))))
	if wide || !ready { // who brings a coordinator in needs them
		f.Add("addresses", strings.Join(st.GetAddresses(), ", "))
		f.Add("enrolment key", st.GetEnrolmentKey())
	}
	f.Add("store", st.GetStore())
	if c := st.GetOperatorCertificate(); c != nil {
		f.Add("own PKI", ownPKI(c, now))
		f.Paint("PKI problem", term.Amber, operatorProblem(c, now))
	}
	return f
}

// addUpkeep says when the last backup was made, and since when enough shares are known to be good.
func addUpkeep(f *term.Facts, u *fealtyv1.Upkeep, now time.Time) {
	const clock = "the clock of the coordinator that noted it was ahead"
	switch at := u.GetBackupAt(); {
	case at != nil:
		f.Add("last backup", humanize.Relative(at.AsTime(), now)+", to "+u.GetBackupBy())
	case u.GetBackupBy() != "":
		f.Paint("last backup", term.Amber, "to "+u.GetBackupBy()+", and not known when: "+clock+"; the next one is noted anew")
	default:
		f.Paint("last backup", term.Amber, "never")
	}
	if len(u.GetOwners()) == 0 {
		return // keepers alone own the seed: there is no share to look at
	}
	var at []time.Time
	var never, ahead []string
	for _, o := range u.GetOwners() {
		switch {
		case o.GetAt() != nil:
			at = append(at, o.GetAt().AsTime())
		case o.GetBy() != "":
			ahead = append(ahead, o.GetOwner())
		default:
			never = append(never, o.GetOwner())
		}
	}
	slices.SortFunc(at, func(a, b time.Time) int { return b.Compare(a) })
	missing := ""
	if len(never) > 0 {
		missing = "never of " + strings.Join(never, ", ")
	}
	if len(ahead) > 0 {
		missing = command.JoinWords(missing, "; ", "not known when of "+strings.Join(ahead, ", ")+": "+clock)
	}
	switch need := int(u.GetThreshold()); {
	case len(at) == 0 && len(ahead) == 0:
		f.Paint("last drill", term.Amber, "never")
	case len(at) == 0:
		f.Paint("last drill", term.Amber, missing)
	case len(at) < need:
		f.Paint("last drill", term.Amber, command.JoinWords(fmt.Sprintf("%s, %d of %d shares that are needed",
			humanize.Relative(at[0], now), len(at), need), "; ", missing))
	default:
		f.Add("last drill", command.JoinWords(fmt.Sprintf("%s, %d of %d shares that are needed since then",
			humanize.Relative(at[need-1], now), need, need), "; ", missing))
	}
}

// leastAutonomy says how long every node works without a coordinator, by what the
// nodes themselves reported; "" if none did.
func leastAutonomy(n *fealtyv1.MemberCounts, now time.Time) string {
	if n.GetLeastAutonomousUntil() == nil {
		return ""
	}
	path, limit := n.GetLeastAutonomous(), n.GetLeastAutonomyLimit()
	if until := n.GetLeastAutonomousUntil().AsTime(); now.Before(until) {
		return "every node for " + humanize.Span(until.Sub(now)) + " at least (" + path + ": " + limit + ")"
	}
	return path + " no longer (" + limit + ")"
}

// nodeHealth says how a node is, as an exit status.
func nodeHealth(n *fealtyv1.GetNodeResponse, now time.Time) errcode.Exit {
	switch {
	case !now.Before(n.GetSvidNotAfter().AsTime()), len(n.GetHeld()) == 0:
		return errcode.ExitUnhealthy
	case !n.GetConnected(), len(n.GetRefusals()) > 0, n.GetClockBehind() != nil, n.GetLogProblem() != "", len(n.GetLostSockets()) > 0,
		operatorProblem(n.GetOperatorCertificate(), now) != "":
		return errcode.ExitDegraded
	}
	return errcode.ExitOK
}

// operatorProblem says what is wrong with the certificate of an operator's PKI that an
// agent holds, or "".
func operatorProblem(c *fealtyv1.OperatorCertificate, now time.Time) string {
	switch {
	case c == nil:
		return ""
	case c.GetProblem() != "":
		return c.GetProblem()
	case !now.Before(c.GetNotAfter().AsTime()):
		return "it ended " + humanize.Relative(c.GetNotAfter().AsTime(), now) + ", and no other one is in its place"
	}
	return ""
}

// ownPKI says which certificate of an operator's PKI is in use.
func ownPKI(c *fealtyv1.OperatorCertificate, now time.Time) string {
	return fmt.Sprintf("%s in %s, ends %s", cmp.Or(c.GetSubject(), "no subject"), c.GetFile(),
		humanize.Relative(c.GetNotAfter().AsTime(), now))
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
var isAlone = member.Condition{Word: "away", Shape: "▲", Paint: term.Amber}

// showNode draws the page of one node.
func showNode(p *term.Page, n *fealtyv1.GetNodeResponse, now time.Time) error {
	end := n.GetSvidNotAfter().AsTime()
	state := member.IsConnected
	words := "is connected to " + n.GetCoordinator()
	switch {
	case !now.Before(end):
		state, words = member.IsExpired, "has no valid certificate: it ended "+humanize.Relative(end, now)
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
		f.Add("works alone", doctor.AloneWords(n.GetAutonomousUntil().AsTime(), n.GetAutonomyLimit(), now))
	}
	if n.GetContactLostAt() != nil {
		f.Paint("out of reach", term.Amber,
			"since "+command.When(n.GetContactLostAt())+", "+humanize.Relative(n.GetContactLostAt().AsTime(), now))
	}
	f.Add("key", n.GetKeyId())
	f.Add("coordinator", n.GetCoordinator())
	f.Paint("last error", term.Amber, n.GetLastError())
	if c := n.GetOperatorCertificate(); c != nil {
		f.Add("own PKI", ownPKI(c, now))
		f.Paint("PKI problem", term.Amber, operatorProblem(c, now))
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
	for _, p := range member.LastPeriods(n.GetDegradedPeriods()) {
		f.Paint("degraded", term.Amber, member.PeriodWords(p, now))
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
