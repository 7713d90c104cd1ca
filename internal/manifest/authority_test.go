package manifest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/manifest"
)

func TestAuthorityMoves(t *testing.T) {
	base := newDoc(t)
	root := newRoot(t, true)
	replaced := func(part *string, old, new string) {
		if !strings.Contains(*part, old) {
			t.Fatalf("%q is not in %q", old, *part)
		}
		*part = strings.Replace(*part, old, new, 1)
	}
	for _, tc := range []struct {
		name   string
		change func(d *doc)
		want   []string
	}{
		{"nothing", func(*doc) {}, nil},
		{"a comment", func(d *doc) { d.rest += "# changed\n" }, nil},
		{"a node more", func(d *doc) { d.admit += "  - {name: n, kind: data, match: [\"token:n\"]}\n" }, nil},
		{"an admin more", func(d *doc) { d.admit += "  - {name: n, kind: admin, match: [\"token:n\"]}\n" }, nil},
		{"a node less", func(d *doc) {
			replaced(&d.admit, "  - {name: node-c, kind: data, match: [\"x509:subject:CN=node-c\"], roles: [ingress], organizations: [acme]}\n", "")
		}, nil},
		{"lifetimes", func(d *doc) { replaced(&d.rest, "max: 24h", "max: 12h") }, nil},
		{"grace", func(d *doc) { d.rest += "rejoin_grace: 0\n" }, nil},
		{"SVIDs of coordinators", func(d *doc) { replaced(&d.admit, "coordinator-*\"]", "coordinator-*\"], svid_ttl: 30h") }, nil},
		{"coordinator more", func(d *doc) {
			d.admit += "  - {name: c2, kind: coordinator, match: [\"key:" + newKey(t).String() + "\"]}\n"
		}, []string{manifest.AuthorityCoordinators}},
		{"coordinator's selector", func(d *doc) { replaced(&d.admit, "coordinator-*", "coord-*") }, []string{manifest.AuthorityCoordinators}},
		{"coordinator's name", func(d *doc) { replaced(&d.admit, "{name: coordinators", "{name: coordinators2") }, []string{manifest.AuthorityCoordinators}},
		{"fewer coordinators", func(d *doc) { replaced(&d.admit, "coordinator-*\"]", "coordinator-*\"], max_members: 3") }, []string{manifest.AuthorityCoordinators}},
		{"signer replaced", func(d *doc) {
			d.signers = "signers:\n  threshold: 1\n  keys: [{name: alice, key: \"" + newKey(t).String() + "\"}]\n"
		}, []string{manifest.AuthoritySigners}},
		{"seed threshold", func(d *doc) { replaced(&d.seed, "threshold: 2", "threshold: 1") }, []string{manifest.AuthoritySeed}},
		{"seed owner", func(d *doc) { replaced(&d.seed, "unwrap-seed", "unwrap-seed2") }, []string{manifest.AuthoritySeed}},
		{"proof root", func(d *doc) { replaced(&d.proofs, "    roots_pem: |\n", "    roots_pem: |\n"+indent(root, 6)) }, []string{manifest.AuthorityProofs}},
		{"measurement", func(d *doc) { replaced(&d.proofs, measurement, measurement+", "+strings.Repeat("cd", 48)) }, []string{manifest.AuthorityProofs}},
		{"TCB", func(d *doc) { replaced(&d.proofs, "snp: 8", "snp: 9") }, []string{manifest.AuthorityProofs}},
		{"a proof less", func(d *doc) { d.proofs = strings.Split(d.proofs, "  sevsnp")[0] }, []string{manifest.AuthorityProofs}},
		{"trust", func(d *doc) { replaced(&d.rest, "trust: root", "trust: mesh") }, []string{manifest.AuthorityTrust, manifest.AuthorityEverySet}},
		{"cluster", func(d *doc) { replaced(&d.cluster, "prod", "test") }, []string{manifest.AuthorityCluster}},
		{"two at once", func(d *doc) {
			replaced(&d.seed, "threshold: 2", "threshold: 1")
			replaced(&d.admit, "coordinator-*", "coord-*")
		}, []string{manifest.AuthorityCoordinators, manifest.AuthoritySeed}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := base
			tc.change(&d)
			before, after := mustParse(t, base.String()), mustParse(t, d.String())
			if got := manifest.AuthorityMoves(before, after); !slices.Equal(got, tc.want) {
				t.Errorf("there: %v, want %v", got, tc.want)
			}
			if got := manifest.AuthorityMoves(after, before); !slices.Equal(got, tc.want) {
				t.Errorf("and back: %v, want %v", got, tc.want)
			}
		})
	}
	t.Run("order decides nothing", func(t *testing.T) {
		d := base
		lines := strings.SplitAfter(strings.TrimPrefix(d.admit, "admit:\n"), "\n")
		slices.Reverse(lines)
		d.admit = "admit:\n" + strings.Join(lines, "")
		if got := manifest.AuthorityMoves(mustParse(t, base.String()), mustParse(t, d.String())); got != nil {
			t.Errorf("moved: %v", got)
		}
	})
	t.Run("mesh moves with every set", func(t *testing.T) {
		d := base
		replaced(&d.rest, "trust: root", "trust: mesh")
		m := mustParse(t, d.String())
		if got := manifest.AuthorityMoves(m, m); !slices.Equal(got, []string{manifest.AuthorityEverySet}) {
			t.Errorf("moved: %v", got)
		}
	})
}
