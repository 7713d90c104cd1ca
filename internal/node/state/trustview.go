package state

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/platform/durable"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// TrustView is the trust state of a data directory as others see it, for who asks what it would
// say of a snapshot.
type TrustView struct {
	Trust snapshot.Trust
	Marks snapshot.Marks
	// Lost says that the marks cannot be read: the node believes nothing before a
	// coordinator answered it.
	Lost bool
	// Stale says that the trust bundle is not in use: it bans whom it bans, and vouches for
	// no other snapshot.
	Stale bool
	// Quarantined reports whether a snapshot failed its trial here, by the hash of its content.
	Quarantined func(scope snapshot.Scope, content snapshot.Digest) bool
	// Coordinators are the addresses to talk to, as host:port: those that it was told, and then
	// those that were known when it joined.
	Coordinators []string
}

// ReadTrustView reads what the node of a data directory believes, verified again at
// now. It takes no lock and changes nothing, so that the agent may run meanwhile.
// Errors are NodeNotJoined, NodeStateCorrupt, and FileMissing for a folder that this
// user may not read.
func ReadTrustView(files durable.FS, folder string, now time.Time) (TrustView, error) {
	s := &Store{FS: files, Dir: folder}
	switch _, err := s.Read(dir.AnchorName, dir.MaxAnchorBytes); {
	case errors.Is(err, fs.ErrNotExist):
		return TrustView{}, s.NotJoined()
	case errors.Is(err, fs.ErrPermission):
		return TrustView{}, errcode.Wrap(err, errcode.FileMissing, "purpose", "the node's identity", "file",
			s.Path(dir.AnchorName), "cause", "permission denied")
	}
	me, err := s.readAnchor(now)
	if err != nil {
		return TrustView{}, err
	}
	s.Pin = me.Pin
	l := &Loaded{Me: me, Unsaved: make(map[snapshot.Scope][]byte)}
	// A program beside the agent heeds the signers' revocations as the agent does.
	if l.statements, l.emergencies, err = s.ReadEmergencies(me); err != nil && len(l.emergencies) == 0 {
		return TrustView{}, err
	}
	known, err := s.ReadLedger()
	if err != nil {
		b := s.floor(l, now)
		return TrustView{Trust: me.Trust(b), Marks: b.Marks, Lost: true, Stale: true, Quarantined: known.failed,
			Coordinators: MergeAddresses(b, me.Addresses)}, nil
	}
	b := s.recheck(l, known, now)
	return TrustView{Trust: me.Trust(b), Marks: known.Marks, Stale: b.Active[snapshot.ScopeTrustBundle] == nil,
		Quarantined: known.failed, Coordinators: MergeAddresses(b, me.Addresses)}, nil
}

// ReadActive returns the exact bytes of the snapshot that a data directory has in
// use for scope, not verified. Without one the error matches fs.ErrNotExist.
func ReadActive(files durable.FS, folder string, scope snapshot.Scope) ([]byte, error) {
	s := &Store{FS: files, Dir: folder}
	return s.Read(dir.SnapshotName(scope, dir.Active), internalsnapshot.MaxSigned)
}

// MaxAddresses bounds the addresses that are kept or tried.
const MaxAddresses = 80

// MergeAddresses returns the coordinators to talk to: those of the bootstrap, then
// those that were known at the join.
func MergeAddresses(b *TrustState, joined []string) []string {
	var out []string
	revoked := b.Revocations()
	for _, a := range append(slices.Clone(b.Coordinators()), joined...) {
		if len(out) < MaxAddresses && !slices.Contains(out, a) && !revoked.Revokes(internalsnapshot.RevokedCoordinator, a) {
			out = append(out, a)
		}
	}
	return out
}
