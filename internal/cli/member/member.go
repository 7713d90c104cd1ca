// Package member has the commands over members and join tokens.
package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/summary"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

func Command(c *program.CLI) *cobra.Command {
	return program.Group("member", "show and change the membership",
		list(c), show(c), memberWait(c), drain(c), undrain(c), replace(c),
		remove(c), ban(c), unban(c))
}

func list(c *program.CLI) *cobra.Command {
	var kind, host string
	var labels []string
	cmd := c.Command(program.Command{
		Use: "list", Short: "list the members",
		Long: `List the members. HOST is what a machine said of itself when it joined, FROM where that join came ` +
			`from, and SCOPES
how much of what a member holds is the newest that there is, by its own word: -o wide shows the versions.`,
		Sample: `  fealty member list --kind data
  fealty member list --host web-7.example
  fealty member list --label rack=r2 --label row=b -o name`,
		Groups: []settings.Group{settings.Client}, Names: true,
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			if kind != "" && !identity.Kind(kind).Valid() {
				_, _, err := command.MemberArg(kind + "/x")
				return err
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := client.ListMembers(ctx, s.Members, &fealtyv1.ListMembersRequest{Kind: kind, Host: host,
					Labels: labels, PageSize: command.PageSize})
				if err != nil {
					return err
				}
				if at := resp.GetKnownAt(); at != nil {
					c.Say("the coordinator's store is out of reach: these are the members as it knew them %s",
						humanize.Relative(at.AsTime(), c.Env.Now()))
				}
				command.SayAltered(c.Say, resp.GetAltered())
				var names []string
				for _, m := range resp.GetMembers() {
					names = append(names, m.GetKind()+"/"+m.GetName())
				}
				return c.PrintList(names, program.ResultOf(message.Of(resp),
					func(p *term.Page) error { return p.Table(Table(resp.GetMembers(), c.Env.Now(), p.Wide)) }))
			})
		},
	})
	cmd.Flags().StringVar(&kind, "kind", "", "only members of this kind")
	cmd.Flags().StringVar(&host, "host", "", "only members whose machine reported this host name")
	cmd.Flags().StringSliceVar(&labels, "label", nil, "only members with this label, KEY=VALUE")
	program.CompleteFlag(cmd, "kind", cobra.FixedCompletions(command.MemberKinds(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// Table shows members; what only -o wide shows of them is put together if wide.
func Table(members []*fealtyv1.Member, now time.Time, wide bool) *term.Table {
	t := &term.Table{Columns: []term.Column{
		{Title: "STATE"}, {Title: "MEMBER"}, {Title: "SVID"}, {Title: "REPORT"}, {Title: "SCOPES"},
		{Title: "HOST", Least: 8},
		{Title: "FROM", Wide: true}, {Title: "OS", Wide: true}, {Title: "LABELS", Wide: true},
		{Title: "VERSIONS", Wide: true, Least: 12},
		{Title: "ALONE", Wide: true}, {Title: "RELEASE", Wide: true, Least: 8}, {Title: "ENTRY", Wide: true},
		{Title: "JOINED BY", Wide: true, Least: 12},
		{Title: "ROLES", Wide: true}, {Title: "ORGANIZATIONS", Wide: true}, {Title: "DOMAINS", Wide: true, Right: true},
		{Title: "KEY", Wide: true},
	}}
	for _, m := range members {
		live := m.GetLive()
		report := "-"
		if at := live.GetLastReport(); at != nil {
			report = humanize.Relative(at.AsTime(), now)
		}
		row := make([]term.Cell, len(t.Columns))
		copy(row, []term.Cell{summary.Member(m, now).Cell(), term.Txt(m.GetKind() + "/" + m.GetName()),
			term.Txt(humanize.Relative(m.GetSvidNotAfter().AsTime(), now)), term.Txt(report),
			summary.Current(live), term.Txt(command.Dash(m.GetReportedHost()))})
		if wide {
			copy(row[6:], wideCells(m, now))
		}
		t.Add(row...)
	}
	return t
}

// wideCells are the cells of a member in the columns of [Table] that only -o wide shows.
func wideCells(m *fealtyv1.Member, now time.Time) []term.Cell {
	live, alone := m.GetLive(), "-"
	if at := live.GetAutonomousUntil(); at != nil {
		alone = humanize.Relative(at.AsTime(), now)
	}
	return []term.Cell{term.Txt(command.Dash(m.GetSeenAddress())),
		term.Txt(command.Dash(m.GetReportedOs())), term.Txt(command.Dash(strings.Join(m.GetLabels(), ","))),
		term.Txt(command.Dash(summary.Versions(live.GetHeld()))), term.Txt(alone),
		term.Txt(command.Dash(live.GetRelease())), term.Txt(m.GetEntry()), term.Txt(m.GetJoinedBy()),
		term.Txt(command.Dash(strings.Join(m.GetRoles(), ","))), term.Txt(command.Dash(strings.Join(m.GetOrganizations(), ","))),
		term.Txt(command.Itoa(int64(len(m.GetDomains())))), term.Txt(Short(m.GetKeyId()))}
}

// NeedTable shows members that need somebody, and for how long each works alone.
func NeedTable(members []*fealtyv1.Member, now time.Time) *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "STATE"}, {Title: "MEMBER"}, {Title: "WORKS ALONE"}, {Title: "SVID"},
		{Title: "REPORT"}, {Title: "SCOPES"}, {Title: "HOST", Least: 8}}}
	for _, m := range members {
		live := m.GetLive()
		report := "-"
		if at := live.GetLastReport(); at != nil {
			report = humanize.Relative(at.AsTime(), now)
		}
		t.Add(summary.Member(m, now).Cell(), term.Txt(m.GetKind()+"/"+m.GetName()), term.Txt(summary.Alone(m, now)),
			term.Txt(humanize.Relative(m.GetSvidNotAfter().AsTime(), now)), term.Txt(report), summary.Current(live),
			term.Txt(command.Dash(m.GetReportedHost())))
	}
	return t
}

func show(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "show MEMBER", Short: "show a member, named as KIND/NAME",
		Sample: "  fealty member show data/node-c",
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("MEMBER"),
		Complete: func(ctx context.Context, cfg *settings.Values) []string { return memberNames(ctx, c, cfg) },
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			kind, name, err := command.MemberArg(args[0])
			if err != nil {
				return err
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Members.GetMember(ctx, &fealtyv1.GetMemberRequest{Kind: kind, Name: name})
				if err != nil {
					return err
				}
				return c.Print(program.ResultOf(message.Of(resp),
					func(p *term.Page) error {
						return p.Facts(append(summary.MemberFacts(resp.GetMember(), c.Env.Now()), summary.BesideFacts(resp, c.Env.Now())...))
					}))
			})
		},
	})
}

func memberWait(c *program.CLI) *cobra.Command {
	var what string
	wait := client.WaitFlag{D: client.Default}
	states := []string{"joined", "connected", "drained", "gone"}
	cmd := c.Command(program.Command{
		Use: "wait MEMBER", Short: "wait until a member joined, is connected, is drained, or is gone",
		Sample: `  fealty member wait data/node-c --wait=2m
  fealty member wait data/node-c --for gone`,
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("MEMBER"),
		Complete: func(ctx context.Context, cfg *settings.Values) []string { return memberNames(ctx, c, cfg) },
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			kind, name, err := command.MemberArg(args[0])
			if err != nil {
				return err
			}
			if !slices.Contains(states, what) {
				return errcode.New(errcode.BadValue, "name", "--for", "value", what, "problem",
					command.JoinText("nothing can be waited for by that name", humanize.Suggest(what, states)), "want",
					"one of "+strings.Join(states, ", "))
			}
			return c.Ask(cfg, func(s *client.Services) error {
				return waitFor(ctx, c, s, &fealtyv1.GetMemberRequest{Kind: kind, Name: name}, what, wait)
			})
		},
	})
	cmd.Flags().StringVar(&what, "for", "connected", "what to wait for: "+strings.Join(states, ", "))
	program.CompleteFlag(cmd, "for", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
	wait.Add(cmd, "how long to wait")
	return cmd
}

// waitedMember is what it prints of a member that is there.
type waitedMember struct {
	Member message.Form[*fealtyv1.Member] `json:"member"`
}

// goneMember is what fealty member wait --for gone prints.
type goneMember struct {
	Gone string `json:"gone"`
}

// waitFor asks for a member each second, and says when its state changes.
func waitFor(ctx context.Context, c *program.CLI, s *client.Services, req *fealtyv1.GetMemberRequest, what string,
	wait client.WaitFlag) error {
	path := req.GetKind() + "/" + req.GetName()
	said := ""
	pause := c.Pause(time.Second)
	m, err := client.Until(ctx, wait, path+" "+what, func(ctx context.Context) (*fealtyv1.Member, bool, error) {
		pause = c.Pause(time.Second / 2)
		resp, err := s.Members.GetMember(ctx, req)
		state := "not a member"
		switch {
		case err == nil:
			state = summary.Member(resp.GetMember(), c.Env.Now()).Word
		case !errors.Is(errcode.Of(err), errcode.NotFound):
			// A coordinator that recovers, or a network that is away, may come back.
			return nil, !client.MayPass(errcode.Of(err)), err
		}
		if state != said {
			c.Say("%s is %s", path, state)
			said = state
		}
		switch what {
		case "gone":
			return nil, err != nil, nil
		case "joined":
			return resp.GetMember(), err == nil, nil
		case "drained":
			// Neither a stranger nor a member in service gets there by itself.
			if err == nil && resp.GetMember().GetDrainingSince() == nil {
				err = errcode.New(errcode.MemberNotDraining, "member", path)
			}
			return resp.GetMember(), err != nil || drained(resp.GetMember()), err
		}
		m := resp.GetMember()
		return m, state == summary.Connected.Word || state == summary.Certified.Word ||
			state == summary.Draining.Word && m.GetLive().GetConnected(), nil
	}, &pause)
	if err != nil {
		return err
	}
	if m == nil {
		return c.Print(program.ResultOf(goneMember{Gone: path}, func(p *term.Page) error {
			p.Line("%s is no member",
				path)
			return nil
		}))
	}
	return c.Print(program.ResultOf(waitedMember{message.Of(m)}, func(p *term.Page) error {
		return p.Facts(summary.MemberFacts(m,
			c.Env.Now()))
	}))
}

// drained reports whether a member can be removed without taking anything along.
func drained(m *fealtyv1.Member) bool { return m.GetDrainingSince() != nil && len(m.GetDomains()) == 0 }

// memberChange is a change of one member.
type memberChange struct {
	use, short, long string
	// risk says what confirming it means; blank: it is not dangerous.
	risk string
	done string // said afterwards
	call func(ctx context.Context, s *client.Services, a memberArgs) (proto.Message, *fealtyv1.Member, string, error)

	reason, reasonRequired bool
	// force says what confirming it with --force means; blank: there is no --force.
	force string
	// until is what --wait waits for, as in member wait; blank: there is no --wait.
	until string
}

// memberArgs are what a change is asked for with.
type memberArgs struct {
	kind, name, reason string
	dry, force         bool
}

func changeMember(c *program.CLI, m memberChange) *cobra.Command {
	var dry, yes, forced bool
	var reason string
	var wait client.WaitFlag
	cmd := c.Command(program.Command{
		Use: m.use, Short: m.short, Long: m.long, Groups: []settings.Group{settings.Client},
		Args: command.Exactly("MEMBER"), Complete: func(ctx context.Context, cfg *settings.Values) []string {
			return memberNames(ctx, c, cfg)
		},
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			kind, name, err := command.MemberArg(args[0])
			if err != nil {
				return err
			}
			path := kind + "/" + name
			if (m.reasonRequired || forced) && reason == "" {
				return command.Missing("--reason", "it is kept in the audit log, and shown to whoever asks why",
					"--reason TEXT")
			}
			if m.risk != "" && !dry {
				risk := m.risk
				if forced {
					risk = m.force
				}
				if err := c.Confirm(ctx, "fealty member "+strings.Fields(m.use)[0], fmt.Sprintf(risk, path),
					yes); err != nil {
					return err
				}
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, member, more, err := m.call(ctx, s,
					memberArgs{kind: kind, name: name, reason: reason, dry: dry, force: forced})
				if err != nil {
					return err
				}
				if dry {
					c.Planned(path + " would be " + m.done)
				}
				if !dry && wait.D > 0 {
					return waitFor(ctx, c, s, &fealtyv1.GetMemberRequest{Kind: kind, Name: name}, m.until, wait)
				}
				return c.Print(program.ResultOf(message.Of(resp), func(p *term.Page) error {
					if dry {
						if member != nil {
							return p.Facts(summary.MemberFacts(member, c.Env.Now()))
						}
						return nil
					}
					p.Advise("%s", command.JoinText(path+" is "+m.done, more))
					return nil
				}))
			})
		},
	})
	if m.reason {
		cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	}
	if m.force != "" {
		cmd.Flags().BoolVar(&forced, "force", false, "also if it is at work and does not drain; takes --reason")
	}
	if m.until != "" {
		wait.Add(cmd, "wait until it is "+m.until)
	}
	command.DryRun(cmd.Flags(), &dry)
	// On all of them, so that who writes a script need not know which ones ask.
	help := "do not ask"
	if m.risk == "" {
		help += ": this can be taken back, and does not ask anyway"
	}
	cmd.Flags().BoolVar(&yes, "yes", false, help)
	return cmd
}

func drain(c *program.CLI) *cobra.Command {
	return changeMember(c, memberChange{
		use: "drain MEMBER", short: "take a member out of service before it goes",
		long: `Mark a member that is to go. It works on as before and keeps its domains until they have moved; it ` +
			`gets no new
ones, and no longer counts in the resilience baseline. The mark stays when it restarts, renews, rejoins, or is
replaced. With --wait the command ends when the member owns nothing any more. Draining twice changes nothing.`,
		done: "draining", reason: true, until: "drained",
		call: func(ctx context.Context, s *client.Services, a memberArgs) (proto.Message, *fealtyv1.Member, string,
			error) {
			resp, err := s.Members.DrainMember(ctx,
				&fealtyv1.DrainMemberRequest{Kind: a.kind, Name: a.name, Reason: a.reason, DryRun: a.dry})
			if err != nil {
				return nil, nil, "", err
			}
			more := "it owns " + humanize.Plural(len(resp.GetMember().GetDomains()), "domain", "domains")
			if drained(resp.GetMember()) {
				more = "it owns nothing; fealty member remove " + a.kind + "/" + a.name + " takes it out"
			}
			if !resp.GetChanged() {
				more = command.JoinWords("it was already", "; ", more)
			}
			return resp, resp.GetMember(), more, nil
		},
	})
}

func undrain(c *program.CLI) *cobra.Command {
	return changeMember(c, memberChange{
		use: "undrain MEMBER", short: "put a member that drains back into service",
		long: "Take the mark of fealty member drain away: the member counts again, and may get domains again.",
		done: "in service",
		call: func(ctx context.Context, s *client.Services, a memberArgs) (proto.Message, *fealtyv1.Member, string,
			error) {
			resp, err := s.Members.UndrainMember(ctx,
				&fealtyv1.UndrainMemberRequest{Kind: a.kind, Name: a.name, DryRun: a.dry})
			more := ""
			if err == nil && !resp.GetChanged() {
				more = "it was not draining"
			}
			return resp, resp.GetMember(), more, err
		},
	})
}

func remove(c *program.CLI) *cobra.Command {
	return changeMember(c, memberChange{
		use: "remove MEMBER", short: "remove a member that owns nothing",
		long: `Remove the record of a member that owns nothing. Its certificate ends at once, its keys are banned, ` +
			`and its name is
free. A member that is at work is refused, as its name may be a slip: drain it first, or use --force.`,
		risk: "%s will be a member no more: its connections end at once, and it has to join as at first",
		done: "removed", reason: true,
		force: "%s is removed even if it is at work: its connections end at once, and it has to join as at first",
		call: func(ctx context.Context, s *client.Services, a memberArgs) (proto.Message, *fealtyv1.Member, string,
			error) {
			resp, err := s.Members.RemoveMember(ctx,
				&fealtyv1.RemoveMemberRequest{Kind: a.kind, Name: a.name, DryRun: a.dry, Force: a.force,
					Reason: a.reason})
			return resp, resp.GetMember(), "", err
		},
	})
}

func replace(c *program.CLI) *cobra.Command {
	return changeMember(c, memberChange{
		use: "replace MEMBER", short: "let another machine take a member's name",
		long: "Ban the keys of a member and let the next proof take its name and record: for a machine that was " +
			"replaced.",
		risk: "the machine that is %s now is cut off at once, and the next one with a proof takes its name",
		done: "free for its next machine", reason: true,
		call: func(ctx context.Context, s *client.Services, a memberArgs) (proto.Message, *fealtyv1.Member, string,
			error) {
			resp, err := s.Members.ReplaceMember(ctx,
				&fealtyv1.ReplaceMemberRequest{Kind: a.kind, Name: a.name, Reason: a.reason, DryRun: a.dry})
			return resp, resp.GetMember(),
				"make a token with its name: fealty token create --entry " + resp.GetMember().GetEntry() + " --name " +
					a.name, err
		},
	})
}

func ban(c *program.CLI) *cobra.Command {
	return changeMember(c, memberChange{
		use: "ban MEMBER", short: "forbid an identity and its keys, wherever a coordinator is reached",
		long: `Forbid an identity and all keys that it had. Coordinators refuse it at once, and members when they hear of it, within
seconds where they reach a coordinator. A name that is no member yet can be banned too.`,
		risk: "%s is cut off within seconds, wherever a coordinator is reached, and cannot come back under this name or with any key that it had",
		done: "banned", reason: true, reasonRequired: true,
		call: func(ctx context.Context, s *client.Services, a memberArgs) (proto.Message, *fealtyv1.Member, string,
			error) {
			resp, err := s.Members.BanMember(ctx, &fealtyv1.BanMemberRequest{Kind: a.kind, Name: a.name,
				Reason: a.reason, DryRun: a.dry})
			if err == nil && resp.GetMember() == nil {
				c.Say("no member %s/%s is known: check the name; banning it keeps it from joining", a.kind, a.name)
			}
			return resp, resp.GetMember(), endedWhere(resp), err
		},
	})
}

// endedWhere says what a ban ended at which coordinator. A coordinator that was not heard does not count as 0.
func endedWhere(resp *fealtyv1.BanMemberResponse) string {
	if len(resp.GetEnded()) == 0 { // a coordinator of an earlier release counts its own
		return "the coordinator that was asked ended " + humanize.Plural(resp.GetConnectionsClosed(), "connection",
			"connections") + " of it"
	}
	var parts, none, silent []string
	for _, at := range resp.GetEnded() {
		switch {
		case !at.GetAnswered():
			silent = append(silent, at.GetCoordinator())
		case at.GetConnections() == 0:
			none = append(none, at.GetCoordinator())
		default:
			parts = append(parts,
				humanize.Plural(at.GetConnections(), "connection", "connections")+" of it ended at "+at.GetCoordinator())
		}
	}
	switch {
	case len(none) > 0 && len(parts) > 0:
		parts = append(parts, "none at "+strings.Join(none, ", "))
	case len(none) > 0:
		parts = append(parts, "it had no connection at "+strings.Join(none, ", "))
	}
	if len(silent) > 0 {
		parts = append(parts, "not known of "+strings.Join(silent, ", ")+", which did not answer")
	}
	return strings.Join(parts, "; ")
}

func unban(c *program.CLI) *cobra.Command {
	return changeMember(c, memberChange{
		use: "unban MEMBER", short: "lift the ban of an identity; its keys stay banned",
		long: "Lift the ban of an identity. The keys that it had stay banned, so that it has to join with a proof as " +
			"at first.",
		done: "banned no more",
		call: func(ctx context.Context, s *client.Services, a memberArgs) (proto.Message, *fealtyv1.Member, string,
			error) {
			resp, err := s.Members.UnbanMember(ctx,
				&fealtyv1.UnbanMemberRequest{Kind: a.kind, Name: a.name, DryRun: a.dry})
			return resp, nil,
				"its old keys stay refused for " + humanize.Span(resp.GetKeysBannedFor().AsDuration()), err
		},
	})
}

// Short shows the beginning of a hash.
func Short(s string) string {
	if len(s) <= 16 {
		return s
	}
	return s[:16]
}

// memberNames are the members, as KIND/NAME.
func memberNames(ctx context.Context, c *program.CLI, cfg *settings.Values) (out []string) {
	_ = c.Ask(cfg, func(s *client.Services) error {
		resp, err := client.ListMembers(ctx, s.Members, &fealtyv1.ListMembersRequest{PageSize: command.PageSize})
		for _, m := range resp.GetMembers() {
			out = append(out, m.GetKind()+"/"+m.GetName())
		}
		return err
	})
	return out
}
