package cli

import (
	"context"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
)

// version is what fealty version prints.
type version struct {
	Release  string `json:"release"`
	Revision string `json:"revision"`
	Changed  bool   `json:"changed"` // since that revision
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionCommand(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "version", Short: "print the release of this program",
		Run: func(context.Context, *settings.Values, []string) error {
			v := version{Release: c.Env.Release, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
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
			return c.Print(program.ResultOf(v, func(p *term.Page) error {
				p.Line("fealty %s", v.Release)
				if p.Wide {
					p.Line("revision %s, %s, %s", command.Dash(v.Revision), v.Go, v.Platform)
				}
				return nil
			}))
		},
	})
}
