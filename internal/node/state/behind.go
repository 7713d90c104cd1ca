package state

import (
	"cmp"
	"errors"
	"io/fs"
	"time"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/snapshot"
)

// BehindFile is written when a trusted key signed something under a newer authority
// epoch than that of the trust bundle in use, which it names. It counts until a newer
// bundle is in use: a node that is started again did not catch up by that.
type BehindFile struct {
	AuthorityEpoch uint64    `json:"authority_epoch"`
	ConfigVersion  uint64    `json:"config_version"`
	IssuedAt       time.Time `json:"issued_at"`
}

// BehindAt names bundle.
func BehindAt(bundle *snapshot.Verified) BehindFile {
	h := bundle.Header()
	return BehindFile{h.AuthorityEpoch, h.ConfigVersion, h.IssuedAt.UTC()}
}

// covers reports whether bundle is not newer than the one that f names.
func (f BehindFile) covers(bundle *snapshot.Verified) bool {
	is := BehindAt(bundle)
	return cmp.Or(cmp.Compare(is.AuthorityEpoch, f.AuthorityEpoch), cmp.Compare(is.ConfigVersion, f.ConfigVersion),
		is.IssuedAt.Compare(f.IssuedAt)) <= 0
}

// ReadBehind reports whether a node that believes b was behind when it ended.
func (s *Store) ReadBehind(b *TrustState) (bool, error) {
	data, err := s.Read(dir.BehindName, dir.MaxBehindBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var f BehindFile
	if err == nil {
		err = dir.Unseal(data, &f)
	}
	if err != nil {
		return false, s.Corrupt(dir.BehindName, err)
	}
	bundle := b.Bundle()
	return bundle != nil && f.covers(bundle), nil
}
