// Package health decides whether a store lost something that it had acknowledged, and whether it
// takes writes.
//
// A store can go back: a dump that is put back, a failover to a copy that lagged, a disk image. A
// coordinator that goes on with it undoes what was acknowledged, bans among it. So each coordinator
// keeps what it saw ([Seen], [Keeper]), and compares it with what the store shows:
//
//	Revision  the newest commit of the store
//	Trust     the counter of the trust state, and which bans it said
//
// Two things are evidence: revisions that this coordinator saw itself, and those that another one
// shows with the cluster's own signature. [Seen.Lost] and [Proof.Lost] say what is gone, and a
// coordinator that found a loss changes nothing from then on. A number that somebody only claims is
// no evidence: [Claim.Above] says that people are to be told of it, with the name of who claims it.
//
// All of it counts from the last restore on that the cluster's signers wanted: such a restore goes
// back too, and its clocks pass all that was seen before.
//
// Whether the store takes writes, and why not, is decided from how the writes of this process ended
// ([WriteRecord]).
//
// The package does no I/O. The asker reads the store after what it compares with was seen: then the
// store cannot show less, unless it went back.
package health

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Digest names a trust state.
type Digest [sha256.Size]byte

// MarshalText returns d in hex.
func (d Digest) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(d[:])), nil }

// UnmarshalText reads what MarshalText returns.
func (d *Digest) UnmarshalText(text []byte) error {
	raw, err := hex.DecodeString(string(text))
	if err != nil || len(raw) != len(d) {
		return fmt.Errorf("%.80q is no SHA-256 in hex", text)
	}
	copy(d[:], raw)
	return nil
}

// Seen is what is known for certain of one store. The zero value has seen nothing.
type Seen struct {
	// Restored is the authority epoch of the last restore that it counts from; 0: there
	// was none.
	Restored uint64 `json:"restored,string"`
	// Revision is the newest one of the store.
	Revision uint64 `json:"revision,string"`
	// Trust is the newest trust state; nil: none was seen.
	Trust *Trust `json:"trust,omitempty"`
}

// Trust is a trust state with its bans. It is immutable.
type Trust struct {
	// Counter numbers the trust states: each has one more than that before it.
	Counter uint64 `json:"counter,string"`
	// Version is the revision of the store that wrote it, and Digest is of its content.
	Version uint64 `json:"version,string"`
	Digest  Digest `json:"digest"`
	// UnbansFrom is the version from which on bans end by a record: an earlier release,
	// which kept none, may have ended those of before. 0: such a one wrote this state.
	UnbansFrom uint64 `json:"unbans_from,omitempty,string"`
	// Bans are the identities that are banned, as "<kind>/<name>", and the counter under
	// which each was; 0: a release wrote it that does not say.
	Bans map[string]uint64 `json:"bans,omitempty"`
	// Keys are the banned keys, and until when each has to be kept.
	Keys map[string]time.Time `json:"keys,omitempty"`
	// Unbans are the identities whose ban ended, and the counter of that ban. Of what was
	// seen they are not kept.
	Unbans map[string]uint64 `json:"-"`
}

// Kind is what of a store is gone.
type Kind string

// The kinds.
const (
	Revision Kind = "revision" // commits
	Counter  Kind = "trust"    // trust states, or one took the place of another
	Ban      Kind = "ban"      // a ban that nobody lifted
	Signed   Kind = "signed"   // what the cluster signed
)

// A Loss says what a store lost. It is evidence.
type Loss struct {
	Kind Kind `json:"kind"`
	// Was and Is are the numbers that were seen and that the store shows.
	Was uint64 `json:"was,string"`
	Is  uint64 `json:"is,string"`
	// The field What is the ban that is gone, for [Ban].
	What string `json:"what,omitempty"`
	// From is who showed that there was more; empty: whoever keeps this saw it itself.
	From string    `json:"from,omitempty"`
	At   time.Time `json:"at"`
}

// String says it as the end of a sentence that begins with "the store".
func (l Loss) String() string {
	switch l.Kind {
	case Revision:
		return fmt.Sprintf("shows revision %d, and %d was seen", l.Is, l.Was)
	case Counter:
		if l.Is >= l.Was {
			return fmt.Sprintf("shows another trust state under counter %d than was seen", l.Is)
		}
		return fmt.Sprintf("shows trust state %d, and %d was seen", l.Is, l.Was)
	case Ban:
		return fmt.Sprintf("shows no ban of %s, and none that ended it", l.What)
	case Signed:
		return fmt.Sprintf("shows trust bundle %d, and %s showed version %d, which this cluster signed", l.Is, l.From, l.Was)
	}
	return "lost something"
}

// Slack is how much sooner than here somebody else may take the time of a banned key for
// over: clocks differ, and it was reckoned with more room than this.
const Slack = time.Hour

// Lost returns what of s the store has lost that now is read from at that time; nil if
// nothing. Both count from the same restore, and now was read after s was seen.
func (s Seen) Lost(now Seen, at time.Time) *Loss {
	if now.Revision < s.Revision {
		return &Loss{Kind: Revision, Was: s.Revision, Is: now.Revision, At: at}
	}
	if s.Trust == nil || now.Trust == nil {
		return nil // who reads a store without one finds that out by its members
	}
	return s.Trust.lost(now.Trust, at)
}

func (t *Trust) lost(now *Trust, at time.Time) *Loss {
	loss := &Loss{Kind: Counter, Was: t.Counter, Is: now.Counter, At: at}
	switch {
	case now.Counter < t.Counter:
		return loss
	case now.Counter == t.Counter:
		if now.Digest != t.Digest {
			return loss
		}
		return nil
	case now.Version <= t.Version:
		return loss // it was written on what came before t
	case !now.tells(t.Version):
		return nil
	}
	for _, who := range sorted(t.Bans) {
		if _, still := now.Bans[who]; !still && !now.ended(who, t.Bans[who]) {
			return &Loss{Kind: Ban, Was: t.Counter, Is: now.Counter, What: who, At: at}
		}
	}
	for _, key := range sorted(t.Keys) {
		if _, still := now.Keys[key]; !still && at.Add(Slack).Before(t.Keys[key]) {
			return &Loss{Kind: Ban, Was: t.Counter, Is: now.Counter, What: "key " + key[:min(len(key), 16)], At: at}
		}
	}
	return nil
}

// tells reports whether each ban that was in force at version, and ended since, has a
// record that says so.
func (t *Trust) tells(version uint64) bool { return t.UnbansFrom != 0 && version >= t.UnbansFrom }

// ended reports whether the ban that who got under counter was lifted: one that names an
// older ban lifts nothing.
func (t *Trust) ended(who string, counter uint64) bool {
	of, ok := t.Unbans[who]
	return ok && of >= counter
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// After returns what is known for certain after now was seen too.
func (s Seen) After(now Seen) Seen {
	s.Revision = max(s.Revision, now.Revision)
	if now.Trust != nil && now.Trust.Counter > 0 && (s.Trust == nil || now.Trust.Counter > s.Trust.Counter) {
		s.Trust = now.Trust
	}
	return s
}

// A Proof is a trust bundle whose signature was verified, and that was signed since the
// last restore.
type Proof struct {
	From    string // who showed it
	Version uint64
	// Bans are the identities that it bans.
	Bans []string
}

// Lost returns what the store has lost that now is read from at that time; nil if p
// shows nothing. The authority epoch of p is the one that is in force.
func (p Proof) Lost(now *Trust, at time.Time) *Loss {
	switch {
	case p.Version > now.Version:
		return &Loss{Kind: Signed, Was: p.Version, Is: now.Version, From: p.From, At: at}
	case !now.tells(p.Version):
		return nil
	}
	for _, who := range p.Bans {
		_, still := now.Bans[who]
		if _, ended := now.Unbans[who]; !still && !ended {
			return &Loss{Kind: Ban, Was: p.Version, Is: now.Version, What: who, From: p.From, At: at}
		}
	}
	return nil
}

// A Claim is a number that somebody says. The one who says it may lie.
type Claim struct {
	From  string
	What  string // that the number is of
	Epoch uint64 // authority epoch
	Value uint64
}

// Above reports whether the claim is of more than a store can have given that is at
// revision, under an authority epoch.
func (c Claim) Above(epoch, revision uint64) bool {
	return c.Epoch > epoch || c.Epoch == epoch && c.Value > revision
}

// A Record is what is kept on disk, in one file or in two: what moves all the time is
// small, and the trust state is not.
type Record struct {
	Seen Seen `json:"seen"`
	// Lost is set once something is known to be lost, and stays until a restore.
	Lost *Loss `json:"lost,omitempty"`
	// Bundle is the encoding of the newest trust bundle that was in force.
	Bundle []byte `json:"bundle,omitempty"`
}

// MaxRecordBytes bounds a record on disk.
const MaxRecordBytes = 32 << 20

// Split returns the small part of r, and the one that changes with the trust state.
func (r Record) Split() (small, trust Record) {
	small = Record{Seen: Seen{Restored: r.Seen.Restored, Revision: r.Seen.Revision}, Lost: r.Lost}
	trust = Record{Seen: Seen{Restored: r.Seen.Restored, Trust: r.Seen.Trust}, Bundle: r.Bundle}
	return small, trust
}

// Join returns what two parts say together. One of before the last restore that the
// other knows says nothing: the process ended between the two.
func Join(small, trust Record) Record {
	switch {
	case small.Seen.Restored > trust.Seen.Restored:
		return small
	case small.Seen.Restored < trust.Seen.Restored:
		return trust
	}
	small.Seen.Trust, small.Bundle = trust.Seen.Trust, trust.Bundle
	return small
}

// Encode returns the bytes of r.
func (r Record) Encode() ([]byte, error) { return json.Marshal(r) }

// Decode reads what Encode returns, strictly.
func Decode(raw []byte) (Record, error) {
	var r Record
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Record{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Record{}, errors.New("something follows it")
	}
	return r, nil
}
