package keyring

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Harden keeps the memory of this process, which holds secrets, out of core dumps
// and from tracers of the same user. A measure that fails leaves the rest in force.
func Harden() error {
	var errs []error
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		errs = append(errs, fmt.Errorf("switch off tracing: %w", err))
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		errs = append(errs, fmt.Errorf("switch off core dumps: %w", err))
	}
	return errors.Join(errs...)
}
