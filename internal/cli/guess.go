package cli

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

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
		"logs": {"audit list"}, "log": {"audit list"}, "events": {"audit list"},
		"history": {"manifest history"}, "debug": {"check"},
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

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
