package recovery

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	manifestpkg "github.com/fealty-io/fealty/internal/cli/manifest"
	"github.com/fealty-io/fealty/internal/cli/member"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/mesh"
)

// Names of the trust anchors that verify writes.
const (
	rootAnchor = "root-ca.pem"
	meshAnchor = "mesh-ca.pem"
)

// verifyFlags are what verify is told.
type verifyFlags struct {
	manifest   string
	pin        expected
	out, marks string
	dry, full  bool
}

func Verify(c *program.CLI) *cobra.Command {
	var in verifyFlags
	cmd := c.Command(program.Command{
		Use: "verify", Short: "verify a cluster before trusting it with data",
		Long: `Verify that a cluster is what its manifest says, before data is entrusted to it. No login is needed.

The coordinator proves, over this very connection, the key by which the expected manifest admits it. The links of its
signed history are replayed from the first one to the head, the head has to name the hash of the expected manifest, and
the mesh CA key has to be the one that the head names. Coordinators show manifests to nobody without a login: whether
signers consented to a link is checked where they are known, and --full replays the history with all manifests. ` +
			`With --out the certificates of root and mesh CA are written, for use
as trust anchors. The mesh CA alone is one where the manifest says "trust: mesh": then it changes with every
manifest.

The newest head that was seen of a cluster is kept in a mark. A history that went back, or is another one, is
refused by that, and so is another root.`,
		Sample: `  fealty verify --manifest expected.yaml --coordinator c1.example:7443 --out anchors
  fealty verify --manifest expected.yaml --coordinator c1.example:7443 --root-pin 7e7fbb2a… -o json`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return verify(ctx, c, cfg, in)
		},
	})
	f := cmd.Flags()
	f.StringVar(&in.manifest, "manifest", "", "the manifest that has to be in force; - reads it from standard input")
	f.Var(&in.pin, "root-pin", "the SHA-256 of the cluster's root key, where it is known")
	f.StringVar(&in.out, "out", "", "write "+rootAnchor+" and "+meshAnchor+" into this folder")
	f.BoolVar(&in.full, "full", false, "replay the history with every manifest too, which takes a login")
	marksFlag(cmd, &in.marks)
	command.DryRun(cmd.Flags(), &in.dry)
	return cmd
}

func verify(ctx context.Context, c *program.CLI, cfg *settings.Values, in verifyFlags) error {
	if in.manifest == "" {
		return command.Missing("--manifest", "a cluster is verified against what its owners agreed on",
			"--manifest FILE, as it was reviewed and not as the cluster shows it")
	}
	pin, err := in.pin.pin()
	if err != nil {
		return err
	}
	want := recovery.Expected{Pin: pin}
	_, m, err := manifestpkg.ReadManifest(c, cfg, in.manifest, manifest.ParseAccepted)
	if problems, ok := errors.AsType[*manifest.InvalidError](err); ok {
		return manifestpkg.InvalidManifest(in.manifest, problems)
	}
	if err != nil {
		return err
	}
	want.Manifest = m
	kept := marksIn(c, cfg, in.marks)
	if want.Seen, err = kept.read(m.Cluster); err != nil {
		return err
	}
	addrs, err := recovering(ctx, c, cfg)
	if err != nil {
		return err
	}
	found, addr, err := verifyAny(ctx, c, cfg, want, addrs)
	if err != nil {
		return err
	}
	if in.full {
		if err := c.Ask(cfg, func(s *client.Services) error { return verifyFull(ctx, s, found) }); err != nil {
			return err
		}
	}
	out := cfg.Within(in.out)
	switch {
	case in.dry:
		c.Planned("the mark of " + m.Cluster + " and the trust anchors would be written")
	default:
		// The mark first: who has the anchors was told what they stand on.
		if err := kept.keep(want.Seen, found.Mark()); err != nil {
			return err
		}
		if in.out == "" {
			break
		}
		if err := writeAnchors(out, found); err != nil {
			return errcode.Wrap(err, errcode.BadValue, "name", "--out", "value", in.out, "problem",
				render.Bare(err).Error(), "want", "a folder that can be written")
		}
	}
	if found.Restored {
		c.Say("a restore that the signers signed stands for the head that was seen before: what came after its " +
			"backup is gone")
	}
	return c.Print(verified(found, addr, want.Seen.IsZero(), in))
}

// verifyAny verifies the first coordinator that is reached and ready. One that proved
// itself and is refused ends the search: another one's word does not mend that.
func verifyAny(ctx context.Context, c *program.CLI, cfg *settings.Values, want recovery.Expected,
	addrs []string) (*recovery.Cluster, string, error) {
	var first error
	for _, addr := range addrs {
		found, err := verifyAt(ctx, c, cfg, want, addr)
		if err == nil {
			return found, addr, nil
		}
		err = render.OverNetwork(err, addr, "Verify", false, false, cfg.Text("timeout"))
		if first == nil || errors.Is(errcode.Of(first), errcode.Unreachable) {
			first = err
		}
		e := errcode.Of(err)
		if ctx.Err() != nil || !errors.Is(e, errcode.Unreachable) && !errors.Is(e, errcode.RecoveryMode) {
			return nil, "", err
		}
	}
	return nil, "", first
}

func verifyAt(ctx context.Context, c *program.CLI, cfg *settings.Values, want recovery.Expected,
	addr string) (*recovery.Cluster, error) {
	conn, err := mesh.DialPinned(addr, pinned.Unproven(), mesh.Options{Now: c.Env.Now})
	if err != nil {
		return nil, errcode.Wrap(err, errcode.BadValue, "name", "--coordinator", "value", addr, "problem", err.Error())
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, cfg.Duration("timeout"))
	defer cancel()
	now := time.Now
	if c.Env.Now != nil {
		now = c.Env.Now
	}
	return recovery.Verify(ctx, conn, want, addr, now())
}

// verifyFull replays the whole history with its manifests, which a coordinator shows
// after a login. It has to lead through what was found.
func verifyFull(ctx context.Context, s *client.Services, found *recovery.Cluster) error {
	resp, err := client.WholeHistory(ctx, s)
	if err != nil {
		return err
	}
	v, err := history.Verify(client.HistoryOf(resp), found.History.TransactionKey())
	if err == nil {
		_, err = v.CheckMark(found.History.Mark())
	}
	if err != nil {
		return errcode.Wrap(err, errcode.HistoryInvalid, "problem",
			"with its manifests: "+strings.TrimPrefix(err.Error(), "history: "))
	}
	return nil
}

// writeAnchors writes the certificates into dir. They are no secret: whoever is to use
// them reads them.
func writeAnchors(dir string, found *recovery.Cluster) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, cert := range map[string]*x509.Certificate{rootAnchor: found.Root, meshAnchor: found.MeshCA} {
		var b bytes.Buffer
		if err := pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}); err != nil {
			return err
		}
		if err := durable.Shared().WriteFile(filepath.Join(dir, name), b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// verifiedCluster is what fealty verify prints.
type verifiedCluster struct {
	Verified         bool                    `json:"verified"`
	Cluster          string                  `json:"cluster"`
	Coordinator      string                  `json:"coordinator"`
	Endpoint         string                  `json:"endpoint"`
	Transitions      int                     `json:"transitions"`
	Head             manifestpkg.HistoryHead `json:"head"`
	ManifestHash     string                  `json:"manifest_hash"`
	Trust            string                  `json:"trust"`
	RootKey          string                  `json:"root_key"`
	MeshCAKey        string                  `json:"mesh_ca_key"`
	FirstLook        bool                    `json:"first_look"`
	Restored         bool                    `json:"restored"`
	Full             bool                    `json:"full"`
	ConsentUnchecked int                     `json:"consent_unchecked"`
	Written          bool                    `json:"written"`
}

// verified says what was verified.
func verified(found *recovery.Cluster, addr string, first bool, in verifyFlags) program.Result {
	v := found.History
	m, head := found.Manifest, v.Head()
	root, meshCA := identity.KeyOf(found.Root), identity.KeyOf(found.MeshCA)
	written := in.out != "" && !in.dry
	data := verifiedCluster{
		Verified: true, Cluster: m.Cluster, Coordinator: found.Coordinator, Endpoint: addr, Transitions: len(v.Links()),
		Head: manifestpkg.HistoryHead{Hash: head.Hash.String(), Index: head.Index,
			AuthorityEpoch: head.AuthorityEpoch},
		ManifestHash: m.Hash().String(), Trust: string(m.Trust), RootKey: root.String(), MeshCAKey: meshCA.String(),
		FirstLook: first, Restored: found.Restored, Full: in.full, ConsentUnchecked: v.Unsigned(), Written: written,
	}
	return program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		f.Paint("cluster", term.Green, "● verified: "+m.Cluster)
		f.Add("coordinator", fmt.Sprintf("%s at %s, admitted by the expected manifest", found.Coordinator, addr))
		f.Add("manifest", m.Hash().String()+", in force")
		f.Add("history", fmt.Sprintf("%s, head %s at index %d, authority epoch %d",
			humanize.Plural(len(v.Links()), "transition", "transitions"), member.Short(head.Hash.String()), head.Index,
			head.AuthorityEpoch))
		switch n := v.Unsigned(); {
		case in.full:
			f.Add("consent", "checked: the signers in force signed each link that takes it")
		case n > 0:
			f.Paint("consent", term.Amber,
				fmt.Sprintf("▲ of the signers to %s was not checked: their manifests are shown after a login, with "+
					"--full", humanize.Plural(n, "link", "links")))
		}
		if first && !in.pin.given {
			f.Paint("root key", term.Amber,
				root.String()+
					" ▲ as it was shown on this first look: compare it with what you know, and give it with --root-pin")
		} else {
			f.Add("root key", root.String())
		}
		f.Add("mesh CA key", fmt.Sprintf("%s, until %s", meshCA, found.MeshCA.NotAfter.UTC().Format(time.RFC3339)))
		if m.Trust == manifest.TrustMesh {
			f.Add("trust", "mesh: the mesh CA alone may be an anchor; every manifest has its own")
		} else {
			f.Add("trust", "root: the root is the anchor; a mesh CA key may serve several manifests")
		}
		if written {
			f.Add("written", filepath.Join(in.out, rootAnchor)+", "+filepath.Join(in.out, meshAnchor))
		}
		return p.Facts(f)
	})
}
