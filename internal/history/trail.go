package history

import (
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/internal/manifest"
)

// ErrNoTrail is matched when links do not show that a head follows from the one that
// is known.
var ErrNoTrail = errors.New("no links lead there from the head that is known")

// A Trail follows the history from a head that somebody knows, one link after the
// other, without the manifests: by hashes and, where the history was restored, by the
// signatures of the signers that are known. It is for nodes, which keep no history.
//
// It proves no more than it says: that the newest head follows from the one that is
// known, and that its signers consented to the first change that takes them. A manifest
// says who they are after it: what later links did is for coordinators to verify.
type Trail struct {
	seen     Mark
	signers  manifest.Signers
	at       Mark
	begun    bool
	signed   bool // a link that signers sign was followed: who they are from there on is not known
	restored bool
}

// NewTrail begins at seen, whose signers were these.
func NewTrail(seen Mark, signers manifest.Signers) *Trail {
	return &Trail{seen: seen, signers: signers, at: seen}
}

// Add follows one more link. A link that was there before the trail begins is passed
// over. The error matches [ErrNoTrail] or [ErrEncoding].
func (t *Trail) Add(raw []byte) error {
	l, err := Decode(raw)
	if err != nil {
		return err
	}
	next := Mark{l.AuthorityEpoch, l.Index, hashOf(raw)}
	switch {
	case l.Previous == t.at.Hash:
		if l.Index <= t.at.Index || l.AuthorityEpoch < t.at.AuthorityEpoch {
			return fmt.Errorf("history: index %d and epoch %d follow %d and %d: %w", l.Index, l.AuthorityEpoch, t.at.Index, t.at.AuthorityEpoch, ErrNoTrail)
		}
		if l.Kind.signed() && !t.signed && len(t.signers.Keys) > 0 && !l.signedBy(t.signers) {
			return fmt.Errorf("history: the %s at index %d is not signed by the signers that are known: %w", l.Kind, l.Index, ErrNoTrail)
		}
	case t.begun:
		return fmt.Errorf("history: a gap after index %d: %w", t.at.Index, ErrNoTrail)
	case l.Kind == KindRestore && l.AuthorityEpoch > t.seen.AuthorityEpoch && len(t.signers.Keys) > 0 && l.signedBy(t.signers):
	default:
		return nil // of before
	}
	t.begun, t.at, t.signed = true, next, t.signed || l.Kind.signed()
	t.restored = t.restored || l.Kind == KindRestore
	return nil
}

// LeadsTo reports whether the links that were added lead to head, and whether the
// history was restored on the way: what was done under the head that was seen may be
// gone. Errors: a [*MarkError] for a head that is
// below, or beside, the one that is known; else [ErrNoTrail].
func (t *Trail) LeadsTo(head Mark) (restored bool, err error) {
	switch {
	case t.at == head:
		return t.restored, nil
	case head.AuthorityEpoch < t.seen.AuthorityEpoch || head.AuthorityEpoch == t.seen.AuthorityEpoch && head.Index < t.seen.Index:
		return false, &MarkError{Seen: t.seen, Shown: head, cause: ErrRollback}
	case head.AuthorityEpoch == t.seen.AuthorityEpoch && head.Index == t.seen.Index:
		return false, &MarkError{Seen: t.seen, Shown: head, cause: ErrFork}
	}
	return false, fmt.Errorf("history: the links end at index %d (%v), and the head is index %d (%v): %w", t.at.Index, t.at.Hash, head.Index, head.Hash, ErrNoTrail)
}
