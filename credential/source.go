package credential

import (
	"context"
	"fmt"
	"sync"

	"github.com/fealty-io/fealty/identity"
)

// Source is asked for current material. Implementations are safe for concurrent
// use.
type Source interface {
	// Current returns the material to use now. It returns the last good one while
	// nothing better is to be had, and [ErrNoMaterial] while there never was any. A
	// source may refuse, with a [*MaterialError], to give what has ended since.
	// It is asked on every new connection and for calls, so it is quick.
	Current(ctx context.Context) (*Material, error)

	// Changed returns a channel that is closed when Current would answer something
	// else than it did when Changed was called; take it before asking Current. It
	// is nil for a source that cannot change.
	Changed() <-chan struct{}
}

// Static returns a source that always answers m, or [ErrNoMaterial] if m is nil.
func Static(m *Material) Source { return static{m} }

type static struct{ m *Material }

func (s static) Current(context.Context) (*Material, error) {
	if s.m == nil {
		return nil, ErrNoMaterial
	}
	return s.m, nil
}

func (s static) Changed() <-chan struct{} { return nil }

// Issued is a source that its owner feeds: an agent or a coordinator with what
// it was issued. The zero value is not usable; call [NewIssued].
type Issued struct {
	mu      sync.Mutex
	current *Material     // last good material; nil before the first; guarded by mu
	changed chan struct{} // closed at the next change; guarded by mu
	failure error         // why the latest offer was refused; guarded by mu
}

// NewIssued returns a source that starts with m; nil starts it empty. The source
// will do what m can do, except that an empty source, one that trusts
// alone and an ephemeral one may gain an identity later.
func NewIssued(m *Material) *Issued {
	return &Issued{current: m, changed: make(chan struct{})}
}

// Current returns the last material that was adopted.
func (s *Issued) Current(context.Context) (*Material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil, ErrNoMaterial
	}
	return s.current, nil
}

// Changed returns a channel that is closed at the next change.
func (s *Issued) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Failure returns why the latest offer was refused, or nil if it was adopted.
func (s *Issued) Failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// Adopt makes m current. It refuses, with a [*MaterialError], nil and expired
// material, material that no longer verifies against its own bundle, and
// material of another identity, another cluster or a lesser mode than the
// current one; the current material then stays (I14). Equal material changes
// nothing. The bundle of m comes with it: make m with the newest, or bans that
// came by [Issued.Trust] are lost.
func (s *Issued) Adopt(m *Material) error {
	// Checked again because time has passed since NewMaterial. Outside the lock:
	// it verifies signatures.
	err := m.check()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = s.succeedsLocked(m)
	}
	s.failure = err
	if err != nil {
		return err
	}
	s.setLocked(m)
	return nil
}

// Trust replaces what the process believes and keeps what it presents. It is
// refused only for nil, for another cluster, and for a source without a bundle.
// The own chain need not verify under b: a ban or a withdrawn key must take
// effect here even when it strikes ourselves. Whether b is newer is the
// caller's to know.
func (s *Issued) Trust(b *identity.Bundle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = nil
	switch {
	case b == nil:
		s.failure = &MaterialError{Reason: Incomplete, Detail: "there is no trust bundle"}
	case s.current == nil || s.current.bundle == nil:
		s.failure = &MaterialError{Reason: Incomplete, Detail: "there is no bundle to replace; adopt material first", Err: ErrNoMaterial}
	case b.Cluster() != s.current.bundle.Cluster():
		s.failure = otherCluster(b.Cluster(), s.current.bundle.Cluster())
	default:
		s.setLocked(s.current.withBundle(b))
	}
	return s.failure
}

// check verifies m again, now.
func (m *Material) check() error {
	if m == nil {
		return &MaterialError{Reason: Incomplete, Detail: "there is no material", Err: ErrNoMaterial}
	}
	switch m.mode {
	case proving:
		return &MaterialError{Reason: NoIdentity, Detail: "the certificate is for a proof, and no identity of the cluster"}
	case mutual:
		_, err := NewMaterial(MaterialConfig{Chain: m.chain, Key: m.signer(), Bundle: m.bundle, Now: m.now})
		return err
	case ephemeral:
		if m.now().After(m.notAfter) {
			return &MaterialError{Reason: Expired, Detail: "the ephemeral certificate ended; make a new one"}
		}
	}
	return nil
}

func (s *Issued) succeedsLocked(m *Material) error {
	cur := s.current
	switch {
	case cur == nil, cur.mode == ephemeral:
		return nil
	case m.bundle == nil:
		return &MaterialError{Reason: OtherIdentity, Detail: "ephemeral material cannot replace material of a cluster"}
	case m.bundle.Cluster() != cur.bundle.Cluster():
		return otherCluster(m.bundle.Cluster(), cur.bundle.Cluster())
	case cur.mode == mutual && m.id != cur.id:
		got := "no identity"
		if !m.id.IsZero() {
			got = m.id.String()
		}
		return &MaterialError{Reason: OtherIdentity, Detail: fmt.Sprintf("%s cannot replace %s; a process keeps its identity until it is restarted", got, cur.id)}
	}
	return nil
}

func (s *Issued) setLocked(m *Material) {
	if s.current != nil && s.current.fingerprint == m.fingerprint {
		return
	}
	s.current = m
	close(s.changed)
	s.changed = make(chan struct{})
}

func otherCluster(got, want string) error {
	return &MaterialError{Reason: OtherIdentity, Detail: fmt.Sprintf("material of cluster %s cannot replace that of cluster %s", got, want)}
}
