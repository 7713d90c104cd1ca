package state

import (
	"bytes"
	"time"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/snapshot"
)

// The files written here are for others to read. The agent makes it from what it verified
// and never reads it back as anything that counts.

// TendEvery is how often what the disk did not take, or what ended, is looked at.
const TendEvery = time.Minute

// checkFormat refuses a directory that a newer release wrote, before anything in it is
// changed. Without the file, or with a damaged one, it is of this format or joined by a
// release before there was one.
func (s *Store) checkFormat() error {
	data, err := s.Read(dir.StoreName, dir.MaxStoreBytes)
	var f dir.StoreFile
	if err != nil || dir.Unseal(data, &f) != nil || f.Format <= dir.StoreFormat {
		return nil
	}
	return errcode.New(errcode.NodeStateNewer, "dir", s.Dir, "release", f.Release)
}

// Stamp writes down who writes the directory from now on.
func (s *Store) Stamp(release string) error {
	next, err := dir.Seal(dir.StoreFile{Format: dir.StoreFormat, Release: release})
	if err != nil {
		return err
	}
	if was, err := s.Read(dir.StoreName, dir.MaxStoreBytes); err == nil && bytes.Equal(was, next) {
		return nil
	}
	return s.Write(dir.StoreName, next)
}

// StateFile tells of what is in use, for people and tools.
type StateFile struct {
	Release  string `json:"release"`
	Identity struct {
		SVID   string `json:"svid"`   // a file beside this one: references, never keys
		Anchor string `json:"anchor"` // likewise
	} `json:"identity"`
	Scopes []ScopeState `json:"scopes"`
}

// ScopeState is what is known of a snapshot in use.
type ScopeState struct {
	Scope          snapshot.Scope `json:"scope"`
	Subject        string         `json:"subject"`
	AuthorityEpoch uint64         `json:"authority_epoch"`
	ConfigVersion  uint64         `json:"config_version"`
	Generation     uint64         `json:"generation,omitempty"`
	ContentHash    string         `json:"content_hash"`
	SignerKeyIDs   []string       `json:"signer_key_ids"`
	RefreshAfter   time.Time      `json:"refresh_after"`
	FreshUntil     *time.Time     `json:"fresh_until,omitempty"`
	ExpiresAt      time.Time      `json:"expires_at"`
	// VerifiedAt is when it was verified as it came, and Source from whom.
	VerifiedAt time.Time `json:"verified_at"`
	Source     Origin    `json:"source"`
	// Applied is the content that the program that runs on a change last succeeded with,
	// or that it failed; blank: it did not run.
	Applied string `json:"applied,omitempty"`
}

// Receipt is when and from whom a snapshot in use came.
type Receipt struct {
	At   time.Time
	From Origin
}

// FromDisk is the source of what was verified at a start of which nothing else is known.
const FromDisk Origin = "disk"
