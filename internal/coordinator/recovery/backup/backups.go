// Package backup makes the file that a cluster can be restored from, judges the age of the newest one
// and of the last drill, that is of the last time that somebody tried a restore (upkeep.go), and
// completes a restore (docs/how-to/back-up-and-restore.md).
//
// [Restoration] continues after a backup was restored into the store: it writes the transition that
// the signers signed for the restore, and ends the restore once that is in force.
package backup

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
)

// maxRecipients bounds whom an admin names as readers of a backup, and backupChunk a
// part of it on its way.
const (
	maxRecipients = 16
	backupChunk   = 256 << 10
)

// notePatience bounds the wait for the store to note that a backup was sent.
const notePatience = 5 * time.Second

// Config is what Backups are made of.
type Config struct {
	Head    *authority.Head
	Store   store.Store
	Release string // that is written into each
	Log     *slog.Logger
	Now     func() time.Time
	Tokens  string // the prefix of the records of join tokens, which are counted
}

// Backups serve BackupService. Make them with [New].
type Backups struct {
	cfg  Config
	busy chan struct{} // held by the one backup under way; capacity 1

	lastBackup, lastDrill atomic.Int64 // Unix seconds, as read last; 0: none, or not known
}

// New returns Backups, of which none is under way.
func New(cfg Config) *Backups { return &Backups{cfg: cfg, busy: make(chan struct{}, 1)} }

// RegisterServices registers the service that makes backups.
func (c *Backups) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterBackupServiceServer(to, backupServer{c: c})
}

// backupServer serves BackupService.
type backupServer struct {
	fealtyv1.UnimplementedBackupServiceServer
	c *Backups
}

// CreateBackup sends a backup. It is of one listing of the store, at one revision: all
// that a restore needs, and nothing that counts for now alone. Secrets in it are
// encrypted twice: by keepers or to owners in the store, and all of it to owners in
// the file.
func (b backupServer) CreateBackup(req *fealtyv1.CreateBackupRequest,
	stream fealtyv1.BackupService_CreateBackupServer) error {
	c, ctx := b.c, stream.Context()
	revision, err := c.send(req, stream)
	if err != nil || req.GetDryRun() {
		return err
	}
	// All of it was sent. Who takes it waits for the end of the call, so that status says so then;
	// a client of a release before this goes away with the last part.
	noting, cancel := context.WithTimeout(context.WithoutCancel(ctx), notePatience)
	defer cancel()
	if err := c.noteBackup(noting, record.Actor(ctx), revision); err != nil {
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "a backup was sent, and not recorded as the last one",
			slog.Any("err", err))
	}
	return nil
}

// send sends a backup, and returns the revision of the store that it is of.
func (c *Backups) send(req *fealtyv1.CreateBackupRequest,
	stream fealtyv1.BackupService_CreateBackupServer) (store.Revision, error) {
	ctx := stream.Context()
	select {
	case c.busy <- struct{}{}: // each holds all of the store in memory
		defer func() { <-c.busy }()
	default:
		return 0, errcode.New(errcode.RateLimited, "what", "backups", "limit", "one at a time")
	}
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return 0, err
	}
	recipients, owners, err := readers(s, req.GetRecipients())
	if err != nil {
		return 0, err
	}
	l, err := c.cfg.Store.List(ctx, "")
	if err != nil {
		return 0, c.cfg.Head.StoreError("read the store", err)
	}
	head, entries, err := c.backupHead(s, l, owners)
	if err != nil {
		return 0, err
	}
	if !req.GetDryRun() {
		// The name of its taker is written down before any of it leaves.
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "backup.create",
			Target: fmt.Sprintf("revision %d", l.Revision),
			Fields: map[string]string{"owners": strings.Join(owners, ","),
				"recipients": ratelimit.Clip(strings.Join(req.GetRecipients(), ","), record.MaxReasonBytes)}})
		if _, err := ch.Commit(ctx); err != nil {
			return 0, c.cfg.Head.StoreError("write the audit entry of the backup", err)
		}
	}
	if err := stream.Send(&fealtyv1.CreateBackupResponse{Part: &fealtyv1.CreateBackupResponse_Head{
		Head: head}}); err != nil || req.GetDryRun() {
		return 0, err
	}
	out := &chunkWriter{sum: sha256.New(), send: func(p []byte) error {
		return stream.Send(&fealtyv1.CreateBackupResponse{Part: &fealtyv1.CreateBackupResponse_Chunk{Chunk: p}})
	}}
	w, err := backup.NewWriter(out, backup.Header{
		Cluster: s.Manifest.Cluster, CreatedAt: head.GetCreatedAt().AsTime(), Revision: l.Revision, Head: s.HeadRecord,
		TransactionKey: s.Secrets.TransactionKey(), Release: ratelimit.Clip(c.cfg.Release,
			64), Owners: owners,
	}, recipients...)
	if err != nil {
		return 0, fmt.Errorf("begin the backup: %w", err)
	}
	for _, e := range entries {
		if err := w.Add(e.Key, e.Value); err != nil {
			return 0, fmt.Errorf("write the backup: %w", err)
		}
	}
	end, err := w.Close(s.Secrets.Transaction())
	if err == nil {
		err = out.flush()
	}
	if err != nil {
		return 0, fmt.Errorf("end the backup: %w", err)
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a backup was sent", slog.String("to", record.Actor(ctx)),
		slog.Uint64("revision", uint64(l.Revision)), slog.Uint64("bytes", out.bytes))
	return l.Revision, stream.Send(&fealtyv1.CreateBackupResponse{Part: &fealtyv1.CreateBackupResponse_End{
		End: &fealtyv1.BackupEnd{Bytes: out.bytes, Sha256: out.sum.Sum(nil), Digest: end.Digest[:]},
	}})
}

// readers returns whom a backup is encrypted to: the people who own shares of the
// seed, and whom the admin names.
func readers(s *authority.State, named []string) (recipients, owners []string, err error) {
	if len(named) > maxRecipients {
		return nil, nil, errcode.New(errcode.RequestField,
			"field", "recipients", "problem", fmt.Sprintf("%d are above %d", len(named), maxRecipients))
	}
	for _, o := range s.Manifest.Seed.People() {
		recipients, owners = append(recipients, o.Recipient), append(owners, o.Name)
	}
	for _, r := range named {
		if err := keyring.CheckRecipient(r); err != nil {
			return nil, nil, errcode.Wrap(err, errcode.RequestField,
				"field", "recipients", "problem", strings.TrimPrefix(err.Error(), "keyring: "))
		}
	}
	recipients = append(recipients, named...)
	slices.Sort(owners)
	if len(recipients) == 0 {
		return nil, nil, errcode.New(errcode.BackupNoReader)
	}
	return recipients, owners, nil
}

// backupHead says what a backup of l is, and returns the entries that are in it.
func (c *Backups) backupHead(s *authority.State, l store.Listing, owners []string) (*fealtyv1.BackupHead,
	[]store.Entry, error) {
	head := &fealtyv1.BackupHead{
		ClusterId: s.Manifest.Cluster, CreatedAt: timestamppb.New(c.cfg.Now().UTC()), Revision: uint64(l.Revision),
		HistoryIndex: s.Head.Index, AuthorityEpoch: s.Head.AuthorityEpoch, Head: s.Head.Hash[:], Owners: owners,
	}
	kept := make([]store.Entry, 0, len(l.Entries))
	current := false
	for _, e := range l.Entries {
		switch {
		case e.Key == record.LockKey:
			// Half of the records would be under one seed, half under the other.
			return nil, nil, errcode.New(errcode.BackupReseeding)
		case e.Key == history.HeadKey:
			current = e.Version == s.HeadVersion
		case strings.HasPrefix(e.Key, record.MemberPrefix):
			head.Members++
		case strings.HasPrefix(e.Key, record.BanIDPrefix), strings.HasPrefix(e.Key, record.BanKeyPrefix):
			head.Bans++
		case strings.HasPrefix(e.Key, c.cfg.Tokens):
			head.Tokens++
		}
		if backup.Kept(e.Key) {
			kept = append(kept, e)
		}
	}
	head.Entries = uint64(len(kept))
	if !current {
		c.cfg.Head.LookAgain()
		return nil, nil, record.Busy("the backup")
	}
	return head, kept, nil
}

// chunkWriter sends what is written to it in parts, and sums it up.
type chunkWriter struct {
	send  func([]byte) error
	buf   []byte
	sum   hash.Hash
	bytes uint64
}

func (w *chunkWriter) Write(p []byte) (int, error) {
	w.sum.Write(p)
	w.bytes += uint64(len(p))
	for rest := p; len(rest) > 0; {
		n := min(len(rest), backupChunk-len(w.buf))
		w.buf, rest = append(w.buf, rest[:n]...), rest[n:]
		if len(w.buf) == backupChunk {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

func (w *chunkWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	err := w.send(w.buf)
	w.buf = make([]byte, 0, backupChunk) // the one that was sent is not ours any more
	return err
}
