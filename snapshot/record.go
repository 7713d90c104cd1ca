package snapshot

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/fealty-io/fealty/internal/canonical"
)

// Limits of the contents that are made of records, beside their sizes.
const (
	maxRecordName = 63
)

// validRecordName reports whether s may name a record of the config: 1 to 63 of
// a-z 0-9 - _ . beginning and ending with a letter or a digit.
func validRecordName(s string) bool {
	if s == "" || len(s) > maxRecordName {
		return false
	}
	for i := range len(s) {
		if !recordNameBytes[s[i]] {
			return false
		}
	}
	return !isSeparator(s[0]) && !isSeparator(s[len(s)-1])
}

func isSeparator(b byte) bool { return b == '-' || b == '_' || b == '.' }

// recordNameBytes may stand in the name of a record, nameBytes in any other name.
var recordNameBytes, nameBytes = func() (record, name [256]bool) {
	for i := range record {
		b := byte(i)
		record[i] = 'a' <= b && b <= 'z' || '0' <= b && b <= '9' || isSeparator(b)
		name[i] = record[i] || 'A' <= b && b <= 'Z' || b == ':' || b == '/'
	}
	return record, name
}()

// owned is a record that belongs to an organization, or to the whole cluster.
type owned[T any] interface {
	*T
	key() *string
	owner() string // "": the cluster
}

// grantsOf says what records of a section give beyond h, or "": nothing for roles
// that may not hold the section, nothing of an organization that h does not name.
func grantsOf[T any, P owned[T]](h *Header, section string, records []T) string {
	if len(records) == 0 {
		return ""
	}
	if msg := grantsOfSection(h, section); msg != "" {
		return msg
	}
	for i := range records {
		p := P(&records[i])
		if org := p.owner(); org != "" && !slices.Contains(h.OrganizationIDs, org) {
			return fmt.Sprintf("%s %.80q is of organization %.40q, which the header does not name", section, *p.key(), org)
		}
	}
	return ""
}

func grantsOfSection(h *Header, section string) string {
	if h.ScopeType.MayHold(section, h.Roles) {
		return ""
	}
	return fmt.Sprintf("section %s, which roles %.200q may not hold", section, h.Roles)
}

// about puts the record in front of what is wrong with it.
func about(section, name, msg string) string {
	if msg == "" {
		return ""
	}
	return fmt.Sprintf("%s %.80q: %s", section, name, msg)
}

// faultOfReferences says why names are no sorted set of names of records, or "".
func faultOfReferences(names []string) string {
	for i, n := range names {
		if !validRecordName(n) {
			return fmt.Sprintf("%.80q is no name of a record", n)
		}
		if i > 0 && names[i-1] >= n {
			return fmt.Sprintf("%.80q is out of order or double", n)
		}
	}
	return ""
}

// faultOfSequence is faultOfReferences for names whose order means something.
func faultOfSequence(names []string) string {
	for i, n := range names {
		if !validRecordName(n) {
			return fmt.Sprintf("%.80q is no name of a record", n)
		}
		if slices.Contains(names[:i], n) {
			return fmt.Sprintf("%.80q is there twice", n)
		}
	}
	return ""
}

// resolves says which of names, sorted, is not one of the records, sorted, or "".
func resolves[T any, P owned[T]](what string, names []string, records []T) string {
	for _, n := range names {
		if _, ok := find[T, P](records, n); !ok {
			return fmt.Sprintf("there is no %s %.80q", what, n)
		}
	}
	return ""
}

// find returns the index of the record of a name.
func find[T any, P owned[T]](records []T, name string) (int, bool) {
	// By index: BinarySearchFunc would copy each record that it looks at.
	return sort.Find(len(records), func(i int) int { return strings.Compare(name, *P(&records[i]).key()) })
}

// validLine reports whether s is 1 to limit bytes of printable ASCII without
// spaces: an address, a URL, a path. Its meaning is decided where it is used.
func validLine(s string, limit int) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= limit
}

// faultOfAddresses says why addresses cannot be tried in this order, or "".
func faultOfAddresses(addresses []string) string {
	for i, a := range addresses {
		if !validLine(a, maxAddress) {
			return fmt.Sprintf("%.80q is no address", a)
		}
		if slices.Contains(addresses[:i], a) {
			return fmt.Sprintf("address %.80q is there twice", a)
		}
	}
	return ""
}

func walkScopes(c *codec, v *[]Scope) {
	canonical.Words(c, v, maxNames, maxName)
}

// faultOfScopes says why scopes are no sorted set of scopes, or "".
func faultOfScopes(scopes []Scope) string {
	for i, s := range scopes {
		if ruleOf(s) == nil {
			return fmt.Sprintf("%.40q is no scope", s)
		}
		if i > 0 && scopes[i-1] >= s {
			return fmt.Sprintf("%.40q is out of order or double", s)
		}
	}
	return ""
}
