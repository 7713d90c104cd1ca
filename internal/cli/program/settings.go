package program

import (
	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
)

// load finds the settings of groups for a command, and takes the form that data comes in
// from them.
func (c *CLI) load(cmd *cobra.Command, groups ...settings.Group) (*settings.Values, error) {
	cfg, err := settings.Load(settings.Origin{Dir: c.Env.Dir, Environ: c.Env.Environ, Flag: cmd.Flag}, groups...)
	if err != nil {
		return nil, err
	}
	c.Format = term.Format(cfg.Text("output"))
	return cfg, nil
}

// inForce is a setting in force.
type inForce struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// allInForce is what --print-config prints.
type allInForce struct {
	Settings []inForce `json:"settings"`
}

// printConfig shows what is in force.
func (c *CLI) printConfig(cfg *settings.Values) error {
	items := make([]inForce, 0, len(cfg.InForce))
	t := &term.Table{Columns: []term.Column{{Title: "SETTING"}, {Title: "VALUE", Least: 20}, {Title: "FROM"},
		{Title: "MEANING", Wide: true}}}
	for _, v := range cfg.InForce {
		text := v.Setting.Shown(v.Text)
		shown, meaning := text, v.Help
		if shown == "" {
			shown, meaning = "-", v.Zero
		}
		t.Add(term.Txt(v.Key), term.Txt(shown), term.Txt(v.From), term.Txt(meaning))
		items = append(items, inForce{Key: v.Key, Value: text, From: v.From})
	}
	return c.Print(ResultOf(allInForce{Settings: items}, func(p *term.Page) error { return p.Table(t) }))
}
