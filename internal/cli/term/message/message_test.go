package message_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
)

// A field of bytes that does not say how it is shown was added without deciding it.
func TestEveryFieldHasAForm(t *testing.T) {
	hex := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("fealty.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			for j := range m.Fields().Len() {
				field := m.Fields().Get(j)
				if field.Kind() == protoreflect.BytesKind {
					if !proto.HasExtension(field.Options(), fealtyv1.E_Hex) {
						t.Errorf("%s: say [(hex) = true] of what people compare, and [(hex) = false] of content", field.FullName())
					}
					if proto.GetExtension(field.Options(), fealtyv1.E_Hex).(bool) {
						hex++
					}
				}
				if field.IsMap() {
					t.Errorf("%s is a map, which has no order", field.FullName())
				}
			}
			// No kind of field panics.
			mt, err := protoregistry.GlobalTypes.FindMessageByName(m.FullName())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := json.Marshal(message.Of(mt.New().Interface())); err != nil {
				t.Errorf("%s: %v", m.FullName(), err)
			}
		}
		return true
	})
	if hex < 20 {
		t.Errorf("%d fields are shown in hex: this test looks at nothing", hex)
	}
}

func TestOfMessage(t *testing.T) {
	at := timestamppb.New(time.Date(2026, 11, 20, 12, 0, 0, 5e6, time.UTC))
	for _, tt := range []struct {
		name string
		in   proto.Message
		want string
	}{
		{"member", &fealtyv1.Member{Name: "a", Roles: []string{"core"}, JoinedAt: at, Live: &fealtyv1.Live{Held: []*fealtyv1.HeldVersion{{Scope: "s", AuthorityEpoch: 2}}}}, `spiffe_id: ""
kind: ""
name: a
state: ""
roles:
  - core
organizations: []
domains: []
joined_at: "2026-11-20T12:00:00.005Z"
joined_by: ""
entry: ""
key_id: ""
banned: false
ban_reason: ""
live:
  connected: false
  release: ""
  held:
    - scope: s
      authority_epoch: 2
      config_version: 0
      generation: 0
      freshness: ""
  last_refusal: ""
  autonomy_limit: ""
  degraded_periods: []
  log_problem: ""
  log_dropped: 0
drained_by: ""
drain_reason: ""
reported_host: ""
reported_os: ""
reported_addresses: []
seen_address: ""
labels: []
contact: ""
`},
		{"hash and content", &fealtyv1.Transition{Record: []byte{1, 2}, Hash: []byte{0xab, 0xcd}}, `record: "AQI="
hash: abcd
index: 0
authority_epoch: 0
kind: ""
reason: ""
manifest_hash: ""
mesh_ca_key: ""
`},
		{"enum", &fealtyv1.JoinGrant{Outcome: fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER}, `outcome: already_member
chain: []
root_statement: ""
`},
		{"duration", &fealtyv1.UnbanMemberResponse{KeysBannedFor: durationpb.New(90 * time.Minute)}, "keys_banned_for: \"1h30m0s\"\n"},
	} {
		var b strings.Builder
		if err := term.WriteYAML(&b, message.Of(tt.in)); err != nil {
			t.Fatal(err)
		}
		if b.String() != tt.want {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, b.String(), tt.want)
		}
	}
}

// A form stands in a struct as any other value does.
func TestFormInAStruct(t *testing.T) {
	type result struct {
		Grant  message.Form[*fealtyv1.JoinGrant]     `json:"grant,omitzero"`
		Shares []message.Form[*fealtyv1.SeedShare]   `json:"shares"`
		Lost   *message.Form[*fealtyv1.LosingMember] `json:"lost"`
	}
	for _, tt := range []struct {
		name string
		in   result
		want string
	}{
		{"nothing", result{Shares: message.Each[*fealtyv1.SeedShare](nil)}, `{"shares":[],"lost":null}`},
		{"an unset message", result{Grant: message.Of((*fealtyv1.JoinGrant)(nil)),
			Shares: message.Each([]*fealtyv1.SeedShare{})},
			`{"shares":[],"lost":null}`},
		{"messages", result{Grant: message.Of(&fealtyv1.JoinGrant{}),
			Shares: message.Each([]*fealtyv1.SeedShare{{Owner: "a"}, {Owner: "b", File: []byte{1}}})},
			`{"grant":{"outcome":"","chain":[],"root_statement":""},` +
				`"shares":[{"owner":"a","file":""},{"owner":"b","file":"AQ=="}],"lost":null}`},
	} {
		got, err := json.Marshal(tt.in)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %s (%v), want %s", tt.name, got, err, tt.want)
		}
	}
}
