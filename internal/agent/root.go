package agent

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/internal/verdict"
	"github.com/fealty-io/fealty/mesh"
)

// A cluster that was reseeded has another root. A node follows it on the word of the
// signers alone, whom it knows from its trust bundle: it verifies the change of root
// that they signed, and then comes back under the new root by a proof of its last key.
// What it is granted is verified in full and put in place by one durable write, like a
// join; until then it stays what it was.
//
// It hears of a change over its stream. One that was away finds coordinators that it
// cannot verify, and asks them for the changes: these need no trust in who sends them.

// maxRootChangesBytes bounds the answer of a server that is not verified.
const maxRootChangesBytes = snapshotform.MaxRootChanges*snapshotform.MaxSignedRootChange + 4<<10

// strangeRoot reports whether err says that a coordinator is under a root that the
// node does not know.
func strangeRoot(err error) bool {
	if errors.Is(err, credential.ErrPin) {
		return true
	}
	h, ok := errors.AsType[*mesh.HandshakeError](err)
	return ok && h.Reason == mesh.PeerUntrusted
}

// askForChanges asks the coordinators for changes of root, and reports whether one
// had news.
func (a *Agent) askForChanges(ctx context.Context) bool {
	for _, address := range a.addresses() {
		encoded, err := a.changesAt(ctx, address)
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			a.log.LogAttrs(ctx, slog.LevelDebug, "no changes of root from this address", slog.String("coordinator", address), slog.String("reason", state.OneLine(err)))
			continue
		}
		if a.node.HearChanges(ctx, encoded) {
			return true
		}
	}
	return false
}

func (a *Agent) changesAt(ctx context.Context, address string) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := mesh.DialPinned(enroll.Target(address), credential.Unproven(), mesh.Options{
		Dialer: enroll.Dialer(a.dial), Now: a.node.Now, OnFailure: a.handshakeFailed,
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
