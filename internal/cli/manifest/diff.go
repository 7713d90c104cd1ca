package manifest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

func diff(c *program.CLI) *cobra.Command {
	var code bool
	cmd := c.Command(program.Command{
		Use: "diff [OLD] NEW", Short: "show what a manifest changes in effect",
		Long: `Show what a manifest changes in effect: who can join who could not and the reverse, who gets another ` +
			`kind, name,
role, organization or lifetime, who signs, who brings the seed back, and whether everybody renews. Order, comments
and spelling are no effects.

With one file it is compared with the manifest in force, and the members and tokens that it would cut off are
named too. With two files no coordinator is asked.

The exit status is 0 whether or not they differ. With --exit-code it is 1 if they do, as with diff and kubectl
diff; then nothing is on standard error, as it is for an error.`,
		Sample: `  fealty manifest diff manifest.yaml
  fealty manifest diff old.yaml new.yaml --exit-code`,
		Groups: []settings.Group{settings.Client},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return command.Exactly("NEW")(cmd, args)
		},
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			e, err := diffManifest(ctx, c, cfg, args)
			if err != nil {
				return err
			}
			if err := c.Print(program.ResultOf(e.data(), e.show)); err != nil {
				return err
			}
			if code && !e.changes.Empty() {
				return program.ExitWith(errcode.ExitFailed)
			}
			return nil
		},
	})
	cmd.Flags().BoolVar(&code, "exit-code", false, "exit with 1 if something changes")
	return cmd
}

func diffManifest(ctx context.Context, c *program.CLI, cfg *settings.Values, args []string) (*effect, error) {
	read := func(file string, parse func([]byte) (*manifest.Manifest, error)) (*manifest.Manifest, error) {
		_, m, err := ReadManifest(c, cfg, file, parse)
		if problems, ok := errors.AsType[*manifest.InvalidError](err); ok {
			return nil, InvalidManifest(file, problems)
		}
		return m, err
	}
	next, err := read(args[len(args)-1], manifest.Parse)
	if err != nil {
		return nil, err
	}
	if len(args) == 2 {
		old, err := read(args[0], manifest.ParseAccepted)
		if err != nil {
			return nil, err
		}
		return &effect{old: old, changes: manifest.Diff(old, next)}, nil
	}
	var e *effect
	err = c.Ask(cfg, func(s *client.Services) error {
		e, err = preview(ctx, s, next)
		return err
	})
	return e, err
}

// An effect is what a manifest changes, and who is there to feel it.
type effect struct {
	old     *manifest.Manifest // in force, or the one that was given
	head    history.Hash       // that brought old into force; zero: no coordinator was asked
	changes *manifest.Changes
	preview *fealtyv1.PreviewManifestResponse // nil: no coordinator was asked
}

// preview asks the coordinator what next would do to who is there.
func preview(ctx context.Context, s *client.Services, next *manifest.Manifest) (*effect, error) {
	resp, err := s.Manifest.PreviewManifest(ctx, &fealtyv1.PreviewManifestRequest{Manifest: next.Bytes()})
	if err != nil {
		return nil, err
	}
	old, err := manifest.ParseAccepted(resp.GetManifest())
	if err != nil {
		return nil, errcode.Wrap(err, errcode.HistoryInvalid, "problem",
			"what was sent as the manifest in force is none")
	}
	hash := resp.GetTransition().GetHash()
	if len(hash) != sha256.Size {
		return nil, errcode.New(errcode.HistoryInvalid, "problem", "what was sent as the head of the history is none")
	}
	return &effect{old, history.Hash(hash), manifest.Diff(old, next), resp}, nil
}

// effectChange is one change of a manifest, and what it means.
type effectChange struct {
	Class    string `json:"class"`
	Subject  string `json:"subject"`
	Before   string `json:"before"`
	After    string `json:"after"`
	Means    string `json:"means"`
	Wider    bool   `json:"wider"`
	Narrower bool   `json:"narrower"`
}

// effectReport is what fealty manifest diff prints.
type effectReport struct {
	Differs        bool           `json:"differs"`
	Wider          bool           `json:"wider"`
	Narrower       bool           `json:"narrower"`
	AuthorityMoves []string       `json:"authority_moves"`
	Changes        []effectChange `json:"changes"`
	*feltEffect                   // nil: no coordinator was asked
}

// feltEffect is who is there to feel it.
type feltEffect struct {
	Members      []message.Form[*fealtyv1.LosingMember] `json:"members"`
	MembersTotal uint32                                 `json:"members_total"`
	Tokens       []message.Form[*fealtyv1.LosingToken]  `json:"tokens"`
	TokensTotal  uint32                                 `json:"tokens_total"`
	Current      string                                 `json:"current"`
}

func (e *effect) data() effectReport {
	changes := make([]effectChange, 0, len(e.changes.List))
	for _, x := range e.changes.List {
		changes = append(changes, effectChange{Class: x.Class, Subject: x.Subject, Before: x.Before, After: x.After,
			Means: x.Means, Wider: x.Wider, Narrower: x.Narrower})
	}
	out := effectReport{Differs: !e.changes.Empty(), Wider: e.changes.Wider(), Narrower: e.changes.Narrower(),
		AuthorityMoves: append([]string{}, e.changes.Authority...), Changes: changes}
	if e.preview != nil {
		out.feltEffect = &feltEffect{
			Members: message.Each(e.preview.GetMembers()), MembersTotal: e.preview.GetMembersTotal(),
			Tokens: message.Each(e.preview.GetTokens()), TokensTotal: e.preview.GetTokensTotal(),
			Current: hex.EncodeToString(e.preview.GetTransition().GetHash()),
		}
	}
	return out
}

func (e *effect) show(p *term.Page) error {
	if e.changes.Empty() {
		p.Line("nothing changes in effect")
	} else {
		t := &term.Table{Columns: []term.Column{{Title: ""}, {Title: "CHANGE"}, {Title: "OF", Least: 16},
			{Title: "BEFORE", Least: 8}, {Title: "AFTER", Least: 8}, {Title: "MEANS", Least: 24}}}
		for _, x := range e.changes.List {
			sign := term.Txt("~")
			switch {
			case x.Wider && !x.Narrower:
				sign = term.Painted(term.Amber, "+")
			case x.Narrower && !x.Wider:
				sign = term.Painted(term.Red, "-")
			}
			t.Add(sign, term.Txt(x.Class), term.Txt(x.Subject), term.Txt(command.Dash(x.Before)),
				term.Txt(command.Dash(x.After)), term.Txt(x.Means))
		}
		if err := p.Table(t); err != nil {
			return err
		}
	}
	if e.preview == nil {
		return nil
	}
	if n := e.preview.GetMembersTotal(); n > 0 {
		p.Heading(humanize.Plural(n, "member", "members") + " would not be renewed")
		t := &term.Table{Columns: []term.Column{{Title: "MEMBER"}, {Title: "ENTRY"}, {Title: "WHY", Least: 20}}}
		for _, m := range e.preview.GetMembers() {
			t.Add(term.Txt(m.GetKind()+"/"+m.GetName()), term.Txt(m.GetEntry()), term.Txt(m.GetWhy()))
		}
		if err := p.Table(t); err != nil {
			return err
		}
	}
	if n := e.preview.GetTokensTotal(); n > 0 {
		p.Heading(humanize.Plural(n, "token", "tokens") + " would admit nobody")
		t := &term.Table{Columns: []term.Column{{Title: "TOKEN"}, {Title: "ENTRY"}}}
		for _, x := range e.preview.GetTokens() {
			t.Add(term.Txt(x.GetId()), term.Txt(x.GetEntry()))
		}
		if err := p.Table(t); err != nil {
			return err
		}
	}
	p.Line("")
	p.Line("compared with the manifest in force, at head %s", hex.EncodeToString(e.preview.GetTransition().GetHash()))
	return nil
}
