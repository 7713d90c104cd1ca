package manifests_test

import (
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
)

// A preview names who would lose renewal, and who then does; and changes nothing.
func TestPreviewTellsWhoIsCutOff(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	stays, goes := d.Joined("stays"), d.Joined("goes")
	d.Token(&fealtyv1.CreateTokenRequest{Entry: "small"})
	preview := func(extra string) *fealtyv1.PreviewManifestResponse {
		t.Helper()
		resp, err := coordinatortest.Served[fealtyv1.ManifestServiceServer](
			d.C.Parts().Moves.Manifests.RegisterServices).PreviewManifest(
			t.Context(),
			&fealtyv1.PreviewManifestRequest{Manifest: d.Manifest(extra)})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if r := preview(coordinatortest.PoolEntries); r.GetMembersTotal()+r.GetTokensTotal() != 0 ||
		string(r.GetManifest()) != string(d.State().Manifest.Bytes()) {
		t.Fatalf("of the manifest in force: %v", r)
	}
	before := d.Store.Keys("")
	without := strings.Replace(strings.Replace(coordinatortest.PoolEntries, "token:pool", "token:puddle", 1),
		"name: pool",
		"name: puddle", 1)
	without = strings.Replace(without, `  - {name: small, kind: data, match: ["token:small"], max_members: 2}`+"\n",
		"", 1)
	r := preview(without)
	if r.GetMembersTotal() != 2 || r.GetMembers()[0].GetName() != "goes" || r.GetMembers()[0].GetEntry() != "pool" ||
		r.GetMembers()[0].GetWhy() == "" || r.GetTokensTotal() != 1 {
		t.Fatalf("%v", r)
	}
	// Who is left out would be cut off without a word.
	for _, prefix := range []string{record.MemberPrefix, admission.TokenPrefix} {
		whole := d.Store.Snapshot()
		d.Store.Alter(d.Store.Keys(prefix)[0], func(v []byte) []byte { v[len(v)-1] ^= 1; return v })
		_, err := coordinatortest.Served[fealtyv1.ManifestServiceServer](d.C.Parts().Moves.Manifests.RegisterServices).PreviewManifest(
			t.Context(), &fealtyv1.PreviewManifestRequest{Manifest: d.Manifest(without)})
		coordinatortest.WantOnly(t, "a preview while one record below "+prefix+" is altered", err, errcode.StoreForged)
		d.Store.Revert(whole)
	}
	if now := d.Store.Keys(""); len(now) != len(before) {
		t.Errorf("a preview wrote %d records", len(now)-len(before))
	}
	for _, m := range []*coordinatortest.Machine{stays, goes} {
		coordinatortest.WantOnly(t, "renew", m.Renew(), "")
	}
	if err := d.Set(without); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*coordinatortest.Machine{stays, goes} {
		if err := m.Renew(); err == nil {
			t.Errorf("%s was renewed all the same", m.ID)
		}
	}
	// As another kind, and as one that was lost already.
	if r := preview(strings.Replace(coordinatortest.PoolEntries, "name: pool, kind: data", "name: pool, kind: witness",
		1)); r.GetMembersTotal() != 0 {
		t.Errorf("members that are lost already: %v", r)
	}
}
