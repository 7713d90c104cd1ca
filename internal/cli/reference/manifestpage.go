package reference

import (
	"fmt"
	"strings"

	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// A Shape is the form of one field of the manifest.
type Shape struct{ Name, takes, unset string }

const (
	mustBeSet = "required"
	nameShape = "text, one segment of a SPIFFE path"
)

// ManifestFields returns the form of each field. The topic manifest says what a
// field is for; a test holds the two together.
func ManifestFields() []Shape {
	upTo := func(n int, what string) string { return fmt.Sprintf("list of at most %d %s", n, what) }
	number := func(low, high int) string { return fmt.Sprintf("number from %d to %d", low, high) }
	return []Shape{
		{"cluster", "text, a SPIFFE trust domain", mustBeSet},
		{"seed", "object", mustBeSet},
		{"seed.threshold", number(1, manifest.MaxOwners), mustBeSet},
		{"seed.owners", upTo(manifest.MaxOwners, "owners"), mustBeSet},
		{"seed.owners.name", nameShape, mustBeSet},
		{"seed.owners.recipient", "text", "the owner is a keeper"},
		{"seed.owners.keeper", "text", "the owner is a person"},
		{"signers", "object", mustBeSet},
		{"signers.threshold", number(1, manifest.MaxSigners), mustBeSet},
		{"signers.keys", upTo(manifest.MaxSigners, "signers"), mustBeSet},
		{"signers.keys.name", nameShape, mustBeSet},
		{"signers.keys.key", "text", mustBeSet},
		{"proofs", "object", "none"},
		{"proofs.x509", "object", "no selector may begin with `x509:`"},
		{"proofs.x509.roots_pem", "text in PEM, CA certificates", mustBeSet},
		{"proofs.sevsnp", "object", "no selector may begin with `sevsnp:`"},
		{"proofs.sevsnp.measurements", upTo(manifest.MaxListItems, "texts in hex"), mustBeSet},
		{"proofs.sevsnp.min_tcb", "object", "0 for each component"},
		{"proofs.sevsnp.min_tcb.bootloader", number(0, 255), "0"},
		{"proofs.sevsnp.min_tcb.tee", number(0, 255), "0"},
		{"proofs.sevsnp.min_tcb.snp", number(0, 255), "0"},
		{"proofs.sevsnp.min_tcb.microcode", number(0, 255), "0"},
		{"admit", upTo(manifest.MaxEntries, "entries"), mustBeSet},
		{"admit.name", nameShape, mustBeSet},
		{"admit.kind", "word", mustBeSet},
		{"admit.match", upTo(manifest.MaxPatterns, "selectors"), mustBeSet},
		{"admit.roles", "list of words", "none"},
		{"admit.organizations", upTo(manifest.MaxListItems, "names"), "none"},
		{"admit.max_members", number(1, manifest.MaxMembers), "no limit"},
		{"admit.svid_ttl", "duration from " + humanize.Span(manifest.MinSVIDTTL) + " to " +
			humanize.Span(manifest.MaxSVIDTTL),
			"`degraded.max` and " + humanize.Span(manifest.DefaultSVIDMargin) + "; kinds admin and readonly: " +
				humanize.Span(manifest.DefaultPersonTTL)},
		{"admit.dns_names", upTo(manifest.MaxListItems, "names"), "none"},
		{"admit.ips", upTo(manifest.MaxListItems, "addresses"), "none"},
		{"admit.labels", upTo(manifest.MaxLabels, "texts KEY=VALUE"), "none"},
		{"admit.platform_may_read_seed", "true or false", "false"},
		{"trust", "word", string(manifest.TrustRoot)},
		{"degraded", "object", "the defaults of its fields"},
		{"degraded.allow", "list of words", "all of them: " + words(manifest.Permissions())},
		{"degraded.max", "duration from 0 to " + humanize.Span(manifest.MaxSVIDTTL-manifest.DefaultSVIDMargin),
			humanize.Span(manifest.DefaultDegradedMax)},
		{"degraded.route_ttl", "duration from 0 to " + humanize.Span(manifest.MaxRouteTTL),
			humanize.Span(manifest.DefaultRouteTTL) + ", or `degraded.max` if that is shorter"},
		{"rejoin_grace", "duration from 0 to " + humanize.Span(manifest.MaxRejoinGrace),
			humanize.Span(manifest.DefaultRejoinGrace)},
		{"baseline", "object", "the defaults of its fields"},
		{"baseline.data", fmt.Sprintf("number from 0 to %d", manifest.MaxMembers),
			fmt.Sprint(manifest.DefaultBaselineData)},
		{"workloads", "object", "tokens name no issuer"},
		{"workloads.token_issuer", fmt.Sprintf("text, an https URL of at most %d bytes", manifest.MaxIssuerBytes),
			"required"},
	}
}

func words[T ~string](list []T) string {
	var out []string
	for _, w := range list {
		out = append(out, code(string(w)))
	}
	return strings.Join(out, ", ")
}

// ManifestExample is a manifest as the page shows it. A test parses it.
const ManifestExample = `cluster: prod.example

seed:
  threshold: 1
  owners:
    - {name: host, keeper: "file:/etc/fealty/seed.key"}
    - {name: alice, recipient: age1ulrkalayhqd573xv4jxtlh3fzk9aaa0jhl5752vn5x3jgpr5l3ysf2w6hc}

signers:
  threshold: 1
  keys:
    - {name: alice, key: "ed25519:i9cOxoMn0SNFI6WGMQZmqS4BVV9n9zAmQQuRiVDrvfQ="}

admit:
  - {name: coordinator-1, kind: coordinator, match: ["key:ed25519:c8rWd9lO1Nm1PrjCROtzxaywlEgDbBDIfFvoxeEjoLI="]}
  - {name: nodes, kind: data, match: ["token:nodes"], roles: [ingress], max_members: 100, svid_ttl: 36h}
  - {name: admins, kind: admin, match: ["token:admins"], svid_ttl: 8h}

trust: root

degraded:
  allow: [continue_services, preserve_routes]
  max: 24h
  route_ttl: 1h

rejoin_grace: 7d

baseline:
  data: 3

workloads:
  token_issuer: https://id.example/prod
`

func manifestPage() string {
	var b strings.Builder
	b.WriteString("# Manifest\n\n" + generatedNote)
	fmt.Fprintf(&b, "The trust policy of a cluster, one document in YAML or JSON, of at most %d bytes. A field that "+
		"is not known is an\n", manifest.MaxBytes)
	b.WriteString(`error, and so is one that stands twice. A duration has a unit: ` + "`d`, `h`, `m` or `s`" + `, ` +
		`as in ` + "`36h`" + `.

` + "`fealty manifest init`" + ` writes one to start from, ` + "`fealty manifest verify`" + ` shows every problem ` +
		`of one with line and
column, and ` + "`fealty explain manifest`" + ` shows these fields in a terminal. How to change it is told in
[Change the manifest](../how-to/change-the-manifest.md).

` + "```yaml\n" + ManifestExample + "```" + `

## Fields

A field below an object that may be left out is required where that object is given. Of ` + "`recipient`" + ` and ` +
		`` + "`keeper`" + ` an
owner has one.

| field | what | takes | not set |
| --- | --- | --- | --- |
`)
	about := map[string]string{}
	for _, t := range Topics() {
		if t.Name == "manifest" {
			for _, f := range t.Fields {
				about[f.Name] = f.Text
			}
		}
	}
	for _, s := range ManifestFields() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", code(s.Name), about[s.Name], s.takes, s.unset)
	}
	return b.String()
}
