package cli

import (
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// schema marks every object that a command prints. What it holds under a name
// does not change within v1; names are added.
const schema = "fealty.cli/v1"

// object is what JSON and YAML show: names with values, in a fixed order. A value
// is a string, bool, int, int64, uint64, nil, list or object.
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

// writeJSON writes o as indented JSON. Strings are valid for any reader and safe
// for a terminal: what does not print is escaped.
func writeJSON(w io.Writer, o object) error {
	var b strings.Builder
	jsonValue(&b, o, "")
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

func jsonValue(b *strings.Builder, v any, indent string) {
	inner := indent + "  "
	switch v := v.(type) {
	case object:
		if len(v) == 0 {
			b.WriteString("{}")
			return
		}
		for i, m := range v {
			b.WriteString([]string{",\n", "{\n"}[btoi(i == 0)] + inner + quoted(m.name) + ": ")
			jsonValue(b, m.value, inner)
		}
		b.WriteString("\n" + indent + "}")
	case list:
		if len(v) == 0 {
			b.WriteString("[]")
			return
		}
		for i, x := range v {
			b.WriteString([]string{",\n", "[\n"}[btoi(i == 0)] + inner)
			jsonValue(b, x, inner)
		}
		b.WriteString("\n" + indent + "]")
	default:
		b.WriteString(scalar(v))
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// scalar writes a value that is no object and no list; JSON and YAML agree on it.
func scalar(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	case float64:
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return quoted(text) // JSON has no such numbers
		}
		return text
	case string:
		return quoted(v)
	}
	panic(fmt.Sprintf("cli: a value of type %T has no form in JSON", v))
}

// quoted writes a JSON string (RFC 8259 §7), which is a YAML double-quoted scalar
// too (YAML 1.2.2 §7.3.1).
func quoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case unicode.IsPrint(r) && r <= 0xffff:
			b.WriteRune(r)
		case r > 0xffff:
			if unicode.IsPrint(r) {
				b.WriteRune(r)
				break
			}
			high, low := 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// writeYAML writes o as YAML.
func writeYAML(w io.Writer, o object) error {
	var b strings.Builder
	yamlObject(&b, o, "", "")
	_, err := io.WriteString(w, b.String())
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
