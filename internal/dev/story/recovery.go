package story

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/proof"
)

func ownerRecovery(ctx context.Context, c *cluster.Cluster) (string, error) {
	var before *fealtyv1.GetStatusResponse
	var keeper, lost string
	err := c.Await(ctx, "a coordinator to say that its keeper opens the seed", func(ctx context.Context) (ok bool, err error) {
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
	err = c.Await(ctx, "members to renew under the new mesh CA", func(ctx context.Context) (bool, error) {
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

// restore goes back to a backup under a running fleet: its members follow, what
// they know to be banned is banned, and no clock of theirs went back.
func restore(ctx context.Context, c *cluster.Cluster) (string, error) {
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
	old, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: cluster.PoolEntry, Uses: 1})
	if err != nil {
		return "", err
	}
	file, err := c.Backup(ctx)
	if err != nil {
		return "", err
	}
	// The changes that the backup does not know: a ban, and a member.
	if err := c.WithAdmin(func(conn *grpc.ClientConn) error {
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
	if err := c.AwaitBan(ctx, "node-r", stay...); err != nil {
		return "", err
	}
	if err := c.Restore(ctx, file, "the story goes back"); err != nil {
		return "", err
	}
	if err := c.AwaitConnected(ctx, stay...); err != nil {
		return "", err
	}
	var after *fealtyv1.GetStatusResponse
	if err := c.Await(ctx, "the ban of after the backup to be in force again", func(ctx context.Context) (bool, error) {
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
