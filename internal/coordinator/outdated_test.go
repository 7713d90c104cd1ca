// Inside the package: it plays a release that set what this one refuses.

package coordinator

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
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/manifest"
)

// A cluster that was founded under an earlier release, with what this one refuses in its
// manifest, starts, certifies its members, tells of it, and takes the manifest that
// mends it. Nothing new of the kind is taken.
func TestOutdatedManifest(t *testing.T) {
	t.Parallel()
	outdated := map[string]string{
		"a filler in a selector": "  - {name: root, kind: admin, match: [\"key:KEY\"]} # ro\u3164ot\n",
		"a tag in a comment":     "  - {name: root, kind: admin, match: [\"key:KEY\"]} # \U000e0041\n",
		"pods":                   "  - {name: pods, kind: data, match: [\"k8s:sa:prod/agent-*\"]}\n",
		"TPM":                    "  - {name: metal, kind: data, match: [\"tpm:ek:" + strings.Repeat("ab", 32) + "\"]}\n",
	}
	for name, entry := range outdated {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			public, _, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			key, err := manifest.NewKey(public)
			if err != nil {
				t.Fatal(err)
			}
			entry := strings.Replace(entry, "KEY", key.String(), 1)
			d.c.parse = manifest.ParseAccepted
			pool := "  - {name: pool, kind: data, match: [\"token:pool\"]}\n"
			if err := d.set(pool + entry); err != nil {
				t.Fatal(err)
			}
			d.restart()
			if d.state().phase != phaseReady {
				t.Fatalf("it did not come back: %s", d.state().reason)
			}
			found := d.findings(t, explain.ManifestOutdated)
			if len(found) != 1 {
				t.Fatalf("findings %v, want the place that could not be set today", found)
			}

			m := d.machine()
			if err := m.join(identity.Data, proof.NewTokenProver(d.token(&fealtyv1.CreateTokenRequest{Entry: "pool"}))); err != nil {
				t.Fatal(err)
			}
			d.advance(time.Minute)
			next, err := newKey()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.renewWith(m.leaf, next); err != nil {
				t.Errorf("a member is not renewed: %v", err)
			}

			again := d.request(d.manifest(pool + entry + "# another\n"))
			if _, err := d.c.set(context.Background(), again, false); !errors.Is(err, explain.ManifestInvalid) {
				t.Fatalf("set once more = %v, want %v", err, explain.ManifestInvalid)
			}
			if err := d.set(pool); err != nil {
				t.Fatalf("the manifest that mends it: %v", err)
			}
			if found := d.findings(t, explain.ManifestOutdated); len(found) != 0 {
				t.Errorf("still told: %v", found)
			}
		})
	}
}
