package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/manifest"
)

// Bounds and times of replica records.
const (
	replicaRetention = 7 * 24 * time.Hour // after the last one, of a coordinator that stopped
	leaveTime        = 2 * time.Second    // to say that it stops
)

// followReplica writes this coordinator's record at once, when its state changes,
// and each minute, until ctx ends. If that is because stop did, it writes that it was
// stopped in order.
func (c *PeerRecovery) followReplica(ctx, stop context.Context) error {
	defer func() {
		if stop.Err() == nil {
			return // it fails, or starts again
		}
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
		if err := c.announce(leaving, true); err != nil {
			c.cfg.Log.LogAttrs(leaving, slog.LevelWarn,
				"the others were not told that this coordinator stops: they will miss it", slog.Any("err", err))
		}
	}()
	for {
		changed, keepers := c.cfg.Head.Changed(), c.cfg.Keepers.SeenChanged()
		lost, certificate := c.cfg.StoreGuard.Changed(), c.cfg.Self.CertificateChanged()
		if err := c.announce(ctx, false); err != nil {
			return err
		}
		if _, err := watch.Wait(ctx, replicas.Pause, changed, keepers, certificate, lost); err != nil {
			return err
		}
	}
}

// announce writes this coordinator's record. Without a manifest there is nothing to
// be a replica of, and nothing is written.
//
// It is conditional on no head: who is in recovery mode has none, and is who others
// look for.
func (c *PeerRecovery) announce(ctx context.Context, stopped bool) error {
	s := c.cfg.Head.State()
	if s.Phase == authority.Uninitialized {
		return nil
	}
	addrs := c.cfg.Addresses
	r := replicas.Record{
		Key: c.cfg.Self.EnrolmentKey(), Addresses: addrs[:min(len(addrs), replicas.MaxAddrs)], Phase: s.Phase.String(),
		StartedAt: c.cfg.StartedAt.UTC(), At: c.cfg.Now().UTC(), Release: flowcontrol.Clip(c.cfg.Release,
			flowcontrol.MaxShownBytes), Stopped: stopped,
		Reads: c.cfg.Reads,
	}
	if s.Phase == authority.Ready {
		r.Index, r.Head, r.Keepers = s.Head.Index, s.Head.Hash, c.cfg.Keepers.Told(s)
	}
	if c.cfg.StoreGuard.Lost() != nil {
		r.Seen = store.Revision(min(c.cfg.StoreGuard.Revision(), uint64(store.MaxRevision)))
	}
	if last := s.Ready(); last != nil {
		if found, err := c.cfg.Self.Admits(last.Manifest); err == nil {
			r.Name = found.Name
		}
	}
	w, err := replicas.Sign(r, c.cfg.Self.PrivateKey(), c.cfg.Self.Vouch)
	if err != nil {
		return err
	}
	if err := c.cfg.Faults.Hit("replica.announce"); err != nil {
		return err
	}
	// Nobody else writes it but who prunes. Of two writes of our own, the later is the
	// later in the store too: there is one loop.
	if _, err := c.cfg.Store.Commit(ctx, store.Tx{ID: store.NewTxID(), Put: []store.Write{w}}); err != nil {
		return fmt.Errorf("write the replica record: %w", err)
	}
	return nil
}

// dropReplicas removes the records of coordinators that the manifest does not admit, or
// that were stopped a week ago. One that died is missed until somebody forgets it.
func (c *PeerRecovery) dropReplicas(ctx context.Context, s *authority.State, now time.Time) error {
	l, err := c.cfg.Store.List(ctx, replicas.Prefix)
	if err != nil {
		return err
	}
	var over []store.Entry
	for _, e := range l.Entries {
		r, err := replicas.Open(e)
		if err == nil {
			_, ok := r.EntryIn(s.Manifest, now)
			if ok && (!r.Stopped || now.Sub(r.At) <= replicaRetention) {
				continue
			}
		}
		over = append(over, e)
	}
	return c.cfg.Election.Drop(ctx, s, over)
}

// replicaMessages says what coordinators there are, as far as anybody can tell: in
// recovery mode by the manifest that the store claims, which is what a person who
// looks then wants to know. It is left out rather than fail the status.
func (c *PeerRecovery) replicaMessages(ctx context.Context, s *authority.State) []*fealtyv1.Replica {
	var m *manifest.Manifest
	if last := s.Ready(); last != nil {
		m = last.Manifest
	} else if _, _, claimed, err := c.cfg.Head.ClaimedHistory(ctx); err == nil {
		m = claimed
	} else {
		return nil
	}
	all, err := c.cfg.Replicas.Newest(ctx, m)
	if err != nil {
		c.cfg.Failures.Log(ctx, c.cfg.Log, slog.LevelWarn, "the replica records were not read", slog.Any("err", err))
		return nil
	}
	out := make([]*fealtyv1.Replica, 0, len(all))
	for _, r := range all {
		msg := r.Message(c.cfg.Self.EnrolmentKey())
		if silent, expected := c.cfg.Silence(r.Key); expected && s.Phase == authority.Ready {
			msg.UnheardFor = durationpb.New(silent)
		}
		out = append(out, msg)
	}
	return out
}
