package term

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Object is a result whose names are not those of a struct: names with values, in a fixed order.
type Object []Member

// Member is one of them. Value is what encoding/json encodes.
type Member struct {
	Name  string
	Value any
}

// MarshalJSON keeps the order of the members.
func (o Object) MarshalJSON() ([]byte, error) { return appendObject(nil, o) }

// appendObject appends o, and what is in it, in one go: as the MarshalJSON of one value in another, what
// is deepest would be written, checked and copied once for each level.
func appendObject(b []byte, o Object) ([]byte, error) {
	b = append(b, '{')
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendText(b, m.Name); err != nil {
			return nil, err
		}
		if b, err = appendValue(append(b, ':'), m.Value); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return append(b, '}'), nil
}

// appendValue appends v as encoding/json encodes it, but for the spelling of its strings.
func appendValue(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case Object:
		return appendObject(b, v)
	case []any:
		if v == nil {
			break
		}
		b = append(b, '[')
		for i, item := range v {
			if i > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = appendValue(b, item); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case string:
		return appendText(b, v)
	case Moment:
		if t := time.Time(v); !t.IsZero() {
			return append(t.UTC().AppendFormat(append(b, '"'), time.RFC3339Nano), '"'), nil
		}
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case uint64:
		return strconv.AppendUint(b, v, 10), nil
	}
	value, err := json.Marshal(v)
	return append(b, value...), err
}

// appendText appends s as a string of JSON. U+FFFD stands for what is no character.
func appendText(b []byte, s string) ([]byte, error) {
	if utf8.ValidString(s) {
		return jsontext.AppendQuote(b, s)
	}
	value, err := json.Marshal(s)
	return append(b, value...), err
}
