package document

import "fmt"

// MaxNameBytes bounds a name.
const MaxNameBytes = 128

// NameProblem says what is wrong with a name, or "": want 1 to [MaxNameBytes] bytes of printable ASCII
// without blanks.
func NameProblem(name string) string {
	switch {
	case name == "":
		return "is missing"
	case len(name) > MaxNameBytes:
		return fmt.Sprintf("has %d bytes, above %d", len(name), MaxNameBytes)
	}
	for i := range len(name) {
		if name[i] <= ' ' || name[i] > '~' {
			return fmt.Sprintf("is %.*q, want printable ASCII without blanks", MaxNameBytes, name)
		}
	}
	return ""
}
