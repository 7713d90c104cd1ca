// Package settings reads the settings of a command from flags, the environment, a file and
// defaults, and says where each came from.
package settings

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/store/etcd"
)

// MaxFileBytes bounds a configuration file.
const MaxFileBytes = 1 << 20

// Values are the settings in force for one command, and where each is from.
type Values struct {
	dir     string
	again   func() (*Values, error)
	InForce []Value // in the order of the table
}

// Again finds the same settings anew: the file may say something else now. The earlier values stay as they are.
func (c *Values) Again() (*Values, error) { return c.again() }

// Value is a setting in force.
type Value struct {
	*Setting
	Text string // blank: not set, and no default
	From string // "--listen", "FEALTY_LISTEN", "fealty.yaml:3" or "default"
	Rank Rank
}

// Rank orders the places that settings come from.
type Rank int

// The places, from the one that counts least.
const (
	FromDefault Rank = iota
	FromFile
	FromEnvironment
	FromFlag
)

// Find returns a setting with where it is from. It panics, as all that take a key do, if none of the
// groups that were loaded has it.
func (c *Values) Find(key string) Value {
	i := slices.IndexFunc(c.InForce, func(v Value) bool { return v.Key == key })
	if i < 0 {
		panic("settings: setting " + key + " is not one of this command")
	}
	return c.InForce[i]
}

// Has reports whether a setting is one of this command.
func (c *Values) Has(key string) bool {
	return slices.ContainsFunc(c.InForce, func(v Value) bool { return v.Key == key })
}

// Text returns a value as it was written.
func (c *Values) Text(key string) string { return c.Find(key).Text }

// Path returns a path, absolute or relative to the folder of the process; "" if
// it is not set.
func (c *Values) Path(key string) string { return c.Within(c.Text(key)) }

// Within returns path as seen from the folder of the process.
func (c *Values) Within(path string) string {
	if path == "" || filepath.IsAbs(path) || c.dir == "" {
		return path
	}
	return filepath.Join(c.dir, path)
}

// List returns the items of a value.
func (c *Values) List(key string) []string {
	text := c.Text(key)
	if text == "" {
		return nil
	}
	items := strings.Split(text, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}

// Duration returns a value that was checked to be one.
func (c *Values) Duration(key string) time.Duration {
	d, err := ParseDuration(c.Text(key))
	if err != nil {
		panic("settings: setting " + key + " was not checked: " + err.Error())
	}
	return d
}

// Number returns a value that was checked to be one.
func (c *Values) Number(key string) int {
	n, err := strconv.Atoi(c.Text(key))
	if err != nil {
		panic("settings: setting " + key + " was not checked: " + err.Error())
	}
	return n
}

// Origin is where settings come from.
type Origin struct {
	Dir     string                        // that relative paths start from; blank: that of the process
	Environ []string                      // as NAME=value
	Flag    func(name string) *pflag.Flag // one of those that addSettings made
}

// Load finds the settings of groups: flags before the environment, that before
// the file, that before the defaults. Names that nobody knows are errors, also
// those that nothing here would use.
func Load(at Origin, groups ...Group) (*Values, error) {
	groups = append(slices.Clip(groups), Everywhere)
	if err := checkEnvironment(at.Environ); err != nil {
		return nil, err
	}
	out := &Values{dir: at.Dir, again: func() (*Values, error) { return Load(at, groups...) }}
	file := &File{}
	find := func(s *Setting) (Value, error) {
		if s.HasFlag() {
			if f, ok := at.Flag(s.Flag()).Value.(*flagValue); ok && f.set {
				return Value{s, f.text, "--" + s.Flag(), FromFlag}, nil
			}
		}
		for _, key := range s.keys() {
			name := envOf(key)
			if text := Getenv(at.Environ, name); text != "" {
				if problem := s.Check(text); problem != "" {
					return Value{}, badSetting(s, name, problem)
				}
				return Value{s, text, name, FromEnvironment}, nil
			}
		}
		if e, ok := file.Entries[s.Key]; ok && s.InFile() {
			from := fmt.Sprintf("%s:%d", file.name, e.line)
			if problem := s.Check(e.Text); problem != "" {
				return Value{}, badSetting(s, from, problem)
			}
			return Value{s, e.Text, from, FromFile}, nil
		}
		return Value{s, s.Init, "default", FromDefault}, nil
	}
	// The file first: it is named by a setting that cannot be in it.
	for _, s := range Of(Everywhere) {
		if s.Key != "config" {
			continue
		}
		v, err := find(s)
		if err != nil {
			return nil, err
		}
		if v.Text == "" {
			continue
		}
		if file, err = readConfig(out.Within(v.Text), v.Text); err != nil {
			return nil, err
		}
	}
	for _, s := range Of(groups...) {
		v, err := find(s)
		if err != nil {
			return nil, err
		}
		out.InForce = append(out.InForce, v)
	}
	return out, nil
}

// Getenv returns a variable of an environment; the last one of a name counts.
func Getenv(environ []string, name string) string {
	for i := len(environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(environ[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// keys are the names of a setting: that of today first, then that of before.
func (s *Setting) keys() []string {
	if s.was == "" {
		return []string{s.Key}
	}
	return []string{s.Key, s.was}
}

func badSetting(s *Setting, from, problem string) error {
	return errcode.New(errcode.BadSetting, "from", from, "key", s.Key, "problem", problem+": it takes "+s.Want(),
		"page", "explain config."+s.Key)
}

// serviceLinks are variables that Kubernetes sets in every pod beside a service
// called fealty. They configure nothing.
var serviceLinks = regexp.MustCompile(`^FEALTY(_[A-Z0-9_]+)?_` +
	`(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// checkEnvironment refuses variables that look like settings and are none.
func checkEnvironment(environ []string) error {
	names, before := []string{etcd.PasswordVariable}, []string{}
	for _, s := range table() {
		names = append(names, s.Env())
		for _, key := range s.keys() {
			before = append(before, envOf(key))
		}
	}
	for _, kv := range environ {
		name, text, _ := strings.Cut(kv, "=")
		// A blank variable is one that is not set, as everywhere here.
		if !strings.HasPrefix(name, "FEALTY_") || text == "" || slices.Contains(names, name) || slices.Contains(before, name) ||
			serviceLinks.MatchString(name) {
			continue
		}
		return unknownKey("the environment", name, humanize.Suggest(name, names))
	}
	return nil
}

func unknownKey(place, key, guess string) error {
	pairs := []any{"place", place, "key", key}
	if guess != "" {
		pairs = append(pairs, "guess", guess)
	}
	return errcode.New(errcode.UnknownKey, pairs...)
}

// File is a file of settings that was read.
type File struct {
	name    string // as the user named it
	Entries map[string]Entry
}

// Entry is one setting of a file.
type Entry struct {
	Text string
	line int
}

// readConfig reads a file of settings: one level of keys with scalars, or lists
// of them, and nothing else of YAML.
func readConfig(path, name string) (*File, error) {
	data, err := render.ReadFile(path, MaxFileBytes)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "the configuration file", "file", name)
	}
	return ParseFile(data, name)
}

// fileFormat bounds a file of settings: it is flat, and has no more keys than there are settings.
func fileFormat() *document.Format {
	return &document.Format{
		Noun: "a file of settings", Start: "write each setting as KEY: VALUE", TooLong: "keep what is needed",
		Bytes: MaxFileBytes, Documents: 16, Depth: 16, Fields: 1024, Items: 1024, Marks: 1 << 16, Problems: 1,
	}
}

// ParseFile reads the text of a file of settings. name is what errors call it.
func ParseFile(data []byte, name string) (*File, error) {
	out := &File{name: name, Entries: make(map[string]Entry)}
	roots, problems := fileFormat().ReadAccepted(data)
	switch {
	case len(problems) > 0 && problems[0].What == document.Empty:
		return out, nil
	case len(problems) > 0:
		return nil, badFile(name, max(problems[0].Line, 1), ofDocument(problems[0]))
	case len(roots) > 1:
		return nil, badFile(name, roots[1].Line, "a second document begins")
	case roots[0].Kind != document.Object:
		return nil, badFile(name, roots[0].Line, "it is not a list of settings: write each as KEY: VALUE")
	}
	for _, field := range roots[0].Fields {
		if err := out.take(field); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ofDocument words a problem of a text as one of a file of settings.
func ofDocument(p *document.Problem) string {
	switch {
	case p.Rule == "wrong-type":
		return "a key is not a plain word"
	case p.Rule == "syntax" && p.Line > 0:
		return "it is not YAML: " + p.What + "; " + p.Do
	case p.Rule == "syntax":
		return "it is not YAML"
	}
	return p.What
}

func (f *File) take(field document.Field) error {
	key := field.Name
	for _, s := range table() {
		if s.was != "" && s.was == key {
			key = s.Key
		}
	}
	known := slices.DeleteFunc(All(), func(s *Setting) bool { return s.Key != key || !s.InFile() })
	if len(known) == 0 {
		return unknownKey(fmt.Sprintf("%s:%d", f.name, field.Line), key, humanize.Suggest(key, FileKeys()))
	}
	if before, twice := f.Entries[key]; twice {
		return badFile(f.name, field.Line, fmt.Sprintf("%s stands in line %d already", key, before.line))
	}
	text, problem := scalarText(field.Value)
	if field.Value.Kind == document.List {
		var parts []string
		problem = ""
		for _, item := range field.Value.Items {
			part, p := scalarText(item)
			if p != "" || strings.Contains(part, ",") {
				problem = "an item of the list is not a plain value"
			}
			parts = append(parts, part)
		}
		text = strings.Join(parts, ",")
		if len(parts) > 1 && !slices.ContainsFunc(known, (*Setting).list) {
			problem = "it is one value and not a list"
		}
	}
	if problem != "" {
		return errcode.New(errcode.BadSetting, "from", fmt.Sprintf("%s:%d", f.name, field.Line), "key", key,
			"problem", problem, "page", "explain config."+key)
	}
	f.Entries[key] = Entry{text, field.Line}
	return nil
}

// scalarText returns a scalar as it was written, a block of lines without the blank ones around it.
func scalarText(n *document.Node) (text, problem string) {
	switch {
	case n.Kind == document.Null:
		return "", "it has no value"
	case n.Kind == document.Object, n.Kind == document.List, n.Kind == document.Other && n.Text == "":
		return "", "it is not a plain value"
	case strings.HasSuffix(n.Text, "\n"):
		return strings.TrimSpace(n.Text), ""
	}
	return n.Text, ""
}

// FileKeys are the keys that a file may have, sorted.
func FileKeys() []string {
	var keys []string
	for _, s := range table() {
		if s.InFile() {
			keys = append(keys, s.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func badFile(name string, line int, problem string) error {
	return errcode.New(errcode.BadSetting, "from", fmt.Sprintf("%s:%d", name, line), "problem", problem)
}
