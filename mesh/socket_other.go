//go:build !unix

package mesh

// maxFiles is how many files the process may have open; 0: the system does not say.
func maxFiles() int { return 0 }
