package credential

import (
	"io/fs"
	"syscall"
)

// stampOf includes the inode, which a swapped symlink changes, and its time of
// change, which nobody can set back.
func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), mtime: info.ModTime().UnixNano()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.ctime, s.device, s.inode = sys.Ctim.Nano(), uint64(sys.Dev), sys.Ino
	}
	return s
}
