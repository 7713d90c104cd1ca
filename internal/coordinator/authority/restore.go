package authority

import (
	"time"

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
