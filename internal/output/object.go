package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Object is a result whose names are not those of a struct: names with values, in a fixed order.
type Object []Member

// Member is one of them. Value is what encoding/json encodes.
type Member struct {
	Name  string
	Value any
}

// MarshalJSON keeps the order of the members.
func (o Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := Encode(&b, m.Name, ""); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := Encode(&b, m.Value, ""); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// ObjectOf returns what v, which is an object as JSON, has under which names, in its order.
// The values are [json.RawMessage].
func ObjectOf(v any) (Object, error) {
	var b bytes.Buffer
	if err := Encode(&b, v, ""); err != nil {
		return nil, err
	}
	d := json.NewDecoder(&b)
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.Join(err, fmt.Errorf("a result is a %T, and no object", v))
	}
	o := Object{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		o = append(o, Member{Name: name.(string), Value: value})
	}
	return o, nil
}
