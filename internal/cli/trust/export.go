package trust

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"fmt"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/jwtsvid"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

func export(c *program.CLI) *cobra.Command {
	var dir string
	cmd := c.Command(program.Command{
		Use: "export", Short: "write the files by which others verify tokens of workloads",
		Long: `Write the files by which those verify tokens of workloads (JWT-SVIDs) who know OpenID Connect and ` +
			`nothing of
Fealty: .well-known/openid-configuration and .well-known/jwks.json, below the folder. Any web server serves them, under
the URL that the manifest names in workloads.token_issuer. They hold public keys alone, and each takes the place of
the one before as a whole.

The keys are those of tokens that are in use, and that of the next rotation of the config signing key: run it after each
rotation, and at once after one with --compromised.`,
		Sample: "  fealty trust export --oidc /var/www/id",
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			if dir == "" {
				return command.Missing("--oidc", "the files go into a folder", "--oidc DIR")
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Trust.GetTrust(ctx, &fealtyv1.GetTrustRequest{})
				if err != nil {
					return err
				}
				return exportTo(c, resp.GetTrust(), cfg.Within(dir))
			})
		},
	})
	cmd.Flags().StringVar(&dir, "oidc", "", "write the files for OpenID Connect below this folder")
	return cmd
}

// exported is what fealty trust export prints.
type exported struct {
	Issuer string     `json:"issuer"`
	Keys   term.Texts `json:"keys"`
	Files  term.Texts `json:"files"`
}

func exportTo(c *program.CLI, t *fealtyv1.Trust, dir string) error {
	issuer := t.GetTokenIssuer()
	if issuer == "" {
		return errcode.New(errcode.NotFound, "what", "issuer of tokens", "name", "in the manifest in force",
			"why", "verifiers find the keys below the issuer that a token names, and these tokens name none",
			"do", "write the https URL under which the files are to be served into the manifest, as "+
				"workloads.token_issuer, and set it: fealty manifest set manifest.yaml")
	}
	out := exported{Issuer: issuer}
	var keys []jwtsvid.Key
	for _, k := range t.GetTokenKeys() {
		parsed, err := x509.ParsePKIXPublicKey(k.GetKey())
		if err != nil {
			return fmt.Errorf("a coordinator sent a key of tokens that cannot be read: %w", err)
		}
		public, ok := parsed.(*ecdsa.PublicKey)
		if !ok {
			return fmt.Errorf("a coordinator sent a key of tokens that is a %T", parsed)
		}
		keys = append(keys, jwtsvid.Key{ID: k.GetKeyId(), Public: public})
		out.Keys = append(out.Keys, k.GetKeyId())
	}
	docs, err := jwtsvid.NewDocuments(issuer, keys)
	if err != nil {
		return err
	}
	if out.Files, err = docs.Write(durable.Public(), dir); err != nil {
		return errcode.Wrap(err, errcode.FileNotWritten, "purpose", "a file in", "file", dir, "cause", err.Error())
	}
	return c.Print(program.ResultOf(out, func(p *term.Page) error {
		var f term.Facts
		f.Add("issuer", issuer)
		for _, k := range out.Keys {
			f.Add("key", k)
		}
		for _, name := range out.Files {
			f.Add("written", name)
		}
		return p.Facts(f)
	}))
}
