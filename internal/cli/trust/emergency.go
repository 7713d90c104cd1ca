package trust

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/keyfile"
	manifestpkg "github.com/fealty-io/fealty/internal/cli/manifest"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/status"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

func emergencyCommand(c *program.CLI) *cobra.Command {
	return program.Group("emergency", "revoke on the word of the signers, without a coordinator",
		emergencyNew(c), emergencySign(c), emergencyShow(c), emergencyApply(c))
}

// emergencyFlags are what a statement says.
type emergencyFlags struct {
	cluster, root, reason, out         string
	number                             uint64
	configKeys, keys, members, revoked []string
}

func emergencyNew(c *program.CLI) *cobra.Command {
	var in emergencyFlags
	cmd := c.Command(program.Command{
		Use: "new", Short: "write an emergency statement, to be signed",
		Long: `Write what the signers of the manifest are to sign. A statement revokes, and does nothing else: ` +
			`config signing keys,
keys of members and mesh CAs, identities, and what fealty trust revoke knows. It is for one cluster under one root,
does not expire, and is never taken back. It needs no coordinator, neither here nor where it is applied.`,
		Sample: `  fealty trust emergency new --cluster prod.example --root-pin HEX --number 1 --config-key HEX ` +
			`--reason "c1 was stolen" --out stolen.emergency`,
		Run: func(_ context.Context, cfg *settings.Values, _ []string) error {
			e, err := in.statement(c.Env.Now())
			if err != nil {
				return err
			}
			if in.out == "" {
				return command.Missing("--out", "the statement goes into a file", "--out FILE")
			}
			s := &trust.SignedEmergency{}
			if s.Statement, err = e.Encode(); err != nil {
				return errcode.Wrap(err, errcode.BadValue, "name", "the statement", "value", "given", "problem",
					strings.TrimPrefix(err.Error(), "snapshot: "), "want", "something to revoke, with a reason")
			}
			if err := writeEmergency(cfg, in.out, s); err != nil {
				return err
			}
			if e, err = decoded(in.out, s); err != nil {
				return err
			}
			c.Say("next: each signer runs fealty trust emergency sign %s --key KEY --out NAME.emergency; then "+
				"fealty trust emergency apply NAME.emergency …", in.out)
			return c.Print(emergencyResult(s, e, nil))
		},
	})
	f := cmd.Flags()
	f.StringVar(&in.cluster, "cluster", "", "the cluster that it is for")
	command.RootPin(f, &in.root, "the pin of its root: 64 hex digits, as in fealty trust show")
	f.Uint64Var(&in.number, "number", 1, "tells it from the other statements under this root")
	f.StringVar(&in.reason, "reason", "", "why; everybody who is shown the statement reads it")
	f.StringArrayVar(&in.configKeys, "config-key", nil,
		"revoke the config signing key with this SHA-256; any number of times")
	f.StringArrayVar(&in.keys, "key", nil,
		"ban the key of a member or a mesh CA with this SHA-256; any number of times")
	f.StringArrayVar(&in.members, "member", nil, "ban the identity KIND/NAME; any number of times")
	f.StringArrayVar(&in.revoked, "revoke", nil, "revoke KIND=NAME, as fealty trust revoke does; any number of times")
	f.StringVar(&in.out, "out", "", "write the statement to this new file")
	return cmd
}

// statement returns what the flags say.
func (in emergencyFlags) statement(now time.Time) (*trust.Emergency, error) {
	e := &trust.Emergency{ClusterID: in.cluster, Number: in.number, Reason: in.reason,
		IssuedAt: now.UTC().Truncate(time.Second)}
	if in.cluster == "" {
		return nil, command.Missing("--cluster", "a statement is for one cluster", "--cluster ID")
	}
	if in.root == "" {
		return nil, command.Missing("--root-pin", "a statement is for one root, so that it means nothing after a reseed",
			"--root-pin HEX, as in fealty trust show")
	}
	if in.reason == "" {
		return nil, command.Missing("--reason", "signers have to know what they sign", "--reason TEXT")
	}
	if err := digestFlag("--root-pin", in.root, e.Root[:]); err != nil {
		return nil, err
	}
	for _, text := range in.configKeys {
		var d snapshot.Digest
		if err := digestFlag("--config-key", text, d[:]); err != nil {
			return nil, err
		}
		e.ConfigKeys = append(e.ConfigKeys, d)
	}
	for _, text := range in.keys {
		var k identity.KeyID
		if err := digestFlag("--key", text, k[:]); err != nil {
			return nil, err
		}
		e.Keys = append(e.Keys, k)
	}
	for _, text := range in.members {
		kind, name, err := command.MemberArg(text)
		if err != nil {
			return nil, err
		}
		id, err := identity.New(in.cluster, identity.Kind(kind), name)
		if err != nil {
			return nil, errcode.Wrap(err, errcode.BadValue, "name", "--member", "value", command.ShownArg(text),
				"problem", err.Error(), "want", "KIND/NAME of a member")
		}
		e.Nodes = append(e.Nodes, id)
	}
	for _, text := range in.revoked {
		kind, name, ok := strings.Cut(text, "=")
		if !ok {
			return nil, errcode.New(errcode.BadValue, "name", "--revoke", "value", command.ShownArg(text),
				"problem", "it is not KIND=NAME", "want", "such as service=billing")
		}
		if err := checkRevokedKind(kind); err != nil {
			return nil, err
		}
		r := snapshot.Revoked{Kind: kind, Name: name}
		if err := r.Check(in.cluster); err != nil {
			return nil, errcode.Wrap(err, errcode.BadValue, "name", "--revoke", "value", command.ShownArg(text),
				"problem", strings.TrimPrefix(err.Error(),
					"snapshot: "), "want", "KIND=NAME, as fealty trust revoke --help says")
		}
		e.Revoked = append(e.Revoked, r)
	}
	e.ConfigKeys, e.Keys = slices.Compact(e.ConfigKeys), slices.Compact(e.Keys)
	return e, nil
}

// digestFlag reads 64 hex digits into dst.
func digestFlag(flag, text string, dst []byte) error {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(dst) || text != strings.ToLower(text) {
		return errcode.New(errcode.BadValue, "name", flag, "value", command.ShownArg(text), "problem",
			"it is not 64 lower case hex digits", "want", "a SHA-256, as fealty trust show -o wide shows it")
	}
	copy(dst, raw)
	return nil
}

func writeEmergency(cfg *settings.Values, file string, s *trust.SignedEmergency) error {
	raw, err := s.Marshal()
	if err != nil {
		return err
	}
	return keyfile.Create(cfg.Within(file), raw, 0o644, "an emergency statement")
}

// readEmergency reads one file, or copies of one statement that were signed apart.
func readEmergency(cfg *settings.Values, files []string) (*trust.SignedEmergency, *trust.Emergency, error) {
	var all *trust.SignedEmergency
	for _, file := range files {
		bad := func(err error) error {
			return unlike(file, err, "name the file that fealty trust emergency new or sign wrote")
		}
		raw, err := render.ReadFile(cfg.Within(file), int64(internalsnapshot.MaxSignedEmergency))
		if err != nil {
			return nil, nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "emergency statement", "file", file)
		}
		s, err := trust.UnmarshalEmergency(raw)
		if err != nil {
			return nil, nil, bad(err)
		}
		if all == nil {
			all = s
		} else if err := all.Merge(s); err != nil {
			return nil, nil, unlike(file, err, "name files of one statement alone; see of each what it does: "+
				"fealty trust emergency show FILE")
		}
	}
	e, err := decoded(files[0], all)
	return all, e, err
}

func decoded(file string, s *trust.SignedEmergency) (*trust.Emergency, error) {
	e, err := trust.DecodeEmergency(s.Statement)
	if err != nil {
		return nil, unlike(file, err, "have it written and signed again: fealty trust emergency new")
	}
	return e, nil
}

// unlike words that file holds no emergency statement that can be read, and what to do: to look at it would
// say the same again.
func unlike(file string, err error, do string) error {
	return errcode.Wrap(err, errcode.EmergencyRefused, "problem",
		file+": "+strings.TrimPrefix(err.Error(), "snapshot: "), "do", do)
}

func emergencySign(c *program.CLI) *cobra.Command {
	var keyFile, out string
	cmd := c.Command(program.Command{
		Use: "sign FILE", Short: "sign an emergency statement, apart from any coordinator",
		Long: `Sign an emergency statement as one signer of the manifest, and show what it does. The file that ` +
			`comes out has the
signatures that FILE had, and this one. Compare what it says with what you were told on another way: nothing takes ` +
			`it back.`,
		Sample: "  fealty trust emergency sign stolen.emergency --key alice.key --out alice.emergency",
		Args:   command.Exactly("FILE"),
		Run: func(_ context.Context, cfg *settings.Values, args []string) error {
			if keyFile == "" {
				return command.Missing("--key", "a signature needs a key", "--key FILE of a signer's key")
			}
			if out == "" {
				return command.Missing("--out", "the signed statement goes into a file", "--out FILE")
			}
			s, e, err := readEmergency(cfg, args)
			if err != nil {
				return err
			}
			key, err := keyfile.Read(cfg.Within(keyFile))
			if err != nil {
				return err
			}
			if err := s.Sign(key); err != nil {
				return err
			}
			if err := writeEmergency(cfg, out, s); err != nil {
				return err
			}
			return c.Print(emergencyResult(s, e, nil))
		},
	})
	f := cmd.Flags()
	f.StringVar(&keyFile, "key", "", "sign with the key in this PEM file")
	f.StringVar(&out, "out", "", "write the signed statement to this new file")
	return cmd
}

func emergencyShow(c *program.CLI) *cobra.Command {
	var file string
	cmd := c.Command(program.Command{
		Use: "show FILE", Short: "show what an emergency statement does, and who signed it",
		Long: `Show what an emergency statement does, and who signed it, without a coordinator. With --manifest it ` +
			`says who the
signers are, and whether they are enough. Several files of one statement count as one.`,
		Sample: "  fealty trust emergency show alice.emergency --manifest manifest.yaml",
		Args:   atLeastOne("FILE"),
		Run: func(_ context.Context, cfg *settings.Values, args []string) error {
			s, e, err := readEmergency(cfg, args)
			if err != nil {
				return err
			}
			var m *manifest.Manifest
			if file != "" {
				if _, m, err = manifestpkg.ReadManifest(c, cfg, file, manifest.ParseAccepted); err != nil {
					return manifestpkg.WordManifest(file, err)
				}
			}
			return c.Print(emergencyResult(s, e, m))
		},
	})
	cmd.Flags().StringVar(&file, "manifest", "", "the manifest in force, which names the signers")
	return cmd
}

func emergencyApply(c *program.CLI) *cobra.Command {
	var dir string
	var dry, yes bool
	cmd := c.Command(program.Command{
		Use: "apply FILE…", Short: "apply a signed emergency statement, at a coordinator or on a node",
		Long: `Apply an emergency statement that the signers signed. At a coordinator it enters the trust bundle, ` +
			`and all members
get it. With --agent it is handed to the agent of this machine, which acts on it at once and for good, whether a
coordinator can be reached or not: connections by what it bans end, and what only a revoked key signed is not used any
more. Several files of one statement, signed apart, count as one.`,
		Sample: `  fealty trust emergency apply alice.emergency bob.emergency
  fealty trust emergency apply alice.emergency bob.emergency --agent /var/lib/fealty/agent`,
		Groups: []settings.Group{settings.Client}, Args: atLeastOne("FILE"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			s, e, err := readEmergency(cfg, args)
			if err != nil {
				return err
			}
			raw, err := s.Marshal()
			if err != nil {
				return err
			}
			if !dry {
				where := "everywhere"
				if dir != "" {
					where = "on this node"
				}
				if err := c.Confirm(ctx, "fealty trust emergency apply",
					fmt.Sprintf("what statement %d of cluster %s names is revoked %s and for good", e.Number,
						e.ClusterID, where), yes); err != nil {
					return err
				}
			}
			if dir != "" {
				return applyOnNode(ctx, c, cfg, dir, raw, dry)
			}
			return c.Ask(cfg, func(services *client.Services) error {
				resp, err := services.Trust.ApplyEmergency(ctx,
					&fealtyv1.ApplyEmergencyRequest{Statement: raw, DryRun: dry})
				if err != nil {
					return err
				}
				if dry {
					c.Planned("the statement would be applied")
				}
				return c.Print(program.ResultOf(message.Of(resp), func(p *term.Page) error {
					switch {
					case !resp.GetChanged():
						p.Line("statement %d was in force before", e.Number)
					case !dry:
						p.Line("statement %d is in force, and in the trust bundle; %s ended", e.Number,
							humanize.Plural(resp.GetConnectionsClosed(), "connection", "connections"))
					}
					return nil
				}))
			})
		},
	})
	f := cmd.Flags()
	f.StringVar(&dir, "agent", "", "the folder of the agent of this machine, instead of a coordinator")
	command.DryRun(cmd.Flags(), &dry)
	f.BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func applyOnNode(ctx context.Context, c *program.CLI, cfg *settings.Values, dir string, raw []byte, dry bool) error {
	l, err := client.Dial(status.AgentSocket(cfg.Within(dir)), cfg.Duration("timeout"))
	if err != nil {
		return err
	}
	defer l.Close()
	resp, err := fealtyv1.NewNodeServiceClient(l).ApplyNodeEmergency(ctx,
		&fealtyv1.ApplyNodeEmergencyRequest{Statement: raw, DryRun: dry})
	if err != nil {
		return err
	}
	if dry {
		c.Planned("the node would act on the statement")
	}
	return c.Print(program.ResultOf(message.Of(resp), func(p *term.Page) error {
		switch {
		case !resp.GetChanged():
			p.Line("the statement was in force on this node before")
		case !dry:
			p.Line("the statement is in force on this node")
		}
		if d := resp.GetDistrusted(); len(d) > 0 {
			p.Line("only a revoked key signed %s", strings.Join(d, ", "))
		}
		return nil
	}))
}

// shownStatement is what fealty trust emergency show prints.
type shownStatement struct {
	Statement  string      `json:"statement"`
	Cluster    string      `json:"cluster"`
	Root       string      `json:"root"`
	Number     uint64      `json:"number"`
	IssuedAt   term.Moment `json:"issued_at"`
	Reason     string      `json:"reason"`
	ConfigKeys term.Texts  `json:"config_keys"`
	Keys       term.Texts  `json:"keys"`
	Members    term.Texts  `json:"members"`
	Revoked    term.Texts  `json:"revoked"`
	Signatures term.Texts  `json:"signatures"`

	// Of a manifest that was named: how many signatures it wants, and how many of these count.
	Threshold *int `json:"threshold,omitempty"`
	Counted   *int `json:"counted,omitempty"`
}

// emergencyResult shows a statement. Without a manifest nobody knows whose signatures
// they are.
func emergencyResult(s *trust.SignedEmergency, e *trust.Emergency, m *manifest.Manifest) program.Result {
	var configKeys, keys, nodes, things, signers []string
	for _, d := range e.ConfigKeys {
		configKeys = append(configKeys, d.String())
	}
	for _, k := range e.Keys {
		keys = append(keys, k.String())
	}
	for _, id := range e.Nodes {
		nodes = append(nodes, string(id.Kind())+"/"+id.Name())
	}
	for _, r := range e.Revoked {
		things = append(things, r.String())
	}
	good := 0
	for _, sig := range s.Signatures {
		name, ok := signerOf(s, e, sig, m)
		if ok {
			good++
		}
		signers = append(signers, name)
	}
	data := shownStatement{
		Statement: s.Digest().String(), Cluster: e.ClusterID, Root: e.Root.String(), Number: e.Number,
		IssuedAt: term.Moment(e.IssuedAt), Reason: e.Reason,
		ConfigKeys: configKeys, Keys: keys, Members: nodes, Revoked: things, Signatures: signers,
	}
	if m != nil {
		data.Threshold, data.Counted = &m.Signers.Threshold, &good
	}
	return program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		f.Add("statement", s.Digest().String())
		f.Add("cluster", e.ClusterID)
		f.Add("root", e.Root.String())
		f.Add("number", fmt.Sprint(e.Number))
		f.Add("issued", e.IssuedAt.Format(time.RFC3339))
		f.Add("reason", e.Reason)
		for _, list := range []struct {
			name  string
			items []string
		}{{"revokes config key", configKeys}, {"bans key", keys}, {"bans member", nodes}, {"revokes", things},
			{"signed by", signers}} {
			for _, item := range list.items {
				f.Add(list.name, item)
			}
		}
		if m != nil {
			f.Add("signatures", fmt.Sprintf("%d count, %d are needed", good, m.Signers.Threshold))
		}
		return p.Facts(f)
	})
}

// signerOf names who made a signature, and reports whether it counts for the manifest.
func signerOf(s *trust.SignedEmergency, e *trust.Emergency, sig trust.SignerSignature,
	m *manifest.Manifest) (string, bool) {
	key, err := manifest.NewKey(ed25519.PublicKey(sig.Key[:]))
	if err != nil {
		return "a key that everybody can sign for", false
	}
	if !ed25519.Verify(sig.Key[:],
		internalsnapshot.PAE(internalsnapshot.TypeEmergency, e.ClusterID, s.Statement), sig.Signature[:]) {
		return key.String() + ", which does not verify", false
	}
	if m == nil {
		return key.String(), false
	}
	for _, signer := range m.Signers.Keys {
		if signer.Key == key {
			return signer.Name, m.Cluster == e.ClusterID
		}
	}
	return key.String() + ", which is no signer", false
}

// atLeastOne wants one argument or more.
func atLeastOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return nil
		}
		return command.Exactly(name)(cmd, args)
	}
}
