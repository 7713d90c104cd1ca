package fetch

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/node/verdict"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// Times of a call to one coordinator.
const (
	callTimeout = 15 * time.Second
	leastCall   = 5 * time.Second // of a certificate that ends soon
)

// Addresses returns the coordinators to talk to, in random order.
func (c *Coordinators) Addresses() []string {
	out := state.MergeAddresses(c.Node.TrustState(), c.Node.Me().Addresses)
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// Presentable reports whether the node holds a certificate that is in date.
func (c *Coordinators) Presentable(ctx context.Context) bool {
	m, err := c.Node.Source().Current(ctx)
	return err == nil && !m.ID().IsZero() && c.Node.Now().Before(m.NotAfter())
}

// Presents returns the certificate that a connection made now would present, or nil.
// It asks the source, which connections follow: a.node.svid is stored a moment later.
func (c *Coordinators) Presents(ctx context.Context) *x509.Certificate {
	m, err := c.Node.Source().Current(ctx)
	if err != nil || m.ID().IsZero() {
		return nil
	}
	return m.Chain()[0]
}

// Take verifies and activates what the node was offered. A refusal is recorded
// and is no error: the next one may be good. The error is one of the disk, and
// matches errStorage; what was in use stays in use.
//
// Of several the marks are written once, if the order allows it: what says what the
// others are judged by is in use before them.
func (c *Coordinators) Take(ctx context.Context, from state.Origin, offers ...state.Offer) error {
	lost, before, err := c.Node.Take(ctx, from, offers)
	// One that is behind, or lies, has links too: the next may have those that are missing.
	for _, address := range c.Addresses() {
		if err != nil || !lost || ctx.Err() != nil {
			break
		}
		if c.LinksAt(ctx, address) == nil {
			lost, before, err = c.Node.Take(ctx, from, offers)
		}
	}
	if before != nil {
		c.Show(ctx, before)
	}
	return err
}

// LinksAt asks the coordinator at address how the history went on from the head that
// the node knows.
func (c *Coordinators) LinksAt(ctx context.Context, address string) error {
	b := c.Node.TrustState().Bundle()
	if b == nil {
		return errors.New("no head is known")
	}
	content, _ := b.TrustBundle()
	err := c.unproven(ctx, address, func(ctx context.Context, client fealtyv1.RestoreServiceClient) error {
		stream, err := client.GetLinks(ctx, &fealtyv1.GetLinksRequest{Known: content.Head.Hash[:]})
		if err != nil {
			return err
		}
		var links [][]byte
		size := 0
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			for _, raw := range m.GetLinks() {
				size += len(raw)
			}
			if links = append(links, m.GetLinks()...); len(links) > state.MaxLinks || size > state.MaxLinkBytes {
				return fmt.Errorf("more than %d links or %d bytes", state.MaxLinks, state.MaxLinkBytes)
			}
		}
		c.Node.HearLinks(ctx, links)
		return nil
	})
	if err != nil {
		c.Log.LogAttrs(ctx, slog.LevelDebug, "no links of the history from this address",
			slog.String("coordinator", address), slog.String("reason", state.OneLine(err)))
	}
	return err
}

// unproven calls a coordinator without an identity, on either side: what is said is
// signed.
func (c *Coordinators) unproven(ctx context.Context, address string,
	call func(context.Context, fealtyv1.RestoreServiceClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := mesh.DialPinned(enroll.Target(address), pinned.Unproven(), mesh.Options{
		Dialer: enroll.Dialer(c.Dial), Now: c.Node.Now, OnFailure: c.HandshakeFailed,
		GRPC: []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(4 << 20))},
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := call(ctx, fealtyv1.NewRestoreServiceClient(conn)); err != nil {
		return verdict.Word(address, err)
	}
	return nil
}

// Show presents a trust bundle to the coordinators that were restored from before it, or
// whose store went back to before it. Its revocations are in force there from then on. Only a coordinator that wants
// it is
// sent one; nobody proves here that it is a coordinator, so each is asked.
func (c *Coordinators) Show(ctx context.Context, bundle *state.ActiveSnapshot) {
	if bundle == nil {
		return
	}
	h := bundle.Verified.Header()
	for _, address := range c.Addresses() {
		var first, done *fealtyv1.PresentTrustResponse
		err := c.unproven(ctx, address, func(ctx context.Context, client fealtyv1.RestoreServiceClient) error {
			stream, err := client.PresentTrust(ctx)
			if err != nil {
				return err
			}
			if first, err = stream.Recv(); err != nil || !wants(first, h) {
				return errors.Join(err, stream.CloseSend())
			}
			for _, part := range TrustParts(bundle.Raw, int(first.GetPartBytes())) {
				if err := stream.Send(part); errors.Is(err, io.EOF) {
					break // there is an answer
				} else if err != nil {
					return err
				}
			}
			done, err = stream.Recv()
			return err
		})
		if err != nil {
			c.Log.LogAttrs(ctx, slog.LevelDebug, "the trust bundle was not shown", slog.String("coordinator", address),
				slog.String("reason", state.OneLine(err)))
			continue
		}
		if done.GetRestored() {
			c.Log.LogAttrs(ctx, slog.LevelWarn,
				"the cluster was restored from a backup, and took what this node knew to be revoked",
				slog.String("coordinator", address), slog.Uint64("new", uint64(done.GetTaken())))
		}
	}
}

// TrustParts are the messages that bring an envelope to a coordinator that takes those of
// at most so many bytes in one; 0: any.
func TrustParts(envelope []byte, most int) []*fealtyv1.PresentTrustRequest {
	if most <= 0 || len(envelope) <= most {
		most = max(1, len(envelope))
	}
	var out []*fealtyv1.PresentTrustRequest
	for part := range slices.Chunk(envelope, most) {
		if len(out) == 0 {
			out = append(out,
				&fealtyv1.PresentTrustRequest{Bundle: &fealtyv1.SignedSnapshot{Scope: string(snapshot.ScopeTrustBundle),
					Envelope: part}})
			continue
		}
		out[len(out)-1].More = true
		out = append(out, &fealtyv1.PresentTrustRequest{Part: part})
	}
	return out
}

// wants reports whether a bundle with this header is news to a coordinator.
func wants(m *fealtyv1.PresentTrustResponse, h snapshot.Header) bool {
	return (m.GetRestored() || m.GetCompares()) && (h.AuthorityEpoch > m.GetAuthorityEpoch() ||
		h.AuthorityEpoch == m.GetAuthorityEpoch() && h.ConfigVersion > m.GetConfigVersion())
}

// Coordinators calls the coordinators that a member knows. Make it with [NewCoordinators].
type Coordinators struct {
	Node      *accept.Node
	Log       *slog.Logger
	Dial      func(ctx context.Context, addr string) (net.Conn, error)
	Handshake func(reason string) // counts one that failed
	pool      *mesh.Pool
}

// NewCoordinators returns c, which calls nobody by itself. Close it when nobody is asked any more.
func NewCoordinators(c Coordinators) *Coordinators {
	c.pool = c.NewPool()
	return &c
}

// NewPool returns a pool of connections that present the member. Each target is one
// coordinator, and not the set of them: which one gave an answer, and that the others are
// asked after it, is what calls go by. Those of a pool are shared while they run; the next
// one to the same coordinator takes a fresh connection, and does not hang on one that died
// unnoticed.
func (c *Coordinators) NewPool() *mesh.Pool {
	options := c.MeshOptions()
	options.Log = c.Log
	return &mesh.Pool{Options: options}
}

// Close ends connections.
func (c *Coordinators) Close() error { return c.pool.Close() }

// ErrEnough: the rest of the certificate is too short to ask one more coordinator.
var ErrEnough = errors.New("it was not asked, since the certificate ends soon")

// Ask calls f with one coordinator after the other, in random order, until one
// call succeeds, is a verdict about us, or refuses our certificate.
func (c *Coordinators) Ask(ctx context.Context, f func(ctx context.Context, address string,
	conn grpc.ClientConnInterface) error) error {
	var failures []error
	for _, address := range c.Addresses() {
		err := c.AskOne(ctx, address, f)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if e, ok := verdict.Of(err); ok {
			return e
		}
		if verdict.Unwelcome(err) {
			return verdict.Word(address, err)
		}
		if errors.Is(err, ErrEnough) {
			break
		}
		failures = append(failures, &verdict.AddressError{Address: address, Err: err})
	}
	return verdict.Summarize(c.Node.Me().Cluster, failures)
}

// askingTime bounds a call to one coordinator: who hangs must not use up what is left of
// the certificate.
func (c *Coordinators) askingTime() time.Duration {
	if left := c.Node.SVID().Leaf().NotAfter.Sub(c.Node.Now()); left > 0 {
		return min(callTimeout, max(leastCall, left/2))
	}
	return callTimeout
}

// AskOne calls f with the coordinator at address, over a connection that presents the member.
func (c *Coordinators) AskOne(ctx context.Context, address string,
	f func(ctx context.Context, address string, conn grpc.ClientConnInterface) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.askingTime())
	defer cancel()
	conn, err := c.pool.Dial(enroll.Target(address), c.Node.Source(), credential.AnyOfKind(identity.Coordinator))
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(ctx, address, conn)
}

// Somewhere calls f with one coordinator of a cluster after the other, until one call
// succeeds or is a verdict about us.
func Somewhere(ctx context.Context, cluster string, addresses []string,
	f func(ctx context.Context, address string) error) error {
	var failures []error
	for _, address := range addresses {
		err := f(ctx, address)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if e, ok := verdict.Of(err); ok {
			return e
		}
		failures = append(failures, &verdict.AddressError{Address: address, Err: err})
	}
	return verdict.Summarize(cluster, failures)
}

// maxRootChangesBytes bounds the answer of a server that is not verified.
const maxRootChangesBytes = internalsnapshot.MaxRootChanges*internalsnapshot.MaxSignedRootChange + 4<<10

// AskForChanges asks the coordinators for changes of root, and reports whether one
// had news.
func (c *Coordinators) AskForChanges(ctx context.Context) bool {
	for _, address := range c.Addresses() {
		encoded, err := c.changesAt(ctx, address)
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			c.Log.LogAttrs(ctx, slog.LevelDebug, "no changes of root from this address",
				slog.String("coordinator", address), slog.String("reason", state.OneLine(err)))
			continue
		}
		if c.Node.HearChanges(ctx, encoded) {
			return true
		}
	}
	return false
}

func (c *Coordinators) changesAt(ctx context.Context, address string) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := mesh.DialPinned(enroll.Target(address), pinned.Unproven(), mesh.Options{
		Dialer: enroll.Dialer(c.Dial), Now: c.Node.Now, OnFailure: c.HandshakeFailed,
		GRPC: []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxRootChangesBytes))},
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := fealtyv1.NewReseedServiceClient(conn).GetRootChanges(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, verdict.Word(address, err)
	}
	return resp.GetChanges().GetChanges(), nil
}

// streamWindow is what a coordinator may send on a connection before the agent has read it.
const streamWindow = 1 << 20

// MeshOptions are those of connections that present the member.
func (c *Coordinators) MeshOptions() mesh.Options {
	return mesh.Options{
		Dialer: enroll.Dialer(c.Dial), Now: c.Node.Now, OnFailure: c.HandshakeFailed,
		GRPC: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(internalsnapshot.MaxSigned + 64<<10)),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
			// Windows that stay as they are: gRPC would otherwise ask the coordinator after each message
			// how far away it is, in a frame that it has to read and to answer.
			grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(streamWindow),
		},
	}
}

// HandshakeFailed counts e.
func (c *Coordinators) HandshakeFailed(e *mesh.HandshakeError) {
	c.Handshake(string(e.Reason))
}
