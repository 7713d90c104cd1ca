package cli

import (
	"context"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/line"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/slip"
	"github.com/fealty-io/fealty/manifest"
)

// memberNames are the members, as KIND/NAME.
func memberNames(ctx context.Context, c *program.CLI, cfg *settings.Values) (out []string) {
	_ = c.Ask(cfg, func(s *line.Services) error {
		resp, err := listMembers(ctx, s.Members, &fealtyv1.ListMembersRequest{PageSize: command.PageSize})
		for _, m := range resp.GetMembers() {
			out = append(out, m.GetKind()+"/"+m.GetName())
		}
		return err
	})
	return out
}

// entryNames are the entries of the manifest in force.
func entryNames(ctx context.Context, c *program.CLI, cfg *settings.Values) (out []string) {
	_ = c.Ask(cfg, func(s *line.Services) (err error) {
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

func completionCommand(c *program.CLI) *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return c.Command(program.Spec{
		Use: "completion bash|zsh|fish", Short: "print the completion script of a shell",
		Long: "Print the script that completes commands and flags in a shell.",
		Sample: `  source <(fealty completion bash)
  fealty completion zsh > "${fpath[1]}/_fealty"
  fealty completion fish > ~/.config/fish/completions/fealty.fish`,
		Words: shells, Args: command.Exactly("SHELL"),
		Run: func(_ context.Context, _ *settings.Values, args []string) error {
			root := root(c)
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(c.Env.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(c.Env.Stdout)
			case "fish":
				return root.GenFishCompletion(c.Env.Stdout, true)
			}
			return explain.New(explain.BadValue, "name", "SHELL", "value", command.ShownArg(args[0]),
				"problem", command.JoinText("there is no completion for it", slip.Guess(args[0], shells)), "want", "bash, zsh or fish")
		},
	})
}
