package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// bashWords stands in the place of what cobra's script has of the package bash-completion, where that is not
// installed. As there, the pieces of the line around = and : are one word, and cur ends at the cursor.
const bashWords = `local i piece glue rest=${COMP_LINE} left=${COMP_LINE:0:COMP_POINT}
    words=() cword=0
    for i in "${!COMP_WORDS[@]}"; do
        piece=${COMP_WORDS[i]} glue=1
        if [[ $i -eq 0 || ${rest} == [[:space:]]* ]]; then glue=; fi
        rest=${rest#"${rest%%[![:space:]]*}"}
        rest=${rest#"${piece}"}
        if [[ -n ${glue} ]]; then
            words[${#words[@]}-1]+=${piece}
        else
            words+=("${piece}")
        fi
        if [[ $i -eq ${COMP_CWORD} ]]; then cword=$((${#words[@]} - 1)); fi
    done
    cur=${words[cword]} prev=
    if [[ ${cword} -gt 0 ]]; then prev=${words[cword-1]}; fi
    while [[ ${left} != *"${cur}" ]]; do cur=${cur%?}; done
    words[cword]=${cur}`

// bashCompletion writes the script of bash, which needs nothing but bash.
func bashCompletion(w io.Writer, root *cobra.Command) error {
	var script bytes.Buffer
	if err := root.GenBashCompletionV2(&script, true); err != nil {
		return err
	}
	const foreign = `_get_comp_words_by_ref "$@" cur prev words cword`
	before, after, found := strings.Cut(script.String(), foreign)
	if !found {
		return errors.New("cli: the script of this release of cobra is another one")
	}
	_, err := io.WriteString(w, before+bashWords+after)
	return err
}

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
				return bashCompletion(c.Env.Stdout, root)
			case "zsh":
				return root.GenZshCompletion(c.Env.Stdout)
			case "fish":
				return root.GenFishCompletion(c.Env.Stdout, true)
			}
			return errcode.New(errcode.BadValue, "name", "SHELL", "value", command.ShownArg(args[0]),
				"problem", command.JoinText("there is no completion for it", humanize.Suggest(args[0], shells)), "want",
				"bash, zsh or fish")
		},
	})
}
