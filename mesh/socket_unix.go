//go:build unix

package mesh

import "golang.org/x/sys/unix"

// maxFiles is how many files the process may have open; 0: the system does not say.
func maxFiles() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<30))
}
