package fence

import (
	"errors"
	"fmt"
)

// ErrFenced is matched by a refusal that says that the sender is not, or no longer, in
// charge of the resource. It is final: the sender stops acting on it, and never tries again.
var ErrFenced = errors.New("fenced")

// ErrEnded is matched by a refusal that ends the sender's process, all of [ErrFenced] but
// that a domain moved on. See [Reason.Ends].
var ErrEnded = errors.New("fenced for good")

// ErrRefused is matched by every [*RefusedError], fenced or not.
var ErrRefused = errors.New("refused")

// Reason is why a claim was refused. Its text is a metric label, and travels to the
// sender.
type Reason string

// The reasons. Those of a sender that is not in charge match [ErrFenced].
const (
	// ReasonStale: another attempt, life or grant that is newer was seen.
	ReasonStale Reason = "stale"

	// ReasonMoved: the domain moved on, to another holder or under another assignment to the
	// same. The sender stops acting in the domain under this ownership; of its others, and of
	// its process, it says nothing.
	ReasonMoved Reason = "moved"

	// ReasonClone: two processes run as one holder with copies of one state.
	ReasonClone Reason = "clone"

	// ReasonOwner: another holder has this domain under the same ownership, which the
	// authority never gives twice.
	ReasonOwner Reason = "owner"

	// ReasonDuplicate: this very attempt of this very process was admitted before. The
	// sender is no zombie, and learns what became of it by asking, not by sending it again.
	ReasonDuplicate Reason = "duplicate"

	// ReasonLate: it is the first attempt for a resource, and may be one for a resource of
	// before that is gone. The same attempt with a new token is not late.
	ReasonLate Reason = "late"

	// ReasonUngranted: no signed grant was seen for a grant this high, or the sender was
	// started so often since that its lives cannot be told any more.
	ReasonUngranted Reason = "ungranted"

	// ReasonUnpromised: the domain was not promised to an ownership this high.
	ReasonUnpromised Reason = "unpromised"

	// ReasonDomain: the resource belongs to another domain than the claim says, or to none, or
	// the claim has to say in which it is.
	ReasonDomain Reason = "domain"

	// ReasonMalformed: it is no claim.
	ReasonMalformed Reason = "malformed"

	// ReasonFull: there is no room for one more resource of this holder, or of all.
	ReasonFull Reason = "full"
)

// Fenced reports whether a refusal for this reason matches [ErrFenced].
func (r Reason) Fenced() bool { return r.Ends() || r == ReasonMoved }

// Ends reports whether the refusal ends the sender's process, and not only what it does in
// one domain: see [Sender.Heard].
func (r Reason) Ends() bool { return r == ReasonStale || r == ReasonClone || r == ReasonOwner }

// Alarm reports whether somebody has to be told: two processes act as one, so a machine
// was copied or a key was taken.
func (r Reason) Alarm() bool { return r == ReasonClone || r == ReasonOwner }

// remedies say what the sender, or who runs it, does about a refusal.
var remedies = map[Reason]string{
	ReasonStale:      "stop acting on it: whoever overtook this process is in charge",
	ReasonMoved:      "stop acting in its domain, and ask the coordinator whose it is",
	ReasonLate:       "send it again, with a new token",
	ReasonClone:      "stop both processes, keep one copy of the state, and ask the coordinator for a new grant",
	ReasonOwner:      "stop acting on it, and look which of the two holders the coordinator assigned the domain to",
	ReasonDuplicate:  "ask what became of the first one by its operation id",
	ReasonUngranted:  "send the signed grant along, or ask the coordinator for one",
	ReasonUnpromised: "have the receiver promise the assignment first",
	ReasonDomain:     "name the domain that the resource is in",
	ReasonMalformed:  "update the sender",
	ReasonFull:       "remove resources that are gone, or raise the receiver's limit",
}

// RefusedError says which claim was refused, and what stood against it. A receiver logs
// it; what it sends back is the reason alone, so that a zombie learns no mark.
type RefusedError struct {
	Reason   Reason
	Holder   string
	Resource string
	Got      Token
	Mark     Mark   // of the pair; zero if it has none
	Detail   string // what stood against it, in words
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("fence: %s of %.80q for %.80q was refused as %s, %s: %s", e.Got, e.Holder, e.Resource,
		e.Reason, e.Detail, remedies[e.Reason])
}

// Is reports that every RefusedError matches [ErrRefused], and [ErrFenced] and [ErrEnded]
// by its reason.
func (e *RefusedError) Is(target error) bool { return e.Reason.Matches(target) }

// Matches reports whether a refusal for this reason matches target: [ErrRefused], and by
// the reason [ErrFenced] and [ErrEnded].
func (r Reason) Matches(target error) bool {
	return target == ErrRefused || target == ErrFenced && r.Fenced() || target == ErrEnded && r.Ends()
}
