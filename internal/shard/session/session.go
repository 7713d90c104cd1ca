// Package session talks with the operators of tenants: it takes their demand and tells them what
// the shard decided.
//
// An operator speaks for the tenant that its certificate names, and for no other: every message
// says for whom it is, and one that says another name ends the session. Its reports are handed to
// the shard, and the shard's decisions are told with each cycle. An operator that does not read, or
// sends more than a shard takes, holds up its own session and nothing else.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

const (
	// HelloTimeout bounds the wait for the first message of an operator.
	HelloTimeout = 10 * time.Second
	// MaxMessages bounds what is taken from an operator in one cycle, beside its roll-up.
	MaxMessages = 1024
	// MaxWatches bounds how many of a tenant watch its demand at once.
	MaxWatches = 16
	// MaxWatchNotices bounds the machines that a watch names of those that a tenant is about to lose.
	MaxWatchNotices = 1024
)

// Shard is what sessions ask of one.
type Shard interface {
	// Report takes demand. Errors: one that matches scheduler.ErrDemandInvalid, scheduler.ErrFull or
	// scheduler.ErrUnready; nothing is changed by it.
	Report(scheduler.RollUp) (scheduler.Outcome, error)
	Wanted(tenant string) []scheduler.DemandRow
	Standing(tenant string) scheduler.Standing
	Quota(tenant, profile string) (machines int, bounded bool)
	Capacity(tenant string) []*scheduler.Tally
	Notices(tenant string) []scheduler.Notice
	Release(tenant string, machine scheduler.MachineKey) bool
	// Changed returns a channel that is closed when the next cycle is over.
	Changed() <-chan struct{}
	// Fenced is closed when the shard acts no more.
	Fenced() <-chan struct{}
}

// Config is what sessions are made of.
type Config struct {
	// Name is the shard's. Required.
	Name string
	// Shard gets what operators say. Required.
	Shard Shard
	// Insecure takes a caller for the operator of the tenant that its hello names: it is for
	// trying things out, where nobody but this machine reaches the server.
	Insecure bool
	// Term returns the term of the leader that this member obeyed last. Nil: none yet.
	Term func() int64
	// Log gets who was refused. Nil: nobody does.
	Log *slog.Logger
}

// Server serves ShardService.
type Server struct {
	fealtyv1.UnimplementedShardServiceServer
	cfg     Config
	readers ratelimit.Readers
	refused atomic.Uint64

	mu       sync.Mutex
	sessions map[string]context.CancelCauseFunc // by tenant; guarded by mu
	opened   map[string]uint64                  // which of a tenant is the newest; guarded by mu
	watches  map[string]int                     // by tenant; guarded by mu
}

// New returns a server without sessions.
func New(cfg Config) (*Server, error) {
	if cfg.Name == "" || cfg.Shard == nil {
		return nil, errors.New("session: Config.Name and Config.Shard are required")
	}
	if cfg.Term == nil {
		cfg.Term = func() int64 { return 0 }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, sessions: make(map[string]context.CancelCauseFunc), opened: make(map[string]uint64),
		watches: make(map[string]int)}, nil
}

// Refused counts the messages that were for another tenant than that of the caller's
// certificate, and the callers that had none.
func (s *Server) Refused() uint64 { return s.refused.Load() }

// Open returns how many sessions there are.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

// Wait waits for what sessions left behind. The gRPC server has stopped before, and its
// handlers are over: see grpc.WaitForHandlers.
func (s *Server) Wait() { s.readers.Wait() }

var (
	errNewer = status.Error(codes.Aborted, "session: the tenant opened a newer session, which takes the place of "+
		"this one")
	errFenced = status.Error(codes.Unavailable, "session: this shard acts no more, as another process is in charge: "+
		"connect to that one")
)

// speaks reports whether the caller is the operator of the tenant in its message, an error if
// not. tenant is that of its session; "" of its first message, and of a watch.
func (s *Server) speaks(ctx context.Context, tenant string, req interface{ GetTenant() string }) error {
	peer := identity.FromContext(ctx)
	id := peer.ID
	switch {
	case s.cfg.Insecure:
		if scheduler.ValidName(req.GetTenant()) && (tenant == "" || tenant == req.GetTenant()) {
			return nil
		}
	case peer.Identified() && id.Kind() == identity.Operator && id.Name() == req.GetTenant():
		return nil
	}
	s.refused.Add(1)
	s.cfg.Log.ErrorContext(ctx, "somebody spoke for a tenant that is not its own", "peer", peer,
		"tenant", fmt.Sprintf("%.128q", req.GetTenant()))
	if s.cfg.Insecure {
		return status.Errorf(codes.PermissionDenied, "session: it is for one tenant, with a name, and not for %.128q: "+
			"open one for each", req.GetTenant())
	}
	return status.Errorf(codes.PermissionDenied, "session: the certificate of this caller is not that of the "+
		"operator of tenant %.128q: use the one that was issued to it", req.GetTenant())
}

// Session is one of an operator.
func (s *Server) Session(stream fealtyv1.ShardService_SessionServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	wait, end := context.WithTimeout(ctx, HelloTimeout)
	first, err := ratelimit.Receive(wait, &s.readers, stream.Recv)
	end()
	if err != nil {
		return err
	}
	if err := s.speaks(ctx, "", first); err != nil {
		return err
	}
	run := first.GetHello().GetRun()
	if run == 0 {
		return status.Error(codes.InvalidArgument, "session: the first message is no hello with a run above 0: send "+
			"one")
	}
	tenant := first.GetTenant()
	defer s.open(tenant, cancel)()
	o := &operator{server: s, stream: stream, ctx: ctx, tenant: tenant, run: run, talk: newTalk()}
	err = o.converse()
	if cause := context.Cause(ctx); cause != nil && stream.Context().Err() == nil {
		return cause // a newer session
	}
	return err
}

// open notes the newest session of a tenant, and ends the one before it.
func (s *Server) open(tenant string, cancel context.CancelCauseFunc) (closed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.sessions[tenant]; before != nil {
		before(errNewer)
	}
	s.opened[tenant]++
	own := s.opened[tenant]
	s.sessions[tenant] = cancel
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.opened[tenant] == own {
			delete(s.sessions, tenant)
			delete(s.opened, tenant)
		}
	}
}

// operator is the far end of a session.
type operator struct {
	server *Server
	stream fealtyv1.ShardService_SessionServer
	ctx    context.Context // ends with the session
	tenant string
	run    uint64
	talk   *talk
	// full is open while the cycle goes on in which a roll-up was taken; no more is heard before it is over.
	full <-chan struct{}
}

type received struct {
	req *fealtyv1.SessionRequest
	err error
}

// converse hears and tells until the session ends.
func (o *operator) converse() error {
	shard := o.server.cfg.Shard
	welcome := &fealtyv1.SessionResponse{Message: &fealtyv1.SessionResponse_Welcome{
		Welcome: &fealtyv1.SessionWelcome{Shard: o.server.cfg.Name, Term: o.server.cfg.Term()}}}
	if err := o.send(welcome); err != nil {
		return err
	}
	heard := make(chan received)
	o.server.readers.Go(func() {
		for {
			req, err := o.stream.Recv()
			select {
			case heard <- received{req, err}:
			case <-o.ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	for {
		// Asked for before the state is looked at, so that no change is missed.
		changed := shard.Changed()
		select {
		case <-o.full:
			o.full = nil
		default:
		}
		if err := o.tell(); err != nil {
			return err
		}
		for left := MaxMessages; ; {
			from := heard
			if left == 0 || o.full != nil { // the rest waits for the next cycle
				from = nil
			}
			var r received
			select {
			case <-o.ctx.Done():
				return o.ctx.Err()
			case <-shard.Fenced():
				return errFenced
			case <-changed:
				changed = nil
			case r = <-from:
			}
			if changed == nil {
				break
			}
			if r.err != nil {
				return r.err
			}
			if err := o.hear(r.req); err != nil {
				return err
			}
			left--
		}
	}
}

// tell says what is new.
func (o *operator) tell() error {
	shard := o.server.cfg.Shard
	if say := o.talk.changed(shard.Wanted(o.tenant), shard.Capacity(o.tenant)); say != nil {
		if err := o.send(say); err != nil {
			return err
		}
	}
	for _, say := range o.talk.notices(shard.Notices(o.tenant)) {
		if err := o.send(say); err != nil {
			return err
		}
	}
	return nil
}

// send sends for as long as the session lasts: who does not read is not waited for by a
// newer session.
func (o *operator) send(say *fealtyv1.SessionResponse) error {
	return o.server.readers.Do(o.ctx, func() error { return o.stream.Send(say) })
}

// hear takes one message.
func (o *operator) hear(req *fealtyv1.SessionRequest) error {
	if err := o.server.speaks(o.ctx, o.tenant, req); err != nil {
		return err
	}
	switch m := req.GetMessage().(type) {
	case *fealtyv1.SessionRequest_RollUp:
		return o.rollUp(m.RollUp)
	case *fealtyv1.SessionRequest_Acknowledgement:
		return o.talk.acknowledge(m.Acknowledgement.GetNumber())
	case *fealtyv1.SessionRequest_Release:
		// One that it was not told of, or not any more, changes nothing: notices end on their own.
		o.server.cfg.Shard.Release(o.tenant, scheduler.MachineKey{Provider: m.Release.GetProvider(),
			ID: m.Release.GetMachine()})
		return nil
	case *fealtyv1.SessionRequest_Hello:
		return status.Error(codes.InvalidArgument, "session: there was a hello before: open another session "+
			"for another run")
	}
	return status.Error(codes.InvalidArgument, "session: a message of a kind that this release does not "+
		"know: use one that the shard's release has")
}

// outcomes are what becomes of a roll-up, as it travels.
var outcomes = map[scheduler.Outcome]fealtyv1.RollUpOutcome{
	scheduler.Taken:     fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_TAKEN,
	scheduler.Repeated:  fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REPEATED,
	scheduler.Overtaken: fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_OVERTAKEN,
	scheduler.Held:      fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_HELD,
}

// rollUp hands demand to the shard, and says what became of it.
func (o *operator) rollUp(m *fealtyv1.DemandRollUp) error {
	r := scheduler.RollUp{Tenant: o.tenant, Key: scheduler.DemandKey{Run: o.run, Number: m.GetNumber()}}
	answer := &fealtyv1.RollUpAnswer{Number: m.GetNumber()}
	var outcome scheduler.Outcome
	var err error
	if n := len(m.GetRows()); n > scheduler.MaxRows { // before they are copied
		err = &scheduler.DemandInvalidError{Tenant: o.tenant, Row: -1, Field: "demand",
			Problem: fmt.Sprintf("has %d rows, above %d", n, scheduler.MaxRows)}
	} else {
		for _, row := range m.GetRows() {
			r.Rows = append(r.Rows, scheduler.DemandRow{Profile: row.GetProfile(), Priority: row.GetPriority(),
				Count: int(row.GetCount())})
		}
		outcome, err = o.server.cfg.Shard.Report(r)
	}
	// Asked for when the roll-up was judged, as a cycle may have ended just before, and before the operator has the answer.
	o.full = o.server.cfg.Shard.Changed()
	switch {
	case errors.Is(err, scheduler.ErrUnready):
		answer.Outcome, answer.Problem = fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_UNREADY, err.Error()
	case err != nil:
		answer.Outcome, answer.Problem = fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REFUSED, err.Error()
		o.server.cfg.Log.WarnContext(o.ctx, "a roll-up was refused", "tenant", o.tenant, "err", err)
	default:
		answer.Outcome = outcomes[outcome]
	}
	return o.send(&fealtyv1.SessionResponse{Message: &fealtyv1.SessionResponse_RollUp{RollUp: answer}})
}
