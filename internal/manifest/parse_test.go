package manifest_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/manifest"
)

func TestParse(t *testing.T) {
	d := newDoc(t)
	m := mustParse(t, d.String())
	if m.Cluster != "prod.example" || m.Seed.Threshold != 2 || len(m.Seed.Owners) != 3 || len(m.Signers.Keys) != 1 || len(m.Admit) != 4 {
		t.Errorf("fields read: %+v", m)
	}
	if m.Hash() != sha256.Sum256([]byte(d.String())) || string(m.Bytes()) != d.String() {
		t.Error("hash and bytes are not those of the exact document")
	}
	if len(m.Proofs.X509.RootsDER) != 1 || !slices.Equal(m.Proofs.SEVSNP.Measurements, []string{measurement}) || m.Proofs.SEVSNP.MinTCB.SNP != 8 {
		t.Errorf("proofs: %+v %+v", m.Proofs.X509, m.Proofs.SEVSNP)
	}
	if want := []manifest.Permission{manifest.ContinueServices, manifest.PreserveRoutes, manifest.ReconnectPeers}; !slices.Equal(m.Degraded.Allow, want) {
		t.Errorf("degraded.allow = %v, want %v", m.Degraded.Allow, want)
	}
	e, ok := m.EntryByName("edge-pool")
	if !ok || e.MaxMembers != 1000 || e.SVIDTTL != 72*time.Hour || !e.AdmitsTokens() || e.DNSNames == nil {
		t.Errorf("EntryByName(edge-pool) = %+v, %v", e, ok)
	}
	if _, ok := m.EntryByName("nobody"); ok {
		t.Error("EntryByName found an entry that is not there")
	}
	if m.LongestSVIDTTL() != 72*time.Hour {
		t.Errorf("LongestSVIDTTL = %v", m.LongestSVIDTTL())
	}
}

// The caller's bytes must not be the manifest's.
func TestBytesAreCopies(t *testing.T) {
	text := []byte(newDoc(t).String())
	m := mustParse(t, string(text))
	m.Bytes()[0] = 'X'
	if string(m.Bytes()) != string(text) {
		t.Error("writing to Bytes() changed the manifest")
	}
}

func TestDefaults(t *testing.T) {
	d := newDoc(t)
	for _, tc := range []struct {
		name, rest, entry     string
		node, person, max     time.Duration
		routes, grace         time.Duration
		trust                 manifest.Trust
		permissions, listNone int
	}{
		{name: "nothing written", node: 25 * time.Hour, person: 8 * time.Hour, max: 24 * time.Hour, routes: time.Hour,
			grace: 7 * 24 * time.Hour, trust: manifest.TrustRoot, permissions: 6},
		{name: "short-lived", rest: "degraded: {max: 10m}\n", node: 70 * time.Minute, person: 8 * time.Hour, max: 10 * time.Minute,
			routes: 10 * time.Minute, grace: 7 * 24 * time.Hour, trust: manifest.TrustRoot, permissions: 6},
		{name: "switched off", rest: "degraded: {allow: [], max: 0}\nrejoin_grace: 0\ntrust: mesh\n", node: time.Hour, person: 8 * time.Hour,
			trust: manifest.TrustMesh},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d.rest = tc.rest
			m := mustParse(t, d.String())
			node, _ := m.EntryByName("node-c")
			person, _ := m.EntryByName("alice")
			if node.SVIDTTL != tc.node || person.SVIDTTL != tc.person {
				t.Errorf("svid_ttl: node %v, person %v, want %v, %v", node.SVIDTTL, person.SVIDTTL, tc.node, tc.person)
			}
			if m.Degraded.Max != tc.max || m.Degraded.RouteTTL != tc.routes || m.RejoinGrace != tc.grace || m.Trust != tc.trust || len(m.Degraded.Allow) != tc.permissions {
				t.Errorf("degraded %+v, grace %v, trust %v", m.Degraded, m.RejoinGrace, m.Trust)
			}
		})
	}
}

func TestParseJSON(t *testing.T) {
	recipient, _ := json.Marshal(newRecipient(t))
	key, _ := json.Marshal(newKey(t))
	compact := fmt.Sprintf(`{"cluster":"prod.example","seed":{"threshold":1,"owners":[{"name":"alice","recipient":%s}]},`+
		`"signers":{"threshold":1,"keys":[{"name":"a\u006cice","key":%s}]},`+
		`"admit":[{"name":"c","kind":"coordinator","match":["key:ed25519:%s"]}],"rejoin_grace":"7d"}`, recipient, key, hex.EncodeToString(newKey(t).Public()))
	var indented strings.Builder
	enc := json.NewEncoder(&indented)
	enc.SetIndent("", "\t")
	var v any
	if err := json.Unmarshal([]byte(compact), &v); err != nil {
		t.Fatal(err)
	}
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"compact": compact, "tabs": indented.String(), "crlf": strings.ReplaceAll(indented.String(), "\n", "\r\n")} {
		t.Run(name, func(t *testing.T) {
			m := mustParse(t, text)
			if m.Signers.Keys[0].Name != "alice" || m.Admit[0].Kind != identity.Coordinator {
				t.Errorf("read as %+v", m)
			}
		})
	}
}

// refusals has, for each rule, documents that break it. line is where the
// problem must point to, counted in the part of the document that was changed;
// 0 leaves it out.
func refusals(t testing.TB) []refusal {
	base := newDoc(t)
	with := func(change func(d *doc)) string {
		d := base
		change(&d)
		return d.String()
	}
	admit := func(lines ...string) string {
		return with(func(d *doc) { d.admit += "  - " + strings.Join(lines, "\n  - ") + "\n" })
	}
	rest := func(s string) string { return with(func(d *doc) { d.rest = s }) }
	issuer := func(s string) string { return rest(fmt.Sprintf("workloads: {token_issuer: %q}\n", s)) }
	owners := func(s string) string { return with(func(d *doc) { d.seed = s }) }
	signers := func(s string) string { return with(func(d *doc) { d.signers = s }) }
	proofs := func(s string) string { return with(func(d *doc) { d.proofs = s; d.admit = onlyKeys(t) }) }
	recipient, key := newRecipient(t), newKey(t)
	owner := func(s string) string { return owners("seed: {threshold: 1, owners: [{name: a, " + s + "}]}\n") }
	entry := func(s string) string { return admit("{name: x, kind: data, match: [\"token:x\"], " + s + "}") }
	globs := func(n int) string {
		var lines []string
		for i := range n {
			lines = append(lines, fmt.Sprintf("{name: g%d, kind: data, match: [\"x509:dns:*.g%d.example\"]}", i, i))
		}
		return admit(lines...)
	}
	return []refusal{
		{"size", "one byte too many", base.String() + "#" + strings.Repeat("x", manifest.MaxBytes-len(base.String())), ""},
		{"characters", "not UTF-8", with(func(d *doc) { d.cluster = "cluster: \"prod\xff\"\n" }), ""},
		{"characters", "terminal escape", base.String() + "# \x1b[2K\n", ""},
		{"characters", "right-to-left override", base.String() + "# \u202e\n", ""},
		{"characters", "byte order mark", "\ufeff" + base.String(), ""},
		{"characters", "NUL", base.String() + "\x00", ""},
		{"syntax", "nothing", "", ""},
		{"syntax", "only a comment", "# later\n", ""},
		{"syntax", "open bracket", base.String() + "x: [1\n", ""},
		{"syntax", "open quote", base.String() + "x: \"\n", ""},
		{"one-document", "a second one", base.String() + "---\ncluster: evil.example\n", ""},
		{"plain-yaml", "alias bomb", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", ""},
		{"plain-yaml", "tag", with(func(d *doc) { d.cluster = "cluster: !!binary cHJvZA==\n" }), ""},
		{"plain-yaml", "merge key", base.String() + "<<: {trust: mesh}\n", ""},
		{"plain-yaml", "explicit key", base.String() + "? trust\n: mesh\n", ""},
		{"plain-yaml", "directive", "%YAML 1.2\n---\n" + base.String(), ""},
		{"depth", "brackets", "cluster: " + strings.Repeat("[", 100_000), ""},
		{"depth", "braces", "cluster: " + strings.Repeat("{a: ", 100_000), ""},
		{"depth", "lists in lists", strings.Repeat("- ", 100_000) + "x\n", ""},
		{"depth", "objects in objects", deepBlocks(60), ""},
		{"depth", "colons", strings.Repeat("a: ", 100_000), ""},
		{"depth", "colons in braces", "{" + strings.Repeat("\"a\": ", 60_000) + "}", ""},
		{"unknown-field", "top", base.String() + "trusts: mesh\n", "trusts"},
		{"unknown-field", "entry", entry("svid_tll: 30h"), "admit[4].svid_tll"},
		{"unknown-field", "proof", proofs("proofs: {sgx: {}}\n"), "proofs.sgx"},
		{"duplicate-field", "top", base.String() + "trust: mesh\n", "trust"},
		{"duplicate-field", "entry", entry("kind: admin"), "admit[4].kind"},
		{"missing-field", "cluster", with(func(d *doc) { d.cluster = "" }), "cluster"},
		{"missing-field", "signers", signers(""), "signers"},
		{"missing-field", "entry's match", admit("{name: x, kind: data}"), "admit[4].match"},
		{"wrong-type", "number for string", with(func(d *doc) { d.cluster = "cluster: 12\n" }), "cluster"},
		{"wrong-type", "nothing", with(func(d *doc) { d.admit = "admit:\n" }), "admit"},
		{"wrong-type", "string for list", entry("roles: core"), "admit[4].roles"},
		{"wrong-type", "string for number", entry("max_members: \"3\""), "admit[4].max_members"},
		{"wrong-type", "float", entry("max_members: 1e3"), "admit[4].max_members"},
		{"wrong-type", "octal", entry("max_members: 010"), "admit[4].max_members"},
		{"wrong-type", "a yes that is no bool", admit("{name: x, kind: coordinator, match: [\"k8s:sa:p/a\"], platform_may_read_seed: yes}"), "admit[4].platform_may_read_seed"},
		{"wrong-type", "a scalar document", "hello\n", ""},
		{"wrong-type", "field name is a number", base.String() + "12: b\n", ""},
		{"too-many", "patterns", admit("{name: x, kind: data, match: [" + strings.Repeat("\"tpm:ek:x\", ", manifest.MaxPatterns+1) + "]}"), "admit[4].match"},
		{"too-many", "fields in braces", base.String() + "x: {" + strings.Repeat("a: b, ", 100) + "}\n", ""},
		{"too-many", "fields of an object", base.String() + strings.Repeat("a: b\n", 100_000), ""},
		{"too-many", "fields of an object within", base.String() + "x:\n" + strings.Repeat("  a:\n  - b\n", 50_000), ""},
		{"too-many", "items", base.String() + "x:\n" + strings.Repeat("- {a: b}\n", 40_000), ""},
		{"too-many", "items in brackets", base.String() + "x: [" + strings.Repeat("a,", 100_000) + "]\n", ""},
		{"too-many", "items without a value", base.String() + "x:\n" + strings.Repeat("-\n", 100_000), ""},
		{"too-many", "marks", base.String() + "x: [" + strings.Repeat("[],", 90_000) + "]\n", ""},
		{"characters", "a tag", rest("# a\U000E0041\n"), ""},
		{"characters", "a Hangul filler", admit("{name: x, kind: admin, match: [\"x509:subject:CN=root\u3164\"]}"), ""},
		{"characters", "a half-width filler", admit("{name: x, kind: admin, match: [\"x509:subject:CN=root\uffa0\"]}"), ""},
		{"characters", "a variation selector", rest("# a\ufe0f\n"), ""},
		{"characters", "a soft hyphen", rest("# a\u00adb\n"), ""},
		{"characters", "a grapheme joiner", rest("# a\u034fb\n"), ""},
		{"characters", "a vowel separator", rest("# a\u180eb\n"), ""},
		{"characters", "a blank Braille pattern", rest("# a\u2800b\n"), ""},
		{"characters", "an annotation", rest("# a\ufff9b\n"), ""},
		{"characters", "an escape of a filler", admit(`{name: x, kind: admin, match: ["x509:subject:CN=root\u3164"]}`), ""},
		{"characters", "an escape of a direction", admit(`{name: x, kind: admin, match: ["x509:subject:CN=root\u202e"]}`), ""},
		{"characters", "an escape of a control character", admit(`{name: x, kind: admin, match: ["x509:subject:CN=ro\u0085ot"]}`), ""},
		{"selector-unproven", "TPM", admit("{name: x, kind: data, match: [\"tpm:ek:" + strings.Repeat("0", 64) + "\"]}"), "admit[4].match[0]"},
		{"selector-unproven", "SEV-SNP", admit("{name: x, kind: data, match: [\"key:" + newKey(t).String() + "\", \"sevsnp:measurement:" + measurement + "\"]}"), "admit[4].match[1]"},
		{"selector-unproven", "Kubernetes", admit("{name: x, kind: data, match: [\"k8s:sa:prod/agent-*\"]}"), "admit[4].match[0]"},
		{"selector-unproven", "coordinator", admit("{name: x, kind: coordinator, platform_may_read_seed: true, match: [\"k8s:sa:prod/c\"]}"), "admit[4].match[0]"},
		{"number-range", "zero members", entry("max_members: 0"), "admit[4].max_members"},
		{"number-range", "negative threshold", owners("seed: {threshold: -1, owners: [{name: a, recipient: " + recipient + "}]}\n"), "seed.threshold"},
		{"number-range", "beyond the limit", entry("max_members: 9999999999"), "admit[4].max_members"},
		{"wrong-type", "beyond an int", entry("max_members: 99999999999999999999"), "admit[4].max_members"},
		{"number-range", "TCB of a byte", proofs("proofs: {sevsnp: {measurements: [], min_tcb: {tee: 256}}}\n"), "proofs.sevsnp.min_tcb.tee"},
		{"duration", "no unit", rest("rejoin_grace: 3600\n"), "rejoin_grace"},
		{"duration", "unknown unit", rest("rejoin_grace: 2w\n"), "rejoin_grace"},
		{"duration", "fraction", rest("degraded: {max: 1.5h}\n"), "degraded.max"},
		{"duration", "negative", rest("rejoin_grace: -1h\n"), "rejoin_grace"},
		{"duration", "units in the wrong order", rest("rejoin_grace: 1m1h\n"), "rejoin_grace"},
		{"duration", "unit twice", rest("rejoin_grace: 1h1h\n"), "rejoin_grace"},
		{"duration", "more than an int64", rest("rejoin_grace: 999999d\n"), "rejoin_grace"},
		{"label", "no value", entry("labels: [rack]"), "admit[4].labels[0]"},
		{"label", "a space", entry("labels: [\"rack=a b\"]"), "admit[4].labels[0]"},
		{"label", "two of one key", entry("labels: [rack=r1, rack=r2]"), "admit[4].labels[1]"},
		{"duration", "too long", entry("svid_ttl: 91d"), "admit[4].svid_ttl"},
		{"duration", "too short", entry("svid_ttl: 59s"), "admit[4].svid_ttl"},
		{"cluster-name", "upper case", with(func(d *doc) { d.cluster = "cluster: Prod\n" }), "cluster"},
		{"cluster-name", "empty", with(func(d *doc) { d.cluster = "cluster: \"\"\n" }), "cluster"},
		{"name", "path", admit("{name: \"../admin\", kind: data, match: [\"tpm:ek:" + strings.Repeat("0", 64) + "\"]}"), "admit[4].name"},
		{"name", "dots", admit("{name: \"..\", kind: data, match: [\"token:x\"]}"), "admit[4].name"},
		{"name", "too long", entry("organizations: [" + strings.Repeat("x", 129) + "]"), "admit[4].organizations[0]"},
		{"duplicate-item", "role", entry("roles: [core, core]"), "admit[4].roles[1]"},
		{"duplicate-item", "measurement in two cases", proofs("proofs: {sevsnp: {measurements: [" + measurement + ", " + strings.ToUpper(measurement) + "]}}\n"), "proofs.sevsnp.measurements[1]"},
		{"recipient", "mistyped", owner("recipient: " + mistype(recipient)), "seed.owners[0].recipient"},
		{"recipient", "cut", owner("recipient: " + recipient[:40]), "seed.owners[0].recipient"},
		{"recipient", "private key", owner("recipient: AGE-SECRET-KEY-1XXXX"), "seed.owners[0].recipient"},
		{"recipient", "other type of ssh", owner("recipient: ssh-dss AAAA"), "seed.owners[0].recipient"},
		{"recipient", "ssh key of another type than it says", owner("recipient: ssh-ed25519 " + sshBlob("ssh-rsa", 32)), "seed.owners[0].recipient"},
		{"recipient", "short ssh key", owner("recipient: ssh-ed25519 " + sshBlob("ssh-ed25519", 31)), "seed.owners[0].recipient"},
		{"recipient", "weak RSA", owner("recipient: ssh-rsa " + sshBlob("ssh-rsa", 3, 129)), "seed.owners[0].recipient"},
		{"keeper", "unknown scheme", owner("keeper: \"vault:/x\""), "seed.owners[0].keeper"},
		{"keeper", "relative path", owner("keeper: \"exec:unwrap\""), "seed.owners[0].keeper"},
		{"keeper", "path that climbs", owner("keeper: \"file:/etc/../tmp/x\""), "seed.owners[0].keeper"},
		{"owner-holder", "neither", owners("seed: {threshold: 1, owners: [{name: a}]}\n"), "seed.owners[0]"},
		{"owner-holder", "both", owner("recipient: " + recipient + ", keeper: \"file:/x\""), "seed.owners[0]"},
		{"key", "no prefix", signers("signers: {threshold: 1, keys: [{name: a, key: " + key.String()[8:] + "}]}\n"), "signers.keys[0].key"},
		{"key", "short", signers("signers: {threshold: 1, keys: [{name: a, key: \"ed25519:AAAA\"}]}\n"), "signers.keys[0].key"},
		{"key", "not padded", signers("signers: {threshold: 1, keys: [{name: a, key: \"" + strings.TrimSuffix(key.String(), "=") + "\"}]}\n"), "signers.keys[0].key"},
		{"key", "anyone can sign for it", signers("signers: {threshold: 1, keys: [{name: a, key: \"ed25519:01" + strings.Repeat("0", 62) + "\"}]}\n"), "signers.keys[0].key"},
		{"measurement", "short", proofs("proofs: {sevsnp: {measurements: [abcd]}}\n"), "proofs.sevsnp.measurements[0]"},
		{"roots-pem", "nothing", proofs("proofs: {x509: {roots_pem: \"\"}}\n"), "proofs.x509.roots_pem"},
		{"roots-pem", "garbage", proofs("proofs: {x509: {roots_pem: nonsense}}\n"), "proofs.x509.roots_pem"},
		{"roots-pem", "not a CA", proofs("proofs:\n  x509:\n    roots_pem: |\n" + indent(newRoot(t, false), 6)), "proofs.x509.roots_pem"},
		{"roots-pem", "a block that only looks like one", proofs("proofs:\n  x509:\n    roots_pem: |\n" + indent(newRoot(t, true)+strings.ReplaceAll(newRoot(t, true), "-----", "----"), 6)), "proofs.x509.roots_pem"},
		{"roots-pem", "a broken block before a good one", proofs("proofs:\n  x509:\n    roots_pem: |\n" + indent("-----BEGIN CERTIFICATE-----\n!\n"+newRoot(t, true), 6)), "proofs.x509.roots_pem"},
		{"roots-pem", "private key", proofs("proofs:\n  x509:\n    roots_pem: |\n" + indent("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", 6)), "proofs.x509.roots_pem"},
		{"kind", "unknown", admit("{name: x, kind: dat, match: [\"token:x\"]}"), "admit[4].kind"},
		{"kind", "workload does not join", admit("{name: x, kind: workload, match: [\"token:x\"]}"), "admit[4].kind"},
		{"role", "unknown", entry("roles: [cor]"), "admit[4].roles[0]"},
		{"selector", "none", admit("{name: x, kind: data, match: []}"), "admit[4].match"},
		{"selector", "unknown family", admit("{name: x, kind: data, match: [\"x508:subject:CN=x\"]}"), "admit[4].match[0]"},
		{"selector", "unknown attribute", admit("{name: x, kind: data, match: [\"x509:cn:x\"]}"), "admit[4].match[0]"},
		{"selector", "no colon", admit("{name: x, kind: data, match: [x509]}"), "admit[4].match[0]"},
		{"selector", "two stars", admit("{name: x, kind: data, match: [\"x509:subject:CN=*-*\"]}"), "admit[4].match[0]"},
		{"selector", "star in a key", admit("{name: x, kind: data, match: [\"key:*\"]}"), "admit[4].match[0]"},
		{"selector", "star in a token", admit("{name: x, kind: data, match: [\"token:*\"]}"), "admit[4].match[0]"},
		{"selector", "star in a measurement", admit("{name: x, kind: data, match: [\"sevsnp:measurement:*\"]}"), "admit[4].match[0]"},
		{"selector", "star in a namespace", admit("{name: x, kind: data, match: [\"k8s:sa:*/agent\"]}"), "admit[4].match[0]"},
		{"selector", "empty value", admit("{name: x, kind: data, match: [\"x509:subject:CN=\"]}"), "admit[4].match[0]"},
		{"selector", "other attribute of a subject", admit("{name: x, kind: data, match: [\"x509:subject:O=acme\"]}"), "admit[4].match[0]"},
		{"selector", "no URI", admit("{name: x, kind: data, match: [\"x509:uri:*\"]}"), "admit[4].match[0]"},
		{"selector", "short hash", admit("{name: x, kind: data, match: [\"tpm:ek:abcd\"]}"), "admit[4].match[0]"},
		{"selector", "bad key", admit("{name: x, kind: data, match: [\"key:ed25519:abcd\"]}"), "admit[4].match[0]"},
		{"selector", "too long", admit("{name: x, kind: data, match: [\"x509:dns:" + strings.Repeat("x", 600) + "\"]}"), "admit[4].match[0]"},
		{"dns-name", "wildcard", entry("dns_names: [\"*.example\"]"), "admit[4].dns_names[0]"},
		{"dns-name", "address", entry("dns_names: [\"10.0.0.1\"]"), "admit[4].dns_names[0]"},
		{"ip", "not one", entry("ips: [node-c]"), "admit[4].ips[0]"},
		{"ip", "every address", entry("ips: [\"0.0.0.0\"]"), "admit[4].ips[0]"},
		{"trust", "unknown", rest("trust: roots\n"), "trust"},
		{"token-issuer", "empty", issuer(""), "workloads.token_issuer"},
		{"token-issuer", "too long", issuer("https://id.example/" + strings.Repeat("a", manifest.MaxIssuerBytes)), "workloads.token_issuer"},
		{"token-issuer", "plain HTTP", issuer("http://id.example"), "workloads.token_issuer"},
		{"token-issuer", "an upper case scheme", issuer("HTTPS://id.example"), "workloads.token_issuer"},
		{"token-issuer", "no scheme", issuer("id.example"), "workloads.token_issuer"},
		{"token-issuer", "a query", issuer("https://id.example?x=1"), "workloads.token_issuer"},
		{"token-issuer", "an empty query", issuer("https://id.example?"), "workloads.token_issuer"},
		{"token-issuer", "a fragment", issuer("https://id.example#x"), "workloads.token_issuer"},
		{"token-issuer", "an empty fragment", issuer("https://id.example/a#"), "workloads.token_issuer"},
		{"token-issuer", "a user", issuer("https://alice@id.example"), "workloads.token_issuer"},
		{"token-issuer", "no host", issuer("https://"), "workloads.token_issuer"},
		{"token-issuer", "no host before a path", issuer("https:///a"), "workloads.token_issuer"},
		{"token-issuer", "no host before a port", issuer("https://:443"), "workloads.token_issuer"},
		{"token-issuer", "an upper case host", issuer("https://Id.example"), "workloads.token_issuer"},
		{"token-issuer", "a dot at the end of the host", issuer("https://id.example."), "workloads.token_issuer"},
		{"token-issuer", "a wildcard", issuer("https://*.example"), "workloads.token_issuer"},
		{"token-issuer", "a zone", issuer("https://[fe80::1%25eth0]"), "workloads.token_issuer"},
		{"token-issuer", "another spelling of an address", issuer("https://[0:0::1]"), "workloads.token_issuer"},
		{"token-issuer", "an IPv6 address without brackets", issuer("https://2001:db8::1"), "workloads.token_issuer"},
		{"token-issuer", "no port", issuer("https://id.example:"), "workloads.token_issuer"},
		{"token-issuer", "port zero", issuer("https://id.example:0"), "workloads.token_issuer"},
		{"token-issuer", "a port beyond", issuer("https://id.example:65536"), "workloads.token_issuer"},
		{"token-issuer", "another spelling of a port", issuer("https://id.example:0443"), "workloads.token_issuer"},
		{"token-issuer", "a slash alone", issuer("https://id.example/"), "workloads.token_issuer"},
		{"token-issuer", "a slash at the end", issuer("https://id.example/a/"), "workloads.token_issuer"},
		{"token-issuer", "an empty segment", issuer("https://id.example/a//b"), "workloads.token_issuer"},
		{"token-issuer", "a path that climbs", issuer("https://id.example/a/../b"), "workloads.token_issuer"},
		{"token-issuer", "a path that stays", issuer("https://id.example/./a"), "workloads.token_issuer"},
		{"token-issuer", "an escape", issuer("https://id.example/a%2fb"), "workloads.token_issuer"},
		{"token-issuer", "a space", issuer("https://id.example/a b"), "workloads.token_issuer"},
		{"token-issuer", "a backslash", issuer("https://id.example\\a"), "workloads.token_issuer"},
		{"wrong-type", "an issuer that is a number", rest("workloads: {token_issuer: 12}\n"), "workloads.token_issuer"},
		{"missing-field", "workloads that say nothing", rest("workloads: {}\n"), "workloads.token_issuer"},
		{"permission", "unknown", rest("degraded: {allow: [issue_certificates]}\n"), "degraded.allow[0]"},
		{"duplicate-name", "entries", admit("{name: alice, kind: data, match: [\"token:alice\"]}"), "admit[4].name"},
		{"duplicate-name", "owners", owners("seed: {threshold: 1, owners: [{name: a, recipient: " + recipient + "}, {name: a, keeper: \"file:/x\"}]}\n"), "seed.owners[1].name"},
		{"duplicate-name", "signers", signers("signers: {threshold: 1, keys: [{name: a, key: \"" + key.String() + "\"}, {name: a, key: \"" + newKey(t).String() + "\"}]}\n"), "signers.keys[1].name"},
		{"duplicate-key", "in two encodings", signers("signers: {threshold: 2, keys: [{name: a, key: \"" + key.String() + "\"}, {name: b, key: \"ed25519:" + hex.EncodeToString(key[:]) + "\"}]}\n"), "signers.keys[1].key"},
		{"duplicate-recipient", "two names", owners("seed: {threshold: 2, owners: [{name: a, recipient: " + recipient + "}, {name: b, recipient: " + recipient + "}]}\n"), "seed.owners[1].recipient"},
		{"duplicate-recipient", "two comments", owners("seed: {threshold: 2, owners: [{name: a, recipient: ssh-ed25519 " + sshBlob("ssh-ed25519", 32) + " a@x}, {name: b, recipient: ssh-ed25519 " + sshBlob("ssh-ed25519", 32) + " b@y}]}\n"), "seed.owners[1].recipient"},
		{"seed-threshold", "above the owners", owners("seed: {threshold: 2, owners: [{name: a, recipient: " + recipient + "}]}\n"), "seed.threshold"},
		{"seed-threshold", "above the people", owners("seed: {threshold: 2, owners: [{name: a, recipient: " + recipient + "}, {name: k, keeper: \"file:/k\"}]}\n"), "seed.threshold"},
		{"seed-threshold", "of keepers alone", owners("seed: {threshold: 2, owners: [{name: j, keeper: \"file:/j\"}, {name: k, keeper: \"file:/k\"}]}\n"), "seed.threshold"},
		{"seed-threshold", "no owner", owners("seed: {threshold: 1, owners: []}\n"), "seed.owners"},
		{"signers-threshold", "above the keys", signers("signers: {threshold: 2, keys: [{name: a, key: \"" + key.String() + "\"}]}\n"), "signers.threshold"},
		{"signers-threshold", "no signer", signers("signers: {threshold: 1, keys: []}\n"), "signers.keys"},
		{"no-coordinator", "only nodes", with(func(d *doc) { d.admit = "admit:\n  - {name: x, kind: data, match: [\"token:x\"]}\n" }), "admit"},
		{"no-coordinator", "no entry", with(func(d *doc) { d.admit = "admit: []\n" }), "admit"},
		{"coordinator-selector", "token", admit("{name: x, kind: coordinator, match: [\"token:x\"]}"), "admit[4].match[0]"},
		{"coordinator-selector", "pod", admit("{name: x, kind: coordinator, match: [\"k8s:sa:prod/x\"]}"), "admit[4].match[0]"},
		{"platform-flag", "data", entry("platform_may_read_seed: true"), "admit[4].platform_may_read_seed"},
		{"platform-flag", "coordinator without k8s", admit("{name: x, kind: coordinator, platform_may_read_seed: true, match: [\"x509:subject:CN=x\"]}"), "admit[4].platform_may_read_seed"},
		{"token-entry", "of another entry", admit("{name: x, kind: data, match: [\"token:y\"]}"), "admit[4].match[0]"},
		{"selector-without-proof", "no roots", with(func(d *doc) { d.proofs = "" }), "admit[0].match[0]"},
		{"selector-without-proof", "unlisted measurement", admit("{name: x, kind: data, match: [\"sevsnp:measurement:" + strings.Repeat("cd", 48) + "\"]}"), "admit[4].match[0]"},
		{"two-kinds", "same selector", admit("{name: x, kind: data, match: [\"x509:subject:CN=alice\"]}"), "admit[4].match[0]"},
		{"two-kinds", "name under a glob", admit("{name: x, kind: data, match: [\"x509:subject:CN=coordinator-7\"]}"), "admit[4].match[0]"},
		{"two-kinds", "glob over a name", admit("{name: x, kind: witness, match: [\"x509:subject:CN=ali*\"]}"), "admit[4].match[0]"},
		{"two-kinds", "globs that meet", admit("{name: x, kind: data, match: [\"x509:subject:CN=*-7\"]}"), "admit[4].match[0]"},
		{"two-kinds", "key in two encodings", admit("{name: x, kind: data, match: [\""+"key:"+key.String()+"\"]}", "{name: y, kind: admin, match: [\"key:ed25519:"+hex.EncodeToString(key[:])+"\"]}"), "admit[5].match[0]"},
		{"shadowed-selector", "same selector", admit("{name: x, kind: data, match: [\"x509:subject:CN=node-c\"]}"), "admit[4].match[0]"},
		{"shadowed-selector", "twice in an entry", admit("{name: x, kind: data, match: [\"token:x\", \"token:x\"]}"), "admit[4].match[1]"},
		{"shadowed-selector", "wider glob before", admit("{name: x, kind: data, match: [\"x509:dns:*.example\"]}", "{name: y, kind: data, match: [\"x509:dns:*.a.example\"]}"), "admit[5].match[0]"},
		{"too-many-globs", "one too many", globs(manifest.MaxGlobs), "admit[1003].match[0]"},
		{"degraded-max", "longer than an SVID", rest("degraded: {max: 72h}\n"), "admit[2].svid_ttl"},
		{"degraded-max", "as long as an SVID", entry("svid_ttl: 24h"), "admit[4].svid_ttl"},
		{"route-ttl", "longer than the mode", rest("degraded: {max: 1h, route_ttl: 2h}\n"), "degraded.route_ttl"},
	}
}

type refusal struct{ rule, name, text, field string }

func onlyKeys(t testing.TB) string {
	return "admit:\n  - {name: c, kind: coordinator, match: [\"key:" + newKey(t).String() + "\"]}\n"
}

func deepBlocks(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func mistype(s string) string {
	i := len(s) / 2
	c := byte('q')
	if s[i] == c {
		c = 'p'
	}
	return s[:i] + string(c) + s[i+1:]
}

// sshBlob is the wire form of a key of the type, with fields of these sizes.
func sshBlob(algorithm string, sizes ...int) string {
	var b []byte
	add := func(s string) { b = append(append(b, 0, 0, byte(len(s)>>8), byte(len(s))), s...) }
	add(algorithm)
	for _, n := range sizes {
		add(strings.Repeat("\x47", n)) // a point of Ed25519, if it has 32 bytes, and odd
	}
	return base64.StdEncoding.EncodeToString(b)
}

func TestParseRefuses(t *testing.T) {
	broken := make(map[string]bool)
	for _, tc := range refusals(t) {
		broken[tc.rule] = true
		t.Run(tc.rule+"/"+tc.name, func(t *testing.T) {
			m, err := manifest.Parse([]byte(tc.text))
			if err == nil {
				t.Fatalf("accepted as %+v\n%s", m, tc.text)
			}
			invalid, ok := errors.AsType[*manifest.InvalidError](err)
			if !ok || m != nil || !errors.Is(err, manifest.ErrInvalid) {
				t.Fatalf("Parse = %v, %v, want nil and an InvalidError", m, err)
			}
			i := slices.IndexFunc(invalid.Problems, func(p *manifest.Problem) bool { return p.Rule == tc.rule && p.Field == tc.field })
			if i < 0 {
				for _, p := range invalid.Problems {
					t.Logf("%s: %v", p.Rule, p)
				}
				t.Fatalf("no problem of rule %s at %q", tc.rule, tc.field)
			}
			p := invalid.Problems[i]
			if p.What == "" || p.Do == "" {
				t.Errorf("problem does not say what and what to do: %+v", p)
			}
			if p.Line == 0 && !slices.Contains([]string{"size", "syntax"}, tc.rule) && tc.name != "marks" {
				t.Errorf("problem without a line: %+v", p)
			}
			if lines := strings.Split(tc.text, "\n"); p.Line > 0 && (p.Line > len(lines) || p.Column > len([]rune(lines[p.Line-1]))+1 || p.Column < 1) {
				t.Errorf("line %d, column %d is not in the document", p.Line, p.Column)
			}
		})
	}
	for _, r := range manifest.Rules() {
		if !broken[r.Name] {
			t.Errorf("rule %s has no document that breaks it", r.Name)
		}
		if r.Why == "" || r.Section == "" {
			t.Errorf("rule %s does not say why and where it is written", r.Name)
		}
	}
}

// Every problem of a document is reported at once, in its order, at its place.
func TestParseCollects(t *testing.T) {
	d := newDoc(t)
	d.cluster = "cluster: Prod\n"
	d.admit = "admit:\n" +
		"  - name: c\n    kind: coordinatr\n    match: [\"token:c\"]\n" +
		"  - {name: b, kind: data, match: [\"token:b\"], max_member: 3, svid_ttl: 1h}\n"
	_, err := manifest.Parse([]byte(d.String()))
	invalid, ok := errors.AsType[*manifest.InvalidError](err)
	if !ok {
		t.Fatal(err)
	}
	lines := strings.Split(d.String(), "\n")
	var got []string
	for _, p := range invalid.Problems {
		rest := []rune(lines[p.Line-1])[p.Column-1:]
		got = append(got, p.Rule+" "+p.Field+" @"+strings.FieldsFunc(string(rest), func(r rune) bool { return r == ' ' || r == ':' || r == ',' })[0])
	}
	want := []string{"cluster-name cluster @Prod", "kind admit[0].kind @coordinatr", "unknown-field admit[1].max_member @max_member", "degraded-max admit[1].svid_ttl @1h}"}
	if !slices.Equal(got, want) {
		t.Errorf("problems\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if p := invalid.Problems[1]; !strings.Contains(p.Do, "did you mean coordinator?") {
		t.Errorf("no guess in %q", p.Do)
	}
}

// A form that a release began to refuse is read where a history holds it, found by
// name, and gone with the manifest that mends it; one that was always refused is refused there too.
func TestParseAccepted(t *testing.T) {
	base := newDoc(t)
	always := []string{"not UTF-8", "terminal escape", "right-to-left override", "byte order mark", "NUL"}
	if m := mustAccept(t, base.String()); m.Findings() != nil || m.Hash() != mustParse(t, base.String()).Hash() {
		t.Fatalf("findings of a manifest without any: %v", m.Findings())
	}
	for _, tc := range refusals(t) {
		m, err := manifest.ParseAccepted([]byte(tc.text))
		switch {
		case tc.rule == "selector-unproven", tc.rule == "characters" && !slices.Contains(always, tc.name):
			if err != nil {
				t.Errorf("%s/%s: %v", tc.rule, tc.name, err)
			} else if f := m.Findings(); len(f) != 1 || f[0].Rule != tc.rule || f[0].Field != tc.field || f[0].Line == 0 || f[0].Do == "" {
				t.Errorf("%s/%s: findings %v", tc.rule, tc.name, f)
			} else if string(m.Bytes()) != tc.text {
				t.Errorf("%s/%s: other bytes", tc.rule, tc.name)
			}
		case tc.name == "marks": // refused before it is read, and read for what it is where it is in force
		case err == nil:
			t.Errorf("%s/%s: taken, with findings %v", tc.rule, tc.name, m.Findings())
		}
	}
}

// People paste what their tools print, with comments, and some root twice. A coordinator of an
// earlier release cannot read that, and is asked before such a manifest is set.
func TestRootsWithTextAround(t *testing.T) {
	const field = "proofs.x509.roots_pem with text between its certificates, or one twice"
	root, other := newRoot(t, true), newRoot(t, true)
	for name, tc := range map[string]struct {
		roots string
		later bool
	}{
		"plain":         {root + other, false},
		"comments":      {"# the old one\n" + root + "# the next\n" + other + "# of 2026\n", true},
		"a description": {"Certificate:\n    Data:\n        Version: 3 (0x2)\n" + root + other, true},
		"one twice":     {root + other + root, true},
	} {
		d := newDoc(t)
		d.proofs = "proofs:\n  x509:\n    roots_pem: |\n" + indent(tc.roots, 6)
		m := mustParse(t, d.String())
		if n := len(m.Proofs.X509.RootsDER); n != 2 {
			t.Errorf("%s: %d roots, want 2", name, n)
		}
		if got := slices.Contains(m.LaterFields(), field); got != tc.later {
			t.Errorf("%s: fields of later releases %q", name, m.LaterFields())
		}
	}
}

// A flood of problems is cut, and found without comparing all with all.
func TestProblemsAreBounded(t *testing.T) {
	d := newDoc(t)
	for i := range 5_000 {
		d.admit += fmt.Sprintf("  - {name: a, kind: dat, match: [\"x509:subject:CN=%d\"], x: 1}\n", i)
	}
	_, err := manifest.Parse([]byte(d.String()))
	if invalid, ok := errors.AsType[*manifest.InvalidError](err); !ok || len(invalid.Problems) != manifest.MaxProblems {
		t.Fatalf("err = %v", err)
	}
}

func TestProblemAsText(t *testing.T) {
	p := &manifest.Problem{Line: 3, Column: 5, Field: "admit[0].kind", What: "bad", Do: "mend it"}
	if got, want := p.Error(), "line 3, column 5: admit[0].kind: bad: mend it"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(newDoc(f).String())
	for _, tc := range refusals(f) {
		if len(tc.text) < 1<<14 {
			f.Add(tc.text)
		}
	}
	rules := make(map[string]bool)
	for _, r := range manifest.Rules() {
		rules[r.Name] = true
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := manifest.Parse([]byte(text))
		if err != nil {
			invalid, ok := errors.AsType[*manifest.InvalidError](err)
			if !ok || len(invalid.Problems) == 0 {
				t.Fatalf("error of another type: %v", err)
			}
			for _, p := range invalid.Problems {
				if !rules[p.Rule] {
					t.Errorf("problem of no rule: %+v", p)
				}
			}
			return
		}
		again, err := manifest.Parse(m.Bytes())
		if err != nil {
			t.Fatalf("accepted, then refused: %v", err)
		}
		if !reflect.DeepEqual(m, again) {
			t.Fatalf("parsed differently the second time:\n%+v\n%+v", m, again)
		}
		if len(manifest.AuthorityMoves(m, again)) != 0 && m.Trust != manifest.TrustMesh {
			t.Fatal("a manifest moves authority from itself")
		}
		for _, e := range m.Admit {
			if _, err := identity.New(m.Cluster, e.Kind, e.Name); err != nil {
				t.Fatalf("entry %q makes no identity: %v", e.Name, err)
			}
		}
	})
}

// A manifest that a store has in parts is one that an earlier release cannot read.
func TestParseLong(t *testing.T) {
	text := newDoc(t).String()
	for _, size := range []int{manifest.LongBytes, manifest.LongBytes + 1} {
		m := mustParse(t, text+"#"+strings.Repeat("x", size-len(text)-2)+"\n")
		if long := len(m.LaterFields()) > len(mustParse(t, text).LaterFields()); len(m.Bytes()) != size || long != (size > manifest.LongBytes) {
			t.Errorf("of %d bytes: %q", size, m.LaterFields())
		}
	}
}

// An issuer is kept as it is written: verifiers compare it byte by byte.
func TestParseTokenIssuer(t *testing.T) {
	base := newDoc(t)
	if got := mustParse(t, base.String()); got.TokenIssuer != "" || slices.Contains(got.LaterFields(), "workloads") {
		t.Errorf("issuer %q of a manifest that names none, later fields %q", got.TokenIssuer, got.LaterFields())
	}
	for _, issuer := range []string{
		"https://id.example", "https://id.example:8443", "https://id", "https://192.0.2.1", "https://[2001:db8::1]:8443",
		"https://id.example/prod/a-b.c_d~e", "https://id.example/.well-known",
		"https://id.example/" + strings.Repeat("a", manifest.MaxIssuerBytes-len("https://id.example/")),
	} {
		d := base
		d.rest = fmt.Sprintf("workloads: {token_issuer: %q}\n", issuer)
		m := mustParse(t, d.String())
		if m.TokenIssuer != issuer {
			t.Errorf("%s is read as %q", issuer, m.TokenIssuer)
		}
		for _, field := range []string{"workloads", "workloads.token_issuer"} {
			if !slices.Contains(m.LaterFields(), field) {
				t.Errorf("%s is no later field", field)
			}
		}
		if moved := manifest.AuthorityMoves(mustParse(t, base.String()), m); len(moved) > 0 {
			t.Errorf("an issuer moves %q", moved)
		}
	}
}
