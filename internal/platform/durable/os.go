package durable

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"syscall"
)

// OS returns the file system of the operating system.
func OS() FS { return (*Locks)(nil).OS() }

// Shared is OS for files that others serve: the group may read what is made, mode 0640
// for files and 0750 for directories.
func Shared() FS { return &protocol{osDisk{file: 0o640, dir: 0o750}, ofProcess} }

// Public is OS for files that everybody may read: mode 0644 for files and 0755 for directories,
// less what the process's umask takes.
func Public() FS { return &protocol{osDisk{file: 0o644, dir: 0o755}, ofProcess} }

// ofProcess is one for all: of two that did not know of each other, one would sweep what
// the other is writing.
var ofProcess = newTemporaries()

type osDisk struct {
	file, dir fs.FileMode // modes of what is made
	locks     *Locks      // among which those are that it takes
}

func (osDisk) Read(name string, limit int64) ([]byte, fs.FileMode, error) {
	f, info, err := openRegular(name)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	// The limit holds for what is read, since the file can grow after the Stat.
	data, err := io.ReadAll(io.LimitReader(f, min(limit, math.MaxInt64-1)+1))
	if err != nil {
		return nil, 0, err
	}
	if int64(len(data)) > limit {
		clear(data)
		return nil, 0, fmt.Errorf("durable: %s has more than %d bytes: %w", name, limit, ErrTooLarge)
	}
	mode := info.Mode()
	if givenByGroup(info) {
		mode &^= 0o040
	}
	return data, mode, nil
}

// givenByGroup reports whether a file is root's, and this process, which is another user, may read it by its
// group and not write it: root gave it to the group for that, and can read what is ours anyway. A secret that Kubernetes
// mounts is such a file, root:fsGroup 0440, and nobody in the pod can change that. Of a file that is our own
// the group is refused: there is somebody who could take it away from the group. That others are in the group is
// root's decision; that the group may write is none to believe, as somebody in it could put another secret there.
func givenByGroup(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 || os.Geteuid() == 0 || info.Mode().Perm()&0o020 != 0 {
		return false
	}
	groups, err := os.Getgroups()
	return err == nil && slices.Contains(append(groups, os.Getegid()), int(stat.Gid))
}

func (osDisk) Open(name string) (io.ReadCloser, error) {
	f, _, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func openRegular(name string) (*os.File, fs.FileInfo, error) {
	// Non-blocking, because opening a named pipe would otherwise wait for a
	// writer for ever. It means nothing for a regular file.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("durable: %s is %w but %v", name, ErrNotRegular, info.Mode())
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func (osDisk) Stat(name string) (fs.FileMode, error) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Mode(), nil
}

func (osDisk) List(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func (d osDisk) Create(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, d.file)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (osDisk) Rename(from, to string) error          { return os.Rename(from, to) }
func (osDisk) Remove(name string) error              { return os.Remove(name) }
func (d osDisk) Mkdir(dir string) error              { return os.Mkdir(dir, d.dir) }
func (d osDisk) Lock(name string) (io.Closer, error) { return lockFile(name, d.locks) }

func (osDisk) SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
