package program

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/contexts"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// UserFolder returns this program's folder in the user's configuration folder: below
// XDG_CONFIG_HOME, else .config in HOME; "" if neither is there.
func (c *CLI) UserFolder() string {
	switch config, home := c.Getenv("XDG_CONFIG_HOME"), c.Getenv("HOME"); {
	case filepath.IsAbs(config):
		return filepath.Join(config, "fealty")
	case filepath.IsAbs(home):
		return filepath.Join(home, ".config", "fealty")
	}
	return ""
}

// Logins are the logins of this user.
func (c *CLI) Logins() contexts.Logins {
	if dir := c.UserFolder(); dir != "" {
		return contexts.In(durable.OS(), filepath.Join(dir, "logins"))
	}
	return contexts.Logins{}
}

// LoginNames are the names of this user's logins. One that was begun and never granted
// left a folder, and is none.
func (c *CLI) LoginNames() ([]string, error) {
	names, err := c.Logins().Names()
	return slices.DeleteFunc(names, func(name string) bool {
		dir, err := c.Logins().Dir(name)
		if err == nil {
			_, err = os.Stat(filepath.Join(dir, enroll.LoginName))
		}
		return errors.Is(err, fs.ErrNotExist)
	}), err
}

// person is the identity that a command asks with.
type person struct {
	Dir     string // "": nobody logged in
	Context string // its name; "" for a folder that was named itself
	From    string // what named it
	Rank    settings.Rank
}

// Person finds the identity to ask with: the folder or the context that a setting
// names, else the context that is current.
func (c *CLI) Person(cfg *settings.Values) (person, error) {
	dir, named := cfg.Find("identity"), cfg.Find("context")
	switch {
	case dir.Text != "" && named.Text != "" && dir.Rank == named.Rank:
		return person{}, errcode.New(errcode.BadValue, "name", named.From, "value", "given together with "+dir.From,
			"problem", "they name two identities", "want", "one of them")
	case dir.Rank > named.Rank:
		return person{cfg.Path("identity"), "", dir.From, dir.Rank}, nil
	case named.Text != "":
		at, err := c.Logins().Dir(named.Text)
		if err != nil {
			return person{}, errcode.Wrap(err, errcode.BadValue, "name", named.From, "value", named.Text, "problem",
				err.Error(), "want", "a name that fealty context list shows")
		}
		return person{at, named.Text, named.From, named.Rank}, nil
	}
	name, err := c.Logins().Current()
	if errors.Is(err, contexts.ErrNone) {
		return person{}, nil
	}
	var at string
	if err == nil {
		at, err = c.Logins().Dir(name)
	}
	if err != nil {
		return person{}, errcode.Wrap(err, errcode.LoginNeeded, "dir", c.UserFolder(), "problem", err.Error(), "do",
			"name the login with --context, as fealty context list shows them")
	}
	return person{at, name, "the current context", settings.FromDefault}, nil
}

// Load reads the identity. Its errors are those of [enroll.LoadLogin], with the way to
// log in again under the same name.
func (p person) Load(c *CLI) (enroll.LoginIdentity, error) {
	login, err := enroll.LoadLogin(nil, p.Dir, c.Env.Now)
	if e, ok := errors.AsType[*errcode.Error](err); ok {
		where := " --identity " + term.ShellWord(p.Dir)
		if p.Context != "" {
			where = " --context " + p.Context
		}
		pairs := []any{"do", "log in: fealty login --token-file FILE" + where}
		for _, name := range command.SortedKeys(e.Fields) {
			pairs = append(pairs, name, e.Fields[name])
		}
		return login, errcode.Wrap(err, e.Code, pairs...)
	}
	return login, err
}

// LoginPlace decides where a new login goes: the folder of --identity, else a context
// by the name of --context, else by that of the cluster.
func LoginPlace(c *CLI, cfg *settings.Values, cluster string) (person, error) {
	dir, named := cfg.Find("identity"), cfg.Find("context")
	name := named.Text
	if dir.Text != "" || name != "" {
		p, err := c.Person(cfg)
		if err != nil || p.Context == "" {
			return p, err
		}
	} else {
		name = cluster
	}
	at, err := c.Logins().Dir(name)
	if err != nil {
		return person{}, errcode.Wrap(err, errcode.BadValue, "name", "--identity", "value", "missing", "problem",
			err.Error(), "want", "--identity DIR, a folder of your own")
	}
	// A context is one cluster's: a slip must not end the login to another one.
	if before, err := enroll.LoadLogin(nil, at, c.Env.Now); err == nil && before.ID.Cluster() != cluster {
		return person{}, errcode.New(errcode.BadValue, "name", "--context", "value", name, "problem",
			"it holds a login to cluster "+before.ID.Cluster()+", which would be lost", "want",
			"another name for the login to "+cluster)
	}
	return person{at, name, named.From, named.Rank}, nil
}
