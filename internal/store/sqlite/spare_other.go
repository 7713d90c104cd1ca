//go:build !linux

package sqlite

import "os"

// allocate has the file system set space aside for all of f.
func allocate(f *os.File, bytes int64) error { return write(f, bytes) }
