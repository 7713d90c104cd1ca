package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/reference"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/term"
)

func (c *CLI) authzCommand() *cobra.Command {
	var kind string
	cmd := c.command(spec{
		use: "authz", short: "show who may call what",
		long:   "Show who may call what: the table that servers of this release enforce, as it is read from the protocol. It needs no coordinator.",
		sample: "  fealty authz --kind readonly",
		run: func(context.Context, *settings.Values, []string) error {
			if kind != "" && !identity.Kind(kind).Valid() {
				_, _, err := memberArg(kind + "/x")
				return err
			}
			rules, err := reference.Rules()
			if err != nil {
				return err
			}
			t := &term.Table{Columns: []term.Column{{Title: "METHOD"}, {Title: "CALLERS", Least: 12},
				{Title: "BOUND TO"}, {Title: "SOCKET"}, {Title: "WHY", Least: 24}}}
			items := list{}
			for _, r := range rules {
				callers := reference.KindNames(r)
				if kind != "" && !r.Open && !strings.Contains(" "+strings.Join(callers, " ")+" ", " "+kind+" ") {
					continue
				}
				t.Add(term.Txt(reference.MethodName(r)), term.Txt(reference.Callers(r)), term.Txt(command.Dash(r.Bind)),
					term.Txt(reference.Socket(r)), term.Txt(r.Why))
				items = append(items, object{{"method", r.Method}, {"kinds", texts(callers)}, {"open", r.Open}, {"local", r.Local}, {"consumers", r.Consumers}, {"bind", r.Bind}, {"why", r.Why}})
			}
			return c.print(result{object{{"rules", items}}, func(p *term.Page) error { return p.Table(t) }})
		},
	})
	cmd.Flags().StringVar(&kind, "kind", "", "only what this kind may call")
	return cmd
}
