package doctor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FreeSpace returns the bytes that this user can still write at path.
func FreeSpace(path string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// ResourceLimit returns a limit of this process by its name: "files" or "memlock".
func ResourceLimit(which string) (uint64, error) {
	var l unix.Rlimit
	resource, ok := map[string]int{"files": unix.RLIMIT_NOFILE, "memlock": unix.RLIMIT_MEMLOCK}[which]
	if !ok {
		return 0, fmt.Errorf("there is no limit called %s", which)
	}
	err := unix.Getrlimit(resource, &l)
	return l.Cur, err
}
