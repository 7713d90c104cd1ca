//go:build unix

package logging

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// leadsNowhere reports whether a stream was closed when the process started. Go opens /dev/null in the place of a
// standard stream that is closed, for reading and writing, so that no file gets its number and is written to. Who
// sends a stream to /dev/null on purpose mostly opens it for writing alone, as a shell does.
func leadsNowhere(to io.Writer) bool {
	f, ok := to.(*os.File)
	if !ok {
		return false
	}
	is, err := f.Stat()
	if err != nil {
		return false
	}
	null, err := os.Stat(os.DevNull)
	if err != nil || !os.SameFile(is, null) {
		return false
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDWR
}
