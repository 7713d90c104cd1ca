package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/reference"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
)

// callRule says who may call a method.
type callRule struct {
	Method    string     `json:"method"`
	Kinds     term.Texts `json:"kinds"`
	Open      bool       `json:"open"`
	Local     bool       `json:"local"`
	Consumers bool       `json:"consumers"`
	Bind      string     `json:"bind"`
	Why       string     `json:"why"`
}

// callRules is what fealty authz prints.
type callRules struct {
	Rules []callRule `json:"rules"`
}

func authzCommand(c *program.CLI) *cobra.Command {
	var kind string
	cmd := c.Command(program.Command{
		Use: "authz", Short: "show who may call what",
		Long: "Show who may call what: the table that servers of this release enforce, as it is read from the " +
			"protocol. It needs no coordinator.",
		Sample: "  fealty authz --kind readonly",
		Run: func(context.Context, *settings.Values, []string) error {
			if kind != "" && !identity.Kind(kind).Valid() {
				_, _, err := command.MemberArg(kind + "/x")
				return err
			}
			rules, err := reference.Rules()
			if err != nil {
				return err
			}
			t := &term.Table{Columns: []term.Column{{Title: "METHOD"}, {Title: "CALLERS", Least: 12},
				{Title: "BOUND TO"}, {Title: "SOCKET"}, {Title: "WHY", Least: 24}}}
			items := []callRule{}
			for _, r := range rules {
				callers := reference.KindNames(r)
				if kind != "" && !r.Open && !strings.Contains(" "+strings.Join(callers, " ")+" ", " "+kind+" ") {
					continue
				}
				t.Add(term.Txt(reference.MethodName(r)), term.Txt(reference.Callers(r)), term.Txt(command.Dash(r.Bind)),
					term.Txt(reference.Socket(r)), term.Txt(r.Why))
				items = append(items, callRule{Method: r.Method, Kinds: callers, Open: r.Open, Local: r.Local,
					Consumers: r.Consumers, Bind: r.Bind, Why: r.Why})
			}
			return c.Print(program.ResultOf(callRules{Rules: items}, func(p *term.Page) error { return p.Table(t) }))
		},
	})
	cmd.Flags().StringVar(&kind, "kind", "", "only what this kind may call")
	return cmd
}
