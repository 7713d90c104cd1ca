package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/failure"
	"github.com/fealty-io/fealty/internal/output"
	"github.com/fealty-io/fealty/internal/slip"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/term"
)

// maxConfigBytes bounds a configuration file.
const maxConfigBytes = 1 << 20

// config is the settings in force for one command, and where each is from.
type config struct {
	dir    string
	values []value
}

// value is a setting in force.
type value struct {
	*setting
	text string // blank: not set, and no default
	from string // "--listen", "FEALTY_LISTEN", "fealty.yaml:3" or "default"
	rank rank
}

// rank orders the places that settings come from.
type rank int

const (
	fromDefault rank = iota
	fromFile
	fromEnvironment
	fromFlag
)

func (c *config) find(key string) value {
	i := slices.IndexFunc(c.values, func(v value) bool { return v.key == key })
	if i < 0 {
		panic("cli: setting " + key + " is not one of this command")
	}
	return c.values[i]
}

// text returns a value as it was written.
func (c *config) text(key string) string { return c.find(key).text }

// path returns a path, absolute or relative to the folder of the process; "" if
// it is not set.
func (c *config) path(key string) string { return c.within(c.text(key)) }

// within returns path as seen from the folder of the process.
func (c *config) within(path string) string {
	if path == "" || filepath.IsAbs(path) || c.dir == "" {
		return path
	}
	return filepath.Join(c.dir, path)
}

// list returns the items of a value.
func (c *config) list(key string) []string {
	text := c.text(key)
	if text == "" {
		return nil
	}
	items := strings.Split(text, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}

// duration returns a value that was checked to be one.
func (c *config) duration(key string) time.Duration {
	d, err := parseDuration(c.text(key))
	if err != nil {
		panic("cli: setting " + key + " was not checked: " + err.Error())
	}
	return d
}

// number returns a value that was checked to be one.
func (c *config) number(key string) int {
	n, err := strconv.Atoi(c.text(key))
	if err != nil {
		panic("cli: setting " + key + " was not checked: " + err.Error())
	}
	return n
}

// load finds the settings of groups: flags before the environment, that before
// the file, that before the defaults. Names that nobody knows are errors, also
// those that this command would not use.
func (c *CLI) load(cmd *cobra.Command, groups ...group) (*config, error) {
	groups = append(groups, everywhere)
	if err := c.checkEnvironment(); err != nil {
		return nil, err
	}
	out := &config{dir: c.env.Dir}
	file := &configFile{}
	find := func(s *setting) (value, error) {
		if s.hasFlag() {
			if f, ok := cmd.Flag(s.flag()).Value.(*flagValue); ok && f.set {
				return value{s, f.text, "--" + s.flag(), fromFlag}, nil
			}
		}
		if text := c.getenv(s.env()); text != "" {
			if problem := s.check(text); problem != "" {
				return value{}, badSetting(s, s.env(), problem)
			}
			return value{s, text, s.env(), fromEnvironment}, nil
		}
		if e, ok := file.entries[s.key]; ok && s.inFile() {
			from := fmt.Sprintf("%s:%d", file.name, e.line)
			if problem := s.check(e.text); problem != "" {
				return value{}, badSetting(s, from, problem)
			}
			return value{s, e.text, from, fromFile}, nil
		}
		return value{s, s.init, "default", fromDefault}, nil
	}
	// The file first: it is named by a setting that cannot be in it.
	for _, s := range settingsOf(everywhere) {
		if s.key != "config" {
			continue
		}
		v, err := find(s)
		if err != nil {
			return nil, err
		}
		if v.text == "" {
			continue
		}
		if file, err = readConfig(out.within(v.text), v.text); err != nil {
			return nil, err
		}
	}
	for _, s := range settingsOf(groups...) {
		v, err := find(s)
		if err != nil {
			return nil, err
		}
		out.values = append(out.values, v)
	}
	c.format = output.Format(out.text("output"))
	return out, nil
}

func badSetting(s *setting, from, problem string) error {
	return explain.New(explain.BadSetting, "from", from, "key", s.key, "problem", problem+": it takes "+s.want())
}

// serviceLinks are variables that Kubernetes sets in every pod beside a service
// called fealty. They configure nothing.
var serviceLinks = regexp.MustCompile(`^FEALTY(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// checkEnvironment refuses variables that look like settings and are none.
func (c *CLI) checkEnvironment() error {
	names := []string{etcd.PasswordVariable}
	for _, s := range settings() {
		names = append(names, s.env())
	}
	for _, kv := range c.env.Environ {
		name, text, _ := strings.Cut(kv, "=")
		// A blank variable is one that is not set, as everywhere here.
		if !strings.HasPrefix(name, "FEALTY_") || text == "" || slices.Contains(names, name) || serviceLinks.MatchString(name) {
			continue
		}
		return unknownKey("the environment", name, slip.Guess(name, names))
	}
	return nil
}

func unknownKey(place, key, guess string) error {
	pairs := []any{"place", place, "key", key}
	if guess != "" {
		pairs = append(pairs, "guess", guess)
	}
	return explain.New(explain.UnknownKey, pairs...)
}

// configFile is a file of settings that was read.
type configFile struct {
	name    string // as the user named it
	entries map[string]configEntry
}

type configEntry struct {
	text string
	line int
}

// readConfig reads a file of settings: one level of keys with scalars, or lists
// of them, and nothing else of YAML.
func readConfig(path, name string) (*configFile, error) {
	data, err := failure.ReadFile(path, maxConfigBytes)
	if err != nil {
		return nil, explain.Wrap(err, explain.FileMissing, "purpose", "the configuration file", "file", name)
	}
	return parseConfig(data, name)
}

func parseConfig(data []byte, name string) (_ *configFile, err error) {
	// The YAML library is given what people wrote; what breaks it is their file.
	defer func() {
		if p := recover(); p != nil {
			err = badFile(name, 1, "it is not YAML")
		}
	}()
	out := &configFile{name: name, entries: make(map[string]configEntry)}
	parsed, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		if s, ok := errors.AsType[*yaml.SyntaxError](err); ok && s.Token != nil {
			return nil, badFile(name, s.Token.Position.Line, "it is not YAML: "+s.Message)
		}
		return nil, badFile(name, 1, "it is not YAML")
	}
	if len(parsed.Docs) > 1 && parsed.Docs[1].Body != nil {
		return nil, badFile(name, parsed.Docs[1].Body.GetToken().Position.Line, "a second document begins")
	}
	if len(parsed.Docs) == 0 || parsed.Docs[0].Body == nil {
		return out, nil
	}
	body := parsed.Docs[0].Body
	var pairs []*ast.MappingValueNode
	switch n := body.(type) {
	case *ast.MappingNode:
		pairs = n.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	case *ast.NullNode, *ast.CommentGroupNode:
		return out, nil
	default:
		return nil, badFile(name, lineOf(body), "it is not a list of settings: write each as KEY: VALUE")
	}
	for _, pair := range pairs {
		if err := out.take(pair); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *configFile) take(pair *ast.MappingValueNode) error {
	line := lineOf(pair.Key)
	key, ok := pair.Key.(*ast.StringNode)
	if !ok {
		return badFile(f.name, line, "a key is not a plain word")
	}
	if !slices.ContainsFunc(settings(), func(s *setting) bool { return s.key == key.Value && s.inFile() }) {
		return unknownKey(fmt.Sprintf("%s:%d", f.name, line), key.Value, slip.Guess(key.Value, fileKeys()))
	}
	if before, twice := f.entries[key.Value]; twice {
		return badFile(f.name, line, fmt.Sprintf("%s stands in line %d already", key.Value, before.line))
	}
	text, problem := scalarText(pair.Value)
	if items, ok := pair.Value.(*ast.SequenceNode); ok && problem != "" {
		var parts []string
		problem = ""
		for _, item := range items.Values {
			part, p := scalarText(item)
			if p != "" || strings.Contains(part, ",") {
				problem = "an item of the list is not a plain value"
			}
			parts = append(parts, part)
		}
		if text = strings.Join(parts, ","); len(parts) > 1 && !slices.ContainsFunc(settings(), func(s *setting) bool { return s.key == key.Value && s.list() }) {
			problem = "it is one value and not a list"
		}
	}
	if problem != "" {
		return explain.New(explain.BadSetting, "from", fmt.Sprintf("%s:%d", f.name, line), "key", key.Value, "problem", problem)
	}
	f.entries[key.Value] = configEntry{text, line}
	return nil
}

// scalarText returns a scalar as it was written.
func scalarText(n ast.Node) (text, problem string) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, ""
	case *ast.LiteralNode:
		return strings.TrimSpace(n.Value.Value), ""
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, ""
	case *ast.NullNode:
		return "", "it has no value"
	}
	return "", "it is not a plain value"
}

func lineOf(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != (*token.Position)(nil) {
		return t.Position.Line
	}
	return 1
}

func fileKeys() []string {
	var keys []string
	for _, s := range settings() {
		if s.inFile() {
			keys = append(keys, s.key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func badFile(name string, line int, problem string) error {
	return explain.New(explain.BadSetting, "from", fmt.Sprintf("%s:%d", name, line), "problem", problem)
}

// printConfig shows what is in force.
func (c *CLI) printConfig(cfg *config) error {
	items := make(list, 0, len(cfg.values))
	t := &term.Table{Columns: []term.Column{{Title: "SETTING"}, {Title: "VALUE", Least: 20}, {Title: "FROM"},
		{Title: "MEANING", Wide: true}}}
	for _, v := range cfg.values {
		text := v.setting.shown(v.text)
		shown, meaning := text, v.help
		if shown == "" {
			shown, meaning = "-", v.zero
		}
		t.Add(term.Txt(v.key), term.Txt(shown), term.Txt(v.from), term.Txt(meaning))
		items = append(items, object{{"key", v.key}, {"value", text}, {"from", v.from}})
	}
	return c.print(result{object{{"settings", items}}, func(p *term.Page) error { return p.Table(t) }})
}
