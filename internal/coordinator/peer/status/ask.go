package status

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store/health"
	"github.com/fealty-io/fealty/mesh"
)

// statement is what another coordinator said.
type statement struct {
	name     string
	claim    string // what it says that it saw of the store, and cannot prove
	findings []*fealtyv1.Finding
}

// expected returns what package peer is to know of the coordinators.
func expected(all []peer.Record) []peer.Coordinator {
	out := make([]peer.Coordinator, len(all))
	for i, r := range all {
		out[i] = peer.Coordinator{
			Key: r.Key, Name: r.Name, Addresses: r.Addresses, Revision: uint64(r.Version),
			Recovering: r.Phase == authority.Recovery.String(), Stopped: r.Stopped,
		}
	}
	return out
}

// Follow asks the other coordinators what they saw of the store and what they find,
// until ctx ends. A statement that the cluster signed is proof; the rest is told to people.
func (p *Peers) Follow(ctx context.Context, s *authority.State) error {
	defer p.forgetStatements()
	for {
		began := time.Now()
		p.Ask(ctx, s)
		if err := watch.Sleep(ctx, max(hearPause-time.Since(began), hearPause-hearTimeout)); err != nil {
			return err
		}
	}
}

// Ask asks all of them once, as [Peers.Follow] does again and again.
func (p *Peers) Ask(ctx context.Context, s *authority.State) { p.askAll(ctx, s, hearTimeout) }

// askAll asks all other coordinators at once, and waits for each for no longer than
// timeout. One that does not answer within hearTimeout has left a question unanswered.
func (p *Peers) askAll(ctx context.Context, s *authority.State, timeout time.Duration) {
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case p.hearing <- struct{}{}:
		defer func() { <-p.hearing }()
	case <-asking.Done():
		return
	}
	all, conns, err := p.connect(asking, s)
	if err != nil {
		// While the store does not name them, those that it named last are asked. They get
		// the time that is left, and what that comes to is no evidence if it is none.
		all, conns = p.knownBefore(s)
		asking, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var asked sync.WaitGroup
	for i, r := range all {
		asked.Go(func() {
			seen, err := firstAnswer(asking, conns[i],
				func(ctx context.Context, conn *mesh.Conn) (*fealtyv1.GetSeenResponse, error) {
					return p.seenBy(ctx, s, conn)
				})
			switch {
			case err == nil:
				p.presence.Heard(r.Key, p.cfg.Elapsed())
				p.take(ctx, s, r, seen)
			case ctx.Err() == nil && timeout == hearTimeout:
				p.presence.Unanswered(r.Key)
			}
		})
	}
	asked.Wait()
}

// seenBy asks at one address. A coordinator that answers that it cannot say is heard
// too; then the answer is nil.
func (p *Peers) seenBy(ctx context.Context, s *authority.State, conn *mesh.Conn) (*fealtyv1.GetSeenResponse,
	error) {
	req := &fealtyv1.GetSeenRequest{AuthorityEpoch: s.Head.AuthorityEpoch}
	if t := p.cfg.Bundle.View(); t != nil {
		req.AuthorityEpoch, req.ConfigVersion = t.Epoch, t.Version
	}
	seen, err := fealtyv1.NewLiveServiceClient(conn).GetSeen(ctx, req)
	if _, worded := errcode.FromStatus(err); worded || status.Code(err) == codes.Unimplemented {
		return nil, nil // not ready, or of an earlier release
	}
	return seen, err
}

// take keeps what a coordinator said.
func (p *Peers) take(ctx context.Context, s *authority.State, r peer.Record, seen *fealtyv1.GetSeenResponse) {
	said := statement{name: r.Name}
	if seen != nil {
		claim, err := p.Compare(ctx, s, r.Name, seen)
		if err != nil {
			p.cfg.Failures.Log(ctx, p.cfg.Log, slog.LevelWarn,
				"what another coordinator saw of the store was not compared",
				slog.String("coordinator", r.Name), slog.Any("err", err))
		}
		said.claim = claim
		for _, f := range seen.GetFindings()[:min(len(seen.GetFindings()), MaxFindings)] {
			said.findings = append(said.findings, &fealtyv1.Finding{
				Code: ratelimit.Clip(f.GetCode(), live.MaxReleaseBytes), Severity: severityOf(f), Coordinator: r.Name,
				Summary: ratelimit.Clip(f.GetSummary(), maxFindingText), Remedy: ratelimit.Clip(f.GetRemedy(),
					maxFindingText),
			})
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.statements == nil {
		p.statements = make(map[string]statement)
	}
	p.statements[r.Key] = said
}

// severityOf returns the severity of a finding that somebody tells.
func severityOf(f *fealtyv1.Finding) string {
	if finding.Rank(f) < 0 {
		return "warning"
	}
	return f.GetSeverity()
}

// knownBefore returns the coordinators that the store named last.
func (p *Peers) knownBefore(s *authority.State) ([]peer.Record, [][]*mesh.Conn) {
	p.mu.Lock()
	all := p.known
	p.mu.Unlock()
	return all, p.connectTo(s, all)
}

func (p *Peers) forgetStatements() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statements = nil
}

// statementsNow returns what those said who are there still, by name.
func (p *Peers) statementsNow() []statement {
	now := p.cfg.Elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []statement
	for key, t := range p.statements {
		if _, expected := p.presence.Silent(key, now); expected && !p.presence.Gone(key, now) {
			out = append(out, t)
		}
	}
	slices.SortStableFunc(out, func(a, b statement) int { return strings.Compare(a.name, b.name) })
	return out
}

// AddTold adds to what this coordinator found what the others did. A finding of the
// store that they share, or one that two told, is said once.
func (p *Peers) AddTold(own []*fealtyv1.Finding) []*fealtyv1.Finding {
	out := own
	for _, t := range p.statementsNow() {
		if t.claim != "" && p.cfg.StoreGuard.Lost() == nil {
			out = append(out, finding.New(errcode.StoreClaimed, "member", "coordinator "+t.name, "claim", t.claim))
		}
		for _, f := range t.findings {
			known := slices.ContainsFunc(out, func(o *fealtyv1.Finding) bool {
				return o.GetCode() == f.GetCode() && (o.GetSummary() == f.GetSummary() || ofTheStore(f.GetCode()))
			})
			if !known {
				out = append(out, f)
			}
		}
	}
	return out
}

// ofTheStore reports whether what a finding says is so of the store, whoever says it.
func ofTheStore(code string) bool {
	return slices.Contains([]errcode.Code{errcode.StoreFull, errcode.StoreRefuses, errcode.StoreWentBack,
		errcode.StoreUnreachable, errcode.StoreHeld, errcode.StoreLoginRefused, errcode.StoreOverloaded, errcode.StoreUnsuitable},
		errcode.Code(code))
}

// MissedFindings says which other coordinators are missed: all that are gone as one, since
// how many are left is what decides what can still be lost.
func (p *Peers) MissedFindings() []*fealtyv1.Finding {
	var out []*fealtyv1.Finding
	var gone []peer.Missed
	now := p.cfg.Elapsed()
	for _, m := range p.presence.Missed(now) {
		if m.Recovering && m.Writes {
			out = append(out, finding.New(errcode.CoordinatorRecovering, "name", m.Name, "addresses",
				strings.Join(m.Addresses, ", ")))
			continue
		}
		gone = append(gone, m)
	}
	if len(gone) == 0 {
		return out
	}
	var names []string
	longest, writes := gone[0], false
	for _, m := range gone {
		names = append(names, m.Name)
		writes = writes || m.Writes
		if m.For > longest.For {
			longest = m
		}
	}
	since := longest.For.Round(time.Second).String()
	if !longest.Ever {
		since += ", which is since the one that is asked became ready"
	}
	note := "members that are connected to it alone are not known here"
	if len(gone) > 1 {
		note = "members that are connected to them alone are not known here"
	}
	if writes {
		note = "it wrote to the store a short while ago, so that it may run out of reach; " + note
	}
	fields := []any{"name", named(names), "since", since, "note", note, "left", leftWords(p.presence.Counted(now))}
	if len(gone) == 1 {
		fields = append(fields, "addresses", strings.Join(gone[0].Addresses, ", "), "forget", names[0])
	}
	return append(out, finding.New(errcode.CoordinatorUnheard, fields...))
}

// named lists names, of many the first few.
func named(names []string) string {
	if more := len(names) - finding.FoldAbove; more > 0 {
		return strings.Join(names[:finding.FoldAbove], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}

// leftWords says what the loss of a further coordinator stops, if left of all are heard.
func leftWords(left, all int) string {
	if left > 1 {
		return fmt.Sprintf("%d of %d coordinators are left: %d more may be lost", left, all, left-1)
	}
	return fmt.Sprintf("%d of %d coordinators left: the next loss stops joins, renewals and changes, and the seed has "+
		"to be brought back by a keeper or its owners", left, all)
}

// Compare compares the store with what another coordinator says of it, and returns
// what of that is no proof; empty if there is nothing to tell.
func (p *Peers) Compare(ctx context.Context, s *authority.State, name string,
	seen *fealtyv1.GetSeenResponse) (claim string, err error) {
	if seen.GetRestored() != s.RestoredEpoch() {
		return "", nil // one of both does not know of a restore yet
	}
	if raw := seen.GetTrustBundle().GetEnvelope(); raw != nil {
		if err := p.cfg.Proven(ctx, "coordinator "+name,
			raw); err != nil && errcode.CodeOf(err) != string(errcode.RequestField) {
			return "", err
		}
	}
	if p.cfg.StoreGuard.Lost() != nil {
		return "", nil // it is known
	}
	if said := (health.Claim{Epoch: s.Head.AuthorityEpoch,
		Value: seen.GetRevision()}); said.Above(s.Head.AuthorityEpoch, p.cfg.StoreGuard.Revision()) {
		l, err := p.cfg.Store.List(ctx, bundle.StateKey)
		if err != nil {
			return "", err
		}
		if said.Above(s.Head.AuthorityEpoch, uint64(l.Revision)) {
			return fmt.Sprintf("revision %d, and the store is at %d", said.Value, l.Revision), nil
		}
	}
	if seen.GetLost() {
		return "more than the store has now: it went back, it says", nil
	}
	return "", nil
}
