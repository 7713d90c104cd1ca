package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/slip"
)

func completionCommand(c *program.CLI) *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return c.Command(program.Command{
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
				"problem", command.JoinText("there is no completion for it", slip.Guess(args[0], shells)), "want",
				"bash, zsh or fish")
		},
	})
}
