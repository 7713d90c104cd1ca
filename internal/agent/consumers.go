package agent

import (
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

// maxConsumers bounds the consumers of a node.
const maxConsumers = 64

// Consumer is a local user, or group, that may read config on the socket for local
// services. The kernel says who is there.
type Consumer struct {
	ID    uint32
	Group bool // ID is that of the primary group of a process, not of its user
	// Scopes are those that it may see. Empty: all that the node holds.
	Scopes []snapshot.Scope
}

// ParseConsumer reads USER[:SCOPE+SCOPE] or @GROUP[:SCOPE+SCOPE], where users and
// groups are names that the system knows, or numbers.
func ParseConsumer(text string) (Consumer, error) {
	who, list, some := strings.Cut(text, ":")
	name, group := strings.CutPrefix(who, "@")
	c := Consumer{Group: group}
	id, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		var found string
		if group {
			g, err := user.LookupGroup(name)
			if err != nil {
				return Consumer{}, fmt.Errorf("%q is no group of this system", name)
			}
			found = g.Gid
		} else {
			u, err := user.Lookup(name)
			if err != nil {
				return Consumer{}, fmt.Errorf("%q is no user of this system", name)
			}
			found = u.Uid
		}
		if id, err = strconv.ParseUint(found, 10, 32); err != nil {
			return Consumer{}, fmt.Errorf("%q has no number", name)
		}
	}
	c.ID = uint32(id)
	if !some {
		return c, nil
	}
	for _, s := range strings.Split(list, "+") {
		if !state.Known(snapshot.Scope(s)) {
			return Consumer{}, fmt.Errorf("%q is no scope", s)
		}
		c.Scopes = append(c.Scopes, snapshot.Scope(s))
	}
	return c, nil
}

// consumers decide which scopes a local process may see.
type consumers []Consumer

func (c Consumer) is(p identity.Local) bool {
	if c.Group {
		return c.ID == p.GID
	}
	return c.ID == p.UID
}

// has reports whether p is somebody's process that is listed.
func (cs consumers) has(p identity.Local) bool {
	return slices.ContainsFunc(cs, func(c Consumer) bool { return c.is(p) })
}

// sees reports whether p may see scope: the agent's own user and root see all, whoever
// is listed sees what its rows say.
func (cs consumers) sees(p identity.Local, own uint32, scope snapshot.Scope) bool {
	if p.UID == 0 || p.UID == own {
		return true
	}
	return slices.ContainsFunc(cs, func(c Consumer) bool {
		return c.is(p) && (len(c.Scopes) == 0 || slices.Contains(c.Scopes, scope))
	})
}

// ownUser is the user of this process.
func ownUser() uint32 { return uint32(os.Geteuid()) }
