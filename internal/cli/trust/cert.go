package trust

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki/pemfile"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// maxCertBytes bounds a file with certificates, maxCerts their number, and maxBlocks that of all that is in PEM.
const (
	maxCertBytes = 1 << 20
	maxCerts     = 64
	maxBlocks    = 2 * maxCerts
)

func CertCommand(c *program.CLI) *cobra.Command {
	return program.Group("cert", "read and verify certificates", showCert(c), verify(c))
}

// certFile is what a PEM file holds. Keys are counted and not kept.
type certFile struct {
	name  string
	Certs []*x509.Certificate
	keys  int
}

func ReadCert(c *program.CLI, cfg *settings.Values, file string) (*certFile, error) {
	var data []byte
	var err error
	if file == "-" {
		data, err = command.ReadAll(c.Env.Stdin, maxCertBytes)
	} else {
		data, err = render.ReadFile(cfg.Within(file), maxCertBytes)
	}
	if err != nil {
		return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "certificate", "file", file)
	}
	out := &certFile{name: file}
	bad := func(problem string) (*certFile, error) {
		return nil, errcode.New(errcode.CertificateRefused, "certificate", "in "+file, "problem", problem)
	}
	if out.Certs, out.keys, err = pemfile.Certificates(data, pemfile.Limits{Bytes: maxCertBytes, Blocks: maxBlocks},
		pemfile.Blocks); err != nil {
		return bad(err.Error())
	}
	if len(out.Certs) > maxCerts {
		return bad(fmt.Sprintf("there are more than %d", maxCerts))
	}
	return out, nil
}

func showCert(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "show FILE", Short: "show the certificates in a PEM file",
		Long: "Show the certificates in a PEM file, such as identity/svid.pem in an agent's folder, or - for " +
			"standard input. Private keys are never shown.",
		Sample: "  fealty cert show /var/lib/fealty/agent/identity/svid.pem",
		Args:   command.Exactly("FILE"),
		Run: func(_ context.Context, cfg *settings.Values, args []string) error {
			f, err := ReadCert(c, cfg, args[0])
			if err != nil {
				return err
			}
			return c.Print(f.result(c.Env.Now()))
		},
	})
}

// shownCerts is what fealty cert show prints.
type shownCerts struct {
	File         string      `json:"file"`
	Certificates []shownCert `json:"certificates"`
	PrivateKeys  int         `json:"private_keys"`
}

func (f *certFile) result(now time.Time) program.Result {
	items := make([]shownCert, 0, len(f.Certs))
	for _, cert := range f.Certs {
		items = append(items, ofCert(cert, now))
	}
	return program.ResultOf(shownCerts{File: f.name, Certificates: items, PrivateKeys: f.keys},
		func(p *term.Page) error {
			for i, cert := range f.Certs {
				if i > 0 {
					p.Line("")
				}
				if err := p.Facts(certDetails(cert, now, p.Wide)); err != nil {
					return err
				}
			}
			if f.keys > 0 {
				p.Line("")
				p.Line("The file also holds %s, not shown.", humanize.Plural(f.keys, "private key", "private keys"))
			}
			return nil
		})
}

// sortOf says what a certificate is in a cluster, and its identity, or why it has
// none.
func sortOf(cert *x509.Certificate) (sort, id, problem string) {
	switch {
	case cert.IsCA && cert.CheckSignatureFrom(cert) == nil:
		return "root", "", ""
	case cert.IsCA:
		return "mesh CA", "", ""
	}
	got, err := identity.FromCertificate(cert)
	if err != nil {
		return "leaf", "", err.Error()
	}
	return "leaf", got.String(), ""
}

// shownCert is one certificate.
type shownCert struct {
	Sort            string      `json:"sort"`
	SpiffeID        string      `json:"spiffe_id"`
	IdentityProblem string      `json:"identity_problem"`
	Subject         string      `json:"subject"`
	Issuer          string      `json:"issuer"`
	Serial          string      `json:"serial"`
	KeyID           string      `json:"key_id"`
	KeyType         string      `json:"key_type"`
	NotBefore       term.Moment `json:"not_before"`
	NotAfter        term.Moment `json:"not_after"`
	InDate          bool        `json:"in_date"`
	DNSNames        term.Texts  `json:"dns_names"`
	ProfileProblem  string      `json:"profile_problem"`
}

func ofCert(cert *x509.Certificate, now time.Time) shownCert {
	sort, id, problem := sortOf(cert)
	return shownCert{
		Sort: sort, SpiffeID: id, IdentityProblem: problem, Subject: cert.Subject.String(),
		Issuer: cert.Issuer.String(),
		Serial: cert.SerialNumber.Text(16), KeyID: identity.KeyOf(cert).String(),
		KeyType:   cert.PublicKeyAlgorithm.String(),
		NotBefore: term.Moment(cert.NotBefore), NotAfter: term.Moment(cert.NotAfter), InDate: inDate(cert, now),
		DNSNames: cert.DNSNames, ProfileProblem: profileProblem(cert, sort, now),
	}
}

func inDate(cert *x509.Certificate, now time.Time) bool {
	return !now.Before(cert.NotBefore) && !now.After(cert.NotAfter)
}

// profileProblem says how a certificate differs from what a cluster mints, or "".
// Dates are shown by themselves.
func profileProblem(cert *x509.Certificate, sort string, now time.Time) string {
	check := map[string]func(*x509.Certificate, time.Time) *internalidentity.Refusal{
		"leaf": internalidentity.CheckLeaf, "mesh CA": internalidentity.CheckMeshCA, "root": internalidentity.CheckRoot,
	}[sort]
	if !inDate(cert, now) {
		now = cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 2)
	}
	if r := check(cert, now); r != nil {
		return command.JoinText("rule "+r.Rule+" ("+r.Section+")", r.Detail)
	}
	return ""
}

func certDetails(cert *x509.Certificate, now time.Time, wide bool) term.Facts {
	var f term.Facts
	sort, id, problem := sortOf(cert)
	f.Add("certificate", sort)
	f.Add("identity", id)
	f.Paint("no identity", term.Amber, problem)
	if cert.Subject.String() != "" {
		f.Add("subject", cert.Subject.String())
	}
	f.Add("issuer", cert.Issuer.String())
	f.Add("key", identity.KeyOf(cert).String())
	state := term.Painted(term.Green, "● in date, ends "+humanize.Relative(cert.NotAfter, now))
	switch {
	case now.Before(cert.NotBefore):
		state = term.Painted(term.Amber, "▲ not valid yet, begins "+humanize.Relative(cert.NotBefore, now))
	case now.After(cert.NotAfter):
		state = term.Painted(term.Red, "✖ expired "+humanize.Relative(cert.NotAfter, now))
	}
	f.Paint("state", state.Paint, state.Text)
	f.Add("valid", cert.NotBefore.UTC().Format(time.RFC3339)+" to "+cert.NotAfter.UTC().Format(time.RFC3339))
	f.Paint("profile", term.Amber, profileProblem(cert, sort, now))
	f.Add("dns names", strings.Join(cert.DNSNames, ", "))
	if wide {
		f.Add("serial", cert.SerialNumber.Text(16))
		f.Add("key type", cert.PublicKeyAlgorithm.String())
	}
	return f
}

// verifiedCert is what fealty cert verify prints.
type verifiedCert struct {
	File          string      `json:"file"`
	Verified      bool        `json:"verified"`
	SpiffeID      string      `json:"spiffe_id"`
	KeyID         string      `json:"key_id"`
	NotAfter      term.Moment `json:"not_after"`
	MeshCAChecked bool        `json:"mesh_ca_checked"`
	BansChecked   bool        `json:"bans_checked"`
}

func verify(c *program.CLI) *cobra.Command {
	var root, bundle, cluster string
	cmd := c.Command(program.Command{
		Use: "verify FILE", Short: "verify a certificate chain as a member would",
		Long: `Verify the chain in a PEM file by the rules that every process of a cluster verifies its peers with.

--root names a PEM file with the roots to believe: any mesh CA under them is accepted, so that a mesh CA whose
key was given up is not noticed. --bundle names one with roots and the mesh CAs that are accepted. Bans are in
neither: a trust bundle of the cluster says who is banned.`,
		Sample: "  fealty cert verify svid.pem --root root.pem --cluster prod.example",
		Args:   command.Exactly("FILE"),
		Run: func(_ context.Context, cfg *settings.Values, args []string) error {
			switch {
			case cluster == "":
				return command.Missing("--cluster", "an identity counts in one cluster", "--cluster ID")
			case root == "" == (bundle == ""):
				return command.Missing("--root", "it has to be said whom to believe, in one way",
					"--root FILE or --bundle FILE")
			}
			f, err := ReadCert(c, cfg, args[0])
			if err != nil {
				return err
			}
			trust, err := readTrust(c, cfg, f, root, bundle, cluster)
			if err != nil {
				return err
			}
			v, err := trust.Verify(f.Certs, c.Env.Now())
			if err == nil {
				err = v.IDErr
			}
			if err != nil {
				return refusedCert(args[0], err)
			}
			return c.Print(program.ResultOf(verifiedCert{
				File: args[0], Verified: true, SpiffeID: v.ID.String(), KeyID: v.Key.String(),
				NotAfter: term.Moment(v.Leaf.NotAfter), MeshCAChecked: bundle != "", BansChecked: false,
			}, func(p *term.Page) error {
				var out term.Facts
				out.Paint("verified", term.Green, "● "+v.ID.String())
				out.Add("key", v.Key.String())
				out.Add("ends", v.Leaf.NotAfter.UTC().Format(time.RFC3339)+", "+humanize.Relative(v.Leaf.NotAfter,
					c.Env.Now()))
				out.Add("not checked", map[bool]string{true: "bans",
					false: "bans, and whether the mesh CA's key is still accepted"}[bundle != ""])
				return p.Facts(out)
			}))
		},
	})
	cmd.Flags().StringVar(&root, "root", "", "a PEM file with the roots to believe")
	cmd.Flags().StringVar(&bundle, "bundle", "",
		"a PEM file with the roots to believe and the mesh CAs that are accepted")
	cmd.Flags().StringVar(&cluster, "cluster", "", "the cluster whose identity it has to be")
	return cmd
}

func refusedCert(name string, err error) error {
	if e, ok := errors.AsType[*identity.ChainError](err); ok {
		return errcode.Wrap(err, errcode.CertificateRefused, "certificate", name, "problem",
			fmt.Sprintf("rule %s refused its %s: %s", e.Rule, e.Certificate, e.Detail))
	}
	return errcode.Wrap(err, errcode.CertificateRefused, "certificate", name, "problem", err.Error())
}

// readTrust makes a bundle of the roots and mesh CAs in a file. Without accepted
// mesh CAs those of the chain itself are.
func readTrust(c *program.CLI, cfg *settings.Values, chain *certFile, root, bundle, cluster string) (*identity.Bundle,
	error) {
	file, flag := root, "--root"
	if bundle != "" {
		file, flag = bundle, "--bundle"
	}
	anchors, err := ReadCert(c, cfg, file)
	if err != nil {
		return nil, err
	}
	cfgBundle := identity.BundleConfig{Cluster: cluster}
	mesh := chain.Certs
	if bundle != "" {
		mesh = anchors.Certs
	}
	for _, cert := range anchors.Certs {
		if sort, _, _ := sortOf(cert); sort == "root" {
			cfgBundle.Roots = append(cfgBundle.Roots, cert)
		}
	}
	for _, cert := range mesh {
		if sort, _, _ := sortOf(cert); sort == "mesh CA" {
			cfgBundle.MeshKeys = append(cfgBundle.MeshKeys, identity.KeyOf(cert))
		}
	}
	b, err := identity.NewBundle(cfgBundle)
	if err != nil {
		if len(cfgBundle.Roots) == 0 {
			return nil, errcode.Wrap(err, errcode.BadValue, "name", flag, "value", file, "problem",
				"the file has no root", "want", "a PEM file with a root of the cluster")
		}
		return nil, errcode.Wrap(err, errcode.BadValue, "name", flag+" or --cluster", "value", "used", "problem",
			err.Error())
	}
	return b, nil
}
