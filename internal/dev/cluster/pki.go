package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// Manifest is the manifest that was set last.
func (c *Cluster) Manifest() ([]byte, error) {
	return durable.OS().ReadFile(filepath.Join(c.dir, manifestFile), manifest.MaxBytes)
}

// TrustRoot sets the manifest anew, with the root of an operator's own PKI and an entry for its hosts.
func (c *Cluster) TrustRoot(ctx context.Context, rootPEM []byte) error {
	text, err := c.Manifest()
	if err != nil {
		return err
	}
	root := strings.TrimSpace(string(rootPEM))
	text = fmt.Appendf(text, `  - {name: racks, kind: data, match: ["x509:dns:*.racks.example"]}
proofs:
  x509:
    roots_pem: |
      %s
`, strings.ReplaceAll(root, "\n", "\n      "))
	return c.SetManifest(ctx, text, "machines with certificates of the operator's own PKI")
}

// SetManifest signs and sets a manifest, and keeps it.
func (c *Cluster) SetManifest(ctx context.Context, text []byte, reason string) error {
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	req, err := c.SignSet(text, st.GetHead())
	if err != nil {
		return err
	}
	req.Reason = reason
	err = c.WithAdmin(func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewManifestServiceClient(conn).SetManifest(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	return durable.OS().WriteFile(filepath.Join(c.dir, manifestFile), text)
}

// JoinByFiles makes name a member by the certificate in files.
func (c *Cluster) JoinByFiles(ctx context.Context, name string, paths credential.FilePaths) (enroll.Result, error) {
	st, err := c.Status(ctx)
	if err != nil {
		return enroll.Result{}, err
	}
	if len(st.GetRootPin()) != len(identity.KeyID{}) {
		return enroll.Result{}, errors.New("the cluster has no root yet")
	}
	log := c.opts.Log.With("part", name)
	files, err := enterprise.Open(credential.FilesConfig{Paths: paths, Log: log})
	if err != nil {
		return enroll.Result{}, err
	}
	proof, err := enroll.ByX509(ctx, c.id, c.Addresses(), identity.KeyID(st.GetRootPin()), files)
	if err != nil {
		return enroll.Result{}, err
	}
	return enroll.Join(ctx, enroll.JoinConfig{DataDir: c.MemberDir(name), Proof: proof, Kind: identity.Data, Log: log, Release: c.opts.Release})
}
