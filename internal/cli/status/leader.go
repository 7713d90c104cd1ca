package status

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/summary"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
)

func Leader(c *program.CLI) *cobra.Command {
	return program.Group("leader", "show and change which coordinator leads", leaderShow(c), leaderTransfer(c))
}

func leaderShow(c *program.CLI) *cobra.Command {
	var wait client.WaitFlag
	cmd := c.Command(program.Command{
		Use: "show", Short: "show which coordinator leads, under which term, and since when",
		Long: `Show which coordinator leads, as far as the one that is asked can tell. The leader compiles what ` +
			`members are told,
ends rotations and prunes; everything else is served by every coordinator that is ready.`,
		Sample: `  fealty leader show
  fealty leader show --wait=30s -o json`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return c.Ask(cfg, func(s *client.Services) error {
				pause := c.Pause(time.Second / 20)
				resp, err := client.Until(ctx, wait, "a leader",
					func(ctx context.Context) (*fealtyv1.GetLeaderResponse, bool, error) {
						resp, err := s.Leader.GetLeader(ctx, &fealtyv1.GetLeaderRequest{})
						if err != nil {
							return nil, !client.MayPass(errcode.Of(err)), err
						}
						return resp, resp.GetLeader().GetTerm() != 0, nil
					}, &pause)
				if err != nil {
					return err
				}
				return c.Print(leaderResult(c, resp))
			})
		},
	})
	wait.Add(cmd, "wait until a coordinator leads")
	return cmd
}

// leaderResponse is a response with the coordinator that leads.
type leaderResponse interface {
	proto.Message
	GetLeader() *fealtyv1.Leader
}

// leaderResult shows who leads.
func leaderResult(c *program.CLI, resp leaderResponse) program.Result {
	l, now := resp.GetLeader(), c.Env.Now()
	return program.ResultOf(message.Of(resp), func(p *term.Page) error {
		var f term.Facts
		summary.AddLeader(&f, l, now)
		if l.GetTerm() != 0 {
			f.Add("enrolment key", l.GetEnrolmentKey())
		}
		return p.Facts(f)
	})
}

func leaderTransfer(c *program.CLI) *cobra.Command {
	var to, reason string
	var dry bool
	cmd := c.Command(program.Command{
		Use: "transfer", Short: "have another coordinator lead",
		Long: `End the term of the coordinator that leads, in favour of another one that is ready. From the moment ` +
			`that this is
stored the store refuses what the old leader writes; the next one takes over within a fraction of a second, the one
that --to names before all others. If that one does not, any other does after the lease.

A coordinator that is stopped hands over by itself. Nothing is lost by a transfer, and no member notices.`,
		Sample: `  fealty leader transfer
  fealty leader transfer --to coordinator-2 --reason "maintenance of host 1"`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Leader.TransferLeader(ctx,
					&fealtyv1.TransferLeaderRequest{To: to, Reason: reason, DryRun: dry})
				if err != nil {
					return err
				}
				before, now := resp.GetBefore(), resp.GetLeader()
				if dry {
					next := resp.GetTo()
					if next == "" {
						next = "another coordinator that is ready"
					}
					c.Planned(fmt.Sprintf("%s, which leads under term %d, would hand over to %s", before.GetName(),
						before.GetTerm(), next))
				}
				if err := c.Print(leaderResult(c, resp)); err != nil || dry {
					return err
				}
				switch {
				case now.GetTerm() == before.GetTerm():
					c.Say("%s leads already; nothing was changed", now.GetName())
				case now.GetTerm() == 0:
					c.Say("%s leads no more, and nobody has taken over yet: fealty leader show", before.GetName())
				case to != "" && now.GetName() != to:
					c.Say("%s leads no more; %s did not take over in time, and %s did", before.GetName(), to,
						now.GetName())
				default:
					c.Say("%s leads no more", before.GetName())
				}
				return nil
			})
		},
	})
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "the name of the coordinator that is to lead (default any other that is ready)")
	f.StringVar(&reason, "reason", "", "why, for the audit log")
	command.DryRun(cmd.Flags(), &dry)
	return cmd
}
