// Package election keeps at most one coordinator as the leader, and makes each of the leader's
// writes conditional on its term (I4). Package internal/store/leader decides who leads and until when
// its lease is good; this one reads and writes the store for it. A coordinator runs for the lead,
// renews it and notices that it is lost in lead.go.
package election

import (
	"context"
	"log/slog"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
)

// Config is what an Election is made of.
type Config struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Replicas   *peer.Directory
	StoreGuard *storeguard.Guard
	Store      store.Store
	Faults     *failpoint.Points
	Failures   *ratelimit.LogSampler
	Log        *slog.Logger
	Now        func() time.Time
	Elapsed    func() time.Duration // by which leases end: it goes forward, at the pace of real time

	Lease, Beat time.Duration // see package leader
	// LookAtLock has a record lock of the records ended that nobody seems to end.
	LookAtLock func(ctx context.Context)
}

// Election runs internal/store/leader over the store (I4).
type Election struct {
	cfg     Config
	metrics *electionMetrics
	lead    *lead
}

// New makes an election in which nothing was read yet.
func New(cfg Config) (*Election, error) {
	e := &Election{cfg: cfg}
	var err error
	if e.lead, err = newLead(e); err != nil {
		return nil, err
	}
	return e, nil
}

// Drop deletes entries as they were read, in as many transactions as that takes.
func (e *Election) Drop(ctx context.Context, s *authority.State, entries []store.Entry) error {
	for batch := range store.Cut(entries, e.NewChange(s).Tx, store.DeleteCost) {
		ch := e.NewChange(s)
		for _, entry := range batch {
			ch.Delete(entry.Key, entry.Version)
		}
		if _, err := ch.Commit(ctx); err != nil {
			return record.IgnoreConflict(err)
		}
	}
	return nil
}
