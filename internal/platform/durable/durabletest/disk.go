// Package durabletest has a disk in memory whose power can be cut.
//
// Everything on it has a volatile half, which running processes see, and a
// durable half, which a power cut leaves: Sync copies the bytes of one file from
// the first to the second, SyncDir the names in one directory, and nothing else
// does. [Disk.FailAt] makes one mutating call fail, so that a test can walk all
// of them:
//
//	for n := 1; ; n++ {
//		disk := NewDisk()
//		// … the state before, through disk.FS() …
//		disk.FailAt(n, ErrPowerCut)
//		// … the operation under test …
//		if !disk.Failed() {
//			break // it has fewer than n calls
//		}
//		disk.Restart(mode)
//		// … what disk.FS() shows now …
//	}
package durabletest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

// ErrPowerCut, given to [Disk.FailAt], stops the machine before the call has any
// effect (of a Write the first half may arrive). That call and every later one
// return it, until [Disk.Restart].
var ErrPowerCut = errors.New("durabletest: power cut")

// After is what a disk holds after the power came back. Real file systems write
// names and bytes in an order of their own, so a test should try all of [Afters].
type After int

const (
	// Killed: only the process died. Nothing is lost.
	Killed After = iota

	// Synced: only what was synced is left.
	Synced

	// NamesFirst: names made it to the disk unsynced, bytes did not. A file that
	// was renamed before its bytes were synced is empty.
	NamesFirst

	// Torn: names made it unsynced, and of unsynced bytes the first half. The bytes of
	// a file that were synced before it grew are there.
	Torn
)

// Afters returns every way in which a disk can come back.
func Afters() []After { return []After{Killed, Synced, NamesFirst, Torn} }

func (a After) String() string {
	return [...]string{"killed", "synced", "names first", "torn"}[a]
}

// Disk is a [durable.Disk] in memory. Names are resolved from its root, whether
// or not they start with a slash.
type Disk struct {
	mu     sync.Mutex
	life   int // counts restarts, so that old files and locks are known
	root   *node
	locks  map[string]int // lock files held, and in which life
	calls  int
	failAt int
	fault  error
	failed bool
	dead   bool
	refuse error // of every mutating call; nil: they succeed
}

// node is a file or a directory with its two halves.
type node struct {
	dir  bool
	mode fs.FileMode

	// A file only grows, so that its durable half is the beginning of the volatile one.
	volatile, durable []byte
	dropped           bool // an fsync failed: later ones succeed and do nothing

	names, durableNames map[string]*node
}

func newDir() *node {
	return &node{dir: true, mode: fs.ModeDir | 0o700, names: map[string]*node{}, durableNames: map[string]*node{}}
}

// NewDisk returns an empty disk.
func NewDisk() *Disk { return &Disk{root: newDir(), locks: map[string]int{}} }

// FS returns the disk as a new process sees it. Ask again after a Restart.
func (d *Disk) FS() durable.FS { return durable.On(d) }

// FailAt makes the nth mutating call from now (the first is 1) fail with err,
// without effect, and those after it succeed; [ErrPowerCut] fails those too. Use a
// syscall.Errno for a disk error. A failing Sync of a file loses its unsynced
// bytes for good, whatever later Syncs answer: Linux does that.
func (d *Disk) FailAt(n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls, d.failAt, d.fault, d.failed = 0, n, err, false
}

// Refuse makes every mutating call fail with err from now on, without effect, as those of
// a disk that is full or was made read-only; nil ends that. Files that can be read still
// can.
func (d *Disk) Refuse(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = err
}

// Failed reports whether the call armed with FailAt came.
func (d *Disk) Failed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// Calls counts the mutating calls since the last FailAt.
func (d *Disk) Calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// Chmod changes the mode of a file, as an operator would. It panics if the file
// is missing.
func (d *Disk) Chmod(name string, mode fs.FileMode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.find("chmod", name)
	if err != nil {
		panic(err)
	}
	n.mode = mode
}

// Put writes a file durably and at once, as if it had always been there, making
// its directories. It is no mutating call.
func (d *Disk) Put(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dir, base := split(name)
	at := d.root
	for _, part := range parts(dir) {
		if at.names[part] == nil {
			at.names[part] = newDir()
		}
		at.durableNames[part] = at.names[part]
		at = at.names[part]
	}
	at.names[base] = &node{mode: 0o600, volatile: slices.Clone(data), durable: slices.Clone(data)}
	at.durableNames[base] = at.names[base]
}

// Restart ends every process that used the disk, releasing locks and files, and
// leaves on the disk what after says.
func (d *Disk) Restart(after After) {
	switch after {
	case Killed:
		d.restart(func(root *node) *node { return root })
	case Synced:
		d.RestartWith(false, func(string, []byte) []byte { return nil })
	case NamesFirst:
		d.RestartWith(true, func(string, []byte) []byte { return nil })
	case Torn:
		d.RestartWith(true, func(_ string, unsynced []byte) []byte { return unsynced[:len(unsynced)/2] })
	}
}

// RestartWith is Restart with what left says of the bytes of each file that were written
// and not synced: what is there in their place. The synced ones before them are there, and
// of names all that were made if names, otherwise those that were synced.
func (d *Disk) RestartWith(names bool, left func(name string, unsynced []byte) []byte) {
	d.restart(func(root *node) *node { return survivor("/", root, names, left) })
}

func (d *Disk) restart(left func(root *node) *node) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life++
	d.locks = map[string]int{}
	d.calls, d.failAt, d.fault, d.failed, d.dead, d.refuse = 0, 0, nil, false, false, nil
	d.root = left(d.root)
}

func survivor(name string, n *node, names bool, left func(string, []byte) []byte) *node {
	if !n.dir {
		is := slices.Clone(n.durable)
		if unsynced := n.volatile[len(n.durable):]; len(unsynced) > 0 {
			is = append(is, left(name, slices.Clone(unsynced))...)
		}
		return &node{mode: n.mode, volatile: is, durable: slices.Clone(is)}
	}
	children := n.durableNames
	if names {
		children = n.names
	}
	out := newDir()
	out.mode = n.mode
	for base, child := range children {
		out.names[base] = survivor(filepath.Join(name, base), child, names, left)
	}
	out.durableNames = maps.Clone(out.names)
	return out
}

// mutate counts a mutating call and says whether it fails.
func (d *Disk) mutate(op, name string) error {
	if d.dead {
		return &fs.PathError{Op: op, Path: name, Err: ErrPowerCut}
	}
	d.calls++
	if d.refuse != nil {
		return &fs.PathError{Op: op, Path: name, Err: d.refuse}
	}
	if d.calls != d.failAt {
		return nil
	}
	d.failed = true
	d.dead = errors.Is(d.fault, ErrPowerCut)
	return &fs.PathError{Op: op, Path: name, Err: d.fault}
}

func (d *Disk) alive(op, name string) error {
	if d.dead {
		return &fs.PathError{Op: op, Path: name, Err: ErrPowerCut}
	}
	return nil
}

func split(name string) (dir, base string) {
	name = filepath.Join("/", name)
	return filepath.Dir(name), filepath.Base(name)
}

// parts returns the names on the way to a cleaned path from the root, of which there are none
// to the root itself.
func parts(dir string) []string {
	if dir == "/" {
		return nil
	}
	return strings.Split(dir[1:], "/")
}

func (d *Disk) find(op, name string) (*node, error) {
	at := d.root
	for _, part := range parts(filepath.Join("/", name)) {
		if !at.dir {
			return nil, &fs.PathError{Op: op, Path: name, Err: syscall.ENOTDIR}
		}
		if at = at.names[part]; at == nil {
			return nil, &fs.PathError{Op: op, Path: name, Err: syscall.ENOENT}
		}
	}
	return at, nil
}

func (d *Disk) findDir(op, name string) (*node, error) {
	n, err := d.find(op, name)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, &fs.PathError{Op: op, Path: name, Err: syscall.ENOTDIR}
	}
	return n, nil
}

// Read implements [durable.Disk].
func (d *Disk) Read(name string, limit int64) ([]byte, fs.FileMode, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.alive("read", name); err != nil {
		return nil, 0, err
	}
	n, err := d.find("read", name)
	if err != nil {
		return nil, 0, err
	}
	if n.dir {
		return nil, 0, &fs.PathError{Op: "read", Path: name, Err: syscall.EISDIR}
	}
	if int64(len(n.volatile)) > limit {
		return nil, 0, fmt.Errorf("durabletest: %s has more than %d bytes: %w", name, limit, durable.ErrTooLarge)
	}
	return slices.Clone(n.volatile), n.mode, nil
}

// Open implements [durable.Disk].
func (d *Disk) Open(name string) (io.ReadCloser, error) {
	data, _, err := d.Read(name, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// Stat implements [durable.Disk].
func (d *Disk) Stat(name string) (fs.FileMode, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.alive("stat", name); err != nil {
		return 0, err
	}
	n, err := d.find("stat", name)
	if err != nil {
		return 0, err
	}
	return n.mode, nil
}

// List implements [durable.Disk].
func (d *Disk) List(dir string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.alive("list", dir); err != nil {
		return nil, err
	}
	n, err := d.findDir("list", dir)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(n.names)), nil
}

// Create implements [durable.Disk].
func (d *Disk) Create(name string) (durable.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mutate("create", name); err != nil {
		return nil, err
	}
	dir, base := split(name)
	parent, err := d.findDir("create", dir)
	if err != nil {
		return nil, err
	}
	if parent.names[base] != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: syscall.EEXIST}
	}
	n := &node{mode: 0o600}
	parent.names[base] = n
	return &file{disk: d, life: d.life, name: name, node: n}, nil
}

type file struct {
	disk *Disk
	life int
	name string
	node *node
}

// mutate refuses files opened before a restart.
func (f *file) mutate(op string) error {
	if f.life != f.disk.life {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	return f.disk.mutate(op, f.name)
}

// Write of a failing disk has written the first half: a full disk does that.
func (f *file) Write(p []byte) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.mutate("write"); err != nil {
		if f.life == f.disk.life {
			f.node.volatile = append(f.node.volatile, p[:len(p)/2]...)
		}
		return len(p) / 2, err
	}
	f.node.volatile = append(f.node.volatile, p...)
	return len(p), nil
}

func (f *file) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.mutate("sync"); err != nil {
		f.node.dropped = true
		return err
	}
	if !f.node.dropped {
		f.node.durable = slices.Clone(f.node.volatile)
	}
	return nil
}

func (f *file) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.mutate("close")
}

// Rename implements [durable.Disk].
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mutate("rename", from); err != nil {
		return err
	}
	n, err := d.find("rename", from)
	if err != nil {
		return err
	}
	fromDir, fromBase := split(from)
	toDir, toBase := split(to)
	target, err := d.findDir("rename", toDir)
	if err != nil {
		return err
	}
	if old := target.names[toBase]; old != nil && old.dir {
		return &fs.PathError{Op: "rename", Path: to, Err: syscall.EISDIR}
	}
	source, err := d.findDir("rename", fromDir)
	if err != nil {
		return err
	}
	delete(source.names, fromBase)
	target.names[toBase] = n
	return nil
}

// Remove implements [durable.Disk].
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mutate("remove", name); err != nil {
		return err
	}
	n, err := d.find("remove", name)
	if err != nil {
		return err
	}
	if n.dir && len(n.names) > 0 {
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.ENOTEMPTY}
	}
	dir, base := split(name)
	parent, err := d.findDir("remove", dir)
	if err != nil {
		return err
	}
	delete(parent.names, base)
	return nil
}

// Mkdir implements [durable.Disk].
func (d *Disk) Mkdir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Looked up first, as Linux does: that a directory exists is no mutation.
	if _, err := d.find("mkdir", name); err == nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.EEXIST}
	}
	if err := d.mutate("mkdir", name); err != nil {
		return err
	}
	dir, base := split(name)
	parent, err := d.findDir("mkdir", dir)
	if err != nil {
		return err
	}
	parent.names[base] = newDir()
	return nil
}

// SyncDir implements [durable.Disk].
func (d *Disk) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mutate("sync", dir); err != nil {
		return err
	}
	n, err := d.findDir("sync", dir)
	if err != nil {
		return err
	}
	n.durableNames = maps.Clone(n.names)
	return nil
}

// Lock implements [durable.Disk].
func (d *Disk) Lock(name string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.alive("lock", name); err != nil {
		return nil, err
	}
	dir, base := split(name)
	parent, err := d.findDir("lock", dir)
	if err != nil {
		return nil, err
	}
	key := filepath.Join(dir, base)
	if _, held := d.locks[key]; held {
		return nil, &durable.LockedError{Name: name, PID: os.Getpid()}
	}
	if parent.names[base] == nil {
		if err := d.mutate("lock", name); err != nil {
			return nil, err
		}
		parent.names[base] = &node{mode: 0o600}
	}
	d.locks[key] = d.life
	return &lock{disk: d, key: key, life: d.life}, nil
}

type lock struct {
	disk   *Disk
	key    string
	life   int
	closed bool // guarded by disk.mu
}

func (l *lock) Close() error {
	l.disk.mu.Lock()
	defer l.disk.mu.Unlock()
	if !l.closed && l.disk.life == l.life {
		delete(l.disk.locks, l.key)
	}
	l.closed = true
	return nil
}
