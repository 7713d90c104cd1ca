package cli

import (
	"context"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/term"
)

func (c *CLI) versionCommand() *cobra.Command {
	return c.command(spec{
		use: "version", short: "print the release of this program",
		run: func(context.Context, *settings.Values, []string) error {
			revision, changed := "", false
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					switch s.Key {
					case "vcs.revision":
						revision = s.Value
					case "vcs.modified":
						changed = s.Value == "true"
					}
				}
			}
			platform := runtime.GOOS + "/" + runtime.GOARCH
			data := object{{"release", c.env.Release}, {"revision", revision}, {"changed", changed}, {"go", runtime.Version()}, {"platform", platform}}
			return c.print(result{data, func(p *term.Page) error {
				p.Line("fealty %s", c.env.Release)
				if p.Wide {
					p.Line("revision %s, %s, %s", command.Dash(revision), runtime.Version(), platform)
				}
				return nil
			}})
		},
	})
}
