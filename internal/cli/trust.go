package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/snapshot"
)

func (c *CLI) trustCommand() *cobra.Command {
	return noun("trust", "show and change what the members believe", c.trustShow(), c.trustRotate(), c.trustRevoke(), c.emergencyCommand())
}

func (c *CLI) trustShow() *cobra.Command {
	return c.command(spec{
		use: "show", short: "show the trust bundle in force, and who holds it",
		long: `Show the trust bundle in force: roots, mesh CA keys, config signing keys, and what is revoked. Of a rotation that
runs it says which members still need the old key. Who holds the bundle is what members report to the coordinator
that is asked.`,
		groups: []group{client},
		run: func(ctx context.Context, cfg *config, _ []string) error {
			return c.asking(cfg, func(s *services) error {
				resp, err := s.trust.GetTrust(ctx, &fealtyv1.GetTrustRequest{})
				if err != nil {
					return err
				}
				return c.print(c.trustResult(ofMessage(resp), resp.GetTrust()))
			})
		},
	})
}

// trustResult shows what the cluster believes: facts, and a table of the keys.
func (c *CLI) trustResult(data object, t *fealtyv1.Trust) result {
	now := c.env.Now()
	return result{data, func(p *page) error {
		if err := p.facts(trustFacts(t, now)); err != nil {
			return err
		}
		p.line("")
		if err := p.table(configKeyTable(t.GetConfigKeys(), now)); err != nil {
			return err
		}
		if len(t.GetRevoked()) == 0 {
			return nil
		}
		p.line("")
		revoked := &table{columns: []column{{title: "REVOKED"}, {title: "NAME", least: 12}, {title: "SINCE"}, {title: "REASON", least: 12}, {title: "BY", wide: true}}}
		for _, r := range t.GetRevoked() {
			revoked.add(txt(r.GetKind()), txt(r.GetName()), txt(relative(r.GetAt().AsTime(), now)), txt(r.GetReason()), txt(r.GetBy()))
		}
		return p.table(revoked)
	}}
}

func configKeyTable(keys []*fealtyv1.TrustConfigKey, now time.Time) *table {
	t := &table{columns: []column{{title: "STATE"}, {title: "CONFIG KEY"}, {title: "NUMBER", right: true}, {title: "ENDS"}, {title: "REASON", least: 8}, {title: "DIGEST", wide: true}, {title: "BY", wide: true}}}
	for _, k := range keys {
		shape, colour := "●", green
		switch k.GetState() {
		case "introduced", "leaving":
			shape, colour = "◐", amber
		case "revoked", "expired":
			shape, colour = "✖", red
		}
		t.add(painted(colour, shape+" "+k.GetState()), txt(k.GetKeyId()), txt(itoa(int64(k.GetNumber()))), txt(relative(k.GetNotAfter().AsTime(), now)),
			txt(dash(k.GetReason())), txt(k.GetDigest()), txt(dash(k.GetRevokedBy())))
	}
	return t
}

func trustFacts(t *fealtyv1.Trust, now time.Time) facts {
	var f facts
	f.add("bundle", fmt.Sprintf("version %d of authority epoch %d", t.GetConfigVersion(), t.GetAuthorityEpoch()))
	if t.GetIssuedAt() != nil {
		f.add("issued", when(t.GetIssuedAt())+", ends "+relative(t.GetExpiresAt().AsTime(), now))
	}
	if r := t.GetRollout(); r != nil {
		f.add("held by", fmt.Sprintf("%d of %s that are connected here", r.GetHolding(), plural(r.GetConnected(), "member", "members")))
		f.paint("lagging", amber, named(r.GetLagging(), int(r.GetConnected()-r.GetHolding())))
	}
	for _, r := range t.GetRoots() {
		name := "root"
		if r.GetRetired() {
			name = "retired root"
		}
		f.add(name, r.GetKeyId()+", ends "+relative(r.GetNotAfter().AsTime(), now))
	}
	for _, k := range t.GetMeshKeys() {
		text := fmt.Sprintf("%s of epoch %d", k.GetKeyId(), k.GetAuthorityEpoch())
		if k.GetAuthorityEpoch() == 0 {
			text = k.GetKeyId() + " of before the restore"
		}
		if k.GetAcceptUntil() != nil {
			text += ", accepted until " + when(k.GetAcceptUntil())
		}
		f.add("mesh key", text)
	}
	if r := t.GetMeshRollout(); r.GetRenewed() < r.GetMembers() {
		f.paint("certified under it", amber, fmt.Sprintf("%d of %s", r.GetRenewed(), plural(r.GetMembers(), "member", "members")))
		f.paint("to renew", amber, named(r.GetMissing(), int(r.GetMembers()-r.GetRenewed())))
	}
	f.add("config root key", t.GetConfigRootKey())
	if r := t.GetRotation(); r != nil {
		f.paint("rotation", amber, fmt.Sprintf("key %s is replacing the one before, since %s: %d of %s hold everything under it", r.GetKeyId(),
			when(r.GetStartedAt()), r.GetConfirmed(), plural(r.GetMembers(), "member", "members")))
		f.add("old key leaves", "when all do, or "+relative(r.GetDeadline().AsTime(), now))
		f.paint("waiting for", amber, named(r.GetMissing(), int(r.GetMembers()-r.GetConfirmed())))
	} else if r := t.GetLastRotation(); r != nil {
		text := fmt.Sprintf("to key %s, ended %s", r.GetKeyId(), when(r.GetEndedAt()))
		switch r.GetEnded() {
		case "confirmed":
			text += ": every member held everything under it"
		case "deadline":
			text += " at its deadline"
		case "compromised":
			text += ", because a key was revoked"
		}
		f.add("last rotation", text)
		f.paint("had not confirmed", amber, strings.Join(r.GetMissing(), " "))
	}
	f.add("banned", joinWords(plural(t.GetBannedIds(), "identity", "identities"), ", ", plural(t.GetBannedKeys(), "key", "keys")))
	for _, e := range t.GetEmergencies() {
		f.paint("emergency", red, fmt.Sprintf("statement %d, applied %s by %s: %s", e.GetNumber(), when(e.GetAppliedAt()), e.GetBy(), e.GetReason()))
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

func (c *CLI) trustRotate() *cobra.Command {
	var deadline lifetime
	var stolen, reason string
	var dry, yes, mesh bool
	var wait waiting
	cmd := c.command(spec{
		use: "rotate", short: "replace the key that signs config, or the mesh CA key",
		long: `Replace the config signing key. The next key is introduced in the trust bundle, and both sign. The old key leaves
when every member whose certificate is in date reported that it holds everything under the new key, or at the deadline;
members that had not are named then, and are told when they come back. No member is without config at any time.

With --compromised the named key is revoked at once, for good, and another one signs alone: what the stolen key signs
counts for nothing at every member that has the bundle. fealty trust show names the keys.

With --mesh the mesh CA key is replaced instead, which certifies members: the next authority epoch begins, with the
same manifest. Members renew by themselves, and certificates under the old key are accepted until they end.`,
		sample: `  fealty trust rotate
  fealty trust rotate --mesh --wait
  fealty trust rotate --compromised 3f0c8a52b1d94e77 --reason "a backup was stolen"`,
		groups: []group{client},
		run: func(ctx context.Context, cfg *config, _ []string) error {
			switch {
			case mesh && stolen != "":
				return conflictingFlags("--mesh", "given together with --compromised", "one of them: they replace different keys")
			case mesh && deadline.d > 0:
				return conflictingFlags("--mesh", "given together with --deadline", "one of them: certificates under the old mesh CA key are accepted until they end")
			case mesh:
				return c.rotateMesh(ctx, cfg, reason, dry, wait)
			case stolen != "" && deadline.d > 0:
				return conflictingFlags("--deadline", "given together with --compromised", "one of them: a stolen key leaves at once")
			case stolen != "" && reason == "":
				return missing("--reason", "it is kept in the audit log, and shown to whoever asks why", "--reason TEXT")
			}
			if stolen != "" && !dry {
				if err := c.confirm(ctx, "fealty trust rotate", "config key "+stolen+" is revoked at once and for good; what it signed is signed again by another one", yes); err != nil {
					return err
				}
			}
			req := &fealtyv1.RotateConfigKeyRequest{Compromised: stolen, Reason: reason, DryRun: dry}
			if deadline.d > 0 {
				req.Deadline = durationpb.New(deadline.d)
			}
			return c.asking(cfg, func(s *services) error {
				resp, err := s.trust.RotateConfigKey(ctx, req)
				if err != nil {
					return err
				}
				if dry {
					c.planned("config would be signed by key number " + itoa(int64(resp.GetNumber())))
				}
				if !dry && wait.d > 0 {
					return c.waitForRotation(ctx, s, resp.GetTrust(), wait)
				}
				if err := c.print(c.trustResult(ofMessage(resp), resp.GetTrust())); err != nil || dry {
					return err
				}
				if stolen != "" {
					c.talk("key %s signs alone; fealty trust show says which members have the bundle that revokes %s", resp.GetKeyId(), stolen)
				} else {
					c.talk("both keys sign until the members are through; fealty trust show says how far they are")
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
	wait.flag(cmd, "wait until the old key has left, with --mesh until every member renewed")
	dryRun(cmd, &dry)
	f.BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// rotateMesh replaces the mesh CA key.
func (c *CLI) rotateMesh(ctx context.Context, cfg *config, reason string, dry bool, wait waiting) error {
	return c.asking(cfg, func(s *services) error {
		resp, err := s.trust.RotateMeshKey(ctx, &fealtyv1.RotateMeshKeyRequest{Reason: reason, DryRun: dry})
		if err != nil {
			return err
		}
		if dry {
			c.planned("authority epoch " + itoa(int64(resp.GetAuthorityEpoch())) + " would begin, with a new mesh CA key")
			return c.print(c.trustResult(ofMessage(resp), resp.GetTrust()))
		}
		c.talk("authority epoch %d began, with mesh CA key %s; members renew by themselves", resp.GetAuthorityEpoch(), resp.GetMeshKeyId())
		if wait.d == 0 {
			return c.print(c.trustResult(ofMessage(resp), resp.GetTrust()))
		}
		said, pause := "", time.Second/4
		shown, err := until(ctx, wait, "the members to renew", func(ctx context.Context) (*fealtyv1.GetTrustResponse, bool, error) {
			now, err := s.trust.GetTrust(ctx, &fealtyv1.GetTrustRequest{})
			if err != nil {
				return nil, !mayPass(explain.Of(err)), err
			}
			if now.GetTrust().GetAuthorityEpoch() < resp.GetAuthorityEpoch() {
				return nil, false, nil // of a coordinator that has not heard of it
			}
			r := now.GetTrust().GetMeshRollout()
			if text := fmt.Sprintf("%d of %s are certified under it", r.GetRenewed(), plural(r.GetMembers(), "member", "members")); text != said {
				c.talk("%s", text)
				said = text
			}
			return now, r.GetRenewed() == r.GetMembers(), nil
		}, &pause)
		if err != nil {
			return err
		}
		return c.print(c.trustResult(ofMessage(shown), shown.GetTrust()))
	})
}

// revokedKinds are the kinds of what is revoked by name.
func revokedKinds() []string {
	var out []string
	for _, k := range snapshot.RevokedKinds() {
		out = append(out, string(k))
	}
	return out
}

// checkRevokedKind refuses a kind that does not exist.
func checkRevokedKind(kind string) error {
	kinds := revokedKinds()
	if slices.Contains(kinds, kind) {
		return nil
	}
	return explain.New(explain.BadValue, "name", "KIND", "value", shownArg(kind), "problem", joinText("nothing of that kind is revoked", guess(kind, kinds)), "want", "one of "+strings.Join(kinds, ", "))
}

func (c *CLI) trustRevoke() *cobra.Command {
	var reason string
	var dry, yes bool
	cmd := c.command(spec{
		use: "revoke KIND NAME", short: "take something away from every member, for good",
		long: `Revoke something by its name: no member relies on it any more, whatever a snapshot that it holds says. It stays
revoked for good; what is to come back comes back under another name.

  role         KIND/NAME/ROLE of a member, such as data/node-c/egress
  service      a service, or KIND/NAME/SERVICE for one member's
  peer         a record of the peer directory, or KIND/NAME of a member
  storage      a storage endpoint, by its record or its URL
  coordinator  an address to refresh at, HOST:PORT
  permission   an action of degraded mode, such as use_storage_endpoints`,
		sample: `  fealty trust revoke service billing --reason "it leaked"`,
		groups: []group{client}, args: exactly("KIND", "NAME"), words: revokedKinds(),
		run: func(ctx context.Context, cfg *config, args []string) error {
			kind, name := args[0], args[1]
			if err := checkRevokedKind(kind); err != nil {
				return err
			}
			if reason == "" {
				return missing("--reason", "it is kept in the audit log, and shown to whoever asks why", "--reason TEXT")
			}
			if !dry {
				if err := c.confirm(ctx, "fealty trust revoke", kind+" "+name+" is revoked everywhere and for good", yes); err != nil {
					return err
				}
			}
			return c.asking(cfg, func(s *services) error {
				resp, err := s.trust.Revoke(ctx, &fealtyv1.RevokeRequest{Kind: kind, Name: name, Reason: reason, DryRun: dry})
				if err != nil {
					return err
				}
				if dry {
					c.planned(kind + " " + name + " would be revoked")
				}
				return c.print(result{ofMessage(resp), func(p *page) error {
					switch {
					case !resp.GetChanged():
						p.line("%s %s was revoked before", kind, name)
					case !dry:
						p.line("%s %s is revoked", kind, name)
					}
					return nil
				}})
			})
		},
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	dryRun(cmd, &dry)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// waitForRotation asks until no rotation runs that begun is of, and says when another
// member confirmed.
func (c *CLI) waitForRotation(ctx context.Context, s *services, begun *fealtyv1.Trust, wait waiting) error {
	said := ""
	pause := time.Second / 4
	resp, err := until(ctx, wait, "the end of the rotation", func(ctx context.Context) (*fealtyv1.GetTrustResponse, bool, error) {
		resp, err := s.trust.GetTrust(ctx, &fealtyv1.GetTrustRequest{})
		if err != nil {
			return nil, !mayPass(explain.Of(err)), err
		}
		t := resp.GetTrust()
		if cmp.Or(cmp.Compare(t.GetAuthorityEpoch(), begun.GetAuthorityEpoch()), cmp.Compare(t.GetConfigVersion(), begun.GetConfigVersion())) < 0 {
			return nil, false, nil // of a coordinator that has not heard of it
		}
		r := resp.GetTrust().GetRotation()
		if text := fmt.Sprintf("%d of %s hold everything under the new key", r.GetConfirmed(), plural(r.GetMembers(), "member", "members")); r != nil && text != said {
			c.talk("%s", text)
			said = text
		}
		return resp, r == nil, nil
	}, &pause)
	if err != nil {
		return err
	}
	return c.print(c.trustResult(ofMessage(resp), resp.GetTrust()))
}
