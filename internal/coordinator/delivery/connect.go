package delivery

import (
	"bytes"
	"context"
	"crypto/x509"
	"io"
	mathrand "math/rand/v2"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// agentServer serves AgentService.
type agentServer struct {
	fealtyv1.UnimplementedAgentServiceServer
	c *Delivery
}

// LeaveAfter is for how long a coordinator may not be ready before it sends its members
// to another one: all of them within twice that.
const LeaveAfter = 2 * time.Second

// helloTimeout bounds the wait for the first report of a stream.
const helloTimeout = 10 * time.Second

// Connect delivers to one member what is signed for it, for as long as it
// listens. Only the newest of each scope is sent: a slow member skips what was
// overtaken, and holds nobody up.
//
// Nearly all of the time it waits, once for each member that there is, and the stack that it waits on
// takes up to four times what is in use of it. So what it knows is in a [connection], and all that it
// does but to wait is in functions of their own.
func (a agentServer) Connect(stream fealtyv1.AgentService_ConnectServer) error {
	m, err := a.c.open(stream)
	if err != nil {
		return err
	}
	defer m.close()
	ended := stream.Context().Done()
	for {
		if err := m.send(); err != nil {
			return err
		}
		var err error
		select {
		case <-ended:
			return stream.Context().Err()
		case <-m.c.cfg.Stopping:
			return errcode.New(errcode.RecoveryMode, "reason", "this coordinator stops")
		case err := <-m.reports:
			if err == io.EOF {
				return nil
			}
			return err
		case <-m.bootstrap:
			err = m.sendBootstrap()
		case <-m.leave:
			m.leave = nil
			_, err = m.c.cfg.Head.Ready()
		case <-m.stateChanged:
			m.lookAtState()
		// The next wait is taken before the loop looks again.
		case <-m.moved:
			m.moved, m.known = m.c.cfg.Membership.Roster().Wait(m.path), false
		case <-m.trustChanged:
			m.trustChanged = m.c.cfg.Bundle.Changed()
		case <-m.publicationChanged:
			m.publicationChanged = m.c.cfg.Publication.Changed()
		case <-m.sender.wanted:
		case <-m.own.Gone():
			return errcode.New(errcode.StreamReplaced, "identity", m.sender.id.String())
		case <-m.back.Now():
			err = m.recall()
		}
		if err != nil {
			return err
		}
	}
}

// connection is a member's stream that is served. It belongs to the goroutine that serves it.
type connection struct {
	c      *Delivery
	to     memberStream
	path   string
	leaf   *x509.Certificate // that the member presents
	own    *live.Stream
	sender *Sender

	begun     bool             // something was sent
	standing  string           // that the member was told
	known     bool             // what the record says was looked up since it moved
	bootstrap <-chan time.Time // when the node_bootstrap is due; nil: never
	leave     <-chan time.Time // when the member is sent elsewhere; nil: not now
	// An outage ends for a member when its certificate stands in a record again.
	back *member.ReconnectWait // nil: it stands there

	reports                                               chan error // why no more come
	trustChanged, publicationChanged, moved, stateChanged <-chan struct{}
}

// open begins to serve a stream whose member says what it holds. The caller closes what it returns.
func (c *Delivery) open(stream fealtyv1.AgentService_ConnectServer) (*connection, error) {
	ctx := stream.Context()
	peer := identity.FromContext(ctx)
	id := peer.ID
	if _, err := c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	helloCtx, cancel := context.WithTimeout(ctx, helloTimeout)
	hello, err := ratelimit.Receive(helloCtx, c.cfg.Readers, stream.Recv)
	cancel()
	if err != nil {
		return nil, err
	}
	if err := c.cfg.Membership.Presents(ctx, peer); err != nil {
		return nil, err
	}
	m := &connection{c: c, to: memberStream{stream}, path: string(id.Kind()) + "/" + id.Name(), leaf: peer.Leaf,
		own: c.cfg.Membership.Live().Opened(id, member.RunOf(hello.GetRun())), reports: make(chan error, 1)}
	c.cfg.Membership.StreamOpened(ctx, m.path, m.own.Run())
	c.heard(id, hello)
	m.sender = c.NewSender(m.to, id, hello.GetHeld())
	m.sender.Resync(hello.GetResync())
	c.cfg.Readers.Go(func() { // ends with the stream, which ends when Connect returns
		for {
			r, err := stream.Recv()
			if err != nil {
				m.reports <- err
				return
			}
			c.heard(id, r)
			m.sender.Resync(r.GetResync())
		}
	})
	if c.cfg.Admission.Unrecorded(m.path, m.leaf) {
		m.back = c.cfg.Admission.Recall(m.leaf.NotAfter)
	}
	m.trustChanged, m.publicationChanged = c.cfg.Bundle.Changed(), c.cfg.Publication.Changed()
	m.moved, m.stateChanged = c.cfg.Membership.Roster().Wait(m.path), c.cfg.Head.Changed()
	return m, nil
}

// close ends what open began.
func (m *connection) close() {
	m.c.cfg.Admission.Recalled(m.back)
	_, member := m.c.cfg.Membership.Roster().Find(m.path)
	m.c.cfg.Membership.Live().Closed(m.sender.id, m.own, member)
}

// send sends what is news to the member.
func (m *connection) send() error {
	d, first := m.sender, !m.begun
	m.begun = true
	d.Forget()
	// The trust bundle first: it has the keys of the others.
	if err := d.SendTrust(); err != nil {
		return err
	}
	if first {
		wait, due, err := m.c.bootstrapDue(d.id, d.bootstrap)
		d.bootstrap = nil
		if err != nil {
			return err
		}
		if due {
			m.bootstrap = time.After(wait)
		}
	}
	if err := d.SendPublished(m.to.Context()); err != nil {
		return err
	}
	return m.sendStanding()
}

// sendStanding tells the member what its record says of it, if that is news.
func (m *connection) sendStanding() error {
	if m.known {
		return nil
	}
	m.known = true
	rec, ok := m.c.cfg.Membership.Roster().Find(m.path)
	if !ok || rec.State == m.standing {
		return nil
	}
	m.standing = rec.State
	return m.to.Send(newsFor(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Standing{
		Standing: &fealtyv1.Standing{State: m.standing}}}))
}

// sendBootstrap sends the member the node_bootstrap that is due.
func (m *connection) sendBootstrap() error {
	m.bootstrap = nil
	msg, err := m.c.BootstrapAgain(m.to.Context(), m.sender.id)
	if err != nil {
		return err
	}
	return m.to.Send(newsFor(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: msg}}))
}

// lookAtState has the member sent elsewhere, later, if this coordinator is not ready. One that is not
// ready for a moment only, as between two heads, sends nobody away.
func (m *connection) lookAtState() {
	m.stateChanged = m.c.cfg.Head.Changed()
	if _, err := m.c.cfg.Head.Ready(); err != nil && m.leave == nil {
		m.leave = time.After(LeaveAfter + mathrand.N(LeaveAfter))
	}
}

// recall asks the member to renew, unless its certificate stands in a record by now.
func (m *connection) recall() error {
	if !m.c.cfg.Admission.Unrecorded(m.path, m.leaf) {
		m.c.cfg.Admission.Recalled(m.back)
		return nil
	}
	return m.to.Send(newsFor(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RenewNow{
		RenewNow: &fealtyv1.RenewNow{Reason: admission.BackReason}}}))
}

// heard notes what a member reports.
func (c *Delivery) heard(id identity.ID, r *fealtyv1.ConnectRequest) {
	if c.cfg.Membership.Live().Reported(id, r, c.cfg.Now()) {
		c.cfg.Trust.LookAtKeys()
	}
}

// Outdated reports whether a member's certificate is of another mesh CA key than
// the one that signs now.
func (c *Delivery) Outdated(leaf *x509.Certificate) bool {
	s, err := c.cfg.Head.Ready()
	return err == nil && leaf != nil && !bytes.Equal(leaf.AuthorityKeyId,
		s.MeshCA().Certificate().SubjectKeyId)
}

// bootstrapDue reports whether the member is to be sent a node_bootstrap, because
// it does not hold one of this authority epoch, and how long it is to wait for it:
// its file was lost, or authority moved.
func (c *Delivery) bootstrapDue(id identity.ID, held *fealtyv1.HeldSnapshot) (wait time.Duration, due bool,
	err error) {
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return 0, false, err
	}
	if held != nil && held.GetAuthorityEpoch() == s.Head.AuthorityEpoch {
		return 0, false, nil
	}
	wait, err = c.cfg.Membership.Live().BootstrapWait(id, c.cfg.Now())
	return wait, err == nil, err
}

// BootstrapAgain makes another node_bootstrap for a member. Its content depends
// on who else is a member now, so it takes a version of its own: the member's
// record is written again.
func (c *Delivery) BootstrapAgain(ctx context.Context, id identity.ID) (*fealtyv1.SignedSnapshot, error) {
	var signed *fealtyv1.SignedSnapshot
	err := c.cfg.Head.Transact(ctx, "member "+id.Name(), func(s *authority.State) error {
		rec, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
		if err != nil {
			return c.cfg.Head.StoreError("read the member", err)
		}
		gone := errcode.New(errcode.RenewEntryGone, "identity", id.String())
		if !rec.Exists() || !rec.Value.Held() {
			return gone
		}
		found, ok := s.Manifest.Match(rec.Value.Kind, rec.Value.Selectors)
		if !ok {
			return gone
		}
		ch := s.Records.NewChange(s.HeadVersion)
		if err := c.cfg.Membership.Recount(ctx, s, ch, rec.Value.Entry, found.Entry.Name); err != nil {
			return err
		}
		rec.Value.Cover(found.Entry)
		ch.Put(record.MemberKey(id.Kind(), id.Name()), rec.Version, rec.Value)
		version, err := ch.Commit(ctx)
		if err != nil {
			return c.cfg.Head.CommitError("number the member's bootstrap", err)
		}
		c.cfg.Membership.Roster().Put(rec.Value, version)
		signed, err = c.cfg.Admission.Bootstrap(s, rec.Value, version, c.cfg.Now())
		return err
	})
	return signed, err
}
