package coordinator

import (
	"context"
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
	hello, err := receive(helloCtx, stream.Recv)
	cancel()
	if err != nil {
		return err
	}
	c.live.opened(id)
	defer c.live.closed(id)
	c.live.reported(id, hello, c.now())

	reports := make(chan error, 1)
	go func() { // ends with the stream, which ends when Connect returns
		for {
			r, err := stream.Recv()
			if err != nil {
				reports <- err
				return
			}
			c.live.reported(id, r, c.now())
		}
	}()

	held := make(map[string]*fealtyv1.HeldSnapshot, len(hello.GetHeld()))
	for _, h := range hello.GetHeld()[:min(len(hello.GetHeld()), maxHeldReported)] {
		held[h.GetScope()] = h
	}
	if err := a.sendBootstrap(ctx, stream, id, held[string(snapshot.ScopeNodeBootstrap)]); err != nil {
		return err
	}
	var sent *trustView
	for {
		changed := c.trustNews.wait()
		t := c.trust.Load()
		if t != sent {
			if sent != nil || !t.heldAs(held[string(snapshot.ScopeTrustBundle)]) {
				if err := stream.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: t.message()}}); err != nil {
					return err
				}
			}
			if sent != nil && sent.meshKey != t.meshKey {
				// The SVID is signed by a mesh CA that is on its way out.
				if err := stream.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RenewNow{
					RenewNow: &fealtyv1.RenewNow{Reason: "the mesh CA key changed with the authority epoch"}}}); err != nil {
					return err
				}
			}
			sent = t
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
		}
	}
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
	rec, err := get[memberRecord](ctx, s.records, memberKey(id.Kind(), id.Name()))
	if err != nil {
		return c.storeError("read the member", err)
	}
	if !rec.exists() || rec.value.State != stateActive {
		return explain.New(explain.RenewEntryGone, "identity", id.String())
	}
	msg, err := c.bootstrap(s, rec.value, rec.version, c.now())
	if err != nil {
		return err
	}
	return stream.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: msg}})
}
