package fence

import (
	"errors"
	"fmt"
	"sync"
)

// Life is one life of a holder's process, as [durable.OpenEpoch] of package fence/durable
// begins it.
type Life struct {
	Epoch       Epoch
	Incarnation Incarnation
	Lineage     Lineage

	// Grant is the signed statement of the epoch's grant, as it travels; "" of grant 0.
	Grant string
}

// Sender gives every attempt of one process a token of its own, until the process is
// fenced. It may be used by several goroutines.
//
// A holder has one attempt under way for a resource: two that race to the receiver fence
// one another there. And nothing below the sender sends a request again, as it would have
// the same token: see [ReasonDuplicate].
type Sender struct {
	life     Life
	sequence counter
	over     chan struct{} // closed when fenced

	mu     sync.Mutex
	fenced error // guarded by mu
}

// NewSender returns the sender of a life. There is one in a process.
func NewSender(life Life) (*Sender, error) {
	first := Token{Epoch: life.Epoch, Sequence: 1, Incarnation: life.Incarnation}
	if why := first.fault(); why != "" {
		return nil, fmt.Errorf("fence: a sender with %s: open its epoch first: %w", why, ErrMalformed)
	}
	return &Sender{life: life, over: make(chan struct{})}, nil
}

// Life returns what the sender presents beside its tokens.
func (s *Sender) Life() Life { return s.life }

// Next returns the token of one attempt to send a request under an ownership, 0 where
// nobody assigns the resource. An attempt that is made again takes the next one. Once the
// process is fenced the error matches [ErrFenced].
func (s *Sender) Next(ownership uint64, request []byte) (Token, error) {
	if err := s.Err(); err != nil {
		return Token{}, err
	}
	n, err := s.sequence.Next()
	if err != nil {
		return Token{}, err
	}
	return Token{Ownership: ownership, Epoch: s.life.Epoch, Sequence: n, Incarnation: s.life.Incarnation,
		Digest: DigestOf(request)}, nil
}

// Heard notes what came back for an attempt, and returns it. An error that matches
// [ErrEnded] ends the sender: another process has overtaken this one and is in charge, what this one knows
// is out of date, and nothing that it sends from now on can be right. It stays up, so that
// people can look at it.
func (s *Sender) Heard(err error) error {
	if !errors.Is(err, ErrEnded) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fenced == nil {
		s.fenced = fmt.Errorf("fence: this process was fenced and acts no more: look for another "+
			"process with its identity before it is started again: %w", err)
		close(s.over)
	}
	return err
}

// Fenced is closed when the process was fenced: the moment to raise an incident.
func (s *Sender) Fenced() <-chan struct{} { return s.over }

// Err returns what fenced the process; nil while nothing did.
func (s *Sender) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fenced
}
