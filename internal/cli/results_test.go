package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/clitest"
)

// A result of a message and more has the fields of the protocol in its order, and what is
// more beside them.
func TestResultsOfAMessageAndMore(t *testing.T) {
	head := bytes.Repeat([]byte{0xab}, 32)
	transition := &fealtyv1.Transition{Hash: head, Index: 2, Kind: "set", Reason: "a <b> \x1b[2J",
		RecordedAt: timestamppb.New(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))}
	c := &clitest.Answering{
		Status: &fealtyv1.GetStatusResponse{Phase: "ready", Head: head},
		Member: &fealtyv1.GetMemberResponse{Member: &fealtyv1.Member{Kind: "data", Name: "a"}},
		Preview: &fealtyv1.PreviewManifestResponse{Manifest: []byte(clitest.Manifest), Transition: transition,
			Members: []*fealtyv1.LosingMember{{Kind: "data", Name: "a", Why: "it has no entry"}}, MembersTotal: 1,
			TokensTotal: 0},
		Set: &fealtyv1.SetManifestResponse{Transition: transition,
			Shares: []*fealtyv1.SeedShare{{Owner: "host", File: []byte{1, 2}}}},
	}
	socket := c.Listen(t)
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte(clitest.Manifest+"rejoin_grace: 3d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"the effect of a set", []string{"manifest", "set", file, "--dry-run", "-o", "yaml"}, `schema: fealty.cli/v1
transition:
  record: ""
  hash: abababababababababababababababababababababababababababababababab
  index: 2
  authority_epoch: 0
  kind: set
  reason: "a <b> \u001b[2J"
  manifest_hash: ""
  mesh_ca_key: ""
  recorded_at: "2026-11-20T12:00:00Z"
shares:
  - owner: host
    file: "AQI="
keys_made: []
effect:
  differs: true
  wider: false
  narrower: true
  authority_moves: []
  changes:
    - class: rejoin-grace
      subject: rejoin_grace
      before: "7d"
      after: "3d"
      means: "at once"
      wider: false
      narrower: true
  members:
    - kind: data
      name: a
      entry: ""
      why: "it has no entry"
  members_total: 1
  tokens: []
  tokens_total: 0
  current: abababababababababababababababababababababababababababababababab
`},
		{"a set without one", []string{"manifest", "set", file, "-o", "json"}, `{
  "schema": "fealty.cli/v1",
  "transition": {
    "record": "",
    "hash": "abababababababababababababababababababababababababababababababab",
    "index": 2,
    "authority_epoch": 0,
    "kind": "set",
    "reason": "a <b> \u001b[2J",
    "manifest_hash": "",
    "mesh_ca_key": "",
    "recorded_at": "2026-11-20T12:00:00Z"
  },
  "shares": [
    {
      "owner": "host",
      "file": "AQI="
    }
  ],
  "keys_made": []
}
`},
		{"a diff", []string{"manifest", "diff", file, "-o", "yaml"}, `schema: fealty.cli/v1
differs: true
wider: false
narrower: true
authority_moves: []
changes:
  - class: rejoin-grace
    subject: rejoin_grace
    before: "7d"
    after: "3d"
    means: "at once"
    wider: false
    narrower: true
members:
  - kind: data
    name: a
    entry: ""
    why: "it has no entry"
members_total: 1
tokens: []
tokens_total: 0
current: abababababababababababababababababababababababababababababababab
`},
		{"a member that is there", []string{"member", "wait", "data/a", "--for", "joined", "-o", "json"}, `{
  "schema": "fealty.cli/v1",
  "member": {
    "spiffe_id": "",
    "kind": "data",
    "name": "a",
    "state": "",
    "roles": [],
    "organizations": [],
    "domains": [],
    "joined_by": "",
    "entry": "",
    "key_id": "",
    "banned": false,
    "ban_reason": "",
    "drained_by": "",
    "drain_reason": "",
    "reported_host": "",
    "reported_os": "",
    "reported_addresses": [],
    "seen_address": "",
    "labels": [],
    "contact": ""
  }
}
`},
	} {
		r := clitest.Run(t, append(tt.args, "--socket", socket)...).Want(t, 0)
		if r.Stdout != tt.want {
			t.Errorf("%s is\n%s\nwant\n%s", tt.name, r.Stdout, tt.want)
		}
	}

	set := clitest.JSONOf(t, clitest.Run(t, "manifest", "set", file, "-o", "json", "--socket", socket).Stdout)
	for i := range c.Set.ProtoReflect().Descriptor().Fields().Len() {
		name := c.Set.ProtoReflect().Descriptor().Fields().Get(i).Name()
		if _, is := set[string(name)]; !is {
			t.Errorf("a set does not show the field %s of the response", name)
		}
	}
}
