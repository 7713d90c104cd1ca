package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/hostinfo"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/patience"
	"github.com/fealty-io/fealty/manifest"
)

// The record families of the store. Every family but audit and what belongs to it, sealed,
// seed/share, recovery and replica is under the record MAC: whoever can write the store but holds no seed
// can neither make a member nor a token, nor lift a ban.
//
//	member/<kind>/<name>        a member; kept until it leaves or is removed
//	token/<id>                  a join token; kept for a week after its end
//	tokenuse/<id>/<key id>      what a token admitted; kept as long as the token
//	count/<entry>               members under an entry with max_members
//	trust/state                 what the trust bundle is compiled from, but bans
//	trust/ban/id/<kind>/<name>  a banned identity; kept until lifted
//	trust/unban/id/<kind>/<name>
//	                            that the ban of an identity was lifted, and which one; kept
//	trust/ban/key/<key id>      a banned key; kept for svid_ttl + rejoin_grace,
//	                            in the bundle while a certificate can be valid
//	rollout/<coordinator>       whom a coordinator heard confirm a config key; see rotate.go
//	config/…                    the desired config; see config.go
//	publication/…               what members are told; see publication.go
//	leader/…                    who leads; see lead.go
//	sealed/…                    seed and mesh CA key, encrypted by a keeper; see package sealed
//	seed/set/<transition>       which shares of the seed that transition made
//	seed/share/<seed epoch>/<salt>/<set>/<owner>
//	                            a share of the seed, encrypted to its owner
//	recovery/open/<key id>      the open attempt of a coordinator, signed by its key
//	recovery/<attempt>/<owner>  shares that gather, each encrypted to a key in memory
//	replica/<key id>            a coordinator as it says itself, signed by its
//	                            enrolment key; kept for a week after the last word
//	reseed/…                    while a reseed moves the records: see reseed.go
//	audit/…, audithead/…, checkpoint/…
//	                            who did what, in chains under signed checkpoints; kept for
//	                            90 days; see package auditlog
const (
	memberPrefix   = "member/"
	tokenPrefix    = "token/"
	tokenUsePrefix = "tokenuse/"
	countPrefix    = "count/"
	trustPrefix    = "trust/"
	trustStateKey  = "trust/state"
	banIDPrefix    = "trust/ban/id/"
	banKeyPrefix   = "trust/ban/key/"
	unbanPrefix    = "trust/unban/id/"
	sealedPrefix   = sealed.Prefix
	shareSetPrefix = "seed/set/"
	sharePrefix    = "seed/share/"
	auditPrefix    = auditlog.Prefix
)

func memberKey(kind identity.Kind, name string) string {
	return memberPrefix + string(kind) + "/" + name
}
func tokenKey(id string) string { return tokenPrefix + id }
func tokenUseKey(id string, key identity.KeyID) string {
	return tokenUsePrefix + id + "/" + key.String()
}
func countKey(entry string) string                    { return countPrefix + entry }
func banIDKey(kind identity.Kind, name string) string { return banIDPrefix + string(kind) + "/" + name }
func unbanKey(kind identity.Kind, name string) string { return unbanPrefix + string(kind) + "/" + name }
func banKeyKey(key identity.KeyID) string             { return banKeyPrefix + key.String() }

// States of a member.
const (
	stateActive = "active"
	// stateDraining: it goes on as before, and gets no new domains.
	stateDraining = "draining"
	// stateReplacing: its keys are banned and its name waits for a new machine.
	stateReplacing = "replacing"
)

// Bounds on the earlier keys of a member. All over which a certificate can be valid are
// remembered, one that an outage made among them, so that banning a member bans every
// certificate it holds; a member that renews faster than that allows is told to wait.
// The others are kept while there is room, so that an old key is told from a foreign
// one.
const (
	maxLiveKeys  = 64
	maxOlderKeys = 96
)

// memberRecord is the durable truth on one member. The live state of a member
// is never in it.
type memberRecord struct {
	Kind          identity.Kind   `json:"kind"`
	Name          string          `json:"name"`
	State         string          `json:"state"`
	Entry         string          `json:"entry"`
	Roles         []manifest.Role `json:"roles,omitempty"`
	Organizations []string        `json:"organizations,omitempty"`
	NarrowTo      []string        `json:"narrow_to"`         // what its token narrows the entry's organizations to; null: not
	Domains       []string        `json:"domains,omitempty"` // empty at admission: joining never moves a domain
	JoinedAt      time.Time       `json:"joined_at"`
	ProofType     string          `json:"proof_type"`
	Selectors     []string        `json:"selectors"` // what the admitting proof showed; renewal matches them again
	Token         string          `json:"token,omitempty"`
	// Incarnation is the key that it enrolled with: the subject of its snapshots.
	Incarnation identity.KeyID `json:"incarnation"`
	// Key is the last certified key. It is written before the certificate is
	// signed, so that no identity exists without its record.
	Key      identity.KeyID `json:"key"`
	Older    []olderKey     `json:"older,omitempty"` // earlier keys, newest first
	NotAfter time.Time      `json:"not_after"`       // end of the last SVID
	// MeshKey is the mesh CA key that the last certificate is under; zero in a record
	// of an earlier release.
	MeshKey identity.KeyID `json:"mesh_key,omitzero"`
	// Drain is set from drain to undrain. It stays with the record: a member that
	// comes back, also as another machine, goes on draining.
	Drain drainMark `json:"drain,omitzero"`
	// Machine is what its machine said of itself when it joined last, and SeenAddress
	// where that join came from: for people, and for no decision.
	Machine     hostinfo.Facts `json:"machine,omitzero"`
	SeenAddress string         `json:"seen_address,omitempty"`
	// Labels are those of its token, sorted. They decide nothing.
	Labels []string `json:"labels,omitempty"`
	// EntryLabels are those of its entry. They decide nothing either.
	EntryLabels []string `json:"entry_labels,omitempty"`
}

// drainMark says since when a member drains, and who wanted it why.
type drainMark struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
}

// held reports whether a machine holds the identity: it may renew and come back.
func (m memberRecord) held() bool { return m.State == stateActive || m.State == stateDraining }

// heldState is the state of the member while a machine holds its identity.
func (m memberRecord) heldState() string {
	if m.Drain.At.IsZero() {
		return stateActive
	}
	return stateDraining
}

func (m memberRecord) path() string { return string(m.Kind) + "/" + m.Name }

// olderKey is a key that was certified before the last one.
type olderKey struct {
	Key      identity.KeyID `json:"key"`
	NotAfter time.Time      `json:"not_after"` // end of its last certificate
}

// rekey makes key the last certified one, in a certificate that ends at
// notAfter. It reports false if too many earlier certificates are still valid, or may
// be, as a coordinator that does not know of this yet can stretch each by stretch.
//
// A key that is certified again keeps the later end: its longer certificate is
// still out there.
func (m *memberRecord) rekey(key identity.KeyID, notAfter, now time.Time, stretch time.Duration) bool {
	older := make([]olderKey, 0, len(m.Older)+1)
	switch {
	case m.Key == key:
		notAfter = later(notAfter, m.NotAfter)
	case !m.Key.IsZero():
		older = append(older, olderKey{m.Key, m.NotAfter})
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
			notAfter = later(notAfter, o.NotAfter)
		case now.Before(o.NotAfter.Add(stretch)):
			older = append(older, o)
		case held+over < maxOlderKeys:
			over++
			older = append(older, o)
		}
	}
	m.Older, m.Key, m.NotAfter = older, key, notAfter.UTC()
	return live <= maxLiveKeys && held <= maxOlderKeys
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// certifiedUntil is when the last certificate of the member ends, over any key.
func (m memberRecord) certifiedUntil() time.Time {
	end := m.NotAfter
	for _, o := range m.Older {
		end = later(end, o.NotAfter)
	}
	return end
}

// outsider reports whether the member's token narrowed it to organizations that
// its entry has no more: it sees nobody, and not those that belong to none.
func (m memberRecord) outsider() bool { return m.NarrowTo != nil && len(m.Organizations) == 0 }

// wasKey reports whether key was certified before the last one.
func (m memberRecord) wasKey(key identity.KeyID) bool {
	return slices.ContainsFunc(m.Older, func(o olderKey) bool { return o.Key == key })
}

// cover gives the member what its entry in the manifest in force says. What its
// token narrowed stays narrow, also when the entry gains organizations.
func (m *memberRecord) cover(e *manifest.Entry) {
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

// keys returns every key that the record remembers, newest first, each with the
// end of its last certificate.
func (m memberRecord) keys() []olderKey {
	return append([]olderKey{{m.Key, m.NotAfter}}, m.Older...)
}

// tokenRecord is what is kept of a join token: its public key, never its secret.
type tokenRecord struct {
	ID            string    `json:"id"`
	PublicKey     []byte    `json:"public_key"` // Ed25519
	Entry         string    `json:"entry"`
	Name          string    `json:"name,omitempty"`
	Organizations []string  `json:"organizations,omitempty"` // narrows the entry; nil: all of it
	Uses          uint32    `json:"uses"`
	Used          uint32    `json:"used"`
	CreatedAt     time.Time `json:"created_at"`
	CreatedBy     string    `json:"created_by"`
	ExpiresAt     time.Time `json:"expires_at"`
	Revoked       bool      `json:"revoked,omitempty"`
	Labels        []string  `json:"labels,omitempty"` // of those that it admits, sorted
}

// tokenUse binds one use of a token to the key that it admitted, so that a
// candidate whose grant was lost can ask again, and nobody else can.
type tokenUse struct {
	Member string    `json:"member"` // <kind>/<name>
	At     time.Time `json:"at"`
}

// entryCount counts the members under an entry that has a maximum. It holds under
// one head of the history: another manifest may give the entry other members, so
// the first admission under another head counts anew.
type entryCount struct {
	Members int          `json:"members"`
	Head    history.Hash `json:"head"`
}

// banRecord says since when and why.
type banRecord struct {
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	// Until is when a banned key may be forgotten: no certificate over it can be
	// valid or in grace then. Zero for identities: those are lifted by a person.
	Until time.Time `json:"until,omitzero"`
	// CertEnd is when the last certificate over a banned key has ended everywhere:
	// until then the bundle lists the key.
	CertEnd time.Time `json:"cert_end,omitzero"`
	// Counter is that of the trust state under which an identity was banned; 0 in a record
	// of an earlier release. Zero for keys.
	Counter uint64 `json:"counter,omitempty"`
}

// unbanRecord says that a person lifted the ban of an identity. One that is gone
// without it is in force still, for whoever saw it.
type unbanRecord struct {
	Counter uint64    `json:"counter"` // of the ban: of a later one it says nothing
	By      string    `json:"by"`
	At      time.Time `json:"at"`
}

// trustState is what the trust bundle is compiled from, besides bans and the
// history. Every transaction that changes an input of the bundle writes it, so
// that its version orders bundles.
type trustState struct {
	// Change numbers the writes, so that each makes a new value. It is the counter that
	// coordinators remember: a lower one is of a store that went back.
	Change uint64 `json:"change"`
	// MeshKeys are the mesh CA keys that verifiers still accept, newest first.
	MeshKeys []meshKey `json:"mesh_keys"`
	// Roots are the roots that verifiers still accept, newest first: the one in
	// force, and those that it took the place of.
	Roots []rootState `json:"roots"`
	// ConfigKeys are the config signing keys, by their number, with those that are
	// revoked and not over.
	ConfigKeys []configKey `json:"config_keys"`
	// LastConfigKey is the highest number that was ever used: none is used again.
	LastConfigKey uint32 `json:"last_config_key,omitempty"`
	// Rotation is the one that runs, and Rotated how the last one ended; see rotate.go.
	Rotation *rotation `json:"rotation,omitempty"`
	Rotated  *rotated  `json:"rotated,omitempty"`
	// Revoked is what is revoked by its name, sorted. It only grows.
	Revoked []revokedThing `json:"revoked,omitempty"`
	// Emergencies are the statements of the signers that were applied under this seed.
	Emergencies []appliedEmergency `json:"emergencies,omitempty"`
	// SeedEpoch is that of the seed which the config keys derive from.
	SeedEpoch uint64 `json:"seed_epoch,omitempty"`
	// Head is the transition that the state was last fitted to.
	Head history.Hash `json:"head"`
	// Config says that config/state exists: a record that is absent has no MAC.
	Config bool `json:"config,omitempty"`
	// UnbansFrom is the version from which on a ban that ended has a record which says so;
	// 0: an earlier release, which keeps none, wrote this.
	UnbansFrom store.Revision `json:"unbans_from,omitempty"`
	// Bans are the bans that there are: a record that is absent has no MAC.
	Bans banSum `json:"bans"`
	// AsOf is the time that bans of keys are compared with, so that what a version
	// lists does not depend on when it is compiled.
	AsOf time.Time `json:"as_of"`
}

// banSum says which ban records exist, so that a deleted one is noticed.
type banSum struct {
	Count  int    `json:"count"`
	Digest string `json:"digest"` // SHA-256 over their keys, in hex
}

// rootState is one root CA certificate.
type rootState struct {
	DER []byte `json:"der"`
	// AcceptUntil is set when another root takes over: the end of the last SVID
	// under this one.
	AcceptUntil time.Time `json:"accept_until,omitzero"`
}

// meshKey is one mesh CA key under one authority epoch (I9).
type meshKey struct {
	Key identity.KeyID `json:"key"`
	// AuthorityEpoch is 0 where it is not known: of a key of between a backup and the
	// restore, which only a trust bundle of then names.
	AuthorityEpoch uint64 `json:"authority_epoch"`
	// AcceptUntil is set when a newer key takes over: the end of the last SVID
	// that this one can have signed.
	AcceptUntil time.Time `json:"accept_until,omitzero"`
	// LongestTTL is the longest svid_ttl of any manifest in force while this key
	// signed, so that AcceptUntil cuts no SVID short.
	LongestTTL time.Duration `json:"longest_ttl"`
}

// versioned is a record with the store version that it was read at; version 0
// means that there is none.
type versioned[T any] struct {
	value   T
	version store.Revision
}

func (v versioned[T]) exists() bool { return v.version != 0 }

// records reads and writes the families that are under the record MAC.
type records struct {
	store store.Store
	auth  *store.Authenticator
	audit auditPlaces
	// next are the records under the seed that takes over, once the head moved to
	// it: who still reads under this one reads what is moved already. Nothing is
	// written on what was read so, because the head moved.
	next *atomic.Pointer[records]
}

// open returns what was sealed under key.
func (r records) open(key string, sealed []byte) ([]byte, error) {
	plain, err := r.auth.Open(key, sealed)
	if err != nil && r.next != nil {
		if next := r.next.Load(); next != nil {
			return next.open(key, sealed)
		}
	}
	return plain, err
}

// get reads the record at key. Absence is version 0 and no error; a record that
// fails its MAC is an error that matches [store.ErrForged].
func get[T any](ctx context.Context, r records, key string) (versioned[T], error) {
	e, err := r.store.Get(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return versioned[T]{}, nil
	case err != nil:
		return versioned[T]{}, err
	}
	return open[T](r, e)
}

func open[T any](r records, e store.Entry) (versioned[T], error) {
	plain, err := r.open(e.Key, e.Value)
	if err != nil {
		return versioned[T]{}, err
	}
	v := versioned[T]{version: e.Version}
	if err := json.Unmarshal(plain, &v.value); err != nil {
		return versioned[T]{}, fmt.Errorf("record %s passes its MAC but does not decode: %w", e.Key, err)
	}
	return v, nil
}

// list reads every record below prefix, sorted by key.
func list[T any](ctx context.Context, r records, prefix string) ([]versioned[T], error) {
	l, err := r.store.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := make([]versioned[T], 0, len(l.Entries))
	for _, e := range l.Entries {
		v, err := open[T](r, e)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// put returns the write of value at key, under the record MAC.
func (r records) put(key string, value any) (store.Write, error) {
	plain, err := json.Marshal(value)
	if err != nil {
		return store.Write{}, fmt.Errorf("record %s does not encode: %w", key, err)
	}
	return store.Write{Key: key, Value: r.auth.Seal(key, plain)}, nil
}

// auditPlaces gives audit entries their places in the chains of this process.
type auditPlaces interface {
	Stamp(ctx context.Context, entries []auditEntry) (*auditlog.Stamped, error)
}

// change collects one transaction. The first error sticks.
type change struct {
	r   records
	tx  store.Tx
	err error
	// entries get their places in the audit log when the transaction is committed: one that
	// is not has none, and none waits for another.
	entries []auditEntry
	// withdraws is the path of the member whose keys the change bans; empty: none.
	withdraws string
}

// newChange starts a transaction that holds only while the head of the history
// is the one that the caller's state was built from (I1): a replica that lags
// cannot act under an old manifest.
//
// While the records are frozen for a reseed it does not hold either.
func (r records) newChange(head store.Revision) *change {
	c := r.frozenChange(head)
	c.require(freezeKey, 0)
	return c
}

// frozenChange is newChange for who moves the frozen records.
func (r records) frozenChange(head store.Revision) *change {
	return &change{r: r, tx: store.Tx{
		ID: store.NewTxID(),
		If: []store.Condition{{Key: history.HeadKey, Version: head}},
	}}
}

// put replaces a record that was read at version; 0 means that it must be new.
func (c *change) put(key string, version store.Revision, value any) {
	w, err := c.r.put(key, value)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return
	}
	c.tx.If = append(c.tx.If, store.Condition{Key: key, Version: version})
	c.tx.Put = append(c.tx.Put, w)
}

// write replaces a record, whatever it was: a condition on another one says that
// nobody else wrote it.
func (c *change) write(key string, value any) {
	w, err := c.r.put(key, value)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return
	}
	c.tx.Put = append(c.tx.Put, w)
}

// writeRaw is write for exact bytes.
func (c *change) writeRaw(key string, value []byte) {
	c.tx.Put = append(c.tx.Put, store.Write{Key: key, Value: c.r.auth.Seal(key, value)})
}

// drop removes a record, whatever it was; see write.
func (c *change) drop(key string) { c.tx.Delete = append(c.tx.Delete, key) }

// require makes the transaction fail unless key is still at version.
func (c *change) require(key string, version store.Revision) {
	c.tx.If = append(c.tx.If, store.Condition{Key: key, Version: version})
}

// delete removes a record that was read at version.
func (c *change) delete(key string, version store.Revision) {
	c.tx.If = append(c.tx.If, store.Condition{Key: key, Version: version})
	c.tx.Delete = append(c.tx.Delete, key)
}

// audit adds an entry that becomes durable with the change that it describes.
func (c *change) audit(now time.Time, e auditEntry) {
	e.At = now.UTC()
	c.entries = append(c.entries, e)
}

// commit applies the change. An answer that was lost is looked up: the result
// is then known, or an error that matches [store.ErrUnknownOutcome] remains.
func (c *change) commit(ctx context.Context) (store.Revision, error) {
	if c.err != nil {
		return 0, c.err
	}
	tx := c.tx
	var places *auditlog.Stamped // nil: nothing to tell
	if len(c.entries) > 0 {
		var err error
		if places, err = c.r.audit.Stamp(ctx, c.entries); err != nil {
			return 0, err
		}
		tx = withPlaces(tx, places)
	}
	rev, err := patience.Commit(ctx, c.r.store, tx)
	switch {
	case places == nil:
	case err == nil:
		places.Applied()
	case errors.Is(err, store.ErrUnknownOutcome):
		places.Unknown()
		c.tx, c.entries = tx, nil // whoever writes it again writes the very same
	default:
		places.Discarded()
	}
	return rev, err
}

// withPlaces returns tx with the entries that got places.
func withPlaces(tx store.Tx, places *auditlog.Stamped) store.Tx {
	tx.Put = slices.Clone(tx.Put)
	for _, w := range places.Writes {
		tx.Put = append(tx.Put, store.Write(w))
	}
	if places.Begins != "" {
		tx.If = append(slices.Clone(tx.If), store.Condition{Key: places.Begins})
	}
	return tx
}

// auditEntry is one line of the audit log.
type auditEntry = auditlog.Entry
