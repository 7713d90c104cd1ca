// Package identity has the commands by which a machine joins and leaves a cluster, and a person
// logs in and chooses between logins.
package identity

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/keyfile"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/server"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/status"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/proof"
)

func Command(c *program.CLI) *cobra.Command {
	var run, rejoin bool
	var wait client.WaitFlag
	cmd := c.Command(program.Command{
		Use: "join [TOKEN]", Short: "make this machine a member of a cluster",
		Long: `Make this machine a member of a cluster: prove a join token, a key that the manifest names, or a
certificate of your own PKI, verify what is granted, and store it.

The token is the argument, or - for standard input, or in --token-file, or in FEALTY_JOIN_TOKEN. It names
the cluster, its coordinators and the key to believe. Where those are reached at other addresses, name them with
--coordinator: the key to believe stays that of the token. Each step is shown as it happens. Joining again after a
failure repeats the same request, whatever was lost.`,
		Sample: `  fealty join --token-file node.token
  fealty join --token-file /run/credentials/fealty.service/token --run
  fealty join --key node.key --cluster prod.example --root-pin HEX --coordinator c1.example:7443 --kind witness
  fealty join --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt --cluster prod.example --root-pin HEX --coordinator ` +
			`c1.example:7443`,
		Groups: []settings.Group{settings.Agent, settings.Candidate, settings.Certified, settings.Join,
			settings.Addresses, settings.Running, settings.Process},
		Args: command.AtMostOne("TOKEN"), GoesOn: func() bool { return run },
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			p, err := proofOf(ctx, c, cfg, args)
			if err != nil {
				return err
			}
			dir := cfg.Path("data")
			got, err := join(ctx, c, wait, enroll.JoinConfig{
				DataDir: dir, Proof: p, Kind: identity.Kind(cfg.Text("kind")), Rejoin: rejoin,
				Now: c.Env.Now, Release: c.Env.Release, Progress: func(s enroll.Step) { step(c, s) },
				Log: slog.New(server.LogHandler(c, c.Env.Stderr, cfg.Text("log_format"), slog.LevelError)),
			})
			if err != nil {
				return err
			}
			if err := c.Print(joined(got, dir)); err != nil {
				return err
			}
			if got.Autonomy > 0 {
				c.Say("without a coordinator this node can work for %s", humanize.Span(got.Autonomy))
			}
			if run {
				return server.RunAgent(ctx, c, dir, cfg)
			}
			c.Say("next: fealty agent --data %s", dir)
			return nil
		},
	})
	cmd.Flags().BoolVar(&run, "run", false, "go on as the agent")
	cmd.Flags().BoolVar(&rejoin, "rejoin", false, "replace an identity of the same cluster that is in the folder")
	wait.Add(cmd, "keep trying while no coordinator can admit, for so long")
	return cmd
}

// join joins, again and again while that may help and wait says so.
func join(ctx context.Context, c *program.CLI, wait client.WaitFlag, cfg enroll.JoinConfig) (enroll.Result, error) {
	pause := c.Pause(time.Second)
	return client.Until(ctx, wait, "the join", func(ctx context.Context) (enroll.Result, bool, error) {
		got, err := enroll.Join(ctx, cfg)
		if err == nil || !client.MayPass(err) {
			return got, true, err
		}
		c.Say("not yet: %s", render.Of(program.Name, err).What)
		return got, false, err
	}, &pause)
}

// newIdentity is what fealty join and fealty login print.
type newIdentity struct {
	SpiffeID     string      `json:"spiffe_id"`
	Cluster      string      `json:"cluster"`
	Kind         string      `json:"kind"`
	Name         string      `json:"name"`
	Outcome      string      `json:"outcome"`
	SVIDNotAfter term.Moment `json:"svid_not_after"`
	Autonomy     string      `json:"autonomy"`
	Coordinator  string      `json:"coordinator"`
	Coordinators term.Texts  `json:"coordinators"`
	Dir          string      `json:"dir"`
}

// joined shows what a join gave.
func joined(r enroll.Result, dir string) program.Result {
	outcome := message.Word(r.Outcome.Descriptor(), r.Outcome.Number())
	data := newIdentity{
		SpiffeID: r.ID.String(), Cluster: r.ID.Cluster(), Kind: string(r.ID.Kind()), Name: r.ID.Name(),
		Outcome: outcome, SVIDNotAfter: term.Moment(r.NotAfter), Autonomy: r.Autonomy.String(),
		Coordinator: r.Coordinator, Coordinators: r.Coordinators, Dir: dir,
	}
	return program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		f.Add("identity", r.ID.String())
		f.Add("outcome", map[string]string{"admitted": "admitted as a new member",
			"already_member": "a member already; it keeps its record"}[outcome])
		renewed := ", unless renewed"
		if k := r.ID.Kind(); k == identity.Admin || k == identity.Readonly {
			renewed = "; then log in again"
		}
		f.Add("valid until", r.NotAfter.UTC().Format(time.RFC3339)+renewed)
		f.Add("coordinator", r.Coordinator)
		f.Add("stored in", dir)
		return p.Facts(f)
	})
}

// step shows one step of a join.
func step(c *program.CLI, s enroll.Step) {
	word, p, detail := "ok", term.Green, s.Detail
	if s.Err != nil {
		word, p = "FAILED", term.Red
		if e, ok := errors.AsType[*errcode.Error](s.Err); ok {
			detail = command.JoinText(detail, e.What)
		} else if e := render.Translate(s.Err); e != nil {
			detail = command.JoinText(detail, e.What)
		}
	}
	colour := c.Coloured(c.Env.Stderr)
	line := "fealty: " + term.Padded(string(s.Name), 9) + p.On(term.Padded(word, 7), colour) + term.Sanitize(detail)
	_, _ = io.WriteString(c.Env.Stderr, strings.TrimRight(line, " ")+"\n")
}

// proof returns what a candidate shows: a certificate or a key if one is named, else
// a token.
func proofOf(ctx context.Context, c *program.CLI, cfg *settings.Values, args []string) (enroll.Proof, error) {
	files, err := tlsFiles(c, cfg)
	if err != nil {
		return enroll.Proof{}, err
	}
	key := cfg.Find("key")
	named := key.From
	if files != nil {
		named = cfg.Find("tls_cert").From
	}
	switch {
	case files != nil && key.Text != "":
		return enroll.Proof{}, errcode.New(errcode.BadValue, "name", key.From, "value", "given together with "+named,
			"problem", "one proof is shown", "want", "one of them")
	case (files != nil || key.Text != "") && len(args) > 0:
		return enroll.Proof{}, errcode.New(errcode.BadValue, "name", "TOKEN", "value", "given together with "+named,
			"problem", "one proof is shown", "want", "one of them")
	case files != nil:
		pin, err := place(cfg, "certificate", "the three --tls flags")
		if err != nil {
			return enroll.Proof{}, err
		}
		return enroll.ByX509(ctx, cfg.Text("cluster"), cfg.List("coordinator"), pin, files)
	case key.Text != "":
		return keyProof(cfg)
	}
	line, err := tokenLine(c, cfg, args)
	if err != nil {
		return enroll.Proof{}, err
	}
	t, err := proof.ParseJoinToken(line)
	if err != nil {
		return enroll.Proof{}, render.Translate(err)
	}
	p := enroll.ByToken(t)
	if named := cfg.Find("coordinator"); named.Text != "" {
		return p.At(cfg.List("coordinator"), named.From)
	}
	return p, nil
}

// tlsFiles follows the three files of an operator's PKI; nil if none is named. Some
// of the three are an error.
func tlsFiles(c *program.CLI, cfg *settings.Values) (*credential.Files, error) {
	paths := server.TLSPaths(cfg)
	if paths.IsZero() {
		return nil, nil
	}
	return enterprise.Open(credential.FilesConfig{
		Paths: paths, Now: c.Env.Now, Log: slog.New(server.LogHandler(c, c.Env.Stderr, "text", slog.LevelError)),
	})
}

// place checks that a proof which says nothing of the cluster comes with where to
// show it, and returns the pin.
func place(cfg *settings.Values, proof, flags string) (identity.KeyID, error) {
	for _, key := range []string{"cluster", "root_pin", "coordinator"} {
		if s := cfg.Find(key); s.Text == "" {
			return identity.KeyID{}, errcode.New(errcode.BadValue, "name", "--"+s.Flag(), "value", "missing",
				"problem", "a "+proof+" says nothing of the cluster: a token would", "want",
				flags+" with --cluster ID, --root-pin HEX and "+
					"--coordinator HOST:PORT, as fealty status shows them at a coordinator")
		}
	}
	pin, err := identity.ParseKeyID(cfg.Text("root_pin"))
	if err != nil {
		return identity.KeyID{}, errcode.Wrap(err, errcode.BadValue, "name", "--root-pin", "value", cfg.Text("root_pin"))
	}
	return pin, nil
}

func keyProof(cfg *settings.Values) (enroll.Proof, error) {
	pin, err := place(cfg, "key", "--key FILE")
	if err != nil {
		return enroll.Proof{}, err
	}
	key, err := keyfile.Read(cfg.Path("key"))
	if err != nil {
		return enroll.Proof{}, err
	}
	return enroll.ByKey(cfg.Text("cluster"), cfg.List("coordinator"), pin, key)
}

// tokenLine finds the line of the token. Of an argument, a file and a variable, the
// first one that is given counts; two that were typed are a mistake.
func tokenLine(c *program.CLI, cfg *settings.Values, args []string) (string, error) {
	file := cfg.Find("token_file")
	if len(args) > 0 && file.Rank == settings.FromFlag {
		return "", errcode.New(errcode.BadValue, "name", "TOKEN", "value", "given together with --token-file",
			"problem", "one token is shown", "want", "one of them")
	}
	env := cfg.Find("join_token")
	switch {
	case len(args) > 0 && args[0] != "-":
		return args[0], nil
	case len(args) > 0, file.Rank == settings.FromFlag && file.Text == "-":
		return readLine(c.Env.Stdin, "standard input")
	case file.Rank == settings.FromFlag:
		return tokenFile(cfg.Path("token_file"))
	case env.Text != "":
		return env.Text, nil
	case file.Text == "-":
		return readLine(c.Env.Stdin, "standard input")
	case file.Text != "":
		return tokenFile(cfg.Path("token_file"))
	}
	return "", errcode.New(errcode.BadValue, "name", "TOKEN", "value", "missing",
		"problem", "there is none in the arguments, in --token-file and in FEALTY_JOIN_TOKEN", "want",
		"the line that fealty token create printed")
}

func tokenFile(path string) (string, error) {
	data, err := render.ReadFile(path, proof.MaxLineBytes+2)
	if err != nil {
		return "", errcode.Wrap(err, errcode.FileMissing, "purpose", "token file", "file", path)
	}
	return string(data), nil
}

// readLine reads the one line of a token.
func readLine(r io.Reader, from string) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, proof.MaxLineBytes+2))
	if err != nil {
		return "", errcode.Wrap(err, errcode.FileMissing, "purpose", "the token on", "file", from)
	}
	return string(data), nil
}

func Login(c *program.CLI) *cobra.Command {
	cmd := c.Command(program.Command{
		Use: "login [TOKEN]", Short: "get a short-lived identity for a person or a tool",
		Long: `Get a short-lived identity for a person or a tool, and keep it where commands find it: under ` +
			`--context NAME, by
default the cluster's id, in this user's configuration folder. It is the current context then: commands that name
nothing else ask with it. With --identity it is written to a folder of your own instead, which commands take with
the same flag. It is not renewed: whoever still may, logs in again.`,
		Sample: `  fealty login --token-file alice.token
  fealty login --token-file alice.token --context prod
  fealty login --token-file ci.token --identity ci && fealty status --identity ci`,
		Groups: []settings.Group{settings.Candidate, settings.Certified, settings.Login, settings.Addresses,
			settings.Identities},
		Args: command.AtMostOne("TOKEN"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			p, err := proofOf(ctx, c, cfg, args)
			if err != nil {
				return err
			}
			place, err := program.LoginPlace(c, cfg, p.Cluster())
			if err != nil {
				return err
			}
			got, err := enroll.Login(ctx, enroll.LoginConfig{
				Dir: place.Dir, Proof: p, Kind: identity.Kind(cfg.Text("kind")), Now: c.Env.Now,
				Progress: func(s enroll.Step) { step(c, s) },
				Log:      slog.New(server.LogHandler(c, c.Env.Stderr, "text", slog.LevelError)),
			})
			if err != nil {
				return err
			}
			if place.Context != "" {
				if err := c.Logins().Use(place.Context); err != nil {
					return err
				}
			}
			if err := c.Print(joined(got, filepath.Join(place.Dir, enroll.LoginName))); err != nil {
				return err
			}
			if place.Context != "" {
				c.Say("next: fealty status; fealty whoami says as whom")
				return nil
			}
			c.Say("next: fealty status --identity %[1]s, or export FEALTY_IDENTITY=%[1]s", term.ShellWord(place.Dir))
			return nil
		},
	})
	return cmd
}

// leftCluster is what fealty leave prints.
type leftCluster struct {
	Left string `json:"left"`
}

func Leave(c *program.CLI) *cobra.Command {
	var yes bool
	cmd := c.Command(program.Command{
		Use: "leave", Short: "end the membership of this machine",
		Long: `End the membership of this machine: its agent asks a coordinator to delete the record, and then removes
identity and snapshots, and ends. Where no agent runs, the command does that itself, with the identity in the folder.`,
		Sample: `  fealty leave --data /var/lib/fealty/agent`,
		Groups: []settings.Group{settings.Agent, settings.Timeouts},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			dir := cfg.Path("data")
			agree := func(id string) error {
				return c.Confirm(ctx, "fealty leave", id+" will be a member no more, and its keys will be banned", yes)
			}
			id, err := leaveByAgent(ctx, dir, cfg.Duration("timeout"), agree)
			if e := errcode.Of(err); err != nil && e.Code == errcode.Unreachable {
				// An agent that runs and serves its socket elsewhere holds the folder's lock, and is named then.
				id, err = server.LeaveWithoutAgent(ctx, c, dir, agree)
			}
			if err != nil {
				return err
			}
			return c.Print(program.ResultOf(leftCluster{Left: id}, func(p *term.Page) error {
				p.Line("%s left its cluster; its identity is removed from %s", id, dir)
				return nil
			}))
		},
	})
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// leaveByAgent has the agent that runs on a folder leave, once somebody agreed, and returns who it was.
func leaveByAgent(ctx context.Context, dir string, timeout time.Duration, agree func(id string) error) (string, error) {
	l, err := client.Dial(status.AgentSocket(dir), timeout)
	if err != nil {
		return "", err
	}
	defer l.Close()
	node := fealtyv1.NewNodeServiceClient(l)
	n, err := node.GetNode(ctx, &fealtyv1.GetNodeRequest{})
	if err != nil {
		return "", err
	}
	if err := agree(n.GetSpiffeId()); err != nil {
		return "", err
	}
	_, err = node.LeaveCluster(ctx, &fealtyv1.LeaveClusterRequest{})
	return n.GetSpiffeId(), err
}
