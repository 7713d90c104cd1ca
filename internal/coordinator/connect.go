package coordinator

import (
	"bytes"
	"context"
	"crypto/x509"
	"io"
	"log/slog"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/snapshot"
)

// agentServer serves AgentService.
type agentServer struct {
	fealtyv1.UnimplementedAgentServiceServer
	c *Coordinator
}

// helloTimeout bounds the wait for the first report of a stream.
const helloTimeout = 10 * time.Second

// Connect delivers to one member what is signed for it, for as long as it
// listens. Only the newest of each scope is sent: a slow member skips what was
// overtaken, and holds nobody up.
func (a agentServer) Connect(stream fealtyv1.AgentService_ConnectServer) error {
	c := a.c
	ctx := stream.Context()
	id := identity.FromContext(ctx).ID
	if _, err := c.ready(); err != nil {
		return err
	}
	helloCtx, cancel := context.WithTimeout(ctx, helloTimeout)
	hello, err := receive(helloCtx, c, stream.Recv)
	cancel()
	if err != nil {
		return err
	}
	c.live.opened(id)
	path := string(id.Kind()) + "/" + id.Name()
	defer func() {
		_, member := c.members.get(path)
		c.live.closed(id, member)
	}()
	c.live.reported(id, hello, c.now())

	reports := make(chan error, 1)
	c.readers.Go(func() { // ends with the stream, which ends when Connect returns
		for {
			r, err := stream.Recv()
			if err != nil {
				reports <- err
				return
			}
			c.live.reported(id, r, c.now())
		}
	})

	held := heldOf(hello.GetHeld())
	standing := ""
	d := &delivery{c: c, to: stream, id: id, held: held}
	var bootstrap <-chan time.Time // when the node_bootstrap is due; nil: never
	for first := true; ; first = false {
		trustChanged, publicationChanged, moved := c.trustNews.wait(), c.publicationNews.wait(), c.members.wait(path)
		// The trust bundle first: it has the keys of the others.
		if err := d.sendTrust(); err != nil {
			return err
		}
		if first {
			wait, due, err := a.bootstrapDue(id, held[string(snapshot.ScopeNodeBootstrap)])
			if err != nil {
				return err
			}
			if due {
				timer := time.NewTimer(wait)
				defer timer.Stop()
				bootstrap = timer.C
			}
		}
		if err := d.sendRuntime(ctx); err != nil {
			return err
		}
		if m, ok := c.members.get(path); ok && m.State != standing {
			standing = m.State
			if err := stream.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Standing{Standing: &fealtyv1.Standing{State: standing}}}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.stopping:
			return explain.New(explain.RecoveryMode, "reason", "this coordinator stops")
		case err := <-reports:
			if err == io.EOF {
				return nil
			}
			return err
		case <-bootstrap:
			bootstrap = nil
			msg, err := c.bootstrapAgain(ctx, id)
			if err != nil {
				return err
			}
			if err := d.send(msg); err != nil {
				return err
			}
		case <-moved:
		case <-trustChanged:
		case <-publicationChanged:
		}
	}
}

// outdated reports whether a member's certificate is of another mesh CA key than
// the one that signs now.
func (c *Coordinator) outdated(leaf *x509.Certificate) bool {
	s, err := c.ready()
	return err == nil && leaf != nil && !bytes.Equal(leaf.AuthorityKeyId, s.issuer.Load().MeshCA().Certificate().SubjectKeyId)
}

// listener is who is told news: a stream, or who polls.
type listener interface {
	Context() context.Context
	Send(*fealtyv1.ConnectResponse) error
}

// delivery is what one listener was sent. It belongs to one goroutine.
type delivery struct {
	c      *Coordinator
	to     listener
	id     identity.ID
	held   map[string]*fealtyv1.HeldSnapshot // what the member said that it holds, by scope
	trust  *trustView                        // sent, or held
	leaf   snapshot.Digest                   // of the node_runtime header that was sent
	issued time.Time                         // of the record over it
	keys   string                            // that signed that record, see keyIDs
}

func (d *delivery) send(m *fealtyv1.SignedSnapshot) error {
	return d.to.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: m}})
}

// sendTrust sends the trust bundle in force, if it is news to the member.
func (d *delivery) sendTrust() error {
	t := d.c.trust.Load()
	if t == d.trust {
		return nil
	}
	held := d.held[string(snapshot.ScopeTrustBundle)]
	if d.trust == nil && t.rootEpoch > held.GetAuthorityEpoch() || d.trust != nil && t.rootEpoch != d.trust.rootEpoch {
		// A member under an earlier root has to follow it before it can verify more.
		if err := d.to.Send(t.changesMessage()); err != nil {
			return err
		}
	}
	if d.trust != nil || !t.heldAs(held) {
		if err := d.send(t.message()); err != nil {
			return err
		}
	}
	leaf := identity.FromContext(d.to.Context()).Leaf
	if d.trust != nil && d.trust.meshKey != t.meshKey || d.trust == nil && d.c.outdated(leaf) {
		// The SVID is signed by a mesh CA that is on its way out: the key changed now, or
		// while this member was away, as in a recovery.
		err := d.to.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RenewNow{
			RenewNow: &fealtyv1.RenewNow{Reason: "the mesh CA key changed with the authority epoch"}}})
		if err != nil {
			return err
		}
	}
	d.trust = t
	return nil
}

// sendRuntime sends the member's node_runtime as it is published: a new header at
// once, a newer record over the same one when the last is old enough. A record of
// a later epoch than the bundle that was sent waits for that.
func (d *delivery) sendRuntime(ctx context.Context) error {
	p := d.c.publication.Load()
	if !p.serves() || p.state.value.AuthorityEpoch > d.trust.epoch {
		return nil
	}
	i, ok := p.find(runtimePath(string(d.id.Kind()) + "/" + d.id.Name()))
	if !ok {
		return nil
	}
	record := p.state.value
	switch {
	case d.issued.IsZero():
		if h := d.held[string(snapshot.ScopeNodeRuntime)]; h.GetGeneration() == record.Generation && h.GetAuthorityEpoch() == p.headers[i].header.AuthorityEpoch {
			d.leaf, d.issued, d.keys = p.headers[i].leaf, record.IssuedAt, record.keyIDs()
			return nil
		}
	// A member may be waiting for what other keys sign: it drops what a revoked one did.
	case d.leaf == p.headers[i].leaf && d.keys == record.keyIDs() && record.IssuedAt.Sub(d.issued).Abs() < publicationRenew:
		return nil
	}
	m, err := p.message(i)
	if err != nil {
		// It stays as it was for this member, and is no reason to end the stream.
		d.c.failures.log(ctx, d.c.log, slog.LevelError, "a node_runtime was not sent", slog.String("member", d.id.String()), slog.Any("err", err))
		return nil
	}
	d.leaf, d.issued, d.keys = p.headers[i].leaf, record.IssuedAt, record.keyIDs()
	return d.send(m)
}

// bootstrapDue reports whether the member is to be sent a node_bootstrap, because
// it does not hold one of this authority epoch, and how long it is to wait for it:
// its file was lost, or authority moved.
func (a agentServer) bootstrapDue(id identity.ID, held *fealtyv1.HeldSnapshot) (wait time.Duration, due bool, err error) {
	s, err := a.c.ready()
	if err != nil {
		return 0, false, err
	}
	if held != nil && held.GetAuthorityEpoch() == s.head.AuthorityEpoch {
		return 0, false, nil
	}
	wait, err = a.c.live.bootstrapWait(id, a.c.now())
	return wait, err == nil, err
}

// bootstrapAgain makes another node_bootstrap for a member. Its content depends
// on who else is a member now, so it takes a version of its own: the member's
// record is written again.
func (c *Coordinator) bootstrapAgain(ctx context.Context, id identity.ID) (*fealtyv1.SignedSnapshot, error) {
	for range commitTries {
		s, err := c.ready()
		if err != nil {
			return nil, err
		}
		rec, err := get[memberRecord](ctx, s.records, memberKey(id.Kind(), id.Name()))
		if err != nil {
			return nil, c.storeError("read the member", err)
		}
		gone := explain.New(explain.RenewEntryGone, "identity", id.String())
		if !rec.exists() || !rec.value.held() {
			return nil, gone
		}
		found, ok := s.manifest.Match(rec.value.Kind, rec.value.Selectors)
		if !ok {
			return nil, gone
		}
		ch := s.records.newChange(s.headVersion)
		if err := c.recount(ctx, s, ch, rec.value.Entry, found.Entry.Name); err != nil {
			return nil, err
		}
		rec.value.cover(found.Entry)
		ch.put(memberKey(id.Kind(), id.Name()), rec.version, rec.value)
		version, err := ch.commit(ctx)
		switch {
		case err == nil:
			c.members.put(rec.value, version)
			return c.bootstrap(s, rec.value, version, c.now())
		case !c.conflicts(ctx, err):
			return nil, c.storeError("number the member's bootstrap", err)
		}
	}
	return nil, errBusy("member " + id.Name())
}
