package cli

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/snapshot"
)

// watchPause is between two looks of status --watch.
const watchPause = 2 * time.Second

func (c *CLI) statusCommand() *cobra.Command {
	var watch, exit bool
	var data string
	cmd := c.command(spec{
		use: "status", short: "the fleet at a glance, or this machine with --data",
		long: `Show the fleet at a glance: what needs attention first, each with what to do, then the cluster and its
members. With --data it is this machine that is shown, by its agent.

The exit status is 0 if the state could be read, whatever it is; with --exit-code it is 9 if something needs
attention, and 10 if the cluster, or this machine's identity, is of no use.`,
		sample: `  fealty status --watch
  fealty status --data /var/lib/fealty/agent
  fealty status -o json`,
		groups: []group{client},
		run: func(ctx context.Context, cfg *config, _ []string) error {
			look, end, err := c.look(cfg, data)
			if err != nil {
				return err
			}
			defer end()
			if watch {
				return c.watch(ctx, look)
			}
			r, health, err := look(ctx)
			if err == nil {
				err = c.print(r)
			}
			if err == nil && exit && health != explain.ExitOK {
				return exitError{health}
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
type glance func(ctx context.Context) (result, explain.Exit, error)

// look returns how to look at what status is to show.
func (c *CLI) look(cfg *config, data string) (glance, func(), error) {
	if data != "" {
		l, err := dialSocket(agentSocket(cfg.within(data)), cfg.duration("timeout"))
		if err != nil {
			return nil, nil, err
		}
		node := fealtyv1.NewNodeServiceClient(l)
		return func(ctx context.Context) (result, explain.Exit, error) {
			n, err := node.GetNode(ctx, &fealtyv1.GetNodeRequest{})
			if err != nil {
				return result{}, 0, err
			}
			now := c.env.Now()
			return result{ofMessage(n), func(p *page) error { return showNode(p, n, now) }}, nodeHealth(n, now), nil
		}, l.Close, nil
	}
	l, _, err := c.dial(cfg)
	if err != nil {
		return nil, nil, err
	}
	status := fealtyv1.NewStatusServiceClient(l)
	return func(ctx context.Context) (result, explain.Exit, error) {
		st, err := getStatus(ctx, status, pageSize)
		if err != nil {
			return result{}, 0, err
		}
		return result{ofMessage(st), func(p *page) error { return showStatus(p, st) }}, fleetHealth(st), nil
	}, l.Close, nil
}

// getStatus returns the status with all members, which it asks for page by page.
// All but the members is of the first page.
func getStatus(ctx context.Context, status fealtyv1.StatusServiceClient, size uint32) (*fealtyv1.GetStatusResponse, error) {
	all, err := status.GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: size})
	if err != nil {
		return nil, err
	}
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

// watch looks again and again, until it is interrupted, which is how it ends. A
// look that fails after one that did not is shown, and the next one is taken.
func (c *CLI) watch(ctx context.Context, look glance) error {
	redraw := c.env.IsTerminal(c.env.Stdout) && (c.format == asTable || c.format == asWide)
	for first := true; ; first = false {
		r, _, err := look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			c.printError(c.failure(nil, err))
		default:
			switch {
			case redraw:
				// Home, and erase below afterwards: the page does not flicker.
				_, err = io.WriteString(c.env.Stdout, "\x1b[H\x1b[2J")
			case !first:
				_, err = io.WriteString(c.env.Stdout, "\n")
			}
			if err == nil {
				err = c.print(r)
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.watchEvery):
		}
	}
}

// fleetHealth says how a fleet is, as an exit status.
func fleetHealth(st *fealtyv1.GetStatusResponse) explain.Exit {
	health := explain.ExitOK
	for _, f := range st.GetFindings() {
		switch f.GetSeverity() {
		case "critical":
			return explain.ExitUnhealthy
		case "warning":
			health = explain.ExitDegraded
		}
	}
	if st.GetPhase() != "ready" {
		return explain.ExitUnhealthy
	}
	return health
}

// showStatus draws the page of a fleet.
func showStatus(p *page, st *fealtyv1.GetStatusResponse) error {
	now := st.GetNow().AsTime() // of the coordinator: its times are compared with its clock
	p.line("%s", sentence(st, now))
	if len(st.GetFindings()) > 0 {
		p.heading("needs attention")
		for _, f := range st.GetFindings() {
			showFinding(p, f)
		}
	}
	p.heading("cluster")
	if err := p.facts(clusterFacts(st, now)); err != nil {
		return err
	}
	if len(st.GetReplicas()) > 0 {
		p.heading("coordinators")
		if err := p.table(replicaTable(st.GetReplicas(), now)); err != nil {
			return err
		}
	}
	if len(st.GetMembers()) == 0 {
		return nil
	}
	p.heading("members")
	return p.table(memberTable(st.GetMembers(), now))
}

// replicaQuiet is from when on a coordinator is quiet that nobody asked: it writes each
// minute. replicaUnheard is from when on one is that does not answer when it is asked.
const (
	replicaQuiet   = 3 * time.Minute
	replicaUnheard = 10 * time.Second
)

// replicaTable shows the coordinators as they say of themselves, and whether they answer.
func replicaTable(replicas []*fealtyv1.Replica, now time.Time) *table {
	t := &table{columns: []column{{title: "NAME"}, {title: "PHASE"}, {title: "INDEX", right: true}, {title: "HEARD"}, {title: "ADDRESSES", least: 16}, {title: "RELEASE", wide: true}, {title: "ENROLMENT KEY", wide: true}}}
	for _, r := range replicas {
		name := r.GetName()
		if r.GetSelf() {
			name += " (answers)"
		}
		phase, heard := painted(green, "● "+r.GetPhase()), r.GetHeardAt().AsTime()
		asked := r.GetUnheardFor() != nil
		if asked {
			heard = now.Add(-r.GetUnheardFor().AsDuration())
		}
		switch {
		case r.GetStopped():
			phase = painted(dim, "◌ stopped")
		case asked && r.GetUnheardFor().AsDuration() >= replicaUnheard:
			phase = painted(amber, "▲ not heard, was "+r.GetPhase())
		case !asked && now.Sub(heard) > replicaQuiet:
			phase = painted(amber, "▲ quiet, was "+r.GetPhase())
		case r.GetPhase() != "ready":
			phase = painted(amber, "▲ "+r.GetPhase())
		}
		index := "-"
		if r.GetHistoryIndex() > 0 {
			index = itoa(int64(r.GetHistoryIndex()))
		}
		t.add(txt(name), phase, txt(index), txt(relative(heard, now)), txt(strings.Join(r.GetAddresses(), ", ")), txt(dash(r.GetRelease())), txt(r.GetEnrolmentKey()))
	}
	return t
}

// sentence says in one line how the fleet is.
func sentence(st *fealtyv1.GetStatusResponse, now time.Time) string {
	switch st.GetPhase() {
	case "uninitialized":
		return "This coordinator has no cluster yet: it waits for its first manifest."
	case "recovery":
		return joinWords("This coordinator is recovering and changes nothing", ": ", phaseReason(st)) + "."
	}
	if st.GetBaseline() == nil {
		return fmt.Sprintf("Cluster %s is ready, and cannot read its store: who its members are is not known now; %s attention.",
			st.GetClusterId(), plural(len(st.GetFindings()), "thing needs", "things need"))
	}
	nodes, connected := 0, 0
	for _, m := range st.GetMembers() {
		if conditionOf(m, now) == isCertified {
			continue
		}
		if m.GetLive().GetConnected() {
			connected++
		}
		nodes++
	}
	out := fmt.Sprintf("Cluster %s is ready: %s, %d connected", st.GetClusterId(), plural(nodes, "node", "nodes"), connected)
	if x := st.GetContacts(); x.GetUnknown() > 0 {
		out = fmt.Sprintf("Cluster %s is ready: %s, at least %d connected and %d unknown", st.GetClusterId(), plural(nodes, "node", "nodes"), connected, x.GetUnknown())
		if who := x.GetUnanswered(); len(who) > 0 {
			out += ", as " + strings.Join(who, ", ") + " did not answer"
		}
	}
	switch n := len(st.GetFindings()); n {
	case 0:
		return out + "; nothing needs attention."
	default:
		return out + "; " + plural(n, "thing needs", "things need") + " attention."
	}
}

// phaseReason says why a coordinator is in its phase; empty where a finding says that.
func phaseReason(st *fealtyv1.GetStatusResponse) string {
	if slices.ContainsFunc(st.GetFindings(), func(f *fealtyv1.Finding) bool { return f.GetCode() == string(explain.RecoveryMode) }) {
		return ""
	}
	return st.GetPhaseReason()
}

// showFinding shows what needs attention, with what to do under it.
func showFinding(p *page, f *fealtyv1.Finding) {
	shape, colour := "▲", amber
	switch f.GetSeverity() {
	case "critical":
		shape, colour = "✖", red
	case "info":
		shape, colour = "·", dim
	}
	room := 0
	if p.width > 0 {
		room = max(p.width-13, 20)
	}
	// Severity is a word too: colour and shape only repeat it.
	head := sanitize(shape + " " + f.GetCode())
	for i, line := range wrap(sanitize(p.called(f.GetSeverity()+": "+foundBy(f)+f.GetSummary())), room) {
		if i > 0 {
			head = ""
		}
		fmt.Fprintf(p.w, "  %s %s\n", colour.on(padded(head, 9), p.colour), line)
	}
	fmt.Fprintf(p.w, "  %s do: %s\n", padded("", 9), sanitize(p.called(f.GetRemedy())))
}

// foundBy says which coordinator a finding is of, if it is another one than was asked.
func foundBy(f *fealtyv1.Finding) string {
	if f.GetCoordinator() == "" {
		return ""
	}
	return "coordinator " + f.GetCoordinator() + " finds: "
}

// baselineWords says what of the baseline there is, and what is missing.
func baselineWords(b *fealtyv1.Baseline) string {
	switch {
	case b.GetState() == "": // of an earlier release, which counts who joined
		return fmt.Sprintf("%d of %d data members", b.GetDataMembers(), b.GetNeeded())
	case b.GetNeeded() == 0:
		return fmt.Sprintf("no data members are needed, %d connected", b.GetConnected())
	case b.GetUnknown() > 0:
		return fmt.Sprintf("at least %d of %d data members connected, %d unknown", b.GetConnected(), b.GetNeeded(), b.GetUnknown())
	case b.GetMet():
		return fmt.Sprintf("%d of %d data members connected", b.GetConnected(), b.GetNeeded())
	}
	return fmt.Sprintf("%d of %d data members connected, %d missing", b.GetConnected(), b.GetNeeded(), b.GetNeeded()-b.GetConnected())
}

func clusterFacts(st *fealtyv1.GetStatusResponse, now time.Time) facts {
	var f facts
	f.add("cluster", st.GetClusterId())
	phase := green
	if st.GetPhase() != "ready" {
		phase = amber
	}
	f.paint("phase", phase, joinWords(st.GetPhase(), ": ", phaseReason(st)))
	if st.GetPhase() == "ready" {
		f.add("authority", fmt.Sprintf("epoch %d, history index %d", st.GetAuthorityEpoch(), st.GetHistoryIndex()))
		f.add("head", hex.EncodeToString(st.GetHead()))
		if epoch := st.GetSeedEpoch(); epoch > 0 { // an older coordinator does not say
			f.add("seed epoch", itoa(int64(epoch)))
		}
		f.add("root pin", hex.EncodeToString(st.GetRootPin()))
		f.add("mesh CA", hex.EncodeToString(st.GetMeshCaKey()))
	}
	addLeader(&f, st.GetLeader(), now)
	if b := st.GetBaseline(); b != nil {
		met := painted(green, "met")
		if !b.GetMet() {
			met = painted(amber, cmp.Or(b.GetState(), "not met"))
		}
		draining := ""
		if n := b.GetDrainingCount(); n > 0 {
			draining = fmt.Sprintf("; %d draining and not counted", n)
		}
		f.paint("baseline", met.paint, met.text+": "+baselineWords(b)+draining)
	}
	f.add("works alone", leastAutonomy(st.GetMembers(), now))
	f.add("coordinator", joinWords(st.GetRelease(), ", up for ", span(now.Sub(st.GetStartedAt().AsTime()))))
	f.add("addresses", strings.Join(st.GetAddresses(), ", "))
	f.add("store", st.GetStore())
	f.add("enrolment key", st.GetEnrolmentKey())
	if c := st.GetOperatorCertificate(); c != nil {
		f.add("own PKI", ownPKI(c, now))
		f.paint("PKI problem", amber, operatorProblem(c, now))
	}
	return f
}

// aloneWords says how long a node works without a coordinator.
func aloneWords(until time.Time, limit string, now time.Time) string {
	if !now.Before(until) {
		return "no longer: its time ended " + relative(until, now) + " by " + limit
	}
	return "for " + span(until.Sub(now)) + ", then " + limit + " ends it"
}

// leastAutonomy says how long every node works without a coordinator, by what the
// nodes themselves reported; "" if none did.
func leastAutonomy(members []*fealtyv1.Member, now time.Time) string {
	var least *fealtyv1.Member
	for _, m := range members {
		if m.GetLive().GetAutonomousUntil() == nil || m.GetBanned() {
			continue
		}
		if least == nil || m.GetLive().GetAutonomousUntil().AsTime().Before(least.GetLive().GetAutonomousUntil().AsTime()) {
			least = m
		}
	}
	if least == nil {
		return ""
	}
	path := least.GetKind() + "/" + least.GetName()
	if until := least.GetLive().GetAutonomousUntil().AsTime(); now.Before(until) {
		return "every node for " + span(until.Sub(now)) + " at least (" + path + ": " + least.GetLive().GetAutonomyLimit() + ")"
	}
	return path + " no longer (" + least.GetLive().GetAutonomyLimit() + ")"
}

// nodeHealth says how a node is, as an exit status.
func nodeHealth(n *fealtyv1.GetNodeResponse, now time.Time) explain.Exit {
	switch {
	case !now.Before(n.GetSvidNotAfter().AsTime()), len(n.GetHeld()) == 0:
		return explain.ExitUnhealthy
	case !n.GetConnected(), len(n.GetRefusals()) > 0, n.GetClockBehind() != nil, operatorProblem(n.GetOperatorCertificate(), now) != "":
		return explain.ExitDegraded
	}
	return explain.ExitOK
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
		return "it ended " + relative(c.GetNotAfter().AsTime(), now) + ", and no other one is in its place"
	}
	return ""
}

// ownPKI says which certificate of an operator's PKI is in use.
func ownPKI(c *fealtyv1.OperatorCertificate, now time.Time) string {
	return fmt.Sprintf("%s in %s, ends %s", cmp.Or(c.GetSubject(), "no subject"), c.GetFile(), relative(c.GetNotAfter().AsTime(), now))
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
var isAlone = condition{"away", "▲", amber}

// showNode draws the page of one node.
func showNode(p *page, n *fealtyv1.GetNodeResponse, now time.Time) error {
	end := n.GetSvidNotAfter().AsTime()
	state := isConnected
	words := "is connected to " + n.GetCoordinator()
	switch {
	case !now.Before(end):
		state, words = isExpired, "has no valid certificate: it ended "+relative(end, now)
	case !n.GetConnected():
		state, words = isAlone, "works on its own: no coordinator is in reach"
	}
	fmt.Fprintf(p.w, "%s %s\n", state.paint.on(state.shape+" "+state.word, p.colour), sanitize(n.GetSpiffeId()+" "+words+"."))
	var f facts
	switch n.GetMemberState() {
	case "draining":
		f.paint("member", amber, "draining: it is to go, and gets no new domains")
	default:
		f.add("member", n.GetMemberState())
	}
	f.add("svid", fmt.Sprintf("from %s to %s, ends %s", when(n.GetSvidNotBefore()), when(n.GetSvidNotAfter()), relative(end, now)))
	if n.GetNextRenewal() != nil {
		f.add("renewal", relative(n.GetNextRenewal().AsTime(), now))
	}
	if n.GetAutonomousUntil() != nil {
		f.add("works alone", aloneWords(n.GetAutonomousUntil().AsTime(), n.GetAutonomyLimit(), now))
	}
	if n.GetContactLostAt() != nil {
		f.paint("out of reach", amber, "since "+when(n.GetContactLostAt())+", "+relative(n.GetContactLostAt().AsTime(), now))
	}
	f.add("key", n.GetKeyId())
	f.add("coordinator", n.GetCoordinator())
	f.paint("last error", amber, n.GetLastError())
	if c := n.GetOperatorCertificate(); c != nil {
		f.add("own PKI", ownPKI(c, now))
		f.paint("PKI problem", amber, operatorProblem(c, now))
	}
	f.add("authority", fmt.Sprintf("epoch %d", n.GetAuthorityEpoch()))
	switch state := snapshot.Freshness(n.GetFreshness()); state {
	case snapshot.Fresh:
		f.add("news", string(state))
	default:
		f.paint("news", amber, string(state))
	}
	if p := n.GetPartition(); p != "" && p != "connected" {
		f.paint("partition", amber, p)
		f.add("permitted", permittedWords(n.GetPermissions()))
	}
	for _, p := range lastPeriods(n.GetDegradedPeriods()) {
		f.paint("degraded", amber, periodWords(p, now))
	}
	if d := n.GetClockBehind(); d != nil {
		f.paint("clock", amber, "the machine's is "+span(d.AsDuration())+" behind what was signed; the node goes by that: set it")
	}
	f.add("release", n.GetRelease())
	p.heading("node")
	if err := p.facts(f); err != nil {
		return err
	}
	p.heading("snapshots")
	t := &table{columns: []column{{title: "SCOPE"}, {title: "EPOCH", right: true}, {title: "VERSION", right: true}, {title: "NEWS"}, {title: "CONTENT", least: 16}}}
	for _, h := range n.GetHeld() {
		t.add(txt(h.GetScope()), txt(itoa(int64(h.GetAuthorityEpoch()))), txt(itoa(int64(h.GetConfigVersion()))), txt(dash(h.GetFreshness())), txt(hex.EncodeToString(h.GetContentHash())))
	}
	if err := p.table(t); err != nil {
		return err
	}
	if len(n.GetRefusals()) == 0 {
		return nil
	}
	p.heading("refused")
	r := &table{columns: []column{{title: "SCOPE"}, {title: "REASON"}, {title: "DETAIL", least: 20}}}
	for _, x := range n.GetRefusals() {
		r.add(txt(x.GetScope()), painted(amber, "▲ "+x.GetReason()), txt(x.GetDetail()))
	}
	return p.table(r)
}
