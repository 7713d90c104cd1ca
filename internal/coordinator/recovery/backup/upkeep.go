package backup

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
)

// UpkeepPrefix is where it is kept when the last backup was made, and when the share of each
// owner was last found good. A release before this does not move these records at a reseed:
// what it leaves cannot be read any more, and counts as never.
const (
	UpkeepPrefix = "upkeep/"
	backupKey    = UpkeepPrefix + "backup"
	drillPrefix  = UpkeepPrefix + "drill/"

	maxDrilled = 64 // shares of one call
)

// LastBackup is the record of the last backup that was sent whole.
type LastBackup struct {
	At       time.Time      `json:"at"`
	By       string         `json:"by"`
	Revision store.Revision `json:"revision"`
}

// LastDrill is the record of the last time that the share of an owner was found good.
type LastDrill struct {
	At         time.Time `json:"at"`
	By         string    `json:"by"`
	Commitment string    `json:"commitment"` // in hex; of another share the record says nothing
}

// noteBackup records that all of a backup was sent. What is known of a backup stays as it is
// where the record is not written: it is older then than what there is, and not newer. A record that is there is replaced,
// whatever its time says: notes come one after the other, and a clock that was ahead is put right by the next one.
func (c *Backups) noteBackup(ctx context.Context, by string, revision store.Revision) error {
	return c.cfg.Head.Transact(ctx, "the record of the backup", func(s *authority.State) error {
		was, err := record.Get[LastBackup](ctx, s.Records, backupKey)
		if err != nil {
			return c.cfg.Head.StoreError("read when the last backup was made", err)
		}
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(backupKey, was.Version, LastBackup{At: c.cfg.Now().UTC(), By: ratelimit.Clip(by, ratelimit.MaxShownBytes),
			Revision: revision})
		if _, err := ch.Commit(ctx); err != nil {
			return c.cfg.Head.CommitError("record the backup", err)
		}
		return nil
	})
}

// RecordDrill notes whose shares were found good, if they are of the newest shares.
func (b backupServer) RecordDrill(ctx context.Context,
	req *fealtyv1.RecordDrillRequest) (*fealtyv1.RecordDrillResponse, error) {
	c := b.c
	err := c.cfg.Head.Transact(ctx, "the record of the drill", func(s *authority.State) error {
		if n := len(req.GetShares()); n == 0 || n > maxDrilled {
			return errcode.New(errcode.RequestField, "field", "shares", "problem",
				fmt.Sprintf("there are %d, and it takes from 1 to %d", n, maxDrilled))
		}
		ch := s.Records.NewChange(s.HeadVersion)
		var owners []string
		for _, d := range req.GetShares() {
			i := slices.IndexFunc(s.Head.ShareCommitments,
				func(own history.ShareCommitment) bool { return own.Owner == d.GetOwner() })
			if i < 0 || !bytes.Equal(s.Head.ShareCommitments[i].Hash[:], d.GetCommitment()) {
				return errcode.New(errcode.RequestField, "field", "shares", "problem", fmt.Sprintf(
					"the share of %s is none of the newest", ratelimit.Clip(d.GetOwner(), ratelimit.MaxShownBytes)))
			}
			if slices.Contains(owners, d.GetOwner()) {
				continue
			}
			key := drillPrefix + d.GetOwner()
			was, err := record.Get[LastDrill](ctx, s.Records, key)
			if err != nil {
				return c.cfg.Head.StoreError("read when a share was found good", err)
			}
			ch.Put(key, was.Version, LastDrill{At: c.cfg.Now().UTC(), By: record.Actor(ctx),
				Commitment: hex.EncodeToString(d.GetCommitment())})
			owners = append(owners, d.GetOwner())
		}
		slices.Sort(owners)
		ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "seed.drill",
			Target: s.Manifest.Cluster, Fields: map[string]string{"owners": strings.Join(owners, ",")}})
		if _, err := ch.Commit(ctx); err != nil {
			return c.cfg.Head.CommitError("record the drill", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.RecordDrillResponse{}, nil
}

// believed is the time at which another coordinator's clock put something. Nil if that clock was ahead: such a time would
// count as recent until it has come, however long ago the thing was done. Within what clocks may differ by it was just now.
func believed(at, now time.Time) *timestamppb.Timestamp {
	switch {
	case at.After(now.Add(snapshot.ClockTolerance)):
		return nil
	case at.After(now):
		at = now
	}
	return timestamppb.New(at)
}

// Upkeep returns when the last backup was made and the shares were last found good. Of what was
// noted by a clock that was ahead it has who did it, and no time. The error is that of
// [authority.Head.StoreError].
func (c *Backups) Upkeep(ctx context.Context, s *authority.State) (*fealtyv1.Upkeep, error) {
	l, err := c.cfg.Store.List(ctx, UpkeepPrefix)
	if err != nil {
		return nil, c.cfg.Head.StoreError("read when a backup was made", err)
	}
	now := c.cfg.Now().UTC()
	out := &fealtyv1.Upkeep{Threshold: uint32(s.Head.Threshold)}
	found := make(map[string]LastDrill)
	for _, e := range l.Entries {
		if e.Key == backupKey {
			m, err := record.Open[LastBackup](s.Records, e)
			if err == nil {
				out.BackupAt, out.BackupBy = believed(m.Value.At, now), m.Value.By
				out.BackupRevision = uint64(m.Value.Revision)
			}
			continue
		}
		if d, err := record.Open[LastDrill](s.Records, e); err == nil {
			found[strings.TrimPrefix(e.Key, drillPrefix)] = d.Value
		}
	}
	for _, own := range s.Head.ShareCommitments {
		o := &fealtyv1.OwnerDrill{Owner: own.Owner}
		if d, ok := found[own.Owner]; ok && d.Commitment == hex.EncodeToString(own.Hash[:]) {
			o.At, o.By = believed(d.At, now), d.By
		}
		out.Owners = append(out.Owners, o)
	}
	c.lastBackup.Store(out.GetBackupAt().GetSeconds())
	c.lastDrill.Store(EnoughDrilled(out).GetSeconds())
	return out, nil
}

// EnoughDrilled returns since when as many shares were found good as bring the seed back: when
// the oldest of the newest of them was. Nil if fewer ever were.
func EnoughDrilled(u *fealtyv1.Upkeep) *timestamppb.Timestamp {
	var at []*timestamppb.Timestamp
	for _, o := range u.GetOwners() {
		if o.GetAt() != nil {
			at = append(at, o.GetAt())
		}
	}
	slices.SortFunc(at, func(a, b *timestamppb.Timestamp) int { return b.AsTime().Compare(a.AsTime()) })
	if n := int(u.GetThreshold()); n > 0 && len(at) >= n {
		return at[n-1]
	}
	return nil
}

// RegisterMetrics registers when the last backup and the last drill were.
func (c *Backups) RegisterMetrics(reg prometheus.Registerer) {
	reg.MustRegister(
		metrics.GaugeOf("fealty_last_backup_seconds",
			"When a coordinator sent all of a backup last, in Unix time, by any coordinator; 0 if none ever did, or "+
				"while it is not known.",
			func() float64 { return float64(c.lastBackup.Load()) }),
		metrics.GaugeOf("fealty_last_drill_seconds",
			"Since when as many shares of the seed were found good by a drill as bring it back, in Unix time; 0 if "+
				"fewer ever were, no person owns one, or while it is not known.",
			func() float64 { return float64(c.lastDrill.Load()) }))
}
