package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/verdict"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// linksAt asks the coordinator at address how the history went on from the head that
// the node knows.
func (a *Agent) linksAt(ctx context.Context, address string) error {
	b := a.node.Beliefs().Bundle()
	if b == nil {
		return errors.New("no head is known")
	}
	content, _ := b.TrustBundle()
	err := a.unproven(ctx, address, func(ctx context.Context, client fealtyv1.RestoreServiceClient) error {
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
		a.node.HearLinks(ctx, links)
		return nil
	})
	if err != nil {
		a.log.LogAttrs(ctx, slog.LevelDebug, "no links of the history from this address", slog.String("coordinator", address), slog.String("reason", state.OneLine(err)))
	}
	return err
}

// unproven calls a coordinator without an identity, on either side: what is said is
// signed.
func (a *Agent) unproven(ctx context.Context, address string, call func(context.Context, fealtyv1.RestoreServiceClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := mesh.DialPinned(enroll.Target(address), credential.Unproven(), mesh.Options{
		Dialer: enroll.Dialer(a.dial), Now: a.node.Now, OnFailure: a.handshakeFailed,
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

// show presents a trust bundle to the coordinators that were restored from before it, or
// whose store went back to before it. What it revokes is in force there from then on. Only a coordinator that wants it is
// sent one; nobody proves here that it is a coordinator, so each is asked.
func (a *Agent) show(ctx context.Context, bundle *state.Held) {
	if bundle == nil {
		return
	}
	h := bundle.Verified.Header()
	for _, address := range a.addresses() {
		var first, done *fealtyv1.PresentTrustResponse
		err := a.unproven(ctx, address, func(ctx context.Context, client fealtyv1.RestoreServiceClient) error {
			stream, err := client.PresentTrust(ctx)
			if err != nil {
				return err
			}
			if first, err = stream.Recv(); err != nil || !wants(first, h) {
				return errors.Join(err, stream.CloseSend())
			}
			for _, part := range trustParts(bundle.Raw, int(first.GetPartBytes())) {
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
			a.log.LogAttrs(ctx, slog.LevelDebug, "the trust bundle was not shown", slog.String("coordinator", address), slog.String("reason", state.OneLine(err)))
			continue
		}
		if done.GetRestored() {
			a.log.LogAttrs(ctx, slog.LevelWarn, "the cluster was restored from a backup, and took what this node knew to be revoked", slog.String("coordinator", address), slog.Uint64("new", uint64(done.GetTaken())))
		}
	}
}

// trustParts are the messages that bring an envelope to a coordinator that takes those of
// at most so many bytes in one; 0: any.
func trustParts(envelope []byte, most int) []*fealtyv1.PresentTrustRequest {
	if most <= 0 || len(envelope) <= most {
		most = max(1, len(envelope))
	}
	var out []*fealtyv1.PresentTrustRequest
	for part := range slices.Chunk(envelope, most) {
		if len(out) == 0 {
			out = append(out, &fealtyv1.PresentTrustRequest{Bundle: &fealtyv1.SignedSnapshot{Scope: string(snapshot.ScopeTrustBundle), Envelope: part}})
			continue
		}
		out[len(out)-1].More = true
		out = append(out, &fealtyv1.PresentTrustRequest{Part: part})
	}
	return out
}

// wants reports whether a bundle with this header is news to a coordinator.
func wants(m *fealtyv1.PresentTrustResponse, h snapshot.Header) bool {
	return (m.GetRestored() || m.GetCompares()) && (h.AuthorityEpoch > m.GetAuthorityEpoch() || h.AuthorityEpoch == m.GetAuthorityEpoch() && h.ConfigVersion > m.GetConfigVersion())
}
