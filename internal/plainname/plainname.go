// Package plainname says what may name a tenant, a profile, a provider or a machine: what a fence,
// a log line and a label of a metric all take.
package plainname

import "fmt"

// MaxBytes bounds a name.
const MaxBytes = 128

// Problem says what is wrong with a name, or "": want 1 to [MaxBytes] bytes of printable ASCII
// without blanks.
func Problem(name string) string {
	switch {
	case name == "":
		return "is missing"
	case len(name) > MaxBytes:
		return fmt.Sprintf("has %d bytes, above %d", len(name), MaxBytes)
	}
	for i := range len(name) {
		if name[i] <= ' ' || name[i] > '~' {
			return fmt.Sprintf("is %.*q, want printable ASCII without blanks", MaxBytes, name)
		}
	}
	return ""
}
