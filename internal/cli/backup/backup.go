// Package backup has the commands that make, check and restore backups.
package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/keyfile"
	"github.com/fealty-io/fealty/internal/cli/member"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/recovery"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

func Command(c *program.CLI) *cobra.Command {
	return program.Group("backup", "keep what the cluster can be restored from, and restore it", create(c),
		check(c), restore(c), sign(c))
}

func create(c *program.CLI) *cobra.Command {
	var in newBackup
	cmd := c.Command(program.Command{
		Use: "create FILE", Short: "write a backup, encrypted to the owners of the seed",
		Long: `Write a backup of the cluster to a new file: members, bans, config, the history, and the encrypted ` +
			`seed, as the
store had them at one moment. It is encrypted to every person who owns a share of the seed, so that each of them can
read it with the key that opens the share. --recipient names further readers, and --reader-key has one made: its private
key is written to that file, or read from there if it exists, and has to be kept where the coordinators are not. Where
keepers alone own the seed it takes one of the two, as a keeper is lost together with what it guards.

Join tokens are not in it: a restore voids them. The file is there whole or not at all, and refused later if a byte
of it is lost or altered: fealty backup check says so.`,
		Sample: `  fealty backup create prod-2026-05-04.backup
  fealty backup create prod.backup --recipient age1…
  fealty backup create prod.backup --reader-key backup-reader.key`,
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("FILE"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			return c.Ask(cfg, func(s *client.Services) error {
				return createBackup(ctx, c, cfg, s, args[0], in)
			})
		},
	})
	cmd.Flags().StringArrayVar(&in.recipients, "recipient", nil,
		"encrypt it to this age or SSH public key as well; once for each")
	cmd.Flags().StringVar(&in.readerKey, "reader-key", "",
		"encrypt it to the age key in this file as well; it is made if it is not there")
	command.DryRun(cmd.Flags(), &in.dry)
	return cmd
}

// newBackup is what a backup is made with.
type newBackup struct {
	recipients []string
	readerKey  string // the file of a private key; empty: none
	dry        bool
}

// readerKey returns the key in a file, or a new one that is to be written to it.
func readerKey(path, name string) (key *age.X25519Identity, isNew bool, err error) {
	raw, err := durable.OS().ReadSecret(path, keyring.MaxKeyFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = age.GenerateX25519Identity()
		return key, true, err
	}
	if err != nil {
		return nil, false, render.OfPrivateFile(name, err)
	}
	defer keyring.Wipe(raw)
	ids, err := age.ParseIdentities(bytes.NewReader(raw))
	if err == nil && len(ids) == 1 {
		if key, ok := ids[0].(*age.X25519Identity); ok {
			return key, false, nil
		}
	}
	return nil, false, errcode.New(errcode.BadValue, "name", "--reader-key", "value", name, "problem",
		"the file is there and holds no single age key, AGE-SECRET-KEY-1…", "want",
		"a file that is not there yet, or one that this command made; of another key give --recipient the public half")
}

// writeReaderKey writes a key as age-keygen does, for [readerKey] and for backup check.
func writeReaderKey(path string, key *age.X25519Identity) error {
	text := fmt.Appendf(nil, "# public key: %s\n%s\n", key.Recipient(), key)
	defer keyring.Wipe(text)
	return keyfile.Create(path, text, 0o600, "the key that reads backups")
}

func createBackup(ctx context.Context, c *program.CLI, cfg *settings.Values, s *client.Services, file string,
	in newBackup) error {
	path, recipients, dry := cfg.Within(file), in.recipients, in.dry
	var reader *age.X25519Identity
	isNew := false
	if in.readerKey != "" {
		var err error
		if reader, isNew, err = readerKey(cfg.Within(in.readerKey), in.readerKey); err != nil {
			return err
		}
		recipients = append(slices.Clone(recipients), reader.Recipient().String())
	}
	if _, err := os.Lstat(path); err == nil {
		return errcode.New(errcode.FileExists, "file", file, "purpose", "a backup")
	}
	stream, first, end, err := client.FirstOf(ctx, s.Line, "CreateBackup",
		func(ctx context.Context) (grpc.ServerStreamingClient[fealtyv1.CreateBackupResponse], error) {
			return s.Backup.CreateBackup(ctx, &fealtyv1.CreateBackupRequest{Recipients: recipients, DryRun: dry})
		})
	if errors.Is(err, errcode.BackupNoReader) {
		return errcode.Wrap(err, errcode.BackupNoReader, "file", file)
	}
	if err != nil {
		return err
	}
	defer end()
	head := first.GetHead()
	if head == nil {
		return errcode.New(errcode.PeerProtocol, "problem", "it does not say what the backup is of")
	}
	if dry {
		c.Planned("a backup of cluster " + head.GetClusterId() + " would be written to " + file)
		return c.Print(result(file, head, nil))
	}
	if isNew { // before the backup: one that nobody can read is none
		if err := writeReaderKey(cfg.Within(in.readerKey), reader); err != nil {
			return err
		}
	}
	var last *fealtyv1.BackupEnd
	err = keyfile.CreateStream(path, 0o600, "a backup", func(w io.Writer) error {
		sum, n := sha256.New(), uint64(0)
		for {
			part, err := stream.Recv()
			if err != nil {
				return s.Line.OfStream(ctx, err, "CreateBackup")
			}
			if last = part.GetEnd(); last != nil {
				break
			}
			n += uint64(len(part.GetChunk()))
			sum.Write(part.GetChunk())
			if _, err := w.Write(part.GetChunk()); err != nil {
				return err
			}
		}
		if n != last.GetBytes() || !bytes.Equal(sum.Sum(nil), last.GetSha256()) {
			return errcode.New(errcode.PeerProtocol, "problem",
				fmt.Sprintf("%d bytes came, and the backup has %d", n, last.GetBytes()))
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, _ = stream.Recv() // the end of the call: the coordinator has noted that the backup was made
	if err := c.Print(result(file, head, last)); err != nil {
		return err
	}
	if reader != nil {
		c.Say("%s reads this backup: keep copies of it where the coordinators and the backup are not", in.readerKey)
		c.Say("next: fealty backup check %s --share-key %s", file, in.readerKey)
		return nil
	}
	c.Say("next: fealty backup check %s --share-key KEY, with the key of %s", file, readersOf(head))
	return nil
}

func readersOf(head *fealtyv1.BackupHead) string {
	if len(head.GetOwners()) == 0 {
		return "who is named by --recipient"
	}
	return strings.Join(head.GetOwners(), " or ")
}

// createdBackup is what fealty backup create prints; of a dry run without what the file has.
type createdBackup struct {
	File           string      `json:"file"`
	Cluster        string      `json:"cluster"`
	CreatedAt      term.Moment `json:"created_at"`
	Revision       string      `json:"revision"`
	HistoryIndex   string      `json:"history_index"`
	AuthorityEpoch string      `json:"authority_epoch"`
	Head           string      `json:"head"`
	Owners         term.Texts  `json:"owners"`
	Members        string      `json:"members"`
	Bans           string      `json:"bans"`
	TokensLeftOut  string      `json:"tokens_left_out"`
	Entries        string      `json:"entries"`
	*backupEnd
}

// backupEnd is what a file of a backup came to.
type backupEnd struct {
	Bytes  string `json:"bytes"`
	SHA256 string `json:"sha256"`
	Digest string `json:"digest"`
}

func result(file string, head *fealtyv1.BackupHead, end *fealtyv1.BackupEnd) program.Result {
	data := createdBackup{
		File: file, Cluster: head.GetClusterId(), CreatedAt: term.Moment(head.GetCreatedAt().AsTime()),
		Revision: command.Number(head.GetRevision()), HistoryIndex: command.Number(head.GetHistoryIndex()),
		AuthorityEpoch: command.Number(head.GetAuthorityEpoch()), Head: hex.EncodeToString(head.GetHead()),
		Owners: head.GetOwners(), Members: command.Number(head.GetMembers()), Bans: command.Number(head.GetBans()),
		TokensLeftOut: command.Number(head.GetTokens()), Entries: command.Number(head.GetEntries()),
	}
	if end != nil {
		data.backupEnd = &backupEnd{command.Number(end.GetBytes()), hex.EncodeToString(end.GetSha256()),
			hex.EncodeToString(end.GetDigest())}
	}
	return program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		f.Add("cluster", head.GetClusterId())
		f.Add("revision", command.Number(head.GetRevision()))
		f.Add("head", fmt.Sprintf("%s, index %d, epoch %d", member.Short(hex.EncodeToString(head.GetHead())),
			head.GetHistoryIndex(), head.GetAuthorityEpoch()))
		f.Add("holds", fmt.Sprintf("%s, %s, %s", humanize.Plural(int(head.GetMembers()), "member", "members"),
			humanize.Plural(int(head.GetBans()), "ban", "bans"),
			humanize.Plural(int(head.GetEntries()), "entry", "entries")))
		f.Add("leaves out", humanize.Plural(int(head.GetTokens()), "join token", "join tokens"))
		if len(head.GetOwners()) > 0 {
			f.Add("for", strings.Join(head.GetOwners(), ", "))
		}
		if end != nil {
			f.Add("digest", hex.EncodeToString(end.GetDigest()))
		}
		return p.Facts(f)
	})
}

// backupFlags are what is needed to read a backup.
type backupFlags struct {
	keys           []string
	passphraseFile string
	transactionKey string
}

func (in *backupFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&in.keys, "share-key", nil,
		"the private key of a reader: the age key file or SSH key of an owner of the seed; once for each")
	f.StringVar(&in.passphraseFile, "passphrase-file", "",
		"read the passphrase of the private key from this file or /dev/fd/N; else a terminal asks")
	f.StringVar(&in.transactionKey, "transaction-key", "",
		"the SHA-256 of the key that has to have signed it, as fealty manifest verify-history shows it")
}

func check(c *program.CLI) *cobra.Command {
	var in backupFlags
	cmd := c.Command(program.Command{
		Use: "check FILE", Short: "verify a backup here, all of it, without a coordinator",
		Long: `Read a backup to its end on this machine and verify it: that nothing of it is lost or altered, that ` +
			`the cluster's
transaction key signed it, and that its history holds from genesis to head. Nothing is written.

The file cannot say to whom the transaction key belongs: compare it once with fealty manifest verify-history, or give
it with --transaction-key.`,
		Sample: "  fealty backup check prod.backup --share-key ~/.ssh/id_ed25519 --transaction-key HEX",
		Args:   command.Exactly("FILE"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			found, key, err := checkBackup(ctx, c, cfg, args[0], in)
			if err != nil {
				return err
			}
			return c.Print(contentsResult(args[0], found, key, in.transactionKey != ""))
		},
	})
	in.add(cmd)
	return cmd
}

// checkBackup verifies the backup in file, and returns the name of its transaction key.
func checkBackup(ctx context.Context, c *program.CLI, cfg *settings.Values, file string,
	in backupFlags) (*backup.Contents, identity.KeyID, error) {
	var key, want identity.KeyID
	if in.transactionKey != "" {
		var err error
		if want, err = identity.ParseKeyID(in.transactionKey); err != nil {
			return nil, key, errcode.Wrap(err, errcode.BadValue, "name", "--transaction-key", "value",
				in.transactionKey, "problem", "it is not 64 lower-case hex digits", "want",
				"the SHA-256 that fealty manifest verify-history shows")
		}
	}
	ids, err := backupKeys(ctx, c, cfg, in)
	if err != nil {
		return nil, key, err
	}
	f, err := openBackup(cfg, file)
	if err != nil {
		return nil, key, err
	}
	defer f.Close()
	found, err := backup.Check(f, ids)
	if err != nil {
		return nil, key, ofBackup(file, err)
	}
	if key, err = identity.KeyOfPublic(found.History.TransactionKey()); err != nil {
		return nil, key, err
	}
	if in.transactionKey != "" && key != want {
		return nil, key, errcode.New(errcode.BackupUnusable, "file", file, "problem",
			fmt.Sprintf("transaction key %s signed it, and --transaction-key is %s: it is of another cluster, or "+
				"forged", key, want))
	}
	return found, key, nil
}

func backupKeys(ctx context.Context, c *program.CLI, cfg *settings.Values, in backupFlags) ([]age.Identity, error) {
	if len(in.keys) == 0 {
		return nil, command.Missing("--share-key", "a backup is encrypted to the owners of the seed",
			"--share-key FILE, the age key file or SSH key whose public half the manifest names")
	}
	return recovery.ReadShareKeys(ctx, c, cfg, in.keys, in.passphraseFile)
}

func openBackup(cfg *settings.Values, file string) (*os.File, error) {
	f, err := os.Open(cfg.Within(file))
	if err != nil {
		return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "backup", "file", file, "cause",
			render.Bare(err).Error())
	}
	return f, nil
}

// ofBackup words why the backup in file cannot be used.
func ofBackup(file string, err error) error {
	if e, ok := errors.AsType[*errcode.Error](err); ok {
		return e
	}
	problem := strings.TrimPrefix(err.Error(), "backup: ")
	if errors.Is(err, keyring.ErrNotForYou) {
		return errcode.Wrap(err, errcode.BackupUnusable, "file", file, "problem", "none of the private keys opens it",
			"do", "give --share-key the key of an owner of the seed when it was made, or of a --recipient of then")
	}
	return errcode.Wrap(err, errcode.BackupUnusable, "file", file, "problem", problem)
}

// backupHead is the head of a history in a backup.
type backupHead struct {
	Hash           string `json:"hash"`
	Index          string `json:"index"`
	AuthorityEpoch string `json:"authority_epoch"`
}

// checkedBackup is what fealty backup verify prints.
type checkedBackup struct {
	File           string         `json:"file"`
	Valid          bool           `json:"valid"`
	Cluster        string         `json:"cluster"`
	CreatedAt      term.Moment    `json:"created_at"`
	Release        string         `json:"release"`
	Revision       string         `json:"revision"`
	Head           backupHead     `json:"head"`
	Transitions    int            `json:"transitions"`
	TransactionKey string         `json:"transaction_key"`
	Pinned         bool           `json:"pinned"`
	Owners         term.Texts     `json:"owners"`
	Digest         string         `json:"digest"`
	Entries        string         `json:"entries"`
	Families       map[string]int `json:"families"`
	Bytes          string         `json:"bytes"`
}

func contentsResult(file string, found *backup.Contents, key identity.KeyID, pinned bool) program.Result {
	h, head := found.Header, found.History.Current()
	data := checkedBackup{
		File: file, Valid: true, Cluster: h.Cluster, CreatedAt: term.Moment(h.CreatedAt), Release: h.Release,
		Revision: command.Number(uint64(h.Revision)),
		Head: backupHead{Hash: head.Hash.String(), Index: command.Number(head.Index),
			AuthorityEpoch: command.Number(head.AuthorityEpoch)},
		Transitions: len(found.History.Links()), TransactionKey: key.String(), Pinned: pinned, Owners: h.Owners,
		Digest: hex.EncodeToString(found.Trailer.Digest[:]), Entries: command.Number(found.Trailer.Entries),
		Families: found.Families, Bytes: command.Number(found.Bytes),
	}
	return program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		f.Paint("backup", term.Green, file+" is whole, and its history verifies")
		f.Add("cluster", h.Cluster)
		f.Add("made", h.CreatedAt.UTC().Format(time.RFC3339)+" by release "+h.Release)
		f.Add("revision", command.Number(uint64(h.Revision)))
		f.Add("head", fmt.Sprintf("%s, index %d, epoch %d", member.Short(head.Hash.String()), head.Index,
			head.AuthorityEpoch))
		f.Add("history", humanize.Plural(len(found.History.Links()), "transition", "transitions"))
		var counts []string
		for _, name := range command.SortedKeys(found.Families) {
			counts = append(counts, fmt.Sprintf("%s %d", name, found.Families[name]))
		}
		f.Add("entries", strings.Join(counts, ", "))
		if len(h.Owners) > 0 {
			f.Add("for", strings.Join(h.Owners, ", "))
		}
		trust := " (compare it with fealty manifest verify-history: the file cannot vouch for it)"
		if pinned {
			trust = " (as you said)"
		}
		f.Add("signed by", key.String()+trust)
		return p.Facts(f)
	})
}
