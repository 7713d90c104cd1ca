//go:build !linux

package localsocket

// maxPath is the least size of sun_path among the systems we build for, less its terminating zero.
const maxPath = 103
