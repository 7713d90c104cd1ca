package coordinator

import (
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/internal/store"
)

// Keys and what keys begin with; see package record.
const (
	tokenPrefix    = "token/"
	tokenUsePrefix = "tokenuse/"
	countPrefix    = "count/"
	trustPrefix    = "trust/"
	trustStateKey  = "trust/state"
	sealedPrefix   = sealed.Prefix
	shareSetPrefix = "seed/set/"
	sharePrefix    = "seed/share/"
	auditPrefix    = auditlog.Prefix
)

func tokenKey(id string) string { return tokenPrefix + id }
func tokenUseKey(id string, key identity.KeyID) string {
	return tokenUsePrefix + id + "/" + key.String()
}
func countKey(entry string) string { return countPrefix + entry }

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
