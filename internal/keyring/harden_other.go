//go:build !linux

package keyring

// Harden does nothing here.
func Harden() error { return nil }
