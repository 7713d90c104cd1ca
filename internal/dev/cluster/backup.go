package cluster

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
)

// Backup makes a backup of the cluster, as its owners read it.
func (c *Cluster) Backup(ctx context.Context) (file []byte, err error) {
	err = c.WithAdmin(func(conn *grpc.ClientConn) error {
		stream, err := fealtyv1.NewBackupServiceClient(conn).CreateBackup(ctx, &fealtyv1.CreateBackupRequest{})
		if err != nil {
			return err
		}
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				if c.opts.Heard != nil {
					c.opts.Heard("backup", file)
				}
				return nil
			}
			if err != nil {
				return err
			}
			file = append(file, part.GetChunk()...)
		}
	})
	return file, err
}

// Restore stops every coordinator, leaves the store for a new one, restores a backup
// into that, with the signature of the cluster's signer, and starts the coordinators
// again. The history says why.
func (c *Cluster) Restore(ctx context.Context, file []byte, reason string) error {
	key, err := os.ReadFile(c.OwnerKey("alice"))
	if err != nil {
		return err
	}
	ids, err := keyring.ReadIdentities(key, nil)
	if err != nil {
		return err
	}
	found, err := backup.Check(bytes.NewReader(file), ids)
	if err != nil {
		return err
	}
	plan, err := backup.Plan(found, time.Now(), reason)
	if err != nil {
		return err
	}
	signer, err := manifest.NewKey(c.signer.Public().(ed25519.PublicKey))
	if err != nil {
		return err
	}
	statement := plan.Transition(found.History).Statement()
	plan.Signatures = []history.Signature{{Key: signer, Signature: [64]byte(ed25519.Sign(c.signer, statement))}}
	if err := c.StopCoordinators(); err != nil {
		return err
	}
	if err := c.store.Close(); err != nil {
		return err
	}
	c.means.Note("", "the store given up for an empty one")
	if c.opts.Store == "" {
		if err := os.RemoveAll(filepath.Dir(filepath.Join(c.dir, storeFile))); err != nil {
			return err
		}
	} else if c.opts.Store, c.opts.EmptyStore = c.opts.EmptyStore, ""; c.opts.Store == "" {
		return errors.New("no empty store is named to restore into")
	}
	if c.store, c.storeName, err = c.openStore(ctx); err != nil {
		return err
	}
	r, err := backup.Open(bytes.NewReader(file), ids)
	if err != nil {
		return err
	}
	if _, err := backup.Restore(ctx, c.store, plan, r, nil); err != nil {
		return err
	}
	if err := c.StartCoordinators(ctx); err != nil {
		return err
	}
	return c.AwaitReady(ctx, c.CoordinatorNames()...)
}
