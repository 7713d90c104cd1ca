// Package manifest has the commands over the manifest, its history and the shares of its seed.
package manifest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/keyfile"
	"github.com/fealty-io/fealty/internal/cli/member"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/manifest/template"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

func Command(c *program.CLI) *cobra.Command {
	return program.Group("manifest", "write, check, set and read the trust policy",
		manifestInit(c), verify(c), diff(c), manifestSign(c), manifestSet(c), reshare(c),
		manifestShares(c), get(c), manifestHistory(c), verifyHistory(c),
		reseed(c), manifestSignReseed(c), keeper(c))
}

// initFlags are what manifest init is told.
type initFlags struct {
	cluster                  string
	coordinators             []string
	signers, owners, keepers []string
	signerKeyOut, out        string
	signersThreshold         int
	seedThreshold            int
}

func manifestInit(c *program.CLI) *cobra.Command {
	var in initFlags
	cmd := c.Command(program.Command{
		Use: "init", Short: "write a manifest to start from",
		Long: `Write a manifest to start from, with comments, on standard output or to --out. It is valid as it is.

The command never guesses whom to trust: it takes a coordinator's enrolment key, a signer and an owner of the seed.
Without --coordinator-key the coordinator that the settings name is asked for its own.`,
		Sample: `  fealty manifest init --cluster prod.example --coordinator-key ed25519:… \
    --signer-key-out alice.key --keeper file:/etc/fealty/seed.key --out manifest.yaml
  fealty manifest init --cluster prod.example --socket /var/lib/fealty/coordinator/admin.sock \
    --signer alice=ed25519:… --keeper file:/etc/fealty/seed.key
  fealty manifest init --cluster prod.example --coordinator-key ed25519:… --seed-threshold 2 \
    --owner alice=age1… --owner bob="ssh-ed25519 AAAA…" --owner carol=age1… \
    --signers-threshold 2 --signer alice=ed25519:… --signer bob=ed25519:… --signer carol=ed25519:…`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return initManifest(ctx, c, cfg, in)
		},
	})
	f := cmd.Flags()
	f.StringVar(&in.cluster, "cluster", "", "the id of the cluster, a SPIFFE trust domain such as prod.example")
	f.StringArrayVar(&in.coordinators, "coordinator-key", nil, "[NAME=]ed25519:…, the enrolment key of a coordinator")
	f.StringArrayVar(&in.signers, "signer", nil, "NAME=ed25519:…, who may set the next manifest")
	f.StringVar(&in.signerKeyOut, "signer-key-out", "", "make a signer's key, and write it to this new file")
	f.StringArrayVar(&in.keepers, "keeper", nil,
		"[NAME=]file:PATH or [NAME=]exec:PATH, what seals the seed for a restart without a human")
	f.StringArrayVar(&in.owners, "owner", nil,
		"NAME=RECIPIENT, a person who owns a share of the seed (age1…, ssh-ed25519 …)")
	f.IntVar(&in.seedThreshold, "seed-threshold", 1, "how many of the owners it takes to bring the seed back")
	f.IntVar(&in.signersThreshold, "signers-threshold", 1, "how many of the signers it takes to set the next manifest")
	f.StringVar(&in.out, "out", "", "write the manifest to this new file")
	return cmd
}

func initManifest(ctx context.Context, c *program.CLI, cfg *settings.Values, in initFlags) error {
	if in.cluster == "" {
		return command.Missing("--cluster", "a cluster needs a name of its own", "--cluster ID, such as prod.example")
	}
	if len(in.signers) == 0 && in.signerKeyOut == "" {
		return command.Missing("--signer", "somebody has to sign the next manifest",
			"--signer NAME=ed25519:KEY, or --signer-key-out FILE to make a key")
	}
	if len(in.keepers)+len(in.owners) == 0 {
		return command.Missing("--keeper", "somebody has to bring the seed back when every coordinator is lost",
			"--keeper file:PATH or exec:PATH, or --owner NAME=RECIPIENT")
	}
	if len(in.coordinators) == 0 {
		key, err := enrolmentKey(ctx, c, cfg)
		if err != nil {
			return err
		}
		in.coordinators = []string{key}
	}
	opts, key, keyFile, err := in.options()
	if err != nil {
		return err
	}
	text, err := template.Write(opts)
	if err != nil {
		if e, ok := errors.AsType[*manifest.InvalidError](err); ok {
			return errcode.Wrap(err, errcode.BadValue, "name", "an option of manifest init", "value", "used", "problem",
				e.Problems[0].Field+": "+e.Problems[0].What, "want", e.Problems[0].Do)
		}
		return err
	}
	// The key before the manifest: one that names a key which nobody has is worse
	// than a key which no manifest names.
	if key != nil {
		path := cfg.Within(in.signerKeyOut)
		if err := keyfile.Create(path, keyFile, 0o600, "the key of a signer"); err != nil {
			return err
		}
		public, err := keyfile.Public(key)
		if err != nil {
			return err
		}
		c.Say("wrote the signer's key %s to %s: keep it, it is what changes this cluster", public, path)
	}
	if in.out == "" {
		_, err := c.Env.Stdout.Write(text)
		return err
	}
	path := cfg.Within(in.out)
	if err := keyfile.Create(path, text, 0o644, "a manifest"); err != nil {
		return err
	}
	c.Say("wrote %s; next: fealty manifest set %s", path, path)
	return nil
}

// enrolmentKey asks the coordinator that the settings name for its own key.
func enrolmentKey(ctx context.Context, c *program.CLI, cfg *settings.Values) (key string, err error) {
	err = c.Ask(cfg, func(s *client.Services) error {
		st, err := s.Status.GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: 1})
		if err == nil {
			key = st.GetEnrolmentKey()
			c.Say("taking the enrolment key of the coordinator that was asked: %s", key)
		}
		return err
	})
	if errors.Is(err, errcode.NoCoordinatorConfigured) {
		return "", command.Missing("--coordinator-key",
			"the manifest has to admit a coordinator, and none is named that could be asked for its key",
			"--coordinator-key ed25519:KEY, or --socket PATH of the coordinator")
	}
	return key, err
}

// options reads the flags. key is a new signer's, with the file that holds it.
func (in initFlags) options() (opts template.Options, key ed25519.PrivateKey, keyFile []byte, err error) {
	opts.Cluster, opts.SeedThreshold, opts.SignersThreshold = in.cluster, in.seedThreshold, in.signersThreshold
	named := func(text, fallback string) (name, value string) {
		name, value, ok := strings.Cut(text, "=")
		// A key ends in =, a name does not begin with its algorithm.
		if !ok || strings.Contains(name, ":") {
			return fallback, text
		}
		return name, value
	}
	for i, text := range in.coordinators {
		name, value := named(text, fmt.Sprintf("coordinator-%d", i+1))
		k, err := manifest.ParseKey(value)
		if err != nil {
			return opts, nil, nil, errcode.Wrap(err, errcode.BadValue, "name", "--coordinator-key", "value", value,
				"problem", err.Error(), "want", "ed25519:KEY, as fealty status -o wide shows it")
		}
		opts.Coordinators = append(opts.Coordinators, template.Enrolled{Name: name, Key: k})
	}
	for i, text := range in.signers {
		name, value := named(text, fmt.Sprintf("signer-%d", i+1))
		k, err := manifest.ParseKey(value)
		if err != nil {
			return opts, nil, nil, errcode.Wrap(err, errcode.BadValue, "name", "--signer", "value", value, "problem",
				err.Error(), "want", "NAME=ed25519:KEY")
		}
		opts.Signers = append(opts.Signers, manifest.Signer{Name: name, Key: k})
	}
	if in.signerKeyOut != "" {
		if key, keyFile, err = keyfile.New(); err != nil {
			return opts, nil, nil, err
		}
		k, err := keyfile.Public(key)
		if err != nil {
			return opts, nil, nil, err
		}
		base := filepath.Base(in.signerKeyOut)
		opts.Signers = append(opts.Signers, manifest.Signer{Name: strings.TrimSuffix(base, filepath.Ext(base)), Key: k})
	}
	for i, text := range in.keepers {
		name, value := named(text, fmt.Sprintf("keeper-%d", i+1))
		opts.Owners = append(opts.Owners, manifest.Owner{Name: name, Keeper: value})
	}
	for i, text := range in.owners {
		name, value := named(text, fmt.Sprintf("owner-%d", i+1))
		opts.Owners = append(opts.Owners, manifest.Owner{Name: name, Recipient: value})
	}
	return opts, key, keyFile, nil
}

func verify(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "verify FILE", Short: "check a manifest offline, and show all its problems",
		Sample: "  fealty manifest verify manifest.yaml",
		Args:   command.Exactly("FILE"),
		Run: func(_ context.Context, cfg *settings.Values, args []string) error {
			_, m, err := ReadManifest(c, cfg, args[0], manifest.Parse)
			if problems, ok := errors.AsType[*manifest.InvalidError](err); ok {
				if err := c.Print(problemList(args[0], problems)); err != nil {
					return err
				}
				return InvalidManifest(args[0], problems)
			}
			if err != nil {
				return err
			}
			if err := c.Print(validManifest(args[0], m)); err != nil {
				return err
			}
			advise(c, m)
			return nil
		},
	})
}

// ReadManifest reads and parses a manifest; FILE may be - for standard input.
func ReadManifest(c *program.CLI, cfg *settings.Values, file string,
	parse func([]byte) (*manifest.Manifest, error)) ([]byte, *manifest.Manifest, error) {
	var data []byte
	var err error
	if file == "-" {
		data, err = command.ReadAll(c.Env.Stdin, manifest.MaxBytes)
	} else {
		data, err = render.ReadFile(cfg.Within(file), manifest.MaxBytes)
	}
	if err != nil {
		return nil, nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "manifest", "file", file)
	}
	m, err := parse(data)
	return data, m, err
}

func InvalidManifest(file string, e *manifest.InvalidError) error {
	return errcode.Wrap(e, errcode.ManifestInvalid, "file", file, "count", len(e.Problems), "problem",
		"the first is: "+e.Problems[0].What)
}

// ProblemLine is one problem as compilers show theirs.
func ProblemLine(file string, p *manifest.Problem) string {
	place := file
	if p.Line > 0 {
		place = fmt.Sprintf("%s:%d:%d", file, p.Line, p.Column)
	}
	out := place
	if p.Field != "" {
		out += " " + p.Field
	}
	out += ": " + p.What
	if p.Do != "" {
		out += "; " + p.Do
	}
	return out
}

// manifestProblem is what is wrong with a manifest, and where.
type manifestProblem struct {
	Rule   string `json:"rule"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Field  string `json:"field"`
	What   string `json:"what"`
	Do     string `json:"do"`
}

// refusedManifest is what fealty manifest validate prints of one that is not valid.
type refusedManifest struct {
	File     string            `json:"file"`
	Valid    bool              `json:"valid"`
	Problems []manifestProblem `json:"problems"`
}

func problemList(file string, e *manifest.InvalidError) program.Result {
	items := make([]manifestProblem, 0, len(e.Problems))
	for _, p := range e.Problems {
		items = append(items, manifestProblem{Rule: p.Rule, Line: p.Line, Column: p.Column, Field: p.Field,
			What: p.What, Do: p.Do})
	}
	return program.ResultOf(refusedManifest{File: file, Valid: false, Problems: items}, func(p *term.Page) error {
		for _, x := range e.Problems {
			p.Line("%s", ProblemLine(file, x))
		}
		return nil
	})
}

// acceptedManifest is what fealty manifest validate prints of one that is.
type acceptedManifest struct {
	File     string            `json:"file"`
	Valid    bool              `json:"valid"`
	Problems []manifestProblem `json:"problems"`
	Cluster  string            `json:"cluster"`
	Hash     string            `json:"hash"`
	Entries  int               `json:"entries"`
}

func validManifest(file string, m *manifest.Manifest) program.Result {
	kinds := make(map[string]int)
	for _, e := range m.Admit {
		kinds[string(e.Kind)]++
	}
	var entries []string
	for _, k := range command.SortedKeys(kinds) {
		entries = append(entries, fmt.Sprintf("%d %s", kinds[k], k))
	}
	data := acceptedManifest{File: file, Valid: true, Problems: []manifestProblem{}, Cluster: m.Cluster,
		Hash: m.Hash().String(), Entries: len(m.Admit)}
	return program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		f.Paint("manifest", term.Green, file+" is valid")
		f.Add("cluster", m.Cluster)
		f.Add("hash", m.Hash().String())
		f.Add("admits", humanize.Plural(len(m.Admit), "entry", "entries")+": "+strings.Join(entries, ", "))
		f.Add("signers", fmt.Sprintf("%d of %d", m.Signers.Threshold, len(m.Signers.Keys)))
		f.Add("seed owners", seedOwners(m.Seed))
		f.Add("trust", string(m.Trust))
		return p.Facts(f)
	})
}

// seedOwners says who brings the seed back.
func seedOwners(s manifest.Seed) string {
	var out []string
	if n := len(s.People()); n > 0 {
		out = append(out, fmt.Sprintf("%d of %s", s.Threshold, humanize.Plural(n, "person", "people")))
	}
	if n := len(s.Keepers()); n > 0 {
		out = append(out, humanize.Plural(n, "keeper", "keepers"))
	}
	return strings.Join(out, ", or ")
}

// changeFlags are what a set and a reshare are told.
type changeFlags struct {
	keys, signatures             []string
	reason, setupFile, sharesOut string
	dry                          bool
}

func (in *changeFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&in.keys, "sign-with", nil, "sign with the key in this PEM file; once for each signer")
	f.StringArrayVar(&in.signatures, "signature", nil,
		"a file that a signer made with fealty manifest sign; once for each")
	f.StringVar(&in.reason, "reason", "", "why, for the history; at most 256 bytes")
	f.StringVar(&in.sharesOut, "shares-out", "", "write the shares of the seed that it makes to files in this folder")
	command.DryRun(cmd.Flags(), &in.dry)
}

func manifestSet(c *program.CLI) *cobra.Command {
	var in changeFlags
	cmd := c.Command(program.Command{
		Use: "set FILE", Short: "make a manifest the one in force",
		Long: `Make a manifest the one in force.

The signers of the manifest in force sign the exact bytes of the file together with the current head: here, with
their key files and --sign-with, or each where the key is, with fealty manifest sign and --signature. With
--dry-run it is shown what the manifest would change in effect.

The first manifest of a cluster needs no signature: it is set over the coordinator's socket, or from elsewhere
with the setup token that the coordinator wrote. The addresses of --coordinator are tried first, then those in the
token. Behind one of them other coordinators may stand too, as behind a Kubernetes Service: the command connects
again until it meets the one that wrote the token, and sends nothing to the others. The first manifest makes the
seed, and a share of it for each owner who is a person: --shares-out writes them to files.`,
		Sample: `  fealty manifest set manifest.yaml --socket /var/lib/fealty/coordinator/admin.sock
  fealty manifest set manifest.yaml --sign-with alice.key --reason "admit the new rack" --dry-run
  fealty manifest set manifest.yaml --signature alice.sig --signature bob.sig
  fealty manifest set manifest.yaml --setup-token-file setup-token
  fealty manifest set manifest.yaml --setup-token-file setup-token --coordinator coordinator:7443`,
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("FILE"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			return changeManifest(ctx, c, cfg, args[0], history.KindSet, in)
		},
	})
	in.add(cmd)
	cmd.Flags().StringVar(&in.setupFile, "setup-token-file", "",
		"set the first manifest from elsewhere, with the setup token in this file")
	return cmd
}

func reshare(c *program.CLI) *cobra.Command {
	var in changeFlags
	cmd := c.Command(program.Command{
		Use: "reshare FILE", Short: "give the seed other owners, another threshold or new shares",
		Long: `Give the same seed other owners, another threshold, or new shares to the same owners. FILE is the ` +
			`manifest in
force with another seed section; nothing else may differ. The signers sign it like a set, but a signature for one
is none for the other.

Every person in it gets a new share: hand out the files of --shares-out. Shares of before are refused from then on
by the names of their owners. A holder of enough of them could still bring the seed together outside of Fealty: a
reshare does not take it back.`,
		Sample: `  fealty manifest reshare manifest.yaml --sign-with alice.key --shares-out shares
  fealty manifest reshare manifest.yaml --signature alice.sig --signature bob.sig --dry-run`,
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("FILE"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			return changeManifest(ctx, c, cfg, args[0], history.KindReshare, in)
		},
	})
	in.add(cmd)
	return cmd
}

// changeManifest brings the manifest in file into force by a transition of kind.
func changeManifest(ctx context.Context, c *program.CLI, cfg *settings.Values, file string, kind history.Kind,
	in changeFlags) error {
	data, m, err := ReadManifest(c, cfg, file, manifest.Parse)
	if problems, ok := errors.AsType[*manifest.InvalidError](err); ok {
		for _, p := range problems.Problems {
			c.Say("%s", ProblemLine(file, p))
		}
		return InvalidManifest(file, problems)
	}
	if err != nil {
		return err
	}
	if in.sharesOut != "" {
		if err := readySharesDir(cfg, in.sharesOut, m, in.dry); err != nil {
			return err
		}
	}
	req := &fealtyv1.SetManifestRequest{Manifest: data, Reason: in.reason, DryRun: in.dry, Kind: string(kind)}
	if in.setupFile != "" {
		if len(in.keys)+len(in.signatures) > 0 {
			return errcode.New(errcode.BadValue, "name", "--sign-with", "value",
				"given together with --setup-token-file",
				"problem", "a setup token is for the first manifest, which nobody signs", "want", "one of them")
		}
		resp, err := firstSet(ctx, c, cfg, in.setupFile, req)
		if err != nil {
			return err
		}
		if err := wasSet(c, resp, m, in.dry, true, nil); err != nil {
			return err
		}
		tellOfKeys(c, resp.GetKeysMade())
		return tellOfShares(c, cfg, in.sharesOut, resp.GetShares())
	}
	keys, err := ReadKeys(cfg, in.keys)
	if err != nil {
		return err
	}
	signatures, err := ReadSignatures(cfg, in.signatures)
	if err != nil {
		return err
	}
	return c.Ask(cfg, func(s *client.Services) error {
		resp, err := setManifest(ctx, c, s, req, m, keys, signatures)
		if err != nil {
			return err
		}
		tellOfKeys(c, resp.GetKeysMade())
		return tellOfShares(c, cfg, in.sharesOut, resp.GetShares())
	})
}

func ReadKeys(cfg *settings.Values, files []string) ([]ed25519.PrivateKey, error) {
	var out []ed25519.PrivateKey
	for _, f := range files {
		key, err := keyfile.Read(cfg.Within(f))
		if err != nil {
			return nil, err
		}
		out = append(out, key)
	}
	return out, nil
}

// setManifest signs for the head that the coordinator has, adds the signatures that
// were made elsewhere, and sends.
func setManifest(ctx context.Context, c *program.CLI, s *client.Services, req *fealtyv1.SetManifestRequest,
	m *manifest.Manifest, keys []ed25519.PrivateKey, files []SignatureFile) (*fealtyv1.SetManifestResponse, error) {
	st, err := s.Status.GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: 1})
	if err != nil {
		return nil, err
	}
	first := st.GetPhase() == "uninitialized"
	var effect *effect
	if !first {
		if len(st.GetHead()) != sha256.Size {
			return nil, errcode.New(errcode.RecoveryMode, "method", "a "+req.GetKind(), "reason", st.GetPhaseReason())
		}
		if effect, err = preview(ctx, s, m); err != nil {
			return nil, err
		}
		head := effect.head
		req.CurrentTransition = head[:]
		for _, key := range keys {
			f, err := history.SignChange(history.Kind(req.GetKind()), m, head, key)
			if err != nil {
				return nil, err
			}
			files = append(files, SignatureFile{"--sign-with", f})
		}
		if err := countable(files, history.Kind(req.GetKind()), m, head, effect.old); err != nil {
			return nil, err
		}
		for _, f := range files {
			req.Signatures = append(req.Signatures,
				&fealtyv1.ManifestSignature{Key: f.Signature.Key.String(), Signature: f.Signature.Signature[:]})
		}
	}
	resp, err := s.Manifest.SetManifest(ctx, req)
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		effect = nil
	}
	return resp, wasSet(c, resp, m, req.GetDryRun(), first, effect)
}

// shownSet is what fealty manifest set prints: the response, and with --dry-run what the
// manifest would change in effect.
type shownSet struct {
	Transition message.Form[*fealtyv1.Transition]  `json:"transition,omitzero"`
	Shares     []message.Form[*fealtyv1.SeedShare] `json:"shares"`
	KeysMade   []message.Form[*fealtyv1.KeeperKey] `json:"keys_made"`
	Effect     *effectReport                       `json:"effect,omitempty"`
}

func shownSetOf(resp *fealtyv1.SetManifestResponse, effect *effect) shownSet {
	out := shownSet{Transition: message.Of(resp.GetTransition()), Shares: message.Each(resp.GetShares()),
		KeysMade: message.Each(resp.GetKeysMade())}
	if effect != nil {
		report := effect.data()
		out.Effect = &report
	}
	return out
}

// wasSet shows the transition of a set, and what it does if effect is not nil.
func wasSet(c *program.CLI, resp *fealtyv1.SetManifestResponse, m *manifest.Manifest, dry, first bool,
	effect *effect) error {
	if dry {
		c.Planned("manifest " + member.Short(m.Hash().String()) + " would be set")
	}
	if err := c.Print(program.ResultOf(shownSetOf(resp, effect), func(p *term.Page) error {
		if err := p.Facts(transitionFacts(resp.GetTransition(), dry)); err != nil || effect == nil {
			return err
		}
		p.Heading("in effect")
		return effect.show(p)
	})); err != nil {
		return err
	}
	advise(c, m)
	if first && !dry {
		c.Say("cluster %s has its first manifest", m.Cluster)
		for _, e := range m.Admit {
			if e.AdmitsTokens() {
				c.Say("next: fealty token create --entry %s", e.Name)
				break
			}
		}
	}
	return nil
}

func transitionFacts(t *fealtyv1.Transition, dry bool) term.Facts {
	var f term.Facts
	f.Add("index", command.Itoa(int64(t.GetIndex())))
	f.Add("authority epoch", command.Itoa(int64(t.GetAuthorityEpoch())))
	f.Add("kind", t.GetKind())
	if !dry { // what a dry run would sign is not what will be
		f.Add("transition", hex.EncodeToString(t.GetHash()))
	}
	f.Add("manifest", hex.EncodeToString(t.GetManifestHash()))
	if !dry {
		f.Add("mesh CA", hex.EncodeToString(t.GetMeshCaKey()))
	}
	f.Add("recorded", command.When(t.GetRecordedAt()))
	f.Add("reason", t.GetReason())
	return f
}

// shownManifest is what fealty manifest get prints as JSON.
type shownManifest struct {
	Transition message.Form[*fealtyv1.Transition] `json:"transition"`
	Manifest   string                             `json:"manifest"`
}

func get(c *program.CLI) *cobra.Command {
	var index uint64
	cmd := c.Command(program.Command{
		Use: "get", Short: "print the manifest in force, byte for byte",
		Long: "Print the manifest in force, or that of an earlier transition, byte for byte: its hash is that of " +
			"the history.",
		Sample: "  fealty manifest get > manifest.yaml",
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Manifest.GetManifest(ctx, &fealtyv1.GetManifestRequest{Index: index})
				if err != nil {
					return err
				}
				// A document that is going to be signed, or shown on a terminal, is the
				// one that the history names, and a manifest, whoever sent it.
				m, err := manifest.ParseAccepted(resp.GetManifest())
				if err != nil {
					return errcode.Wrap(err, errcode.HistoryInvalid, "problem", "what was sent is not a manifest")
				}
				if h := m.Hash(); !bytes.Equal(h[:], resp.GetTransition().GetManifestHash()) {
					return errcode.New(errcode.HistoryInvalid, "index", resp.GetTransition().GetIndex(), "problem",
						"the manifest that was sent is not the one that the transition names")
				}
				data := shownManifest{message.Of(resp.GetTransition()), string(resp.GetManifest())}
				return c.Print(program.ResultOf(data, func(p *term.Page) error {
					_, err := p.W.Write(resp.GetManifest())
					return err
				}))
			})
		},
	})
	cmd.Flags().Uint64Var(&index, "index", 0, "that of the transition with this index")
	return cmd
}
