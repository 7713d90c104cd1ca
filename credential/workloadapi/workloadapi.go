// Package workloadapi is a source of credentials that follows the SPIFFE Workload API of an agent,
// Fealty's or another.
//
// A process needs the agent's address alone ([Config.Open]). From then on [Source] has its
// certificate, key and trust as the agent renews them. An answer of the agent is judged as a whole
// before it is adopted, as files are: garbage, a key of another certificate or an expired one leave
// the last good material in use until it ends (I14), and [Source.Failure] says why.
//
// # What the Workload API does not tell
//
// The API hands out X.509 authorities, and no more of what the cluster believes. A process that
// has its trust from here
//
//   - sees no bans: a peer that was banned is believed until its certificate, and those of its
//     connections that are open, end. That is why certificates of workloads are short: an hour,
//     unless their record says otherwise.
//   - believes each chain to an authority, one of a mesh CA that the cluster withdrew included, and
//     one of a retired root for whomever it names. So expect peers by name
//     (credential.ExactID), and expect no one here who decides for others.
//   - believes its own cluster alone. Bundles of federated clusters are not looked at.
//
// A program that runs as its agent's user opens the agent's folder instead, with package node, and
// sees all of it within seconds.
//
// # Which identities
//
// Identities are those of package identity, spiffe://CLUSTER/KIND/NAME. An agent that is not
// Fealty's has to issue such ids to be of use here.
package workloadapi

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
)

// Config says which agent is asked, and for which identity. The zero value is good.
type Config struct {
	// Address is where the agent serves the Workload API: unix:///PATH, or tcp://IP:PORT with an
	// IP of this machine, since keys travel in plaintext. Blank: what the environment variable
	// SPIFFE_ENDPOINT_SOCKET says. The owner of the socket decides the identity of this process.
	Address string

	// ID is the identity whose material is used. Zero: the first identity that the agent gives, which the
	// source then keeps: a process has one identity until it is restarted.
	ID identity.ID

	// Now is the clock that certificates are compared with. Nil means time.Now.
	Now func() time.Time

	// Log gets one line for each change that is adopted or refused. Nil means slog.Default().
	Log *slog.Logger

	// OnFailure is called once for each change that is refused, and when the material in use
	// ends, so that they can be counted. It must not block. Nil: nothing is called.
	OnFailure func(credential.Reason)

	pace pace
}

// openWithin bounds how long [Config.Open] waits for good material: an agent that was
// started together with the process has to reach a coordinator first.
const openWithin = 30 * time.Second

// lookEvery bounds how late the end of material is reported: the wall clock may be set, and
// stands still for timers while a machine sleeps. [Source.Current] is never late.
const lookEvery = 10 * time.Second

// Source is a [credential.Source] over the Workload API. It is safe for concurrent use. Make it
// with [Config.Open], and close it when done: goroutines follow the agent.
type Source struct {
	cfg   Config
	conn  *grpc.ClientConn
	api   pb.SpiffeWorkloadAPIClient
	stop  context.CancelFunc
	ended sync.WaitGroup // of the goroutines

	mu      sync.Mutex
	held    *credential.Material // last good; nil before the first; guarded by mu
	over    bool                 // held ended, and that was told; guarded by mu
	changed chan struct{}        // closed at the next change; guarded by mu
	failure error                // why the latest answer is not in use; guarded by mu
	told    string               // what the last refusal that was told was about; guarded by mu
}

// Open asks the agent and returns a source that follows it, once there is good material. It waits
// for that until ctx ends, and 30 seconds at most: the agent may not serve yet, or not know the
// process yet. ctx is for the start alone.
//
// Errors: an address that is none, at once; else why there was no material, a
// [*credential.MaterialError] if anything was heard or tried, beside the error of ctx.
func (cfg Config) Open(ctx context.Context) (*Source, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.pace == (pace{}) {
		cfg.pace = usual
	}
	var err error
	if cfg.Address, err = addressOf(cfg.Address); err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, changed: make(chan struct{})}
	if s.conn, err = dial(cfg.Address); err != nil {
		return nil, fmt.Errorf("workloadapi: %w", err)
	}
	s.api = pb.NewSpiffeWorkloadAPIClient(s.conn)
	running, stop := context.WithCancel(context.Background())
	s.stop = stop
	first := s.Changed()
	s.ended.Go(func() { s.follow(running) })
	s.ended.Go(func() { s.expire(running) })

	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	select {
	case <-first:
		return s, nil
	case <-ctx.Done():
	}
	_ = s.Close()
	err = fmt.Errorf("workloadapi: there is no identity from the agent at %s: %w", cfg.Address, ctx.Err())
	if why := s.Failure(); why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	return nil, err
}

// Close stops following, and waits until that has ended. The last good material stays in
// use until its end. It may be called again.
func (s *Source) Close() error {
	s.stop()
	s.ended.Wait()
	_ = s.conn.Close() // its one error is that it was closed already
	return nil
}

// Current returns the last good material. Once that has ended there is none: the error is a
// [*credential.MaterialError] of reason Expired, and wraps why the agent gave no other.
func (s *Source) Current(context.Context) (*credential.Material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		return nil, credential.ErrNoMaterial // not after Open
	}
	if s.cfg.Now().After(s.held.NotAfter()) {
		return nil, s.expiredLocked()
	}
	return s.held, nil
}

func (s *Source) expiredLocked() *credential.MaterialError {
	return &credential.MaterialError{Reason: credential.Expired, Err: s.failure,
		Detail: fmt.Sprintf("the certificate of %s ended at %s, and the agent at %s gave no other", s.held.ID(),
			s.held.NotAfter().UTC().Format(time.RFC3339), s.cfg.Address)}
}

// Changed returns a channel that is closed when other material was adopted, or when that in use
// ended.
func (s *Source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Failure returns why what the agent says now is not in use, a [*credential.MaterialError], or nil.
// Of reason Unreadable: it says nothing; NoIdentity: among others, that the process is nobody any
// more. Material that was given stays in use all the same, so that an agent that errs ends no
// service. A program that would rather stop (Workload API §5.2.1) asks here.
func (s *Source) Failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// owner is whose material is taken: nobody's in particular before the first.
func (s *Source) owner() identity.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		return s.held.ID()
	}
	return s.cfg.ID
}

// adopt puts m in use.
func (s *Source) adopt(m *credential.Material) {
	s.mu.Lock()
	s.failure, s.told = nil, ""
	same := s.held != nil && s.held.Fingerprint() == m.Fingerprint()
	if !same {
		s.held, s.over = m, false
		s.changeLocked()
	}
	s.mu.Unlock()
	if !same {
		s.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "credentials of the Workload API adopted",
			slog.String("address", s.cfg.Address), slog.String("material", m.String()))
	}
}

func (s *Source) changeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// refuse keeps the last good material, and tells why once. about is what tells one mistake from
// the next.
func (s *Source) refuse(err *credential.MaterialError, about string) {
	about = string(err.Reason) + about
	s.mu.Lock()
	again := s.told == about
	s.failure, s.told = err, about
	held := s.held
	s.mu.Unlock()
	if again {
		return
	}
	if s.cfg.OnFailure != nil {
		s.cfg.OnFailure(err.Reason)
	}
	s.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn,
		"credentials of the Workload API not adopted, the last good ones stay in use",
		slog.String("address", s.cfg.Address), slog.String("reason", string(err.Reason)),
		slog.String("problem", err.Error()), slog.String("material", held.String()))
}

// expire tells of the end of what is held, until ctx ends.
func (s *Source) expire(ctx context.Context) {
	for {
		changed := s.Changed()
		wait := s.tellEnd()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(wait):
		}
	}
}

// tellEnd tells, once, that what is held ended, and returns how long nothing is to be told.
func (s *Source) tellEnd() time.Duration {
	s.mu.Lock()
	if s.held == nil || s.over {
		s.mu.Unlock()
		return lookEvery
	}
	if left := s.held.NotAfter().Sub(s.cfg.Now()); left >= 0 {
		s.mu.Unlock()
		return min(left, lookEvery) + time.Millisecond // not past what a duration holds
	}
	s.over = true
	err := s.expiredLocked()
	s.changeLocked()
	s.mu.Unlock()
	if s.cfg.OnFailure != nil {
		s.cfg.OnFailure(err.Reason)
	}
	s.cfg.Log.LogAttrs(context.Background(), slog.LevelError, "credentials of the Workload API ended",
		slog.String("address", s.cfg.Address), slog.String("problem", err.Error()))
	return lookEvery
}
