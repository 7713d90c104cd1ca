package cli

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/line"
	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/slip"
	"github.com/fealty-io/fealty/manifest"
)

// completionTime is how long somebody who pressed TAB waits for a coordinator.
const completionTime = 2 * time.Second

// completion makes a function that a shell asks. It says nothing of its failures: what
// cannot be found out is not offered.
func (c *CLI) completion(f func(context.Context, *settings.Values) []string, groups ...settings.Group) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		c.env.Stderr = io.Discard
		cfg, err := c.load(cmd, groups...)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		return f(ctx, cfg), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag has a shell ask f what a flag can be.
func completeFlag(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic("cli: " + err.Error())
	}
}

// completeSettings has a shell know the words that settings can be.
func (c *CLI) completeSettings(cmd *cobra.Command, groups ...settings.Group) {
	for _, s := range settings.Of(groups...) {
		switch {
		case !s.HasFlag():
		case s.Form == settings.ChoiceForm:
			completeFlag(cmd, s.Flag(), cobra.FixedCompletions(s.Choice, cobra.ShellCompDirectiveNoFileComp))
		case s.Key == "context":
			completeFlag(cmd, s.Flag(), c.completion(func(context.Context, *settings.Values) []string {
				names, _ := c.loginNames() // as everything here: what is not known is not offered
				return names
			}, groups...))
		}
	}
}

// memberNames are the members, as KIND/NAME.
func memberNames(ctx context.Context, c *CLI, cfg *settings.Values) (out []string) {
	_ = c.asking(cfg, func(s *line.Services) error {
		resp, err := listMembers(ctx, s.Members, &fealtyv1.ListMembersRequest{PageSize: command.PageSize})
		for _, m := range resp.GetMembers() {
			out = append(out, m.GetKind()+"/"+m.GetName())
		}
		return err
	})
	return out
}

// entryNames are the entries of the manifest in force.
func entryNames(ctx context.Context, c *CLI, cfg *settings.Values) (out []string) {
	_ = c.asking(cfg, func(s *line.Services) (err error) {
		out, err = entriesOf(ctx, s)
		return err
	})
	return out
}

func entriesOf(ctx context.Context, s *line.Services) (out []string, err error) {
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

func completionCommand(c *CLI) *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return c.command(spec{
		use: "completion bash|zsh|fish", short: "print the completion script of a shell",
		long: "Print the script that completes commands and flags in a shell.",
		sample: `  source <(fealty completion bash)
  fealty completion zsh > "${fpath[1]}/_fealty"
  fealty completion fish > ~/.config/fish/completions/fealty.fish`,
		words: shells, args: command.Exactly("SHELL"),
		run: func(_ context.Context, _ *settings.Values, args []string) error {
			root := root(c)
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(c.env.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(c.env.Stdout)
			case "fish":
				return root.GenFishCompletion(c.env.Stdout, true)
			}
			return explain.New(explain.BadValue, "name", "SHELL", "value", command.ShownArg(args[0]),
				"problem", joinText("there is no completion for it", slip.Guess(args[0], shells)), "want", "bash, zsh or fish")
		},
	})
}
