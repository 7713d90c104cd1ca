package manifest

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/keyfile"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
)

// reseedFlags are what manifest reseed is told.
type reseedFlags struct {
	keys       []string
	prepare    string
	commit     string
	signatures []string
	reason     string
	dry        bool
}

func reseed(c *program.CLI) *cobra.Command {
	var in reseedFlags
	cmd := c.Command(program.Command{
		Use: "reseed [FILE]", Short: "give the cluster a new seed, and so new keys for everything",
		Long: `Give the cluster a new seed, and so a new root, transaction key, config keys and record keys.

It is needed after a coordinator lost its admission, or its machine was lost to somebody else: withdrawing an
admission does not take back the seed that the coordinator held. Afterwards what derives from the old seed
signs nothing that anybody believes. FILE sets a manifest at once; without it the one in force stays.

Members follow by themselves and no stream is cut: they believe the new root by the signatures of the signers,
whom they know. Join tokens, which pin it, end with the old root, and so do logins: people log in again
with the new pin. Members that were away come back as long as the signers are those that they knew; others
join anew.

With --sign-with the seed is prepared, signed and brought into force in one go. Where signers sit apart, one
prepares (--prepare), each signs the file (fealty manifest sign-reseed), and one commits (--commit), all at the
same coordinator: it keeps the prepared seed in memory alone, for an hour.`,
		Sample: `  fealty manifest reseed --sign-with alice.key --reason "c2 was stolen"
  fealty manifest reseed without-c2.yaml --prepare reseed.json
  fealty manifest reseed --commit reseed.json --signature alice.sig --signature bob.sig`,
		Groups: []settings.Group{settings.Client}, Args: command.AtMostOne("FILE"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			return reseedCluster(ctx, c, cfg, in, args)
		},
	})
	f := cmd.Flags()
	f.StringArrayVar(&in.keys, "sign-with", nil, "sign with the key in this PEM file; once for each signer")
	f.StringVar(&in.prepare, "prepare", "", "prepare a seed, and write what signers have to sign to this new file")
	f.StringVar(&in.commit, "commit", "", "bring the seed into force that was prepared with this file")
	f.StringArrayVar(&in.signatures, "signature", nil,
		"a signature that manifest sign-reseed made; once for each signer")
	f.StringVar(&in.reason, "reason", "", "why, for the history; at most 256 bytes")
	command.DryRun(cmd.Flags(), &in.dry)
	return cmd
}

// maxSignatureFile bounds the file of one signature.
const maxSignatureFile = 1 << 10

func reseedCluster(ctx context.Context, c *program.CLI, cfg *settings.Values, in reseedFlags, args []string) error {
	switch {
	case in.prepare != "" && (in.commit != "" || len(in.keys)+len(in.signatures) > 0):
		return command.ConflictingFlags("--prepare", "given together with what commits",
			"--prepare alone; then sign, then --commit")
	case in.commit != "" && len(args) > 0:
		return command.ConflictingFlags("FILE", args[0], "no FILE with --commit: the manifest was given to --prepare")
	case len(in.signatures) > 0 && in.commit == "":
		return command.ConflictingFlags("--signature", "given without --commit",
			"--commit FILE, the file that was signed")
	case in.prepare == "" && len(in.keys)+len(in.signatures) == 0 && !in.dry:
		return command.Missing("--sign-with", "the signers authorize a new seed",
			"--sign-with KEY, or --prepare FILE for signers who sit apart")
	}
	var set []byte
	if len(args) > 0 {
		data, _, err := ReadManifest(c, cfg, args[0], manifest.ParseAccepted)
		if err != nil {
			return WordManifest(args[0], err)
		}
		set = data
	}
	keys, err := ReadKeys(cfg, in.keys)
	if err != nil {
		return err
	}
	if in.prepare != "" && !in.dry {
		// Before a seed takes the place of one that is being signed.
		if _, err := os.Lstat(cfg.Within(in.prepare)); err == nil {
			return keyfile.Create(cfg.Within(in.prepare), nil, 0o644, "what signers have to sign")
		}
	}
	req := &fealtyv1.CommitReseedRequest{Reason: in.reason, DryRun: in.dry}
	for _, file := range in.signatures {
		sig, err := readSignature(cfg, file)
		if err != nil {
			return err
		}
		req.Signatures = append(req.Signatures, sig)
	}
	if in.commit != "" {
		if req.Change, err = render.ReadFile(cfg.Within(in.commit), snapshot.MaxRecord); err != nil {
			return errcode.Wrap(err, errcode.FileMissing, "purpose", "change of root", "file", in.commit)
		}
	}
	return c.Ask(cfg, func(s *client.Services) error {
		if in.commit == "" {
			p, err := s.Reseed.PrepareReseed(ctx, &fealtyv1.PrepareReseedRequest{Manifest: set, DryRun: in.dry})
			if err != nil {
				return err
			}
			change, err := trust.DecodeRootChange(p.GetChange())
			if err != nil {
				return errcode.Wrap(err, errcode.PeerProtocol, "endpoint", "the coordinator", "problem", err.Error())
			}
			if in.dry {
				c.Planned("the cluster would get a new seed; what it derives is made anew each time, so these keys " +
					"are not those that will be")
				return c.Print(preparedResult(p, change))
			}
			if in.prepare != "" {
				path := cfg.Within(in.prepare)
				if err := keyfile.Create(path, p.GetChange(), 0o644, "what signers have to sign"); err != nil {
					return err
				}
				if err := c.Print(preparedResult(p, change)); err != nil {
					return err
				}
				c.Say("next: each signer runs fealty manifest sign-reseed %s --sign-with KEY --out NAME.sig; then, "+
					"at this coordinator and before %s: fealty manifest reseed --commit %s --signature NAME.sig …",
					in.prepare, command.When(p.GetExpiresAt()), in.prepare)
				return nil
			}
			req.Change = p.GetChange()
		}
		if len(keys) > 0 {
			sigs, err := signReseed(req.Change, keys)
			if err != nil {
				return err
			}
			req.Signatures = append(req.Signatures, sigs...)
		}
		resp, err := s.Reseed.CommitReseed(ctx, req)
		if err != nil {
			return err
		}
		if in.dry {
			c.Planned("the prepared seed would come into force")
		}
		if err := c.Print(reseeded(resp)); err != nil || in.dry {
			return err
		}
		c.Say("the old seed signs nothing that counts any more; members follow by themselves, and " +
			"fealty status shows who is connected")
		c.Say("join tokens are void: make new ones. People log in again with --root-pin %x", resp.GetRootKey())
		tellOfKeys(c, resp.GetKeysMade())
		return tellOfShares(c, cfg, "", resp.GetShares())
	})
}

// WordManifest words what is wrong with a manifest in a file.
func WordManifest(file string, err error) error {
	if problems, ok := errors.AsType[*manifest.InvalidError](err); ok {
		return InvalidManifest(file, problems)
	}
	return err
}

// signReseed signs a change of root with each key.
func signReseed(change []byte, keys []ed25519.PrivateKey) ([]*fealtyv1.ManifestSignature, error) {
	parsed, err := trust.DecodeRootChange(change)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.BadValue, "name", "the change of root", "value", "unreadable", "problem",
			err.Error(), "want", "the file that manifest reseed --prepare wrote, byte for byte")
	}
	statement, err := parsed.Statement()
	if err != nil {
		return nil, err
	}
	var out []*fealtyv1.ManifestSignature
	for _, key := range keys {
		public, err := keyfile.Public(key)
		if err != nil {
			return nil, err
		}
		out = append(out, &fealtyv1.ManifestSignature{Key: public.String(), Signature: ed25519.Sign(key, statement)})
	}
	return out, nil
}

// reseedSignature is one signature in a file.
type reseedSignature struct {
	Schema    string `json:"schema"`
	Key       string `json:"key"`
	Signature string `json:"signature"` // base64
}

const reseedSignatureSchema = "fealty.reseed-signature/v1"

func readSignature(cfg *settings.Values, file string) (*fealtyv1.ManifestSignature, error) {
	data, err := render.ReadFile(cfg.Within(file), maxSignatureFile)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "signature", "file", file)
	}
	var in reseedSignature
	err = json.Unmarshal(data, &in)
	if err == nil && in.Schema != reseedSignatureSchema {
		err = fmt.Errorf("its schema is %.40q, not %q", in.Schema, reseedSignatureSchema)
	}
	var raw base64Bytes
	if err == nil {
		err = raw.UnmarshalText([]byte(in.Signature))
	}
	if err == nil {
		_, err = manifest.ParseKey(in.Key)
	}
	if err != nil {
		return nil, errcode.Wrap(err, errcode.BadValue, "name", "--signature", "value", file, "problem", err.Error(),
			"want", "a file that manifest sign-reseed wrote")
	}
	return &fealtyv1.ManifestSignature{Key: in.Key, Signature: raw}, nil
}

func manifestSignReseed(c *program.CLI) *cobra.Command {
	var keyFile, out string
	cmd := c.Command(program.Command{
		Use: "sign-reseed FILE", Short: "sign a prepared seed, apart from any coordinator",
		Long: `Sign what manifest reseed --prepare wrote, as one signer, and show what it says.

The signature authorizes this change of root at this place of the history, and nothing else. Compare cluster,
roots and manifest with what you were told on another way.`,
		Sample: "  fealty manifest sign-reseed reseed.json --sign-with alice.key --out alice.sig",
		Args:   command.Exactly("FILE"),
		Run: func(_ context.Context, cfg *settings.Values, args []string) error {
			change, err := render.ReadFile(cfg.Within(args[0]), snapshot.MaxRecord)
			if err != nil {
				return errcode.Wrap(err, errcode.FileMissing, "purpose", "change of root", "file", args[0])
			}
			if keyFile == "" {
				return command.Missing("--sign-with", "a signature needs a key", "--sign-with KEY")
			}
			if out == "" {
				return command.Missing("--out", "the signature goes into a file", "--out FILE")
			}
			keys, err := ReadKeys(cfg, []string{keyFile})
			if err != nil {
				return err
			}
			sigs, err := signReseed(change, keys)
			if err != nil {
				return err
			}
			data, err := json.Marshal(reseedSignature{reseedSignatureSchema, sigs[0].GetKey(),
				base64.StdEncoding.EncodeToString(sigs[0].GetSignature())})
			if err != nil {
				return err
			}
			if err := keyfile.Create(cfg.Within(out), append(data, '\n'), 0o644, "a signature"); err != nil {
				return err
			}
			parsed, err := trust.DecodeRootChange(change)
			if err != nil {
				return err
			}
			return c.Print(program.ResultOf(changeOfRoot(parsed),
				func(p *term.Page) error { return p.Facts(changeFacts(parsed)) }))
		},
	})
	f := cmd.Flags()
	f.StringVar(&keyFile, "sign-with", "", "sign with the key in this PEM file")
	f.StringVar(&out, "out", "", "write the signature to this new file")
	return cmd
}

// plannedReseed is what a new seed would change, and for how many.
type plannedReseed struct {
	rootChange
	Members      uint64 `json:"members"`
	TokensVoided uint64 `json:"tokens_voided"`
}

// rootChange is a change of the root.
type rootChange struct {
	Cluster            string `json:"cluster"`
	SeedEpoch          uint64 `json:"seed_epoch"`
	AuthorityEpoch     uint64 `json:"authority_epoch"`
	Index              uint64 `json:"index"`
	PreviousTransition string `json:"previous_transition"`
	ManifestHash       string `json:"manifest_hash"`
	PreviousRoot       string `json:"previous_root"`
	Root               string `json:"root"`
}

func changeOfRoot(r trust.RootChange) rootChange {
	return rootChange{
		Cluster: r.ClusterID, SeedEpoch: r.SeedEpoch, AuthorityEpoch: r.AuthorityEpoch, Index: r.Index,
		PreviousTransition: r.Previous.String(), ManifestHash: r.Manifest.String(),
		PreviousRoot: r.PreviousRoot.String(), Root: r.Root.String(),
	}
}

func changeFacts(r trust.RootChange) term.Facts {
	var f term.Facts
	f.Add("cluster", r.ClusterID)
	f.Add("seed epoch", command.Itoa(int64(r.SeedEpoch)))
	f.Add("authority epoch", command.Itoa(int64(r.AuthorityEpoch)))
	f.Add("index", command.Itoa(int64(r.Index)))
	f.Add("after", r.Previous.String())
	f.Add("manifest", r.Manifest.String())
	f.Add("root that leaves", r.PreviousRoot.String())
	f.Add("root that comes", r.Root.String())
	return f
}

func preparedResult(p *fealtyv1.PrepareReseedResponse, r trust.RootChange) program.Result {
	data := plannedReseed{changeOfRoot(r), p.GetMembers(), p.GetTokensVoided()}
	return program.ResultOf(data, func(pg *term.Page) error {
		f := changeFacts(r)
		f.Add("members to follow", command.Itoa(int64(p.GetMembers())))
		f.Add("tokens voided", command.Itoa(int64(p.GetTokensVoided())))
		f.Add("expires", command.When(p.GetExpiresAt()))
		return pg.Facts(f)
	})
}

func reseeded(resp *fealtyv1.CommitReseedResponse) program.Result {
	return program.ResultOf(message.Of(resp), func(p *term.Page) error {
		t := resp.GetTransition()
		var f term.Facts
		f.Add("seed epoch", command.Itoa(int64(resp.GetSeedEpoch())))
		f.Add("root", keyText(resp.GetRootKey()))
		f.Add("transaction key", keyText(resp.GetTransactionKey()))
		f.Add("index", command.Itoa(int64(t.GetIndex())))
		f.Add("authority epoch", command.Itoa(int64(t.GetAuthorityEpoch())))
		f.Add("members to follow", command.Itoa(int64(resp.GetMembers())))
		f.Add("tokens voided", command.Itoa(int64(resp.GetTokensVoided())))
		f.Add("reason", t.GetReason())
		return p.Facts(f)
	})
}

func keyText(hash []byte) string {
	var id identity.KeyID
	copy(id[:], hash)
	return id.String()
}
