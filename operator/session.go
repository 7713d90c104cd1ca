package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/internal/shard/session"
	"github.com/fealty-io/fealty/mesh"
)

const (
	welcomeTimeout = 10 * time.Second // for a session to begin
	againAfter     = time.Second      // the longest pause before a demand is stated again in a session
)

// errSilent is why a session does not begin.
var errSilent = fmt.Errorf("it said nothing for %v", welcomeTimeout)

// errMove ends a session that moves to a fresh connection.
var errMove = errors.New("this process has a newer certificate")

// Run keeps a session with the shard until ctx ends, and returns nil then. It is called once.
//
// Errors: of the folder of runs; one that matches [ErrDenied] or [ErrProtocol], which no other session would mend;
// one that matches [ErrOvertaken]; the last one of [Config.Attempts]; [ErrClosed]. All that waits, and each later
// call, gets the same.
func (o *Operator) Run(ctx context.Context) (err error) {
	o.mu.Lock()
	running := o.running
	o.running = true
	o.mu.Unlock()
	if running {
		return errors.New("operator: Run was called before: open another operator")
	}
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	defer func() {
		cause := err
		if cause == nil {
			cause = ErrClosed
		}
		o.end(cause)
		cancel()
		telling.Wait()
	}()
	run := o.cfg.RunNumber
	if run == 0 {
		if o.cfg.Dir == "" {
			return errors.New("operator: Config.Dir is missing, and nothing says which run this is")
		}
		var lock io.Closer
		if run, lock, err = begin(o.cfg.Dir, o.cfg.Now()); err != nil {
			return err
		}
		defer lock.Close()
	}
	telling.Go(func() { o.tell(ctx) })
	s := &sessions{operator: o, run: run}
	var pause clock.Backoff
	for failed := 0; ; {
		begun, err := s.one(ctx)
		if ctx.Err() != nil {
			return nil
		}
		select {
		case <-o.over:
			return o.why()
		default:
		}
		if begun {
			failed = 0
			if !errors.Is(err, ErrReplaced) { // two that have stated nothing yet do not fight for the session
				pause.Reset()
			}
		}
		if errors.Is(err, errMove) {
			continue
		}
		o.mu.Lock()
		o.failure = err
		o.mu.Unlock()
		if errors.Is(err, ErrDenied) || errors.Is(err, ErrProtocol) || errors.Is(err, ErrOvertaken) {
			return err
		}
		if failed++; o.cfg.Attempts > 0 && failed >= o.cfg.Attempts {
			return err
		}
		o.cfg.Log.WarnContext(ctx, "there is no session with the shard; another one is tried", "tenant", o.tenant, "err", err)
		if clock.Sleep(ctx, pause.Next(), nil) != nil {
			return nil
		}
	}
}

// sessions are those of one run, one after the other.
type sessions struct {
	operator *Operator
	run      uint64
	number   uint64 // of the last roll-up, over all of them
	count    uint64 // which session it is, from 1
}

// one keeps one session. begun says that the shard welcomed it.
func (s *sessions) one(ctx context.Context) (begun bool, err error) {
	o := s.operator
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(welcomeTimeout, func() { cancel(errSilent) })
	defer late.Stop()
	failed := func(err error) error {
		if errors.Is(context.Cause(ctx), errSilent) {
			err = errSilent
		}
		return o.sessionError(err)
	}
	stream, err := o.calls.Session(ctx)
	if err != nil {
		return false, failed(err)
	}
	s.count++
	c := &conversation{sessions: s, stream: stream, answers: make(chan *fealtyv1.RollUpAnswer, 1)}
	// An error of Send is told by Recv.
	_ = c.say(&fealtyv1.SessionRequest{Message: &fealtyv1.SessionRequest_Hello{Hello: &fealtyv1.SessionHello{Run: s.run}}})
	first, err := stream.Recv()
	if err != nil {
		return false, failed(err)
	}
	welcome := first.GetWelcome()
	if !scheduler.ValidName(welcome.GetShard()) {
		return false, o.broken("the first message of the shard is no welcome with its name")
	}
	if !late.Stop() {
		return false, o.sessionError(errSilent)
	}
	c.shard = welcome.GetShard()
	o.mu.Lock()
	o.failure = nil
	o.mu.Unlock()
	o.events.begin(s.count, Shard{Name: welcome.GetShard(), Term: welcome.GetTerm()})
	heard := make(chan error, 1)
	go func() { heard <- c.hear() }() // ends with ctx
	err = c.converse(ctx, heard)
	cancel(nil)
	if err == nil {
		err = <-heard
	} else {
		<-heard
	}
	return true, err
}

// conversation is what one session says. It belongs to the goroutine of Run, but for hear.
type conversation struct {
	*sessions
	stream  fealtyv1.ShardService_SessionClient
	shard   string
	answers chan *fealtyv1.RollUpAnswer // at most one is awaited

	asked *statement // the one that was sent and not answered; nil: none
	again bool       // of asked: it is what stands, stated again
	fresh bool       // something was taken in this session
}

func (c *conversation) say(m *fealtyv1.SessionRequest) error {
	m.Tenant = c.operator.tenant
	return c.stream.Send(m)
}

// converse says what there is to say. Nil: the stream ended, and heard says why.
func (c *conversation) converse(ctx context.Context, heard chan error) error {
	o := c.operator
	var superseded <-chan struct{}
	if info, ok := mesh.FromContext(c.stream.Context()); ok {
		superseded = info.Superseded()
	}
	var pause clock.Backoff
	later := time.NewTimer(0)
	defer later.Stop()
	for {
		wake, move := o.wake, superseded
		if c.asked != nil { // one at a time
			wake, move = nil, nil
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-o.over:
			return o.why()
		case err := <-heard:
			heard <- err
			return nil
		case <-move:
			return errMove
		case <-wake:
			err = c.state()
		case <-later.C:
			if c.asked == nil {
				err = c.state()
			}
		case n := <-o.releases:
			err = c.say(&fealtyv1.SessionRequest{Message: &fealtyv1.SessionRequest_Release{
				Release: &fealtyv1.MachineRelease{Provider: n.Provider, Machine: n.Machine}}})
		case a := <-o.acked:
			if a.session == c.count { // those of before are told again
				err = c.say(&fealtyv1.SessionRequest{Message: &fealtyv1.SessionRequest_Acknowledgement{
					Acknowledgement: &fealtyv1.SessionAcknowledgement{Number: a.number}}})
			}
		case answer := <-c.answers:
			var unready bool
			if unready, err = c.answered(answer); err != nil {
				return err
			}
			if unready {
				later.Reset(min(pause.Next(), againAfter))
				continue
			}
			pause.Reset()
			err = c.state() // another one may wait
		}
		if err != nil { // of Send: hear has the reason
			return nil
		}
	}
}

// state sends what is to be stated, if anything is.
func (c *conversation) state() error {
	o := c.operator
	o.mu.Lock()
	next, again := o.pending, false
	if next == nil && o.stated && !c.fresh {
		next, again = &statement{rows: o.stands, done: make(chan error, 1)}, true
	}
	o.mu.Unlock()
	if next == nil {
		return nil
	}
	c.number++
	c.asked, c.again = next, again
	m := &fealtyv1.DemandRollUp{Number: c.number}
	for _, row := range next.rows {
		m.Rows = append(m.Rows, &fealtyv1.DemandRow{Profile: row.Profile, Priority: row.Priority, Count: uint32(row.Count)})
	}
	return c.say(&fealtyv1.SessionRequest{Message: &fealtyv1.SessionRequest_RollUp{RollUp: m}})
}

// answered takes the answer to what was asked. unready says that it is to be stated again after a pause.
func (c *conversation) answered(a *fealtyv1.RollUpAnswer) (unready bool, err error) {
	o := c.operator
	if c.asked == nil || a.GetNumber() != c.number {
		return false, o.broken("the shard answered roll-up %d, which does not wait for an answer", a.GetNumber())
	}
	asked, again := c.asked, c.again
	c.asked = nil
	refused := &DemandError{Tenant: o.tenant, Shard: c.shard, Problem: a.GetProblem()}
	switch a.GetOutcome() {
	case fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_TAKEN, fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REPEATED:
		c.fresh = true
		o.mu.Lock()
		o.stands, o.stated, o.failure = asked.rows, true, nil
		o.settle(asked)
		o.mu.Unlock()
		asked.done <- nil
		return false, nil
	case fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_UNREADY:
		refused.kind = ErrUnready
		o.mu.Lock()
		o.failure = refused
		o.mu.Unlock()
		return true, nil
	case fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_HELD:
		if again { // a shard took it before: it is meant
			return true, nil
		}
		refused.kind = ErrHeld
	case fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_REFUSED:
		refused.kind = ErrRefused
	case fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_OVERTAKEN:
		refused.kind = ErrOvertaken
	default:
		return false, o.broken("the shard answered a roll-up with outcome %d, which this release does not know", a.GetOutcome())
	}
	o.mu.Lock()
	o.settle(asked)
	o.mu.Unlock()
	asked.done <- refused
	if again || refused.kind == ErrOvertaken {
		return false, refused
	}
	return false, nil
}

// settle says that a statement was answered. The lock is held.
func (o *Operator) settle(s *statement) {
	if o.pending == s {
		o.pending = nil
	}
}

// hear takes what the shard says until the stream ends. It never waits for anybody, so that the shard does not.
func (c *conversation) hear() error {
	o := c.operator
	notices := uint64(0)
	for {
		m, err := c.stream.Recv()
		if err != nil {
			return o.sessionError(err)
		}
		switch m := m.GetMessage().(type) {
		case *fealtyv1.SessionResponse_RollUp:
			select {
			case c.answers <- m.RollUp:
			default:
				return o.broken("the shard answered a roll-up twice")
			}
		case *fealtyv1.SessionResponse_Capacity:
			has, ok := capacity(m.Capacity.GetProfiles())
			if !ok {
				return o.broken("the shard told of a profile whose name is none")
			}
			o.events.capacity(c.count, has)
		case *fealtyv1.SessionResponse_Notice:
			n, ok := notice(m.Notice)
			if notices++; !ok || m.Notice.GetNumber() != notices {
				return o.broken("the shard gave a notice with number %d, want %d, and names", m.Notice.GetNumber(), notices)
			}
			if !o.events.notice(c.count, notices, n) {
				return o.broken("the shard gave more than %d notices that were not acknowledged", session.MaxUnacknowledged)
			}
		default:
			return o.broken("the shard sent a message of a kind that this release does not know")
		}
	}
}

func capacity(profiles []*fealtyv1.ProfileCapacity) (out []Capacity, ok bool) {
	for _, p := range profiles {
		if !scheduler.ValidName(p.GetProfile()) {
			return nil, false
		}
		c := Capacity{Profile: p.GetProfile(), Wanted: int(p.GetWanted()), Configuring: int(p.GetConfiguring()),
			Configured: int(p.GetConfigured()), Draining: int(p.GetDraining()), Failed: int(p.GetFailed()), Quota: -1}
		if p.Quota != nil {
			c.Quota = int(p.GetQuota())
		}
		out = append(out, c)
	}
	return out, true
}

func notice(m *fealtyv1.MachineNotice) (n Notice, ok bool) {
	n = Notice{Provider: m.GetProvider(), Machine: m.GetMachine(), Profile: m.GetProfile(), Preempted: m.GetPreempted()}
	if m.GetUntil() != nil {
		n.Until = m.GetUntil().AsTime()
	}
	return n, scheduler.ValidName(n.Provider) && scheduler.ValidName(n.Machine) && scheduler.ValidName(n.Profile)
}
