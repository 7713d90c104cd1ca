//go:build !linux

package sqlite

// checkFilesystem trusts that dir is on a local disk: there is no common way to ask.
func checkFilesystem(string) error { return nil }

// readOnlyDisk does not know: there is no common way to ask.
func readOnlyDisk(string) bool { return false }
