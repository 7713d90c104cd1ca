package term

import (
	"encoding/json"
	"fmt"
	"io"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Schema marks every object that a command prints. Within v1 names are added, and nothing
// under a name changes.
const Schema = "fealty.cli/v1"

// Write writes data, which is an object as JSON, in a form for programs, with the schema
// before it. Without a form for programs it is JSON.
func Write(w io.Writer, form Format, data any) error {
	object, err := json.Marshal(data)
	if err != nil {
		return err
	}
	marked, err := jsonv2.Marshal(struct {
		Schema string         `json:"schema"`
		Data   jsontext.Value `json:",embed"`
	}{Schema, object}, lenient)
	if err != nil {
		return fmt.Errorf("print a %T behind the schema: %w; make it a struct or an Object", data, err)
	}
	if form == YAML {
		return WriteYAML(w, jsontext.Value(marked))
	}
	return WriteJSON(w, jsontext.Value(marked))
}
