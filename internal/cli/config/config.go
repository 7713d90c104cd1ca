// Package config has the commands over the desired config.
package config

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	manifestpkg "github.com/fealty-io/fealty/internal/cli/manifest"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	desired "github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

func Command(c *program.CLI) *cobra.Command {
	return program.Group("config", "put, read and delete the desired config", put(c), get(c), list(c),
		configDelete(c))
}

func kindWords() []string {
	var out []string
	for _, k := range desired.Kinds() {
		out = append(out, string(k))
	}
	return out
}

func put(c *program.CLI) *cobra.Command {
	var file string
	var dry bool
	var version uint64
	cmd := c.Command(program.Command{
		Use: "put [FILE]", Short: "put records of the desired config",
		Long: `Put records of the desired config: all that are given, or none. A record that is there already is ` +
			`left as it is, and said so.

FILE, or --file, names a file of YAML documents or JSON, a folder whose *.yaml, *.yml and *.json are read in the
order of their names, or - for standard input. Everything is checked before a coordinator is asked, and again by it: form,
references, and that nothing looks like a secret. fealty explain KIND shows the fields of a kind.

--dry-run shows what would change. --expect-version is refused if somebody else changed the config since.`,
		Sample: `  fealty config put -f web.yaml --dry-run
  fealty config put -f config/
  fealty config get service web -o yaml | sed s/v1/v2/ | fealty config put -f -`,
		Groups: []settings.Group{settings.Client}, Args: command.AtMostOne("FILE"),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			switch {
			case len(args) == 1 && file != "":
				return command.ConflictingFlags("FILE", "given together with --file", "one of them")
			case len(args) == 1:
				file = args[0]
			}
			if file == "" {
				return command.Missing("--file", "there is nothing to put",
					"--file FILE, a folder, or - for standard input")
			}
			docs, err := readRecords(c, cfg, file)
			if err != nil {
				return err
			}
			req := &fealtyv1.PutConfigRequest{ExpectedVersion: version, DryRun: dry}
			for _, d := range docs {
				req.Records = append(req.Records, desired.Encode(d.Record))
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Config.PutConfig(ctx, req)
				if err != nil {
					return placed(err, docs)
				}
				return printChanges(c, resp.GetChanges(), resp.GetVersion(), dry)
			})
		},
	})
	cmd.Flags().StringVarP(&file, "file", "f", "", "FILE, folder or -: the records")
	expectVersion(cmd, &version)
	command.DryRun(cmd.Flags(), &dry)
	return cmd
}

func expectVersion(cmd *cobra.Command, version *uint64) {
	cmd.Flags().Uint64Var(version, "expect-version", 0,
		"change nothing unless the config is at this version, as get and list show it (default: any)")
}

// shownConfig is what fealty config get prints as JSON, and listedConfig what list does. A
// record has the fields of its kind.
type (
	shownConfig struct {
		Version uint64      `json:"version"`
		Record  term.Object `json:"record"`
	}
	listedConfig struct {
		Version uint64 `json:"version"`
		Records []any  `json:"records"`
	}
)

func get(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "get KIND NAME", Short: "print a record of the desired config",
		Long: `Print a record of the desired config, as YAML that fealty config put takes. With --output json it ` +
			`stands in an object
beside the version of the config.`,
		Sample: `  fealty config get service web
  fealty config get service web -o yaml > web.yaml`,
		Groups: []settings.Group{settings.Client}, Args: command.Exactly("KIND", "NAME"), Words: kindWords(),
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			if err := checkKind(args[0]); err != nil {
				return err
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Config.GetConfig(ctx, &fealtyv1.GetConfigRequest{Kind: args[0], Name: args[1]})
				if err != nil {
					return err
				}
				record, err := recordObject(resp.GetRecord().GetRecord())
				if err != nil {
					return err
				}
				if c.Format == term.JSON {
					return c.Print(program.Result{Data: shownConfig{resp.GetVersion(), record}})
				}
				// Without the mark that other output has: it is to be put again.
				return term.WriteYAML(c.Env.Stdout, record)
			})
		},
	})
}

func list(c *program.CLI) *cobra.Command {
	return c.Command(program.Command{
		Use: "list [KIND]", Short: "list the records of the desired config",
		Sample: `  fealty config list
  fealty config list service`,
		Groups: []settings.Group{settings.Client}, Args: command.AtMostOne("KIND"), Words: kindWords(), Names: true,
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			req := &fealtyv1.ListConfigRequest{}
			if len(args) == 1 {
				if err := checkKind(args[0]); err != nil {
					return err
				}
				req.Kind = args[0]
			}
			return c.Ask(cfg, func(s *client.Services) error {
				records, version, err := listConfig(ctx, s, req)
				if err != nil {
					return err
				}
				var recordNames []string
				items := []any{}
				t := &term.Table{Columns: []term.Column{{Title: "KIND"}, {Title: "NAME", Least: 8},
					{Title: "ORGANIZATION"}, {Title: "ROLES"}, {Title: "SHA-256", Wide: true}}}
				for _, m := range records {
					r, err := readRecord(m.GetRecord())
					if err != nil {
						return err
					}
					items = append(items, nodeValue(desired.Node(r)))
					recordNames = append(recordNames, m.GetKind()+"/"+m.GetName())
					base := r.Base()
					t.Add(term.Txt(m.GetKind()), term.Txt(m.GetName()), term.Txt(command.Dash(base.Organization)),
						term.Txt(command.Dash(strings.Join(base.Roles, ","))), term.Txt(sum(m.GetRecord())))
				}
				return c.PrintList(recordNames, program.ResultOf(listedConfig{version, items},
					func(p *term.Page) error {
						if err := p.Table(t); err != nil {
							return err
						}
						c.Say("%s, version %d", humanize.Plural(len(records), "record", "records"), version)
						return nil
					}))
			})
		},
	})
}

// sum returns the SHA-256 of a record, which the audit log has too.
func sum(record []byte) string {
	h := sha256.Sum256(record)
	return hex.EncodeToString(h[:])
}

// listConfig reads all pages. Pages of several versions are not one config, so it
// begins again if a write comes in between.
func listConfig(ctx context.Context, s *client.Services, req *fealtyv1.ListConfigRequest) ([]*fealtyv1.ConfigRecord,
	uint64, error) {
	const tries = 5
	for range tries {
		var out []*fealtyv1.ConfigRecord
		var version uint64
		req.PageToken = ""
		for {
			resp, err := s.Config.ListConfig(ctx, req)
			if err != nil {
				return nil, 0, err
			}
			if len(out) > 0 && resp.GetVersion() != version {
				break
			}
			version = resp.GetVersion()
			out = append(out, resp.GetRecords()...)
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				return out, version, nil
			}
		}
	}
	return nil, 0, errcode.New(errcode.StoreBusy, "what", "list the config", "tries", tries)
}

func configDelete(c *program.CLI) *cobra.Command {
	var dry bool
	var version uint64
	cmd := c.Command(program.Command{
		Use: "delete KIND NAME…", Short: "delete records of the desired config",
		Long: `Delete records of one kind of the desired config: all that are named, or none. A record that ` +
			`others refer to is not deleted; the message names those.`,
		Sample: `  fealty config delete route shop
  fealty config delete peer db-1 db-2 --dry-run`,
		Groups: []settings.Group{settings.Client}, Words: kindWords(),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return command.Exactly("KIND", "NAME")(cmd, args)
			}
			return nil
		},
		Run: func(ctx context.Context, cfg *settings.Values, args []string) error {
			if err := checkKind(args[0]); err != nil {
				return err
			}
			req := &fealtyv1.DeleteConfigRequest{ExpectedVersion: version, DryRun: dry}
			for _, name := range args[1:] {
				req.Records = append(req.Records, &fealtyv1.ConfigRecord{Kind: args[0], Name: name})
			}
			return c.Ask(cfg, func(s *client.Services) error {
				resp, err := s.Config.DeleteConfig(ctx, req)
				if err != nil {
					return err
				}
				return printChanges(c, resp.GetChanges(), resp.GetVersion(), dry)
			})
		},
	})
	expectVersion(cmd, &version)
	command.DryRun(cmd.Flags(), &dry)
	return cmd
}

func checkKind(kind string) error {
	if slices.Contains(kindWords(), kind) {
		return nil
	}
	want := "one of " + strings.Join(kindWords(), ", ")
	return errcode.New(errcode.BadValue, "name", "KIND", "value", command.ShownArg(kind), "problem",
		command.JoinText("it is no kind of record", humanize.Suggest(kind, kindWords())), "want", want)
}

// A sourceRecord is a record with the file that it stands in.
type sourceRecord struct {
	*desired.Document
	file string
}

// readRecords reads all records of a file, a folder or standard input. The error is
// of the first file that is not right.
func readRecords(c *program.CLI, cfg *settings.Values, name string) ([]sourceRecord, error) {
	files := []string{name}
	if name != "-" {
		path := cfg.Within(name)
		files = []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			if files, err = recordFiles(path); err != nil {
				return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "folder of config records", "file", name)
			}
		}
	}
	var out []sourceRecord
	for _, file := range files {
		var data []byte
		var err error
		if file == "-" {
			data, err = command.ReadAll(c.Env.Stdin, desired.MaxText)
		} else {
			data, err = render.ReadFile(file, desired.MaxText)
		}
		if errors.Is(err, render.ErrTooLarge) {
			return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "file of config records", "file", file,
				"do", "divide it into files that are put one after the other")
		}
		if err != nil {
			return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "file of config records", "file", file)
		}
		docs, err := desired.Decode(data)
		if invalid, ok := errors.AsType[*desired.InvalidError](err); ok {
			return nil, invalidRecords(c, file, invalid)
		}
		if err != nil {
			return nil, err
		}
		for _, d := range docs {
			k := desired.KeyOf(d.Record)
			if i := slices.IndexFunc(out, func(o sourceRecord) bool { return desired.KeyOf(o.Record) == k }); i >= 0 {
				return nil, errcode.New(errcode.ConfigInvalid, "file", name, "count", 1, "problem",
					fmt.Sprintf("%s:%d: %s stands in %s:%d too", file, d.Place.Line, k, out[i].file, out[i].Place.Line))
			}
			out = append(out, sourceRecord{d, file})
		}
	}
	if n := len(out); n == 0 || n > desired.MaxBatch {
		return nil, errcode.New(errcode.ConfigInvalid, "file", name, "count", 1, "problem",
			fmt.Sprintf("there are %d records, and 1 to %d are put at a time", n, desired.MaxBatch))
	}
	return out, nil
}

// recordFiles returns the files of a folder that hold records, sorted.
func recordFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, render.Bare(err)
	}
	var out []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".yml", ".json":
			if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
				out = append(out, filepath.Join(dir, e.Name()))
			}
		}
	}
	return out, nil
}

// invalidRecords shows every problem of a file, and returns the error of the first.
func invalidRecords(c *program.CLI, file string, e *desired.InvalidError) error {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = recordProblem(file, p)
	}
	if c.Format != term.JSON && c.Format != term.YAML {
		for _, line := range lines[1:] {
			c.Say("%s", line)
		}
	}
	return errcode.Wrap(e, errcode.ConfigInvalid, "file", file, "count", len(lines), "problem", lines[0], "problems",
		strings.Join(lines, "\n"))
}

func recordProblem(file string, p *desired.Problem) string {
	about := p.Field
	if p.Record != (desired.Key{}) {
		about = strings.TrimSpace(p.Record.String() + " " + p.Field)
	}
	where := p.Problem
	where.Field = about
	return manifestpkg.ProblemLine(file, &where)
}

// placed adds to a coordinator's refusal where the record and the field stand that
// it is about.
func placed(err error, docs []sourceRecord) error {
	e := errcode.Of(err)
	if e.Code != errcode.ConfigInvalid {
		return err
	}
	for _, d := range docs {
		if desired.KeyOf(d.Record).String() != e.Fields["record"] {
			continue
		}
		at := d.At(e.Fields["field"])
		return errcode.Wrap(err, e.Code, "file", d.file, "count", e.Fields["count"], "record", e.Fields["record"],
			"field", e.Fields["field"],
			"problem", fmt.Sprintf("%s:%d:%d: %s", d.file, at.Line, at.Column, e.Fields["problem"]))
	}
	return err
}

// readRecord reads a record that a coordinator sent.
func readRecord(raw []byte) (desired.Record, error) {
	r, err := desired.DecodeCanonical(raw)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.Internal, "what",
			"reading a record that the coordinator sent, which may be of another release")
	}
	return r, nil
}

func recordObject(raw []byte) (term.Object, error) {
	r, err := readRecord(raw)
	if err != nil {
		return nil, err
	}
	// Kind and name first, as people write them.
	o := nodeValue(desired.Node(r)).(term.Object)
	slices.SortStableFunc(o, func(a, b term.Member) int { return cmp.Compare(headOrder(a.Name), headOrder(b.Name)) })
	return o, nil
}

func headOrder(name string) int {
	if i := slices.Index([]string{"kind", "name", "organization", "roles"}, name); i >= 0 {
		return i
	}
	return 4
}

// nodeValue turns a document into what output is made of.
func nodeValue(n *document.Node) any {
	switch n.Kind {
	case document.Object:
		out := term.Object{}
		for _, f := range n.Fields {
			out = append(out, term.Member{Name: f.Name, Value: nodeValue(f.Value)})
		}
		return out
	case document.List:
		out := []any{}
		for _, item := range n.Items {
			out = append(out, nodeValue(item))
		}
		return out
	case document.Int:
		i, _ := strconv.ParseInt(n.Text, 10, 64) // as it was read before
		return i
	case document.Bool:
		return n.Text == "true"
	}
	return n.Text
}

// A recordChange is what a write does to one record.
type recordChange struct {
	record, action string
	fields         []fieldChange
}

// A fieldChange is a value before and after; blank: there is none.
type fieldChange struct{ field, before, after string }

// changedField is a field of a record before and after a change.
type changedField struct {
	Field  string `json:"field"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// changedRecord is what a change does to a record.
type changedRecord struct {
	Record string         `json:"record"`
	Action string         `json:"action"`
	Fields []changedField `json:"fields"`
}

// configChanges is what changes of the config print.
type configChanges struct {
	Version uint64          `json:"version"`
	Changed bool            `json:"changed"`
	Changes []changedRecord `json:"changes"`
}

func printChanges(c *program.CLI, changes []*fealtyv1.ConfigChange, version uint64, dry bool) error {
	var all []recordChange
	items := []changedRecord{}
	n := 0
	for _, m := range changes {
		x, err := changeOf(m)
		if err != nil {
			return err
		}
		if x.action != "unchanged" {
			n++
		}
		all = append(all, x)
		fields := []changedField{}
		for _, f := range x.fields {
			fields = append(fields, changedField{Field: f.field, Before: f.before, After: f.after})
		}
		items = append(items, changedRecord{Record: x.record, Action: x.action, Fields: fields})
	}
	if dry {
		c.Planned(humanize.Plural(n, "record", "records") + " would change")
	}
	return c.Print(program.ResultOf(configChanges{Version: version, Changed: n > 0, Changes: items},
		func(p *term.Page) error {
			for _, x := range all {
				p.Line("%s %s", x.action, x.record)
				for _, f := range x.fields {
					switch {
					case x.action != "changed" && !dry:
					case f.before == "":
						p.Line("  + %s: %s", f.field, f.after)
					case f.after == "":
						p.Line("  - %s: %s", f.field, f.before)
					default:
						p.Line("  ~ %s: %s -> %s", f.field, f.before, f.after)
					}
				}
			}
			if !dry {
				c.Say("%s changed, version %d", humanize.Plural(n, "record", "records"), version)
			}
			return nil
		}))
}

func changeOf(m *fealtyv1.ConfigChange) (recordChange, error) {
	x := recordChange{record: m.GetKind() + "/" + m.GetName(), action: "changed"}
	var before, after map[string]string
	for _, side := range []struct {
		raw []byte
		out *map[string]string
	}{{m.GetBefore(), &before}, {m.GetAfter(), &after}} {
		*side.out = map[string]string{}
		if len(side.raw) == 0 {
			continue
		}
		r, err := readRecord(side.raw)
		if err != nil {
			return x, err
		}
		flatten(desired.Node(r), "", *side.out)
	}
	switch {
	case len(before) == 0:
		x.action = "added"
	case len(after) == 0:
		x.action = "deleted"
	case string(m.GetBefore()) == string(m.GetAfter()):
		x.action = "unchanged"
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(command.SortedKeys(before),
		command.SortedKeys(after)...)))) {
		if name != "kind" && name != "name" && before[name] != after[name] {
			x.fields = append(x.fields, fieldChange{name, before[name], after[name]})
		}
	}
	return x, nil
}

// flatten writes the values of a document by their paths.
func flatten(n *document.Node, path string, out map[string]string) {
	switch {
	case n.Kind == document.Object:
		for _, f := range n.Fields {
			flatten(f.Value, document.Join(path, f.Name), out)
		}
	case n.Kind == document.List && slices.ContainsFunc(n.Items,
		func(i *document.Node) bool { return i.Kind == document.Object }):
		for i, item := range n.Items {
			flatten(item, fmt.Sprintf("%s[%d]", path, i), out)
		}
	case n.Kind == document.List:
		var items []string
		for _, item := range n.Items {
			items = append(items, term.Quote(item.Text))
		}
		out[path] = "[" + strings.Join(items, ", ") + "]"
	case n.Kind == document.String:
		out[path] = term.Quote(n.Text)
	default:
		out[path] = n.Text
	}
}
