// Package succession replaces the head of the history that is in force by the next one, together
// with its keys (I8, I9): it moves the head, follows it where another coordinator moved it, and
// gets the secrets back where they are lost (docs/explanation/failure-model.md,
// docs/explanation/recovery.md).
//
// One head comes into force at a time: whoever moves it holds the turn of package authority. Other
// packages register in [Hooks] what they have to do then.
package succession

import (
	"context"
	"log/slog"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/audit/buffer"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/authority/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/authority/reseal"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/backup"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/keepers"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/shares"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/store"
)

// PollPause is how often the head is looked at without a notice. It is not what makes a decision right.
const PollPause = 5 * time.Second

// Config is what a Succession is made of.
type Config struct {
	Self        *authority.Enrolment
	Head        *authority.Head
	Keepers     *keepers.Keepers
	Keys        *keychain.Keychain
	StoreGuard  *storeguard.Guard
	Auditing    *buffer.Queue
	Turn        *authority.Turn
	Reseal      *reseal.Reseal
	Shares      *shares.Shares
	Restoration *backup.Restoration
	Peers       *peer.PeerRecovery
	Store       store.Store
	Faults      *failpoint.Points
	Log         *slog.Logger
	Now         func() time.Time
	Elapsed     func() time.Duration

	// SelfHealAfter is how long it looks for the mesh CA key before it makes another.
	SelfHealAfter time.Duration
	Hooks         Hooks
}

// Hooks are what other parts do when a head comes, is replaced, or is away. All but Idle are called under the
// turn, or by [Succession.Load] and the first [Succession.Adopt] before anything else runs; they take none.
type Hooks struct {
	Followers []authority.Follower // in the order in which they prepare
	Arrivals  []func()             // a head came into force
	Returns   []func()             // it is about to be ready, and was not
	Claimed   func(*history.Link)  // the store shows this head, and nothing vouches for it yet
	Fits      []authority.Fitter   // say what a move must not break
	// BeforeMove ends what has to be done under from, before its head is replaced.
	BeforeMove func(ctx context.Context, from *authority.State)
	// Idle is called without the turn, where nothing was to follow for a while.
	Idle func()
}

// Succession brings heads into force. Make it with [New].
type Succession struct {
	cfg Config

	search decide.Search // the way back to the head; owned by who has the turn
	pushed atomic.Bool   // a peer may be at the head: look for it now

	// untold is what the audit log is told once a state is adopted: where the secrets came
	// from, and the moves that made it; owned by who has the turn.
	untold []record.AuditEntry

	// lost counts adoptions in a row that somebody else was first with; owned by who has
	// the turn.
	lost  int
	tried atomic.Bool // to bring the keys back, or to find that there are none
}

// New returns a Succession. It looks at nothing before [Succession.Load].
func New(cfg Config) *Succession {
	return &Succession{cfg: cfg, search: decide.Search{HealAfter: cfg.SelfHealAfter, Random: mathrand.Float64}}
}

// Push has the peers asked at once for the secrets of the head, if these are missing: one may have them now.
func (c *Succession) Push() {
	c.pushed.Store(true)
	c.cfg.Head.LookAgain()
}

// Tried reports whether the history was looked at to its end once: its keys are here, there is none, or a way
// back to them was tried.
func (c *Succession) Tried() bool { return c.tried.Load() }

// HeadMoved follows the head, which a transaction found to be another one, and reports whether what it was to
// do may be decided again: while the store shows an older head nothing can. It takes the turn.
func (c *Succession) HeadMoved(ctx context.Context, _ *store.ConflictError) (again bool) {
	c.Leave(ctx)
	return c.cfg.Head.OlderHeadError() == nil
}
