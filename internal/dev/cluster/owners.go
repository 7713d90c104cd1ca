package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/mesh"
)

const (
	ownersDir       = "owners"
	ownersThreshold = 2
)

// Owners are the people who hold shares of the seed of a dev cluster, of whom two
// bring it back. Their keys lie in its folder, where they would be of no use to a
// real one.
func Owners() []string { return []string{"alice", "bob", "carol"} }

// OwnerKey is the file with the private key of an owner, and ShareFile that with
// the share, encrypted to it.
func (c *Cluster) OwnerKey(name string) string { return filepath.Join(c.dir, ownersDir, name+".key") }

// ShareFile is where the encrypted share of an owner is.
func (c *Cluster) ShareFile(name string) string {
	return filepath.Join(c.dir, ownersDir, name+".share")
}

// ownerRecipient makes the key of an owner, or reads it, and returns its public half.
func (c *Cluster) ownerRecipient(name string) (string, error) {
	if err := durable.OS().MkdirAll(filepath.Join(c.dir, ownersDir)); err != nil {
		return "", err
	}
	raw, err := durable.OS().ReadSecret(c.OwnerKey(name), keyring.MaxKeyFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := age.GenerateX25519Identity()
		if err != nil {
			return "", err
		}
		return key.Recipient().String(), durable.OS().WriteFile(c.OwnerKey(name), []byte(key.String()+"\n"))
	}
	if err != nil {
		return "", err
	}
	key, err := age.ParseX25519Identity(strings.TrimSpace(string(raw)))
	if err != nil {
		return "", fmt.Errorf("%s holds no key of an owner: remove %s to start a new dev cluster", c.OwnerKey(name), c.dir)
	}
	return key.Recipient().String(), nil
}

// handOut writes the share files where their owners expect them.
func (c *Cluster) handOut(shares []*fealtyv1.SeedShare) error {
	for _, s := range shares {
		if err := durable.OS().WriteFile(c.ShareFile(s.GetOwner()), s.GetFile()); err != nil {
			return fmt.Errorf("write the share of %s: %w", s.GetOwner(), err)
		}
	}
	return nil
}

// OpenShare opens the share file of an owner with the owner's key.
func (c *Cluster) OpenShare(name string) (keyring.ShareFile, error) {
	key, err := durable.OS().ReadSecret(c.OwnerKey(name), keyring.MaxKeyFileBytes)
	if err != nil {
		return keyring.ShareFile{}, err
	}
	ids, err := keyring.ReadIdentities(key, nil)
	if err != nil {
		return keyring.ShareFile{}, err
	}
	data, err := durable.OS().ReadFile(c.ShareFile(name), keyring.MaxShareFileBytes)
	if err != nil {
		return keyring.ShareFile{}, err
	}
	return keyring.OpenShare(ids, data)
}

// Bring brings a share to the named coordinator, as an owner's tool does.
func (c *Cluster) Bring(ctx context.Context, coordinator string, file keyring.ShareFile) (recovery.Progress, error) {
	addr, err := c.AddressOf(coordinator)
	if err != nil {
		return recovery.Progress{}, err
	}
	conn, err := mesh.DialPinned(addr, pinned.Unproven(), mesh.Options{})
	if err != nil {
		return recovery.Progress{}, err
	}
	defer conn.Close()
	progress, err := recovery.Bring(ctx, conn, file, recovery.Options{Endpoint: addr})
	return progress, c.Tell(err)
}

// LoseKeeper stops all coordinators, removes the file of their keeper, and starts them
// again: nothing on this machine opens the seed any more.
func (c *Cluster) LoseKeeper(ctx context.Context) error {
	if err := c.StopCoordinators(); err != nil {
		return err
	}
	c.means.Note("", "the keeper's file removed")
	if err := os.Remove(c.KeeperFile()); err != nil {
		return err
	}
	return c.StartCoordinators(ctx)
}

// ReplaceKeeperKey says that the keeper's key is lost, and sets the manifest once more,
// which makes another one. No coordinator does that by itself: there may be a backup.
func (c *Cluster) ReplaceKeeperKey(ctx context.Context, keeper, lost string) error {
	forget := &fealtyv1.ForgetKeeperKeyRequest{Keeper: keeper, KeyId: lost, Reason: "its file is gone"}
	// Until all coordinators have looked, one of them may still open what it sealed.
	err := c.Await(ctx, "the coordinators to say that nobody opens what the lost key sealed", func(ctx context.Context) (bool, error) {
		err := c.WithAdmin(func(conn *grpc.ClientConn) error {
			_, err := fealtyv1.NewManifestServiceClient(conn).ForgetKeeperKey(ctx, forget)
			return err
		})
		return err == nil, err
	})
	if err != nil {
		return err
	}
	text, err := c.Manifest()
	if err != nil {
		return err
	}
	return c.SetManifest(ctx, text, "the keeper seals again")
}
