//go:build !linux

package cli

import "errors"

var errNotHere = errors.New("it cannot be read on this system")

func freeSpace(string) (uint64, error) { return 0, errNotHere }

func resourceLimit(string) (uint64, error) { return 0, errNotHere }
