package member

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/proof"
)

func TokenCommand(c *program.CLI) *cobra.Command {
	return program.Group("token", "make and end join tokens", create(c), listTokens(c), showToken(c), revoke(c))
}

func create(c *program.CLI) *cobra.Command {
	var entry, name string
	var orgs, labels []string
	var ttl client.WaitDuration
	var uses uint32
	var dry bool
	cmd := c.Command(program.Command{
		Use: "create", Short: "make a join token and print its one line",
		Long: `Make a join token for an entry of the manifest, and print its one line on standard output: the only place
where it ever is. A person who loses it makes another.`,
		Sample: `  fealty token create --entry nodes
  fealty token create --entry nodes --name node-c --ttl 10m
  fealty token create --entry nodes | fealty join -`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			if entry == "" {
				return command.Missing("--entry", "the token admits under an entry of the manifest",
					"--entry NAME; fealty manifest get shows them")
			}
			if uses == 0 {
				return errcode.New(errcode.BadValue, "name", "--uses", "value", "0", "problem",
					"such a token admits nobody", "want", "how many machines it admits, 1 or more")
			}
			req := &fealtyv1.CreateTokenRequest{Entry: entry, Name: name, Organizations: orgs, Uses: uses,
				Labels: labels, DryRun: dry}
			if ttl.D > 0 {
				req.Ttl = durationpb.New(ttl.D)
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Tokens.CreateToken(ctx, req)
				if err != nil {
					return guessEntry(ctx, s, err, entry)
				}
				t := resp.GetToken()
				if dry {
					c.Planned("a token for entry " + t.GetEntry() + ", good until " + command.When(t.GetExpiresAt()))
				}
				return c.Print(program.ResultOf(message.Of(resp), func(p *term.Page) error {
					if dry {
						return p.Facts(tokenDetails(t, c.Env.Now()))
					}
					p.Line("%s", resp.GetLine())
					c.Say("token %s admits %s under entry %s until %s", t.GetId(), humanize.Plural(t.GetUses(), "machine",
						"machines"), t.GetEntry(), command.When(t.GetExpiresAt()))
					c.Say("%s, with the line in it", useOf(t))
					return nil
				}))
			})
		},
	})
	f := cmd.Flags()
	f.StringVar(&entry, "entry", "", "the entry of the manifest that admits")
	program.CompleteFlag(cmd, "entry", c.Completion(func(ctx context.Context, cfg *settings.Values) []string {
		return entryNames(ctx, c, cfg)
	}, settings.Client))
	f.StringVar(&name, "name", "", "the name of the one member that it admits; without it a coordinator makes one up")
	f.StringSliceVar(&orgs, "organization", nil, "narrow the entry to these organizations")
	f.StringSliceVar(&labels, "label", nil, "a label of those that it admits, KEY=VALUE; it decides nothing")
	f.Var(&ttl, "ttl", "how long it is good, at most 30d (default 1h)")
	f.Uint32Var(&uses, "uses", 1, "how many machines it admits")
	command.DryRun(cmd.Flags(), &dry)
	return cmd
}

// useOf is the command that takes a token.
func useOf(t *fealtyv1.Token) string {
	switch k := identity.Kind(t.GetKind()); k {
	case identity.Admin, identity.Readonly:
		return "where they work: fealty login --token-file FILE --kind " + string(k)
	case "", identity.Data:
		return "on the machine: fealty join --token-file FILE"
	default:
		return "on the machine: fealty join --token-file FILE --kind " + string(k)
	}
}

// guessEntry adds to the answer that there is no such entry the one that was meant.
func guessEntry(ctx context.Context, s *client.Services, err error, entry string) error {
	e, ok := errcode.FromStatus(err)
	if !ok || e.Code != errcode.NotFound || e.Fields["name"] != entry {
		return err
	}
	entries, unknown := entriesOf(ctx, s)
	if unknown != nil {
		return err
	}
	do := "the entries of the manifest are " + strings.Join(entries[:min(len(entries), 12)], ", ")
	return errcode.Wrap(err, errcode.NotFound, "what", e.Fields["what"], "name", entry, "do",
		command.JoinText(humanize.Suggest(entry, entries), do))
}

func listTokens(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "list", Short: "list the tokens that are kept",
		Groups: []settings.Group{settings.Client}, Names: true,
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Tokens.ListTokens(ctx, &fealtyv1.ListTokensRequest{})
				if err != nil {
					return err
				}
				command.SayAltered(c.Say, resp.GetAltered())
				var ids []string
				for _, t := range resp.GetTokens() {
					ids = append(ids, t.GetId())
				}
				return c.PrintList(ids, program.ResultOf(message.Of(resp), func(p *term.Page) error {
					return p.Table(table(resp.GetTokens(), c.Env.Now()))
				}))
			})
		},
	})
}

func table(tokens []*fealtyv1.Token, now time.Time) *term.Table {
	t := &term.Table{Columns: []term.Column{
		{Title: "STATE"}, {Title: "TOKEN"}, {Title: "ENTRY", Least: 8}, {Title: "NAME", Least: 8},
		{Title: "USED", Right: true}, {Title: "EXPIRES"},
		{Title: "ORGANIZATIONS", Wide: true}, {Title: "CREATED", Wide: true}, {Title: "BY", Wide: true},
	}}
	for _, x := range tokens {
		t.Add(tokenState(x), term.Txt(x.GetId()), term.Txt(x.GetEntry()), term.Txt(command.Dash(x.GetName())),
			term.Txt(command.Itoa(int64(x.GetUsed()))+"/"+command.Itoa(int64(x.GetUses()))),
			term.Txt(humanize.Relative(x.GetExpiresAt().AsTime(), now)),
			term.Txt(command.Dash(strings.Join(x.GetOrganizations(),
				","))), term.Txt(command.When(x.GetCreatedAt())), term.Txt(x.GetCreatedBy()))
	}
	return t
}

// tokenState shows the state of a token as shape and word.
func tokenState(t *fealtyv1.Token) term.Cell {
	if t.GetState() == "usable" {
		return term.Painted(term.Green, "● usable")
	}
	return term.Painted(term.Dim, "○ "+t.GetState())
}

func tokenDetails(t *fealtyv1.Token, now time.Time) term.Facts {
	var f term.Facts
	f.Add("token", t.GetId())
	state := tokenState(t)
	f.Paint("state", state.Paint, state.Text)
	f.Add("entry", t.GetEntry())
	f.Add("name", t.GetName())
	f.Add("organizations", strings.Join(t.GetOrganizations(), ", "))
	f.Add("labels", strings.Join(t.GetLabels(), ", "))
	f.Add("used", command.Itoa(int64(t.GetUsed()))+" of "+command.Itoa(int64(t.GetUses())))
	f.Add("expires", command.When(t.GetExpiresAt())+", "+humanize.Relative(t.GetExpiresAt().AsTime(), now))
	f.Add("created", command.JoinWords(command.When(t.GetCreatedAt()), " by ", t.GetCreatedBy()))
	f.Add("admitted", strings.Join(t.GetAdmitted(), ", "))
	return f
}

// tokenArg reads the id of a token. A person who pastes the whole line means its id: the
// line is never sent, and never shown.
func tokenArg(arg string) (string, error) {
	if t, err := proof.ParseJoinToken(arg); err == nil {
		return t.ID, nil
	}
	if !proof.ValidTokenID(arg) {
		return "", errcode.New(errcode.BadValue, "name", "ID", "value", command.ShownArg(arg), "problem",
			"it is not the id of a token", "want", "16 characters of a-z and 2-7, as fealty token list shows them")
	}
	return arg, nil
}

func showToken(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "show ID", Short: "show a token and whom it admitted",
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("ID"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			id, err := tokenArg(args[0])
			if err != nil {
				return err
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Tokens.GetToken(ctx, &fealtyv1.GetTokenRequest{Id: id})
				if err != nil {
					return err
				}
				return c.Print(program.ResultOf(message.Of(resp),
					func(p *term.Page) error { return p.Facts(tokenDetails(resp.GetToken(), c.Env.Now())) }))
			})
		},
	})
}

func revoke(c *program.CLI) *cobra.Command {
	var dry bool
	cmd := c.Command(program.Command{
		Use: "revoke ID", Short: "end a token; whom it admitted stays",
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("ID"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			id, err := tokenArg(args[0])
			if err != nil {
				return err
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Tokens.RevokeToken(ctx, &fealtyv1.RevokeTokenRequest{Id: id, DryRun: dry})
				if err != nil {
					return err
				}
				if dry {
					c.Planned("token " + resp.GetToken().GetId() + " would be revoked")
				}
				return c.Print(program.ResultOf(message.Of(resp),
					func(p *term.Page) error { return p.Facts(tokenDetails(resp.GetToken(), c.Env.Now())) }))
			})
		},
	})
	command.DryRun(cmd.Flags(), &dry)
	return cmd
}

// entryNames are the entries of the manifest in force.
func entryNames(ctx context.Context, c *program.CLI, cfg *settings.Values) (out []string) {
	_ = c.Ask(cfg, func(s *client.Services) (err error) {
		out, err = entriesOf(ctx, s)
		return err
	})
	return out
}

func entriesOf(ctx context.Context, s *client.Services) (out []string, err error) {
	resp, err := s.Manifest.GetManifest(ctx, &fealtyv1.GetManifestRequest{})
	if err != nil {
		return nil, err
	}
	m, err := manifest.ParseAccepted(resp.GetManifest())
	if err != nil {
		return nil, err
	}
	for _, e := range m.Admit {
		out = append(out, e.Name)
	}
	return out, nil
}
