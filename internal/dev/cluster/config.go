package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/platform/durable"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// PutConfig puts every record of a YAML text.
func (c *Cluster) PutConfig(ctx context.Context, text string) error {
	docs, err := config.Decode([]byte(text))
	if err != nil {
		return err
	}
	req := &fealtyv1.PutConfigRequest{}
	for _, d := range docs {
		req.Records = append(req.Records, config.Encode(d.Record))
	}
	return c.WithAdmin(func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewConfigServiceClient(conn).PutConfig(ctx, req)
		return err
	})
}

// Active returns the snapshot of scope that a member uses, as it is on its disk, and
// what the member says of it.
func (c *Cluster) Active(ctx context.Context, name string, scope snapshot.Scope) (*snapshot.Signed, *fealtyv1.HeldSnapshot, error) {
	n, err := c.Node(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	for _, h := range n.GetHeld() {
		if h.GetScope() != string(scope) {
			continue
		}
		raw, err := durable.OS().ReadFile(filepath.Join(c.MemberDir(name), "snapshots", string(scope)+".active"), internalsnapshot.MaxSigned)
		if err != nil {
			return nil, nil, err
		}
		s, err := snapshot.Unmarshal(raw)
		if err == nil && snapshot.DigestOf(s.Content) != snapshot.Digest(h.GetContentHash()) {
			err = errors.New("the file on disk is on its way to another one")
		}
		return s, h, err
	}
	return nil, nil, fmt.Errorf("%s holds no %s", name, scope)
}

// AwaitBan waits until members hold a trust bundle that bans the named one.
func (c *Cluster) AwaitBan(ctx context.Context, banned string, names ...string) error {
	id, err := identity.New(c.id, identity.Data, banned)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.Await(ctx, name+" to know of the ban of "+banned, func(ctx context.Context) (bool, error) {
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
