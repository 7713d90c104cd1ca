package keyring

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapLockedPage maps a page between two that nobody can touch, so that running
// over an end of it stops the process instead of reading secrets. It is never
// unmapped.
func mapLockedPage() (page []byte, problem error) {
	size := os.Getpagesize()
	all, err := unix.Mmap(-1, 0, 3*size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map a page: %w", err)
	}
	page = all[size : 2*size : 2*size]
	if err := unix.Mprotect(page, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, errors.Join(fmt.Errorf("map a page: %w", err), unix.Munmap(all))
	}
	var problems []error
	if err := unix.Mlock(page); err != nil {
		problems = append(problems, fmt.Errorf("lock a page: %w: raise RLIMIT_MEMLOCK (LimitMEMLOCK= in a unit of systemd)", err))
	}
	if err := unix.Madvise(page, unix.MADV_DONTDUMP); err != nil {
		problems = append(problems, fmt.Errorf("keep a page out of core dumps: %w", err))
	}
	if err := unix.Madvise(page, unix.MADV_WIPEONFORK); err != nil {
		problems = append(problems, fmt.Errorf("keep a page from child processes: %w", err))
	}
	return page, errors.Join(problems...)
}
