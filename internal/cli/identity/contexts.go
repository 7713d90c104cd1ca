package identity

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/contexts"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// self is what fealty whoami prints.
type self struct {
	SpiffeID     string      `json:"spiffe_id"`
	Cluster      string      `json:"cluster"`
	Kind         string      `json:"kind"`
	Name         string      `json:"name"`
	SVIDNotAfter term.Moment `json:"svid_not_after"`
	Coordinators term.Texts  `json:"coordinators"`
	Context      string      `json:"context"`
	Dir          string      `json:"dir"`
	From         string      `json:"from"`
}

func Whoami(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "whoami", Short: "say as whom commands ask, and whom",
		Long: `Say as whom commands ask here: identity, cluster, until when the login is good, and the coordinators ` +
			`that it
remembers. Nobody is asked for it.`,
		Groups: []settings.Group{settings.Addresses, settings.Identities},
		Run: func(_ context.Context, cfg *settings.Values, _ []string) error {
			p, err := c.Person(cfg)
			if err != nil {
				return err
			}
			if p.Dir == "" {
				return errcode.New(errcode.LoginNeeded, "dir", c.UserFolder(), "problem", "nobody has logged in", "do",
					"log in: fealty login --token-file FILE; on a coordinator's machine --socket PATH works without")
			}
			login, err := p.Load(c)
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
				SVIDNotAfter: term.Moment(login.NotAfter), Coordinators: asked, Context: p.Context, Dir: p.Dir,
				From: p.From,
			}
			return c.Print(program.ResultOf(data, func(pg *term.Page) error {
				var f term.Facts
				f.Add("identity", id.String())
				f.Add("valid until",
					login.NotAfter.UTC().Format("2006-01-02T15:04:05Z07:00")+", "+humanize.Relative(login.NotAfter,
						c.Env.Now()))
				f.Add("coordinators", strings.Join(asked, ", "))
				f.Add("context", p.Context)
				f.Add("kept in", p.Dir)
				f.Add("named by", p.From)
				return pg.Facts(f)
			}))
		},
	})
}

func Contexts(c *program.CLI) *cobra.Command {
	return program.Group("context", "show and choose among your logins", contextList(c), contextUse(c))
}

// loginList is what fealty context list prints.
type loginList struct {
	Contexts []login `json:"contexts"`
}

type login struct {
	Context      string      `json:"context"`
	Current      bool        `json:"current"`
	Dir          string      `json:"dir"`
	SpiffeID     string      `json:"spiffe_id"`      // blank if the login cannot be read
	SVIDNotAfter term.Moment `json:"svid_not_after"` // null then
}

func contextList(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "list", Short: "list your logins, and which one commands take",
		Names: true,
		Run: func(context.Context, *settings.Values, []string) error {
			names, err := c.LoginNames()
			if err != nil {
				return err
			}
			current, err := c.Logins().Current()
			if err != nil && !errors.Is(err, contexts.ErrNone) {
				return err
			}
			shown := loginList{Contexts: []login{}}
			t := &term.Table{Columns: []term.Column{{Title: "CURRENT"}, {Title: "CONTEXT"}, {Title: "IDENTITY",
				Least: 20}, {Title: "VALID"}}}
			for _, name := range names {
				dir, err := c.Logins().Dir(name)
				if err != nil {
					return err
				}
				mark, id, until := "", "-", "no"
				if name == current {
					mark = "●"
				}
				one := login{Context: name, Current: name == current, Dir: dir}
				if is, err := enroll.LoadLogin(nil, dir, c.Env.Now); err == nil {
					id, until = is.ID.String(), humanize.Relative(is.NotAfter, c.Env.Now())
					one.SpiffeID, one.SVIDNotAfter = id, term.Moment(is.NotAfter)
				}
				shown.Contexts = append(shown.Contexts, one)
				t.Add(term.Txt(mark), term.Txt(name), term.Txt(id), term.Txt(until))
			}
			return c.PrintList(names, program.ResultOf(shown,
				func(p *term.Page) error { return p.Table(t) }))
		},
	})
}

// usedContext is what fealty context use prints.
type usedContext struct {
	Context string `json:"context"`
}

func contextUse(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "use NAME", Short: "take this login where nothing else is named",
		Args: command.Exactly("NAME"), Complete: func(context.Context, *settings.Values) []string {
			names, _ := c.LoginNames() // completion says nothing of its failures
			return names
		},
		Run: func(_ context.Context, _ *settings.Values, args []string) error {
			names, err := c.LoginNames()
			if err != nil {
				return err
			}
			if g := humanize.Suggest(args[0], names); !slices.Contains(names, args[0]) {
				return errcode.New(errcode.BadValue, "name", "NAME", "value", args[0], "problem",
					command.JoinText("there is no such login", g), "want", "a name that fealty context list shows")
			}
			if err := c.Logins().Use(args[0]); err != nil {
				return err
			}
			return c.Print(program.ResultOf(usedContext{Context: args[0]},
				func(p *term.Page) error { p.Line("%s is the current context", args[0]); return nil }))
		},
	})
}
