package status

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/keepers"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

// Bounds and times of replica records.
const (
	Retention = 7 * 24 * time.Hour // after the last one, of a coordinator that stopped
	leaveTime = 2 * time.Second    // to say that it stops
)

// AnnouncerConfig is what an Announcer is made of.
type AnnouncerConfig struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Keepers    *keepers.Keepers
	Election   *election.Election
	StoreGuard *storeguard.Guard
	Replicas   *peer.Directory
	Store      store.Store
	Faults     *failpoint.Points
	Failures   *ratelimit.LogSampler
	Log        *slog.Logger
	Now        func() time.Time

	// Reads are the later fields of manifests, and the other forms, that this release reads: all
	// of them, but where a test plays an earlier release.
	Reads     []string
	StartedAt time.Time
	Release   string   // that it reports
	Addresses []string // that others are told; shared
	// Silence is for how long the coordinator with the key was not heard, and whether it is
	// expected.
	Silence func(key string) (since time.Duration, expected bool)
}

// Announcer writes this coordinator's record, and reads and drops those of all.
type Announcer struct{ cfg AnnouncerConfig }

// NewAnnouncer returns an Announcer. It writes nothing yet.
func NewAnnouncer(cfg AnnouncerConfig) *Announcer { return &Announcer{cfg: cfg} }

// Follow writes this coordinator's record at once, when its state changes,
// and each minute, until ctx ends. If that is because stop did, it writes that it was
// stopped in order.
func (a *Announcer) Follow(ctx, stop context.Context) error {
	defer func() {
		if stop.Err() == nil {
			return // it fails, or starts again
		}
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
		if err := a.Announce(leaving, true); err != nil {
			a.cfg.Log.LogAttrs(leaving, slog.LevelWarn,
				"the others were not told that this coordinator stops: they will miss it", slog.Any("err", err))
		}
	}()
	for {
		changed, keepers := a.cfg.Head.Changed(), a.cfg.Keepers.SeenChanged()
		lost, certificate := a.cfg.StoreGuard.Changed(), a.cfg.Self.CertificateChanged()
		if err := a.Announce(ctx, false); err != nil {
			return err
		}
		if _, err := watch.Wait(ctx, peer.Pause, changed, keepers, certificate, lost); err != nil {
			return err
		}
	}
}

// Announce writes this coordinator's record. Without a manifest there is nothing to
// be a replica of, and nothing is written.
//
// It is conditional on no head: who is in recovery mode has none, and is who others
// look for.
func (a *Announcer) Announce(ctx context.Context, stopped bool) error {
	s := a.cfg.Head.State()
	if s.Phase == authority.Uninitialized {
		return nil
	}
	addrs := a.cfg.Addresses
	r := peer.Record{
		Key: a.cfg.Self.EnrolmentKey(), Addresses: addrs[:min(len(addrs), peer.MaxAddrs)], Phase: s.Phase.String(),
		StartedAt: a.cfg.StartedAt.UTC(), At: a.cfg.Now().UTC(), Release: ratelimit.Clip(a.cfg.Release,
			ratelimit.MaxShownBytes), Stopped: stopped,
		Reads: a.cfg.Reads,
	}
	if s.Phase == authority.Ready {
		r.Index, r.Head, r.Keepers = s.Head.Index, s.Head.Hash, a.cfg.Keepers.Reported(s)
	}
	if a.cfg.StoreGuard.Lost() != nil {
		r.Seen = store.Revision(min(a.cfg.StoreGuard.Revision(), uint64(store.MaxRevision)))
	}
	if last := s.Ready(); last != nil {
		if found, err := a.cfg.Self.Admits(last.Manifest); err == nil {
			r.Name = found.Name
		}
	}
	w, err := peer.Sign(r, a.cfg.Self.PrivateKey(), a.cfg.Self.Vouch)
	if err != nil {
		return err
	}
	if err := a.cfg.Faults.Hit("replica.announce"); err != nil {
		return err
	}
	// Nobody else writes it but who prunes. Of two writes of our own, the later is the
	// later in the store too: there is one loop.
	if _, err := a.cfg.Store.Commit(ctx, store.Tx{ID: store.NewTxID(), Put: []store.Write{w}}); err != nil {
		return fmt.Errorf("write the replica record: %w", err)
	}
	return nil
}

// Drop removes the records of coordinators that the manifest does not admit, or
// that were stopped a week ago. One that died is missed until somebody forgets it.
func (a *Announcer) Drop(ctx context.Context, s *authority.State, now time.Time) error {
	l, err := a.cfg.Store.List(ctx, peer.Prefix)
	if err != nil {
		return err
	}
	var over []store.Entry
	for _, e := range l.Entries {
		r, err := peer.Open(e)
		if err == nil {
			_, ok := r.EntryIn(s.Manifest, now)
			if ok && (!r.Stopped || now.Sub(r.At) <= Retention) {
				continue
			}
		}
		over = append(over, e)
	}
	return a.cfg.Election.Drop(ctx, s, over)
}

// Messages says what coordinators there are, as far as anybody can tell: in
// recovery mode by the manifest that the store claims, which is what a person who
// looks then wants to know. An error says that the store did not tell.
func (a *Announcer) Messages(ctx context.Context, s *authority.State) ([]*fealtyv1.Replica, error) {
	var m *manifest.Manifest
	if last := s.Ready(); last != nil {
		m = last.Manifest
	} else if _, _, claimed, err := a.cfg.Head.ClaimedHistory(ctx); err == nil {
		m = claimed
	} else {
		return nil, err
	}
	all, err := a.cfg.Replicas.Newest(ctx, m)
	if err != nil {
		a.cfg.Failures.Log(ctx, a.cfg.Log, slog.LevelWarn, "the replica records were not read", slog.Any("err", err))
		return nil, err
	}
	out := make([]*fealtyv1.Replica, 0, len(all))
	for _, r := range all {
		msg := r.Message(a.cfg.Self.EnrolmentKey())
		if silent, expected := a.cfg.Silence(r.Key); expected && s.Phase == authority.Ready {
			msg.UnheardFor = durationpb.New(silent)
		}
		out = append(out, msg)
	}
	return out, nil
}
