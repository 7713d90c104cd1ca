package cli

import (
	"context"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (c *CLI) versionCommand() *cobra.Command {
	return c.command(spec{
		use: "version", short: "print the release of this program",
		run: func(context.Context, *config, []string) error {
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
			return c.print(result{data, func(p *page) error {
				p.line("fealty %s", c.env.Release)
				if p.wide {
					p.line("revision %s, %s, %s", dash(revision), runtime.Version(), platform)
				}
				return nil
			}})
		},
	})
}
