//go:build !linux

package sdnotify

import (
	"errors"
	"time"
)

func monotonic() (time.Duration, error) { return 0, errors.ErrUnsupported }
