// Package storeguard stops a coordinator from changing anything in a store that lost acknowledged
// writes, and notices a store that takes no writes.
//
// A store can go back under the same head of the history: a dump, a disk image, a failover to a
// copy that lagged. Package internal/store/health decides whether it did, and whether the store
// takes writes; a [Guard] looks at what the store shows to whoever calls it, keeps it on disk, and
// is asked before anything changes.
//
// A coordinator whose store went back goes on as in an outage: it serves what it knew, and
// certifies recorded keys again. It changes nothing, nobody leads, and no trust bundle is signed,
// so that no ban ends by it. It stays so over restarts, whatever the store shows later: what was
// acknowledged in between may be gone. The way out is a restore that the signers want.
package storeguard

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
)

// A Head is the record at [history.HeadKey] that somebody goes by.
type Head struct {
	Version store.Revision // at which the store showed it
	Record  []byte
}

// Config is what a [Guard] is made of. Every field is required, but where it says otherwise.
type Config struct {
	// Store is asked for the head when something seems to be lost. It is the engine itself:
	// what it shows then is not observed.
	Store store.Store

	// StoreName is how commands name the store, such as "sqlite:/var/lib/fealty/db". Empty
	// if that may not be shown.
	StoreName string

	// Patience bounds a look at the head.
	Patience time.Duration

	// Unguarded are what the keys of some families begin with, each of which is written to
	// whatever the store lost: they tell of coordinators, or authenticate themselves, and
	// decide nothing by being there.
	Unguarded []string

	// FS holds what was seen of the store, in two files in Dir.
	FS  durable.FS
	Dir string

	// InForce returns the head that this coordinator acts under; false while it is not
	// ready. The store may be that of another cluster then, whose revisions are no evidence.
	InForce func() (Head, bool)

	// OlderHead says why nothing can change while the store shows a head of before; nil if
	// it does not. It is said in place of a loss: it is news to whoever knows no revisions.
	OlderHead func() error

	// Moved is called if the store shows another head than that under which something of it
	// seemed to be lost, or shows none now: the head is to be looked at.
	Moved func()

	// Process is that of an embedded store, which this coordinator started. Nil: its store is no process of its own.
	Process Process

	// Lost is called by [Guard.Run] once the store is known to have lost something.
	Lost func()

	// Now is the clock for expiry and for what is told.
	Now func() time.Time

	Log      *slog.Logger
	Failures *ratelimit.LogSampler // of what the disk can cause
}

// A Guard knows what was seen of a store, whether the store lost some of it, and whether it
// takes writes. It is for concurrent use.
type Guard struct {
	cfg Config

	writes   health.WriteRecord
	outages  outages
	failures *prometheus.CounterVec
	failed   clock.Last // when a call last ended because the store did not answer
	kept     health.Keeper
	fault    error // why it cannot be told what was seen before; written by Load alone

	keeping sync.Mutex           // held by who writes down what was seen
	written [2][sha256.Size]byte // digests of what was written; guarded by keeping

	headName string // of the file of head; guarded by keeping
	head     []byte // what is to be written of the newest head; nil: nothing; guarded by keeping
	unkept   atomic.Pointer[unkept]
}

// New returns a guard that has seen nothing. Call [Guard.Load] before anything else.
func New(cfg Config) *Guard { return &Guard{cfg: cfg, failures: newFailures()} }

// Lost returns what the store is known to have lost; nil if nothing is.
func (g *Guard) Lost() *health.Loss { return g.kept.Lost() }

// Changed returns a channel that is closed when something is lost, or nothing any more.
func (g *Guard) Changed() <-chan struct{} { return g.kept.Changed() }

// Revision returns the newest revision of the store that was seen.
func (g *Guard) Revision() uint64 { return g.kept.Revision() }

// Begin returns what was seen before a read that [Guard.Compare] is told of.
func (g *Guard) Begin() health.Seen { return g.kept.Begin() }

// Compare compares what a read under head showed with what was seen when it began. The
// change that ctx is of brings a restore into force (see [AsRestore]): it is not compared.
//
// Errors: [errcode.StoreWentBack], or what Config.OlderHead says, if the store lost
// something; a [*store.ConflictError] of the head if it shows another one, or none now.
func (g *Guard) Compare(ctx context.Context, head Head, began, now health.Seen) error {
	if isRestore(ctx) {
		return nil
	}
	loss := g.kept.Read(began, now, g.cfg.Now())
	switch {
	case loss == nil:
		return nil
	case g.Missed(ctx, head, loss):
		return g.LostError()
	}
	return &store.ConflictError{Key: history.HeadKey, Want: head.Version}
}

// Missed notes that the store lost something under head, and reports whether it is known to
// have lost anything. If it shows another head, that is what is to be looked at, and nothing
// is noted: what it shows of an older one may be a notice that is late.
func (g *Guard) Missed(ctx context.Context, head Head, loss *health.Loss) (lost bool) {
	if g.kept.Lost() != nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Patience)
	defer cancel()
	e, err := g.cfg.Store.Get(ctx, history.HeadKey)
	if err != nil || e.Version != head.Version || string(e.Value) != string(head.Record) {
		g.cfg.Moved()
		return false
	}
	g.kept.Lose(loss)
	return true
}

// Restored has what is seen count from the restore of an authority epoch on, if that is a
// newer one than before: nothing is lost then. 0: there was no restore.
func (g *Guard) Restored(epoch uint64) { g.kept.Restored(epoch) }

// SawBundle keeps the trust bundle that is in force, as it was signed.
func (g *Guard) SawBundle(signed []byte) { g.kept.SawBundle(signed) }

// Bundle returns the trust bundle that was in force last; nil if none is kept.
func (g *Guard) Bundle() []byte { return g.kept.Bundle() }

// LostError says why nothing can change while the store lost something, as
// [errcode.StoreWentBack] or as Config.OlderHead says it; nil if it did not.
func (g *Guard) LostError() error {
	loss := g.kept.Lost()
	if loss == nil {
		return nil
	}
	if older := g.cfg.OlderHead(); older != nil {
		return older
	}
	name := g.cfg.StoreName // as a command takes it
	if name == "" || strings.ContainsAny(name, " \t\n") {
		name = "URL"
	}
	return errcode.New(errcode.StoreWentBack, "problem", loss.String(), "store", name)
}

// LostReason is a sentence on what the store lost; empty if it lost nothing.
func (g *Guard) LostReason() string {
	if loss := g.kept.Lost(); loss != nil {
		return "the store went back: it " + loss.String() + "; nothing is changed before the signers restore it"
	}
	return ""
}

// LostFindings says that the store went back; nil if it did not, or if the head that it
// shows says so.
func (g *Guard) LostFindings() []*fealtyv1.Finding {
	err := g.LostError()
	if !errors.Is(err, errcode.StoreWentBack) {
		return nil
	}
	e := errcode.Of(err)
	return []*fealtyv1.Finding{finding.NewCritical(errcode.StoreWentBack, "problem", e.Fields["problem"],
		"store", e.Fields["store"])}
}

// UntilWhole returns at once if the store is not known to have lost something, and waits
// until ctx ends otherwise, whose error it returns then. A restore leads to another state,
// so that whoever follows this one waits until that is over.
func (g *Guard) UntilWhole(ctx context.Context) error {
	if g.kept.Lost() == nil {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// Silent notes that a call ended because the store did not answer.
func (g *Guard) Silent() { g.failed.Set(g.cfg.Now()) }

// SilentAt returns when the store last did not answer; the zero time if it always did.
func (g *Guard) SilentAt() time.Time { return g.failed.Get() }
