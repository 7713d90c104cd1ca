package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/keyfile"
	manifestpkg "github.com/fealty-io/fealty/internal/cli/manifest"
	"github.com/fealty-io/fealty/internal/cli/member"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/server"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/store"
)

// restoreFlags are what a restore is told.
type restoreFlags struct {
	backupFlags
	signWith, signatures []string
	reason, requestOut   string
	dry, inPlace         bool
}

func restore(c *program.CLI) *cobra.Command {
	var in restoreFlags
	cmd := c.Command(program.Command{
		Use: "restore [FILE]", Short: "restore a backup into an empty store, or have a store that went back go on",
		Long: `Restore a backup into an empty store, with every coordinator of the cluster stopped. The backup is ` +
			`verified first, all
of it. The store's revisions, and the index and authority epoch that the history goes on with, start above the Unix
time, so that nothing that the fleet remembers is above them.

Going back in time takes the signers of the backup's manifest: sign here with --sign-with, or elsewhere with fealty
backup sign and --signature. Until their threshold has signed no coordinator serves from the store. Running the
command again with the same backup adds signatures, and goes on with a restore that was cut off.

The first coordinator that starts on the store and gets the seed back, by a keeper or its owners, writes the restore
into the history with a new mesh CA key. Join tokens are void then. Events after the backup are not in it: the
command prints what that can be.

With --in-place no backup is read: the cluster goes on from what the store holds, after an older copy was put in its
place or it failed over to a server that lagged. All else is the same: every coordinator is stopped, the signers sign,
and members that hold newer bans show them when the coordinators are back.`,
		Sample: `  fealty backup restore prod.backup --store postgres://db.example/fealty --share-key alice.key ` +
			`--sign-with signer.key
  fealty backup restore prod.backup --store sqlite:/var/lib/fealty/coordinator/store/fealty.db --share-key ` +
			`alice.key --request-out restore.json
  fealty backup restore prod.backup --store sqlite:/var/lib/fealty/coordinator/store/fealty.db --share-key ` +
			`alice.key --signature bob.sig
  fealty backup restore --in-place --store postgres://db.example/fealty --sign-with signer.key`,
		Groups: []settings.Group{settings.BackupRestore}, Args: command.AtMostOne("FILE"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			switch {
			case in.inPlace && len(args) > 0:
				return errcode.New(errcode.BadValue, "name", "--in-place", "value", args[0], "problem",
					"nothing is read from a backup in place", "want", "no FILE, or no --in-place")
			case in.inPlace:
				return restoreInPlace(ctx, c, cfg, in)
			case len(args) == 0:
				return command.Missing("FILE", "a restore reads a backup",
					"the file that fealty backup create wrote, or --in-place for a store that went back")
			}
			return restoreBackup(ctx, c, cfg, args[0], in)
		},
	})
	in.add(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&in.signWith, "sign-with", nil,
		"sign the restore with the signer's key in this PEM file; once for each")
	f.StringArrayVar(&in.signatures, "signature", nil,
		"a file that a signer made with fealty backup sign; once for each")
	f.StringVar(&in.reason, "reason", "", "why, for the history; at most 256 bytes")
	f.BoolVar(&in.inPlace, "in-place", false,
		"read no backup: have the cluster go on from what the store holds, after it went back")
	f.StringVar(&in.requestOut, "request-out", "", "write what signers sign elsewhere to this new file")
	command.DryRun(cmd.Flags(), &in.dry)
	return cmd
}

func restoreBackup(ctx context.Context, c *program.CLI, cfg *settings.Values, file string, in restoreFlags) error {
	if cfg.Find("store").Text == "" {
		return command.Missing("--store", "a backup is restored into a store of its own",
			"--store URL of an empty store")
	}
	if len(in.reason) > history.MaxReasonBytes {
		return errcode.New(errcode.BadValue, "name", "--reason", "value", "given", "problem",
			fmt.Sprintf("it has more than %d bytes", history.MaxReasonBytes), "want", "a shorter one")
	}
	found, _, err := checkBackup(ctx, c, cfg, file, in.backupFlags)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	st, name, err := server.OpenStoreThere(ctx, c, cfg, log)
	if err != nil {
		return err
	}
	defer func() {
		if st != nil {
			st.Close()
		}
	}()
	plan, err := restorePlan(ctx, st, name, file, found, c.Env.Now(), in.reason)
	if err != nil {
		return err
	}
	request := history.RequestRestore(plan.Transition(found.History), found.History.Manifest())
	if err := signRestore(cfg, in, found.History.Manifest(), request, plan); err != nil {
		return err
	}
	if in.requestOut != "" && !in.dry { // the clocks of another plan are others
		if err := keyfile.Create(cfg.Within(in.requestOut), request.Encode(), 0o644, "a request to sign"); err != nil {
			return err
		}
		c.Say("signers sign %s where their keys are: fealty backup sign %s --key KEY", in.requestOut, in.requestOut)
	}
	if in.dry {
		c.Planned("the backup would be restored into " + name)
		return c.Print(restoreResult(name, found, plan))
	}
	ids, err := backupKeys(ctx, c, cfg, in.backupFlags)
	if err != nil {
		return err
	}
	f, err := openBackup(cfg, file)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := backup.Open(f, ids)
	if err != nil {
		return ofBackup(file, err)
	}
	if st == nil {
		if st, name, err = server.OpenStore(ctx, c, cfg, server.Running{Log: log}); err != nil {
			return err
		}
	}
	if plan, err = backup.Restore(ctx, st, plan, r, nil); err != nil {
		return restoreFailed(name, file, err)
	}
	if err := c.Print(restoreResult(name, found, plan)); err != nil {
		return err
	}
	tellOfLoss(c, found, plan)
	return nil
}

// restorePlan returns the plan for a store: the one that was begun there, if there is
// one, else a new one. Nil stands for a store that is yet to be made.
func restorePlan(ctx context.Context, st store.Store, name, file string, found *backup.Contents, now time.Time,
	reason string) (*backup.Intent, error) {
	plan, err := backup.Plan(found, now, reason)
	if err != nil || st == nil {
		return plan, restoreFailed(name, file, err)
	}
	have, _, err := backup.Begun(ctx, st, plan)
	switch {
	case err != nil:
		return nil, restoreFailed(name, file, err)
	case have == nil:
		return plan, nil
	case have.Ahead(plan):
		return nil, restoreFailed(name, file,
			fmt.Errorf("backup: a restore of this backup was begun in it with clocks that are ahead of this "+
				"machine's (index %d, epoch %d, revisions above %d): set the clock right, or empty the store: %w",
				have.Index, have.AuthorityEpoch, have.Floor, backup.ErrOtherRestore))
	}
	return have, nil
}

// signRestore adds the signatures that are given to the plan.
func signRestore(cfg *settings.Values, in restoreFlags, m *manifest.Manifest, request history.RestoreRequest,
	plan *backup.Intent) error {
	keys, err := manifestpkg.ReadKeys(cfg, in.signWith)
	if err != nil {
		return err
	}
	files, err := manifestpkg.ReadSignatures(cfg, in.signatures)
	if err != nil {
		return err
	}
	for _, key := range keys {
		f, err := request.Sign(key)
		if err != nil {
			return err
		}
		files = append(files, manifestpkg.SignatureFile{From: "--sign-with", SignatureFile: f})
	}
	for _, f := range files {
		err := history.CheckRestoreSignature(f.SignatureFile, request, m)
		e, ok := errors.AsType[*history.SignatureError](err)
		switch {
		case err == nil:
		case !ok:
			return err
		case errors.Is(err, history.ErrNoSigner):
			return errcode.Wrap(err, errcode.SignatureForeign, "change", history.KindRestore.Undone(), "signer",
				e.Key.String())
		case errors.Is(err, history.ErrOtherChange), errors.Is(err, history.ErrOtherHead):
			return errcode.Wrap(err, errcode.SignatureOther, "file", f.From, "problem", e.Detail)
		default:
			return errcode.Wrap(err, errcode.SignatureFileBad, "file", f.From, "problem", e.Detail)
		}
		if !slices.ContainsFunc(plan.Signatures, func(s history.Signature) bool { return s.Key == f.Signature.Key }) {
			plan.Signatures = append(plan.Signatures, f.Signature)
		}
	}
	return nil
}

// restoreInPlace has the cluster of a store go on from what that holds.
func restoreInPlace(ctx context.Context, c *program.CLI, cfg *settings.Values, in restoreFlags) error {
	switch {
	case cfg.Find("store").Text == "":
		return command.Missing("--store", "a store goes on in place", "--store URL of the store that went back")
	case len(in.keys) > 0 || in.passphraseFile != "" || in.transactionKey != "":
		return errcode.New(errcode.BadValue, "name", "--share-key, --passphrase-file and --transaction-key", "value",
			"given", "problem", "nothing is read from a backup in place", "want", "none of them with --in-place")
	case len(in.reason) > history.MaxReasonBytes:
		return errcode.New(errcode.BadValue, "name", "--reason", "value", "given", "problem",
			fmt.Sprintf("it has more than %d bytes", history.MaxReasonBytes), "want", "a shorter one")
	}
	st, name, err := server.OpenStoreThere(ctx, c, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if st == nil {
		return restoreFailed(name, "", backup.ErrNoCluster)
	}
	defer st.Close()
	found, err := backup.PlanInPlace(ctx, st, c.Env.Now(), func(m *manifest.Manifest) (store.Revision, error) {
		return peer.SeenIn(ctx, st, m)
	}, in.reason, c.Env.Release)
	if err != nil {
		return restoreFailed(name, "", err)
	}
	request, err := found.Intent.Request(found.Manifest)
	if err != nil {
		return restoreFailed(name, "", err)
	}
	if err := signRestore(cfg, in, found.Manifest, request, found.Intent); err != nil {
		return err
	}
	if in.requestOut != "" && !in.dry {
		if err := keyfile.Create(cfg.Within(in.requestOut), request.Encode(), 0o644, "a request to sign"); err != nil {
			return err
		}
		c.Say("signers sign %s where their keys are: fealty backup sign %s --key KEY", in.requestOut, in.requestOut)
	}
	if in.dry {
		c.Planned("the cluster would go on from what " + name + " holds")
		return c.Print(inPlaceResult(name, found))
	}
	if err := backup.RestoreInPlace(ctx, st, found, nil); err != nil {
		return restoreFailed(name, "", err)
	}
	if err := c.Print(inPlaceResult(name, found)); err != nil {
		return err
	}
	c.Say("not in it is what the store lost: members that joined or left since, changes of the config, and bans, but " +
		"for those that members still know; every join token is void")
	if have := len(found.Intent.Signatures); have < found.Manifest.Signers.Threshold {
		c.Say("no coordinator goes on from it before %d more of the signers sign: run it again with --sign-with or "+
			"--signature", found.Manifest.Signers.Threshold-have)
		return nil
	}
	c.Say("next: start the coordinators on this store; without a keeper the owners bring the seed: fealty recover")
	return nil
}

// signed returns who of the signers of m signed the plan, and who did not.
func signed(m *manifest.Manifest, plan *backup.Intent) (signed, missing []string) {
	for _, s := range m.Signers.Keys {
		if slices.ContainsFunc(plan.Signatures, func(h history.Signature) bool { return h.Key == s.Key }) {
			signed = append(signed, s.Name)
		} else {
			missing = append(missing, s.Name)
		}
	}
	return signed, missing
}

// resumedHead is the head that a restored cluster resumes.
type resumedHead struct {
	Hash           string `json:"hash"`
	Index          string `json:"index"`
	AuthorityEpoch string `json:"authority_epoch"`
}

// resumption is what a restored cluster goes on from, and with, and who signed that.
type resumption struct {
	Resumes          resumedHead `json:"resumes"`
	Index            string      `json:"index"`
	AuthorityEpoch   string      `json:"authority_epoch"`
	Floor            string      `json:"floor"`
	Signed           term.Texts  `json:"signed"`
	NotSigned        term.Texts  `json:"not_signed"`
	SignaturesNeeded int         `json:"signatures_needed"`
	Whole            bool        `json:"whole"`
}

// resumptionOf returns that of a plan under the manifest m of a head.
func resumptionOf(hash history.Hash, index, epoch uint64, m *manifest.Manifest, plan *backup.Intent, whole bool) resumption {
	signed, missing := signed(m, plan)
	return resumption{
		Resumes: resumedHead{Hash: hash.String(), Index: command.Number(index), AuthorityEpoch: command.Number(epoch)},
		Index:   command.Number(plan.Index), AuthorityEpoch: command.Number(plan.AuthorityEpoch),
		Floor:  command.Number(uint64(plan.Floor)),
		Signed: signed, NotSigned: missing, SignaturesNeeded: m.Signers.Threshold, Whole: whole,
	}
}

// addTo adds it to what is printed.
func (r resumption) addTo(f *term.Facts) {
	f.Add("goes on from", fmt.Sprintf("%s, index %s, epoch %s", member.Short(r.Resumes.Hash), r.Resumes.Index, r.Resumes.AuthorityEpoch))
	f.Add("with", fmt.Sprintf("index %s, epoch %s, revisions above %s", r.Index, r.AuthorityEpoch, r.Floor))
	have := fmt.Sprintf("%d of %d", len(r.Signed), r.SignaturesNeeded)
	if len(r.Signed) > 0 {
		have += ": " + strings.Join(r.Signed, ", ")
	}
	f.Add("signatures", have)
}

// restoredInPlace is what fealty backup restore prints of a store that went back.
type restoredInPlace struct {
	Store   string `json:"store"`
	Cluster string `json:"cluster"`
	InPlace bool   `json:"in_place"`
	Entries string `json:"entries"`
	resumption
}

func inPlaceResult(name string, found *backup.Standing) program.Result {
	m := found.Manifest
	data := restoredInPlace{Store: name, Cluster: m.Cluster, InPlace: true, Entries: command.Number(found.Entries),
		resumption: resumptionOf(found.Hash, found.Head.Index, found.Head.AuthorityEpoch, m, found.Intent, true)}
	return program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		f.Add("store", name)
		f.Add("cluster", m.Cluster)
		f.Add("holds", humanize.Plural(int(found.Entries), "entry", "entries"))
		data.addTo(&f)
		return p.Facts(f)
	})
}

// restoreFailed words why a backup was not restored into the store called name.
func restoreFailed(name, file string, err error) error {
	if err == nil {
		return nil
	}
	problem := strings.TrimPrefix(err.Error(), "backup: ")
	if errors.Is(err, backup.ErrNoCluster) {
		return errcode.Wrap(err, errcode.RestoreOccupied, "store", name, "problem", problem, "do",
			"name the store of the cluster with --store; into an empty one a backup is restored: "+
				"fealty backup restore FILE")
	}
	for _, target := range []error{backup.ErrOccupied, backup.ErrOtherRestore, backup.ErrNoFloor} {
		if errors.Is(err, target) {
			return errcode.Wrap(err, errcode.RestoreOccupied, "store", name, "problem", problem)
		}
	}
	switch {
	case errors.Is(err, backup.ErrClockBehind):
		return errcode.Wrap(err, errcode.RestoreClock, "problem", problem)
	case errors.Is(err, backup.ErrVersion) || errors.Is(err, backup.ErrAltered) || errors.Is(err, backup.ErrCut) ||
		errors.Is(err, backup.ErrUnsigned):
		return ofBackup(file, err)
	case errors.Is(err, store.ErrUnknownOutcome):
		return errcode.Wrap(err, errcode.StoreOutcomeUnknown, "what", "restoring the backup")
	case store.ReasonOf(err) == store.NoSpace:
		return errcode.Wrap(err, errcode.StoreFull, "what", "restoring the backup")
	case store.ReasonOf(err) != 0:
		return errcode.Wrap(err, errcode.StoreRefuses, "what", "restoring the backup", "reason",
			store.ReasonOf(err).String())
	}
	if e, ok := errors.AsType[*errcode.Error](err); ok {
		return e
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return errcode.Wrap(err, errcode.StoreUnreachable, "what", "restoring into "+name, "cause", problem)
}

// restored is what fealty backup restore prints.
type restored struct {
	Store    string      `json:"store"`
	Cluster  string      `json:"cluster"`
	BackupOf term.Moment `json:"backup_of"`
	Entries  string      `json:"entries"`
	resumption
}

func restoreResult(name string, found *backup.Contents, plan *backup.Intent) program.Result {
	head := found.History.Current()
	data := restored{Store: name, Cluster: found.Header.Cluster, BackupOf: term.Moment(found.Header.CreatedAt),
		Entries:    command.Number(found.Trailer.Entries),
		resumption: resumptionOf(head.Hash, head.Index, head.AuthorityEpoch, found.History.Manifest(), plan, plan.Whole)}
	return program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		f.Add("store", name)
		f.Add("cluster", found.Header.Cluster)
		f.Add("backup of", found.Header.CreatedAt.UTC().Format(time.RFC3339))
		data.addTo(&f)
		return p.Facts(f)
	})
}

// tellOfLoss says what a restore cannot know, and what is next.
func tellOfLoss(c *program.CLI, found *backup.Contents, plan *backup.Intent) {
	at := found.Header.CreatedAt.UTC().Format(time.RFC3339)
	c.Say("not in it is what happened after %s: members that joined or left since, changes of the manifest and the "+
		"config, and bans, but for those that members still know", at)
	c.Say("members that joined since join again, with a new token or their certificate; every join token of before " +
		"is void")
	m := found.History.Manifest()
	if have := len(plan.Signatures); have < m.Signers.Threshold {
		c.Say("no coordinator goes on from it before %d more of the signers sign: run it again with --sign-with or "+
			"--signature", m.Signers.Threshold-have)
		return
	}
	c.Say("next: start a coordinator on this store; without a keeper the owners bring the seed: fealty recover")
}

func sign(c *program.CLI) *cobra.Command {
	var keyFile, out string
	cmd := c.Command(program.Command{
		Use: "sign REQUEST", Short: "sign a restore where the key is",
		Long: `Sign a restore on the machine that has the signer's key. REQUEST is the file that fealty backup ` +
			`restore wrote with
--request-out. The output is one line that the restore takes with --signature, on standard output or in the file
of --out. It covers the backup, the head that the history goes on from and the clocks that it goes on with, so that
it works for this restore alone. The digest that it prints is that of the backup: compare it with what fealty backup
check says of the one you mean.`,
		Sample: "  fealty backup sign restore.json --key alice.key --out alice.sig",
		Args:   command.Exactly("REQUEST"),
		Run: func(_ context.Context, cfg *settings.Values, args []string) error {
			if keyFile == "" {
				return command.Missing("--key", "somebody has to sign", "--key FILE of a signer's key")
			}
			raw, err := render.ReadFile(cfg.Within(args[0]), history.MaxRestoreRequestBytes)
			if err != nil {
				return errcode.Wrap(err, errcode.FileMissing, "purpose", "request to sign", "file", args[0])
			}
			request, err := history.DecodeRestoreRequest(raw)
			if err != nil {
				return errcode.Wrap(err, errcode.SignatureFileBad, "file", args[0], "problem",
					"it is not what fealty backup restore --request-out writes")
			}
			key, err := keyfile.Read(cfg.Within(keyFile))
			if err != nil {
				return err
			}
			f, err := request.Sign(key)
			if err != nil {
				return err
			}
			if out != "" {
				err = keyfile.Create(cfg.Within(out), f.Encode(), 0o644, "a signature")
			} else {
				_, err = c.Env.Stdout.Write(f.Encode())
			}
			if err != nil {
				return err
			}
			c.Say("signed as %s: cluster %s goes back to the backup with digest %s, at head %s, and on with index %d "+
				"and epoch %d", f.Signature.Key, request.Cluster, request.Backup, request.Current, request.Index,
				request.AuthorityEpoch)
			return nil
		},
	})
	cmd.Flags().StringVar(&keyFile, "key", "", "sign with the key in this PEM file")
	cmd.Flags().StringVar(&out, "out", "", "write the signature to this new file")
	return cmd
}
