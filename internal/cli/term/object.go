package term

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

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
func (o Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	e := jsontext.NewEncoder(&b, lenient)
	err := e.WriteToken(jsontext.BeginObject)
	for _, m := range o {
		value, wrong := json.Marshal(m.Value)
		if wrong != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, wrong)
		}
		err = errors.Join(err, e.WriteToken(jsontext.String(m.Name)), e.WriteValue(value))
	}
	err = errors.Join(err, e.WriteToken(jsontext.EndObject))
	return b.Bytes(), err
}
