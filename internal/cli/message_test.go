package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/amount"
)

// contentFields are the bytes fields that are not compared by people. A field that
// is in neither table was added without deciding how it is shown.
var contentFields = []protoreflect.FullName{
	"fealty.v1.FirstSetRequest.part", "fealty.v1.PresentTrustRequest.part", "fealty.v1.RecoveryOffer.restore",
	"fealty.v1.AuditHead.trust_bundle", "fealty.v1.AuditRecord.value", "fealty.v1.KeepJournalRequest.entries",
	"fealty.v1.CreateBackupResponse.chunk", "fealty.v1.HistoryLinks.links", "fealty.v1.GetLinksResponse.links",
	"fealty.v1.ConfigRecord.record", "fealty.v1.ConfigChange.before", "fealty.v1.ConfigChange.after", "fealty.v1.PutConfigRequest.records",
	"fealty.v1.ScopeContent.content",
	"fealty.v1.RootChanges.changes", "fealty.v1.ApplyEmergencyRequest.statement", "fealty.v1.ApplyNodeEmergencyRequest.statement",
	"fealty.v1.PrepareReseedRequest.manifest",
	"fealty.v1.PrepareReseedResponse.change",
	"fealty.v1.CommitReseedRequest.change",
	"fealty.v1.Proof.evidence", "fealty.v1.Proof.public_key", "fealty.v1.JoinRequest.csr", "fealty.v1.JoinChallenge.nonce",
	"fealty.v1.JoinGrant.chain", "fealty.v1.JoinGrant.root_statement", "fealty.v1.RenewRequest.csr", "fealty.v1.RenewResponse.chain",
	"fealty.v1.ManifestSignature.signature", "fealty.v1.SetManifestRequest.manifest", "fealty.v1.FirstSetRequest.evidence",
	"fealty.v1.FirstSetResponse.nonce", "fealty.v1.GetManifestResponse.manifest", "fealty.v1.GetHistoryResponse.head",
	"fealty.v1.GetHistoryResponse.transaction_key", "fealty.v1.GetHistoryResponse.manifests", "fealty.v1.Transition.record",
	"fealty.v1.SignedSnapshot.envelope", "fealty.v1.SeedShare.file", "fealty.v1.PreviewManifestRequest.manifest", "fealty.v1.PreviewManifestResponse.manifest",
	"fealty.v1.RecoverRequest.share", "fealty.v1.RecoveryOffer.evidence", "fealty.v1.RecoveryHistory.transitions", "fealty.v1.RecoveryHistory.manifests",
	"fealty.v1.RecoveryHistory.head", "fealty.v1.GetContentResponse.chunk",
	"fealty.v1.VerifyRequest.nonce", "fealty.v1.VerifyClaim.root", "fealty.v1.VerifyClaim.mesh_ca", "fealty.v1.VerifyClaim.evidence", "fealty.v1.VerifyClaim.transaction_key",
	"fealty.v1.PeerHello.nonce", "fealty.v1.PeerChallenge.nonce", "fealty.v1.PeerChallenge.evidence", "fealty.v1.PeerServiceRecoverRequest.evidence",
	"fealty.v1.PeerHello.certificates", "fealty.v1.PeerChallenge.x509", "fealty.v1.PeerServiceRecoverRequest.x509", "fealty.v1.PeerCandidate.x509",
	"fealty.v1.RecoveryOffer.x509", "fealty.v1.VerifyClaim.x509",
	"fealty.v1.PeerSecrets.sealed", "fealty.v1.PeerSecrets.root", "fealty.v1.PeerSecrets.mesh_ca", "fealty.v1.PeerSecrets.manifest",
	"fealty.v1.PeerCandidate.evidence", "fealty.v1.PeerCandidate.transition", "fealty.v1.PeerCandidate.manifest", "fealty.v1.PeerCandidate.sealed", "fealty.v1.PeerCandidate.mesh_ca",
}

func TestEveryFieldHasAForm(t *testing.T) {
	var bytesFields []protoreflect.FullName
	protoregistry.GlobalFiles.RangeFilesByPackage("fealty.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			for j := range m.Fields().Len() {
				field := m.Fields().Get(j)
				if field.Kind() == protoreflect.BytesKind {
					bytesFields = append(bytesFields, field.FullName())
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
			ofMessage(mt.New().Interface())
		}
		return true
	})
	for _, f := range bytesFields {
		if slices.Contains(hashFields, f) == slices.Contains(contentFields, f) {
			t.Errorf("%s: say whether it is a hash, shown in hex, or content, in base64", f)
		}
	}
	for _, f := range slices.Concat(hashFields, contentFields) {
		if !slices.Contains(bytesFields, f) {
			t.Errorf("%s is no field", f)
		}
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
		if err := writeYAML(&b, ofMessage(tt.in)); err != nil {
			t.Fatal(err)
		}
		if b.String() != tt.want {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, b.String(), tt.want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 MiB", 512 << 20: "512 MiB", 10<<30 - 1: "10239 MiB", 10 << 30: "10 GiB", 52313 << 20: "51 GiB"} {
		if got := amount.Size(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
}
