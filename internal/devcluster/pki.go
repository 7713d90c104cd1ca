package devcluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/tlsfiles"
)

// pki is an operator's own, as small as one can be: a root that signs leaves. It lives
// as long as the story.
type pki struct {
	root *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPKI(name string) (*pki, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(der)
	return &pki{root, key}, err
}

// files issues a certificate for a host and writes it to dir, as a PKI's own agent
// would.
func (p *pki) files(dir, host string) (credential.FilePaths, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return credential.FilePaths{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.root, key.Public(), p.key)
	if err != nil {
		return credential.FilePaths{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return credential.FilePaths{}, err
	}
	if err := durable.OS().MkdirAll(dir); err != nil {
		return credential.FilePaths{}, err
	}
	paths := credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	for _, f := range []struct {
		path, block string
		der         []byte
	}{{paths.Cert, "CERTIFICATE", der}, {paths.Key, "PRIVATE KEY", private}, {paths.CA, "CERTIFICATE", p.root.Raw}} {
		if err := durable.OS().WriteFile(f.path, pem.EncodeToMemory(&pem.Block{Type: f.block, Bytes: f.der})); err != nil {
			return credential.FilePaths{}, err
		}
	}
	return paths, nil
}

// trust sets the manifest anew, with the root of p and an entry for its hosts.
func (c *Cluster) trust(ctx context.Context, p *pki) error {
	file := filepath.Join(c.dir, manifestFile)
	text, err := durable.OS().ReadFile(file, 1<<20)
	if err != nil {
		return err
	}
	root := strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.root.Raw})))
	text = fmt.Appendf(text, `  - {name: racks, kind: data, match: ["x509:dns:*.racks.example"]}
proofs:
  x509:
    roots_pem: |
      %s
`, strings.ReplaceAll(root, "\n", "\n      "))
	return c.setManifest(ctx, text, "machines with certificates of the operator's own PKI")
}

// setManifest signs and sets a manifest, and keeps it.
func (c *Cluster) setManifest(ctx context.Context, text []byte, reason string) error {
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	req, err := c.SignSet(text, st.GetHead())
	if err != nil {
		return err
	}
	req.Reason = reason
	err = c.withAdmin(func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewManifestServiceClient(conn).SetManifest(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	return durable.OS().WriteFile(filepath.Join(c.dir, manifestFile), text)
}

// joinByFiles makes name a member by the certificate in files.
func (c *Cluster) joinByFiles(ctx context.Context, name string, paths credential.FilePaths) (agent.Result, error) {
	st, err := c.Status(ctx)
	if err != nil {
		return agent.Result{}, err
	}
	if len(st.GetRootPin()) != len(identity.KeyID{}) {
		return agent.Result{}, errors.New("the cluster has no root yet")
	}
	log := c.opts.Log.With("part", name)
	files, err := tlsfiles.Open(credential.FilesConfig{Paths: paths, Log: log})
	if err != nil {
		return agent.Result{}, err
	}
	proof, err := agent.ByX509(ctx, c.id, c.Addresses(), identity.KeyID(st.GetRootPin()), files)
	if err != nil {
		return agent.Result{}, err
	}
	return agent.Join(ctx, agent.JoinConfig{DataDir: c.MemberDir(name), Proof: proof, Kind: identity.Data, Log: log, Release: c.opts.Release})
}
