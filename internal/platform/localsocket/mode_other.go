//go:build !linux

package localsocket

import "io/fs"

// setMode does nothing: these systems know the mode of a socket only once it is bound. Who connects in between is asked
// for its user like everybody else.
func setMode(int, fs.FileMode) {}
