// Package trust has the commands over roots, keys, bans and emergency statements that members
// believe, and those that read and verify certificates in files.
package trust

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
)

func Command(c *program.CLI) *cobra.Command {
	return program.Group("trust", "show and change what the members believe", show(c), rotate(c),
		revoke(c), emergencyCommand(c), export(c))
}

func show(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "show", Short: "show the trust bundle in force, and who holds it",
		Long: `Show the trust bundle in force: roots, mesh CA keys, config signing keys, and what is revoked. Of a ` +
			`rotation that
runs it says which members still need the old key. The holders of the bundle are those that report it to the coordinator
that is asked.`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Trust.GetTrust(ctx, &fealtyv1.GetTrustRequest{})
				if err != nil {
					return err
				}
				return c.Print(result(c, resp))
			})
		},
	})
}

// trustResponse is a response with what the cluster believes.
type trustResponse interface {
	proto.Message
	GetTrust() *fealtyv1.Trust
}

// result shows what the cluster believes: details, and a table of the keys.
func result(c *program.CLI, resp trustResponse) program.Result {
	t, now := resp.GetTrust(), c.Env.Now()
	return program.ResultOf(message.Of(resp), func(p *term.Page) error {
		if err := p.Facts(details(t, now)); err != nil {
			return err
		}
		p.Line("")
		if err := p.Table(configKeyTable(t.GetConfigKeys(), now)); err != nil {
			return err
		}
		if len(t.GetRevoked()) == 0 {
			return nil
		}
		p.Line("")
		revoked := &term.Table{Columns: []term.Column{{Title: "REVOKED"}, {Title: "NAME", Least: 12},
			{Title: "SINCE"}, {Title: "REASON", Least: 12}, {Title: "BY", Wide: true}}}
		for _, r := range t.GetRevoked() {
			revoked.Add(term.Txt(r.GetKind()), term.Txt(r.GetName()),
				term.Txt(humanize.Relative(r.GetAt().AsTime(), now)),
				term.Txt(r.GetReason()), term.Txt(r.GetBy()))
		}
		return p.Table(revoked)
	})
}

func configKeyTable(keys []*fealtyv1.TrustConfigKey, now time.Time) *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "STATE"}, {Title: "CONFIG KEY"}, {Title: "NUMBER", Right: true},
		{Title: "ENDS"}, {Title: "REASON", Least: 8}, {Title: "DIGEST", Wide: true}, {Title: "BY", Wide: true}}}
	for _, k := range keys {
		shape, colour := "●", term.Green
		switch k.GetState() {
		case "introduced", "leaving":
			shape, colour = "◐", term.Amber
		case "revoked", "expired":
			shape, colour = "✖", term.Red
		}
		t.Add(term.Painted(colour, shape+" "+k.GetState()), term.Txt(k.GetKeyId()),
			term.Txt(command.Itoa(int64(k.GetNumber()))), term.Txt(humanize.Relative(k.GetNotAfter().AsTime(), now)),
			term.Txt(command.Dash(k.GetReason())), term.Txt(k.GetDigest()), term.Txt(command.Dash(k.GetRevokedBy())))
	}
	return t
}

func details(t *fealtyv1.Trust, now time.Time) term.Facts {
	var f term.Facts
	f.Add("bundle", fmt.Sprintf("version %d of authority epoch %d", t.GetConfigVersion(), t.GetAuthorityEpoch()))
	if t.GetIssuedAt() != nil {
		f.Add("issued", command.When(t.GetIssuedAt())+", ends "+humanize.Relative(t.GetExpiresAt().AsTime(), now))
	}
	if r := t.GetRollout(); r != nil {
		f.Add("held by", fmt.Sprintf("%d of %s that are connected here", r.GetHolding(),
			humanize.Plural(r.GetConnected(), "member", "members")))
		f.Paint("lagging", term.Amber, named(r.GetLagging(), int(r.GetConnected()-r.GetHolding())))
	}
	for _, r := range t.GetRoots() {
		name := "root"
		if r.GetRetired() {
			name = "retired root"
		}
		f.Add(name, r.GetKeyId()+", ends "+humanize.Relative(r.GetNotAfter().AsTime(), now))
	}
	for _, k := range t.GetMeshKeys() {
		text := fmt.Sprintf("%s of epoch %d", k.GetKeyId(), k.GetAuthorityEpoch())
		if k.GetAuthorityEpoch() == 0 {
			text = k.GetKeyId() + " of before the restore"
		}
		if k.GetAcceptUntil() != nil {
			text += ", accepted until " + command.When(k.GetAcceptUntil())
		}
		f.Add("mesh key", text)
	}
	if r := t.GetMeshRollout(); r.GetRenewed() < r.GetMembers() {
		f.Paint("certified under it", term.Amber, fmt.Sprintf("%d of %s", r.GetRenewed(), humanize.Plural(r.GetMembers(),
			"member", "members")))
		f.Paint("to renew", term.Amber, named(r.GetMissing(), int(r.GetMembers()-r.GetRenewed())))
	}
	f.Add("config root key", t.GetConfigRootKey())
	if issuer := t.GetTokenIssuer(); issuer != "" {
		f.Add("token issuer", issuer)
	}
	if r := t.GetRotation(); r != nil {
		f.Paint("rotation", term.Amber,
			fmt.Sprintf("key %s is replacing the one before, since %s: %d of %s hold everything under it",
				r.GetKeyId(),
				command.When(r.GetStartedAt()), r.GetConfirmed(), humanize.Plural(r.GetMembers(), "member", "members")))
		f.Add("old key leaves", "when all do, or "+humanize.Relative(r.GetDeadline().AsTime(), now))
		f.Paint("waiting for", term.Amber, named(r.GetMissing(), int(r.GetMembers()-r.GetConfirmed())))
	} else if r := t.GetLastRotation(); r != nil {
		text := fmt.Sprintf("to key %s, ended %s", r.GetKeyId(), command.When(r.GetEndedAt()))
		switch r.GetEnded() {
		case "confirmed":
			text += ": every member held everything under it"
		case "deadline":
			text += " at its deadline"
		case "compromised":
			text += ", because a key was revoked"
		}
		f.Add("last rotation", text)
		f.Paint("had not confirmed", term.Amber, strings.Join(r.GetMissing(), " "))
	}
	f.Add("banned", command.JoinWords(humanize.Plural(t.GetBannedIds(), "identity", "identities"), ", ",
		humanize.Plural(t.GetBannedKeys(), "key", "keys")))
	for _, e := range t.GetEmergencies() {
		f.Paint("emergency", term.Red, fmt.Sprintf("statement %d, applied %s by %s: %s", e.GetNumber(),
			command.When(e.GetAppliedAt()), e.GetBy(), e.GetReason()))
	}
	return f
}

// named lists names, of which there are n, in one line.
func named(names []string, n int) string {
	if more := n - len(names); more > 0 {
		return strings.Join(names, " ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, " ")
}

func rotate(c *program.CLI) *cobra.Command {
	var deadline client.WaitDuration
	var stolen, reason string
	var dry, yes, mesh bool
	var wait client.WaitFlag
	cmd := c.Command(program.Command{
		Use: "rotate", Short: "replace the key that signs config, or the mesh CA key",
		Long: `Replace the config signing key. The next key is introduced in the trust bundle, and both sign. The ` +
			`old key leaves
when every member whose certificate is in date reported that it holds everything under the new key, or at the deadline;
members that had not are named then, and are told when they come back. No member is without config at any time.

With --compromised the named key is revoked at once, for good, and another one signs alone: what the stolen key signs
counts for nothing at every member that has the bundle. fealty trust show names the keys.

With --mesh the mesh CA key is replaced instead, which certifies members: the next authority epoch begins, with the
same manifest. Members renew by themselves, and certificates under the old key are accepted until they end.`,
		Sample: `  fealty trust rotate
  fealty trust rotate --mesh --wait
  fealty trust rotate --compromised 3f0c8a52b1d94e77 --reason "a backup was stolen"`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			switch {
			case mesh && stolen != "":
				return command.ConflictingFlags("--mesh", "given together with --compromised",
					"one of them: they replace different keys")
			case mesh && deadline.D > 0:
				return command.ConflictingFlags("--mesh", "given together with --deadline",
					"one of them: certificates under the old mesh CA key are accepted until they end")
			case mesh:
				return rotateMesh(ctx, c, cfg, reason, dry, wait)
			case stolen != "" && deadline.D > 0:
				return command.ConflictingFlags("--deadline", "given together with --compromised",
					"one of them: a stolen key leaves at once")
			case stolen != "" && reason == "":
				return command.Missing("--reason", "it is kept in the audit log, and shown to whoever asks why",
					"--reason TEXT")
			}
			if stolen != "" && !dry {
				if err := c.Confirm(ctx, "fealty trust rotate",
					"config key "+stolen+
						" is revoked at once and for good; what it signed is signed again by another one",
					yes); err != nil {
					return err
				}
			}
			req := &fealtyv1.RotateConfigKeyRequest{Compromised: stolen, Reason: reason, DryRun: dry}
			if deadline.D > 0 {
				req.Deadline = durationpb.New(deadline.D)
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Trust.RotateConfigKey(ctx, req)
				if err != nil {
					return err
				}
				if dry {
					c.Planned("config would be signed by key number " + command.Itoa(int64(resp.GetNumber())))
				}
				if !dry && wait.D > 0 {
					return waitForRotation(ctx, c, s, resp.GetTrust(), wait)
				}
				if err := c.Print(result(c, resp)); err != nil || dry {
					return err
				}
				if stolen != "" {
					c.Say("key %s signs alone; fealty trust show says which members have the bundle that revokes %s",
						resp.GetKeyId(), stolen)
				} else {
					c.Say("both keys sign until the members are through; fealty trust show says how far they are")
				}
				return nil
			})
		},
	})
	f := cmd.Flags()
	f.Var(&deadline, "deadline", "when the old key leaves at the latest (default 72h)")
	f.StringVar(&stolen, "compromised", "", "the id of a key that somebody else may hold: revoke it at once")
	f.BoolVar(&mesh, "mesh", false, "replace the mesh CA key")
	f.StringVar(&reason, "reason", "", "why, for the audit log")
	wait.Add(cmd, "wait until the old key has left, with --mesh until every member renewed")
	command.DryRun(cmd.Flags(), &dry)
	f.BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// rotateMesh replaces the mesh CA key.
func rotateMesh(ctx context.Context, c *program.CLI, cfg *settings.Values, reason string, dry bool,
	wait client.WaitFlag) error {
	return c.Ask(cfg, func(s *client.Services) error {
		resp, err := s.Trust.RotateMeshKey(ctx, &fealtyv1.RotateMeshKeyRequest{Reason: reason, DryRun: dry})
		if err != nil {
			return err
		}
		if dry {
			c.Planned("authority epoch " + command.Itoa(int64(resp.GetAuthorityEpoch())) +
				" would begin, with a new mesh CA key")
			return c.Print(result(c, resp))
		}
		c.Say("authority epoch %d began, with mesh CA key %s; members renew by themselves", resp.GetAuthorityEpoch(),
			resp.GetMeshKeyId())
		if wait.D == 0 {
			return c.Print(result(c, resp))
		}
		said, pause := "", c.Pause(time.Second/4)
		shown, err := client.Until(ctx, wait, "the members to renew",
			func(ctx context.Context) (*fealtyv1.GetTrustResponse, bool, error) {
				now, err := s.Trust.GetTrust(ctx, &fealtyv1.GetTrustRequest{})
				if err != nil {
					return nil, !client.MayPass(errcode.Of(err)), err
				}
				if now.GetTrust().GetAuthorityEpoch() < resp.GetAuthorityEpoch() {
					return nil, false, nil // of a coordinator that has not heard of it
				}
				r := now.GetTrust().GetMeshRollout()
				if text := fmt.Sprintf("%d of %s are certified under it", r.GetRenewed(),
					humanize.Plural(r.GetMembers(), "member", "members")); text != said {
					c.Say("%s", text)
					said = text
				}
				return now, r.GetRenewed() == r.GetMembers(), nil
			}, &pause)
		if err != nil {
			return err
		}
		return c.Print(result(c, shown))
	})
}

// revokedKinds are the kinds of what is revoked by name.
func revokedKinds() []string { return internalsnapshot.RevokedKinds() }

// checkRevokedKind refuses a kind that does not exist.
func checkRevokedKind(kind string) error {
	kinds := revokedKinds()
	if slices.Contains(kinds, kind) {
		return nil
	}
	return errcode.New(errcode.BadValue, "name", "KIND", "value", command.ShownArg(kind), "problem",
		command.JoinText("nothing of that kind is revoked", humanize.Suggest(kind, kinds)), "want",
		"one of "+strings.Join(kinds, ", "))
}

func revoke(c *program.CLI) *cobra.Command {
	var reason string
	var dry, yes bool
	cmd := c.Command(program.Command{
		Use: "revoke KIND NAME", Short: "take something away from every member, for good",
		Long: `Revoke something by its name: no member relies on it any more, whatever a snapshot that it holds ` +
			`says. It stays
revoked for good; what is to come back comes back under another name.

  role         KIND/NAME/ROLE of a member, such as data/node-c/egress
  service      a service, or KIND/NAME/SERVICE for one member's
  peer         a record of the peer directory, or KIND/NAME of a member
  storage      a storage endpoint, by its record or its URL
  coordinator  an address to refresh at, HOST:PORT
  permission   an action of degraded mode, such as use_storage_endpoints`,
		Sample: `  fealty trust revoke service billing --reason "it leaked"`,
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("KIND", "NAME"), Words: revokedKinds(),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			kind, name := args[0], args[1]
			if err := checkRevokedKind(kind); err != nil {
				return err
			}
			if reason == "" {
				return command.Missing("--reason", "it is kept in the audit log, and shown to whoever asks why",
					"--reason TEXT")
			}
			if !dry {
				if err := c.Confirm(ctx, "fealty trust revoke", kind+" "+name+" is revoked everywhere and for good",
					yes); err != nil {
					return err
				}
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Trust.Revoke(ctx, &fealtyv1.RevokeRequest{Kind: kind, Name: name, Reason: reason,
					DryRun: dry})
				if err != nil {
					return err
				}
				if dry {
					c.Planned(kind + " " + name + " would be revoked")
				}
				return c.Print(program.ResultOf(message.Of(resp), func(p *term.Page) error {
					switch {
					case !resp.GetChanged():
						p.Line("%s %s was revoked before", kind, name)
					case !dry:
						p.Line("%s %s is revoked", kind, name)
					}
					return nil
				}))
			})
		},
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	command.DryRun(cmd.Flags(), &dry)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// waitForRotation asks until no rotation runs that begun is of, and says when another
// member confirmed.
func waitForRotation(ctx context.Context, c *program.CLI, s *client.Services, begun *fealtyv1.Trust,
	wait client.WaitFlag) error {
	said := ""
	pause := c.Pause(time.Second / 4)
	resp, err := client.Until(ctx, wait, "the end of the rotation",
		func(ctx context.Context) (*fealtyv1.GetTrustResponse, bool, error) {
			resp, err := s.Trust.GetTrust(ctx, &fealtyv1.GetTrustRequest{})
			if err != nil {
				return nil, !client.MayPass(errcode.Of(err)), err
			}
			t := resp.GetTrust()
			if cmp.Or(cmp.Compare(t.GetAuthorityEpoch(), begun.GetAuthorityEpoch()),
				cmp.Compare(t.GetConfigVersion(), begun.GetConfigVersion())) < 0 {
				return nil, false, nil // of a coordinator that has not heard of it
			}
			r := resp.GetTrust().GetRotation()
			if text := fmt.Sprintf("%d of %s hold everything under the new key", r.GetConfirmed(),
				humanize.Plural(r.GetMembers(), "member", "members")); r != nil && text != said {
				c.Say("%s", text)
				said = text
			}
			return resp, r == nil, nil
		}, &pause)
	if err != nil {
		return err
	}
	return c.Print(result(c, resp))
}
