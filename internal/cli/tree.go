package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/output"
)

// schema marks every object that a command prints. What it holds under a name
// does not change within v1; names are added.
const schema = "fealty.cli/v1"

// object is a result whose names are not those of a struct: names with values, in a fixed
// order. A value is what encoding/json encodes.
type object []member

type member struct {
	name  string
	value any
}

// list is an ordered list of values.
type list []any

// with returns o and one more member.
func (o object) with(name string, value any) object { return append(o, member{name, value}) }

// texts turns strings into a list.
func texts(s []string) list {
	out := make(list, len(s))
	for i, x := range s {
		out[i] = x
	}
	return out
}

// stamp writes a time as RFC 3339 in UTC; nil for the zero time.
func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// MarshalJSON keeps the order of the members.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := output.Encode(&b, m.name, ""); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := output.Encode(&b, m.value, ""); err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// MarshalJSON writes a list of nothing as one, too.
func (l list) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	err := output.Encode(&b, append([]any{}, l...), "")
	return b.Bytes(), err
}

// writeJSON writes v as indented JSON. Strings are valid for any reader and safe
// for a terminal: what does not print is escaped.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	if err := output.Encode(&b, v, "  "); err != nil {
		return err
	}
	_, err := io.WriteString(w, output.Printable(b.String())+"\n")
	return err
}

// quoted writes a JSON string (RFC 8259 §7), which is a YAML double-quoted scalar
// too (YAML 1.2.2 §7.3.1).
func quoted(s string) string { return scalar(s) }

// scalar writes a value that is no object and no list; JSON and YAML agree on it.
func scalar(v any) string {
	var b bytes.Buffer
	if err := output.Encode(&b, v, ""); err != nil {
		panic("cli: " + err.Error())
	}
	return output.Printable(b.String())
}

// treeOf returns what v is as JSON, in the order of its fields.
func treeOf(v any) (any, error) {
	var b bytes.Buffer
	if err := output.Encode(&b, v, ""); err != nil {
		return nil, err
	}
	d := json.NewDecoder(&b)
	d.UseNumber()
	return readTree(d)
}

func readTree(d *json.Decoder) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		o := object{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := readTree(d)
			if err != nil {
				return nil, err
			}
			o = o.with(name.(string), value)
		}
		_, err = d.Token()
		return o, err
	case json.Delim('['):
		l := list{}
		for d.More() {
			value, err := readTree(d)
			if err != nil {
				return nil, err
			}
			l = append(l, value)
		}
		_, err = d.Token()
		return l, err
	}
	return t, nil
}

// writeYAML writes v, which is an object as JSON, as the same object in YAML.
//
// The YAML library decides by itself which strings it quotes and how, from release to
// release; here the same result is the same bytes.
func writeYAML(w io.Writer, v any) error {
	tree, err := treeOf(v)
	if err != nil {
		return err
	}
	o, ok := tree.(object)
	if !ok {
		return fmt.Errorf("a result is a %T, and no object", v)
	}
	var b strings.Builder
	yamlObject(&b, o, "", "")
	_, err = io.WriteString(w, b.String())
	return err
}

// yamlObject writes the members of o under indent; the first one goes on the line
// that was begun with lead.
func yamlObject(b *strings.Builder, o object, indent, lead string) {
	for i, m := range o {
		if i > 0 || lead == "" {
			b.WriteString(indent)
		}
		b.WriteString(m.name + ":")
		yamlValue(b, m.value, indent)
	}
}

func yamlValue(b *strings.Builder, v any, indent string) {
	switch v := v.(type) {
	case object:
		if len(v) == 0 {
			b.WriteString(" {}\n")
			return
		}
		b.WriteByte('\n')
		yamlObject(b, v, indent+"  ", "")
	case list:
		if len(v) == 0 {
			b.WriteString(" []\n")
			return
		}
		b.WriteByte('\n')
		for _, x := range v {
			b.WriteString(indent + "  - ")
			if o, ok := x.(object); ok && len(o) > 0 {
				yamlObject(b, o, indent+"    ", "- ")
				continue
			}
			b.WriteString(yamlScalar(x) + "\n")
		}
	default:
		b.WriteString(" " + yamlScalar(v) + "\n")
	}
}

// plainYAML are strings that no reader of YAML takes for something else.
var plainYAML = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*$`)

// wordsOfYAML are plain scalars with a meaning, in YAML 1.1 or 1.2.
var wordsOfYAML = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null)$`)

func yamlScalar(v any) string {
	switch v := v.(type) {
	case object:
		return "{}"
	case list:
		if len(v) > 0 {
			panic("cli: lists of lists are not used")
		}
		return "[]"
	case string:
		if plainYAML.MatchString(v) && !wordsOfYAML.MatchString(v) {
			return v
		}
	}
	return scalar(v)
}
