package coordinator

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// statusReadTimeout bounds how long status waits for the store, before it says what
// it knows without.
const statusReadTimeout = 3 * time.Second

// calls is what a finding says that the store did not do.
const calls = "calls of the store"

// statusServer serves StatusService.
type statusServer struct {
	fealtyv1.UnimplementedStatusServiceServer
	c *Coordinator
}

func (t statusServer) GetStatus(ctx context.Context, req *fealtyv1.GetStatusRequest) (*fealtyv1.GetStatusResponse,
	error) {
	c := t.c
	from, err := member.ReadPage(req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	if req.GetPageToken() == "" && c.parts.Head.State().Phase == authority.Ready {
		// A setter of a manifest begins with the head that is said here.
		reading, cancel := context.WithTimeout(ctx, statusReadTimeout)
		if !c.parts.Head.HeadHolds(reading) {
			c.parts.Moves.Succession.Leave(reading)
		}
		cancel()
	}
	s := c.parts.Head.State()
	if !from.First() && s.Phase == authority.Ready {
		out := c.introduction(ctx, s)
		out.ClusterId = s.Manifest.Cluster
		out.Members, out.NextPageToken, _, err = c.parts.Membership.List(ctx, s, "", from, nil)
		return out, err
	}
	if req.GetNeedSomebody() && from.First() {
		out, all, err := c.look(ctx, s, member.Page{})
		if err != nil {
			return nil, err
		}
		out.Members = all.NeedSomebody(out.GetNow().AsTime(), from.Size())
		return out, nil
	}
	out, all, err := c.look(ctx, s, from)
	if err != nil {
		return nil, err
	}
	out.Members, out.NextPageToken = all.Page, all.Next
	return out, nil
}

// introduction is what a coordinator says of itself, whatever state it is in.
func (c *Coordinator) introduction(ctx context.Context, s *authority.State) *fealtyv1.GetStatusResponse {
	return &fealtyv1.GetStatusResponse{
		Phase: s.Phase.String(), PhaseReason: s.Reason, Release: c.cfg.Release,
		Now: timestamppb.New(c.now()), StartedAt: timestamppb.New(c.startedAt),
		Store: c.cfg.StoreName, Addresses: c.addresses(), EnrolmentKey: c.parts.Self.EnrolmentKey(),
		OperatorCertificate: enterprise.Tell(ctx, c.parts.Self.Certificate().Files()),
	}
}

// look looks at all that there is, and returns what it came to but the members, which are
// apart, with the first page of them as it is asked for.
func (c *Coordinator) look(ctx context.Context, s *authority.State, from member.Page) (out *fealtyv1.GetStatusResponse,
	all *member.Roll, err error) {
	out, all = c.introduction(ctx, s), &member.Roll{}
	now := out.GetNow().AsTime()
	var unread []string // what the store did not say
	defer func() {
		if err == nil {
			slices.SortStableFunc(out.Findings,
				func(a, b *fealtyv1.Finding) int { return finding.Rank(a) - finding.Rank(b) })
			open := c.unknown(s, out)
			for _, clause := range unread {
				if !slices.Contains(open.clauses, clause) {
					open.clauses = append(open.clauses, clause)
				}
			}
			out.Verdict = c.verdicts.judge(out, open, c.now())
		}
	}()
	if s.Phase != authority.Uninitialized {
		reading, cancel := context.WithTimeout(ctx, statusReadTimeout)
		var told error
		if out.Replicas, told = c.parts.Announcement.Messages(reading, s); told != nil {
			unread = append(unread, othersUnknown)
		}
		cancel()
	}
	first := c.headFindings(s) // said whatever else is found
	if s.Phase != authority.Ready {
		out.Findings = first
		if s.Phase == authority.Uninitialized {
			out.Findings = append(out.Findings, finding.New(errcode.HistoryUninitialized))
		} else {
			out.Findings = append(out.Findings, recoveryFindings(s, c.parts.Secrets.OwnerRecovery.Text(s))...)
		}
		out.Findings = slices.Concat(out.Findings, c.parts.StoreGuard.RefusingFindings(),
			c.parts.StoreGuard.OutageFindings(calls), c.logFindings(s))
		return out, all, nil
	}
	out.ClusterId = s.Manifest.Cluster
	out.Leader = c.parts.Election.Message()
	out.AuthorityEpoch = s.Head.AuthorityEpoch
	out.HistoryIndex = s.Head.Index
	out.Head = s.Head.Hash[:]
	out.HeadConfirmedAt = timestamppb.New(c.parts.Head.Confirmed())
	out.RootPin = s.RootPin[:]
	out.SeedEpoch = s.Head.SeedEpoch
	out.MeshCaKey = s.MeshKey[:]
	out.MeshCaNotAfter = timestamppb.New(s.MeshCA().Certificate().NotAfter)
	out.RootNotAfter = timestamppb.New(s.Root.NotAfter)
	c.parts.Peers.Hear(ctx, s)
	asked := time.Now()
	reading, cancel := context.WithTimeout(ctx, statusReadTimeout)
	defer cancel()
	from.At, err = c.parts.Membership.Sync(reading, s)
	var trust current.Shown
	if err == nil {
		out.StoreLatency = durationpb.New(time.Since(asked))
		trust, err = c.parts.Bundle.Look(reading, s)
	}
	switch {
	case err != nil && ctx.Err() == nil && (reading.Err() != nil || errors.Is(err, errcode.StoreUnreachable)):
		// Now is when people look. Without a baseline the members are not known.
		out.StoreLatency = nil
		// Why it takes no writes may be why it is not read: a file that is gone is told first.
		kept, _ := c.parts.Secrets.Keepers.Findings(reading, s) // that the store does not answer is said below
		out.Findings = append(append(first, c.parts.StoreGuard.RefusingFindings()...), kept...)
		if outage := c.parts.StoreGuard.OutageFindings(calls); outage != nil {
			out.Findings = append(out.Findings, outage...)
		} else {
			out.Findings = append(out.Findings, finding.NewCritical(errcode.StoreUnreachable, "what", "read the members",
				"cause", "the coordinator's log says how"))
		}
		out.Findings = append(append(out.Findings, c.parts.Peers.MissedFindings()...), c.logFindings(s)...)
		out.Findings = c.parts.Peers.AddTold(out.Findings)
		if _, err := c.parts.Head.DegradedState("read the members", err); err != nil {
			return out, all, nil
		}
		out.Findings = append(out.Findings, c.parts.Membership.ForgedFindings()...)
		all = c.parts.Membership.RollKnown(s, now, from)
		out.Baseline, out.Contacts, out.Counts = baseline(s.Manifest, all), all.Contacts(), all.Counts
		return out, all, nil
	case err != nil:
		return nil, nil, err
	}
	c.parts.Membership.Hear(reading, s)
	all = c.parts.Membership.RollCall(s, trust.IDs, now, from)
	if out.Upkeep, err = c.parts.Shown.Backups.Upkeep(reading, s); err != nil {
		unread = append(unread, "when a backup was made")
	}
	out.Bans, out.BansLimit = uint32(trust.Bans), uint32(c.parts.Bundle.MaxListed())
	out.Baseline, out.Contacts, out.Counts = baseline(s.Manifest, all), all.Contacts(), all.Counts
	kept, err := c.parts.Secrets.Keepers.Findings(reading, s)
	if err != nil {
		unread = append(unread, "whether keepers open the seed")
	}
	out.Findings = slices.Concat(first, c.parts.StoreGuard.RefusingFindings(), c.parts.StoreGuard.OutageFindings(calls),
		trust.Findings, kept)
	// Whoever is well is not among those of whom more is said, and nothing is found of them.
	out.Findings = append(out.Findings, findings(out, all.Said, c.joinBy(s.Manifest), now,
		c.parts.Membership.ListensSince())...)
	for _, part := range []struct {
		unknown  string // what is, if the store does not say
		findings func() ([]*fealtyv1.Finding, error)
	}{
		{"whether members know of more than the store", func() ([]*fealtyv1.Finding, error) {
			return c.parts.Membership.Claims(reading, s, all.Said)
		}},
		{"whether processes were fenced", func() ([]*fealtyv1.Finding, error) {
			return c.parts.Fencing.Incidents.Findings(reading, s)
		}},
		{"whether domains have owners that are heard", func() ([]*fealtyv1.Finding, error) {
			return c.parts.Fencing.Domains.Findings(reading, s)
		}},
		{"whether instructions wait as they were given", func() ([]*fealtyv1.Finding, error) {
			return c.parts.Fencing.Instructions.Findings(reading, s)
		}},
		{"whether tokens are as they were created", func() ([]*fealtyv1.Finding, error) {
			return c.parts.Admission.Findings(reading, s)
		}},
	} {
		found, err := part.findings()
		if err != nil {
			unread = append(unread, part.unknown)
		}
		out.Findings = append(out.Findings, found...)
	}
	out.Findings = append(out.Findings, c.parts.Election.Findings()...)
	out.Findings = append(out.Findings, c.parts.Publication.Findings()...)
	out.Findings = append(append(out.Findings, manifestFindings(s.Manifest)...), operatorRootFindings(s, c.now())...)
	out.Findings = append(out.Findings, c.parts.Desired.Findings()...)
	out.Findings = slices.Concat(out.Findings, c.parts.Membership.ForgedFindings(),
		c.parts.Membership.CopyFindings(), c.parts.Membership.OlderKeyFindings())
	out.Findings = append(out.Findings, c.parts.Peers.MissedFindings()...)
	out.Findings = append(append(out.Findings, c.parts.Audit.Findings()...), c.logFindings(s)...)
	out.Findings = c.parts.Peers.AddTold(out.Findings)
	return out, all, nil
}

// recoveryFindings says why a coordinator is in recovery mode: first what can be mended on its
// machine, whole and with its own remedy, then the rest of why.
func recoveryFindings(s *authority.State, why string) (out []*fealtyv1.Finding) {
	var advice []any
	if s.Ownerless {
		advice = []any{"do", "start a coordinator that has its keys or whose keeper opens the seed: nobody owns a share of it"}
	}
	if m := s.Mend; m != nil {
		out = append(out, &fealtyv1.Finding{Code: string(m.Code), Severity: finding.Critical,
			Summary: m.What + ": " + m.Why, Remedy: m.Do})
		if m.Code == errcode.RootNotPinned { // whoever has the keys has those of this root
			short := "its root is not the one that is pinned (" + string(m.Code) + ")"
			why = strings.NewReplacer(m.Error(), short, m.What+": "+m.Why, short).Replace(why)
			return append(out, finding.NewCritical(errcode.RecoveryMode, "do", "mend the root pin, which is a finding of its "+
				"own; then it comes back by itself", "method", "the fleet", "reason", strings.ReplaceAll(why, "\n", "; ")))
		}
		why = strings.Replace(why, m.Error(), "its keeper opens nothing ("+string(m.Code)+")", 1)
		if s.Ownerless {
			advice[1] = "mend the keeper, which is a finding of its own, or start a coordinator that has its keys: nobody " +
				"owns a share of the seed"
		}
	}
	return append(out, finding.NewCritical(errcode.RecoveryMode, append(advice, "method", "the fleet", "reason",
		strings.ReplaceAll(why, "\n", "; "))...))
}

// headFindings says what is wrong about the head of the history, and with it about all.
func (c *Coordinator) headFindings(s *authority.State) (out []*fealtyv1.Finding) {
	if older := c.parts.Head.OlderHeadError(); older != nil {
		e := errcode.Of(older)
		out = append(out, finding.NewCritical(errcode.HistoryInvalid, "cluster", e.Fields["cluster"], "index",
			e.Fields["index"], "problem", e.Fields["problem"]))
	}
	since := c.parts.Head.BehindSince()
	if !c.parts.Head.Acts(s) && s.Phase == authority.Ready && c.now().Sub(since) >= authority.FollowPatience {
		out = append(out, finding.New(errcode.HeadNotFollowed, "since", since.UTC().Format(time.RFC3339)))
	}
	return slices.Concat(out, c.parts.StoreGuard.LostFindings(), c.parts.StoreGuard.UnkeptFindings(), c.parts.StoreGuard.ProcessFindings(),
		c.parts.Self.CertificateFindings())
}

// logFindings says that this coordinator's log is lost, while it is.
func (c *Coordinator) logFindings(s *authority.State) []*fealtyv1.Finding {
	who := "this coordinator"
	if s.Manifest != nil {
		who = "coordinator " + c.parts.Self.NameIn(s.Manifest)
	}
	e := c.cfg.Monitoring.Output.Finding(who)
	if e == nil {
		return nil
	}
	return []*fealtyv1.Finding{{Code: string(e.Code), Severity: "warning", Summary: e.What + ": " + e.Why, Remedy: e.Do}}
}

// manifestFindings says what of the manifest in force could not be set today.
func manifestFindings(m *manifest.Manifest) []*fealtyv1.Finding {
	problems := m.Findings()
	if problems == nil {
		return nil
	}
	return []*fealtyv1.Finding{finding.New(errcode.ManifestOutdated, "count", fmt.Sprint(len(problems)), "problem",
		problems[0].Error())}
}

// rootsLow is how long before the last root of an operator's PKI ends that is a finding.
const rootsLow = 30 * 24 * time.Hour

// lastOperatorRoot returns the root of the operator's PKI that ends last; nil if the manifest
// names none.
func lastOperatorRoot(s *authority.State) (last *x509.Certificate) {
	if s.Phase != authority.Ready || s.X509Roots == nil {
		return nil
	}
	for _, cert := range s.X509Roots.Certificates() {
		if last == nil || cert.NotAfter.After(last.NotAfter) {
			last = cert
		}
	}
	return last
}

// operatorRootFindings says that the last root of the operator's PKI ends, or has ended.
func operatorRootFindings(s *authority.State, now time.Time) []*fealtyv1.Finding {
	last := lastOperatorRoot(s)
	if last == nil || last.NotAfter.Sub(now) >= rootsLow {
		return nil
	}
	fields := []any{"root", ratelimit.Clip(last.Subject.String(), ratelimit.MaxShownBytes), "at",
		last.NotAfter.UTC().Format(time.RFC3339)}
	if now.After(last.NotAfter) {
		return []*fealtyv1.Finding{finding.NewCritical(errcode.OperatorRootsEnd, append(fields, "ends", "has ended")...)}
	}
	return []*fealtyv1.Finding{finding.New(errcode.OperatorRootsEnd, fields...)}
}

// maxDrainingNamed is how many draining members a baseline names.
const maxDrainingNamed = 8

// baseline counts the data members that are active and not banned, and of them those that
// are connected. One that drains is about to go: what it holds up must stand without it.
func baseline(man *manifest.Manifest, members *member.Roll) *fealtyv1.Baseline {
	well := members.Well[identity.Data]
	b := &fealtyv1.Baseline{Needed: uint32(man.Baseline.Data), DataMembers: well, Connected: well}
	for _, m := range members.Said {
		switch {
		case m.GetKind() != string(identity.Data) || m.GetBanned():
		case m.GetState() == record.Active:
			b.DataMembers++
			switch peer.Contact(m.GetContact()) {
			case peer.Connected:
				b.Connected++
			case peer.Unknown:
				b.Unknown++
			}
		case m.GetState() == record.Draining:
			if b.DrainingCount++; len(b.Draining) < maxDrainingNamed {
				b.Draining = append(b.Draining, m.GetKind()+"/"+m.GetName())
			}
		}
	}
	state := peer.Enough(b.Needed, b.Connected, b.Unknown)
	b.State, b.Met = string(state), state == peer.Met
	return b
}

// staleAfter is how long a connected member may say that what it holds is not fresh: it is
// sent what is newer at once.
const staleAfter = time.Minute

// findings says what needs attention, the most urgent first. An event that hit many
// members at once is one finding: it has one cause. Members could report since
// hears.
func findings(st *fealtyv1.GetStatusResponse, members []*fealtyv1.Member, entry string, now,
	listensSince time.Time) []*fealtyv1.Finding {
	var out []*fealtyv1.Finding
	if b := st.GetBaseline(); b.GetState() == string(peer.NotMet) {
		out = append(out, finding.New(errcode.MemberBaseline, baselineFields(b, entry)...))
	}
	var expired, silent, stale, clocks []finding.Case
	var shards shardCases
	var logs []*fealtyv1.Member
	for _, m := range members {
		path := m.GetKind() + "/" + m.GetName()
		switch live, end := m.GetLive(), m.GetSvidNotAfter().AsTime(); {
		case m.GetBanned() || m.GetState() == record.Replacing || record.IsSession(identity.Kind(m.GetKind())):
		case !now.Before(end):
			expired = append(expired, finding.Case{Member: path, Value: end.UTC().Format(time.RFC3339)})
		case live.GetConnected(), len(st.GetContacts().GetUnanswered()) > 0, now.Sub(record.Later(listensSince,
			live.GetLastReport().AsTime())) <= peer.SilentAfter:
		case live.GetLastReport() != nil:
			silent = append(silent, finding.Case{Member: path,
				Value: live.GetLastReport().AsTime().UTC().Format(time.RFC3339)})
		default:
			silent = append(silent, finding.Case{Member: path, Value: "before this coordinator was ready"})
		}
		live := m.GetLive()
		if since := live.GetStaleSince(); live.GetConnected() && since != nil && now.Sub(since.AsTime()) >= staleAfter {
			stale = append(stale, finding.Case{Member: path, Value: since.AsTime().UTC().Format(time.RFC3339)})
		}
		shards.add(m, now, len(st.GetContacts().GetUnanswered()) == 0)
		if d := live.GetClockBehind(); live.GetConnected() && d != nil {
			clocks = append(clocks, finding.Case{Member: path, Value: d.AsDuration().Round(time.Second).String()})
		}
		if live.GetConnected() && live.GetLogProblem() != "" {
			logs = append(logs, m)
		}
	}
	out = append(out, finding.Fold(errcode.MemberExpired, "expired", expired)...)
	out = append(out, finding.Fold(errcode.MemberSilent, "since", silent)...)
	out = append(out, finding.Fold(errcode.MemberStale, "since", stale)...)
	out = append(out, finding.Fold(errcode.MemberClock, "behind", clocks)...)
	out = append(out, shards.findings()...)
	out = append(out, lostLogs(logs)...)
	slices.SortStableFunc(out, func(a, b *fealtyv1.Finding) int { return finding.Rank(a) - finding.Rank(b) })
	return out
}

// How long something may last at a shard before it is told: a machine that is made takes a while, and a roll-up that is
// meant is reported three times.
const (
	shortAfter = 5 * time.Minute
	heldAfter  = time.Minute
)

// shardCases is what is found of shards, as their processes say it.
type shardCases struct{ paused, silent, short, held []finding.Case }

// add looks at what the process of a member says. That nothing is heard of it is told where everybody was asked, and once:
// of one that owns domains and does not even ask what it owns, the domains say so.
func (c *shardCases) add(m *fealtyv1.Member, now time.Time, answered bool) {
	p, path := m.GetLive().GetProcess(), m.GetKind()+"/"+m.GetName()
	r, calls := p.GetReport(), now.Sub(p.GetLastCall().AsTime()) <= peer.SilentAfter
	age := p.GetReportAge().AsDuration()
	if m.GetBanned() || p == nil {
		return
	}
	if p.GetPaused() && calls {
		words := "and said so last at " + p.GetLastCall().AsTime().UTC().Format(time.RFC3339)
		if by := pausedBy(r); by != "" && age <= peer.SilentAfter {
			words = by + ", for " + humanize.Span(r.GetPausedFor().AsDuration()+age) + " now, " + words
		}
		c.paused = append(c.paused, finding.Case{Member: path, Value: words})
	}
	switch {
	case r == nil:
	case age > peer.SilentAfter:
		if answered && m.GetState() == record.Active && now.Before(m.GetSvidNotAfter().AsTime()) &&
			(calls || len(m.GetDomains()) == 0) {
			c.silent = append(c.silent, finding.Case{Member: path, Value: humanize.Span(age)})
		}
	case r.GetPausedFor() != nil: // what it does not do says nothing
	default:
		if d := r.GetShortFor(); d != nil && d.AsDuration() >= shortAfter {
			c.short = append(c.short, finding.Case{Member: path, Value: r.GetShortOf() + ", the first for " +
				humanize.Span(d.AsDuration())})
		}
		if d := r.GetHeldFor(); d != nil && d.AsDuration() >= heldAfter {
			c.held = append(c.held, finding.Case{Member: path, Value: r.GetHeldOf() + ", the first for " +
				humanize.Span(d.AsDuration())})
		}
	}
}

// pausedBy says who had a shard pause; "" if it does not say.
func pausedBy(r *fealtyv1.ShardReport) string {
	switch {
	case r.GetPausedByFlag() && r.GetPausedByInstruction():
		return "by --actuation-paused and by an instruction"
	case r.GetPausedByFlag():
		return "by --actuation-paused"
	case r.GetPausedByInstruction():
		return "by an instruction"
	}
	return ""
}

func (c *shardCases) findings() []*fealtyv1.Finding {
	return slices.Concat(finding.Fold(errcode.ShardPaused, "said", c.paused), finding.Fold(errcode.ShardSilent, "since", c.silent),
		finding.Fold(errcode.ShardShort, "of", c.short), finding.Fold(errcode.ShardHolds, "of", c.held))
}

// lostLogs makes a finding of each member that says that its log is lost, or a single one if
// there are many.
func lostLogs(members []*fealtyv1.Member) (out []*fealtyv1.Finding) {
	lost := func(who string, l *fealtyv1.Live, note string) *fealtyv1.Finding {
		since := "a while ago"
		if at := l.GetLogProblemSince(); at != nil {
			since = at.AsTime().UTC().Format(time.RFC3339)
		}
		return finding.New(errcode.LogFailing, "who", who, "problem", l.GetLogProblem()+note, "since", since,
			"lines", fmt.Sprint(l.GetLogDropped()))
	}
	var named []string
	for _, m := range members {
		named = append(named, m.GetKind()+"/"+m.GetName())
	}
	if more := len(members) - finding.FoldAbove; more > 0 {
		named = append(named[:finding.FoldAbove], fmt.Sprintf("and %d more", more))
		return []*fealtyv1.Finding{lost("the agents of "+strings.Join(named, ", "), members[0].GetLive(),
			" (of the first of them)")}
	}
	for i, m := range members {
		out = append(out, lost("the agent of "+named[i], m.GetLive(), ""))
	}
	return out
}

// joinBy is the entry that a data member joins by; "" while nobody can join, because the store went
// back or takes no writes.
func (c *Coordinator) joinBy(m *manifest.Manifest) string {
	if c.parts.StoreGuard.Lost() != nil || len(c.parts.StoreGuard.RefusingFindings()) > 0 {
		return ""
	}
	return dataEntry(m)
}

// dataEntry is the first entry of m that admits data members by token, or a word
// in its place.
func dataEntry(m *manifest.Manifest) string {
	for i := range m.Admit {
		if e := &m.Admit[i]; e.Kind == identity.Data && e.AdmitsTokens() {
			return e.Name
		}
	}
	return "ENTRY"
}

// baselineFields are the values of the finding on a baseline that is not met. A
// token for entry makes a data member; "": nobody can join now.
func baselineFields(b *fealtyv1.Baseline, entry string) []any {
	create := "fealty token create --entry " + entry
	have := fmt.Sprint(b.GetConnected())
	if b.GetUnknown() > 0 {
		have = "at least " + have
	}
	out := []any{"have", have, "need", fmt.Sprint(b.GetNeeded())}
	const silent = "see why those that are not heard do not connect: fealty member list --kind data"
	away := b.GetDataMembers()-b.GetConnected()-b.GetUnknown() > 0
	switch {
	case entry == "" && away:
		out = append(out, "remedy", silent+"; nobody can join before the store is mended, which is a finding of its own")
	case entry == "":
		out = append(out, "remedy", "mend the store first, which is a finding of its own: nobody can join before")
	case !away:
		out = append(out, "remedy", "let more nodes of kind data join: "+create)
	case b.GetDataMembers() < b.GetNeeded():
		out = append(out, "remedy", silent+"; and let more nodes join: "+create)
	default:
		out = append(out, "remedy", silent)
	}
	n := b.GetDrainingCount()
	if n == 0 {
		return out
	}
	named := strings.Join(b.GetDraining(), ", ")
	verb := "drains and does not count"
	if n > 1 {
		verb = "drain and do not count"
	}
	if more := int(n) - len(b.GetDraining()); more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	out = append(out, "note", named+" "+verb)
	if entry != "" && b.GetConnected()+n >= b.GetNeeded() {
		out = append(out,
			"remedy", "let a node of kind data join first: "+create+"; or fealty member undrain "+b.GetDraining()[0])
	}
	return out
}
