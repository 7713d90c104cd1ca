package authority

import (
	"context"
	"errors"
	"time"

	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

// RestoreWindow is the time that a restored store knows nothing of: from its backup to the
// restore. Members alone know of revocations of that time, by the trust bundles that they
// hold. It is stored under the record MAC.
type RestoreWindow struct {
	// Index is that of the restore transition.
	Index uint64 `json:"index,string"`
	// AuthorityEpoch and Version are those of the newest trust bundle that is known: of
	// the backup, then of one that a member presented.
	AuthorityEpoch uint64         `json:"authority_epoch,string"`
	Version        store.Revision `json:"version,string"`
	BackupAt       time.Time      `json:"backup_at"`
}

// LastRestore returns the newest restore transition of the history; nil if it was
// never restored.
func (s *State) LastRestore() *history.Link {
	if s.Chain == nil {
		return nil
	}
	links := s.Chain.Links()
	for i := len(links) - 1; i >= 0; i-- {
		if links[i].Kind == history.KindRestore {
			return &links[i]
		}
	}
	return nil
}

// RestoredAt returns the end of the second in which the last restore was planned; the
// zero time if there was none. Everything that is made from then on is later.
func (s *State) RestoredAt() time.Time {
	l := s.LastRestore()
	if l == nil {
		return time.Time{}
	}
	return time.Unix(int64(l.AuthorityEpoch)+1, 0)
}

// RestoredEpoch is the authority epoch of the last restore of the history; 0 if there
// was none.
func (s *State) RestoredEpoch() uint64 {
	if last := s.LastRestore(); last != nil {
		return last.AuthorityEpoch
	}
	return 0
}

// A store that was restored from a backup holds an intent beside the history of then
// (docs/explanation/recovery.md). Before anything is served from it, a coordinator that holds
// the seed appends a restore transition, which the signers authorized: it has a new
// mesh CA key, and its index and epoch are above all that the field remembers. So
// whoever saw a newer head accepts the fork by the signatures of the signers it knows,
// and whoever did not goes on as after any change of authority.
//
// Until then the coordinator is in recovery mode, and says what is missing. It is not
// ready either at the head of the backup itself, whatever its keepers could open.

// PendingRestore returns the intent in st, with its version; nil if there is
// none. An error that has a code says that there is one which is unusable.
func PendingRestore(ctx context.Context, st store.Store) (*backup.Intent, store.Revision, error) {
	intent, version, err := backup.ReadIntent(ctx, st)
	if errors.Is(err, backup.ErrVersion) || errors.Is(err, backup.ErrAltered) {
		return nil, 0, errcode.Wrap(err, errcode.RestoreUnfit, "problem", err.Error())
	}
	return intent, version, err
}

// restoring reports whether a whole restore waits in the store: then an older head there
// is neither a late notice nor a lost write.
func (h *Head) restoring(ctx context.Context) bool {
	intent, _, err := PendingRestore(ctx, h.cfg.Store)
	return err == nil && intent != nil && intent.Whole
}

// RestoreWindowKey holds what is known of the time between a backup and the restore of it.
const RestoreWindowKey = "restore/gap"
