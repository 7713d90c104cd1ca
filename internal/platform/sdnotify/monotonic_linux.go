package sdnotify

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic returns the time of CLOCK_MONOTONIC, by which systemd tells one reload from the one before.
func monotonic() (time.Duration, error) {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		return 0, err
	}
	return time.Duration(at.Nano()), nil
}
