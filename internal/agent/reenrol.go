package agent

import (
	"context"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/explain"
)

// Reenrol gets a node back whose certificate ended, by the certificate of an
// operator's PKI that source holds: the same member, with a new key and its record.
// That needs no human, also when rejoin_grace is over and the last certified key
// counts for nothing any more. It reports false, and does nothing, while the node's
// own certificate has not ended.
//
// Cluster, kind, pin and coordinators are those that cfg.DataDir remembers; cfg.Proof,
// cfg.Kind and cfg.Rejoin are not looked at. No agent runs in the folder meanwhile.
// Errors are those of [Open], [ByX509] and [Join]; NodeWrong if the certificate is of
// another member.
func Reenrol(ctx context.Context, cfg JoinConfig, source credential.Source) (Result, bool, error) {
	if cfg.FS == nil {
		cfg.FS = durable.OS()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if !joined(cfg.FS, cfg.DataDir) {
		return Result{}, false, explain.New(explain.NodeNotJoined, "dir", cfg.DataDir)
	}
	store, err := openStore(cfg.FS, cfg.DataDir)
	if err != nil {
		return Result{}, false, err
	}
	l, err := store.load(cfg.Now())
	if closeErr := store.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return Result{}, false, err
	}
	if end := l.svid.leaf().NotAfter; !cfg.Now().After(end) {
		return Result{}, false, nil
	}
	cfg.Kind, cfg.Rejoin, cfg.expect = l.me.Kind, true, l.me.ID
	cfg.Proof, err = ByX509(ctx, l.me.Cluster, mergeAddresses(l.beliefs, l.me.anchor.Addresses), l.me.Pin, source)
	if err != nil {
		return Result{}, false, err
	}
	r, err := Join(ctx, cfg)
	return r, err == nil, err
}
