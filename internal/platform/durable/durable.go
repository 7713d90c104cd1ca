// Package durable keeps files that survive a power cut: small ones that are replaced whole,
// and logs that grow at their end.
//
// The promises for a file written with [FS.WriteFile]:
//
//   - After it returned nil, the new content survives a crash of the process, of
//     the system and of the power.
//   - Whenever it is interrupted or fails, a reader finds the old content or the
//     new one, whole. There is no instant at which the file is missing, empty or
//     torn, and no error at which the old content is lost.
//   - An fsync that failed is never tried again on the same file: the kernel may
//     have dropped the pages and report success for nothing. The next write
//     starts from a new file.
//
// A file that [FS.WriteLog] made is promised the same, and grows afterwards: what was
// appended survives once [File.Sync] returned nil. After any other answer of Write or Sync
// nobody knows what of it is on the disk; the log is written anew, never synced again.
//
// The order of the steps is the argument: create a temporary file in the same
// directory, write, fsync, close, rename, fsync the directory. A crash leaves a
// temporary file behind, which the next write to the directory, or the next
// [FS.Lock] in it, sweeps.
//
// [Encode] and [Decode] put a small value into a file that shows damage: a line with a name and
// the SHA-256 of all that follows it, then the value as JSON. That guards against a bad disk, and
// not against anybody who can write to it.
//
// The protocol runs over a [Disk], so that package durabletest can cut the power
// between any two steps. That the disk keeps what it acknowledged is assumed.
package durable

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

var (
	// ErrTooLarge is matched when a file is longer than the limit of its reader.
	ErrTooLarge = errors.New("file is larger than its limit")

	// ErrNotRegular is matched when what is to be read is a directory, a pipe or a
	// device.
	ErrNotRegular = errors.New("no regular file")

	// ErrExposed is matched when a secret file can be read by group or others.
	ErrExposed = errors.New("secret file is readable by others")

	// ErrUnknownOutcome is matched when a change was made but the directory could
	// not be synced: readers see the change, and a power cut may undo it. Doing
	// the same call again until it returns nil settles it.
	ErrUnknownOutcome = errors.New("changed, but not known to be durable")

	// ErrLocked is matched by every [*LockedError].
	ErrLocked = errors.New("locked by another process")
)

// LockedError says which lock is held, and by whom.
type LockedError struct {
	Name string // the lock file
	PID  int    // the holder in its own process namespace; 0 if it could not be read
}

func (e *LockedError) Error() string {
	holder := "another process"
	if e.PID != 0 {
		holder = fmt.Sprintf("the process with pid %d", e.PID)
	}
	return fmt.Sprintf("durable: %s is held by %s: stop it first, or use another directory; the lock goes with its process, so do not delete the file", e.Name, holder)
}

// Is reports that a LockedError matches [ErrLocked].
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// FS is the file system as the rest of Fealty sees it: whole files, durable when
// a call returns nil. Its methods may be called concurrently. Missing files and
// directories match [fs.ErrNotExist]; disk errors keep their syscall.Errno.
//
// A directory belongs to one process, which holds a Lock in it. Without that,
// two processes that write one name lose one of the writes, and can get an error
// from it; they never tear the file.
type FS interface {
	// ReadFile returns the content of a regular file of at most limit bytes, or
	// an error that matches ErrTooLarge. The caller owns the bytes.
	ReadFile(name string, limit int64) ([]byte, error)

	// ReadSecret is ReadFile for a file that only its owner may read, or that
	// root gave to this process by a group that it is in, as mounted secrets are:
	// otherwise the error matches ErrExposed and nothing is returned.
	ReadSecret(name string, limit int64) ([]byte, error)

	// WriteFile replaces the file by data with mode 0600, as the package
	// documentation promises. A symbolic link is replaced, not followed. On every
	// error the old content stands, except on one that matches ErrUnknownOutcome.
	WriteFile(name string, data []byte) error

	// WriteLog replaces the file by what fill writes, as WriteFile does, and returns it
	// open: what is written to it later is appended. Errors of fill are returned as they
	// are, and what was there stands.
	WriteLog(name string, fill func(io.Writer) error) (File, error)

	// OpenLog returns the content of a regular file of any length, from its start. The
	// reader of a log bounds what it keeps of it.
	OpenLog(name string) (io.ReadCloser, error)

	// Remove removes a file durably. Of a missing file it makes sure that it
	// stays missing, then answers fs.ErrNotExist.
	Remove(name string) error

	// MkdirAll makes dir and its missing parents with mode 0700, durably. Those
	// that exist keep their mode.
	MkdirAll(dir string) error

	// ReadDir returns the sorted names in dir, without temporary files.
	ReadDir(dir string) ([]string, error)

	// Lock takes the exclusive lock of the file name, made if it is missing, and
	// holds it until the Closer is closed or the process ends, even if the Closer
	// is dropped. If it is taken the error is a *LockedError; Lock does not wait.
	//
	// The holder is the directory's only writer, so Lock settles the directory.
	Lock(name string) (io.Closer, error)

	// Settle sweeps what dead writers left in dir and syncs it: what is read from it
	// afterwards cannot be undone by a power cut, although its writer died before it
	// could sync. A caller that acts on what an earlier process wrote settles it
	// first; only the directory's single writer may.
	Settle(dir string) error
}

// Disk is what the protocol needs of a file system: single steps, of which only
// Sync and SyncDir make anything durable. [OS] has the real one, package
// durabletest one whose power can be cut.
type Disk interface {
	// Read returns the content of a regular file, or ErrTooLarge, and its mode
	// without what lets this process itself read it.
	Read(name string, limit int64) ([]byte, fs.FileMode, error)

	// Open reads a regular file of any length, from its start.
	Open(name string) (io.ReadCloser, error)
	Stat(name string) (fs.FileMode, error)
	List(dir string) ([]string, error)

	// Create makes a file that must not exist, with mode 0600 or that of [Shared].
	Create(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error

	// Mkdir makes one directory with mode 0700 or that of [Shared], or answers
	// fs.ErrExist.
	Mkdir(dir string) error
	SyncDir(dir string) error
	Lock(name string) (io.Closer, error)
}

// File is a file being written, at its end.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

// On returns the FS that runs the protocol over d. Use one for each process and
// disk: it remembers which temporary files are its own.
func On(d Disk) FS { return &protocol{disk: d, own: newTemporaries()} }

type protocol struct {
	disk Disk
	own  *temporaries
}

// temporaries are the temporary files that one process writes to one disk: a sweep
// leaves them alone.
type temporaries struct {
	mu    sync.Mutex
	live  map[string]bool // those being written now; guarded by mu
	swept map[string]bool // directories that were swept; guarded by mu
}

func newTemporaries() *temporaries {
	return &temporaries{live: map[string]bool{}, swept: map[string]bool{}}
}

func (p *protocol) ReadFile(name string, limit int64) ([]byte, error) {
	data, _, err := p.disk.Read(name, limit)
	return data, err
}

func (p *protocol) ReadSecret(name string, limit int64) ([]byte, error) {
	data, mode, err := p.disk.Read(name, limit)
	if err != nil {
		return nil, err
	}
	if mode.Perm()&0o077 != 0 {
		clear(data)
		return nil, fmt.Errorf("durable: %s has mode %04o, want 0600: whoever could read it may know the secret; replace the secret if that matters, then chmod 600 the file: %w", name, mode.Perm(), ErrExposed)
	}
	return data, nil
}

func (p *protocol) WriteFile(name string, data []byte) error {
	_, err := p.write(name, false, func(w io.Writer) error { _, err := w.Write(data); return err })
	return err
}

func (p *protocol) WriteLog(name string, fill func(io.Writer) error) (File, error) {
	return p.write(name, true, fill)
}

func (p *protocol) OpenLog(name string) (io.ReadCloser, error) { return p.disk.Open(name) }

// write replaces a file by what fill writes, and returns it if it is to stay open.
func (p *protocol) write(name string, open bool, fill func(io.Writer) error) (File, error) {
	dir, base := filepath.Split(filepath.Clean(name))
	if dir = filepath.Clean(dir); isTemporary(base) {
		return nil, fmt.Errorf("durable: %s: names that end in .tmp- and 16 hex digits are kept for temporary files",
			name)
	}
	if !p.own.isSwept(dir) {
		p.sweep(dir)
	}

	f, err := p.replace(dir, base, open, fill)
	if errors.Is(err, errVanished) {
		// Another process swept our file, taking it for a leftover. Its sweep is
		// done, and ours starts again from nothing.
		f, err = p.replace(dir, base, open, fill)
	}
	switch {
	case err == nil, errors.Is(err, ErrUnknownOutcome):
		return f, err
	default:
		return nil, fmt.Errorf("durable: %s not written, what was there stands: %w", name, err)
	}
}

var errVanished = errors.New("temporary file vanished: another process writes to this directory")

// replace makes one attempt. Every error but ErrUnknownOutcome comes before the
// rename, so that the old file stands. A file that is to stay open is returned, unless
// there is an error.
func (p *protocol) replace(dir, base string, open bool, fill func(io.Writer) error) (_ File, err error) {
	var suffix [8]byte
	rand.Read(suffix[:])
	temp := filepath.Join(dir, "."+base+temporaryMark+hex.EncodeToString(suffix[:]))

	// Registered before it exists: a sweep that sees it knows that it is alive.
	p.own.setLive(temp, true)
	defer p.own.setLive(temp, false)

	f, err := p.disk.Create(temp)
	if err != nil {
		return nil, err
	}
	closed := false
	end := func() {
		if closed {
			return
		}
		closed = true
		// Close reports what a network file system found out last.
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if !open || err != nil {
		end()
	}
	if err == nil {
		err = p.disk.Rename(temp, filepath.Join(dir, base))
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.Join(errVanished, err)
		}
	}
	if err != nil {
		end()
		p.disk.Remove(temp) // if this fails too, the next sweep has it
		return nil, err
	}
	if err := p.disk.SyncDir(dir); err != nil {
		end()
		return nil, fmt.Errorf("durable: %s was replaced, but its directory could not be synced and a power cut may bring back what was there: %w: %w", filepath.Join(dir, base), ErrUnknownOutcome, err)
	}
	return f, nil
}

func (p *protocol) Remove(name string) error {
	removeErr := p.disk.Remove(name)
	if removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
		return removeErr
	}
	// Synced although the file is missing: an earlier Remove may have failed
	// exactly here, and its caller asks again.
	err := p.disk.SyncDir(filepath.Dir(name))
	switch {
	case errors.Is(err, fs.ErrNotExist) && removeErr != nil:
		return removeErr // the directory is missing too
	case err != nil:
		return fmt.Errorf("durable: %s was removed, but its directory could not be synced and a power cut may bring it back: %w: %w", name, ErrUnknownOutcome, err)
	}
	return removeErr
}

func (p *protocol) MkdirAll(dir string) error {
	dir = filepath.Clean(dir)
	parent := filepath.Dir(dir)
	if parent == dir {
		return nil // root, or the working directory
	}
	mode, err := p.disk.Stat(dir)
	switch {
	case err == nil && !mode.IsDir():
		return fmt.Errorf("durable: %s exists and is no directory", dir)
	case err == nil:
		// Synced although it exists: an earlier MkdirAll may have been killed
		// before it could. Parents are made and synced one by one, so only the
		// deepest one that exists can be unsynced. One whose parent we may not
		// open was not ours to make.
		err := p.disk.SyncDir(parent)
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := p.MkdirAll(parent); err != nil {
		return err
	}
	if err := p.disk.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return p.disk.SyncDir(parent)
}

func (p *protocol) ReadDir(dir string) ([]string, error) {
	names, err := p.disk.List(dir)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, isTemporary)
	slices.Sort(names)
	return names, nil
}

func (p *protocol) Lock(name string) (io.Closer, error) {
	lock, err := p.disk.Lock(name)
	if err != nil {
		return nil, err
	}
	if err := p.Settle(filepath.Dir(name)); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

func (p *protocol) Settle(dir string) error {
	dir = filepath.Clean(dir)
	p.sweep(dir)
	if err := p.disk.SyncDir(dir); err != nil {
		return fmt.Errorf("durable: %s: directory could not be synced, so what it holds is not known to last: %w", dir, err)
	}
	return nil
}

// sweep removes temporary files that nobody in this process is writing. Errors
// are left to the next sweep, because a leftover is never read.
func (p *protocol) sweep(dir string) {
	names, err := p.disk.List(dir)
	if err != nil {
		return
	}
	clean := true
	for _, base := range names {
		name := filepath.Join(dir, base)
		if !isTemporary(base) || p.own.isLive(name) {
			continue
		}
		if err := p.disk.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			clean = false
		}
	}
	p.own.setSwept(dir, clean)
}

func (t *temporaries) setSwept(dir string, swept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.swept[absolute(dir)] = swept
}

func (t *temporaries) isSwept(dir string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.swept[absolute(dir)]
}

func (t *temporaries) setLive(name string, live bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if live {
		t.live[absolute(name)] = true
	} else {
		delete(t.live, absolute(name))
	}
}

func (t *temporaries) isLive(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[absolute(name)]
}

// absolute gives a file that is named in two ways one name.
func absolute(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return filepath.Clean(name)
}

// temporaryMark stands between a file's name and the 16 random hex digits of the
// temporary file that will replace it: .NAME.tmp-0123456789abcdef
const temporaryMark = ".tmp-"

func isTemporary(base string) bool {
	i := strings.LastIndex(base, temporaryMark)
	if i < 0 || !strings.HasPrefix(base, ".") {
		return false
	}
	digits := base[i+len(temporaryMark):]
	return len(digits) == 16 && strings.Trim(digits, "0123456789abcdef") == ""
}
