package cli

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fealty-io/fealty/internal/output"
)

// hashFields are the bytes fields of the API that people compare: they are shown
// in hex. All others hold content and are shown in base64.
var hashFields = []protoreflect.FullName{
	"fealty.v1.FirstSetRequest.manifest_hash",
	"fealty.v1.ScopeContent.content_hash", "fealty.v1.KeepJournalResponse.hash",
	"fealty.v1.GetStatusResponse.head",
	"fealty.v1.GetStatusResponse.root_pin",
	"fealty.v1.GetStatusResponse.mesh_ca_key",
	"fealty.v1.GetLinksRequest.known",
	"fealty.v1.AuditHead.config_root_key",
	"fealty.v1.BackupHead.head", "fealty.v1.BackupEnd.sha256", "fealty.v1.BackupEnd.digest",
	"fealty.v1.CommitReseedResponse.root_key",
	"fealty.v1.CommitReseedResponse.transaction_key",
	"fealty.v1.Transition.hash",
	"fealty.v1.Transition.manifest_hash",
	"fealty.v1.Transition.mesh_ca_key",
	"fealty.v1.HeldSnapshot.content_hash", "fealty.v1.GetContentRequest.content_hash",
	"fealty.v1.SetManifestRequest.current_transition",
	"fealty.v1.RecoverRequest.attempt",
	"fealty.v1.RecoveryOffer.attempt", "fealty.v1.VerifyClaim.head",
	"fealty.v1.RecoveryProgress.head",
	"fealty.v1.Replica.head",
	"fealty.v1.PeerHello.head",
}

// ofMessage returns a message as it is printed: fields in the order of the
// protocol and under its names, with their zero values, except that a message
// that is not set is left out. Times are RFC 3339, durations as Go writes them,
// enums their words in lower case.
func ofMessage(m proto.Message) object {
	r := m.ProtoReflect()
	var out object
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() != nil && !f.IsList() && !r.Has(f) {
			continue
		}
		v := r.Get(f)
		if f.IsList() {
			items := make(list, 0, v.List().Len())
			for j := range v.List().Len() {
				items = append(items, ofValue(f, v.List().Get(j)))
			}
			out = out.with(string(f.Name()), items)
			continue
		}
		out = out.with(string(f.Name()), ofValue(f, v))
	}
	return out
}

func ofValue(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.MessageKind:
		switch m := v.Message().Interface().(type) {
		case *timestamppb.Timestamp:
			return stamp(m.AsTime())
		case *durationpb.Duration:
			return m.AsDuration().String()
		default:
			return ofMessage(m)
		}
	case protoreflect.EnumKind:
		return enumWord(f.Enum(), v.Enum())
	case protoreflect.BytesKind:
		if slices.Contains(hashFields, f.FullName()) {
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
		return output.Number(v.Float())
	}
	panic("cli: the protocol has a field of a kind that has no form here: " + string(f.FullName()))
}

// enumWord returns JOIN_OUTCOME_ADMITTED of JoinOutcome as "admitted", and "" for
// the value that says nothing.
func enumWord(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	value := e.Values().ByNumber(n)
	if value == nil || n == 0 {
		return ""
	}
	prefix := strings.TrimSuffix(string(e.Values().ByNumber(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(value.Name()), prefix))
}
