package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/fealty-io/fealty/fence"
	files "github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/signed"
)

// The names of the files in a holder's directory.
const (
	epochFile = "epoch"
	epochLock = "epoch.lock"
)

// maxEpochFile bounds what is read of an epoch's file, in bytes.
const maxEpochFile = 8 << 10

// mend is what people do about an epoch that cannot be read.
const mend = "do not make or delete the file by hand, as an epoch that is used twice lets a zombie act; " +
	"ask the authority for a new grant, and call MendEpoch with it"

// EpochOptions say what is known of the epoch from elsewhere than its file.
type EpochOptions struct {
	// Grant is a grant that Authority signed, as it travels; "" for none. One that is newer
	// than that of the file begins with life 1 under it. That of the file changes nothing, so
	// that every start may bring it. An older one is an error that matches [ErrSuperseded].
	Grant string

	// Holder is whose epoch it is. It is compared with a grant's; "" only without one.
	Holder string

	// Authority is whose grants count. Its Key is required with a Grant, and with Ask.
	Authority fence.Authority

	// Ask asks the authority for a grant, while the directory is held: newest is the one that
	// the file has, or "", and incarnation is the process that is about to begin. It returns
	// the grant as it travels, or "" to go on under that of the file. Nil: nobody is asked.
	// Grant is not looked at otherwise. An error ends the start; no epoch is handed out.
	Ask func(newest string, incarnation fence.Incarnation) (grant string, err error)

	mend        bool              // as MendEpoch does
	incarnation fence.Incarnation // of the process, once it is chosen
}

// asked returns o with the grant that the authority gave, if it is asked.
func (o EpochOptions) asked(newest string) (EpochOptions, error) {
	o.incarnation = fence.NewIncarnation()
	if o.Ask == nil {
		return o, nil
	}
	var err error
	o.Grant, err = o.Ask(newest, o.incarnation)
	return o, err
}

var (
	// ErrSuperseded is matched when a grant, or an authority epoch, is not newer than that of
	// the file.
	ErrSuperseded = errors.New("superseded by what the file has")

	// ErrEnrolled is matched when there is a file already.
	ErrEnrolled = errors.New("there is one already")
)

// Epoch is an epoch that was begun, and the directory that it is counted in.
type Epoch struct {
	sender *fence.Sender
	lock   io.Closer
}

// EnrolEpoch begins the first life of a holder that never had one: it happens once, when
// the holder is enrolled. With a file there it is an error that matches [ErrEnrolled], also
// when an enrolment was interrupted; [OpenEpoch] goes on from there. A directory that does
// not exist is made, with mode 0700. Otherwise it is as OpenEpoch.
func EnrolEpoch(dir string, o EpochOptions) (*Epoch, error) { return enrolEpoch(files.OS(), dir, o) }

// OpenEpoch begins the next life of a holder, and holds its directory until [Epoch.Close]
// or the end of the process. The directory exists, and nobody else writes to it.
//
// The errors match [ErrLocked], [ErrMissing], [ErrCorrupt], [fence.ErrExhausted],
// [ErrSuperseded] or [fence.ErrUntrusted], or are those of the disk. After any of them no
// epoch was handed out.
func OpenEpoch(dir string, o EpochOptions) (*Epoch, error) { return openEpoch(files.OS(), dir, o) }

// MendEpoch opens an epoch whose file is missing or damaged: it begins with life 1 under the
// grant of o, which is new. The authority was asked for it after the file was found so, and no
// process ever began under it. It is somebody's decision, and never a start's of its own: under
// an earlier grant, lives that were used would be used again. A whole file is opened as by
// [OpenEpoch].
func MendEpoch(dir string, o EpochOptions) (*Epoch, error) { return mendEpoch(files.OS(), dir, o) }

// Sender returns the one sender of the life that was begun.
func (e *Epoch) Sender() *fence.Sender { return e.sender }

// Life returns the life that was begun.
func (e *Epoch) Life() fence.Life { return e.sender.Life() }

// Close gives the directory back. The caller sends nothing more under this epoch.
func (e *Epoch) Close() error { return e.lock.Close() }

func enrolEpoch(disk files.FS, dir string, o EpochOptions) (*Epoch, error) {
	if err := disk.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("fence: enrol in %s: %w", dir, err)
	}
	return begin(disk, dir, func(name string) (fence.Life, error) {
		if _, found, err := readEpoch(disk, name); found {
			return fence.Life{}, errors.Join(fmt.Errorf("fence: enrol in %s: %w", name, ErrEnrolled), err)
		}
		o, err := o.asked("")
		switch {
		case err != nil:
			return fence.Life{}, err
		case o.Grant == "":
			return fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: o.incarnation}, nil
		}
		return o.under()
	})
}

func mendEpoch(disk files.FS, dir string, o EpochOptions) (*Epoch, error) {
	o.mend = true
	return openEpoch(disk, dir, o)
}

func openEpoch(disk files.FS, dir string, o EpochOptions) (*Epoch, error) {
	return begin(disk, dir, func(name string) (fence.Life, error) {
		last, found, err := readEpoch(disk, name)
		if err == nil && !found {
			err = fmt.Errorf("fence: %s is missing: %s: %w", name, mend, ErrMissing)
		}
		lost := o.mend && (errors.Is(err, ErrMissing) || errors.Is(err, ErrCorrupt))
		if err != nil && !lost {
			return fence.Life{}, err // one that was not read may be whole
		}
		o, problem := o.asked(last.Grant)
		switch {
		case problem != nil:
			return fence.Life{}, problem
		case err == nil:
			return o.next(name, last)
		case o.Grant != "":
			return o.under()
		}
		return fence.Life{}, err
	})
}

// begin hands out the life that next decides on, once it is on disk.
func begin(disk files.FS, dir string, next func(name string) (fence.Life, error)) (_ *Epoch, err error) {
	// The lock comes first and is held for life: two processes that count at once would
	// count to the same number.
	lock, err := disk.Lock(filepath.Join(dir, epochLock))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("fence: there is no directory %s: name the one in which this holder was enrolled, or call "+
			"EnrolEpoch if it never was: %w", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("fence: open the epoch in %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	name := filepath.Join(dir, epochFile)
	life, err := next(name)
	if err != nil {
		return nil, err
	}
	// On disk before it is handed out: an epoch that a power cut takes back would be
	// handed out again.
	if err := disk.WriteFile(name, encodeEpoch(life)); err != nil {
		return nil, fmt.Errorf("fence: write epoch %v to %s: it was not begun; make the directory writable, "+
			"with room, and start again: %w", life.Epoch, name, err)
	}
	sender, err := fence.NewSender(life)
	if err != nil {
		return nil, err
	}
	return &Epoch{sender: sender, lock: lock}, nil
}

// readEpoch returns the life in a file, and whether there is a file.
func readEpoch(disk files.FS, name string) (fence.Life, bool, error) {
	text, err := disk.ReadFile(name, maxEpochFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fence.Life{}, false, nil
	case errors.Is(err, files.ErrTooLarge):
		return fence.Life{}, true, fmt.Errorf("fence: %s is %w: %w: %s", name, ErrCorrupt, err, mend)
	case err != nil:
		return fence.Life{}, true, fmt.Errorf("fence: read %s: %w", name, err)
	}
	life, why := decodeEpoch(text)
	if why != "" {
		return fence.Life{}, true, fmt.Errorf("fence: %s is %w, it has %s: %s", name, ErrCorrupt, why, mend)
	}
	return life, true, nil
}

// next decides which life begins after the last one.
func (o EpochOptions) next(name string, last fence.Life) (fence.Life, error) {
	// The grant of the file was verified when it was new: a start with it needs no key.
	grantText := last.Grant
	if o.Grant != "" && o.Grant != last.Grant {
		grantText = o.Grant // the same grant, signed with a newer key, is the one to show
		grant, err := o.grant()
		switch {
		case err != nil:
			return fence.Life{}, err
		case grant.Number < last.Epoch.Grant():
			return fence.Life{}, fmt.Errorf("fence: grant %d is older than that of %s, which is %d: "+
				"ask the coordinator for a new one: %w", grant.Number, name, last.Epoch.Grant(), ErrSuperseded)
		case grant.Number > last.Epoch.Grant():
			return o.under()
		}
	}
	epoch, err := last.Epoch.Next()
	if err != nil {
		return fence.Life{}, fmt.Errorf("%s: %w", name, err)
	}
	lineage := append(last.Lineage[:len(last.Lineage):len(last.Lineage)], last.Incarnation)
	// The newest are kept. A receiver that saw this holder longer ago wants a new grant.
	lineage = lineage[max(0, len(lineage)-signed.MaxLineage):]
	return fence.Life{Epoch: epoch, Incarnation: o.incarnation, Lineage: lineage, Grant: grantText}, nil
}

// under returns the first life under the grant.
func (o EpochOptions) under() (fence.Life, error) {
	grant, err := o.grant()
	if err != nil {
		return fence.Life{}, err
	}
	return fence.Life{Epoch: fence.NewEpoch(grant.Number, 1), Incarnation: o.incarnation, Grant: o.Grant}, nil
}

// grant opens the grant that the epoch is to begin under.
func (o EpochOptions) grant() (fence.Grant, error) {
	verified, err := o.Authority.OpenGrant(o.Grant)
	if err != nil {
		return fence.Grant{}, err
	}
	grant, _ := verified.Get()
	if grant.Holder != o.Holder {
		return fence.Grant{}, fmt.Errorf("fence: grant %d is of holder %q, want %q: %w", grant.Number, grant.Holder,
			o.Holder, fence.ErrUntrusted)
	}
	return grant, nil
}
