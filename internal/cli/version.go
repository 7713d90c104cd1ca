package cli

import (
	"context"
	"runtime"

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
	Date     string `json:"date"`    // of that revision
	Changed  bool   `json:"changed"` // since that revision
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionCommand(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "version", Short: "print the release of this program, and the commit that it was built from",
		Run: func(context.Context, *settings.Values, []string) error {
			b := program.Built()
			v := version{Release: c.Env.Release, Revision: b.Commit, Date: b.Date, Changed: b.Changed,
				Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			return c.Print(program.ResultOf(v, func(p *term.Page) error {
				line := "fealty " + v.Release
				if v.Revision != "" {
					line += ", commit " + v.Revision + " of " + command.Dash(v.Date)
				}
				if v.Changed {
					line += ", with changes"
				}
				p.Line("%s", line)
				if p.Wide {
					p.Line("%s, %s", v.Go, v.Platform)
				}
				return nil
			}))
		},
	})
}
