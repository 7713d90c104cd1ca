package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Dir is a tree in a directory of this machine. Nothing outside of it is read,
// whatever links lead there.
type Dir struct{ path string }

// NewDir returns the source that reads the tree at path, which is absolute.
func NewDir(path string) (*Dir, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("mirror: %q is not an absolute path", path)
	}
	return &Dir{filepath.Clean(path)}, nil
}

func (d *Dir) String() string { return d.path }

// Get implements [Source]. The directory is opened each time: it may be replaced by
// a newer copy as a whole.
func (d *Dir) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, &Error{Reason: Slow, Name: name, Detail: "there was no time left for it", Err: err}
	}
	unreachable := func(err error) error {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		return &Error{Reason: Unreachable, Name: name, Detail: "it cannot be read", Err: err}
	}
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return nil, unreachable(err)
	}
	defer root.Close()
	// Non-blocking: a pipe in the place of a file would wait for its writer.
	f, err := root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, unreachable(err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, unreachable(err)
	case !info.Mode().IsRegular():
		return nil, &Error{Reason: Malformed, Name: name, Detail: "it is no regular file"}
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, unreachable(err)
	}
	if int64(len(data)) > limit {
		return nil, tooLarge(name, limit)
	}
	return data, nil
}

func tooLarge(name string, limit int64) error {
	return &Error{Reason: TooLarge, Name: name, Detail: fmt.Sprintf("it has more than %d bytes", limit)}
}
