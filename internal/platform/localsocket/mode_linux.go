package localsocket

import (
	"io/fs"
	"syscall"
)

// setMode sets the mode of a socket that is not bound yet: on Linux the file that bind(2) makes gets it, less the umask.
// So nobody can open it before, and the umask, which all threads share, stays as it is.
func setMode(fd int, mode fs.FileMode) { _ = syscall.Fchmod(fd, uint32(mode)) } // the mode is set again by path
