package manifest

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/keyfile"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
)

func manifestSign(c *program.CLI) *cobra.Command {
	var current, key, kind, out string
	cmd := c.Command(program.Command{
		Use: "sign FILE", Short: "sign a manifest where the key is, to be set elsewhere",
		Long: `Sign a manifest on the machine that has the key, without a coordinator. The output is one line that
fealty manifest set or reshare takes with --signature, on standard output or in the file of --out.

It covers the exact bytes of FILE, the head that the change follows, and whether it is a set or a reshare. So it
works once, for this change alone. fealty manifest diff shows what the change does, and names the head.`,
		Sample: `  fealty manifest sign manifest.yaml --current HASH --key alice.key --out alice.sig
  fealty manifest sign manifest.yaml --current HASH --key alice.key --kind reshare > alice.sig`,
		Args: command.Exactly("FILE"),
		Run: func(_ context.Context, cfg *settings.Values, args []string) error {
			return signManifest(c, cfg, args[0], current, key, history.Kind(kind), out)
		},
	})
	f := cmd.Flags()
	f.StringVar(&current, "current", "", "the hash of the transition in force, which the change follows")
	f.StringVar(&key, "key", "", "sign with the key in this PEM file")
	f.StringVar(&kind, "kind", string(history.KindSet), "what is consented to: set or reshare")
	f.StringVar(&out, "out", "", "write the signature to this new file")
	return cmd
}

func signManifest(c *program.CLI, cfg *settings.Values, file, current, keyFile string, kind history.Kind,
	out string) error {
	switch {
	case current == "":
		return command.Missing("--current", "a signature is for one head",
			"--current HASH, as fealty manifest diff and fealty status show it")
	case keyFile == "":
		return command.Missing("--key", "somebody has to sign", "--key FILE of a signer's key")
	case kind != history.KindSet && kind != history.KindReshare:
		return errcode.New(errcode.BadValue, "name", "--kind", "value", command.ShownArg(string(kind)), "problem",
			"it is no change that signers consent to", "want", "set or reshare")
	}
	var head history.Hash
	if err := head.UnmarshalText([]byte(current)); err != nil {
		return errcode.Wrap(err, errcode.BadValue, "name", "--current", "value", command.ShownArg(current),
			"problem", "it is not 64 hex digits", "want", "the hash of the transition in force")
	}
	_, m, err := ReadManifest(c, cfg, file, manifest.Parse)
	if problems, ok := errors.AsType[*manifest.InvalidError](err); ok {
		return InvalidManifest(file, problems)
	}
	if err != nil {
		return err
	}
	key, err := keyfile.Read(cfg.Within(keyFile))
	if err != nil {
		return err
	}
	f, err := history.SignChange(kind, m, head, key)
	if err != nil {
		return err
	}
	if out != "" {
		if err := keyfile.Create(cfg.Within(out), f.Encode(), 0o644, "a signature"); err != nil {
			return err
		}
	} else if _, err := c.Env.Stdout.Write(f.Encode()); err != nil {
		return err
	}
	what := "everything that the file says, and leaves the owners of the seed as they are"
	if kind == history.KindReshare {
		what = "the owners of the seed and their threshold that the file says, and nothing else"
	}
	c.Say("signed as %s: a %s of cluster %s, which brings into force %s", f.Signature.Key, kind, m.Cluster, what)
	c.Say("the file is %s, byte for byte; the change follows head %s, and no other", f.Manifest, head)
	return nil
}

// SignatureFile is a signature and where it came from.
type SignatureFile struct {
	From string
	history.SignatureFile
}

func ReadSignatures(cfg *settings.Values, files []string) ([]SignatureFile, error) {
	var out []SignatureFile
	for _, name := range files {
		data, err := render.ReadFile(cfg.Within(name), history.MaxSignatureFileBytes)
		if err != nil {
			return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "signature", "file", name)
		}
		f, err := history.DecodeSignatureFile(data)
		if err != nil {
			return nil, errcode.Wrap(err, errcode.SignatureFileBad, "file", name, "problem",
				"it is not what fealty manifest sign writes")
		}
		out = append(out, SignatureFile{name, f})
	}
	return out, nil
}

// countable reports whether each signature counts for the change, and if not says
// which does not, and why, before anything is sent.
func countable(files []SignatureFile, kind history.Kind, m *manifest.Manifest, head history.Hash,
	inForce *manifest.Manifest) error {
	var before []history.SignatureFile
	for _, f := range files {
		before = append(before, f.SignatureFile)
		err := history.CheckSignatures(before, kind, m, head, inForce)
		e, ok := errors.AsType[*history.SignatureError](err)
		switch {
		case err == nil:
			continue
		case !ok:
			return err
		case errors.Is(err, history.ErrOtherManifest), errors.Is(err, history.ErrOtherChange):
			return errcode.Wrap(err, errcode.SignatureOther, "file", f.From, "problem", e.Detail)
		case errors.Is(err, history.ErrOtherHead):
			return errcode.Wrap(err, errcode.SignatureStale, "file", f.From, "expected", f.Current.String(), "head",
				head.String())
		case errors.Is(err, history.ErrNoSigner):
			return errcode.Wrap(err, errcode.SignatureForeign, "change", kind.Undone(), "signer", e.Key.String())
		case errors.Is(err, history.ErrSignedTwice):
			return errcode.Wrap(err, errcode.SignatureTwice, "change", kind.Undone(), "signer", e.Key.String())
		}
		return errcode.Wrap(err, errcode.SignatureFileBad, "file", f.From, "problem", e.Detail)
	}
	return nil
}
