package snapshot

import (
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/internal/snapshot"
)

// Reason says why a snapshot was refused, in one word: a metric label. Each check has one: limits, schema, cluster,
// subject, signer, signature, content_hash, validity, authority_epoch, config_version, grants, content, raw_secret;
// history is that of a trust bundle whose head does not lead on from the one of the bundle before, of a history that
// was rolled back or forked; base_mismatch is that of a patch to another version than the active one. Those on which a receiver acts in a way of its own have constants.
type Reason string

// Reasons of the check of versions, which a receiver tells apart.
const (
	// ReasonVersion: it is older than what was accepted last.
	ReasonVersion Reason = snapshot.ReasonVersion

	// ReasonUnchanged: it is what was accepted last, to the byte. No news, no attack.
	ReasonUnchanged Reason = "unchanged"
	// ReasonStaleRecord: its publication record is older than the one accepted last,
	// as from a mirror that lags.
	ReasonStaleRecord Reason = "stale_record"
	// ReasonEquivocation: a version with another content, or a generation with another
	// root, than was accepted under the same number. Keep both and raise an alarm:
	// the signer lies, or its key is copied.
	ReasonEquivocation Reason = "equivocation"
	// ReasonUnrecorded: at start-up, bytes that the marks do not know.
	ReasonUnrecorded Reason = "unrecorded"
)

// The checks, by the numbers of docs/explanation/snapshots.md#the-twelve-checks. The limits have none.
const (
	checkLimits    = 0
	checkSchema    = 1
	checkCluster   = 2
	checkSubject   = 3
	checkSigner    = 4
	checkSignature = 5
	checkHash      = 6
	checkValidity  = 7
	checkEpoch     = 8
	checkVersion   = 9
	checkGrants    = 10
	checkContent   = 11
	checkSecret    = 12
)

// remedies says for each check what to do when it fails.
var remedies = [...]string{
	checkLimits:    "get it from another source",
	checkSchema:    "upgrade this program, or have the snapshot compiled for its version",
	checkCluster:   "get a snapshot of this cluster",
	checkSubject:   "get the snapshot of this node; after enrolling again, a new one",
	checkSigner:    "get the newest trust bundle, then a snapshot signed by one of its keys",
	checkSignature: "get it from another source; if all give the same, get the newest trust bundle",
	checkHash:      "get the whole content again, from another source",
	checkValidity:  "compare the clocks; then ask for a newer snapshot",
	checkEpoch:     "get the current snapshot from a coordinator",
	checkVersion:   "get the current snapshot from a coordinator",
	checkGrants:    "report it: the compiler gave this node what it may not have",
	checkContent:   "report it: the compiler made content that is not valid",
	checkSecret:    "remove the secret from the config, replace it, and put a reference in its place",
}

// ErrRejected is matched by every refusal of a snapshot.
var ErrRejected = errors.New("snapshot refused")

// RejectedError says which check refused a snapshot. Earlier content that was
// valid stays so.
type RejectedError struct {
	Scope  Scope  // as signed; empty before check 1 has read it
	Check  int    // 1 to 12; 0 for the limits
	Reason Reason // stable: a metric label
	Detail string // for people; quotes and clips what the sender chose, never holds a secret
	// Ahead says that a trusted key signed it under a newer authority epoch than that of
	// the verifier's trust bundle: the verifier is behind.
	Ahead bool
}

func (e *RejectedError) Error() string {
	what := "snapshot"
	if e.Scope != "" {
		what = fmt.Sprintf("%.40s snapshot", e.Scope)
	}
	by := fmt.Sprintf("check %d (%s)", e.Check, e.Reason)
	if e.Check == checkLimits {
		by = "a limit"
	}
	do := "get it from another source"
	if e.Check >= 0 && e.Check < len(remedies) {
		do = remedies[e.Check]
	}
	switch e.Reason {
	case ReasonUnchanged:
		do = "nothing to do"
	case ReasonStaleRecord:
		do = "get it from another source, this one lags"
	case snapshot.ReasonBase:
		do = "get the whole content"
	case ReasonEquivocation:
		do = "keep both, and find out who else holds the signing key"
	}
	return fmt.Sprintf("%s refused by %s: %s: %s", what, by, e.Detail, do)
}

// Is matches ErrRejected.
func (e *RejectedError) Is(target error) bool { return target == ErrRejected }

func refuse(check int, scope Scope, detail string) *RejectedError {
	return &RejectedError{Scope: scope, Check: check, Reason: Reason(snapshot.ReasonOf(check)), Detail: detail}
}
