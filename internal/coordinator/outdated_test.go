package coordinator_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// A cluster that was founded under an earlier release, with what this one refuses in its
// manifest, starts, certifies its members, tells of it, and takes the manifest that
// mends it. Nothing new of the kind is taken.
func TestOutdatedManifest(t *testing.T) {
	t.Parallel()
	corp := coordinatortest.CorpEntries(pkitest.NewPKI(t, "corp", nil))
	outdated := map[string]string{
		"a filler in a comment":  "  - {name: root, kind: admin, match: [\"key:KEY\"]} # ro\u3164ot\n",
		"a tag in a comment":     "  - {name: root, kind: admin, match: [\"key:KEY\"]} # \U000e0041\n",
		"a filler in a selector": strings.Replace(corp, "CN=node-*", "CN=no\u3164de-*", 1),
		"an escaped filler":      strings.Replace(corp, "CN=node-*", `CN=no\u3164de-*`, 1),
		"a blank in a selector":  strings.Replace(corp, "CN=node-*", "CN=no\u2800de-*", 1),
		"many marks": "  - {name: root, kind: admin, match: [\"key:KEY\"]}\n" +
			strings.Repeat("#\n", 130_000),
		"pods": "  - {name: pods, kind: data, match: [\"k8s:sa:prod/agent-*\"]}\n",
		"TPM": "  - {name: metal, kind: data, match: [\"tpm:ek:" + strings.Repeat("ab", 32) +
			"\"]}\n",
		"confidential machines": "  - {name: vms, kind: data, match: [\"sevsnp:measurement:MEASURED\"]}\nproofs: " +
			"{sevsnp: {measurements: [MEASURED]}}\n",
		"a coordinator's pod": "  - {name: other, kind: coordinator, platform_may_read_seed: true, match: " +
			"[\"k8s:sa:prod/coordinator\"]}\n",
		"a coordinator's TPM": "  - {name: other, kind: coordinator, match: [\"tpm:ek:" + strings.Repeat("ab", 32) +
			"\"]}\n",
		"a person in a pod": "  - {name: ci, kind: readonly, match: [\"k8s:sa:prod/ci\"]}\n",
	}
	for name, entry := range outdated {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := earlierDesk(t)
			public, _, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			key, err := manifest.NewKey(public)
			if err != nil {
				t.Fatal(err)
			}
			entry := strings.NewReplacer("KEY", key.String(), "MEASURED", strings.Repeat("ab", 48)).Replace(entry)
			pool := "  - {name: pool, kind: data, match: [\"token:pool\"]}\n"
			if err := d.Set(pool + entry); err != nil {
				t.Fatal(err)
			}
			d.Restart()
			if d.State().Phase != authority.Ready {
				t.Fatalf("it did not come back: %s", d.State().Reason)
			}
			found := coordinatortest.FindingsAt(d, t, errcode.ManifestOutdated)
			if len(found) != 1 {
				t.Fatalf("findings %v, want the place that could not be set today", found)
			}
			// It can go on from a store that went back, too.
			plan, err := backup.PlanInPlace(t.Context(), coordinatortest.Lifted{MemStore: d.Store}, d.Clock(),
				func(*manifest.Manifest) (store.Revision, error) { return 1, nil }, "test", "test")
			if err != nil || plan.Manifest.Hash() != d.State().Manifest.Hash() {
				t.Errorf("a restore in place is planned with %v", err)
			}

			m := d.Machine()
			if err := m.Join(identity.Data,
				proof.NewTokenProver(d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"}))); err != nil {
				t.Fatal(err)
			}
			d.Advance(time.Minute)
			next, err := coordinatortest.NewKey()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.RenewWith(m.Leaf, next); err != nil {
				t.Errorf("a member is not renewed: %v", err)
			}

			again := d.Request(d.Manifest(pool + "  # another\n" + entry))
			if _, err := d.C.Parts().Moves.Manifests.Set(context.Background(), again, false); !errors.Is(err,
				errcode.ManifestInvalid) {
				t.Fatalf("set once more = %v, want %v", err, errcode.ManifestInvalid)
			}
			if err := d.Set(pool); err != nil {
				t.Fatalf("the manifest that mends it: %v", err)
			}
			if found := coordinatortest.FindingsAt(d, t, errcode.ManifestOutdated); len(found) != 0 {
				t.Errorf("still told: %v", found)
			}
		})
	}
}

// A member that an earlier release admitted by a certificate whose name hides a character
// is renewed, also under the manifest that mends it. Nobody joins by such a certificate.
func TestOutdatedMember(t *testing.T) {
	t.Parallel()
	d := earlierDesk(t)
	pki := pkitest.NewPKI(t, "corp", d.Clock)
	pool := "  - {name: pool, kind: data, match: [\"token:pool\"]}\n"
	entry := strings.Replace(coordinatortest.CorpEntries(pki), "CN=node-*", "CN=no\u3164de-*", 1)
	coordinatortest.WantOnlyNil(t, d.Set(pool+entry))
	m := d.Joined("a")
	rec := d.Record(identity.Data, "a")
	rec.Value.Entry, rec.Value.ProofType, rec.Value.Token = "racks", proof.TypeX509, ""
	rec.Value.Selectors = []string{"x509:dns:a.nodes.example", "x509:subject:CN=no\u3164de-a"}
	ch := d.State().Records.NewChange(d.State().HeadVersion)
	ch.Put(record.MemberKey(identity.Data, "a"), rec.Version, rec.Value)
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	renew := func(when string) {
		t.Helper()
		d.Advance(time.Minute)
		if err := m.Renew(); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	renew("after the upgrade")
	if err := d.Machine().Join(identity.Data, coordinatortest.CorpProver(t, pki, coordinatortest.CommonName(
		"no\u3164de-2"))); !errors.Is(
		err,
		errcode.JoinUnauthorized) {
		t.Errorf("a join by a name that hides a character: %v", err)
	}
	coordinatortest.WantOnlyNil(t, d.Set(pool+strings.Replace(entry, "no\u3164de-*", "node-*", 1)))
	if found := coordinatortest.FindingsAt(d, t, errcode.ManifestOutdated); len(found) != 0 {
		t.Errorf("still told: %v", found)
	}
	renew("under the manifest that mends it")
	if rec := d.Record(identity.Data, "a"); rec.Value.Entry != "racks" {
		t.Errorf("its entry is %s", rec.Value.Entry)
	}
}

// earlierDesk returns a desk of a release that sets every manifest that this one accepts. Once it
// restarts it is of this one.
func earlierDesk(t coordinatortest.TB) *coordinatortest.Desk {
	d := coordinatortest.UnopenedDesk(t)
	d.Alter = func(cfg *coordinator.Config) { cfg.ParseBy(manifest.ParseAccepted) }
	d.Open()
	d.Alter = nil
	return d
}
