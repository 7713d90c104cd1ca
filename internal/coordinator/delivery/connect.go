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
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/snapshot"
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
func (a agentServer) Connect(stream fealtyv1.AgentService_ConnectServer) error {
	c := a.c
	ctx := stream.Context()
	id := identity.FromContext(ctx).ID
	if _, err := c.cfg.Head.Ready(); err != nil {
		return err
	}
	helloCtx, cancel := context.WithTimeout(ctx, helloTimeout)
	hello, err := ratelimit.Receive(helloCtx, c.cfg.Readers, stream.Recv)
	cancel()
	if err != nil {
		return err
	}
	if err := c.cfg.Membership.Presents(ctx, identity.FromContext(ctx)); err != nil {
		return err
	}
	path := string(id.Kind()) + "/" + id.Name()
	own := c.cfg.Membership.Live().Opened(id, member.RunOf(hello.GetRun()))
	defer func() {
		_, member := c.cfg.Membership.Roster().Find(path)
		c.cfg.Membership.Live().Closed(id, own, member)
	}()
	c.cfg.Membership.StreamOpened(ctx, path, own.Run())
	c.heard(id, hello)

	d := c.NewSender(stream, id, hello.GetHeld())
	d.Resync(hello.GetResync())
	reports := make(chan error, 1)
	c.cfg.Readers.Go(func() { // ends with the stream, which ends when Connect returns
		for {
			r, err := stream.Recv()
			if err != nil {
				reports <- err
				return
			}
			c.heard(id, r)
			d.Resync(r.GetResync())
		}
	})

	standing, known := "", false // known: what the record says was looked up since it moved
	memberNow := func() (record.Member, bool) {
		if known {
			return record.Member{}, false
		}
		known = true
		return c.cfg.Membership.Roster().Find(path)
	}
	var bootstrap <-chan time.Time // when the node_bootstrap is due; nil: never
	var leave <-chan time.Time     // when the member is sent elsewhere; nil: not now
	// An outage ends for a member when its certificate stands in a record again.
	var back *member.ReconnectWait
	defer func() { c.cfg.Admission.Recalled(back) }()
	leaf := identity.FromContext(ctx).Leaf
	if c.cfg.Admission.Unrecorded(path, leaf) {
		back = c.cfg.Admission.Recall(leaf.NotAfter)
	}
	trustChanged, publicationChanged := c.cfg.Bundle.Changed(), c.cfg.Publication.Changed()
	moved := c.cfg.Membership.Roster().Wait(path)
	stateChanged := c.cfg.Head.Changed()
	for first := true; ; first = false {
		d.Forget()
		// The trust bundle first: it has the keys of the others.
		if err := d.SendTrust(); err != nil {
			return err
		}
		if first {
			wait, due, err := a.bootstrapDue(id, d.held[string(snapshot.ScopeNodeBootstrap)])
			if err != nil {
				return err
			}
			if due {
				timer := time.NewTimer(wait)
				defer timer.Stop()
				bootstrap = timer.C
			}
		}
		if err := d.SendPublished(ctx); err != nil {
			return err
		}
		if m, ok := memberNow(); ok && m.State != standing {
			standing = m.State
			if err := stream.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Standing{
				Standing: &fealtyv1.Standing{State: standing}}}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.cfg.Stopping:
			return errcode.New(errcode.RecoveryMode, "reason", "this coordinator stops")
		case err := <-reports:
			if err == io.EOF {
				return nil
			}
			return err
		case <-bootstrap:
			bootstrap = nil
			msg, err := c.BootstrapAgain(ctx, id)
			if err != nil {
				return err
			}
			if err := d.send(msg); err != nil {
				return err
			}
		case <-leave:
			leave = nil
			if _, err := c.cfg.Head.Ready(); err != nil {
				return err
			}
		case <-stateChanged:
			stateChanged = c.cfg.Head.Changed()
			// A coordinator that is not ready for a moment only, as between two heads,
			// sends nobody away.
			if _, err := c.cfg.Head.Ready(); err != nil && leave == nil {
				timer := time.NewTimer(LeaveAfter + mathrand.N(LeaveAfter))
				defer timer.Stop()
				leave = timer.C
			}
		// The next wait is taken before the loop looks again.
		case <-moved:
			moved, known = c.cfg.Membership.Roster().Wait(path), false
		case <-trustChanged:
			trustChanged = c.cfg.Bundle.Changed()
		case <-publicationChanged:
			publicationChanged = c.cfg.Publication.Changed()
		case <-d.wanted:
		case <-own.Gone():
			return errcode.New(errcode.StreamReplaced, "identity", id.String())
		case <-back.Now():
			if !c.cfg.Admission.Unrecorded(path, leaf) {
				c.cfg.Admission.Recalled(back)
				continue
			}
			if err := stream.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RenewNow{
				RenewNow: &fealtyv1.RenewNow{Reason: admission.BackReason}}}); err != nil {
				return err
			}
		}
	}
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
func (a agentServer) bootstrapDue(id identity.ID, held *fealtyv1.HeldSnapshot) (wait time.Duration, due bool,
	err error) {
	s, err := a.c.cfg.Head.Ready()
	if err != nil {
		return 0, false, err
	}
	if held != nil && held.GetAuthorityEpoch() == s.Head.AuthorityEpoch {
		return 0, false, nil
	}
	wait, err = a.c.cfg.Membership.Live().BootstrapWait(id, a.c.cfg.Now())
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
