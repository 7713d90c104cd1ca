package manifest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/member"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

func manifestHistory(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "history", Short: "show how the manifest came about",
		Long: `Show the signed chain of transitions, newest last. With -o json it is the whole of it, which can be ` +
			`kept and
verified elsewhere: fealty manifest verify-history --file FILE.`,
		Sample: "  fealty manifest history -o json > history.json",
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Manifest.GetHistory(ctx, &fealtyv1.GetHistoryRequest{})
				if err != nil {
					return err
				}
				return c.Print(program.ResultOf(message.Of(resp), func(p *term.Page) error {
					t := &term.Table{Columns: []term.Column{{Title: "INDEX", Right: true}, {Title: "EPOCH",
						Right: true}, {Title: "KIND"}, {Title: "MANIFEST"},
						{Title: "REASON", Least: 12}, {Title: "TRANSITION", Wide: true},
						{Title: "MESH CA", Wide: true}}}
					for _, x := range resp.GetTransitions() {
						t.Add(term.Txt(command.Itoa(int64(x.GetIndex()))),
							term.Txt(command.Itoa(int64(x.GetAuthorityEpoch()))),
							term.Txt(x.GetKind()), term.Txt(member.Short(hex.EncodeToString(x.GetManifestHash()))),
							term.Txt(command.Dash(x.GetReason())), term.Txt(hex.EncodeToString(x.GetHash())),
							term.Txt(member.Short(hex.EncodeToString(x.GetMeshCaKey()))))
					}
					return p.Table(t)
				}))
			})
		},
	})
}

func verifyHistory(c *program.CLI) *cobra.Command {
	var file, key string
	cmd := c.Command(program.Command{
		Use: "verify-history", Short: "replay the history here, and say what was checked",
		Long: `Replay the history on this machine, from genesis to head, by the rules that a coordinator adopts one ` +
			`with.
Nothing is believed of who sent it but the key that signed its head: compare that once, and give it with
--transaction-key from then on.`,
		Sample: `  fealty manifest verify-history
  fealty manifest verify-history --file history.json --transaction-key HEX`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			var want identity.KeyID
			if key != "" {
				var err error
				if want, err = identity.ParseKeyID(key); err != nil {
					return errcode.Wrap(err, errcode.BadValue, "name", "--transaction-key", "value", key, "problem",
						"it is not 64 lower-case hex digits", "want", "the SHA-256 that this command printed before")
				}
			}
			if file != "" {
				resp, err := ReadHistory(c, cfg, file)
				if err != nil {
					return err
				}
				return VerifyHistory(c, resp, want)
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := client.WholeHistory(ctx, s)
				if err != nil {
					return err
				}
				return VerifyHistory(c, resp, want)
			})
		},
	})
	cmd.Flags().StringVar(&file, "file", "", "verify what fealty manifest history -o json wrote; - is standard input")
	cmd.Flags().StringVar(&key, "transaction-key", "", "the SHA-256 of the key that has to have signed the head")
	return cmd
}

// exported is a history as it was printed. Only what is signed is read: whatever
// else is in the file was for people.
type exported struct {
	Schema      string `json:"schema"`
	Transitions []struct {
		Record base64Bytes `json:"record"`
	} `json:"transitions"`
	Head           base64Bytes   `json:"head"`
	TransactionKey base64Bytes   `json:"transaction_key"`
	Manifests      []base64Bytes `json:"manifests"`
}

// base64Bytes are bytes in their one spelling in base64: the decoder alone would skip line breaks.
type base64Bytes []byte

func (b *base64Bytes) UnmarshalText(text []byte) (err error) {
	*b, err = base64.StdEncoding.Strict().DecodeString(string(text))
	if err == nil && len(text) != base64.StdEncoding.EncodedLen(len(*b)) {
		err = errors.New("a line break inside base64")
	}
	return err
}

// maxExportBytes bounds an exported history: base64 and JSON around the largest.
const maxExportBytes = 2 * history.MaxHistoryBytes

func ReadHistory(c *program.CLI, cfg *settings.Values, file string) (*fealtyv1.GetHistoryResponse, error) {
	var data []byte
	var err error
	if file == "-" {
		data, err = command.ReadAll(c.Env.Stdin, maxExportBytes)
	} else {
		data, err = render.ReadFile(cfg.Within(file), maxExportBytes)
	}
	if err != nil {
		return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "history", "file", file)
	}
	var in exported
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, errcode.Wrap(err, errcode.HistoryInvalid, "problem", "the file is not JSON of an exported history")
	}
	if in.Schema != term.Schema {
		return nil, errcode.New(errcode.HistoryInvalid, "problem",
			fmt.Sprintf("the file is of schema %q, want %q: make it with fealty manifest history -o json", in.Schema,
				term.Schema))
	}
	out := &fealtyv1.GetHistoryResponse{Head: in.Head, TransactionKey: in.TransactionKey}
	for _, t := range in.Transitions {
		out.Transitions = append(out.Transitions, &fealtyv1.Transition{Record: t.Record})
	}
	for _, m := range in.Manifests {
		out.Manifests = append(out.Manifests, m)
	}
	return out, nil
}

// VerifyHistory replays a history, and shows what was checked.
func VerifyHistory(c *program.CLI, resp *fealtyv1.GetHistoryResponse, want identity.KeyID) error {
	refused := func(err error, index, problem string) error {
		pairs := []any{"problem", problem}
		if index != "" {
			pairs = append(pairs, "index", index)
		}
		return errcode.Wrap(err, errcode.HistoryInvalid, pairs...)
	}
	keyID := identity.KeyID(sha256.Sum256(resp.GetTransactionKey()))
	parsed, err := x509.ParsePKIXPublicKey(resp.GetTransactionKey())
	key, ok := parsed.(ed25519.PublicKey)
	if err != nil || !ok {
		return refused(err, "", "its transaction key is not an Ed25519 key")
	}
	v, err := history.Verify(client.HistoryOf(resp), key)
	if e, ok := errors.AsType[*history.VerifyError](err); ok {
		return refused(err, command.Itoa(int64(e.Index)), "rule "+e.Rule+": "+e.Detail)
	}
	if err != nil {
		return refused(err, "", err.Error())
	}
	// The key of an earlier seed will do: from its head on the signers vouch for the next.
	if !want.IsZero() && !slices.ContainsFunc(v.TransactionKeys(), func(k ed25519.PublicKey) bool {
		id, err := identity.KeyOfPublic(k)
		return err == nil && id == want
	}) {
		return refused(nil, "",
			fmt.Sprintf("it came with transaction key %s, and --transaction-key is %s, which is that of no seed of "+
				"this history", keyID, want))
	}
	// The fields that are shown beside the records have to say the same.
	for i, t := range resp.GetTransitions() {
		l := v.Links()[i]
		if len(t.GetHash()) > 0 && (!bytes.Equal(t.GetHash(), l.Hash[:]) || t.GetIndex() != l.Index ||
			t.GetAuthorityEpoch() != l.AuthorityEpoch || t.GetKind() != string(l.Kind)) {
			return refused(nil, command.Itoa(int64(l.Index)),
				"what the coordinator says of a transition is not what its signed record says")
		}
	}
	return c.Print(checked(v, keyID, want))
}

// historyRule is a rule that a history keeps.
type historyRule struct {
	Rule         string `json:"rule"`
	ProtectsFrom string `json:"protects_from"`
	Section      string `json:"section"`
}

// HistoryHead is the head of a history.
type HistoryHead struct {
	Hash           string `json:"hash"`
	Index          uint64 `json:"index"`
	AuthorityEpoch uint64 `json:"authority_epoch"`
}

// verifiedHistory is what fealty manifest verify-history prints.
type verifiedHistory struct {
	Verified             bool          `json:"verified"`
	Cluster              string        `json:"cluster"`
	Transitions          int           `json:"transitions"`
	Head                 HistoryHead   `json:"head"`
	ManifestHash         string        `json:"manifest_hash"`
	TransactionKey       string        `json:"transaction_key"`
	TransactionKeyPinned bool          `json:"transaction_key_pinned"`
	Rules                []historyRule `json:"rules"`
}

// checked says what a verified history was checked for.
func checked(v *history.Verified, key, want identity.KeyID) program.Result {
	pinned := !want.IsZero()
	head := v.Head()
	rules := make([]historyRule, 0, len(history.Rules()))
	for _, r := range history.Rules() {
		rules = append(rules, historyRule{Rule: r.Name, ProtectsFrom: r.Why, Section: r.Section})
	}
	data := verifiedHistory{
		Verified: true, Cluster: v.Manifest().Cluster, Transitions: len(v.Links()),
		Head:         HistoryHead{Hash: head.Hash.String(), Index: head.Index, AuthorityEpoch: head.AuthorityEpoch},
		ManifestHash: v.Manifest().Hash().String(), TransactionKey: key.String(), TransactionKeyPinned: pinned,
		Rules: rules,
	}
	return program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		f.Paint("history", term.Green, fmt.Sprintf("● verified: %s of cluster %s, from genesis to head",
			humanize.Plural(len(v.Links()), "transition", "transitions"), v.Manifest().Cluster))
		f.Add("head", fmt.Sprintf("%s, index %d, authority epoch %d", head.Hash, head.Index, head.AuthorityEpoch))
		f.Add("manifest", v.Manifest().Hash().String())
		if pinned && want != key {
			f.Add("transaction key", key.String()+", by the signers from the one that was given")
		} else if pinned {
			f.Add("transaction key", key.String()+", the one that was given")
		} else {
			f.Paint("transaction key", term.Amber,
				key.String()+" ▲ as it was sent: compare it with what you know, and give it with --transaction-key")
		}
		f.Add("checked", humanize.Plural(len(history.Rules()), "rule",
			"rules")+" of each link and of the chain; -o wide lists them")
		if err := p.Facts(f); err != nil || !p.Wide {
			return err
		}
		p.Heading("rules")
		t := &term.Table{Columns: []term.Column{{Title: "RULE"}, {Title: "WITHOUT IT", Least: 30},
			{Title: "SECTION", Least: 12}}}
		for _, r := range history.Rules() {
			t.Add(term.Txt(r.Name), term.Txt(r.Why), term.Txt(r.Section))
		}
		return p.Table(t)
	})
}
