package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/node/verdict"
	pausepkg "github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/internal/platform/logging"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// Times of the stream.
const (
	reportEvery  = 30 * time.Second
	reportSpread = 0.25
	// lookAtLog is how often it looks whether its log is lost, which is reported at once.
	lookAtLog = 5 * time.Second
	// openTimeout bounds connecting and the first report.
	openTimeout = 20 * time.Second
	// settleTime is how long a stream without news has to stand before it counts as
	// one: a refused certificate shows only after a round trip.
	settleTime = 3 * time.Second
	// moveSpread bounds the wait of a stream whose certificate was renewed, and
	// bundleSpread that of one that is superseded by a new trust bundle alone: that
	// happens to the whole fleet at once, and nothing is wrong with the old stream.
	moveSpread   = 30 * time.Second
	bundleSpread = 10 * time.Minute
	// maxMoveLead bounds how long before the end of the coordinator's certificate a
	// stream moves. With less than leastMove left it waits to be cut.
	maxMoveLead = 5 * time.Minute
	leastMove   = 10 * time.Second
)

// follow holds one stream to some coordinator until ctx ends. Without any it goes
// on trying; nothing else of the agent waits for it (I16).
func (w *follower) follow(ctx context.Context) error {
	var pause pausepkg.Backoff
	var refused pausepkg.Seldom
	for ctx.Err() == nil {
		changed := w.node.Source().Changed()
		if !w.contact.Presentable(ctx) {
			// Without a certificate there is nothing to say; keepCertified gets one. A timer
			// of its does not see that the machine slept.
			w.renewal.notifyRenewal()
			w.node.Status().Closed(nil)
			if pausepkg.Sleep(ctx, clockLook, changed) != nil {
				break
			}
			continue
		}
		end := w.round(ctx)
		if ctx.Err() != nil {
			break
		}
		if end.moved {
			continue
		}
		if end.stood {
			pause.Reset()
			refused.Reset()
		}
		wait := pause.Next()
		level := slog.LevelInfo
		if end.unwelcome {
			// A coordinator that was restored from before the certificate does not know it.
			w.contact.Show(ctx, w.node.TrustState().Active[snapshot.ScopeTrustBundle])
			state.Notify(w.renewal.rejected) // a rejoin gets a certificate, or the reason
		}
		if verdict.StrangeRoot(end.err) {
			state.Notify(w.renewal.strange) // the cluster may have another root
		}
		if verdict.Lasting(end.err) || end.unwelcome && verdict.Lasting(w.node.Status().View().Renewal) {
			wait, level = refused.Next(), slog.LevelError
		}
		w.log.LogAttrs(ctx, level, "no stream to a coordinator, going on alone",
			slog.String("reason", state.OneLine(end.err)), slog.String("code", errcode.CodeOf(end.err)),
			slog.Duration("retry_in", wait))
		_ = pausepkg.Sleep(ctx, wait, changed)
	}
	return ctx.Err()
}

// ending says how a stream ended.
type ending struct {
	lived bool // it stood for a while, or had news
	stood bool // it stood for a while: tries may begin anew
	moved bool // it was left for a fresh connection
	// unwelcome says that a coordinator did not accept our certificate.
	unwelcome bool
	err       error
}

// round tries the coordinators one after the other, until one stream stood.
func (w *follower) round(ctx context.Context) ending {
	var failures []error
	rejected := false
	for _, address := range w.contact.Addresses() {
		end := w.session(ctx, address)
		end.unwelcome = verdict.Unwelcome(end.err)
		rejected = rejected || end.unwelcome
		if ctx.Err() != nil {
			w.node.Status().Closed(nil)
			return end
		}
		if end.moved { // still in contact: the next session says so, or why not
			return end
		}
		if e, ok := verdict.Of(end.err); ok {
			end.err = e
			w.node.Status().Closed(e)
			return end
		}
		if end.lived {
			end.err = verdict.Word(address, end.err)
			w.node.Status().Closed(end.err)
			return end
		}
		failures = append(failures, &verdict.AddressError{Address: address, Err: end.err})
	}
	err := verdict.Summarize(w.node.Me().Cluster, failures)
	w.node.Status().Closed(err)
	return ending{err: err, unwelcome: rejected}
}

// session holds one stream to the coordinator at address.
func (w *follower) session(ctx context.Context, address string) (end ending) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	presented := w.contact.Presents(ctx) // at the latest: a newer one moves the stream once more
	// A stream that hangs while it opens is as good as not there.
	opening := time.AfterFunc(openTimeout, cancel)
	failed := func(err error) ending {
		if !opening.Stop() {
			err = errcode.New(errcode.Unreachable, "endpoint", address, "problem",
				fmt.Sprintf("no stream within %v", openTimeout))
		}
		return ending{err: err}
	}
	// The pool is of this stream alone: one that is left for a fresh connection must not get the
	// old one, which calls may still hold. The session itself says why it ended.
	options := w.contact.MeshOptions()
	options.Log = slog.New(slog.DiscardHandler)
	pool := &mesh.Pool{Options: options}
	defer pool.Close()
	conn, err := pool.Dial(enroll.Target(address), w.node.Source(), credential.AnyOfKind(identity.Coordinator))
	if err != nil {
		return failed(err)
	}
	stream, err := fealtyv1.NewAgentServiceClient(conn).Connect(ctx)
	if err != nil {
		return failed(err)
	}
	select {
	case <-w.fetcher.LeaveStream: // of an earlier one
	default:
	}
	// refusals that this coordinator has been told of
	told := uint64(0)
	// Before it is reported, so that what changes meanwhile is reported again.
	lost := w.output.Status().Problem
	if err := w.report(stream, &told); err != nil && !errors.Is(err, io.EOF) { // io.EOF: Recv has the reason
		return failed(err)
	}
	if !opening.Stop() {
		return failed(nil)
	}

	news := make(chan *fealtyv1.ConnectResponse)
	ended := make(chan error, 1)
	received := make(chan struct{})
	go func() { // ends with the stream, and is waited for
		defer close(received)
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case news <- m:
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			}
		}
	}()
	defer func() { cancel(); <-received }()

	here := w.fetcher.Over(address, conn)
	pulls := fetch.NewStreamFetcher(w.fetcher, here,
		func() []fetch.Source { return w.fetcher.SourcesAfter(here) })
	pulled := make(chan error, 1)
	var aside sync.WaitGroup
	aside.Go(func() { pulled <- pulls.Run(ctx) })
	defer func() { cancel(); aside.Wait() }()
	in := w.fetcher.SourceFetcher(here, pulls.Add)

	var superseded <-chan struct{}
	move := newAlarm()
	defer move.stop()
	if info, ok := mesh.FromContext(stream.Context()); ok {
		superseded = info.Superseded()
		// Our own certificate's end needs no alarm: the renewal supersedes it, and
		// without one there is nothing to move to.
		if end := info.Expires(); !end.IsZero() && presented != nil && end.Before(presented.NotAfter) &&
			end.Sub(w.node.Now()) > leastMove {
			move.at(moveLead(end.Sub(w.node.Now())))
		}
	}
	settled := time.NewTimer(settleTime)
	defer settled.Stop()
	reports := time.NewTimer(pausepkg.Around(reportEvery, reportSpread))
	defer reports.Stop()
	logs := time.NewTicker(lookAtLog)
	defer logs.Stop()
	stands := func() {
		if !end.lived {
			end.lived = true
			w.node.Status().Opened(address)
			w.log.LogAttrs(ctx, slog.LevelInfo, "stream to a coordinator", slog.String("coordinator", address))
			w.renewal.notifyRenewal() // somebody is there again
		}
	}
	for {
		select {
		case <-ctx.Done():
			end.err = ctx.Err()
			return end
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				err = errcode.New(errcode.Unreachable, "endpoint", address, "problem", "it ended the stream")
			}
			end.err = err
			return end
		case m := <-news:
			stands()
			if err := w.hear(ctx, in, m); err != nil {
				end.err = err
				return end
			}
		case err := <-pulled:
			end.err = err
			return end
		case <-settled.C:
			stands()
			end.stood = true
		case <-reports.C:
			err = w.report(stream, &told)
			reports.Reset(pausepkg.Around(reportEvery, reportSpread))
		case <-w.reportNotify:
			err = w.report(stream, &told)
		case <-logs.C:
			if problem := w.output.Status().Problem; problem != lost {
				lost, err = problem, w.report(stream, &told)
			}
		case <-superseded:
			superseded = nil
			spread := moveSpread
			if now := w.contact.Presents(ctx); presented != nil && now != nil && presented.Equal(now) {
				spread = bundleSpread
				// No later renewal is told on this stream: it has to move before its end.
				if info, ok := mesh.FromContext(stream.Context()); ok && !info.Expires().IsZero() {
					spread = min(spread, moveLead(info.Expires().Sub(w.node.Now())))
				}
			}
			move.at(pausepkg.UpTo(spread))
		case <-w.fetcher.LeaveStream:
			end.moved = true
			_ = stream.CloseSend()
			w.log.LogAttrs(ctx, slog.LevelInfo, "leaving a stream that brings no news",
				slog.String("coordinator", address))
			return end
		case <-move.C():
			end.moved = true
			_ = stream.CloseSend() // the stream is left either way
			w.log.LogAttrs(ctx, slog.LevelDebug, "stream moves to a fresh connection",
				slog.String("coordinator", address))
			return end
		}
		if err != nil && !errors.Is(err, io.EOF) { // io.EOF: Recv has the reason
			end.err = err
			return end
		}
	}
}

// moveLead returns when to leave a connection that ends in left: early enough to
// find another one, and not all at once.
func moveLead(left time.Duration) time.Duration {
	lead := min(max(left/10, 0), maxMoveLead)
	return max(0, left-lead-pausepkg.UpTo(lead))
}

// alarm is a timer that may be set several times; the earliest counts.
type alarm struct {
	timer *time.Timer
	end   time.Time // monotonic
}

func newAlarm() *alarm { return &alarm{} }

func (m *alarm) at(d time.Duration) {
	end := time.Now().Add(d)
	if m.timer != nil && m.end.Before(end) {
		return
	}
	m.stop()
	m.timer, m.end = time.NewTimer(d), end
}

// C is nil, which blocks for ever, until the alarm was set.
func (m *alarm) C() <-chan time.Time {
	if m.timer == nil {
		return nil
	}
	return m.timer.C
}

func (m *alarm) stop() {
	if m.timer != nil {
		m.timer.Stop()
	}
}

// maxStandingBytes bounds what a coordinator says of this node.
const maxStandingBytes = 64

// hear acts on one message. The error is one of the disk.
func (w *follower) hear(ctx context.Context, in *fetch.SourceFetcher, m *fealtyv1.ConnectResponse) error {
	switch news := m.GetNews().(type) {
	case *fealtyv1.ConnectResponse_Snapshot:
		return in.Take(ctx, fetch.Notice{Scope: news.Snapshot.GetScope(), Raw: news.Snapshot.GetEnvelope()})
	case *fealtyv1.ConnectResponse_RootChanges:
		w.fetcher.HearRoots(ctx, news.RootChanges)
	case *fealtyv1.ConnectResponse_HistoryLinks:
		w.node.HearLinks(ctx, news.HistoryLinks.GetLinks())
	case *fealtyv1.ConnectResponse_RenewNow:
		w.fetcher.HearRenew(news.RenewNow)
	case *fealtyv1.ConnectResponse_Standing:
		state := state.Clip(news.Standing.GetState(), maxStandingBytes)
		if w.node.Status().Stands(state) {
			w.log.LogAttrs(ctx, slog.LevelInfo, "the membership says of this node", slog.String("state", state))
		}
	}
	return nil // of a newer release: not ours to understand
}

// report sends what the node is and holds. Refusals are told once on each stream.
func (w *follower) report(stream fealtyv1.AgentService_ConnectClient, told *uint64) error {
	r := &fealtyv1.ConnectRequest{
		Name: w.node.Me().ID.Name(), Release: w.release, Held: accept.HeldBy(w.node.TrustState(), w.node.Now()),
		Run: w.run, SvidNotAfter: timestamppb.New(w.node.SVID().Leaf().NotAfter),
	}
	until, limit := w.node.Autonomy.DegradedUntil()
	r.AutonomousUntil, r.AutonomyLimit = timestamppb.New(until), limit
	if d := w.node.Clock.Behind(); d > 0 {
		r.ClockBehind = durationpb.New(d)
	}
	if log := w.output.Status(); log.Problem != "" {
		r.LogProblem, r.LogProblemSince = log.Problem, timestamppb.New(log.Since)
		r.LogDropped = log.Left
	}
	r.Resync = w.fetcher.Resyncs.Due()
	r.DegradedPeriods = w.node.Autonomy.Reportable()
	refusals, at := w.node.Status().RefusalsAt()
	if at != *told {
		r.Refusals = refusalMessages(refusals)
	}
	if err := stream.Send(r); err != nil {
		return err
	}
	*told = at
	return nil
}

// held names the snapshots in use.
func (a *Agent) held() []*fealtyv1.HeldSnapshot {
	return accept.HeldBy(a.node.TrustState(), a.node.Now())
}

func refusalMessages(refusals []state.Refusal) []*fealtyv1.Refusal {
	out := make([]*fealtyv1.Refusal, 0, len(refusals))
	for _, r := range refusals {
		out = append(out, &fealtyv1.Refusal{Scope: r.Scope, Reason: r.Reason, Detail: r.Detail})
	}
	return out
}

// follower holds a stream to some coordinator.
type follower struct {
	node         *accept.Node
	log          *slog.Logger
	contact      *fetch.Coordinators
	renewal      *renewal
	fetcher      *fetch.Fetcher
	release      string
	run          string // which process this is: see ConnectRequest.run
	output       *logging.Writer
	reportNotify chan struct{} // there is something to report
}
