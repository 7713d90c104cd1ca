package manifest

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
)

func keeper(c *program.CLI) *cobra.Command {
	return program.Group("keeper", "look after the keys of the seed's keepers", keeperForget(c))
}

func keeperForget(c *program.CLI) *cobra.Command {
	var reason string
	var dry, yes bool
	cmd := c.Command(program.Command{
		Use: "forget NAME KEYID", Short: "say that a key of a keeper is lost for good",
		Long: `Remove what the keeper NAME of the manifest in force sealed under the key KEYID, which is lost for ` +
			`good: its
file, and its backup. fealty status names the keys of keepers that open nothing.

No coordinator makes a key in the place of one that is missing, because a backup of it may exist. With the last
sealed copy of a keeper forgotten the next manifest that is set makes a new key, and says where.

The last copy that a coordinator opens is kept.`,
		Sample: `  fealty manifest keeper forget host 9d6e7f12d9fd22fe --reason "its disk burned, and there was no ` +
			`backup"
  fealty manifest keeper forget host 9d6e7f12d9fd22fe --dry-run`,
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("NAME", "KEYID"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			return c.Ask(cfg, func(s *client.Services) error {
				if !dry {
					risk := fmt.Sprintf(
						"what keeper %s sealed under key %s opens for nobody any more, also if its file is found",
						args[0], args[1])
					if err := c.Confirm(ctx, "fealty manifest keeper forget", risk, yes); err != nil {
						return err
					}
				}
				resp, err := s.Manifest.ForgetKeeperKey(ctx,
					&fealtyv1.ForgetKeeperKeyRequest{Keeper: args[0], KeyId: args[1], Reason: reason, DryRun: dry})
				if err != nil {
					return err
				}
				if dry {
					c.Planned(fmt.Sprintf("what keeper %s sealed under key %s would be removed", args[0], args[1]))
				}
				if err := c.Print(program.ResultOf(message.Of(resp),
					func(p *term.Page) error { return nil })); err != nil || dry {
					return err
				}
				if len(resp.GetKeyIds()) > 0 {
					c.Say("forgotten; keeper %s has the seed sealed under key %s still", args[0],
						strings.Join(resp.GetKeyIds(), ", "))
					return nil
				}
				c.Say("forgotten; keeper %s has nothing sealed now: fealty manifest set seals with the key that is "+
					"there, or with one that it makes", args[0])
				return nil
			})
		},
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	command.DryRun(cmd.Flags(), &dry)
	return cmd
}

// tellOfKeys says which keys of keepers were made, and where: now is the time for a backup.
func tellOfKeys(c *program.CLI, made []*fealtyv1.KeeperKey) {
	for _, k := range made {
		c.Say("made key %s of keeper %s: the file %s on the machine of %s. Back it up now, and copy it to each "+
			"machine that is to have this keeper",
			k.GetKeyId(), k.GetKeeper(), k.GetFile(), k.GetCoordinator())
	}
}
