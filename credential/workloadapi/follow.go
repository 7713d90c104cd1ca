package workloadapi

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
)

// pace is how long things take, at most.
type pace struct {
	answer time.Duration // until the first answer of a stream
	first  time.Duration // the first pause after a stream that ended; each is twice the last
	most   time.Duration // the longest pause
	again  time.Duration // until an agent is asked anew after an answer that was refused
	calm   time.Duration // between two answers of a stream
}

// usual is the pace, but for tests. Agents of Fealty answer within 10 seconds.
var usual = pace{answer: 15 * time.Second, first: time.Second, most: 10 * time.Second, again: 10 * time.Second,
	calm: 100 * time.Millisecond}

var (
	errSilent = errors.New("no answer in time")
	errAgain  = errors.New("it is time to ask anew")
)

// follow keeps a stream of answers open until ctx ends.
func (s *Source) follow(ctx context.Context) {
	pause := s.cfg.pace.first
	for {
		good, err := s.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.refuse(s.unheard(err))
		}
		if good {
			pause = s.cfg.pace.first
		}
		// The processes of a machine lose an agent at one moment.
		if !nap(ctx, pause+rand.N(pause/4+1)) {
			return
		}
		pause = min(2*pause, s.cfg.pace.most)
	}
}

// listen takes answers until the stream ends, and returns why; nil if it is only to be asked
// anew. good: one was adopted.
func (s *Source) listen(ctx context.Context) (good bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(s.cfg.pace.answer, func() { cancel(errSilent) })
	defer func() { silent.Stop() }()
	// Workload Endpoint §3
	stream, err := s.api.FetchX509SVID(metadata.AppendToOutgoingContext(ctx, "workload.spiffe.io", "true"),
		new(pb.X509SVIDRequest))
	heard := false
	for err == nil {
		var answer *pb.X509SVIDResponse
		if answer, err = stream.Recv(); err != nil {
			break
		}
		silent.Stop()
		heard = true
		m, refused := material(answer, s.owner(), s.cfg.Now)
		next := s.cfg.pace.again
		if refused != nil {
			// Asked anew even if the agent thinks that all is said: a certificate may only
			// begin later, or a record was put right elsewhere.
			s.refuse(refused, about(answer))
		} else {
			good = true
			s.adopt(m)
			// An agent that fell silent is noticed well before the certificate ends.
			next = max(m.NotAfter().Sub(s.cfg.Now())/4*3, next)
		}
		if nap(ctx, s.cfg.pace.calm) {
			silent = time.AfterFunc(next, func() { cancel(errAgain) })
		}
	}
	switch cause := context.Cause(ctx); cause {
	case errAgain:
		return good, nil
	case errSilent:
		if heard { // at the very end of its time
			return good, nil
		}
		return good, cause
	}
	return good, err
}

// unheard returns why there is no answer, and what that is about.
func (s *Source) unheard(err error) (*credential.MaterialError, string) {
	e := &credential.MaterialError{Reason: credential.Unreadable}
	code := status.Code(err)
	switch {
	case errors.Is(err, errSilent):
		e.Detail = fmt.Sprintf("the agent at %s does not answer within %s", s.cfg.Address, s.cfg.pace.answer)
		return e, "silent"
	case errors.Is(err, io.EOF):
		e.Detail = fmt.Sprintf("the agent at %s ended the stream", s.cfg.Address)
		return e, "ended"
	case code == codes.PermissionDenied:
		e.Reason = credential.NoIdentity
		e.Detail = fmt.Sprintf("the agent at %s has no identity for this process", s.cfg.Address)
	default:
		e.Detail = fmt.Sprintf("the agent at %s gives nothing", s.cfg.Address)
	}
	// The agent's words are not ours: they are quoted and cut for a log.
	e.Detail += fmt.Sprintf(": %v, %.300q", code, status.Convert(err).Message())
	return e, code.String()
}

// about tells answers apart, but for the keys.
func about(answer *pb.X509SVIDResponse) string {
	h := sha256.New()
	for _, svid := range answer.GetSvids() {
		for _, b := range [][]byte{[]byte(svid.GetSpiffeId()), svid.GetX509Svid(), svid.GetBundle()} {
			h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
			h.Write(b)
		}
	}
	return string(h.Sum(nil))
}

// nap waits for d, and reports whether ctx still holds.
func nap(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
