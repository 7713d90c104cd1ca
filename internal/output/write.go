package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// Schema marks every object that a command prints. Within v1 names are added, and nothing
// under a name changes.
const Schema = "fealty.cli/v1"

// Write writes data, which is an object as JSON, in a form for programs, with the schema
// before it. Without a form for programs it is JSON.
func Write(w io.Writer, form Format, data any) error {
	stamped, err := stamp(data)
	if err != nil {
		return err
	}
	if form == YAML {
		return WriteYAML(w, stamped)
	}
	return WriteJSON(w, stamped)
}

// stamp returns data as JSON, with the schema before what it holds.
func stamp(data any) (json.RawMessage, error) {
	var b bytes.Buffer
	if err := Encode(&b, data, ""); err != nil {
		return nil, err
	}
	held, isObject := bytes.CutPrefix(b.Bytes(), []byte("{"))
	if !isObject {
		return nil, fmt.Errorf("a result is a %T, and no object", data)
	}
	head := `{"schema":"` + Schema + `"`
	if !bytes.Equal(held, []byte("}")) {
		head += ","
	}
	return append([]byte(head), held...), nil
}

// WriteJSON writes v as indented JSON. Strings are valid for any reader and safe for a
// terminal: what does not print is escaped.
func WriteJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	if err := Encode(&b, v, "  "); err != nil {
		return err
	}
	_, err := io.WriteString(w, Printable(b.String())+"\n")
	return err
}
