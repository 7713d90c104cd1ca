package reference_test

import (
	"slices"
	"testing"

	"github.com/fealty-io/fealty/internal/cli/reference"
	"github.com/fealty-io/fealty/internal/manifest"
)

// The page of the manifest has a row for each field that is explained, in the same
// order, and for no other.
func TestManifestPageHasEveryField(t *testing.T) {
	fields, shapes := topicNamed(t, "manifest").Fields, reference.ManifestFields()
	if len(fields) != len(shapes) {
		t.Errorf("%d fields are explained, and %d have a form", len(fields), len(shapes))
	}
	for i := range min(len(fields), len(shapes)) {
		if fields[i].Name != shapes[i].Name {
			t.Fatalf("field %d is %s where it is explained, and %s where its form is", i, fields[i].Name, shapes[i].Name)
		}
	}
}

// The manifest that the page shows is one.
func TestManifestPageShowsAManifest(t *testing.T) {
	if _, err := manifest.Parse([]byte(reference.ManifestExample)); err != nil {
		t.Fatal(err)
	}
}

// Each field that is not of the first release is one that coordinators tell each other
// they read: otherwise a set would lock out those that do not.
func TestLaterFieldsAreTold(t *testing.T) {
	first := []string{
		"cluster", "seed", "seed.threshold", "seed.owners", "seed.owners.name", "seed.owners.recipient",
		"seed.owners.keeper", "signers", "signers.threshold", "signers.keys", "signers.keys.name",
		"signers.keys.key", "proofs", "proofs.x509", "proofs.x509.roots_pem", "proofs.sevsnp",
		"proofs.sevsnp.measurements", "proofs.sevsnp.min_tcb", "proofs.sevsnp.min_tcb.bootloader",
		"proofs.sevsnp.min_tcb.tee", "proofs.sevsnp.min_tcb.snp", "proofs.sevsnp.min_tcb.microcode", "admit",
		"admit.name", "admit.kind", "admit.match", "admit.roles", "admit.organizations", "admit.max_members",
		"admit.svid_ttl", "admit.dns_names", "admit.ips", "admit.platform_may_read_seed", "trust", "degraded",
		"degraded.allow", "degraded.max", "degraded.route_ttl", "rejoin_grace",
	}
	later := manifest.LaterFields()
	for _, shape := range reference.ManifestFields() {
		if slices.Contains(first, shape.Name) == slices.Contains(later, shape.Name) {
			t.Errorf("%s is new: give it a row in internal/manifest/fields.go, for coordinators that cannot read it", shape.Name)
		}
	}
}
