package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/errcode"
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

// owners are the people who hold shares of the seed of a dev cluster, of whom two
// bring it back. Their keys lie in its folder, where they would be of no use to a
// real one.
func owners() []string { return []string{"alice", "bob", "carol"} }

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
	return progress, c.tell(err)
}

// LoseKeeper stops all coordinators, removes the file of their keeper, and starts them
// again: nothing on this machine opens the seed any more.
func (c *Cluster) LoseKeeper(ctx context.Context) error {
	if err := c.StopCoordinators(); err != nil {
		return err
	}
	c.means.Note("", "the keeper's file removed")
	if err := os.Remove(filepath.Join(c.dir, keeperFile)); err != nil {
		return err
	}
	return c.StartCoordinators(ctx)
}

// ReplaceKeeperKey says that the keeper's key is lost, and sets the manifest once more,
// which makes another one. No coordinator does that by itself: there may be a backup.
func (c *Cluster) ReplaceKeeperKey(ctx context.Context, keeper, lost string) error {
	forget := &fealtyv1.ForgetKeeperKeyRequest{Keeper: keeper, KeyId: lost, Reason: "its file is gone"}
	// Until all coordinators have looked, one of them may still open what it sealed.
	err := c.await(ctx, "the coordinators to say that nobody opens what the lost key sealed", func(ctx context.Context) (bool, error) {
		err := c.withAdmin(func(conn *grpc.ClientConn) error {
			_, err := fealtyv1.NewManifestServiceClient(conn).ForgetKeeperKey(ctx, forget)
			return err
		})
		return err == nil, err
	})
	if err != nil {
		return err
	}
	text, err := durable.OS().ReadFile(filepath.Join(c.dir, manifestFile), 1<<20)
	if err != nil {
		return err
	}
	return c.setManifest(ctx, text, "the keeper seals again")
}

// keeperKey returns the name of the keeper, and of its key that opens the seed.
func keeperKey(st *fealtyv1.GetStatusResponse) (keeper, key string, err error) {
	for _, r := range st.GetReplicas() {
		for _, k := range r.GetKeepers() {
			if k.GetOpens() {
				return k.GetName(), k.GetKeyId(), nil
			}
		}
	}
	return "", "", errors.New("no coordinator says that its keeper opens the seed")
}

func storyOwnerRecovery(ctx context.Context, c *Cluster) (string, error) {
	var before *fealtyv1.GetStatusResponse
	var keeper, lost string
	err := c.await(ctx, "a coordinator to say that its keeper opens the seed", func(ctx context.Context) (ok bool, err error) {
		if before, err = c.Status(ctx); err == nil {
			keeper, lost, err = keeperKey(before)
		}
		return err == nil, err
	})
	if err != nil {
		return "", err
	}
	members, keys := []string{"node-a", "node-b", "node-c"}, make(map[string]string)
	for _, name := range members {
		n, err := c.Node(ctx, name)
		if err != nil {
			return "", err
		}
		keys[name] = n.GetKeyId()
	}
	if err := c.LoseKeeper(ctx); err != nil {
		return "", err
	}
	st, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	if st.GetPhase() != "recovery" {
		return "", fmt.Errorf("without the keeper a coordinator is %s", st.GetPhase())
	}
	// Each owner reaches another coordinator.
	atAlice, atBob := c.CoordinatorNames()[0], c.CoordinatorNames()[len(c.CoordinatorNames())-1]
	alice, err := c.OpenShare("alice")
	if err != nil {
		return "", err
	}
	bob, err := c.OpenShare("bob")
	if err != nil {
		return "", err
	}
	first, err := c.Bring(ctx, atAlice, alice)
	if err != nil {
		return "", fmt.Errorf("the share of alice: %w", err)
	}
	if first.Recovered || len(first.Brought) != 1 {
		return "", fmt.Errorf("after one share: %+v", first)
	}
	wrong, value := bob, make([]byte, keyring.SeedBytes)
	rand.Read(value)
	if wrong.Share, err = keyring.ShareFrom(bob.Share.Index(), bob.Share.Set(), value); err != nil {
		return "", err
	}
	_, err = c.Bring(ctx, atBob, wrong)
	if refusal := errcode.Of(err); err == nil || refusal.Code != errcode.ShareWrong || !strings.Contains(refusal.What, "bob") {
		return "", fmt.Errorf("a wrong share of bob: %v", err)
	}
	// Both coordinators have both shares then, and either may be first.
	if _, err = c.Bring(ctx, atBob, bob); err != nil && !errors.Is(errcode.Of(err), errcode.RecoveryOver) {
		return "", fmt.Errorf("the share of bob: %w", err)
	}
	if err := c.AwaitReady(ctx); err != nil { // the others follow the one that has enough
		return "", err
	}
	after, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	switch {
	case after.GetAuthorityEpoch() != before.GetAuthorityEpoch()+1 || !bytes.Equal(after.GetRootPin(), before.GetRootPin()):
		return "", fmt.Errorf("epoch %d after %d, or another root", after.GetAuthorityEpoch(), before.GetAuthorityEpoch())
	}
	if err := c.AwaitConnected(ctx, members...); err != nil {
		return "", err
	}
	err = c.await(ctx, "members to renew under the new mesh CA", func(ctx context.Context) (bool, error) {
		for _, name := range members {
			n, err := c.Node(ctx, name)
			if err != nil {
				return false, err
			}
			if n.GetAuthorityEpoch() != after.GetAuthorityEpoch() || n.GetKeyId() == keys[name] {
				return false, fmt.Errorf("%s is at epoch %d, and holds key %.8s", name, n.GetAuthorityEpoch(), n.GetKeyId())
			}
		}
		return true, nil
	})
	if err != nil {
		return "", err
	}
	if err := c.ReplaceKeeperKey(ctx, keeper, lost); err != nil {
		return "", fmt.Errorf("replace the lost key of the keeper: %w", err)
	}
	return fmt.Sprintf("alice alone, at %s: 1 of 2; a wrong share of bob is refused by his name; with his own, at %s, the seed is back: same root, epoch %d at all coordinators, three members renewed; the lost key of the keeper is forgotten, and the next set makes one", atAlice, atBob, after.GetAuthorityEpoch()), nil
}
