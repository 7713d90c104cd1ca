package agent

import (
	"errors"
	"io/fs"
	"time"

	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/snapshot"
)

// Outlook is what the node of a data directory believes, for who asks what it would
// say of a snapshot.
type Outlook struct {
	Trust snapshot.Trust
	Marks snapshot.Marks
	// Lost says that the marks cannot be read: the node believes nothing before a
	// coordinator answered it.
	Lost bool
	// Coordinators are the addresses to talk to, as host:port: those that it was told, and then
	// those that were known when it joined.
	Coordinators []string
}

// ReadOutlook reads what the node of a data directory believes, verified again at
// now. It takes no lock and changes nothing, so that the agent may run meanwhile.
// Errors are NodeNotJoined, NodeStateCorrupt, and FileMissing for a folder that this
// user may not read.
func ReadOutlook(files durable.FS, dir string, now time.Time) (Outlook, error) {
	s := &localStore{fs: files, dir: dir}
	switch _, err := s.read(anchorName, maxAnchorBytes); {
	case errors.Is(err, fs.ErrNotExist):
		return Outlook{}, s.notJoined()
	case errors.Is(err, fs.ErrPermission):
		return Outlook{}, explain.Wrap(err, explain.FileMissing, "purpose", "the node's identity", "file",
			s.path(anchorName), "cause", "permission denied")
	}
	me, err := s.readAnchor(now)
	if err != nil {
		return Outlook{}, err
	}
	s.pin = me.Pin
	l := &loaded{me: me, unsaved: make(map[snapshot.Scope][]byte)}
	known, err := s.readLedger()
	if err != nil {
		b := s.floor(l, now)
		return Outlook{Trust: me.trust(b), Marks: b.marks, Lost: true, Coordinators: mergeAddresses(b, me.Addresses)},
			nil
	}
	b := s.recheck(l, known, now)
	return Outlook{Trust: me.trust(b), Marks: known.marks, Coordinators: mergeAddresses(b, me.Addresses)}, nil
}

// ReadActive returns the exact bytes of the snapshot that a data directory has in
// use for scope, not verified. Without one the error matches fs.ErrNotExist.
func ReadActive(files durable.FS, dir string, scope snapshot.Scope) ([]byte, error) {
	s := &localStore{fs: files, dir: dir}
	return s.read(snapshotName(scope, active), snapshot.MaxSigned)
}
