// Package message turns a message of the API into the form in which commands print it.
package message

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/term"
)

// Form is a message in the form in which commands print it: fields in the order of
// the protocol and under its names, with their zero values, except that a message that is
// not set is left out. Times are RFC 3339, durations as Go writes them, enums their words in
// lower case, bytes in hex or base64, as the protocol says of their field.
type Form[M proto.Message] struct{ message M }

// Of returns the form of a message.
func Of[M proto.Message](m M) Form[M] { return Form[M]{m} }

// Each returns the form of each message of a list.
func Each[M proto.Message](list []M) []Form[M] {
	out := make([]Form[M], 0, len(list))
	for _, m := range list {
		out = append(out, Of(m))
	}
	return out
}

// MarshalJSON writes f as JSON.
func (f Form[M]) MarshalJSON() ([]byte, error) { return json.Marshal(objectOf(f.message)) }

func objectOf(m proto.Message) term.Object {
	r := m.ProtoReflect()
	var out term.Object
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() != nil && !f.IsList() && !r.Has(f) {
			continue
		}
		v := r.Get(f)
		if f.IsList() {
			items := make([]any, 0, v.List().Len())
			for j := range v.List().Len() {
				items = append(items, ofValue(f, v.List().Get(j)))
			}
			out = append(out, term.Member{Name: string(f.Name()), Value: items})
			continue
		}
		out = append(out, term.Member{Name: string(f.Name()), Value: ofValue(f, v)})
	}
	return out
}

func ofValue(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.MessageKind:
		switch m := v.Message().Interface().(type) {
		case *timestamppb.Timestamp:
			return term.Moment(m.AsTime())
		case *durationpb.Duration:
			return m.AsDuration().String()
		default:
			return objectOf(m)
		}
	case protoreflect.EnumKind:
		return Word(f.Enum(), v.Enum())
	case protoreflect.BytesKind:
		if proto.GetExtension(f.Options(), fealtyv1.E_Hex).(bool) {
			return hex.EncodeToString(v.Bytes())
		}
		return base64.StdEncoding.EncodeToString(v.Bytes())
	case protoreflect.BoolKind:
		return v.Bool()
	case protoreflect.StringKind:
		return v.String()
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return v.Uint()
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return v.Int()
	case protoreflect.DoubleKind:
		return term.Number(v.Float())
	}
	panic("message: the protocol has a field of a kind that has no form here: " + string(f.FullName()))
}

// Word returns JOIN_OUTCOME_ADMITTED of JoinOutcome as "admitted", and "" for
// the value that says nothing.
func Word(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	value := e.Values().ByNumber(n)
	if value == nil || n == 0 {
		return ""
	}
	prefix := strings.TrimSuffix(string(e.Values().ByNumber(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(value.Name()), prefix))
}
