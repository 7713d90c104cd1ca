package agent

import (
	"context"
	"log/slog"

	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/state"
)

// operatorChanged is closed when other files of the operator's PKI are in use. It is
// nil, which blocks for ever, without any.
func (r *renewal) operatorChanged() <-chan struct{} {
	if r.operator == nil {
		return nil
	}
	return r.operator.Changed()
}

// reenrol comes back by the operator's certificate, for a node whose last certified
// key counts for nothing any more: as the member that it was, in a new incarnation.
//
// The caller has the answer that the grace is over, which is given only to who proves
// the last certified key: nobody else got this identity since. An older key and a record
// that is gone or given away have other answers, and are left to people; a ban of the
// identity is looked at again with the certificate.
func (r *renewal) reenrol(ctx context.Context, key dir.KeyPair, graceOver error) error {
	r.log.LogAttrs(ctx, slog.LevelInfo, "the grace for the last key is over, proving the operator's certificate",
		slog.String("reason", state.OneLine(graceOver)))
	err := fetch.Somewhere(ctx, r.node.Me().Cluster, r.contact.Addresses(),
		func(ctx context.Context, address string) error {
			return r.rejoinAt(ctx, address, enroll.ProverOf(r.operator), key)
		})
	if err == nil {
		r.log.LogAttrs(ctx, slog.LevelInfo, "the node is back by the operator's certificate",
			slog.String("incarnation", r.node.Self().Incarnation.String()))
	}
	return err
}
