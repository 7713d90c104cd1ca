package cli

import (
	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/domaincmd"
	"github.com/fealty-io/fealty/internal/instructcmd"
	"github.com/fealty-io/fealty/internal/registrycmd"
)

// fencingCommands are those over what says who may act.
func fencingCommands(c *program.CLI) (out []*cobra.Command) {
	for _, of := range []struct {
		name, short string
		commands    []command.Command
	}{
		{"domain", "show and change which member owns which domain", domaincmd.Commands()},
		{"quota", "show and change how many machines tenants may have", registrycmd.Quotas()},
		{"instruction", "have a member do something once, and show what became of it", instructcmd.Commands()},
	} {
		out = append(out, program.Noun(of.name, of.short, program.Below(c, of.commands)...))
	}
	return out
}
