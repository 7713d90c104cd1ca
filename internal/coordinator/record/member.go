package record

import (
	"reflect"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/hostinfo"
	"github.com/fealty-io/fealty/internal/proof"
)

// MemberPrefix is what the keys of members begin with.
const MemberPrefix = "member/"

// MemberKey returns the key of a member's record.
func MemberKey(kind identity.Kind, name string) string {
	return MemberPrefix + string(kind) + "/" + name
}

// States of a member.
const (
	// Active: a machine holds the identity.
	Active = "active"
	// Draining: it goes on as before, and gets no new domains.
	Draining = "draining"
	// Replacing: its keys are banned and its name waits for a new machine.
	Replacing = "replacing"
	// Banned: what people are told of a member whose identity is banned, whatever its record
	// says. No record says so: a ban has records of its own.
	Banned = "banned"
)

// Bounds on the earlier keys of a member. All over which a certificate can be valid are
// remembered, one that an outage made among them, so that banning a member bans every
// certificate it holds; a member that renews faster than that allows is told to wait.
// The others are kept while there is room, so that an old key is told from a foreign
// one.
const (
	MaxLiveKeys  = 64
	MaxOlderKeys = 96
)

// Member is the durable truth on one member. The live state of a member
// is never in it.
type Member struct {
	Kind          identity.Kind   `json:"kind"`
	Name          string          `json:"name"`
	State         string          `json:"state"`
	Entry         string          `json:"entry"`
	Roles         []manifest.Role `json:"roles,omitempty"`
	Organizations []string        `json:"organizations,omitempty"`
	// NarrowTo is what its token narrows the entry's organizations to; null: it does not.
	NarrowTo    []string  `json:"narrow_to"`
	Domains     []string  `json:"domains,omitempty"` // empty at admission: joining never moves a domain
	JoinedAt    time.Time `json:"joined_at"`
	proof.Shown           // when it was admitted; renewal matches the selectors again
	Token       string    `json:"token,omitempty"`
	// Incarnation is the key that it enrolled with: the subject of its snapshots.
	Incarnation identity.KeyID `json:"incarnation"`
	// Key is the last certified key. It is written before the certificate is
	// signed, so that no identity exists without its record.
	Key      identity.KeyID `json:"key"`
	Older    []OlderKey     `json:"older,omitempty"` // earlier keys, newest first
	NotAfter time.Time      `json:"not_after"`       // end of the last SVID
	// MeshKey is the mesh CA key that the last certificate is under; zero in a record
	// of an earlier release.
	MeshKey identity.KeyID `json:"mesh_key,omitzero"`
	// Drain is set from drain to undrain. It stays with the record: a member that
	// comes back, also as another machine, goes on draining.
	Drain DrainMark `json:"drain,omitzero"`
	// Seen is of its last join: for people, and for no decision.
	hostinfo.Seen
	// Labels are those of its token, sorted. They decide nothing.
	Labels []string `json:"labels,omitempty"`
	// EntryLabels are those of its entry. They decide nothing either.
	EntryLabels []string `json:"entry_labels,omitempty"`
}

// DrainMark says since when a member drains, and who wanted it why.
type DrainMark struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
}

// Held reports whether a machine holds the identity: it may renew and come back.
func (m Member) Held() bool { return m.State == Active || m.State == Draining }

// HeldState is the state of the member while a machine holds its identity.
func (m Member) HeldState() string {
	if m.Drain.At.IsZero() {
		return Active
	}
	return Draining
}

// Path is "<kind>/<name>".
func (m Member) Path() string { return string(m.Kind) + "/" + m.Name }

// PathOf is the path of the member with an id.
func PathOf(id identity.ID) string { return string(id.Kind()) + "/" + id.Name() }

// OlderKey is a key that was certified before the last one.
type OlderKey struct {
	Key      identity.KeyID `json:"key"`
	NotAfter time.Time      `json:"not_after"` // end of its last certificate
}

// Rekey makes key the last certified one, in a certificate that ends at
// notAfter. It reports false if too many earlier certificates are still valid, or may
// be, as a coordinator that does not know of this yet can stretch each by stretch.
//
// A key that is certified again keeps the later end: its longer certificate is
// still out there.
func (m *Member) Rekey(key identity.KeyID, notAfter, now time.Time, stretch time.Duration) bool {
	older := make([]OlderKey, 0, len(m.Older)+1)
	switch {
	case m.Key == key:
		notAfter = Later(notAfter, m.NotAfter)
	case !m.Key.IsZero():
		older = append(older, OlderKey{m.Key, m.NotAfter})
	}
	live, held := 0, 0 // held: of which a certificate may be valid, live ones among them
	for _, o := range append(older, m.Older...) {
		switch {
		case o.Key == key:
		case now.Before(o.NotAfter):
			live, held = live+1, held+1
		case now.Before(o.NotAfter.Add(stretch)):
			held++
		}
	}
	// One of these is never the one that is dropped, even if shorter certificates
	// came after it.
	over := 0
	for _, o := range m.Older {
		switch {
		case o.Key == key:
			notAfter = Later(notAfter, o.NotAfter)
		case now.Before(o.NotAfter.Add(stretch)):
			older = append(older, o)
		case held+over < MaxOlderKeys:
			over++
			older = append(older, o)
		}
	}
	// Without a reading of the monotonic clock: the record in memory says the same as in the store.
	m.Older, m.Key, m.NotAfter = older, key, notAfter.UTC().Round(0)
	return live <= MaxLiveKeys && held <= MaxOlderKeys
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// CertifiedUntil is when the last certificate of the member ends, over any key.
func (m Member) CertifiedUntil() time.Time {
	end := m.NotAfter
	for _, o := range m.Older {
		end = Later(end, o.NotAfter)
	}
	return end
}

// Outsider reports whether the member's token narrowed it to organizations that
// its entry has no more: it sees nobody, and not those that belong to none.
func (m Member) Outsider() bool { return m.NarrowTo != nil && len(m.Organizations) == 0 }

// WasKey reports whether key was certified before the last one.
func (m Member) WasKey(key identity.KeyID) bool {
	return slices.ContainsFunc(m.Older, func(o OlderKey) bool { return o.Key == key })
}

// Cover gives the member what its entry in the manifest in force says. A field that its
// token narrowed stays narrow, also when the entry gains organizations.
func (m *Member) Cover(e *manifest.Entry) {
	m.Entry = e.Name
	m.Roles = slices.Clone(e.Roles)
	m.EntryLabels = slices.Clone(e.Labels)
	m.Organizations = slices.Clone(e.Organizations)
	if m.NarrowTo != nil {
		m.Organizations = slices.DeleteFunc(m.Organizations, func(o string) bool {
			return !slices.Contains(m.NarrowTo, o)
		})
	}
}

// EqualButKeys reports whether m and other say the same but for what a renewal changes alone: which keys were
// certified, until when, and under which mesh CA.
func (m Member) EqualButKeys(other Member) bool {
	for _, r := range []*Member{&m, &other} {
		r.Key, r.Older, r.NotAfter, r.MeshKey = identity.KeyID{}, nil, time.Time{}, identity.KeyID{}
	}
	return reflect.DeepEqual(m, other)
}

// Keys returns every key that the record remembers, newest first, each with the
// end of its last certificate.
func (m Member) Keys() []OlderKey {
	return append([]OlderKey{{m.Key, m.NotAfter}}, m.Older...)
}

// KeyAge is where a key that a member presents stands in its record.
type KeyAge int

const (
	KeyRecorded KeyAge = iota // it was certified last
	KeyBefore                 // the one before: the answer to a renewal may be on its way, or lost
	KeyOlder                  // an earlier one: another machine holds the identity
	KeyUnknown                // it is in no record: of a restore window, or long forgotten
)

// Age says where key stands among those that m was certified over.
func (m Member) Age(key identity.KeyID) KeyAge {
	switch {
	case key == m.Key:
		return KeyRecorded
	case len(m.Older) > 0 && key == m.Older[0].Key:
		return KeyBefore
	case m.WasKey(key):
		return KeyOlder
	}
	return KeyUnknown
}

// AllLabels are those of the member's entry and of its token: of two with one key that of
// the token, which is closer to it.
func (m *Member) AllLabels() []string {
	if len(m.EntryLabels) == 0 {
		return m.Labels
	}
	return manifest.WithLabels(m.EntryLabels, m.Labels)
}

// IsSession reports whether an identity of kind k is a session of a person or
// tool: it lasts for hours, and counts for nothing in the fleet.
func IsSession(k identity.Kind) bool { return k == identity.Admin || k == identity.Readonly }

// RoleNames returns its roles, sorted.
func (m Member) RoleNames() []string {
	out := make([]string, 0, len(m.Roles))
	for _, r := range m.Roles {
		out = append(out, string(r))
	}
	slices.Sort(out)
	return out
}
