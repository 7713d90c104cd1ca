package state

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/snapshot"
)

// A snapshot of a scope that the degraded_mode_policy names is on trial for a while
// after its activation. If whoever consumes it says that it is bad, or the contact that
// there was before is not there when the trial ends, the node uses the content before
// again. That rolls back behaviour, never trust: the marks stay, the scopes that say
// whom to believe and what is allowed are never on trial, and what it falls back to is
// verified again as of now. The fix is a higher version with another content.

const (
	// MaxAttempts is how often a snapshot is put into use on trial: at its activation,
	// and by each start before the trial ended. One that ends the machine each time does
	// so no more than that.
	MaxAttempts = 3
	// MaxQuarantined bounds the list, for each scope; the oldest entry goes first.
	MaxQuarantined = 8
)

// Triable are the scopes that can be on trial. The others say whom to believe, who the
// node is and what it may do: of these the newest alone counts.
var Triable = []snapshot.Scope{
	snapshot.ScopePeerDirectory, snapshot.ScopeQoSPolicy, snapshot.ScopeRoutePolicy, snapshot.ScopeServiceAssignment,
	snapshot.ScopeStorageDirectory,
}

// trial is a snapshot that is in use on trial.
type trial struct {
	Scope    snapshot.Scope `json:"scope"`
	Header   string         `json:"header"`   // the digest of its header
	Attempts int            `json:"attempts"` // how often it was put into use; written down before it is
	Contact  bool           `json:"contact"`  // there was contact when it began
}

// quarantined is a snapshot that failed its trial.
type quarantined struct {
	Scope          snapshot.Scope `json:"scope"`
	AuthorityEpoch uint64         `json:"authority_epoch"`
	ConfigVersion  uint64         `json:"config_version"`
	Content        string         `json:"content_hash"` // what is not tried again
	Reason         string         `json:"reason"`
	Detail         string         `json:"detail"`
	At             time.Time      `json:"at"`
	// Kept says that it stays in use, because there is nothing before it that may be
	// used.
	Kept bool `json:"kept,omitempty"`
}

// Reasons of a failed trial.
const (
	FailedVerdict  = "verdict"  // who consumes it said so
	FailedHook     = "hook"     // so did the program that runs on a change
	FailedContact  = "contact"  // the coordinators were lost
	failedAttempts = "attempts" // the agent ended each time
)

// OnTrial returns the trial of scope.
func (l Ledger) OnTrial(scope snapshot.Scope) (trial, bool) {
	for _, t := range l.Trials {
		if t.Scope == scope {
			return t, true
		}
	}
	return trial{}, false
}

// Tries returns what is in use and what t is the trial of; nil if that is not in use any
// more: the node lost the scope, or its signer was revoked.
func (b *TrustState) Tries(t trial) *ActiveSnapshot {
	if h := b.Active[t.Scope]; h != nil && h.Verified.HeaderDigest().String() == t.Header {
		return h
	}
	return nil
}

// withTrial returns l with t in place of the trial of its scope.
func (l Ledger) withTrial(t trial) Ledger {
	l = l.WithoutTrial(t.Scope)
	l.Trials = append(l.Trials, t)
	return l
}

// WithoutTrial returns l without the trial of scope.
func (l Ledger) WithoutTrial(scope snapshot.Scope) Ledger {
	l.Trials = slices.DeleteFunc(slices.Clone(l.Trials), func(t trial) bool { return t.Scope == scope })
	return l
}

// failed reports whether content failed its trial in scope.
func (l Ledger) failed(scope snapshot.Scope, content snapshot.Digest) bool {
	_, is := l.Barred(scope, content)
	return is
}

// Barred returns why content is not used again in scope.
func (l Ledger) Barred(scope snapshot.Scope, content snapshot.Digest) (quarantined, bool) {
	for _, q := range l.Quarantine {
		if q.Scope == scope && q.Content == content.String() && !q.Kept {
			return q, true
		}
	}
	return quarantined{}, false
}

// withQuarantined returns l with q, and without the trial that ended with it.
func (l Ledger) withQuarantined(q quarantined) Ledger {
	l = l.WithoutTrial(q.Scope)
	l.Quarantine = slices.DeleteFunc(slices.Clone(l.Quarantine),
		func(o quarantined) bool { return o.Scope == q.Scope && o.Content == q.Content })
	l.Quarantine = append(l.Quarantine, q)
	count := 0
	for i := len(l.Quarantine) - 1; i >= 0; i-- {
		if l.Quarantine[i].Scope != q.Scope {
			continue
		}
		if count++; count > MaxQuarantined {
			l.Quarantine = slices.Delete(l.Quarantine, i, i+1)
		}
	}
	return l
}

// Quarantined returns what of scope was accepted last and is not used, because it
// failed its trial.
func (b *TrustState) Quarantined(scope snapshot.Scope) (quarantined, bool) {
	h := b.Active[scope]
	for i := len(b.Quarantine) - 1; i >= 0; i-- {
		q := b.Quarantine[i]
		if q.Scope != scope {
			continue
		}
		newer := h == nil || q.AuthorityEpoch > h.Verified.Header().AuthorityEpoch ||
			q.AuthorityEpoch == h.Verified.Header().AuthorityEpoch &&
				q.ConfigVersion > h.Verified.Header().ConfigVersion
		same := h != nil && q.Kept && q.Content == h.Verified.Header().ContentHash.String()
		if newer || same {
			return q, true
		}
	}
	return quarantined{}, false
}

// TrialOf returns for how long a new snapshot of scope is on trial; 0: it is not.
func (b *TrustState) TrialOf(scope snapshot.Scope) time.Duration {
	h := b.Active[snapshot.ScopeDegradedModePolicy]
	if h == nil || !slices.Contains(Triable, scope) {
		return 0
	}
	policy, _ := h.Verified.DegradedModePolicy()
	for _, t := range policy.Trials {
		if t.Scope == scope {
			return t.Duration
		}
	}
	return 0
}

// Probation puts d on trial if it is to be, or bars it if its content failed one.
func (d Decision) Probation(b *TrustState, contact bool, now time.Time) Decision {
	header := d.V.Header()
	scope, was := header.ScopeType, b.Active[header.ScopeType]
	if old, ok := d.Ledger.Barred(scope, header.ContentHash); ok {
		// Accepted, so that nothing older comes in, and not used.
		d.Barred = true
		if d.Raised {
			old.AuthorityEpoch, old.ConfigVersion = header.AuthorityEpoch, header.ConfigVersion
			d.Ledger = d.Ledger.withQuarantined(old)
			if was != nil {
				d.Ledger.Marks = d.Ledger.Marks.Keep(was.Verified)
			}
		}
		return d
	}
	t, on := d.Ledger.OnTrial(scope)
	if d.Renewal || was != nil && was.Verified.Header().ContentHash == header.ContentHash {
		// Nothing changes for who consumes it: what is on trial is so under its new header.
		if on && b.Tries(t) != nil && d.Raised {
			t.Header = d.V.HeaderDigest().String()
			d.Ledger = d.Ledger.withTrial(t)
		}
		return d
	}
	if on && t.Header == d.V.HeaderDigest().String() {
		return d // it goes on
	}
	d.Ledger = d.Ledger.WithoutTrial(scope)
	if d.Raised && b.TrialOf(scope) > 0 {
		d.Ledger = d.Ledger.withTrial(trial{Scope: scope, Header: d.V.HeaderDigest().String(), Attempts: 1,
			Contact: contact})
	}
	return d
}

// before returns what of h's scope on disk may be used in its place: the newest that
// verifies now, of the same subject and epoch, and did not fail itself.
func (s *Store) before(b *TrustState, me Self, h *ActiveSnapshot, now time.Time) *ActiveSnapshot {
	header := h.Verified.Header()
	var best *ActiveSnapshot
	for _, c := range s.candidates(&Loaded{}, header.ScopeType, now) {
		v, err := snapshot.Recheck(c.signed, me.Trust(b), b.Marks, now)
		if err != nil {
			continue
		}
		old := v.Header()
		if _, barred := b.Barred(header.ScopeType, old.ContentHash); barred || old.ContentHash == header.ContentHash ||
			old.ScopeType != header.ScopeType || old.Subject != header.Subject ||
			old.AuthorityEpoch != header.AuthorityEpoch {
			continue
		}
		if best == nil || compareVerified(v, best.Verified) > 0 {
			best = &ActiveSnapshot{v, c.raw}
		}
	}
	return best
}

// Fail returns b after the snapshot in use of scope failed its trial, and what it fell
// back to; nil if there is nothing to fall back to, so that it stays in use.
func (s *Store) Fail(b *TrustState, me Self, scope snapshot.Scope, reason, detail string,
	now time.Time) (*TrustState, *ActiveSnapshot) {
	h := b.Active[scope]
	header := h.Verified.Header()
	old := s.before(b, me, h, now)
	next := b.Ledger.withQuarantined(quarantined{
		Scope: scope, AuthorityEpoch: header.AuthorityEpoch, ConfigVersion: header.ConfigVersion,
		Content: header.ContentHash.String(),
		Reason:  reason, Detail: Clip(detail, MaxDetailBytes), At: now.UTC(), Kept: old == nil,
	})
	if old == nil {
		return b.WithLedger(next), nil
	}
	next.Marks = next.Marks.Keep(old.Verified)
	return b.WithLedger(next).With(scope, old), old
}

// Refusal tells of q as of a snapshot that was not taken.
func (q quarantined) Refusal() Refusal {
	detail := fmt.Sprintf("version %d of epoch %d failed its trial (%s)", q.ConfigVersion, q.AuthorityEpoch, q.Reason)
	if q.Detail != "" {
		detail += ": " + q.Detail
	}
	if q.Kept {
		detail += "; it stays in use, for there is nothing before it that may be used"
	}
	return Refusal{Scope: string(q.Scope), Reason: ReasonQuarantined, Detail: Clip(detail, MaxDetailBytes), At: q.At}
}

// ReasonQuarantined is the reason of what was accepted and is not used.
const ReasonQuarantined = "quarantined"

// ErrNoTrial is matched when a snapshot is judged that is not on trial.
var ErrNoTrial = errors.New("that snapshot is not on trial")

// ResumeTrials counts the trials that go on with this start, durably and before
// anything is used. One that had all its attempts has failed; so does one, for this
// time, whose attempt cannot be written down.
func (s *Store) ResumeTrials(b *TrustState, me Self, now time.Time) (*TrustState, error) {
	if len(b.Trials) == 0 {
		return b, nil
	}
	next := b
	for _, t := range b.Trials {
		switch {
		case next.Tries(t) == nil || next.TrialOf(t.Scope) == 0:
			next = next.WithLedger(next.Ledger.WithoutTrial(t.Scope)) // over, one way or the other
		case t.Attempts >= MaxAttempts:
			next, _ = s.Fail(next, me, t.Scope, failedAttempts,
				fmt.Sprintf("the agent ended %d times while it was on trial", t.Attempts), now)
		default:
			t.Attempts++
			next = next.WithLedger(next.Ledger.withTrial(t))
		}
	}
	err := s.WriteLedger(next.Ledger)
	if err == nil {
		return next, nil
	}
	for _, t := range next.Trials {
		if h := next.Active[t.Scope]; h != nil {
			if old := s.before(next, me, h, now); old != nil {
				next = next.With(t.Scope, old)
			}
		}
	}
	return next, err
}
