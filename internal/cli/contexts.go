package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/amount"
	"github.com/fealty-io/fealty/internal/cli/shell"
	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/logins"
	"github.com/fealty-io/fealty/internal/output"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/slip"
	"github.com/fealty-io/fealty/internal/term"
)

// userFolder returns this program's folder in the user's configuration folder: below
// XDG_CONFIG_HOME, else .config in HOME; "" if neither is there.
func (c *CLI) userFolder() string {
	switch config, home := c.getenv("XDG_CONFIG_HOME"), c.getenv("HOME"); {
	case filepath.IsAbs(config):
		return filepath.Join(config, "fealty")
	case filepath.IsAbs(home):
		return filepath.Join(home, ".config", "fealty")
	}
	return ""
}

// logins are the logins of this user.
func (c *CLI) logins() logins.Logins {
	if dir := c.userFolder(); dir != "" {
		return logins.In(durable.OS(), filepath.Join(dir, "logins"))
	}
	return logins.Logins{}
}

// loginNames are the names of this user's logins. One that was begun and never granted
// left a folder, and is none.
func (c *CLI) loginNames() ([]string, error) {
	names, err := c.logins().Names()
	return slices.DeleteFunc(names, func(name string) bool {
		dir, err := c.logins().Dir(name)
		if err == nil {
			_, err = os.Stat(filepath.Join(dir, enroll.LoginName))
		}
		return errors.Is(err, fs.ErrNotExist)
	}), err
}

// person is the identity that a command asks with.
type person struct {
	dir     string // "": nobody logged in
	context string // its name; "" for a folder that was named itself
	from    string // what named it
	rank    settings.Rank
}

// person finds the identity to ask with: the folder or the context that a setting
// names, else the context that is current.
func (c *CLI) person(cfg *settings.Values) (person, error) {
	dir, named := cfg.Find("identity"), cfg.Find("context")
	switch {
	case dir.Text != "" && named.Text != "" && dir.Rank == named.Rank:
		return person{}, explain.New(explain.BadValue, "name", named.From, "value", "given together with "+dir.From, "problem", "they name two identities", "want", "one of them")
	case dir.Rank > named.Rank:
		return person{cfg.Path("identity"), "", dir.From, dir.Rank}, nil
	case named.Text != "":
		at, err := c.logins().Dir(named.Text)
		if err != nil {
			return person{}, explain.Wrap(err, explain.BadValue, "name", named.From, "value", named.Text, "problem", err.Error(), "want", "a name that fealty context list shows")
		}
		return person{at, named.Text, named.From, named.Rank}, nil
	}
	name, err := c.logins().Current()
	if errors.Is(err, logins.ErrNone) {
		return person{}, nil
	}
	var at string
	if err == nil {
		at, err = c.logins().Dir(name)
	}
	if err != nil {
		return person{}, explain.Wrap(err, explain.LoginNeeded, "dir", c.userFolder(), "problem", err.Error(), "do", "name the login with --context, as fealty context list shows them")
	}
	return person{at, name, "the current context", settings.FromDefault}, nil
}

// load reads the identity. Its errors are those of [enroll.LoadLogin], with the way to
// log in again under the same name.
func (p person) load(c *CLI) (enroll.LoginIdentity, error) {
	login, err := enroll.LoadLogin(nil, p.dir, c.env.Now)
	if e, ok := errors.AsType[*explain.Error](err); ok {
		where := " --identity " + shell.Word(p.dir)
		if p.context != "" {
			where = " --context " + p.context
		}
		pairs := []any{"do", "log in: fealty login --token-file FILE" + where}
		for _, name := range sortedKeys(e.Fields) {
			pairs = append(pairs, name, e.Fields[name])
		}
		return login, explain.Wrap(err, e.Code, pairs...)
	}
	return login, err
}

// loginPlace decides where a new login goes: the folder of --identity, else a context
// by the name of --context, else by that of the cluster.
func loginPlace(c *CLI, cfg *settings.Values, cluster string) (person, error) {
	dir, named := cfg.Find("identity"), cfg.Find("context")
	name := named.Text
	if dir.Text != "" || name != "" {
		p, err := c.person(cfg)
		if err != nil || p.context == "" {
			return p, err
		}
	} else {
		name = cluster
	}
	at, err := c.logins().Dir(name)
	if err != nil {
		return person{}, explain.Wrap(err, explain.BadValue, "name", "--identity", "value", "missing", "problem", err.Error(), "want", "--identity DIR, a folder of your own")
	}
	// A context is one cluster's: a slip must not end the login to another one.
	if before, err := enroll.LoadLogin(nil, at, c.env.Now); err == nil && before.ID.Cluster() != cluster {
		return person{}, explain.New(explain.BadValue, "name", "--context", "value", name, "problem", "it holds a login to cluster "+before.ID.Cluster()+", which would be lost", "want", "another name for the login to "+cluster)
	}
	return person{at, name, named.From, named.Rank}, nil
}

// self is what fealty whoami prints.
type self struct {
	SpiffeID     string        `json:"spiffe_id"`
	Cluster      string        `json:"cluster"`
	Kind         string        `json:"kind"`
	Name         string        `json:"name"`
	SVIDNotAfter output.Moment `json:"svid_not_after"`
	Coordinators output.Texts  `json:"coordinators"`
	Context      string        `json:"context"`
	Dir          string        `json:"dir"`
	From         string        `json:"from"`
}

func whoamiCommand(c *CLI) *cobra.Command {
	return c.command(spec{
		use: "whoami", short: "say as whom commands ask, and whom",
		long: `Say as whom commands ask here: identity, cluster, until when the login is good, and the coordinators that it
remembers. Nobody is asked for it.`,
		groups: []settings.Group{settings.Addresses, settings.Identities},
		run: func(_ context.Context, cfg *settings.Values, _ []string) error {
			p, err := c.person(cfg)
			if err != nil {
				return err
			}
			if p.dir == "" {
				return explain.New(explain.LoginNeeded, "dir", c.userFolder(), "problem", "nobody has logged in", "do", "log in: fealty login --token-file FILE; on a coordinator's machine --socket PATH works without")
			}
			login, err := p.load(c)
			if err != nil {
				return err
			}
			asked := login.Addresses
			if named := cfg.List("coordinator"); len(named) > 0 {
				asked = named
			}
			id := login.ID
			data := self{
				SpiffeID: id.String(), Cluster: id.Cluster(), Kind: string(id.Kind()), Name: id.Name(),
				SVIDNotAfter: output.Moment(login.NotAfter), Coordinators: asked, Context: p.context, Dir: p.dir, From: p.from,
			}
			return c.print(result{data, func(pg *term.Page) error {
				var f term.Facts
				f.Add("identity", id.String())
				f.Add("valid until", login.NotAfter.UTC().Format("2006-01-02T15:04:05Z07:00")+", "+amount.Relative(login.NotAfter, c.env.Now()))
				f.Add("coordinators", strings.Join(asked, ", "))
				f.Add("context", p.context)
				f.Add("kept in", p.dir)
				f.Add("named by", p.from)
				return pg.Facts(f)
			}})
		},
	})
}

func contextCommand(c *CLI) *cobra.Command {
	return noun("context", "show and choose among your logins", contextList(c), contextUse(c))
}

// loginList is what fealty context list prints.
type loginList struct {
	Contexts []login `json:"contexts"`
}

type login struct {
	Context      string        `json:"context"`
	Current      bool          `json:"current"`
	Dir          string        `json:"dir"`
	SpiffeID     string        `json:"spiffe_id"`      // blank if the login cannot be read
	SVIDNotAfter output.Moment `json:"svid_not_after"` // null then
}

func contextList(c *CLI) *cobra.Command {
	return c.command(spec{
		use: "list", short: "list your logins, and which one commands take",
		names: true,
		run: func(context.Context, *settings.Values, []string) error {
			names, err := c.loginNames()
			if err != nil {
				return err
			}
			current, err := c.logins().Current()
			if err != nil && !errors.Is(err, logins.ErrNone) {
				return err
			}
			shown := loginList{Contexts: []login{}}
			t := &term.Table{Columns: []term.Column{{Title: "CURRENT"}, {Title: "CONTEXT"}, {Title: "IDENTITY",
				Least: 20}, {Title: "VALID"}}}
			for _, name := range names {
				dir, err := c.logins().Dir(name)
				if err != nil {
					return err
				}
				mark, id, until := "", "-", "no"
				if name == current {
					mark = "●"
				}
				one := login{Context: name, Current: name == current, Dir: dir}
				if is, err := enroll.LoadLogin(nil, dir, c.env.Now); err == nil {
					id, until = is.ID.String(), amount.Relative(is.NotAfter, c.env.Now())
					one.SpiffeID, one.SVIDNotAfter = id, output.Moment(is.NotAfter)
				}
				shown.Contexts = append(shown.Contexts, one)
				t.Add(term.Txt(mark), term.Txt(name), term.Txt(id), term.Txt(until))
			}
			return c.printList(names, result{shown,
				func(p *term.Page) error { return p.Table(t) }})
		},
	})
}

// usedContext is what fealty context use prints.
type usedContext struct {
	Context string `json:"context"`
}

func contextUse(c *CLI) *cobra.Command {
	return c.command(spec{
		use: "use NAME", short: "take this login where nothing else is named",
		args: command.Exactly("NAME"), complete: func(context.Context, *settings.Values) []string {
			names, _ := c.loginNames() // completion says nothing of its failures
			return names
		},
		run: func(_ context.Context, _ *settings.Values, args []string) error {
			names, err := c.loginNames()
			if err != nil {
				return err
			}
			if g := slip.Guess(args[0], names); !slices.Contains(names, args[0]) {
				return explain.New(explain.BadValue, "name", "NAME", "value", args[0], "problem", joinText("there is no such login", g), "want", "a name that fealty context list shows")
			}
			if err := c.logins().Use(args[0]); err != nil {
				return err
			}
			return c.print(result{usedContext{Context: args[0]},
				func(p *term.Page) error { p.Line("%s is the current context", args[0]); return nil }})
		},
	})
}
