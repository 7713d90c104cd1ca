package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/fealty-io/fealty/fence"
	files "github.com/fealty-io/fealty/internal/platform/durable"
)

const (
	termFile    = "term"
	termLock    = "term.lock"
	maxTermFile = 1 << 10
)

// Term is [fence.Term] on disk: after a restart a deposed leader is still refused. It may
// be used by several goroutines.
type Term struct {
	disk files.FS
	name string
	lock io.Closer

	// saving is held while a higher term is written; mark is read without it.
	saving sync.Mutex
	mu     sync.Mutex
	mark   int64 // guarded by mu; at most what is on disk
	seen   int64 // guarded by mu; heard of, and perhaps not on disk
	closed bool  // guarded by mu
}

// EnrolTerm begins with a member that never heard of a term: it happens once, when the
// member joins. With a file there it is an error that matches [ErrEnrolled], also when that
// was interrupted; [OpenTerm] goes on from there.
func EnrolTerm(dir string) (*Term, error) { return openTerm(files.OS(), dir, true) }

// OpenTerm returns the term in a directory that exists, and holds it until [Term.Close] or
// the end of the process. The errors match [ErrLocked], [ErrMissing] or [ErrCorrupt], or
// are those of the disk: a member that forgot its term would obey a leader that was deposed.
func OpenTerm(dir string) (*Term, error) { return openTerm(files.OS(), dir, false) }

func openTerm(disk files.FS, dir string, enrol bool) (_ *Term, err error) {
	lock, err := disk.Lock(filepath.Join(dir, termLock))
	if err != nil {
		return nil, fmt.Errorf("fence: open the term in %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	t := &Term{disk: disk, name: filepath.Join(dir, termFile), lock: lock}
	const mend = "put its last copy back, or join again, which asks the coordinators for their term"
	text, err := disk.ReadFile(t.name, maxTermFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && enrol:
		if err := t.save(0); err != nil {
			return nil, err
		}
		return t, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("fence: %s is missing: %s: %w", t.name, mend, ErrMissing)
	case errors.Is(err, files.ErrTooLarge):
		return nil, fmt.Errorf("fence: %s is %w: %w: %s", t.name, ErrCorrupt, err, mend)
	case err != nil:
		return nil, fmt.Errorf("fence: read %s: %w", t.name, err)
	}
	if enrol {
		return nil, fmt.Errorf("fence: enrol in %s: %w", t.name, ErrEnrolled)
	}
	mark, why := decodeTerm(text)
	if why != "" {
		return nil, fmt.Errorf("fence: %s is %w, it has %s: %s", t.name, ErrCorrupt, why, mend)
	}
	t.mark, t.seen = mark, mark
	return t, nil
}

// Check is [fence.Term.Check], and a higher term is on disk before it passes. An error of
// the disk means that it was not believed, and may be checked again; no lower one passes
// meanwhile. After Close it is [fs.ErrClosed].
func (t *Term) Check(term int64) error {
	if done, err := t.look(term); done {
		return err
	}
	t.saving.Lock()
	defer t.saving.Unlock()
	if done, err := t.look(term); done {
		return err // another call saved it meanwhile
	}
	if err := t.save(term); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mark = term
	return nil
}

// look decides, unless the term has to be saved first.
func (t *Term) look(term int64) (done bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return true, fmt.Errorf("fence: term %d was not looked at in %s: %w", term, t.name, fs.ErrClosed)
	case term < 1 || term < t.seen:
		return true, &fence.StaleTermError{Got: term, Mark: t.seen}
	}
	t.seen = term
	return term == t.mark, nil
}

func (t *Term) save(term int64) error {
	if err := t.disk.WriteFile(t.name, encodeTerm(term)); err != nil {
		return fmt.Errorf("fence: write term %d to %s: its orders are not obeyed until it is written: %w", term, t.name, err)
	}
	return nil
}

// Mark returns the highest term that is on disk; 0 if none is.
func (t *Term) Mark() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mark
}

// Close gives the directory back, once no term is being saved.
func (t *Term) Close() error {
	t.saving.Lock()
	defer t.saving.Unlock()
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	return t.lock.Close()
}
