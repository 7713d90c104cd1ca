package cluster

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/snapshot"
)

// Backup makes a backup of the cluster, as its owners read it.
func (c *Cluster) Backup(ctx context.Context) (file []byte, err error) {
	err = c.withAdmin(func(conn *grpc.ClientConn) error {
		stream, err := fealtyv1.NewBackupServiceClient(conn).CreateBackup(ctx, &fealtyv1.CreateBackupRequest{})
		if err != nil {
			return err
		}
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				if c.hooks.heard != nil {
					c.hooks.heard("backup", file)
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
// again.
func (c *Cluster) Restore(ctx context.Context, file []byte) error {
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
	plan, err := backup.Plan(found, time.Now(), "the story goes back")
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

// storyRestore goes back to a backup under a running fleet: its members follow, what
// they know to be banned is banned, and no clock of theirs went back.
func storyRestore(ctx context.Context, c *Cluster) (string, error) {
	if _, err := c.Join(ctx, "node-r"); err != nil {
		return "", err
	}
	if err := c.RunMember(ctx, "node-r"); err != nil {
		return "", err
	}
	stay := []string{"node-a", "node-b", "node-c"}
	if err := c.AwaitConnected(ctx, append(stay, "node-r")...); err != nil {
		return "", err
	}
	old, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: poolEntry, Uses: 1})
	if err != nil {
		return "", err
	}
	file, err := c.Backup(ctx)
	if err != nil {
		return "", err
	}
	// The changes that the backup does not know: a ban, and a member.
	if err := c.withAdmin(func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewMemberServiceClient(conn).BanMember(ctx, &fealtyv1.BanMemberRequest{Kind: string(identity.Data), Name: "node-r", Reason: "after the backup"})
		return err
	}); err != nil {
		return "", err
	}
	if err := c.StopMember("node-r"); err != nil {
		return "", err
	}
	before, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	if err := c.awaitBan(ctx, "node-r", stay...); err != nil {
		return "", err
	}
	if err := c.Restore(ctx, file); err != nil {
		return "", err
	}
	if err := c.AwaitConnected(ctx, stay...); err != nil {
		return "", err
	}
	var after *fealtyv1.GetStatusResponse
	if err := c.await(ctx, "the ban of after the backup to be in force again", func(ctx context.Context) (bool, error) {
		var err error
		after, err = c.Status(ctx)
		return err == nil && after.GetBans() >= before.GetBans(), err
	}); err != nil {
		return "", err
	}
	if after.GetAuthorityEpoch() <= before.GetAuthorityEpoch() || after.GetHistoryIndex() <= before.GetHistoryIndex() {
		return "", fmt.Errorf("epoch %d, index %d after %d, %d", after.GetAuthorityEpoch(), after.GetHistoryIndex(), before.GetAuthorityEpoch(), before.GetHistoryIndex())
	}
	candidate, err := c.Candidate(ctx)
	if err != nil {
		return "", err
	}
	if _, err := candidate.Join(ctx, identity.Data, proof.NewTokenProver(old)); !errors.Is(errcode.Of(err), errcode.TokenUnknown) {
		return "", fmt.Errorf("a token of before the restore: %v", err)
	}
	return fmt.Sprintf("epoch %d after %d; %d members followed by themselves; the ban that they knew of is in force; tokens are void",
		after.GetAuthorityEpoch(), before.GetAuthorityEpoch(), len(stay)), nil
}

// awaitBan waits until members hold a trust bundle that bans the named one.
func (c *Cluster) awaitBan(ctx context.Context, banned string, names ...string) error {
	id, err := identity.New(c.id, identity.Data, banned)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.await(ctx, name+" to know of the ban of "+banned, func(ctx context.Context) (bool, error) {
			signed, _, err := c.Active(ctx, name, snapshot.ScopeTrustBundle)
			if err != nil {
				return false, err
			}
			return bytes.Contains(signed.Content, []byte(id.String())), nil
		}); err != nil {
			return err
		}
	}
	return nil
}
