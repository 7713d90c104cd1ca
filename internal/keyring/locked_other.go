//go:build !linux

package keyring

import "errors"

func mapLockedPage() ([]byte, error) {
	return nil, errors.New("locking memory is for Linux only in this program")
}
