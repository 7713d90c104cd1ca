// Package instruction decides what becomes of an instruction, which is something that a member is
// told to do once, and carries instructions out on the member.
//
// A coordinator keeps an instruction until the member reported its outcome, or until it is over.
// The leader signs it under its term, and each later leader anew (I5): see
// docs/explanation/fencing.md. [Order] decides alone: it knows no store, no clock and no member.
//
// On the member an [Executor] does what it is told once, and never twice. A begin is in the [Book]
// on disk before it happens, and its outcome before anybody hears of it: an instruction that comes
// again is answered and not done again, and one that was under way when the process ended has an
// unknown outcome and is not begun again. Ids are kept for as long as they can come again.
package instruction

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
)

// Limits of instructions.
const (
	MaxID     = 64  // bytes of an id
	MaxDetail = 256 // bytes of what a member says beside an outcome
	// MaxWaiting is how many wait for one member at once.
	MaxWaiting = 64
	// Lasts is how long one waits for its member.
	Lasts = 7 * 24 * time.Hour
)

// Kinds of what is to be done.
const (
	Pause  = "pause"  // a shard decides, and does nothing
	Resume = "resume" // it does again what it decides
)

// Kinds returns what a member of a kind can be told to do.
func Kinds(of identity.Kind) []string {
	if of == identity.Shard {
		return []string{Pause, Resume}
	}
	return nil
}

// Outcome is what became of an instruction.
type Outcome string

// The outcomes. All but Stale end it.
const (
	Done        Outcome = "done"
	Failed      Outcome = "failed"      // it was begun, and did not succeed
	Unknown     Outcome = "unknown"     // the member stopped while it was under way
	Unsupported Outcome = "unsupported" // the member cannot do it
	Stale       Outcome = "stale"       // the member heard of a newer leader than who signed it
	Expired     Outcome = "expired"     // it was over before the member said anything
)

// Order is an instruction that waits.
type Order struct {
	ID     string    `json:"id"`
	Member string    `json:"member"` // "<kind>/<name>"
	Kind   string    `json:"kind"`
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	// Until is when it is over, in whole seconds.
	Until time.Time `json:"until"`
	// Term is that of the leader who signed it last, Key the id of the key, and Statement what was
	// signed; 0 and "" before the first did.
	Term      int64  `json:"term,omitempty"`
	Key       string `json:"key,omitempty"`
	Statement string `json:"statement,omitempty"`
	// Refused is the highest term under which the member refused it as stale.
	Refused int64 `json:"refused,omitempty"`
}

// Ended is one of which the member said what became of it, or that is over.
type Ended struct {
	Order
	Outcome Outcome   `json:"outcome"`
	Detail  string    `json:"detail,omitempty"`
	EndedAt time.Time `json:"ended_at"`
}

// CheckID says what is wrong with an id, or "".
func CheckID(id string) string {
	switch {
	case id == "" || len(id) > MaxID:
		return fmt.Sprintf("it has %d characters, from 1 to %d are allowed", len(id), MaxID)
	case strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') &&
			r != '-'
	}):
		return "it has a character other than a-z, 0-9 and '-'"
	}
	return ""
}

// Same reports whether two are one: given again, it changes nothing.
func (o Order) Same(other Order) bool {
	return o.ID == other.ID && o.Member == other.Member && o.Kind == other.Kind
}

// Due reports whether the leader of a term is to sign it with a key: nobody did yet, or a leader
// before, or with another key, which may be believed no longer. The signature of a later leader is left
// alone.
func (o Order) Due(term int64, key string) bool {
	return o.Term < term || o.Term == term && o.Key != key
}

// Over reports whether nobody may begin it any more.
func (o Order) Over(now time.Time) bool { return !now.Before(o.Until) }

// Signed returns o as a leader signed it.
func (o Order) Signed(term int64, key, statement string) Order {
	o.Term, o.Key, o.Statement = term, key, statement
	return o
}

// Acknowledge returns what becomes of o when its member says so: it ended, or it goes on waiting
// for the next leader to sign it. Term is the one under which the member refused it as stale; that
// of no signature that there is counts as that of the newest one.
func (o Order) Acknowledge(outcome Outcome, detail string, term uint64, now time.Time) (ended Ended, waits Order,
	ends bool) {
	if outcome == Stale {
		refused := o.Term
		if term != 0 && term < uint64(max(o.Term, 0)) {
			refused = int64(term)
		}
		o.Refused = max(o.Refused, refused)
		return Ended{}, o, false
	}
	return Ended{Order: o, Outcome: outcome, Detail: detail, EndedAt: now}, o, true
}

// Compare orders instructions as they were given.
func Compare(a, b Order) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) }
