package program

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/settings"
)

// completionTime is how long somebody who pressed TAB waits for a coordinator.
const completionTime = 2 * time.Second

// Completion makes a function that a shell asks. It says nothing of its failures: what
// cannot be found out is not offered.
func (c *CLI) Completion(f func(context.Context, *settings.Values) []string,
	groups ...settings.Group) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		c.Env.Stderr = io.Discard
		cfg, err := c.load(cmd, groups...)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		return f(ctx, cfg), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteFlag has a shell ask f what a flag can be.
func CompleteFlag(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic("program: " + err.Error())
	}
}

// completeSettings has a shell know the words that settings can be.
func (c *CLI) completeSettings(cmd *cobra.Command, groups ...settings.Group) {
	for _, s := range settings.Of(groups...) {
		switch {
		case !s.HasFlag():
		case s.Form == settings.ChoiceForm:
			CompleteFlag(cmd, s.Flag(), cobra.FixedCompletions(s.Choice, cobra.ShellCompDirectiveNoFileComp))
		case s.Key == "context":
			CompleteFlag(cmd, s.Flag(), c.Completion(func(context.Context, *settings.Values) []string {
				names, _ := c.LoginNames() // as everything here: what is not known is not offered
				return names
			}, groups...))
		}
	}
}
