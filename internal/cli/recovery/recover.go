// Package recovery has the commands by which owners bring back a lost seed, and by which anybody verifies a cluster's
// coordinator: fealty recover and fealty verify.
package recovery

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"
	terminal "golang.org/x/term"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	manifestpkg "github.com/fealty-io/fealty/internal/cli/manifest"
	"github.com/fealty-io/fealty/internal/cli/member"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/mesh"
)

// maxPassphraseBytes bounds the passphrase of a private key.
const maxPassphraseBytes = 1 << 10

// recoverFlags are what recover is told.
type recoverFlags struct {
	shares, keys   []string
	passphraseFile string
	manifest, pin  expected
	history        expected
	marks          string
	drill, dry     bool
	force, yes     bool
	wait           client.WaitFlag
}

func Command(c *program.CLI) *cobra.Command {
	var in recoverFlags
	cmd := c.Command(program.Command{
		Use: "recover", Short: "bring a share of the seed, when every coordinator is lost",
		Long: `Bring a share of the seed to a coordinator in recovery mode. With enough shares it is back.

Before anything is sent, this machine verifies the whole history under the key in the share file, that who asks
for the share is a coordinator which that history admits, over this very connection, and that the share is the
one that the history commits to. --manifest and --root-pin say what else has to hold, and the mark of the cluster, that
the history did not go back since this machine saw it last.

After a restore the history may end before what this machine saw last. Then a share is sent only if the signers that
this machine remembers signed that restore, for exactly this history: who signed, which backup, and what is lost is
shown, and you are asked. --yes answers that you agree.

Owners may reach different coordinators: each passes on what it takes. Once there are enough shares the coordinator
asks ready ones first, and where one is, nothing is written. --force overrides that; two keys there are never.

Running it again is harmless: the same share counts once. With --wait the share is brought again and again
until the coordinator is ready, also to one that restarts meanwhile.

With --drill the shares are only compared with the history, which a ready coordinator or a file shows. A coordinator
notes whose shares were good, for fealty status. Nothing secret leaves this machine, and nothing of a share is shown.`,
		Sample: `  fealty recover --share alice.share --share-key ~/.ssh/id_ed25519 --coordinator c1.example:7443
  fealty recover --share alice.share --share-key alice.key --coordinator c1.example:7443 --manifest manifest.yaml --wait
  fealty recover --drill --share alice.share --share bob.share --share-key alice.key --share-key bob.key --history ` +
			`history.json`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return recover(ctx, c, cfg, in)
		},
	})
	f := cmd.Flags()
	f.StringArrayVar(&in.shares, "share", nil, "the encrypted share file; once for each")
	f.StringArrayVar(&in.keys, "share-key", nil,
		"the private key that opens it: an age key file or an SSH key; once for each")
	f.StringVar(&in.passphraseFile, "passphrase-file", "",
		"read the passphrase of the private key from this file or /dev/fd/N; else a terminal asks")
	f.Var(&in.manifest, "manifest", "send nothing unless this is the manifest in force")
	f.Var(&in.pin, "root-pin", "send nothing unless this is the SHA-256 of the cluster's root key")
	f.Var(&in.history, "history",
		"with --drill: compare with the history that fealty manifest history -o json wrote to this file")
	f.BoolVar(&in.drill, "drill", false, "compare shares with the history, and send nothing of them")
	f.BoolVar(&in.force, "force", false,
		"have the coordinator make the seed of the shares without asking ready ones once more")
	f.BoolVar(&in.yes, "yes", false,
		"do not ask before a share for a signed restore that goes back behind what this machine saw")
	marksFlag(cmd, &in.marks)
	command.DryRun(cmd.Flags(), &in.dry)
	in.wait.Add(cmd, "bring the share until the coordinator is ready, for so long at most")
	return cmd
}

func recover(ctx context.Context, c *program.CLI, cfg *settings.Values, in recoverFlags) error {
	if len(in.shares) == 0 {
		return command.Missing("--share", "it is an owner's share that brings the seed back",
			"--share FILE, as an admin got it from the first set, a reshare, or fealty manifest shares on the "+
				"coordinator's machine")
	}
	if len(in.keys) == 0 {
		return command.Missing("--share-key", "the share file is encrypted to its owner's key",
			"--share-key FILE, the age key file or SSH key whose public half the manifest names")
	}
	for _, x := range []struct {
		set  bool
		name string
	}{{in.dry, "--dry-run"}, {in.wait.D > 0, "--wait"}, {in.manifest.given, "--manifest"}, {in.pin.given, "--root-pin"},
		{in.force, "--force"}} {
		if in.drill && x.set {
			return errcode.New(errcode.BadValue, "name", x.name, "value", "given together with --drill", "problem",
				"a drill brings nothing anywhere", "want", "one of them")
		}
	}
	if in.history.given && !in.drill {
		return errcode.New(errcode.BadValue, "name", "--history", "value", "given without --drill", "problem",
			"a recovery is shown the history by the coordinator", "want", "--drill, to compare a share with a file")
	}
	if in.history.given && in.history.text == "" {
		return errcode.New(errcode.BadValue, "name", "--history", "value", "blank", "problem",
			"the shares would be compared with what the coordinator shows", "want", "--history FILE, or leave it out")
	}
	if in.dry && in.wait.D > 0 {
		return errcode.New(errcode.BadValue, "name", "--wait", "value", "given together with --dry-run", "problem",
			"a dry run changes nothing to wait for", "want", "one of them")
	}
	files, err := openShares(ctx, c, cfg, in)
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			f.Share.Wipe()
		}
	}()
	if in.drill {
		return drill(ctx, c, cfg, in, files)
	}
	expect, cluster, err := in.expect(c, cfg)
	if err != nil {
		return err
	}
	for i, f := range files {
		if cluster != "" && f.Cluster != cluster {
			return errcode.New(errcode.PeerOtherCluster, "endpoint", "the manifest "+in.manifest.text, "cluster", cluster, "expected",
				f.Cluster, "problem", "the share of "+f.Owner+" in "+in.shares[i]+" is of "+f.Cluster+"; nobody was asked", "do",
				"give the manifest of "+f.Cluster+", or a share of "+cluster)
		}
	}
	addrs, err := recovering(ctx, c, cfg)
	if err != nil {
		return err
	}
	return bringShares(ctx, c, cfg, in, files, expect, addrs)
}

// ReadShareKeys reads the private keys of owners. The passphrase of one that has one
// is asked for.
func ReadShareKeys(ctx context.Context, c *program.CLI, cfg *settings.Values, names []string,
	passphraseFile string) ([]age.Identity, error) {
	var keys []age.Identity
	for _, name := range names {
		path := cfg.Within(name)
		raw, err := durable.OS().ReadSecret(path, keyring.MaxKeyFileBytes)
		if err != nil {
			return nil, render.OfPrivateFile(name, err)
		}
		ids, err := keyring.ReadIdentities(raw, func() ([]byte, error) {
			return askPassphrase(ctx, c, cfg, passphraseFile, name)
		})
		keyring.Wipe(raw)
		if err != nil {
			if e, ok := errors.AsType[*errcode.Error](err); ok {
				return nil, e
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			problem := strings.TrimPrefix(err.Error(), "keyring: ")
			if errors.Is(err, keyring.ErrPassphrase) {
				return nil, errcode.Wrap(err, errcode.KeyFileLocked, "file", name, "problem",
					strings.TrimSuffix(problem, ": "+keyring.ErrPassphrase.Error()))
			}
			return nil, errcode.Wrap(err, errcode.KeyFileUnusable, "file", name, "problem",
				strings.TrimSuffix(problem, ": "+keyring.ErrIdentityFile.Error()), "want", wantShareKey)
		}
		keys = append(keys, ids...)
	}
	return keys, nil
}

// openShares opens the share files, with their names for errors. Nobody is asked
// for a passphrase while a coordinator waits.
func openShares(ctx context.Context, c *program.CLI, cfg *settings.Values, in recoverFlags) ([]keyring.ShareFile,
	error) {
	keys, err := ReadShareKeys(ctx, c, cfg, in.keys, in.passphraseFile)
	if err != nil {
		return nil, err
	}
	var files []keyring.ShareFile
	for _, name := range in.shares {
		raw, err := render.ReadFile(cfg.Within(name), keyring.MaxShareFileBytes)
		if err != nil {
			return files, errcode.Wrap(err, errcode.FileMissing, "purpose", "share", "file", name)
		}
		f, err := keyring.OpenShare(keys, raw)
		if err != nil {
			return files, errcode.Wrap(err, errcode.ShareUnusable, "file", name, "problem",
				strings.TrimPrefix(err.Error(), "keyring: "))
		}
		files = append(files, f)
	}
	return files, nil
}

// wantShareKey is what --share-key names.
const wantShareKey = "an age key file or an SSH key (ed25519, rsa)"

// passphrase reads the passphrase of a private key, from a file or a terminal. It
// is never an argument: every user of the machine sees those.
func askPassphrase(ctx context.Context, c *program.CLI, cfg *settings.Values, file, key string) ([]byte, error) {
	if file != "" {
		path := cfg.Within(file)
		read := func() ([]byte, error) { return render.ReadFile(path, maxPassphraseBytes) }
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			read = func() ([]byte, error) { return durable.OS().ReadSecret(path, maxPassphraseBytes) }
		}
		raw, err := read()
		switch {
		case err == nil:
			return bytes.TrimRight(raw, "\r\n"), nil
		case errors.Is(err, durable.ErrExposed):
			return nil, errcode.Wrap(err, errcode.KeyFileLocked, "file", key, "problem",
				"others can read the passphrase file "+file+", so the passphrase counts as known to them",
				"do", "change the passphrase if others may have read it, and chmod 600 "+file)
		case errors.Is(err, durable.ErrTooLarge), errors.Is(err, render.ErrTooLarge):
			return nil, errcode.Wrap(err, errcode.KeyFileLocked, "file", key, "problem",
				fmt.Sprintf("the passphrase file %s has more than %d bytes", file, maxPassphraseBytes))
		}
		return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "passphrase file", "file", file, "cause",
			render.Bare(err).Error())
	}
	f, ok := c.Env.Stdin.(*os.File)
	if !ok || !c.Env.IsTerminal(c.Env.Stdin) {
		return nil, errcode.New(errcode.KeyFileLocked, "file", key, "problem",
			"there is no terminal to ask for its passphrase on")
	}
	return askSecret(ctx, c, int(f.Fd()), "passphrase of "+key)
}

// askSecret asks on a terminal, and does not show the answer. The terminal is left
// as it was found, also if ctx ends first.
func askSecret(ctx context.Context, c *program.CLI, fd int, what string) ([]byte, error) {
	before, err := terminal.GetState(fd)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(c.Env.Stderr, "fealty: %s: ", term.Sanitize(what))
	defer fmt.Fprintln(c.Env.Stderr) // the line end of the answer is not shown either
	type answer struct {
		secret []byte
		err    error
	}
	answered := make(chan answer, 1)
	// The read ends with the process: a terminal cannot be told to stop waiting.
	go func() {
		secret, err := terminal.ReadPassword(fd)
		answered <- answer{secret, err}
	}()
	select {
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), terminal.Restore(fd, before))
	case a := <-answered:
		return a.secret, a.err
	}
}

// expect reads what the owner expects of the cluster, and which one that is; "" where no manifest says so.
func (in recoverFlags) expect(c *program.CLI, cfg *settings.Values) (out recovery.Expect, cluster string, err error) {
	pin, err := in.pin.pin()
	if err != nil {
		return out, cluster, err
	}
	out.Pin = pin
	if in.manifest.given {
		file := in.manifest.text
		if file == "" {
			return out, cluster, errcode.New(errcode.BadValue, "name", "--manifest", "value", "blank", "problem",
				"the cluster would be taken with any manifest", "want", "--manifest FILE, or leave it out")
		}
		_, m, err := manifestpkg.ReadManifest(c, cfg, file, manifest.ParseAccepted)
		if problems, ok := errors.AsType[*manifest.InvalidError](err); ok {
			return out, cluster, manifestpkg.InvalidManifest(file, problems)
		}
		if err != nil {
			return out, cluster, err
		}
		out.Manifest, cluster = m.Hash(), m.Cluster
	}
	return out, cluster, nil
}

// recovering returns where the coordinators are: as named or, of one that has a
// socket here, as it says.
func recovering(ctx context.Context, c *program.CLI, cfg *settings.Values) ([]string, error) {
	if named := cfg.List("coordinator"); len(named) > 0 {
		return named, nil
	}
	switch p, err := c.Person(cfg); {
	case err != nil:
		return nil, err
	case p.Rank > settings.FromDefault:
		login, err := p.Load(c)
		return login.Addresses, err
	}
	var addrs []string
	err := c.Ask(cfg, func(s *client.Services) error {
		st, err := s.Status.GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: 1})
		addrs = st.GetAddresses()
		for _, r := range st.GetReplicas() {
			for _, a := range r.GetAddresses() {
				if !slices.Contains(addrs, a) {
					addrs = append(addrs, a)
				}
			}
		}
		return err
	})
	if err == nil && len(addrs) == 0 {
		err = errcode.New(errcode.NoCoordinatorConfigured, "looked", "the addresses that the coordinator tells")
	}
	return addrs, err
}

// broughtOne is what came of one share.
type broughtOne struct {
	Owner    string
	seen     recovery.Verified
	Progress recovery.Progress
	Sent     bool
}

// bringShares brings each share, until all are taken or, with --wait, the
// coordinator is ready.
func bringShares(ctx context.Context, c *program.CLI, cfg *settings.Values, in recoverFlags, files []keyring.ShareFile,
	expect recovery.Expect, addrs []string) error {
	kept := marksIn(c, cfg, in.marks)
	var so bringing
	told := "" // the progress that was told last
	var agreed [sha256.Size]byte
	round := func(ctx context.Context) (*broughtOne, bool, error) {
		for _, f := range files {
			var err error
			if expect.Seen, err = kept.read(f.Cluster); err != nil {
				return nil, true, err
			}
			b, err := bringShare(ctx, c, cfg, in, f, expect, addrs, agreed, so.last == nil)
			if unagreed, ok := errors.AsType[*recovery.UnagreedError](err); ok {
				if err := agree(ctx, c, in, f.Cluster, unagreed.Restore); err != nil {
					return nil, true, err
				}
				agreed = unagreed.Restore.ID
				b, err = bringShare(ctx, c, cfg, in, f, expect, addrs, agreed, so.last == nil)
			}
			if err := so.take(b, err); err != nil {
				return nil, fatalToOwner(err), err
			}
			if text := progressText(so.last.Progress); !in.dry && text != told {
				c.Say("%s", text)
				told = text
			}
			if so.last.Progress.Recovered {
				return so.last, true, nil
			}
		}
		return so.last, false, nil
	}
	pause := c.Pause(time.Second)
	b, err := client.Until(ctx, in.wait, "for the coordinator to be ready", round, &pause)
	if err != nil {
		return err
	}
	if in.dry {
		c.Planned("the share of " + b.Owner + " would be sent")
	}
	return c.Print(b.result())
}

// bringing is how far the shares of one owner's tool are.
type bringing struct {
	last *broughtOne // of which the most is known; nil: none was verified
	sent bool        // a share was, though its answer may be lost
}

// take takes in what came of bringing one share, and returns the error that stands in
// the way. Of a share whose answer was lost it is not known whether it was the decisive
// one; a coordinator that is ready afterwards says that one was.
func (b *bringing) take(one *broughtOne, err error) error {
	if one != nil && one.Sent {
		b.last, b.sent = one, true
	}
	if err == nil {
		b.last = one
		return nil
	}
	if b.sent && errors.Is(errcode.Of(err), errcode.RecoveryNotNeeded) {
		b.last.Progress.Recovered = true
		return nil
	}
	return err
}

// agree shows an owner the restore that the share is for, and asks.
func agree(ctx context.Context, c *program.CLI, in recoverFlags, cluster string, r *recovery.Restore) error {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	c.Say("a restore of %s waits for its seed. It goes back to the backup of %s, at index %d of authority epoch %d, "+
		"head %s",
		cluster, at(r.BackupAt), r.Back.Index, r.Back.AuthorityEpoch, member.Short(r.Back.Hash.String()))
	c.Say("it was signed by %s (%d needed of the signers that this machine remembers), and begun at %s",
		strings.Join(r.Signers, ", "), r.Needed, at(r.PlannedAt))
	if r.Reason != "" {
		c.Say("who began it gave as the reason, which is not signed: %s", r.Reason)
	}
	c.Say("this machine has seen index %d of authority epoch %d: that, and whatever was joined, banned, set or put "+
		"after the backup, is lost",
		r.Seen.Index, r.Seen.AuthorityEpoch)
	if in.dry {
		return nil // nothing is sent
	}
	return c.Confirm(ctx, "fealty recover", fmt.Sprintf("the share helps to bring cluster %s back as it was at %s",
		cluster, at(r.BackupAt)), in.yes)
}

// fatalToOwner reports whether trying again cannot help.
func fatalToOwner(err error) bool {
	e := errcode.Of(err)
	return !slices.ContainsFunc([]errcode.Code{
		errcode.Unreachable, errcode.RecoveryMode, errcode.RecoveryOver, errcode.OutcomeUnknown, errcode.RateLimited,
		errcode.StoreUnreachable, errcode.StoreOutcomeUnknown, errcode.StoreBusy, errcode.StoreFull,
		errcode.StoreRefuses,
	}, func(code errcode.Code) bool { return errors.Is(e, code) })
}

// bringShare brings one share to the first address that is reached.
func bringShare(ctx context.Context, c *program.CLI, cfg *settings.Values, in recoverFlags, file keyring.ShareFile,
	expect recovery.Expect, addrs []string, agreed [sha256.Size]byte, tell bool) (*broughtOne, error) {
	var first error
	for _, addr := range addrs {
		b := &broughtOne{Owner: file.Owner}
		err := bringAt(ctx, c, cfg, in, file, expect, addr, agreed, tell, b)
		if err == nil {
			return b, nil
		}
		if _, ok := errors.AsType[*recovery.UnagreedError](err); ok {
			return nil, err
		}
		err = render.OverNetwork(err, addr, "Recover", b.Sent, true, cfg.Text("timeout"))
		if first == nil {
			first = err
		}
		if b.Sent || ctx.Err() != nil || !errors.Is(errcode.Of(err), errcode.Unreachable) {
			return b, err
		}
	}
	return nil, first
}

func bringAt(ctx context.Context, c *program.CLI, cfg *settings.Values, in recoverFlags, file keyring.ShareFile,
	expect recovery.Expect, addr string, agreed [sha256.Size]byte, tell bool, b *broughtOne) error {
	conn, err := mesh.DialPinned(addr, pinned.Unproven(), mesh.Options{Now: c.Env.Now})
	if err != nil {
		return errcode.Wrap(err, errcode.BadValue, "name", "--coordinator", "value", addr, "problem", err.Error())
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, cfg.Duration("timeout"))
	defer cancel()
	b.Progress, err = recovery.Bring(ctx, conn, file, recovery.Options{
		Expect: expect, Endpoint: addr, DryRun: in.dry, Force: in.force, Agreed: agreed, Now: c.Env.Now,
		Verified: func(v recovery.Verified) {
			b.seen, b.Sent = v, !in.dry
			// A record that was seen stays seen until the restore is a link of the history.
			if !in.dry && v.Restore == nil {
				keepSeen(c, marksIn(c, cfg, in.marks), expect.Seen, v.History, file.RootPin)
			}
			if !tell {
				return
			}
			links, head := v.History.Links(), v.History.Head()
			c.Say("verified the history of %s: %s, head %s at index %d, authority epoch %d", file.Cluster,
				humanize.Plural(len(links), "transition", "transitions"), member.Short(head.Hash.String()), head.Index,
				head.AuthorityEpoch)
			c.Say("verified %s: it is %s, admitted by manifest %s", addr, v.Coordinator,
				member.Short(v.History.Manifest().Hash().String()))
		},
	})
	return err
}

// progressText says how far a recovery is, for a person.
func progressText(p recovery.Progress) string {
	switch {
	case p.Recovered && p.Epoch == 0: // it was said to the next caller
		return "the seed is back: the coordinator is ready"
	case p.Recovered:
		return fmt.Sprintf("the seed is back: the coordinator is ready, authority epoch %d", p.Epoch)
	}
	text := fmt.Sprintf("%d of %d needed", len(p.Brought), p.Needed)
	if len(p.Brought) > 0 {
		text += ": " + strings.Join(p.Brought, ", ") + " brought"
	}
	if more := p.Needed - len(p.Brought); more > 0 {
		text += fmt.Sprintf("; still missing: %d of %s", more, strings.Join(p.Missing, ", "))
	}
	return text
}

// recoveryReport is what fealty recover prints.
type recoveryReport struct {
	Cluster        string     `json:"cluster"`
	Owner          string     `json:"owner"`
	Sent           bool       `json:"sent"`
	Coordinator    string     `json:"coordinator"`
	Attempt        string     `json:"attempt"`
	Needed         int        `json:"needed"`
	Brought        term.Texts `json:"brought"`
	Missing        term.Texts `json:"missing"`
	Recovered      bool       `json:"recovered"`
	AuthorityEpoch uint64     `json:"authority_epoch"`
	Head           string     `json:"head"`
	ManifestHash   string     `json:"manifest_hash"`
}

func (b *broughtOne) result() program.Result {
	head := b.seen.History.Head()
	hash, epoch := head.Hash, head.AuthorityEpoch
	if b.Progress.Recovered && !b.Progress.Head.IsZero() {
		hash, epoch = b.Progress.Head, b.Progress.Epoch
	}
	m := b.seen.History.Manifest()
	data := recoveryReport{
		Cluster: m.Cluster, Owner: b.Owner, Sent: b.Sent, Coordinator: b.seen.Coordinator, Attempt: b.seen.Attempt,
		Needed: b.Progress.Needed, Brought: b.Progress.Brought, Missing: b.Progress.Missing,
		Recovered: b.Progress.Recovered, AuthorityEpoch: epoch, Head: hash.String(), ManifestHash: m.Hash().String(),
	}
	return program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		if b.Progress.Recovered {
			f.Paint("seed", term.Green, "● back: the coordinator is ready")
		} else {
			f.Paint("seed", term.Amber, fmt.Sprintf("▲ %d of %d shares are in", len(b.Progress.Brought),
				b.Progress.Needed))
		}
		f.Add("cluster", m.Cluster)
		f.Add("coordinator", b.seen.Coordinator)
		if b.Progress.Recovered && b.Progress.Head.IsZero() {
			f.Add("share", "sent; fealty status says where the history is now")
			return p.Facts(f)
		}
		if b.Progress.Recovered {
			f.Add("authority epoch", command.Itoa(int64(epoch)))
			f.Add("head", hash.String())
			return p.Facts(f)
		}
		f.Add("brought", command.Dash(strings.Join(b.Progress.Brought, ", ")))
		f.Add("missing", strings.Join(b.Progress.Missing, ", "))
		f.Add("attempt", b.seen.Attempt+", until "+b.seen.Ends.UTC().Format(time.RFC3339))
		return p.Facts(f)
	})
}

// drilled is what a drill found of one share file.
type drilled struct {
	file  string
	owner string
	err   *errcode.Error // nil: it is the share that the head commits to
}

// drill compares shares with the history. A history comes from a ready
// coordinator or a file, and is verified under the key in each share file.
func drill(ctx context.Context, c *program.CLI, cfg *settings.Values, in recoverFlags,
	files []keyring.ShareFile) error {
	var resp *fealtyv1.GetHistoryResponse
	var err error
	if in.history.given {
		resp, err = manifestpkg.ReadHistory(c, cfg, in.history.text)
	} else {
		err = c.Ask(cfg, func(s *client.Services) error {
			resp, err = client.WholeHistory(ctx, s)
			return err
		})
	}
	if err != nil {
		return err
	}
	h := client.HistoryOf(resp)
	kept := marksIn(c, cfg, in.marks)
	var head *recovery.Head
	var found []drilled
	good := make(map[string]bool)
	for i, f := range files {
		d := drilled{file: in.shares[i], owner: f.Owner}
		v, err := history.Verify(h, f.TransactionKey)
		switch named := clusterNamed(resp, v); {
		case named != "" && named != f.Cluster:
			shown := "the coordinator that was asked"
			if in.history.given {
				shown = "the history in " + in.history.text
			}
			err = errcode.Wrap(err, errcode.PeerOtherCluster, "endpoint", shown, "cluster", named, "expected", f.Cluster,
				"problem", "its manifest names that cluster, and the share of "+f.Owner+" is of "+f.Cluster, "do",
				"compare the share with the history of "+f.Cluster)
		case err != nil:
			err = errcode.Wrap(err, errcode.RecoveryHistory, "endpoint", "that was given", "problem",
				strings.TrimPrefix(err.Error(), "history: "))
		default:
			var seen recovery.Mark
			if seen, err = kept.read(f.Cluster); err == nil {
				_, err = seen.Check(v, "that was given")
			}
			if err != nil {
				break
			}
			head = recovery.NewHead(v.Links(), v.Manifest())
			if err = head.Check(f.Owner, f.Share); err == nil {
				keepSeen(c, kept, seen, v, f.RootPin)
			}
		}
		if err != nil {
			d.err = errcode.Of(err)
		} else {
			good[f.Owner] = true
		}
		found = append(found, d)
	}
	if err := c.Print(drillResult(found, good, head)); err != nil {
		return err
	}
	for _, d := range found {
		if d.err != nil {
			return d.err
		}
	}
	recordDrill(ctx, c, cfg, in.history.given, head, found)
	return nil
}

// clusterNamed is the cluster that the newest manifest of a history names: of v or, where that is nil since another
// key signed it, of what was shown, which nothing proves. Blank: there is none.
func clusterNamed(shown *fealtyv1.GetHistoryResponse, v *history.Verified) string {
	if v != nil {
		return v.Manifest().Cluster
	}
	links := shown.GetTransitions()
	if len(links) == 0 {
		return ""
	}
	last, err := history.Decode(links[len(links)-1].GetRecord())
	if err != nil {
		return ""
	}
	for _, raw := range shown.GetManifests() {
		if sha256.Sum256(raw) != last.Manifest {
			continue
		}
		if m, err := manifest.ParseAccepted(raw); err == nil {
			return m.Cluster
		}
	}
	return ""
}

// recordDrill has the coordinator note that these shares are good. Nothing of them is sent, and
// a drill that is not noted was one all the same.
func recordDrill(ctx context.Context, c *program.CLI, cfg *settings.Values, fromFile bool, head *recovery.Head,
	found []drilled) {
	if fromFile {
		c.Say("no coordinator was asked, so that fealty status does not know of this drill")
		return
	}
	req := &fealtyv1.RecordDrillRequest{}
	for _, d := range found {
		if hash, ok := head.Commitment(d.owner); ok {
			req.Shares = append(req.Shares, &fealtyv1.DrilledShare{Owner: d.owner, Commitment: hash[:]})
		}
	}
	err := c.Ask(cfg, func(s *client.Services) error {
		_, err := s.Backup.RecordDrill(ctx, req)
		return err
	})
	if err != nil {
		c.Say("the shares are good, and the coordinator did not note it for fealty status: %s",
			render.Of(program.Name, err).Error())
	}
}

// drilledShare is how one share of a drill is.
type drilledShare struct {
	File    string `json:"file"`
	Owner   string `json:"owner"`
	Good    bool   `json:"good"`
	Code    string `json:"code"`
	Problem string `json:"problem"`
}

// drillReport is what fealty recover --drill prints, and drillHead what the shares are of; nil
// if none could be opened.
type drillReport struct {
	Shares []drilledShare `json:"shares"`
	Good   int            `json:"good"`
	*drillHead
	Enough bool `json:"enough"`
}

type drillHead struct {
	Needed  int        `json:"needed"`
	Cluster string     `json:"cluster"`
	Head    string     `json:"head"`
	Index   uint64     `json:"index"`
	Owners  term.Texts `json:"owners"`
}

func drillResult(found []drilled, good map[string]bool, head *recovery.Head) program.Result {
	items := make([]drilledShare, 0, len(found))
	for _, d := range found {
		code, problem := "", ""
		if d.err != nil {
			code, problem = string(d.err.Code), d.err.What+": "+d.err.Why
		}
		items = append(items, drilledShare{File: d.file, Owner: d.owner, Good: d.err == nil, Code: code,
			Problem: problem})
	}
	data := drillReport{Shares: items, Good: len(good)}
	enough := false
	if head != nil {
		enough = len(good) >= head.Threshold
		data.drillHead = &drillHead{head.Threshold, head.Cluster, head.Hash.String(), head.Index, head.Owners()}
	}
	data.Enough = enough
	return program.ResultOf(data, func(p *term.Page) error {
		t := &term.Table{Columns: []term.Column{{Title: "FILE"}, {Title: "OWNER"}, {Title: "SHARE", Least: 12}}}
		for _, d := range found {
			cell := term.Txt("● good")
			if d.err != nil {
				cell = term.Txt("✗ " + string(d.err.Code) + ": " + d.err.Why)
			}
			t.Add(term.Txt(d.file), term.Txt(d.owner), cell)
		}
		if err := p.Table(t); err != nil || head == nil {
			return err
		}
		p.Line("%s", "")
		if enough {
			p.Line("%s", fmt.Sprintf("%d of %d needed: these would bring back the seed of %s.", len(good),
				head.Threshold, head.Cluster))
		} else {
			p.Line("%s", fmt.Sprintf("%d of %d needed: these alone would not bring back the seed of %s.", len(good),
				head.Threshold, head.Cluster))
		}
		return nil
	})
}
