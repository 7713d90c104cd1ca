package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// guess says which of names was probably meant by name, or "".
func guess(name string, names []string) string {
	best, least := "", 2*(len([]rune(name))/3+2) // so many changes make it no slip
	for _, n := range names {
		// Twice the distance, so that the same first letter, which people rarely get
		// wrong, decides between equals.
		d := 2 * distance(strings.ToLower(name), strings.ToLower(n))
		if n == "" || name == "" || !strings.EqualFold(n[:1], name[:1]) {
			d++
		}
		if d < least {
			best, least = n, d
		}
	}
	if best == "" {
		for _, n := range names {
			if len(name) >= 3 && strings.HasPrefix(n, name) {
				best = n
				break
			}
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "?"
}

// otherWords are what tools of this kind call things that have another name here, each
// with commands that may be meant: the ones that exist below the noun are named.
func otherWords() map[string][]string {
	show, list := []string{"show", "get", "member list", "config list"}, []string{"list", "member list", "token list", "config list"}
	return map[string][]string{
		"get": show, "describe": show, "inspect": show, "list": list, "ls": list,
		"add": {"create", "put"}, "new": {"create"}, "make": {"create"}, "apply": {"put", "set", "config put"}, "update": {"put", "set"},
		"delete": {"delete", "remove", "revoke"}, "rm": {"remove", "delete", "revoke"}, "del": {"remove", "delete", "revoke"},
		"init": {"manifest init"}, "bootstrap": {"manifest init"}, "server": {"coordinator"}, "serve": {"coordinator"}, "controller": {"coordinator"},
		"node": {"member"}, "nodes": {"member"}, "machine": {"member"}, "host": {"member"}, "members": {"member"}, "client": {"agent"}, "worker": {"agent"},
		"ban": {"member ban"}, "unban": {"member unban"}, "drain": {"member drain"}, "cordon": {"member drain", "drain"}, "kick": {"member remove", "remove"}, "remove": {"member remove"}, "evict": {"member remove", "remove"},
		"policy": {"manifest"}, "allowlist": {"manifest"}, "acl": {"authz"}, "restore": {"backup restore"}, "snapshots": {"snapshot"},
		"rotate": {"trust rotate"}, "ca": {"trust"}, "health": {"check", "status"}, "doctor": {"check"}, "ps": {"status"}, "id": {"whoami"}, "enroll": {"join"}, "enrol": {"join"}, "unseal": {"recover"},
	}
}

// meant says which command of cmd somebody means who calls it as other tools do, or "".
func meant(cmd *cobra.Command, word string) string {
	var paths []string
	for _, path := range otherWords()[strings.ToLower(word)] {
		if found, rest, err := cmd.Find(strings.Fields(path)); err == nil && len(rest) == 0 && found != cmd {
			paths = append(paths, strings.TrimPrefix(found.CommandPath(), cmd.Root().Name()+" "))
		}
	}
	if len(paths) == 0 {
		return ""
	}
	return "did you mean " + programName + " " + strings.Join(paths, ", or "+programName+" ") + "?"
}

// distance is how many letters have to be changed, added, taken out or swapped
// with a neighbour (Damerau and Levenshtein, without overlaps). Long texts are not
// slips of a short name: beyond 64 letters it is their length.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	if len(x) > 64 || len(y) > 64 {
		return max(len(x), len(y))
	}
	d := make([][]int, len(x)+1)
	for i := range d {
		d[i] = make([]int, len(y)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			cost := btoi(x[i-1] != y[j-1])
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(x)][len(y)]
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// plural returns n with its noun.
func plural[N int | uint32](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
