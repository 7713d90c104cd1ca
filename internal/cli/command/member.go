package command

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
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
	return errcode.New(errcode.BadValue, "name", flag, "value", "missing", "problem", why, "want", want)
}

// DryRun adds --dry-run to a command that changes something.
func DryRun(f *pflag.FlagSet, dry *bool) {
	f.BoolVar(dry, "dry-run", false, "check everything, say what would be done, and change nothing")
}

// RootPin adds --root-pin, the one name of a root's pin, and --root, as it was called before, which
// still works and is shown nowhere.
func RootPin(f *pflag.FlagSet, pin *string, help string) {
	f.StringVar(pin, "root-pin", "", help)
	f.StringVar(pin, "root", "", help)
	f.Lookup("root").Hidden = true
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

// MemberArg reads KIND/NAME, or the SPIFFE id of a member.
func MemberArg(arg string) (kind, name string, err error) {
	path := arg
	if id, err := identity.Parse(arg); err == nil {
		path = string(id.Kind()) + "/" + id.Name()
	}
	kind, name, ok := strings.Cut(path, "/")
	if !ok || name == "" || !identity.Kind(kind).Valid() {
		problem := "it is not KIND/NAME"
		if ok && name != "" {
			problem = "there is no kind " + kind
			if g := humanize.Suggest(kind, MemberKinds()); g != "" {
				problem += "; " + g
			}
		}
		return "", "", errcode.New(errcode.BadValue, "name", "MEMBER", "value", ShownArg(arg), "problem",
			problem, "want", "KIND/NAME, such as data/node-c")
	}
	return kind, name, nil
}

// ConflictingFlags says that a flag stands beside one that excludes it.
func ConflictingFlags(name, value, want string) error {
	return errcode.New(errcode.BadValue, "name", name, "value", value, "want", want)
}
