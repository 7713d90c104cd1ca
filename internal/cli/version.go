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

// version is what fealty version prints.
type version struct {
	Release  string `json:"release"`
	Revision string `json:"revision"`
	Changed  bool   `json:"changed"` // since that revision
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionCommand(c *CLI) *cobra.Command {
	return c.command(spec{
		use: "version", short: "print the release of this program",
		run: func(context.Context, *settings.Values, []string) error {
			v := version{Release: c.env.Release, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					switch s.Key {
					case "vcs.revision":
						v.Revision = s.Value
					case "vcs.modified":
						v.Changed = s.Value == "true"
					}
				}
			}
			return c.print(result{v, func(p *term.Page) error {
				p.Line("fealty %s", v.Release)
				if p.Wide {
					p.Line("revision %s, %s, %s", command.Dash(v.Revision), v.Go, v.Platform)
				}
				return nil
			}})
		},
	})
}
