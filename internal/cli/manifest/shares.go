package manifest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/keyfile"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

func manifestShares(c *program.CLI) *cobra.Command {
	var out string
	cmd := c.Command(program.Command{
		Use: "shares", Short: "fetch the encrypted shares of the seed, for their owners",
		Long: `Fetch the shares of the seed that belong to the manifest in force, each encrypted to its owner's ` +
			`key. With --out
each is written to a file of its own, named after its owner, to be handed to that person. Nobody else can open it.

In recovery mode a coordinator hands them out on its own machine, over --socket, as its store holds them: it cannot
check them without the seed. fealty recover does before it sends one.

The same files come out of fealty manifest set and fealty manifest reshare with --shares-out.`,
		Sample: "  fealty manifest shares --out shares",
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Manifest.GetSeedShares(ctx, &fealtyv1.GetSeedSharesRequest{})
				if err != nil {
					return err
				}
				if err := c.Print(program.ResultOf(message.Of(resp), func(p *term.Page) error {
					if len(resp.GetShares()) == 0 {
						return nil // said below
					}
					t := &term.Table{Columns: []term.Column{{Title: "OWNER"}, {Title: "MADE AT INDEX", Right: true},
						{Title: "BYTES", Right: true}}}
					for _, x := range resp.GetShares() {
						t.Add(term.Txt(x.GetOwner()), term.Txt(command.Itoa(int64(resp.GetTransition().GetIndex()))),
							term.Txt(command.Itoa(int64(len(x.GetFile())))))
					}
					return p.Table(t)
				})); err != nil {
					return err
				}
				if resp.GetUnverified() {
					c.Say("the coordinator is in recovery mode and could not check these; fealty recover does before " +
						"it sends one")
				}
				if gone := resp.GetMissing(); len(gone) > 0 {
					c.Say("the store does not hold the share of %s", strings.Join(gone, ", "))
				}
				switch {
				case len(resp.GetShares()) == 0 && len(resp.GetMissing()) > 0:
					return errcode.New(errcode.NotFound, "what", "share in the store for", "name",
						strings.Join(resp.GetMissing(), ", "))
				case len(resp.GetShares()) == 0:
					c.Say("there are no shares: no owner of the seed in the manifest in force is a person, and its " +
						"keepers hold the seed")
					return nil
				case out == "":
					c.Say("next: fealty manifest shares --out DIR")
					return nil
				}
				return writeShares(c, cfg, out, resp.GetShares())
			})
		},
	})
	cmd.Flags().StringVar(&out, "out", "", "write each share to a file in this folder")
	return cmd
}

// shareFile is where the share of an owner goes.
func shareFile(dir, owner string) string { return filepath.Join(dir, owner+".share") }

// readySharesDir makes the folder for the shares of m's people, and refuses one
// that holds a file of theirs: what is found out before a set undoes nothing.
func readySharesDir(cfg *settings.Values, dir string, m *manifest.Manifest, dry bool) error {
	people := m.Seed.People()
	if len(people) == 0 {
		return errcode.New(errcode.BadValue, "name", "--shares-out", "value", dir, "problem",
			"no owner of the seed in this manifest is a person with a share", "want", "the set without it")
	}
	dir = cfg.Within(dir)
	if !dry {
		if err := makeSharesDir(dir); err != nil {
			return err
		}
	}
	for _, o := range people {
		if _, err := os.Lstat(shareFile(dir, o.Name)); !errors.Is(err, fs.ErrNotExist) {
			return errcode.Wrap(err, errcode.FileExists, "file", shareFile(dir, o.Name), "purpose",
				"a share of the seed")
		}
	}
	return nil
}

func makeSharesDir(dir string) error {
	if err := durable.OS().MkdirAll(dir); err != nil {
		return errcode.Wrap(err, errcode.FileNotWritten, "file", dir, "purpose", "the folder for shares", "cause",
			render.Bare(err).Error())
	}
	return nil
}

// writeShares writes one file for each owner.
func writeShares(c *program.CLI, cfg *settings.Values, dir string, shares []*fealtyv1.SeedShare) error {
	dir = cfg.Within(dir)
	if err := makeSharesDir(dir); err != nil {
		return err
	}
	for _, x := range shares {
		// The name becomes a path, and comes from elsewhere.
		if !manifest.IsName(x.GetOwner()) {
			return errcode.New(errcode.PeerProtocol, "problem",
				"it sent a share of the seed for an owner whose name is none")
		}
		if err := keyfile.Create(shareFile(dir, x.GetOwner()), x.GetFile(), 0o600,
			"the share of "+x.GetOwner()); err != nil {
			return err
		}
	}
	c.Say("wrote %s of the seed to %s: give each owner the file of their name, which their key alone opens",
		humanize.Plural(len(shares), "share", "shares"), dir)
	return nil
}

// tellOfShares says where the shares are that a set made, or writes them.
func tellOfShares(c *program.CLI, cfg *settings.Values, dir string, shares []*fealtyv1.SeedShare) error {
	switch {
	case len(shares) == 0:
		return nil
	case dir == "":
		c.Say("%s of the seed to hand out, to %s: fealty manifest shares --out DIR",
			humanize.Plural(len(shares), "share", "shares"), owners(shares))
		return nil
	}
	if err := writeShares(c, cfg, dir, shares); err != nil {
		c.Say("the manifest is in force all the same; to get the shares again: fealty manifest shares --out DIR")
		return err
	}
	return nil
}

func owners(shares []*fealtyv1.SeedShare) string {
	names := make([]string, 0, len(shares))
	for _, x := range shares {
		names = append(names, x.GetOwner())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// advise tells what a manifest allows and may surprise later.
func advise(c *program.CLI, m *manifest.Manifest) {
	for _, a := range m.Advise(c.Env.Now()) {
		kind := "note"
		if a.Warning {
			kind = "warning"
		}
		c.Say("%s: %s: %s; %s", kind, a.Field, a.What, a.Do)
	}
}
