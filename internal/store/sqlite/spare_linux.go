package sqlite

import (
	"errors"
	"os"
	"syscall"
)

// allocate has the file system set space aside for all of f.
func allocate(f *os.File, bytes int64) error {
	err := syscall.Fallocate(int(f.Fd()), 0, 0, bytes)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return write(f, bytes)
	}
	return err
}
