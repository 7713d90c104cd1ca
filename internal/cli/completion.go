package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/explain"
)

func (c *CLI) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return c.command(spec{
		use: "completion bash|zsh|fish", short: "print the completion script of a shell",
		long: "Print the script that completes commands and flags in a shell.",
		sample: `  source <(fealty completion bash)
  fealty completion zsh > "${fpath[1]}/_fealty"
  fealty completion fish > ~/.config/fish/completions/fealty.fish`,
		words: shells, args: exactly("SHELL"),
		run: func(_ context.Context, _ *config, args []string) error {
			root := c.root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(c.env.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(c.env.Stdout)
			case "fish":
				return root.GenFishCompletion(c.env.Stdout, true)
			}
			return explain.New(explain.BadValue, "name", "SHELL", "value", shownArg(args[0]),
				"problem", joinText("there is no completion for it", guess(args[0], shells)), "want", "bash, zsh or fish")
		},
	})
}
