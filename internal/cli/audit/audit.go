// Package audit has the commands that list, follow and verify the audit log.
package audit

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/keyfile"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	snapshotpkg "github.com/fealty-io/fealty/internal/cli/snapshot"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

const (
	// auditSchema names the format of an exported audit log.
	auditSchema = "fealty.audit/v1"
	// maxAuditLine bounds a line of it: a value in JSON can be six times as long.
	maxAuditLine = 8 * auditlog.MaxEntryBytes
	// maxAuditShown bounds the entries that audit list shows, and auditShown those that it
	// shows if it is not told.
	maxAuditShown = 100_000
	auditShown    = 1000
)

func Command(c *program.CLI) *cobra.Command {
	return program.Group("audit", "see who did what, and that nobody altered the log of it", list(c),
		follow(c), verify(c))
}

// auditWanted are the flags that say which entries are wanted.
type auditWanted struct{ since, until, member, action string }

func (w *auditWanted) flags(cmd *cobra.Command, since, usage string) {
	f := cmd.Flags()
	f.StringVar(&w.since, "since", since, usage)
	f.StringVar(&w.member, "member", "",
		"only what this one did, or what was done to it: a KIND/NAME, or another actor or target")
	f.StringVar(&w.action, "action", "", "only this action, such as member.ban, or all of a sort, such as member")
	program.CompleteFlag(cmd, "action",
		cobra.FixedCompletions(slices.Concat(actionSorts(), auditlog.Actions()), cobra.ShellCompDirectiveNoFileComp))
}

// request is what they ask for.
func (w *auditWanted) request(now time.Time) (*fealtyv1.GetAuditRequest, error) {
	req := &fealtyv1.GetAuditRequest{Member: w.member, Action: w.action}
	for _, t := range []struct {
		name, text string
		to         **timestamppb.Timestamp
	}{{"--since", w.since, &req.Since}, {"--until", w.until, &req.Until}} {
		if t.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, t.text)
		if err != nil {
			var ago time.Duration
			ago, err = settings.ParseDuration(t.text)
			at = now.Add(-ago)
		}
		if err != nil || at.Unix() < 0 {
			return nil, errcode.New(errcode.BadValue, "name", t.name, "value", t.text, "problem",
				"it is neither a time nor how long ago", "want", "such as 2026-05-04T08:00:00Z, 36h or 7d")
		}
		*t.to = timestamppb.New(at)
	}
	return req, nil
}

func list(c *program.CLI) *cobra.Command {
	var wanted auditWanted
	var limit int
	var export string
	cmd := c.Command(program.Command{
		Use: "list", Short: "list who did what",
		Long: `List entries of the audit log, oldest first: those of the last day, unless --since says otherwise. ` +
			`Entries are kept
for 90 days. CHECKPOINT is the one that vouches for an entry: the leader signs one a minute, so that the newest entries
have none yet. Entries of a release before that are marked: nothing vouches for them.

--export writes all of the log to a file, with its checkpoints, as fealty audit verify reads it.`,
		Sample: `  fealty audit list --since 7d --action member.ban
  fealty audit list --member data/node-1 -o json
  fealty audit list --export audit.jsonl`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			req, err := wanted.request(c.Env.Now())
			if err != nil {
				return err
			}
			if limit < 1 || limit > maxAuditShown {
				return errcode.New(errcode.BadValue, "name", "--limit", "value", fmt.Sprint(limit), "problem",
					"it is out of range", "want", fmt.Sprintf("1 to %d", maxAuditShown))
			}
			return c.Ask(cfg, func(s *client.Services) error {
				if export != "" {
					return exportAudit(ctx, c, s, export, cfg.Within(export))
				}
				return listAudit(ctx, c, s, req, limit)
			})
		},
	})
	wanted.flags(cmd, "24h", "a time, or how long ago the first entry was made")
	f := cmd.Flags()
	f.StringVar(&wanted.until, "until", "", "a time, or how long ago the last entry was made")
	f.IntVar(&limit, "limit", auditShown, "show at most so many entries, the newest")
	f.StringVar(&export, "export", "", "write the whole log to this new file, for fealty audit verify")
	return cmd
}

// auditStream asks for the log, and returns what comes after whose it is.
func auditStream(ctx context.Context, s *client.Services,
	req *fealtyv1.GetAuditRequest) (grpc.ServerStreamingClient[fealtyv1.GetAuditResponse], *fealtyv1.AuditHead,
	context.CancelFunc, error) {
	stream, first, end, err := client.FirstOf(ctx, s.Line, "GetAudit",
		func(ctx context.Context) (grpc.ServerStreamingClient[fealtyv1.GetAuditResponse], error) {
			return s.Audit.GetAudit(ctx, req)
		})
	if err != nil {
		return nil, nil, nil, err
	}
	head := first.GetHead()
	if head == nil {
		end()
		return nil, nil, nil, errcode.New(errcode.PeerProtocol, "problem", "it does not say whose audit log it is")
	}
	return stream, head, end, nil
}

func listAudit(ctx context.Context, c *program.CLI, s *client.Services, req *fealtyv1.GetAuditRequest, limit int) error {
	stream, _, end, err := auditStream(ctx, s, req)
	if err != nil {
		return err
	}
	defer end()
	var entries []*fealtyv1.AuditEntry // a ring of limit
	n := 0
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return s.Line.OfStream(ctx, err, "GetAudit")
		}
		if e := part.GetEntry(); e != nil {
			if len(entries) < limit {
				entries = append(entries, e)
			} else {
				entries[n%limit] = e
			}
			n++
		}
	}
	if n == 0 && !known(req.GetAction()) {
		// Only now: a coordinator of a later release may write actions that this one does not know.
		e := errcode.New(errcode.NotFound, "what", "entry of the audit log with the action", "name",
			command.ShownArg(req.GetAction()))
		e.Why, e.Do = "no such action is known either", actionGuess(req.GetAction())
		return e
	}
	if n > limit {
		entries = slices.Concat(entries[n%limit:], entries[:n%limit])
		c.Say("%d older entries are left out: name a larger --limit, or a later --since", n-limit)
	}
	data := make([]auditEntry, 0, len(entries))
	for _, e := range entries {
		data = append(data, auditData(e))
	}
	return c.Print(program.ResultOf(auditEntries{data},
		func(p *term.Page) error { return p.Table(table(entries)) }))
}

// known reports whether an action, or a sort of them, is one that this release writes.
func known(action string) bool {
	return action == "" || slices.ContainsFunc(auditlog.Actions(), func(a string) bool {
		return a == action || strings.HasPrefix(a, action+".")
	})
}

// actionSorts are the sorts of actions.
func actionSorts() (out []string) {
	for _, a := range auditlog.Actions() {
		sort, _, _ := strings.Cut(a, ".")
		out = append(out, sort)
	}
	return slices.Compact(out)
}

// actionGuess says which action is meant by one that is not known, or which there are.
func actionGuess(action string) string {
	all := auditlog.Actions()
	sort, _, dotted := strings.Cut(action, ".")
	same := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return !strings.HasPrefix(a, sort+".") })
	switch guess := humanize.Suggest(action, slices.Concat(actionSorts(), all)); {
	case guess != "":
		return guess
	case dotted && len(same) > 0:
		return "give one of " + strings.Join(same, ", ")
	}
	return "give one of " + strings.Join(actionSorts(), ", ") + ", or one action, such as member.ban"
}

// auditEntries is what fealty audit list prints.
type auditEntries struct {
	Entries []auditEntry `json:"entries"`
}

// auditEntry is one entry: of before there were chains, or with its place in one.
type auditEntry struct {
	At           term.Moment `json:"at"`
	Actor        string      `json:"actor"`
	Action       string      `json:"action"`
	Target       string      `json:"target"`
	Reason       string      `json:"reason"`
	Fields       term.Object `json:"fields"` // in the order of the entry
	BeforeChains bool        `json:"before_chains,omitempty"`
	Chain        string      `json:"chain,omitempty"`
	Number       string      `json:"number,omitempty"`
	Checkpoint   string      `json:"checkpoint,omitempty"`
}

func auditData(e *fealtyv1.AuditEntry) auditEntry {
	out := auditEntry{At: term.Moment(e.GetAt().AsTime()), Actor: e.GetActor(), Action: e.GetAction(),
		Target: e.GetTarget(), Reason: e.GetReason()}
	for _, f := range e.GetFields() {
		out.Fields = append(out.Fields, term.Member{Name: f.GetName(), Value: f.GetValue()})
	}
	if e.GetChain() == "" {
		out.BeforeChains = true
		return out
	}
	out.Chain, out.Number, out.Checkpoint = e.GetChain(), command.Number(e.GetNumber()),
		command.Number(e.GetCheckpoint())
	return out
}

// checkpointOf says in one word what vouches for an entry.
func checkpointOf(e *fealtyv1.AuditEntry) string {
	switch {
	case e.GetChain() == "":
		return "before chains"
	case e.GetCheckpoint() == 0:
		return "none yet"
	}
	return command.Number(e.GetCheckpoint())
}

func table(entries []*fealtyv1.AuditEntry) *term.Table {
	t := &term.Table{Columns: []term.Column{
		{Title: "AT"}, {Title: "ACTOR", Least: 16}, {Title: "ACTION"}, {Title: "TARGET", Least: 16},
		{Title: "REASON", Least: 12}, {Title: "CHECKPOINT", Right: true},
		{Title: "CHAIN", Wide: true}, {Title: "NUMBER", Wide: true, Right: true},
	}}
	for _, e := range entries {
		t.Add(term.Cell{Text: command.When(e.GetAt())}, term.Cell{Text: e.GetActor()},
			term.Cell{Text: e.GetAction()}, term.Cell{Text: e.GetTarget()}, term.Cell{Text: e.GetReason()},
			term.Cell{Text: checkpointOf(e)}, term.Cell{Text: e.GetChain()},
			term.Cell{Text: command.Number(e.GetNumber())})
	}
	return t
}

func follow(c *program.CLI) *cobra.Command {
	var wanted auditWanted
	cmd := c.Command(program.Command{
		Use: "follow", Short: "print entries as they are written, until interrupted",
		Long: `Print the entries of the audit log as they are written, one by one, until interrupted. --since ` +
			`begins with those that
are there already. With -o json each is one object.`,
		Sample: `  fealty audit follow
  fealty audit follow --since 10m --action member`,
		Groups: []settings.Group{settings.Client},
		Run: func(ctx context.Context, cfg *settings.Values, _ []string) error {
			req, err := wanted.request(c.Env.Now())
			if err != nil {
				return err
			}
			req.Follow, req.OnlyNew = true, req.Since == nil
			if !known(wanted.action) {
				c.Say("no action %s is known; %s", command.ShownArg(wanted.action), actionGuess(wanted.action))
			}
			return c.Ask(cfg, func(s *client.Services) error { return followAudit(ctx, c, s, req) })
		},
	})
	wanted.flags(cmd, "", "begin with entries since a time, or how long ago (default with new ones)")
	return cmd
}

func followAudit(ctx context.Context, c *program.CLI, s *client.Services, req *fealtyv1.GetAuditRequest) error {
	stream, head, end, err := auditStream(ctx, s, req)
	if err != nil {
		return err
	}
	defer end()
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errcode.New(errcode.Unreachable, "endpoint", "the coordinator", "problem",
				"it ended the stream: follow again")
		}
		if err != nil {
			return s.Line.OfStream(ctx, err, "GetAudit")
		}
		if part.GetFollowing() != nil {
			c.Say("following the audit log of cluster %s", head.GetClusterId())
		}
		e := part.GetEntry()
		if e == nil {
			continue
		}
		err = c.Print(program.ResultOf(auditData(e), func(p *term.Page) error {
			reason := ""
			if r := e.GetReason(); r != "" {
				reason = " (" + r + ")"
			}
			p.Line("%s  %s  %s  %s%s", command.When(e.GetAt()), e.GetActor(), e.GetAction(), e.GetTarget(), reason)
			return nil
		}))
		if err != nil {
			return err
		}
	}
}

// exportedRecord is a line of an exported log.
type exportedRecord struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// exportedHead is its first line.
type exportedHead struct {
	Schema  string    `json:"schema"`
	Cluster string    `json:"cluster"`
	At      time.Time `json:"exported_at"`
	// TrustBundle is the one that was in force then. It is worth what the config root key that
	// is named for it makes of it.
	TrustBundle []byte `json:"trust_bundle"`
}

// exportedAudit is what fealty audit export prints.
type exportedAudit struct {
	File    string `json:"file"`
	Cluster string `json:"cluster"`
	Records string `json:"records"`
}

func exportAudit(ctx context.Context, c *program.CLI, s *client.Services, file, path string) error {
	if _, err := os.Lstat(path); err == nil {
		return errcode.New(errcode.FileExists, "file", file, "purpose", "an audit log")
	}
	stream, head, end, err := auditStream(ctx, s, &fealtyv1.GetAuditRequest{Exact: true})
	if err != nil {
		return err
	}
	defer end()
	n := uint64(0)
	err = keyfile.CreateStream(path, 0o600, "an audit log", func(w io.Writer) error {
		out := json.NewEncoder(w)
		if err := out.Encode(exportedHead{auditSchema, head.GetClusterId(), c.Env.Now().UTC(),
			head.GetTrustBundle()}); err != nil {
			return err
		}
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return s.Line.OfStream(ctx, err, "GetAudit")
			}
			if r := part.GetRecord(); r != nil {
				n++
				if err := out.Encode(exportedRecord{r.GetKey(), string(r.GetValue())}); err != nil {
					return err
				}
			}
		}
	})
	if err != nil {
		return err
	}
	return c.Print(program.ResultOf(exportedAudit{File: file, Cluster: head.GetClusterId(), Records: command.Number(n)},
		func(p *term.Page) error {
			p.Line("%s of the audit log of cluster %s are in %s", humanize.Plural(int(n), "record", "records"),
				head.GetClusterId(), file)
			return nil
		}))
}

// auditAnchor says whom audit verify believes.
type auditAnchor struct{ trust, configRoot, root, statement string }

func verify(c *program.CLI) *cobra.Command {
	var a auditAnchor
	var known string
	cmd := c.Command(program.Command{
		Use: "verify [FILE]", Short: "find what was altered in the audit log, moved or removed",
		Long: `Verify the audit log: that each entry is the one that was written, that none is missing, and that ` +
			`each checkpoint
follows the one before it, up to the newest, which a config signing key of the cluster has to have signed.

With FILE, which fealty audit list --export wrote, no coordinator is asked. The trust bundle is the one in the file, or
that of --trust. --config-root names the config root key that has to have signed it, as 64 hex digits, which verify
prints when it asks a coordinator; or --root-pin gives the pin of its root, and --root-statement the file in which
the root says which config root key it has. Without FILE the log is read from a coordinator, and it is believed which
config root key the cluster has: that finds whoever altered the store, and not a coordinator that lies.

Entries after the last checkpoint, those of a minute, are only checked to be without gaps. A log whose end was cut
off is whole in itself: keep the number and hash of the checkpoint that verify prints, and name them with --known
the next time.`,
		Sample: `  fealty audit verify
  fealty audit verify audit.jsonl --config-root KEY --known 1201:HASH`,
		Groups: []settings.Group{settings.Client}, Args: command.AtMostOne("FILE"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			var knows []auditlog.Known
			if known != "" {
				k, err := knownCheckpoint(known)
				if err != nil {
					return err
				}
				knows = append(knows, k)
			}
			if len(args) > 0 {
				return verifyAuditFile(c, cfg, args[0], &a, knows)
			}
			return c.Ask(cfg, func(s *client.Services) error { return verifyAuditOf(ctx, c, cfg, s, &a, knows) })
		},
	})
	f := cmd.Flags()
	f.StringVar(&a.trust, "trust", "", "a file with the trust bundle to verify with")
	f.StringVar(&a.configRoot, "config-root", "", "the config root key of the cluster, 64 hex digits")
	command.RootPin(f, &a.root, "the pin of the cluster's root, 64 hex digits; with --root-statement and --trust")
	f.StringVar(&a.statement, "root-statement", "", "a file with the root's statement on its config root key")
	f.StringVar(&known, "known", "", "a checkpoint that was there before, NUMBER:HASH")
	return cmd
}

func knownCheckpoint(text string) (k auditlog.Known, err error) {
	digits, hash, _ := strings.Cut(text, ":")
	if k.Number, err = strconv.ParseUint(digits, 10, 64); err == nil {
		err = k.Hash.UnmarshalText([]byte(hash))
	}
	if err != nil || k.Number == 0 {
		return k, errcode.New(errcode.BadValue, "name", "--known", "value", text, "problem", "it is no checkpoint",
			"want", "NUMBER:HASH, as fealty audit verify prints it")
	}
	return k, nil
}

// keys returns the config signing keys of the bundle that was named, or else of the one that
// came with the log, and whose it is.
func (a *auditAnchor) keys(c *program.CLI, cfg *settings.Values, came []byte) (cluster string, keys auditlog.Keys,
	err error) {
	name, raw := a.trust, came
	if name == "" {
		name = "the trust bundle in the file"
	} else if raw, err = snapshotpkg.ReadBounded(c, cfg, a.trust, "trust bundle", internalsnapshot.MaxSigned); err != nil {
		return "", nil, err
	}
	bundle, err := snapshotpkg.ReadingOf(name, raw)
	if err != nil {
		return "", nil, err
	}
	switch {
	case bundle.Header().ScopeType != snapshot.ScopeTrustBundle:
		return "", nil, errcode.New(errcode.BadValue, "name", "--trust", "value", name, "problem",
			fmt.Sprintf("it is a snapshot of scope %s", bundle.Header().ScopeType), "want", "a trust_bundle")
	case a.configRoot == "" && a.root == "":
		return "", nil, command.Missing("--config-root",
			"a trust bundle shows nothing by itself: it has to be said whose it is",
			"--config-root KEY, or --root-pin PIN with --root-statement FILE")
	case a.configRoot == "" && a.statement == "":
		return "", nil, command.Missing("--root-statement",
			"the pin says which root, and the statement its config root key", "--root-pin PIN --root-statement FILE")
	}
	key, err := snapshotpkg.RootKey(c, cfg, bundle, a.configRoot, a.root, a.statement)
	if err != nil {
		return "", nil, err
	}
	keys, err = bundleKeys(bundle, key)
	return bundle.Header().ClusterID, keys, err
}

// bundleKeys verifies a trust bundle at its own time: a log is read long after it was written.
func bundleKeys(bundle *snapshotpkg.Reading, root ed25519.PublicKey) (auditlog.Keys, error) {
	me, err := identity.New(bundle.Header().ClusterID, identity.Data, "anyone")
	if err != nil {
		return nil, snapshotpkg.Unreadable(bundle.Name, "snapshot", err)
	}
	v, err := snapshot.Verify(bundle.Signed, snapshot.Trust{Me: me, Incarnation: identity.KeyID{1}, ConfigRoot: root},
		snapshot.Marks{}, bundle.Header().IssuedAt)
	if err != nil {
		return nil, snapshotpkg.RefusedSnapshot(bundle, err)
	}
	content, ok := v.TrustBundle()
	if !ok {
		return nil, snapshotpkg.Unreadable(bundle.Name, "trust bundle", errors.New("it is none"))
	}
	return content.ConfigKeys, nil
}

func verifyAuditFile(c *program.CLI, cfg *settings.Values, file string, a *auditAnchor, known []auditlog.Known) error {
	var in io.Reader = c.Env.Stdin
	if file != "-" {
		f, err := os.Open(cfg.Within(file))
		if err != nil {
			return errcode.Wrap(err, errcode.FileMissing, "purpose", "audit log", "file", file, "cause",
				snapshotpkg.Plainly(err, 0))
		}
		defer f.Close()
		in = f
	}
	unreadable := func(format string, args ...any) error {
		return errcode.New(errcode.AuditUnreadable, "file", file, "problem", fmt.Sprintf(format, args...))
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 64<<10), maxAuditLine)
	strictly := func(into any) error {
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		return d.Decode(into)
	}
	var head exportedHead
	if !lines.Scan() || strictly(&head) != nil || head.Schema != auditSchema {
		return unreadable("its first line does not say that it is of format %s", auditSchema)
	}
	cluster, keys, err := a.keys(c, cfg, head.TrustBundle)
	if err != nil {
		return err
	}
	if head.Cluster != cluster {
		return unreadable("it is of cluster %.80q, and the trust bundle of %q", head.Cluster, cluster)
	}
	v := auditlog.NewVerifier(cluster, keys, known...)
	for n := 2; lines.Scan(); n++ {
		var r exportedRecord
		if err := strictly(&r); err != nil {
			return unreadable("line %d is no record of it", n)
		}
		v.Add(r.Key, []byte(r.Value))
	}
	if err := lines.Err(); err != nil {
		return unreadable("%v", err)
	}
	by := "the trust bundle in the file"
	if a.trust != "" {
		by = "trust bundle " + a.trust
	}
	return report(c, v.Close(), by, nil)
}

func verifyAuditOf(ctx context.Context, c *program.CLI, cfg *settings.Values, s *client.Services, a *auditAnchor,
	known []auditlog.Known) error {
	var cluster string
	var keys auditlog.Keys
	var err error
	by := "the trust bundle that the coordinator gave"
	if a.trust != "" {
		if cluster, keys, err = a.keys(c, cfg, nil); err != nil {
			return err
		}
		by = "trust bundle " + a.trust
	}
	stream, head, end, err := auditStream(ctx, s, &fealtyv1.GetAuditRequest{Exact: true})
	if err != nil {
		return err
	}
	defer end()
	if a.trust == "" {
		bundle, err := snapshotpkg.ReadingOf("of the coordinator", head.GetTrustBundle())
		if err != nil {
			return err
		}
		root := head.GetConfigRootKey()
		if a.configRoot != "" {
			if root, err = hex.DecodeString(a.configRoot); err != nil || len(root) != ed25519.PublicKeySize {
				return errcode.New(errcode.BadValue, "name", "--config-root", "value", a.configRoot, "problem",
					"it is not 64 hex digits", "want", "an Ed25519 public key in hex")
			}
		}
		cluster = head.GetClusterId()
		if keys, err = bundleKeys(bundle, root); err != nil {
			return err
		}
	}
	v := auditlog.NewVerifier(cluster, keys, known...)
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return report(c, v.Close(), by, head.GetConfigRootKey())
		}
		if err != nil {
			return s.Line.OfStream(ctx, err, "GetAudit")
		}
		if r := part.GetRecord(); r != nil {
			v.Add(r.GetKey(), r.GetValue())
		}
	}
}

// auditProblem is a rule of the audit log that is not kept.
type auditProblem struct {
	Rule       string `json:"rule"`
	Checkpoint string `json:"checkpoint"`
	Chain      string `json:"chain"`
	Number     string `json:"number"`
	Problem    string `json:"problem"`
}

// verifiedAudit is what fealty audit verify prints.
type verifiedAudit struct {
	Cluster         string         `json:"cluster"`
	VerifiedWith    string         `json:"verified_with"`
	ConfigRootKey   string         `json:"config_root_key"`
	FirstCheckpoint string         `json:"first_checkpoint"`
	LastCheckpoint  string         `json:"last_checkpoint"`
	Covered         string         `json:"covered"`
	Uncovered       string         `json:"uncovered"`
	BeforeChains    string         `json:"before_chains"`
	Wrong           string         `json:"wrong"`
	Problems        []auditProblem `json:"problems"`
}

// report shows what a verifier found. It is an error if something is wrong. root is the
// config root key, where a coordinator named it.
func report(c *program.CLI, r *auditlog.Report, by string, root []byte) error {
	last := ""
	if r.Last.Number > 0 {
		last = fmt.Sprintf("%d:%s", r.Last.Number, r.Last.Hash)
	}
	problems := make([]auditProblem, 0, len(r.Problems))
	for _, p := range r.Problems {
		problems = append(problems, auditProblem{Rule: string(p.Rule), Checkpoint: command.Number(p.Checkpoint),
			Chain: p.Chain, Number: command.Number(p.Number), Problem: p.Problem})
	}
	data := verifiedAudit{
		Cluster: r.Cluster, VerifiedWith: by, ConfigRootKey: hex.EncodeToString(root),
		FirstCheckpoint: command.Number(r.First), LastCheckpoint: last,
		Covered: command.Number(r.Covered), Uncovered: command.Number(r.Uncovered),
		BeforeChains: command.Number(r.Unchained), Wrong: command.Number(r.Wrong), Problems: problems,
	}
	err := c.Print(program.ResultOf(data, func(p *term.Page) error {
		var f term.Facts
		f.Add("cluster", r.Cluster)
		f.Add("verified with", by)
		if len(root) > 0 {
			f.Add("config root key", hex.EncodeToString(root))
		}
		f.Add("vouched for", humanize.Plural(int(r.Covered), "entry", "entries"))
		f.Add("behind no checkpoint yet", humanize.Plural(int(r.Uncovered), "entry", "entries"))
		if r.Unchained > 0 {
			f.Add("before chains", humanize.Plural(int(r.Unchained), "entry", "entries")+", for which nothing vouches")
		}
		if last != "" {
			f.Add("last checkpoint", last)
		}
		if err := p.Facts(f); err != nil {
			return err
		}
		for _, problem := range r.Problems {
			p.Line("✖ %s: %s", problem.Rule, problem)
		}
		if more := r.Wrong - uint64(len(r.Problems)); more > 0 {
			p.Line("and %d more", more)
		}
		return nil
	}))
	if err != nil {
		return err
	}
	if r.Wrong > 0 {
		return errcode.New(errcode.AuditWrong, "count", fmt.Sprint(r.Wrong), "problem", r.Problems[0].String())
	}
	c.Say("nothing was altered; keep the last checkpoint for the next time: --known %s", last)
	return nil
}
