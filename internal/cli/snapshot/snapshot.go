// Package snapshot has the commands that show, verify and compare snapshots, and opens the mirrors
// that settings name.
package snapshot

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/keyfile"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

func Command(c *program.CLI) *cobra.Command {
	return program.Group("snapshot", "read, verify and compare signed snapshots",
		get(c), inspect(c), verify(c), diff(c))
}

// ofSources says what the commands read.
const ofSources = `A snapshot is named by a file with its exact bytes, by - for standard input, by agent:SCOPE for ` +
	`what the node of
--data has in use, whether or not its agent runs, or by member:KIND/NAME:SCOPE for what a coordinator has in force for
a member. A file whose name begins like that is written ./agent:…`

// A Reading is a snapshot that was read and decoded, and is not verified.
type Reading struct {
	Name   string
	raw    []byte
	Signed *snapshot.Signed
	claims snapshot.Claims
}

func (r *Reading) Header() *snapshot.Header { return &r.claims.Header }

// readSnapshot reads the snapshot that name names.
func readSnapshot(ctx context.Context, c *program.CLI, cfg *settings.Values, name string) (*Reading, error) {
	raw, err := snapshotBytes(ctx, c, cfg, name)
	if err != nil {
		return nil, err
	}
	return ReadingOf(name, raw)
}

func snapshotBytes(ctx context.Context, c *program.CLI, cfg *settings.Values, name string) ([]byte, error) {
	if rest, ok := strings.CutPrefix(name, "member:"); ok {
		member, scope, _ := strings.Cut(rest, ":")
		return memberSnapshot(ctx, c, cfg, member, scope)
	}
	if scope, ok := strings.CutPrefix(name, "agent:"); ok {
		if err := checkScope(scope); err != nil {
			return nil, err
		}
		dir := cfg.Path("data")
		raw, err := state.ReadActive(durable.OS(), dir, snapshot.Scope(scope))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errcode.Wrap(err, errcode.SnapshotNone, "scope", scope, "place", dir, "cause",
				"the node has none in use, or the folder is not a node's")
		}
		if err != nil {
			return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "snapshot", "file", name, "cause",
				Plainly(err, internalsnapshot.MaxSigned))
		}
		return raw, nil
	}
	return ReadBounded(c, cfg, name, "snapshot", internalsnapshot.MaxSigned)
}

// ReadBounded reads a regular file, or standard input, of at most limit bytes.
func ReadBounded(c *program.CLI, cfg *settings.Values, name, purpose string, limit int64) ([]byte, error) {
	var raw []byte
	var err error
	if name == "-" {
		raw, err = command.ReadAll(c.Env.Stdin, limit)
	} else {
		raw, err = durable.OS().ReadFile(cfg.Within(name), limit)
	}
	if err != nil {
		return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", purpose, "file", name, "cause",
			Plainly(err, limit))
	}
	return raw, nil
}

// Plainly says why a file was not read, without its path, which the message names.
func Plainly(err error, limit int64) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it does not exist"
	case errors.Is(err, fs.ErrPermission):
		return "this user may not read it"
	case errors.Is(err, durable.ErrTooLarge):
		return fmt.Sprintf("it has more than %d bytes, and nothing of its sort does", limit)
	case errors.Is(err, durable.ErrNotRegular):
		return "it is no regular file; for a pipe use -"
	}
	return render.Bare(err).Error()
}

// ReadingOf decodes what is said to be a snapshot.
func ReadingOf(name string, raw []byte) (*Reading, error) {
	r := &Reading{Name: name, raw: raw}
	var err error
	if r.Signed, err = snapshot.Unmarshal(raw); err == nil {
		r.claims, err = r.Signed.Claims()
	}
	if err != nil {
		return nil, Unreadable(name, "snapshot", err)
	}
	return r, nil
}

// Unreadable words err as what is wrong with the bytes of a file.
func Unreadable(name, sort string, err error) error {
	problem := strings.TrimSuffix(strings.TrimPrefix(err.Error(), "snapshot: "), ": "+snapshot.ErrMalformed.Error())
	return errcode.Wrap(err, errcode.SnapshotUnreadable, "sort", sort, "file", name, "problem", problem)
}

func checkScope(scope string) error {
	all := scopeNames()
	if slices.Contains(all, scope) {
		return nil
	}
	problem := "it is no scope"
	if g := humanize.Suggest(scope, all); g != "" {
		problem = g
	}
	return errcode.New(errcode.BadValue, "name", "SCOPE", "value", command.ShownArg(scope), "problem", problem,
		"want", "one of "+strings.Join(all, ", "))
}

func scopeNames() []string {
	var out []string
	for _, s := range snapshot.Scopes() {
		out = append(out, string(s))
	}
	return out
}

func get(c *program.CLI) *cobra.Command {
	var out, member, from string
	cmd := c.Command(program.Command{
		Use: "get SCOPE", Short: "get the exact bytes of a snapshot",
		Long: `Get the snapshot that the node of --data has in use for a scope, from its folder, whether or not its ` +
			`agent runs.
With --member a coordinator is asked for what is in force for a member. With --from a mirror is read for what it has
for the node of --data: it shows whether the mirror serves that node.

With --out the exact bytes are written to a file, or to standard output with --out -: the other commands read
them, on any machine. Without it they are part of what -o json prints, in base64. Nothing is verified.`,
		Sample: `  fealty snapshot get trust_bundle --data /var/lib/fealty/agent --out trust_bundle.snap
  fealty snapshot get node_runtime --member data/db-1 -o json
  fealty snapshot get node_runtime --data /var/lib/fealty/agent --from https://mirror.example/fealty`,
		Groups: []settings.Group{settings.Snapshot, settings.SnapshotGet, settings.Client},
		Args:   command.Exactly("SCOPE"), Words: scopeNames(),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			if err := checkScope(args[0]); err != nil {
				return err
			}
			var r *Reading
			var err error
			switch {
			case member != "" && from != "":
				return errcode.New(errcode.BadValue, "name", "--from", "value", "given together with --member",
					"problem", "they name two places", "want", "one of them")
			case member != "":
				r, err = readSnapshot(ctx, c, cfg, "member:"+member+":"+args[0])
			case from != "":
				var raw []byte
				if raw, err = mirrorSnapshot(ctx, c, cfg, from, snapshot.Scope(args[0])); err == nil {
					r, err = ReadingOf(from, raw)
				}
			default:
				r, err = readSnapshot(ctx, c, cfg, "agent:"+args[0])
			}
			if err != nil {
				return err
			}
			if out == "-" {
				_, err := c.Env.Stdout.Write(r.raw)
				return err
			}
			if out != "" {
				if err := keyfile.Create(cfg.Within(out), r.raw, 0o600, "the snapshot"); err != nil {
					return err
				}
			}
			shown := r.inspected(c.Env.Now())
			shown.Data = gotSnapshot{shown.Data.(shownSnapshot), out, base64.StdEncoding.EncodeToString(r.raw)}
			return c.Print(shown)
		},
	})
	cmd.Flags().StringVar(&out, "out", "", "write the exact bytes to this new file; - is standard output")
	cmd.Flags().StringVar(&member, "member", "", "ask a coordinator for what is in force for this member, as KIND/NAME")
	cmd.Flags().StringVar(&from, "from", "", "read it from this mirror, a folder or an https URL")
	return cmd
}

// memberSnapshot asks a coordinator for what is in force for a member.
func memberSnapshot(ctx context.Context, c *program.CLI, cfg *settings.Values, member, scope string) (raw []byte,
	err error) {
	if err := checkScope(scope); err != nil {
		return nil, err
	}
	kind, name, ok := strings.Cut(member, "/")
	if !ok || kind == "" || name == "" {
		return nil, errcode.New(errcode.BadValue, "name", "--member", "value", command.ShownArg(member), "problem",
			"it is not KIND/NAME", "want", "KIND/NAME, such as data/db-1")
	}
	err = c.Ask(cfg, func(s *client.Services) error {
		resp, err := s.Signed.GetSnapshot(ctx, &fealtyv1.GetSnapshotRequest{Kind: kind, Name: name, Scope: scope})
		raw = resp.GetSnapshot().GetEnvelope()
		return err
	})
	return raw, err
}

// mirrorTime bounds how long a mirror is read.
const mirrorTime = 2 * time.Minute

// mirrorSnapshot reads from a mirror what it has for the node of --data.
func mirrorSnapshot(ctx context.Context, c *program.CLI, cfg *settings.Values, place string,
	scope snapshot.Scope) ([]byte, error) {
	if problem := settings.CheckMirror(place); problem != "" {
		return nil, errcode.New(errcode.BadValue, "name", "--from", "value", command.ShownArg(place), "problem",
			problem, "want", "https://HOST/PATH or a folder")
	}
	roots, err := ReadMirrorRoots(c, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	source, err := OpenMirror(cfg, place, roots)
	if err != nil {
		return nil, err
	}
	o, err := state.ReadTrustView(durable.OS(), cfg.Path("data"), c.Env.Now())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, mirrorTime)
	defer cancel()
	raw, err := fromMirror(ctx, source, scope, o.Trust)
	switch {
	case err == nil:
		return raw, nil
	case mirror.ReasonOf(err) == mirror.Absent:
		return nil, errcode.Wrap(err, errcode.SnapshotNone, "scope", string(scope), "place", place, "cause",
			"its generation has none for "+o.Trust.Me.String())
	}
	return nil, errcode.Wrap(err, errcode.MirrorNoNews, "mirror", place, "problem",
		strings.TrimPrefix(err.Error(), "mirror: "))
}

// fromMirror returns the encoding of what a mirror has for a node.
func fromMirror(ctx context.Context, source mirror.Source, scope snapshot.Scope, node snapshot.Trust) ([]byte, error) {
	tree, err := mirror.Open(ctx, source, node.Me.Cluster())
	if err != nil {
		return nil, err
	}
	if scope == snapshot.ScopeTrustBundle {
		return tree.TrustBundle(ctx)
	}
	subject := snapshot.NodeSubject(node.Me, node.Incarnation)
	if scope != snapshot.ScopeNodeRuntime && scope != snapshot.ScopeServiceAssignment {
		subject = snapshot.GroupSubject(node.Roles, node.Organizations)
	}
	signed, err := tree.Header(ctx, scope, subject.String())
	if err != nil {
		return nil, err
	}
	claims, err := signed.Claims()
	if err != nil {
		return nil, err
	}
	content, err := mirror.Content(ctx, source, claims.Header.ContentHash, claims.Header.ContentSize)
	if err != nil {
		return nil, err
	}
	return signed.With(content).Marshal()
}

func inspect(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "inspect SNAPSHOT", Short: "show what a snapshot says of itself, without verifying it",
		Long: `Show the header, the record and the signers of a snapshot, and the sections of its content. Nothing ` +
			`of it is
verified: anybody can write a file that says all of this. See fealty snapshot verify.

` + ofSources,
		Sample: `  fealty snapshot inspect route_policy.snap
  fealty snapshot inspect agent:trust_bundle --data /var/lib/fealty/agent`,
		Groups: []settings.Group{settings.Snapshot, settings.Client}, Args: command.Exactly("SNAPSHOT"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			r, err := readSnapshot(ctx, c, cfg, args[0])
			if err != nil {
				return err
			}
			return c.Print(r.inspected(c.Env.Now()))
		},
	})
}

func (r *Reading) inspected(now time.Time) program.Result {
	parts, problem := r.sections()
	return program.ResultOf(r.data(parts, problem), func(p *term.Page) error { return r.show(p, parts, problem, now) })
}

// shownBase is what a snapshot is made from.
type shownBase struct {
	ConfigVersion uint64 `json:"config_version"`
	ContentHash   string `json:"content_hash"`
}

// shownHeader is the header of a snapshot.
type shownHeader struct {
	SnapshotID      string      `json:"snapshot_id"`
	SchemaVersion   int         `json:"schema_version"`
	ClusterID       string      `json:"cluster_id"`
	Subject         string      `json:"subject"`
	ScopeType       string      `json:"scope_type"`
	ScopeIDs        term.Texts  `json:"scope_ids"`
	Roles           term.Texts  `json:"roles"`
	OrganizationIDs term.Texts  `json:"organization_ids"`
	AuthorityEpoch  uint64      `json:"authority_epoch"`
	ConfigVersion   uint64      `json:"config_version"`
	IssuedAt        term.Moment `json:"issued_at"`
	ValidFrom       term.Moment `json:"valid_from"`
	RefreshAfter    term.Moment `json:"refresh_after"`
	ExpiresAt       term.Moment `json:"expires_at"`
	ContentHash     string      `json:"content_hash"`
	ContentSize     int         `json:"content_size"`
	Base            *shownBase  `json:"base"`
}

func ofHeader(h *snapshot.Header) shownHeader {
	var base *shownBase
	if h.Base != nil {
		base = &shownBase{ConfigVersion: h.Base.ConfigVersion, ContentHash: h.Base.ContentHash.String()}
	}
	return shownHeader{
		SnapshotID: h.SnapshotID, SchemaVersion: h.SchemaVersion, ClusterID: h.ClusterID, Subject: h.Subject.String(),
		ScopeType: string(h.ScopeType), ScopeIDs: h.ScopeIDs, Roles: h.Roles, OrganizationIDs: h.OrganizationIDs,
		AuthorityEpoch: h.AuthorityEpoch, ConfigVersion: h.ConfigVersion,
		IssuedAt: term.Moment(h.IssuedAt), ValidFrom: term.Moment(h.ValidFrom),
		RefreshAfter: term.Moment(h.RefreshAfter), ExpiresAt: term.Moment(h.ExpiresAt),
		ContentHash: h.ContentHash.String(), ContentSize: h.ContentSize, Base: base,
	}
}

// shownRecord is the record of a revocation list.
type shownRecord struct {
	ClusterID      string      `json:"cluster_id"`
	AuthorityEpoch uint64      `json:"authority_epoch"`
	Generation     uint64      `json:"generation"`
	Root           string      `json:"root"`
	TreeSize       uint64      `json:"tree_size"`
	IssuedAt       term.Moment `json:"issued_at"`
	FreshUntil     term.Moment `json:"fresh_until"`
	Revocations    string      `json:"revocations"`
}

func ofRecord(r *snapshot.Record) *shownRecord {
	if r == nil {
		return nil
	}
	return &shownRecord{
		ClusterID: r.ClusterID, AuthorityEpoch: r.AuthorityEpoch, Generation: r.Generation,
		Root: r.Root.String(), TreeSize: r.TreeSize, IssuedAt: term.Moment(r.IssuedAt),
		FreshUntil:  term.Moment(r.FreshUntil),
		Revocations: r.Revocations.String(),
	}
}

// signatures are those of the record, or of the header itself.
func (r *Reading) signatures() []snapshot.Signature {
	if r.Signed.Publication != nil {
		return r.Signed.Publication.Signatures
	}
	return r.Signed.Signatures
}

// shownSignature is a signature of a snapshot, not verified.
type shownSignature struct {
	KeyID     string `json:"key_id"`
	Algorithm string `json:"algorithm"`
}

// shownProof is where a snapshot stands in its batch.
type shownProof struct {
	Index  uint64 `json:"index"`
	Hashes int    `json:"hashes"`
}

// shownSection is a part of the content.
type shownSection struct {
	Name   string `json:"name"`
	Size   int    `json:"size"`
	Sha256 string `json:"sha256"`
}

// shownContent is the content of a snapshot.
type shownContent struct {
	Size         int            `json:"size"`
	Sha256       string         `json:"sha256"`
	IsTheHeaders bool           `json:"is_the_headers"`
	Sections     []shownSection `json:"sections"`
	Problem      string         `json:"problem"`
}

// gotSnapshot is what fealty snapshot get prints.
type gotSnapshot struct {
	shownSnapshot
	File     string `json:"file"`
	Envelope string `json:"envelope"`
}

// shownSnapshot is what fealty snapshot show prints.
type shownSnapshot struct {
	Snapshot   string           `json:"snapshot"`
	Verified   bool             `json:"verified"`
	Size       int              `json:"size"`
	Header     shownHeader      `json:"header"`
	Record     *shownRecord     `json:"record"`
	Signatures []shownSignature `json:"signatures"`
	Proof      *shownProof      `json:"proof"`
	Content    shownContent     `json:"content"`
}

func (r *Reading) data(parts []section, problem string) shownSnapshot {
	signers := make([]shownSignature, 0, internalsnapshot.MaxSignatures)
	for _, s := range r.signatures() {
		signers = append(signers, shownSignature{KeyID: s.KeyID, Algorithm: s.Algorithm})
	}
	var proof *shownProof
	if r.Signed.Publication != nil {
		proof = &shownProof{Index: r.Signed.Proof.Index, Hashes: len(r.Signed.Proof.Hashes)}
	}
	sections := make([]shownSection, 0, len(parts))
	for _, s := range parts {
		sections = append(sections, shownSection{Name: s.name, Size: len(s.value),
			Sha256: snapshot.DigestOf([]byte(s.value)).String()})
	}
	return shownSnapshot{
		Snapshot: r.Name, Verified: false, Size: len(r.raw), Header: ofHeader(r.Header()),
		Record:     ofRecord(r.claims.Record),
		Signatures: signers, Proof: proof,
		Content: shownContent{
			Size: len(r.Signed.Content), Sha256: snapshot.DigestOf(r.Signed.Content).String(),
			IsTheHeaders: r.contentMatches(),
			Sections:     sections, Problem: problem,
		},
	}
}

// contentMatches reports whether the content is the one that the header names.
func (r *Reading) contentMatches() bool {
	return len(r.Signed.Content) == r.Header().ContentSize &&
		snapshot.DigestOf(r.Signed.Content) == r.Header().ContentHash
}

func (r *Reading) show(p *term.Page, parts []section, problem string, now time.Time) error {
	h := r.Header()
	var f term.Facts
	f.Paint("not verified", term.Amber,
		p.Called("▲ this is what the file says of itself: fealty snapshot verify says whether it is true"))
	f.Add("scope", string(h.ScopeType))
	f.Add("subject", h.Subject.String())
	f.Add("cluster", h.ClusterID)
	f.Add("version", fmt.Sprintf("%d of authority epoch %d", h.ConfigVersion, h.AuthorityEpoch))
	if h.Base != nil {
		f.Add("follows", fmt.Sprintf("version %d with content %s", h.Base.ConfigVersion, h.Base.ContentHash))
	}
	f.Add("roles", strings.Join(h.Roles, ", "))
	f.Add("organizations", strings.Join(h.OrganizationIDs, ", "))
	f.Add("issued", h.IssuedAt.Format(time.RFC3339)+", "+humanize.Relative(h.IssuedAt, now))
	f.Add("expires", h.ExpiresAt.Format(time.RFC3339)+", "+humanize.Relative(h.ExpiresAt, now))
	if x := r.claims.Record; x != nil {
		f.Add("record", fmt.Sprintf("generation %d of authority epoch %d, over %s", x.Generation, x.AuthorityEpoch,
			humanize.Plural(int(min(x.TreeSize, internalsnapshot.MaxVersion)), "leaf", "leaves")))
		f.Add("fresh until", x.FreshUntil.Format(time.RFC3339)+", "+humanize.Relative(x.FreshUntil, now))
	}
	for _, s := range r.signatures() {
		f.Add("signed by", "key "+s.KeyID+", "+s.Algorithm)
	}
	if p.Wide {
		f.Add("snapshot id", h.SnapshotID)
		f.Add("valid from", h.ValidFrom.Format(time.RFC3339))
		f.Add("refresh after", h.RefreshAfter.Format(time.RFC3339))
		f.Add("content hash", h.ContentHash.String())
		if x := r.claims.Record; x != nil {
			f.Add("tree root", x.Root.String())
			f.Add("revocations", x.Revocations.String())
			f.Add("proof", fmt.Sprintf("header %d, %s", r.Signed.Proof.Index,
				humanize.Plural(len(r.Signed.Proof.Hashes), "hash", "hashes")))
		}
	}
	f.Add("size", fmt.Sprintf("%d bytes, %d of them content", len(r.raw), len(r.Signed.Content)))
	if !r.contentMatches() {
		f.Paint("content", term.Red, "✖ not the one that the header names")
	}
	f.Paint("content", term.Red, problem)
	if err := p.Facts(f); err != nil || len(parts) == 0 {
		return err
	}
	p.Line("")
	t := &term.Table{Columns: []term.Column{{Title: "SECTION", Least: 16}, {Title: "BYTES", Right: true},
		{Title: "SHA-256", Wide: true}}}
	for _, s := range parts {
		t.Add(term.Txt(s.name), term.Txt(strconv.Itoa(len(s.value))),
			term.Txt(snapshot.DigestOf([]byte(s.value)).String()))
	}
	return p.Table(t)
}

// A section is a part of a content that changes by itself: a member of the content's
// object or, where that is an object of records by name, one record.
type section struct {
	name  string
	value string // JSON
}

// sections returns the sections of the content, sorted by name, or what is wrong
// with it.
func (r *Reading) sections() ([]section, string) {
	members, err := objectOf(r.Signed.Content)
	if err != nil {
		return nil, "the content is no JSON object"
	}
	var out []section
	for _, name := range slices.Sorted(maps.Keys(members)) {
		records, err := objectOf(members[name])
		keyed := err == nil && len(records) > 0
		for _, v := range records {
			keyed = keyed && v[0] == '{'
		}
		if !keyed {
			out = append(out, section{name, string(members[name])})
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(records)) {
			out = append(out, section{name + "/" + key, string(records[key])})
		}
	}
	return out, ""
}

func objectOf(data []byte) (map[string]json.RawMessage, error) {
	var out map[string]json.RawMessage
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, err
	}
	if out == nil {
		return nil, errors.New("null is no object")
	}
	return out, nil
}

// An anchor is what a snapshot is verified against.
type anchor struct {
	name string // for people
	view state.TrustView
	// open are the checks that nobody can make without a node: they hold by
	// assumption.
	open map[int]string
}

func verify(c *program.CLI) *cobra.Command {
	var trust, configRoot, root, statement string
	cmd := c.Command(program.Command{
		Use: "verify SNAPSHOT", Short: "make the checks of a node on a snapshot",
		Long: `Make the twelve checks that a node makes before it uses a snapshot, and show each of them. The first ` +
			`that does
not hold refuses it, and the later ones are not made.

Against a node: the snapshot is verified with what the node of --data believes and has accepted, by its trust
bundle, marks and identity. The folder is only read, so that its agent can run meanwhile. The content that
the node has already is verified as at its start.

Against keys: --trust names a file with a trust bundle of the cluster, and --config-root the config root key
that has to have signed it, as 64 hex digits. Instead of the key, --root-pin gives the pin of the root, and
--root-statement the file in which the root says which config root key it has. A trust bundle itself needs no
--trust. A fact that depends on a node is taken as the snapshot says it, and is shown as assumed: whom it is for, and
that it accepted nothing newer.

` + ofSources,
		Sample: `  fealty snapshot verify route_policy.snap --data /var/lib/fealty/agent
  fealty snapshot verify route_policy.snap --trust trust_bundle.snap --root-pin PIN --root-statement root`,
		Groups: []settings.Group{settings.Snapshot, settings.Client}, Args: command.Exactly("SNAPSHOT"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			r, err := readSnapshot(ctx, c, cfg, args[0])
			if err != nil {
				return err
			}
			var a *anchor
			if trust+configRoot+root+statement == "" {
				a, err = nodeAnchor(c, cfg)
			} else {
				a, err = keyAnchor(c, cfg, r, trust, configRoot, root, statement)
			}
			if err != nil {
				return err
			}
			return verifySnapshot(c, r, a)
		},
	})
	cmd.Flags().StringVar(&trust, "trust", "", "a file with the trust bundle to verify with, instead of a node's")
	cmd.Flags().StringVar(&configRoot, "config-root", "", "the config root key of the cluster, 64 hex digits")
	command.RootPin(cmd.Flags(), &root, "the pin of the cluster's root, 64 hex digits; with --root-statement")
	cmd.Flags().StringVar(&statement, "root-statement", "", "a file with the root's statement on its config root key")
	return cmd
}

// nodeAnchor is the node of --data.
func nodeAnchor(c *program.CLI, cfg *settings.Values) (*anchor, error) {
	dir := cfg.Path("data")
	o, err := state.ReadTrustView(durable.OS(), dir, c.Env.Now())
	if err != nil {
		return nil, err
	}
	a := &anchor{name: fmt.Sprintf("%s, by its folder %s", o.Trust.Me, dir), view: o}
	if o.Lost {
		a.name += ", whose marks are lost: it takes nothing before a coordinator answered it"
	}
	return a, nil
}

// keyAnchor is what the keys that were given say, for the node that r says it is for.
func keyAnchor(c *program.CLI, cfg *settings.Values, r *Reading, trust, configRoot, root, statement string) (*anchor,
	error) {
	switch {
	case configRoot == "" && root == "":
		return nil, command.Missing("--config-root",
			"a trust bundle shows nothing by itself: it has to be said whose it is",
			"--config-root KEY, or --root-pin PIN with --root-statement FILE")
	case configRoot != "" && root+statement != "":
		return nil, errcode.New(errcode.BadValue, "name", "--config-root", "value",
			"given together with --root-pin or --root-statement", "problem", "they name two anchors", "want", "one of them")
	case root != "" && statement == "", root == "" && statement != "":
		return nil, command.Missing(map[bool]string{true: "--root-statement", false: "--root-pin"}[statement == ""],
			"the pin says which root, and the statement its config root key", "--root-pin PIN --root-statement FILE")
	}
	bundle := r
	if trust != "" {
		var err error
		raw, err := ReadBounded(c, cfg, trust, "trust bundle", internalsnapshot.MaxSigned)
		if err != nil {
			return nil, err
		}
		if bundle, err = ReadingOf(trust, raw); err != nil {
			return nil, err
		}
		if got := bundle.Header().ScopeType; got != snapshot.ScopeTrustBundle {
			return nil, errcode.New(errcode.BadValue, "name", "--trust", "value", trust, "problem",
				fmt.Sprintf("it is a snapshot of scope %s", got), "want", "a trust_bundle")
		}
	}
	if bundle.Header().ScopeType != snapshot.ScopeTrustBundle {
		return nil, command.Missing("--trust", "only a trust bundle is signed by the config root key itself",
			"--trust FILE")
	}
	key, err := RootKey(c, cfg, bundle, configRoot, root, statement)
	if err != nil {
		return nil, err
	}
	// Nobody's eyes: an identity of the cluster, until the snapshot says whose.
	me, err := identity.New(bundle.Header().ClusterID, identity.Data, "anyone")
	if err != nil {
		return nil, Unreadable(bundle.Name, "snapshot", err)
	}
	o := state.TrustView{Trust: snapshot.Trust{Me: me, Incarnation: identity.KeyID{1}, ConfigRoot: key}}
	if trust != "" {
		v, err := snapshot.Verify(bundle.Signed, o.Trust, snapshot.Marks{}, c.Env.Now())
		if err != nil {
			return nil, RefusedSnapshot(bundle, err)
		}
		o.Trust.Bundle = v
	}
	a := &anchor{name: "config root key " + hex.EncodeToString(key), open: map[int]string{
		8: "as for a node that accepted nothing of another epoch",
		9: "as for a node that accepted nothing newer",
	}}
	h := r.Header()
	if id, incarnation, ok := h.Subject.Node(); ok && id.Cluster() == me.Cluster() {
		o.Trust.Me, o.Trust.Incarnation = id, incarnation
		a.open[3] = "as for the node that it names"
	} else if h.Subject != snapshot.ClusterSubject() {
		a.open[3] = "as for a node of the group that it names"
	}
	if len(h.Roles)+len(h.OrganizationIDs) > 0 {
		o.Trust.Roles, o.Trust.Organizations = h.Roles, h.OrganizationIDs
		a.open[10] = "as for a node with the roles and organizations that it names"
	}
	a.view = o
	return a, nil
}

// RootKey returns the config root key that was given, or that the pinned root names.
func RootKey(c *program.CLI, cfg *settings.Values, bundle *Reading,
	configRoot, root, statement string) (ed25519.PublicKey, error) {
	if configRoot != "" {
		key, err := hex.DecodeString(configRoot)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return nil, errcode.New(errcode.BadValue, "name", "--config-root", "value", configRoot, "problem",
				"it is not 64 hex digits", "want", "an Ed25519 public key in hex")
		}
		return key, nil
	}
	pin, err := identity.ParseKeyID(root)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.BadValue, "name", "--root-pin", "value", root, "problem",
			"it is not 64 lower-case hex digits", "want", "the root pin that fealty status -o wide shows")
	}
	raw, err := ReadBounded(c, cfg, statement, "root statement", int64(internalsnapshot.MaxSignedRoot))
	if err != nil {
		return nil, err
	}
	// The certificate of the root comes with the bundle; its key is the pinned one, so
	// that it does not matter who brought it.
	cert, err := pinned(bundle.Signed.Content, pin)
	if err != nil {
		return nil, err
	}
	key, err := snapshot.VerifyRoot(raw, []*x509.Certificate{cert}, bundle.Header().ClusterID, c.Env.Now())
	switch {
	case errors.Is(err, snapshot.ErrMalformed):
		return nil, Unreadable(statement, "root statement", err)
	case err != nil:
		return nil, errcode.Wrap(err, errcode.SnapshotUnreadable, "sort", "root statement of the pinned root", "file",
			statement, "problem", rejection(err).Detail)
	}
	return key, nil
}

// pinned returns the root certificate in a trust bundle whose key is pin.
func pinned(content []byte, pin identity.KeyID) (*x509.Certificate, error) {
	var in struct {
		Roots [][]byte `json:"roots"`
	}
	if err := json.Unmarshal(content, &in); err == nil && len(in.Roots) <= internalidentity.MaxRoots {
		for _, der := range in.Roots {
			if cert, err := x509.ParseCertificate(der); err == nil && identity.KeyOf(cert) == pin {
				return cert, nil
			}
		}
	}
	return nil, errcode.New(errcode.BadValue, "name", "--root-pin", "value", pin.String(), "problem",
		"the trust bundle has no root with this key", "want", "the root pin of the cluster that the bundle is of")
}

func rejection(err error) *snapshot.RejectedError {
	if r, ok := errors.AsType[*snapshot.RejectedError](err); ok {
		return r
	}
	return &snapshot.RejectedError{Detail: err.Error()}
}

// RefusedSnapshot words err as the refusal of r.
func RefusedSnapshot(r *Reading, err error) error {
	rejected := rejection(err)
	check := "limits"
	if rejected.Check > 0 {
		check = strconv.Itoa(rejected.Check)
	}
	return errcode.Wrap(err, errcode.SnapshotRefused, "scope", string(r.Header().ScopeType), "version",
		r.Header().ConfigVersion,
		"check", fmt.Sprintf("%s (%s)", check, rejected.Reason), "problem", rejected.Detail, "reason",
		string(rejected.Reason))
}

// The results of a check.
const (
	checkHolds   = "ok"
	checkAssumed = "assumed"
	checkFails   = "refused"
	checkUnmade  = "not made"
)

// checkStep is one check as it went.
type checkStep struct {
	snapshot.Rule
	result, reason, detail string
}

// steps says how each check went, by the refusal, if there was one.
func (a *anchor) steps(err error) []checkStep {
	var refused *snapshot.RejectedError
	if err != nil {
		refused = rejection(err)
	}
	var out []checkStep
	over := false
	for i, rule := range snapshot.Rules() {
		o := checkStep{Rule: rule, result: checkHolds}
		switch {
		case over:
			o.result = checkUnmade
		// Of the two limits the first comes before the scope is known.
		case refused != nil && refused.Check == rule.Check && (rule.Check != 0 || (i == 0) == (refused.Scope == "")):
			o.result, o.reason, o.detail, over = checkFails, string(refused.Reason), refused.Detail, true
		case a.open[rule.Check] != "":
			o.result, o.detail = checkAssumed, a.open[rule.Check]
		}
		out = append(out, o)
	}
	return out
}

// shownCheck is how one check of a snapshot ended.
type shownCheck struct {
	Check  int    `json:"check"`
	Rule   string `json:"rule"`
	Source string `json:"source"`
	Result string `json:"result"`
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

// verifiedSnapshot is what fealty snapshot verify prints.
type verifiedSnapshot struct {
	Snapshot       string       `json:"snapshot"`
	Verified       bool         `json:"verified"`
	AcceptedBefore bool         `json:"accepted_before"`
	Against        string       `json:"against"`
	Scope          string       `json:"scope"`
	Subject        string       `json:"subject"`
	AuthorityEpoch uint64       `json:"authority_epoch"`
	ConfigVersion  uint64       `json:"config_version"`
	ContentHash    string       `json:"content_hash"`
	ExpiresAt      term.Moment  `json:"expires_at"`
	SignerKeyIDs   term.Texts   `json:"signer_key_ids"`
	Checks         []shownCheck `json:"checks"`
}

// verifySnapshot makes the checks, shows them, and returns the refusal.
func verifySnapshot(c *program.CLI, r *Reading, a *anchor) error {
	now := c.Env.Now()
	v, err := snapshot.Verify(r.Signed, a.view.Trust, a.view.Marks, now)
	held := false
	if err != nil && rejection(err).Reason == snapshot.ReasonUnchanged {
		v, err = snapshot.Recheck(r.Signed, a.view.Trust, a.view.Marks, now)
		held = err == nil
	}
	checks := a.steps(err)
	var keys []string
	if err == nil {
		keys = v.SignerKeyIDs()
	}
	rows := make([]shownCheck, 0, len(checks))
	for _, o := range checks {
		rows = append(rows, shownCheck{Check: o.Check, Rule: o.Name, Source: o.Source, Result: o.result,
			Reason: o.reason, Detail: o.detail})
	}
	h := r.Header()
	if printErr := c.Print(program.ResultOf(verifiedSnapshot{
		Snapshot: r.Name, Verified: err == nil, AcceptedBefore: held, Against: a.name,
		Scope: string(h.ScopeType), Subject: h.Subject.String(), AuthorityEpoch: h.AuthorityEpoch,
		ConfigVersion: h.ConfigVersion,
		ContentHash:   h.ContentHash.String(), ExpiresAt: term.Moment(h.ExpiresAt), SignerKeyIDs: keys, Checks: rows,
	}, func(p *term.Page) error {
		var f term.Facts
		what := fmt.Sprintf("%s, version %d of authority epoch %d", h.ScopeType, h.ConfigVersion, h.AuthorityEpoch)
		switch {
		case err != nil:
			f.Paint("refused", term.Red, "✖ it says that it is "+what)
		case held:
			f.Paint("verified", term.Green, "● "+what+", which the node accepted already")
		default:
			f.Paint("verified", term.Green, "● "+what)
		}
		f.Add("subject", h.Subject.String())
		f.Add("against", a.name)
		f.Add("signed by", strings.Join(keys, ", "))
		if err := p.Facts(f); err != nil {
			return err
		}
		p.Line("")
		t := &term.Table{Columns: []term.Column{{Title: "CHECK", Right: true}, {Title: "RULE"}, {Title: "RESULT"},
			{Title: "DETAIL", Least: 24}, {Title: "SOURCE", Wide: true}}}
		for _, o := range checks {
			number := "-"
			if o.Check > 0 {
				number = strconv.Itoa(o.Check)
			}
			look := map[string]term.Cell{checkHolds: term.Painted(term.Green, "● ok"),
				checkAssumed: term.Painted(term.Amber, "▲ assumed"), checkFails: term.Painted(term.Red,
					"✖ refused: "+o.reason), checkUnmade: term.Painted(term.Dim, "- not made")}[o.result]
			t.Add(term.Txt(number), term.Txt(o.Name), look, term.Txt(o.detail), term.Txt(o.Source))
		}
		return p.Table(t)
	})); printErr != nil {
		return printErr
	}
	if err != nil {
		return RefusedSnapshot(r, err)
	}
	return nil
}

func diff(c *program.CLI) *cobra.Command {
	var code bool
	cmd := c.Command(program.Command{
		Use: "diff OLD NEW", Short: "show which sections differ between two snapshots",
		Long: `Show what differs between two snapshots: in their headers and records, and which sections of the ` +
			`content were
added, changed or removed. Nothing is verified. With -o json the values of the sections are shown too.

` + ofSources + `

The exit status is 0 whether or not they differ. With --exit-code it is 1 if their contents do.`,
		Sample: `  fealty snapshot diff before.snap after.snap
  fealty snapshot diff saved.snap agent:route_policy --exit-code`,
		Groups: []settings.Group{settings.Snapshot, settings.Client}, Args: command.Exactly("OLD", "NEW"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			if args[0] == "-" && args[1] == "-" {
				return errcode.New(errcode.BadValue, "name", "NEW", "value", "-", "problem",
					"standard input can be read once", "want", "a file for one of them")
			}
			var both [2]*Reading
			for i := range both {
				var err error
				if both[i], err = readSnapshot(ctx, c, cfg, args[i]); err != nil {
					return err
				}
			}
			d, err := compare(both[0], both[1])
			if err != nil {
				return err
			}
			if err := c.Print(program.ResultOf(d.data(), d.show)); err != nil {
				return err
			}
			if code && len(d.sections) > 0 {
				return program.ExitWith(errcode.ExitFailed)
			}
			return nil
		},
	})
	cmd.Flags().BoolVar(&code, "exit-code", false, "exit with 1 if the contents differ")
	return cmd
}

// A difference is what two snapshots differ in.
type difference struct {
	old, new *Reading
	header   []changed
	sections []changed
}

// changed is one value on both sides; nil where there is none.
type changed struct {
	name   string
	before *string
	after  *string
}

func (x changed) word() string {
	switch {
	case x.before == nil:
		return "added"
	case x.after == nil:
		return "removed"
	}
	return "changed"
}

func compare(a, b *Reading) (*difference, error) {
	d := &difference{old: a, new: b}
	parts := make([][]section, 2)
	for i, r := range []*Reading{a, b} {
		var problem string
		if parts[i], problem = r.sections(); problem != "" {
			return nil, Unreadable(r.Name, "snapshot", errors.New(problem))
		}
	}
	d.sections = differing(parts[0], parts[1])
	d.header = differing(a.headerFields(), b.headerFields())
	return d, nil
}

// headerFields are header and record as names with values, in no order.
func (r *Reading) headerFields() []section {
	var out []section
	add := func(prefix string, of any) {
		text, err := json.Marshal(of)
		fields, wrong := objectOf(text)
		err = errors.Join(err, wrong)
		for name, value := range fields {
			var b strings.Builder
			err = errors.Join(err, term.WriteJSON(&b, value))
			out = append(out, section{prefix + name, strings.TrimSuffix(b.String(), "\n")})
		}
		if err != nil {
			panic("snapshot: " + err.Error())
		}
	}
	add("", ofHeader(r.Header()))
	if record := ofRecord(r.claims.Record); record != nil {
		add("record.", record)
	}
	for i, s := range r.signatures() {
		out = append(out, section{fmt.Sprintf("signature.%d", i+1), s.KeyID})
	}
	return out
}

// differing returns what differs, sorted by name.
func differing(before, after []section) []changed {
	all := make(map[string]changed)
	for _, s := range before {
		all[s.name] = changed{name: s.name, before: &s.value}
	}
	for _, s := range after {
		x := all[s.name]
		x.name, x.after = s.name, &s.value
		all[s.name] = x
	}
	var out []changed
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if x := all[name]; x.before == nil || x.after == nil || *x.before != *x.after {
			out = append(out, x)
		}
	}
	return out
}

// shownValue is a value on both sides; null where there is none.
type shownValue struct {
	Name   string  `json:"name"`
	Change string  `json:"change"`
	Before *string `json:"before"`
	After  *string `json:"after"`
}

// shownDifference is what fealty snapshot diff prints.
type shownDifference struct {
	Old            string       `json:"old"`
	New            string       `json:"new"`
	Verified       bool         `json:"verified"`
	ContentDiffers bool         `json:"content_differs"`
	Header         []shownValue `json:"header"`
	Sections       []shownValue `json:"sections"`
}

func (d *difference) data() shownDifference {
	values := func(in []changed) []shownValue {
		out := make([]shownValue, 0, len(in))
		for _, x := range in {
			out = append(out, shownValue{x.name, x.word(), x.before, x.after})
		}
		return out
	}
	return shownDifference{
		Old: d.old.Name, New: d.new.Name, Verified: false, ContentDiffers: len(d.sections) > 0,
		Header: values(d.header), Sections: values(d.sections),
	}
}

func (d *difference) show(p *term.Page) error {
	if len(d.sections) == 0 {
		p.Line("the contents are the same")
	} else {
		t := &term.Table{Columns: []term.Column{{Title: ""}, {Title: "SECTION", Least: 16}, {Title: "CHANGE"},
			{Title: "BYTES BEFORE", Right: true}, {Title: "AFTER", Right: true}}}
		size := func(s *string) string {
			if s == nil {
				return "-"
			}
			return strconv.Itoa(len(*s))
		}
		for _, x := range d.sections {
			sign := map[string]term.Cell{"added": term.Painted(term.Green, "+"), "removed": term.Painted(term.Red,
				"-"), "changed": term.Painted(term.Amber, "~")}[x.word()]
			t.Add(sign, term.Txt(x.name), term.Txt(x.word()), term.Txt(size(x.before)), term.Txt(size(x.after)))
		}
		if err := p.Table(t); err != nil {
			return err
		}
	}
	if len(d.header) == 0 {
		return nil
	}
	p.Heading("header and record")
	t := &term.Table{Columns: []term.Column{{Title: "FIELD"}, {Title: "BEFORE", Least: 20}, {Title: "AFTER",
		Least: 20}}}
	text := func(s *string) string {
		if s == nil {
			return "-"
		}
		return strings.Trim(*s, `"`)
	}
	for _, x := range d.header {
		t.Add(term.Txt(x.name), term.Txt(text(x.before)), term.Txt(text(x.after)))
	}
	return p.Table(t)
}
