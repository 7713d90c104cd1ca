package agent

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"time"

	"github.com/fealty-io/fealty/snapshot"
)

// behindFile is written when a trusted key signed something under a newer authority
// epoch than that of the trust bundle in use, which it names. It counts until a newer
// bundle is in use: a node that is started again did not catch up by that.
type behindFile struct {
	AuthorityEpoch uint64    `json:"authority_epoch"`
	ConfigVersion  uint64    `json:"config_version"`
	IssuedAt       time.Time `json:"issued_at"`
}

func behindAt(bundle *snapshot.Verified) behindFile {
	h := bundle.Header()
	return behindFile{h.AuthorityEpoch, h.ConfigVersion, h.IssuedAt.UTC()}
}

// covers reports whether bundle is not newer than the one that f names.
func (f behindFile) covers(bundle *snapshot.Verified) bool {
	is := behindAt(bundle)
	return cmp.Or(cmp.Compare(is.AuthorityEpoch, f.AuthorityEpoch), cmp.Compare(is.ConfigVersion, f.ConfigVersion), is.IssuedAt.Compare(f.IssuedAt)) <= 0
}

// fallBehind notes that the authority epoch moved on without this node. The caller
// holds a.activation.
func (a *Agent) fallBehind(ctx context.Context) {
	if *a.behind.Load() {
		return
	}
	a.behind.Store(new(true))
	bundle := a.beliefs.Load().bundle()
	if bundle == nil {
		return // nothing is permitted
	}
	if err := a.store.writeSealed(behindName, behindAt(bundle)); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "that the authority epoch moved on is not kept", slog.Any("err", err))
	}
}

// readBehind reports whether a node that believes b was behind when it ended.
func (s *localStore) readBehind(b *beliefs) (bool, error) {
	data, err := s.read(behindName, maxBehindBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var f behindFile
	if err == nil {
		err = unseal(data, &f)
	}
	if err != nil {
		return false, s.corrupt(behindName, err)
	}
	bundle := b.bundle()
	return bundle != nil && f.covers(bundle), nil
}
