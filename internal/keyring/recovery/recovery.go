// Package recovery has the rules by which owners give their shares to a coordinator that lost the
// seed: which shares an attempt takes, and what an owner's tool verifies before it sends one. The
// tool of a data owner verifies nearly the same.
//
// The promises:
//
//   - A share is compared with the commitment in the head of the history before
//     anything is made of it, so that a bad one is refused by the name of its owner.
//
//   - [Bring] sends nothing before it has verified the whole history under the key
//     in the share file, and that who asks is a coordinator that this history
//     admits, over this very connection.
//
//   - An [Attempt] decides without I/O: which shares it takes, when it ends, and
//     when there are enough.
//
//   - [ReadOpen] tells the attempt of another coordinator of the same head from
//     whatever else a store may show: only to such a one is a share passed on.
//
//   - A history that ends before what an owner's tool has seen gets a share only for a
//     restore that the signers known to that tool signed for exactly this history, and that
//     the owner agreed to.
//
//   - [Verify] believes a coordinator no more than the manifest that a data owner
//     expects, the signed history, and the [Mark] of what was seen before.
//
// [Head], [Attempt], [Open] and [Mark] decide; [Bring] acts for the owner of a share,
// [Verify] for the owner of data; what the coordinator does is in its own package.
package recovery

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
)

// MaxSentBytes bounds a share on its way to an attempt: X25519 alone needs less
// than 2 KiB.
const MaxSentBytes = 4 << 10

// A Head is what the head of a history says of the shares of its seed. Whether the
// history is genuine is for its user to know.
type Head struct {
	Hash      history.Hash
	Index     uint64
	Cluster   string
	SeedEpoch uint64
	Threshold int

	owners []commitment // people, in the order of the manifest
	made   uint64       // index of the transition that made the shares
	older  []commitment // of earlier sets, oldest first
}

// commitment is to the share of one owner.
type commitment struct {
	owner     string
	hash      [32]byte
	seedEpoch uint64
	index     uint64 // of the transition that made it
}

// NewHead returns what the last of links says. m is the manifest that it names.
// There must be a link.
func NewHead(links []history.Link, m *manifest.Manifest) *Head {
	last := &links[len(links)-1]
	h := &Head{Hash: last.Hash, Index: last.Index, Cluster: m.Cluster, SeedEpoch: last.SeedEpoch, Threshold: last.Threshold}
	// A link that makes no new shares repeats the commitments of the one before.
	for i := range links {
		l := &links[i]
		if i > 0 && slices.Equal(l.ShareCommitments, links[i-1].ShareCommitments) {
			continue
		}
		h.older = append(h.older, h.owners...)
		h.owners, h.made = nil, l.Index
		for _, c := range l.ShareCommitments {
			h.owners = append(h.owners, commitment{c.Owner, c.Hash, l.SeedEpoch, l.Index})
		}
	}
	return h
}

// Owners returns the names of who holds a share, in the order of the manifest.
func (h *Head) Owners() []string {
	names := make([]string, len(h.owners))
	for i, c := range h.owners {
		names[i] = c.owner
	}
	return names
}

// Commitment returns what the head commits to for the share of owner; false if it has none.
func (h *Head) Commitment(owner string) ([32]byte, bool) {
	i := slices.IndexFunc(h.owners, func(c commitment) bool { return c.owner == owner })
	if i < 0 {
		return [32]byte{}, false
	}
	return h.owners[i].hash, true
}

// Made returns the index of the transition that made the shares.
func (h *Head) Made() uint64 { return h.made }

// Check compares a share with what the head commits to for owner. It says whose
// share it is where that can be known, and never anything of its value.
//
// Errors, of package errcode: ShareNoOwner, ShareOld, ShareWrong.
func (h *Head) Check(owner string, share keyring.Share) error {
	i := slices.IndexFunc(h.owners, func(c commitment) bool { return c.owner == owner })
	if i < 0 {
		return errcode.New(errcode.ShareNoOwner, "owner", owner, "owners", strings.Join(h.Owners(), ", "))
	}
	if share.IsZero() {
		return errcode.New(errcode.ShareWrong, "owner", owner, "problem", "there is no share in it")
	}
	hash := share.Commitment(h.Cluster, h.SeedEpoch)
	if hash == h.owners[i].hash {
		return nil
	}
	for _, c := range h.owners {
		if c.hash == hash {
			return errcode.New(errcode.ShareWrong, "owner", owner, "problem", "it is the share of "+c.owner)
		}
	}
	hashes := map[uint64][32]byte{h.SeedEpoch: hash}
	for _, c := range h.older {
		sum, ok := hashes[c.seedEpoch]
		if !ok {
			sum = share.Commitment(h.Cluster, c.seedEpoch)
			hashes[c.seedEpoch] = sum
		}
		if sum == c.hash {
			return errcode.New(errcode.ShareOld, "owner", owner, "made", c.index, "now", h.made)
		}
	}
	return errcode.New(errcode.ShareWrong, "owner", owner, "problem",
		fmt.Sprintf("it is not the share that transition %d commits to for that owner, nor any other of this cluster", h.made))
}

// Life is how long an attempt goes on after its last share: owners have to be
// called first.
const Life = time.Hour

// ID names an attempt.
type ID [proof.AttemptBytes]byte

// String returns the id in lower-case hex.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// An Attempt is one gathering of shares, for one head. It decides and does nothing
// else; the shares themselves are elsewhere.
type Attempt struct {
	ID   ID
	Head *Head

	begun   time.Time
	ends    time.Time
	brought []string // owners, sorted
}

// NewAttempt begins an attempt.
func NewAttempt(id ID, h *Head, now time.Time) *Attempt {
	return &Attempt{ID: id, Head: h, begun: now, ends: now.Add(Life)}
}

// Ends returns when it is over, if no other share comes.
func (a *Attempt) Ends() time.Time { return a.ends }

// Brought returns the owners whose shares are in, sorted.
func (a *Attempt) Brought() []string { return slices.Clone(a.brought) }

// Missing returns the owners whose shares are not in, in the order of the manifest.
func (a *Attempt) Missing() []string {
	return slices.DeleteFunc(a.Head.Owners(), func(o string) bool { return slices.Contains(a.brought, o) })
}

// Enough reports whether the shares that are in bring the seed back.
func (a *Attempt) Enough() bool { return len(a.brought) >= a.Head.Threshold }

// Serves reports whether a new caller may be offered it, at a head of that name:
// it is not over, and will not be as soon as it is looked at. One that waits for
// its first share makes room for a fresh one in time.
func (a *Attempt) Serves(now time.Time, head history.Hash) bool {
	return a.over(now) == "" && a.Head.Hash == head && (len(a.brought) > 0 || now.Before(a.begun.Add(Life/2)))
}

// Over reports whether it takes no share any more.
func (a *Attempt) Over(now time.Time) bool { return a.over(now) != "" }

// over says why it takes no share any more, or "".
func (a *Attempt) over(now time.Time) string {
	// A clock that went back far could keep it open for ever.
	if !now.Before(a.ends) || now.Before(a.begun.Add(-Life)) {
		return fmt.Sprintf("it ended at %s", a.ends.UTC().Format(time.RFC3339))
	}
	return ""
}

// Takes reports whether a share of owner that was sent for attempt id may be
// opened now. Errors, of package errcode: RecoveryOver, ShareNoOwner.
func (a *Attempt) Takes(now time.Time, id []byte, owner string) error {
	problem := a.over(now)
	if string(id) != string(a.ID[:]) {
		problem = "it was sent for another attempt than the one that is open"
	}
	switch {
	case problem != "":
		return errcode.New(errcode.RecoveryOver, "owner", owner, "attempt", shortID(id), "problem", problem)
	case !slices.Contains(a.Head.Owners(), owner):
		return errcode.New(errcode.ShareNoOwner, "owner", owner, "owners", strings.Join(a.Head.Owners(), ", "))
	}
	return nil
}

// Gathered notes whose shares are in, all of them. A new one gives the others more
// time.
func (a *Attempt) Gathered(now time.Time, owners []string) {
	owners = slices.Sorted(slices.Values(owners))
	if slices.ContainsFunc(owners, func(o string) bool { return !slices.Contains(a.brought, o) }) {
		a.ends = now.Add(Life)
	}
	a.brought = owners
}

func shortID(id []byte) string { return hex.EncodeToString(id[:min(len(id), 4)]) }
