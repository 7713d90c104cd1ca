package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/amount"
	"github.com/fealty-io/fealty/internal/cli/line"
	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/output"
	"github.com/fealty-io/fealty/internal/output/message"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/term"
)

func leaderCommand(c *CLI) *cobra.Command {
	return noun("leader", "show and change which coordinator leads", leaderShow(c), leaderTransfer(c))
}

func leaderShow(c *CLI) *cobra.Command {
	var wait waiting
	cmd := c.command(spec{
		use: "show", short: "show which coordinator leads, under which term, and since when",
		long: `Show which coordinator leads, as far as the one that is asked can tell. The leader compiles what members are told,
ends rotations and prunes; everything else is served by every coordinator that is ready.`,
		sample: `  fealty leader show
  fealty leader show --wait=30s -o json`,
		groups: []settings.Group{settings.Client},
		run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return c.asking(cfg, func(s *line.Services) error {
				pause := time.Second / 20
				resp, err := until(ctx, wait, "a leader", func(ctx context.Context) (*fealtyv1.GetLeaderResponse, bool, error) {
					resp, err := s.Leader.GetLeader(ctx, &fealtyv1.GetLeaderRequest{})
					if err != nil {
						return nil, !mayPass(explain.Of(err)), err
					}
					return resp, resp.GetLeader().GetTerm() != 0, nil
				}, &pause)
				if err != nil {
					return err
				}
				return c.print(leaderResult(c, message.Of(resp), resp.GetLeader()))
			})
		},
	})
	wait.flag(cmd, "wait until a coordinator leads")
	return cmd
}

// leaderResult shows who leads.
func leaderResult(c *CLI, data output.Object, l *fealtyv1.Leader) result {
	now := c.env.Now()
	return result{data, func(p *term.Page) error {
		var f term.Facts
		addLeader(&f, l, now)
		if l.GetTerm() != 0 {
			f.Add("enrolment key", l.GetEnrolmentKey())
		}
		return p.Facts(f)
	}}
}

// addLeader adds who leads to the facts of a cluster.
func addLeader(f *term.Facts, l *fealtyv1.Leader, now time.Time) {
	switch {
	case l == nil: // an older coordinator does not say
	case l.GetTerm() == 0:
		f.Paint("leader", term.Amber, "nobody, for "+amount.Span(l.GetNobodyFor().AsDuration()))
	default:
		answers := ""
		if l.GetSelf() {
			answers = " (answers)"
		}
		f.Add("leader", fmt.Sprintf("%s%s, term %d, since %s, %s", l.GetName(), answers, l.GetTerm(),
			command.When(l.GetSince()), amount.Relative(l.GetSince().AsTime(), now)))
	}
}

func leaderTransfer(c *CLI) *cobra.Command {
	var to, reason string
	var dry bool
	cmd := c.command(spec{
		use: "transfer", short: "have another coordinator lead",
		long: `End the term of the coordinator that leads, in favour of another one that is ready. From the moment that this is
stored the store refuses what the old leader writes; the next one takes over within a fraction of a second, the one
that --to names before all others. If that one does not, any other does after the lease.

A coordinator that is stopped hands over by itself. Nothing is lost by a transfer, and no member notices.`,
		sample: `  fealty leader transfer
  fealty leader transfer --to coordinator-2 --reason "maintenance of host 1"`,
		groups: []settings.Group{settings.Client},
		run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return c.asking(cfg, func(s *line.Services) error {
				resp, err := s.Leader.TransferLeader(ctx, &fealtyv1.TransferLeaderRequest{To: to, Reason: reason, DryRun: dry})
				if err != nil {
					return err
				}
				before, now := resp.GetBefore(), resp.GetLeader()
				if dry {
					next := resp.GetTo()
					if next == "" {
						next = "another coordinator that is ready"
					}
					c.planned(fmt.Sprintf("%s, which leads under term %d, would hand over to %s", before.GetName(), before.GetTerm(), next))
				}
				if err := c.print(leaderResult(c, message.Of(resp), now)); err != nil || dry {
					return err
				}
				switch {
				case now.GetTerm() == before.GetTerm():
					c.talk("%s leads already; nothing was changed", now.GetName())
				case now.GetTerm() == 0:
					c.talk("%s leads no more, and nobody has taken over yet: fealty leader show", before.GetName())
				case to != "" && now.GetName() != to:
					c.talk("%s leads no more; %s did not take over in time, and %s did", before.GetName(), to, now.GetName())
				default:
					c.talk("%s leads no more", before.GetName())
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
