package coordinator

import (
	"bytes"
	"context"
	"crypto/x509"
	"io"
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

	held := make(map[string]*fealtyv1.HeldSnapshot, len(hello.GetHeld()))
	for _, h := range hello.GetHeld()[:min(len(hello.GetHeld()), maxHeldReported)] {
		held[h.GetScope()] = h
	}
	if err := a.sendBootstrap(ctx, stream, id, held[string(snapshot.ScopeNodeBootstrap)]); err != nil {
		return err
	}
	var sent *trustView
	standing := ""
	for {
		changed, moved := c.trustNews.wait(), c.members.wait(path)
		t := c.trust.Load()
		if t != sent {
			if sent != nil || !t.heldAs(held[string(snapshot.ScopeTrustBundle)]) {
				if err := stream.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: t.message()}}); err != nil {
					return err
				}
			}
			if sent != nil && sent.meshKey != t.meshKey || sent == nil && c.outdated(identity.FromContext(ctx).Leaf) {
				// The SVID is signed by a mesh CA that is on its way out: the key changed
				// now, or while this member was away, as in a recovery.
				if err := stream.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RenewNow{
					RenewNow: &fealtyv1.RenewNow{Reason: "the mesh CA key changed with the authority epoch"}}}); err != nil {
					return err
				}
			}
			sent = t
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
		case <-changed:
		case <-moved:
		}
	}
}

// outdated reports whether a member's certificate is of another mesh CA key than
// the one that signs now.
func (c *Coordinator) outdated(leaf *x509.Certificate) bool {
	s, err := c.ready()
	return err == nil && leaf != nil && !bytes.Equal(leaf.AuthorityKeyId, s.issuer.Load().MeshCA().Certificate().SubjectKeyId)
}

// sendBootstrap sends the node_bootstrap if the member does not hold one of this
// authority epoch: its file was lost, or authority moved.
func (a agentServer) sendBootstrap(ctx context.Context, stream fealtyv1.AgentService_ConnectServer, id identity.ID, held *fealtyv1.HeldSnapshot) error {
	c := a.c
	s, err := c.ready()
	if err != nil {
		return err
	}
	if held != nil && held.GetAuthorityEpoch() == s.head.AuthorityEpoch {
		return nil
	}
	wait, err := c.live.bootstrapWait(id, c.now())
	if err != nil {
		return err
	}
	if err := sleep(ctx, wait); err != nil {
		return err
	}
	msg, err := c.bootstrapAgain(ctx, id)
	if err != nil {
		return err
	}
	return stream.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: msg}})
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
