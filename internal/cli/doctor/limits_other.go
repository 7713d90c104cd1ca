//go:build !linux

package doctor

import "errors"

var errNotHere = errors.New("it cannot be read on this system")

func FreeSpace(string) (uint64, error) { return 0, errNotHere }

func ResourceLimit(string) (uint64, error) { return 0, errNotHere }
