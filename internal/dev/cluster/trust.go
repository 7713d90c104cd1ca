package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/store/sealed"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// Trust returns what the cluster believes.
func (c *Cluster) Trust(ctx context.Context) (*fealtyv1.Trust, error) {
	var trust *fealtyv1.Trust
	err := c.withTrust(func(t fealtyv1.TrustServiceClient) error {
		resp, err := t.GetTrust(ctx, &fealtyv1.GetTrustRequest{})
		trust = resp.GetTrust()
		return err
	})
	return trust, err
}

func (c *Cluster) withTrust(f func(fealtyv1.TrustServiceClient) error) error {
	return c.WithAdmin(func(conn *grpc.ClientConn) error { return f(fealtyv1.NewTrustServiceClient(conn)) })
}

// Rotate replaces the config signing key, and waits until no rotation runs any more.
func (c *Cluster) Rotate(ctx context.Context, req *fealtyv1.RotateConfigKeyRequest) (*fealtyv1.Trust, error) {
	err := c.withTrust(func(t fealtyv1.TrustServiceClient) error {
		_, err := t.RotateConfigKey(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	var trust *fealtyv1.Trust
	err = c.Await(ctx, "the rotation to end", func(ctx context.Context) (bool, error) {
		if trust, err = c.Trust(ctx); err != nil {
			return false, err
		}
		return trust.GetRotation() == nil, fmt.Errorf("waiting for %v", trust.GetRotation().GetMissing())
	})
	return trust, err
}

// SigningKey returns the config signing key that signs alone.
func (c *Cluster) SigningKey(ctx context.Context) (*fealtyv1.TrustConfigKey, error) {
	trust, err := c.Trust(ctx)
	if err != nil {
		return nil, err
	}
	for _, k := range trust.GetConfigKeys() {
		if k.GetState() == "signing" {
			return k, nil
		}
	}
	return nil, errors.New("no config key signs alone")
}

// Emergency returns a statement that the cluster's signer signed, as edit says.
func (c *Cluster) Emergency(ctx context.Context, number uint64, edit func(*trust.Emergency)) ([]byte, error) {
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	e := trust.Emergency{ClusterID: c.ID(), Number: number, Reason: "a dev cluster tries it", IssuedAt: c.clock.now().UTC().Truncate(time.Second)}
	copy(e.Root[:], st.GetRootPin())
	edit(&e)
	s := &trust.SignedEmergency{}
	if s.Statement, err = e.Encode(); err != nil {
		return nil, err
	}
	if err := s.Sign(c.signer); err != nil {
		return nil, err
	}
	return s.Marshal()
}

// HandOver gives a statement to the agent of a member.
func (c *Cluster) HandOver(ctx context.Context, name string, statement []byte) (resp *fealtyv1.ApplyNodeEmergencyResponse, err error) {
	err = c.WithNode(name, func(n fealtyv1.NodeServiceClient) error {
		resp, err = n.ApplyNodeEmergency(ctx, &fealtyv1.ApplyNodeEmergencyRequest{Statement: statement})
		return err
	})
	return resp, err
}

// StealConfigKey returns config signing key number, as somebody has it who read it from
// a coordinator: here from the store and the keeper's file.
func (c *Cluster) StealConfigKey(ctx context.Context, number uint32) (keyring.Signer, error) {
	keys, err := c.stealKeys(ctx)
	if err != nil {
		return keyring.Signer{}, err
	}
	return keys.ConfigSigning(number), nil
}

// stealKeys returns all keys of the seed in force.
func (c *Cluster) stealKeys(ctx context.Context) (keyring.Keys, error) {
	l, err := c.store.List(ctx, sealed.SeedPrefix)
	if err != nil {
		return keyring.Keys{}, err
	}
	if len(l.Entries) == 0 {
		return keyring.Keys{}, errors.New("the store holds no sealed seed")
	}
	e := l.Entries[len(l.Entries)-1]
	sealedBy, of, ok := sealed.Parse(e)
	if !ok {
		return keyring.Keys{}, fmt.Errorf("%s names no seed", e.Key)
	}
	keeper, err := keyring.KeeperOf(keyring.Owner{Name: sealedBy.Keeper, Keeper: "file:" + c.KeeperFile()}, durable.OS())
	if err != nil {
		return keyring.Keys{}, err
	}
	seed, err := keyring.OpenSeed(ctx, keeper, keyring.Place{Cluster: c.ID(), Owner: sealedBy.Keeper, SeedEpoch: of.SeedEpoch}, e.Value)
	if err != nil {
		return keyring.Keys{}, err
	}
	return seed.Derive(of.Salt[:])
}

// Forge signs the node_runtime that a member holds once more, with the given key and as
// of a generation to come: what a thief of the key would publish.
func (c *Cluster) Forge(name string, key keyring.Signer) ([]byte, error) {
	raw, err := state.ReadActive(durable.OS(), c.MemberDir(name), snapshot.ScopeNodeRuntime)
	if err != nil {
		return nil, err
	}
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return nil, err
	}
	r, err := signed.Publication.ReadRecord()
	if err != nil {
		return nil, err
	}
	r.Generation += 1 << 20
	r.FreshUntil = r.FreshUntil.Add(24 * time.Hour)
	if signed.Publication, err = r.Sign(key); err != nil {
		return nil, err
	}
	return signed.Marshal()
}
