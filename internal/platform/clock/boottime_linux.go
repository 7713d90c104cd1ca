package clock

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SystemBootClock reads CLOCK_BOOTTIME, which goes on in suspend.
func SystemBootClock() BootClock {
	// It cannot change while this process lives.
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	boot := strings.TrimSpace(string(id))
	return func() (string, time.Duration) {
		var t unix.Timespec
		if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
			return "", 0
		}
		return boot, time.Duration(t.Nano())
	}
}
