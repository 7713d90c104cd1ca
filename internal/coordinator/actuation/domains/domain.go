package domains

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// MaxName is how long the name of a domain may be, in bytes.
const MaxName = 128

// Domain is what is recorded of one. The zero value, with a name, is a domain that nobody
// ever owned. It is never removed: its ownership may not begin anew.
type Domain struct {
	Name string `json:"name"`
	// Owner is "<kind>/<name>"; empty if nobody owns it.
	Owner string `json:"owner,omitempty"`
	// Ownership is that of Owner; of nobody too, after the first owner.
	Ownership uint64 `json:"ownership"`
	// Moving says that the owner was asked to let go, and Next who owns it then; empty:
	// nobody.
	Moving bool   `json:"moving,omitempty"`
	Next   string `json:"next,omitempty"`
}

// Errors of a change. None of them changed anything.
var (
	// ErrNotOwner is matched if somebody lets go of what he does not own, or not any more.
	ErrNotOwner = errors.New("it is not the owner's to let go")
	// ErrExhausted is matched if there is no ownership above the last one.
	ErrExhausted = errors.New("there is no higher ownership")
)

// CheckName says what is wrong with the name of a domain, or "". It is one to MaxName
// characters of a-z, 0-9, '-', '_', '.' and '/', and begins and ends with a letter or digit.
func CheckName(name string) string {
	plain := func(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
	switch {
	case name == "":
		return "it is empty"
	case len(name) > MaxName:
		return fmt.Sprintf("it has %d characters, at most %d are allowed", len(name), MaxName)
	case strings.ContainsFunc(name, func(r rune) bool {
		return r > '~' || !plain(byte(r)) && !strings.ContainsRune("-_./", r)
	}):
		return "it has a character other than a-z, 0-9, '-', '_', '.' and '/'"
	case !plain(name[0]) || !plain(name[len(name)-1]):
		return "it does not begin and end with a letter or a digit"
	case strings.Contains(name, "//"):
		return "it has an empty part"
	}
	return ""
}

// Assign returns d as it is when it is to belong to a member, or to nobody if to is empty.
// An owner is asked to let go first, unless force says that it is not waited for: then it may
// go on for as long as it takes until the receivers of the domain have promised the next
// ownership, and acts in vain from then on. authorityEpoch is that of the cluster now: an
// ownership is above all that were given before it, whatever a restored store remembers.
//
// Asked again it changes nothing. An error matches [ErrExhausted].
func (d Domain) Assign(to string, authorityEpoch uint64, force bool) (Domain, error) {
	switch {
	case d.Owner == to && (!d.Moving || d.Next == to) && !(force && d.Moving):
		return d, nil
	case d.Owner == "" || force && (d.Owner != to || d.Moving):
		return d.pass(to, authorityEpoch)
	}
	// The owner may have let go already, and its word be on its way: it gets the domain back
	// under the next ownership, and not under this one.
	d.Moving, d.Next = true, to
	return d, nil
}

// Release returns d as it is when its owner let go. An owner lets go under its ownership, so
// that a word of before, which comes late, does not take the domain from it now. A domain that is
// let go unasked belongs to nobody. An error matches [ErrNotOwner] or [ErrExhausted].
func (d Domain) Release(by string, ownership, authorityEpoch uint64) (Domain, error) {
	if by == "" || d.Owner != by || d.Ownership != ownership {
		return d, fmt.Errorf("domain %s belongs to %q under ownership %d, and %q lets go of ownership %d: %w",
			d.Name, d.Owner, d.Ownership, by, ownership, ErrNotOwner)
	}
	return d.pass(d.Next, authorityEpoch)
}

// Lapse returns d as it is when the lease of an owner is over that was asked to let go under
// this ownership, and did not. One that owns it under another one now, or is not asked any more,
// keeps it: the error matches [ErrNotOwner]. It may match [ErrExhausted] too.
func (d Domain) Lapse(ownership, authorityEpoch uint64) (Domain, error) {
	if !d.Moving || d.Ownership != ownership {
		return d, fmt.Errorf("domain %s has ownership %d, and the lease of ownership %d is over: %w", d.Name,
			d.Ownership, ownership, ErrNotOwner)
	}
	return d.pass(d.Next, authorityEpoch)
}

// pass gives d to the next owner, under the next ownership.
func (d Domain) pass(to string, authorityEpoch uint64) (Domain, error) {
	if d.Ownership == math.MaxUint64 || authorityEpoch > math.MaxUint32 {
		return d, fmt.Errorf("domain %s has ownership %d in authority epoch %d: %w",
			d.Name, d.Ownership, authorityEpoch, ErrExhausted)
	}
	d.Owner, d.Moving, d.Next = to, false, ""
	d.Ownership = max(d.Ownership+1, authorityEpoch<<32+1)
	return d, nil
}
