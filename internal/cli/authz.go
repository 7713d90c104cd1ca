package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/explain"
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
			rules, err := authzRules()
			if err != nil {
				return err
			}
			t := &term.Table{Columns: []term.Column{{Title: "METHOD"}, {Title: "CALLERS", Least: 12},
				{Title: "BOUND TO"}, {Title: "SOCKET"}, {Title: "WHY", Least: 24}}}
			items := list{}
			for _, r := range rules {
				callers := kindNames(r)
				if kind != "" && !r.Open && !strings.Contains(" "+strings.Join(callers, " ")+" ", " "+kind+" ") {
					continue
				}
				t.Add(term.Txt(method(r)), term.Txt(callersText(r)), term.Txt(command.Dash(r.Bind)),
					term.Txt(socketText(r)), term.Txt(r.Why))
				items = append(items, object{{"method", r.Method}, {"kinds", texts(callers)}, {"open", r.Open}, {"local", r.Local}, {"consumers", r.Consumers}, {"bind", r.Bind}, {"why", r.Why}})
			}
			return c.print(result{object{{"rules", items}}, func(p *term.Page) error { return p.Table(t) }})
		},
	})
	cmd.Flags().StringVar(&kind, "kind", "", "only what this kind may call")
	return cmd
}

// authzRules returns the authorization table of all services.
func authzRules() ([]authz.Rule, error) {
	services, err := authz.Services(authz.APIServices()...)
	if err != nil {
		return nil, explain.Wrap(err, explain.Internal, "what", "the authorization table")
	}
	table, err := authz.NewTable(services...)
	if err != nil {
		return nil, explain.Wrap(err, explain.Internal, "what", "the authorization table")
	}
	return table.Rows(), nil
}

func method(r authz.Rule) string { return strings.TrimPrefix(r.Method, "/fealty.v1.") }

func kindNames(r authz.Rule) []string {
	out := make([]string, len(r.Kinds))
	for i, k := range r.Kinds {
		out[i] = string(k)
	}
	return out
}

// socketText says whether it is served on the local socket.
func socketText(r authz.Rule) string {
	switch {
	case r.Consumers:
		return "yes, and to consumers"
	case r.Local:
		return "yes"
	}
	return "-"
}

// callersText says who may call, over the network.
func callersText(r authz.Rule) string {
	switch {
	case r.Open:
		return "anybody"
	case len(r.Kinds) == 0:
		return "nobody"
	}
	return strings.Join(kindNames(r), ", ")
}
