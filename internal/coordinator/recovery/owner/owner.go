// Package owner rebuilds the seed, from which the keys of the cluster's roots come, from the shares of
// its owners (docs/explanation/recovery.md), and shows the history to anybody who verifies the cluster
// (docs/how-to/verify-a-cluster.md). An owner brings a share in recover.go; collect.go gathers those
// that were brought to several coordinators.
//
// The shares are those of Shamir's scheme, each sent by its owner to a recipient that lives as long
// as the attempt (age-encryption.org/v1), over a TLS 1.3 connection that the offer is bound to (RFC
// 8446 §7.5). A coordinator that has enough of them believes the seed that they make only if the
// whole history was signed by it.
//
// A caller of [Verification] has proven nothing, and need not: the service shows links without
// their manifests, together with a proof of which coordinator shows them, bound to the caller's TLS
// connection. It decides nothing. [Send] and [Pages] send the links that they are given; owners get the
// manifests with them.
package owner

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/authority/succession"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

// Config is what an OwnerRecovery is made of.
type Config struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Replicas   *peer.Directory
	Keys       *keychain.Keychain
	Succession *succession.Succession
	Turn       *authority.Turn
	Election   *election.Election
	Store      store.Store
	Faults     *failpoint.Points
	Readers    *ratelimit.Readers
	Refusals   *ratelimit.LogSampler
	Log        *slog.Logger
	Now        func() time.Time

	// MaxBringing bounds the streams of owners that have brought no share of the seed yet. Zero
	// means the constant of that name: a test cannot make as many.
	MaxBringing int
}

// OwnerRecovery holds at most one attempt. Make it with [New].
type OwnerRecovery struct {
	cfg     Config
	metrics *metrics

	recoveries *recoveries
	due        watch.Signal // the open attempt is to be looked at now
}

// New returns an OwnerRecovery without an attempt.
func New(cfg Config) *OwnerRecovery {
	return &OwnerRecovery{cfg: cfg, recoveries: newRecoveries(cmp.Or(cfg.MaxBringing, MaxBringing))}
}

// End ends whatever attempt is open: the head has its secrets, or the process stops.
func (c *OwnerRecovery) End() { c.recoveries.over() }

// Expect notes whose shares would bring the seed of a head back, as the store has it.
func (c *OwnerRecovery) Expect(l *history.Link) { c.recoveries.expect(l) }

// Alive returns once the lock that calls of owners take was free: it says that none of them is stuck.
func (c *OwnerRecovery) Alive() {
	c.recoveries.mu.Lock()
	defer c.recoveries.mu.Unlock()
}

// Recipient is the public key that shares are encrypted to.
func (g *Attempt) Recipient() string { return g.recipient.Public() }
