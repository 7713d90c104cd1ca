// Package decide decides what a coordinator among several does: which head it
// serves, how it comes back to one, whom it gives secrets, and in which order it moves
// the head. It acts on nothing: no store, no network, no clock, no keys. The
// coordinator acts, and takes every one of these decisions here. The numbers I1 to I20
// are the promises of docs/explanation/failure-model.md.
//
// The promises:
//
//   - A head is served with the seed and the mesh CA key that its signed transition
//     names, and with no others. A coordinator whose head is not that of the history
//     any more stops serving. So no mesh CA key is served under two authority epochs,
//     and no epoch with two keys (I9).
//   - The new mesh CA key is made before the head moves, and is kept until it is known
//     that the head did not move to it. A new epoch begins with a transition and never
//     without one. The head is swapped for its child only (I10).
//   - A coordinator gives secrets only while it is at the head of the history, and only to
//     a peer that its own manifest admits as a coordinator. The secrets of a head to come go
//     only to a peer that the next manifest admits too (I8).
//   - Nobody waits for a human while a memory holds the seed: whoever holds it, and
//     finds nobody at the head, makes a new mesh CA key in a new epoch.
//
// [Judge] says what a head that was seen means, [Acts], [Stays] and [Lingers] what is served
// on the way to it, [Search] finds the way back, [Move] orders a change of the head, [Give],
// [Prepares] and [Take] say who gets what.
package decide

import (
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
)

// Phase is what a coordinator can do.
type Phase int

const (
	// Uninitialized: there is no history. Only a first set is served.
	Uninitialized Phase = iota
	// Recovery: there is a history, and its head is not what this coordinator can
	// serve.
	Recovery
	// Ready: the head is served.
	Ready
)

func (p Phase) String() string {
	switch p {
	case Uninitialized:
		return "uninitialized"
	case Recovery:
		return "recovery"
	case Ready:
		return "ready"
	}
	return "invalid phase"
}

// Head is what a signed transition says of the state that it brings about.
type Head struct {
	Hash     history.Hash
	Previous history.Hash
	Index    uint64
	Seed     history.Salt   // names the seed, by the salt that is random for each
	Mesh     identity.KeyID // of the mesh CA key
}

// HeadOf returns what l says.
func HeadOf(l *history.Link) Head {
	return Head{Hash: l.Hash, Previous: l.Previous, Index: l.Index, Seed: l.Salt, Mesh: l.MeshCAKey}
}

// Fits reports whether head is served with this seed and this mesh CA key. A head
// with the same manifest is no reason to think so: the same manifest may be set twice,
// and a rekey keeps it.
func (h Head) Fits(seed history.Salt, mesh identity.KeyID) bool {
	return h.Seed == seed && h.Mesh == mesh
}

// Memory is what a coordinator holds. It believes nothing that it does not hold.
type Memory interface {
	Phase() Phase
	// Head is in force if the phase is Ready; else it is the last one that was, or
	// the zero Head.
	Head() Head
	// Knows reports whether hash names Head or an ancestor of it.
	Knows(hash history.Hash) bool
	// HoldsSeed and HoldsMesh report whether that secret is in memory: of the state,
	// of a move of its own whose outcome is not known, or prepared by a peer.
	HoldsSeed(seed history.Salt) bool
	HoldsMesh(key identity.KeyID) bool
}

// Verdict is what a head that was seen means.
type Verdict int

const (
	// Same is the head in force.
	Same Verdict = iota
	// Older is an ancestor of the head in force: a late notice, or a store that shows
	// what was. The head in force stays: this may be the only memory with its mesh CA
	// key. Nothing is decided on it either: every transaction wants the head in force.
	Older
	// Another is neither: the head in force is not that of the history any more, or
	// there was none. The way back to it begins.
	Another
)

// Judge says what it means that the store shows the head seen.
func Judge(m Memory, seen history.Hash) Verdict {
	switch {
	case m.Phase() != Ready:
		return Another
	case seen == m.Head().Hash:
		return Same
	case m.Knows(seen):
		return Older
	}
	return Another
}

// Stays reports whether the head in force stays for reads, after the adoption of next
// ended so. A conflict says that another coordinator was first, with next or with a head
// that came after it: nothing is wrong here, and the newer head is looked for at once.
// It stays only while nothing is lost by dropping next: its secrets are in memory
// without it, and what reads need is under the seed in force.
func Stays(m Memory, next Head, ended Result) bool {
	return ended == Conflict && m.Phase() == Ready && m.Head().Seed == next.Seed && m.HoldsMesh(next.Mesh)
}

// FollowFor is how long the head in force stays for reads while the secrets of the next one
// are looked for elsewhere. A call that waits for that head is refused after as long.
const FollowFor = 10 * time.Second

// Lingers reports whether the head in force stays for reads while the secrets of next are
// looked for elsewhere: whoever moved the head was about to hand them over, or is about to
// be ready at it. next is what the history leads to, as the seed in force vouches for it;
// admitted is whether its manifest admits this coordinator, and lagged is for how long the
// store has shown another head than the one in force.
//
// Under another seed the records that reads need are not the same. A head whose secrets are
// here, and which does not come into force all the same, is no matter of waiting.
func Lingers(m Memory, next Head, admitted bool, lagged time.Duration) bool {
	return m.Phase() == Ready && admitted && m.Head().Seed == next.Seed && !m.HoldsMesh(next.Mesh) && lagged < FollowFor
}

// Acts reports whether something is changed, or somebody certified, under the head in
// force, given what it last meant that the store showed its head. Once that was another
// one only reads are served, until the head in force is that of the store again.
func Acts(p Phase, last Verdict) bool { return p == Ready && last != Another }

// Answer is what is said to a peer that asks for the secrets of a head, or offers
// those of one to come.
type Answer int

const (
	// Given: it gets them, or they are taken.
	Given Answer = iota
	// Stranger: the manifest in force here does not admit it as a coordinator.
	Stranger
	// NotReady: nothing is served here.
	NotReady
	// Behind: the store shows another head than is served here. The key here may be
	// the mesh CA key of an older one.
	Behind
	// OtherHead: what is asked for is not the head that is served here; who asks has
	// to read the head again.
	OtherHead
)

func (a Answer) String() string {
	switch a {
	case Given:
		return "given"
	case Stranger:
		return "stranger"
	case NotReady:
		return "not ready"
	case Behind:
		return "behind"
	case OtherHead:
		return "other head"
	}
	return "invalid answer"
}

// Give says whether a peer that asks for the secrets of the head asked gets them.
// stored is the head as the store showed it after the peer asked, admitted whether the
// manifest in force here admits the key that it proved as a coordinator.
func Give(m Memory, stored, asked history.Hash, admitted bool) Answer {
	switch {
	case !admitted:
		return Stranger
	case m.Phase() != Ready:
		return NotReady
	case stored != m.Head().Hash:
		return Behind
	case asked != m.Head().Hash:
		return OtherHead
	}
	return Given
}

// Prepares reports whether a peer may be handed the mesh CA key of a head to come:
// the manifest in force and the one after it admit it as a coordinator.
func Prepares(admitted, admittedNext bool) bool { return admitted && admittedNext }

// Take says whether the mesh CA key of the head next is taken from a peer before that
// head is in force. It is kept beside what is served, and served only once it is.
func Take(m Memory, next Head, admitted bool) Answer {
	switch {
	case !admitted:
		return Stranger
	case m.Phase() != Ready:
		return NotReady
	case next.Previous != m.Head().Hash:
		return OtherHead
	}
	return Given
}

// Decided reports whether a candidate, whose swap may not have happened yet or was
// another's to make, can be forgotten once head is adopted: it is head, or can never
// become it.
func Decided(candidate, head Head) bool { return candidate.Index <= head.Index }
