package record

import (
	"time"

	"github.com/fealty-io/fealty/identity"
)

// The keys of bans begin with these.
const (
	BanIDPrefix  = "trust/ban/id/"
	BanKeyPrefix = "trust/ban/key/"
	UnbanPrefix  = "trust/unban/id/"
)

// BanIDKey returns the key of the ban of an identity.
func BanIDKey(kind identity.Kind, name string) string { return BanIDPrefix + string(kind) + "/" + name }

// UnbanKey returns the key of what says that the ban of an identity was lifted.
func UnbanKey(kind identity.Kind, name string) string { return UnbanPrefix + string(kind) + "/" + name }

// BanKeyKey returns the key of the ban of a key.
func BanKeyKey(key identity.KeyID) string { return BanKeyPrefix + key.String() }

// Ban says since when and why.
type Ban struct {
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

// Unban says that a person lifted the ban of an identity. One that is gone
// without it is in force still, for whoever saw it.
type Unban struct {
	Counter uint64    `json:"counter"` // of the ban: of a later one it says nothing
	By      string    `json:"by"`
	At      time.Time `json:"at"`
	// AuthorityEpoch is the one in which it was lifted; 0 in a record of an earlier release. A
	// trust bundle of an earlier epoch that is shown after a restore brings no such ban back.
	AuthorityEpoch uint64 `json:"authority_epoch,omitempty"`
}
