package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// WriteYAML writes v as the same value in YAML.
//
// The library prints the tree. How a text is quoted is decided here: its encoder prints
// characters that move a cursor as they are, and the same result has to be the same bytes
// with the next release of it.
func WriteYAML(w io.Writer, v any) error {
	var b bytes.Buffer
	if err := Encode(&b, v, ""); err != nil {
		return err
	}
	d := json.NewDecoder(&b)
	d.UseNumber()
	node, err := readNode(d, 1)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, node.String()+"\n")
	return err
}

// readNode reads the next value of d as what stands at a column of YAML, from 1.
func readNode(d *json.Decoder, column int) (ast.Node, error) {
	const indent = 2
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		object := ast.Mapping(mark("{", column), false)
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := readNode(d, column+indent)
			if err != nil {
				return nil, err
			}
			key := ast.String(mark(name.(string), column))
			object.Values = append(object.Values, ast.MappingValue(mark(":", column), key, value))
		}
		below(object.Start, len(object.Values))
		_, err = d.Token()
		return object, err
	case json.Delim('['):
		list := ast.Sequence(mark("-", column), false)
		for d.More() {
			value, err := readNode(d, column+indent)
			if err != nil {
				return nil, err
			}
			list.Values = append(list.Values, value)
		}
		below(list.Start, len(list.Values))
		_, err = d.Token()
		return list, err
	}
	text, err := scalar(t)
	return ast.String(mark(text, column)), err
}

// mark returns a token that begins at a column.
func mark(text string, column int) *token.Token {
	return &token.Token{Type: token.StringType, Value: text, Origin: text, Position: &token.Position{Column: column}}
}

// below has what begins with a token printed below its name, and not beside it, unless it is
// empty.
func below(start *token.Token, values int) {
	start.Position.IndentLevel = min(values, 1)
}

// plain are strings that no reader of YAML takes for something else.
var plain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*$`)

// reserved are plain scalars with a meaning, in YAML 1.1 or 1.2.
var reserved = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off|true|false|null)$`)

// scalar writes a value that is no object and no list. JSON and YAML agree on it: a JSON
// string (RFC 8259 §7) is a double-quoted scalar too (YAML 1.2.2 §7.3.1).
func scalar(t json.Token) (string, error) {
	if text, ok := t.(string); ok && plain.MatchString(text) && !reserved.MatchString(text) {
		return text, nil
	}
	var b bytes.Buffer
	if err := Encode(&b, t, ""); err != nil {
		return "", fmt.Errorf("write a scalar: %w", err)
	}
	return Printable(b.String()), nil
}

// Quote writes s as a JSON string that is safe for a terminal.
func Quote(s string) string {
	var b bytes.Buffer
	_ = Encode(&b, s, "") // a string always has a form
	return Printable(b.String())
}
