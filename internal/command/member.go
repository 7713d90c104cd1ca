package command

import (
	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
)

// MemberKinds are the kinds of members.
func MemberKinds() (out []string) {
	for _, k := range identity.Kinds() {
		out = append(out, string(k))
	}
	return out
}

// PageSize is how many members are asked for at once.
const PageSize = 500

// Missing says that a flag is needed.
func Missing(flag, why, want string) error {
	return explain.New(explain.BadValue, "name", flag, "value", "missing", "problem", why, "want", want)
}

// DryRun adds --dry-run to a command that changes something.
func DryRun(f *pflag.FlagSet, dry *bool) {
	f.BoolVar(dry, "dry-run", false, "check everything, say what would be done, and change nothing")
}

// Dash returns s, or a dash for nothing.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// JoinWords joins two texts by words, unless one is blank.
func JoinWords(a, words, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + words + b
}
