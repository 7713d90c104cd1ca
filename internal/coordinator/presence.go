package coordinator

import (
	"context"
	"errors"
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
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/live"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/presence"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/mesh"
)

// Every coordinator tells what any of them can know. Each asks the others every few
// seconds: by whether they answer it knows who is there (package presence), and by what
// they say what they find that it cannot see itself.

// Times and bounds of asking.
const (
	hearPause   = 2500 * time.Millisecond // from one question to the next
	hearTimeout = 2 * time.Second         // for an answer
	// maxToldFindings bounds the findings that one coordinator tells, and maxFindingText
	// each of their texts.
	maxToldFindings = 64
	maxFindingText  = 2 << 10
)

// told is what another coordinator said.
type told struct {
	name     string
	claim    string // what it says that it saw of the store, and cannot prove
	findings []*fealtyv1.Finding
}

// expected returns what package presence is to know of the coordinators.
func expected(all []replicas.Record) []presence.Coordinator {
	out := make([]presence.Coordinator, len(all))
	for i, r := range all {
		out[i] = presence.Coordinator{
			Key: r.Key, Name: r.Name, Addresses: r.Addresses, Revision: uint64(r.Version),
			Recovering: r.Phase == authority.Recovery.String(), Stopped: r.Stopped,
		}
	}
	return out
}

// followPeers asks the other coordinators what they saw of the store and what they find,
// until ctx ends. A statement that the cluster signed is proof; the rest is told to people.
func (c *Membership) followPeers(ctx context.Context, s *authority.State) error {
	defer c.others.forgetTold()
	for {
		began := time.Now()
		c.askOthers(ctx, s, hearTimeout)
		if err := watch.Sleep(ctx, max(hearPause-time.Since(began), hearPause-hearTimeout)); err != nil {
			return err
		}
	}
}

// hearPeers asks them for somebody who looks now.
func (c *Membership) hearPeers(ctx context.Context, s *authority.State) {
	c.askOthers(ctx, s, askOthers)
}

// askOthers asks all other coordinators at once, and waits for each for no longer than
// patience.
func (c *Membership) askOthers(ctx context.Context, s *authority.State, patience time.Duration) {
	e := c.others
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case e.hearing <- struct{}{}:
		defer func() { <-e.hearing }()
	case <-asking.Done():
		return
	}
	all, conns, err := e.connect(asking, c, s)
	if err != nil {
		// While the store does not name them, those that it named last are asked. They get
		// the time that is left, and what that comes to is no evidence if it is none.
		all, conns = e.knownBefore(c, s)
		asking, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	var asked sync.WaitGroup
	for i, r := range all {
		asked.Go(func() {
			seen, err := firstAnswer(asking, conns[i],
				func(ctx context.Context, conn *mesh.Conn) (*fealtyv1.GetSeenResponse, error) {
					return c.seenBy(ctx, s, conn)
				})
			switch {
			case err == nil:
				c.presence.Heard(r.Key, c.cfg.Elapsed())
				c.take(ctx, s, r, seen)
			case ctx.Err() == nil && patience == hearTimeout:
				c.presence.Unanswered(r.Key)
			}
		})
	}
	asked.Wait()
}

// seenBy asks at one address. Whoever answers that it cannot say is heard too; then the
// answer is nil.
func (c *Membership) seenBy(ctx context.Context, s *authority.State, conn *mesh.Conn) (*fealtyv1.GetSeenResponse,
	error) {
	req := &fealtyv1.GetSeenRequest{AuthorityEpoch: s.Head.AuthorityEpoch}
	if t := c.cfg.Bundle.View(); t != nil {
		req.AuthorityEpoch, req.ConfigVersion = t.Epoch, t.Version
	}
	seen, err := fealtyv1.NewLiveServiceClient(conn).GetSeen(ctx, req)
	if _, worded := explain.FromStatus(err); worded || status.Code(err) == codes.Unimplemented {
		return nil, nil // not ready, or of an earlier release
	}
	return seen, err
}

// take keeps what a coordinator said.
func (c *Membership) take(ctx context.Context, s *authority.State, r replicas.Record, seen *fealtyv1.GetSeenResponse) {
	said := told{name: r.Name}
	if seen != nil {
		claim, err := c.compareSeen(ctx, s, r.Name, seen)
		if err != nil {
			c.cfg.Failures.Log(ctx, c.cfg.Log, slog.LevelWarn,
				"what another coordinator saw of the store was not compared",
				slog.String("coordinator", r.Name), slog.Any("err", err))
		}
		said.claim = claim
		for _, f := range seen.GetFindings()[:min(len(seen.GetFindings()), maxToldFindings)] {
			said.findings = append(said.findings, &fealtyv1.Finding{
				Code: flowcontrol.Clip(f.GetCode(), live.MaxReleaseBytes), Severity: severityOf(f), Coordinator: r.Name,
				Summary: flowcontrol.Clip(f.GetSummary(), maxFindingText), Remedy: flowcontrol.Clip(f.GetRemedy(),
					maxFindingText),
			})
		}
	}
	c.others.mu.Lock()
	defer c.others.mu.Unlock()
	if c.others.told == nil {
		c.others.told = make(map[string]told)
	}
	c.others.told[r.Key] = said
}

// severityOf returns the severity of a finding that somebody tells.
func severityOf(f *fealtyv1.Finding) string {
	if finding.Rank(f) < 0 {
		return "warning"
	}
	return f.GetSeverity()
}

// knownBefore returns the coordinators that the store named last.
func (e *others) knownBefore(c *Membership, s *authority.State) ([]replicas.Record, [][]*mesh.Conn) {
	e.mu.Lock()
	all := e.known
	e.mu.Unlock()
	return all, e.connectTo(c, s, all)
}

func (e *others) forgetTold() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told = nil
}

// toldNow returns what those said who are there still, by name.
func (c *Membership) toldNow() []told {
	e, now := c.others, c.cfg.Elapsed()
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []told
	for key, t := range e.told {
		if _, expected := c.presence.Silent(key, now); expected && !c.presence.Gone(key, now) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b told) int { return strings.Compare(a.name, b.name) })
	return out
}

// foundHere is what this coordinator tells the others: they cannot find it themselves.
func (c *Membership) foundHere(s *authority.State) []*fealtyv1.Finding {
	out := append(c.cfg.Found(s), c.olderKeyFindings()...)
	return out[:min(len(out), maxToldFindings)]
}

// withTold adds to what this coordinator found what the others did. A finding of the
// store that they share, or one that two told, is said once.
func (c *Membership) withTold(own []*fealtyv1.Finding) []*fealtyv1.Finding {
	out := own
	for _, t := range c.toldNow() {
		if t.claim != "" && c.cfg.StoreGuard.Lost() == nil {
			out = append(out, finding.New(explain.StoreClaimed, "member", "coordinator "+t.name, "claim", t.claim))
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
	return slices.Contains([]explain.Code{explain.StoreFull, explain.StoreRefuses, explain.StoreWentBack},
		explain.Code(code))
}

// missedFindings says which other coordinators are missed.
func (c *Membership) missedFindings() []*fealtyv1.Finding {
	var out []*fealtyv1.Finding
	for _, m := range c.presence.Missed(c.cfg.Elapsed()) {
		if m.Recovering && m.Writes {
			out = append(out, finding.New(explain.CoordinatorRecovering, "name", m.Name, "addresses",
				strings.Join(m.Addresses, ", ")))
			continue
		}
		since := m.For.Round(time.Second).String()
		if !m.Ever {
			since += ", which is since the one that is asked became ready"
		}
		note := "members that are connected to it alone are not known here"
		if m.Writes {
			note = "it wrote to the store a short while ago, so that it may run out of reach; " + note
		}
		out = append(out, finding.New(explain.CoordinatorUnheard, "name", m.Name, "since", since, "addresses",
			strings.Join(m.Addresses, ", "), "note", note))
	}
	return out
}

// coordinatorServer serves CoordinatorService.
type coordinatorServer struct {
	fealtyv1.UnimplementedCoordinatorServiceServer
	c *Membership
}

func (x coordinatorServer) ForgetCoordinator(ctx context.Context,
	req *fealtyv1.ForgetCoordinatorRequest) (*fealtyv1.ForgetCoordinatorResponse, error) {
	c := x.c
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	for range record.CommitTries {
		s, err := c.cfg.Head.InForce(ctx)
		if err != nil {
			return nil, err
		}
		out, err := c.forgetCoordinator(ctx, s, req)
		if err == nil || !c.cfg.Head.Conflicts(ctx, err) {
			return out, err
		}
	}
	return nil, record.Busy("coordinator " + flowcontrol.Clip(req.GetName(), flowcontrol.MaxShownBytes))
}

// forgetCoordinator removes what the coordinators of a name said of themselves that stopped
// or are not heard.
func (c *Membership) forgetCoordinator(ctx context.Context, s *authority.State,
	req *fealtyv1.ForgetCoordinatorRequest) (*fealtyv1.ForgetCoordinatorResponse, error) {
	const what = "forget a coordinator"
	name := req.GetName()
	// Those are forgotten too that are not told of any more, a bounded number at a time.
	all, err := c.cfg.Replicas.All(ctx, s.Manifest)
	if err != nil {
		return nil, c.cfg.Head.StoreError(what, err)
	}
	all = slices.DeleteFunc(all, func(r replicas.Record) bool { return r.Name != name })
	all = all[:min(len(all), replicas.Max)]
	if len(all) == 0 {
		return nil, explain.New(explain.NotFound, "what", "coordinator", "name",
			flowcontrol.Clip(name, flowcontrol.MaxShownBytes))
	}
	out := &fealtyv1.ForgetCoordinatorResponse{}
	ch := s.Records.NewChange(s.HeadVersion)
	now, heard := c.cfg.Elapsed(), ""
	for _, r := range all {
		switch silent, _ := c.presence.Silent(r.Key, now); {
		case r.Key == c.cfg.Self.EnrolmentKey():
			heard = "it is the one that was asked"
			continue
		case !r.Stopped && !c.presence.Gone(r.Key, now):
			heard = fmt.Sprintf("it answered %v ago, or this coordinator has listened for no longer",
				silent.Round(time.Second))
			continue
		}
		key, err := proof.ParseKeyClaim(r.Key)
		if err != nil {
			return nil, err
		}
		at, err := replicas.Key(key)
		if err != nil {
			return nil, err
		}
		ch.Delete(at, r.Version)
		out.Forgotten = append(out.Forgotten, r.Message(c.cfg.Self.EnrolmentKey()))
	}
	if len(out.Forgotten) == 0 {
		return nil, explain.New(explain.CoordinatorHeard, "name", name, "problem", heard)
	}
	if req.GetDryRun() {
		return out, nil
	}
	ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "coordinator.forget", Target: name,
		Reason: req.GetReason()})
	if err := c.cfg.Faults.Hit("coordinator.forget"); err != nil {
		return nil, err
	}
	if _, err := ch.Commit(ctx); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return nil, err
		}
		return nil, c.cfg.Head.StoreError(what, err)
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a coordinator was forgotten", slog.String("name", name),
		slog.String("by", record.Actor(ctx)))
	c.hearPeers(ctx, s) // so that the finding is gone with the answer
	return out, nil
}
