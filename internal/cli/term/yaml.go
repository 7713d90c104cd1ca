package term

import (
	"io"
	"regexp"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// WriteYAML writes v as the same value in YAML.
//
// The library prints the tree, which is made here from the tokens of JSON. Its encoder would
// print characters that move a cursor as they are, and numbers in another form than JSON, and
// the same result has to be the same bytes with the next release of it. Its parser, given the
// JSON, takes about three times as long for 4,000 members.
func WriteYAML(w io.Writer, v any) error {
	d, err := tokens(v)
	if err != nil {
		return err
	}
	node, err := readNode(d, 1)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, node.String()+"\n")
	return err
}

// readNode reads the next value of d as what stands at a column of YAML, from 1.
func readNode(d *jsontext.Decoder, column int) (ast.Node, error) {
	const indent = 2
	t, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch t.Kind() {
	case jsontext.KindBeginObject:
		object := ast.Mapping(mark("{", column), false)
		for d.PeekKind() == jsontext.KindString {
			t, err := d.ReadToken()
			if err != nil {
				return nil, err
			}
			name := t.String()
			if !plain.MatchString(name) { // a peer chose it
				name = Quote(name)
			}
			key := ast.String(mark(name, column))
			value, err := readNode(d, column+indent)
			if err != nil {
				return nil, err
			}
			object.Values = append(object.Values, ast.MappingValue(mark(":", column), key, value))
		}
		below(object.Start, len(object.Values))
		_, err = d.ReadToken()
		return object, err
	case jsontext.KindBeginArray:
		list := ast.Sequence(mark("-", column), false)
		for d.PeekKind() != jsontext.KindEndArray {
			value, err := readNode(d, column+indent)
			if err != nil {
				return nil, err
			}
			list.Values = append(list.Values, value)
		}
		below(list.Start, len(list.Values))
		_, err = d.ReadToken()
		return list, err
	}
	return ast.String(mark(scalar(t), column)), nil
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
func scalar(t jsontext.Token) string {
	text := t.String()
	if t.Kind() == jsontext.KindString && (!plain.MatchString(text) || reserved.MatchString(text)) {
		return Quote(text)
	}
	return text
}
