package coordinator

import (
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/sealed"
)

// Keys and what keys begin with; see package record.
const (
	tokenPrefix    = "token/"
	tokenUsePrefix = "tokenuse/"
	countPrefix    = "count/"
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
