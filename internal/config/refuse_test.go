package config_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/config"
)

const (
	secretRecord  = "kind: secret\nname: s\nresolver: vault\npath: kv/s\n"
	peerRecord    = "kind: peer\nname: p\nmember: data/p\naddresses: [\"p.example:1\"]\nclass: active\n"
	ed25519PEM    = "-----BEGIN PUBLIC KEY-----\\nMCowBQYDK2VwAyEAi9cOxoMn0SNFI6WGMQZmqS4BVV9n9zAmQQuRiVDrvfQ=\\n-----END PUBLIC KEY-----\\n"
	issuerBegin   = "kind: role\nname: ingress\nissuers:\n  - name: login\n    url: https://login.example\n"
	serviceBegin  = "kind: service\nname: web\ntype: container\n"
	resourceBegin = "kind: resource\nname: db\ntype: postgres\naddress: db.example:5432\n"
)

// Every way in which a text is refused: the rule, the field that is named and the
// place.
func TestDecodeRefuses(t *testing.T) {
	long := func(n int) string { return strings.Repeat("a", n) }
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	large := "kind: role\nname: ingress\nissuers:\n"
	for i := range 4 {
		large += fmt.Sprintf("  - name: login%d\n    url: https://login.example\n    keys: [\"%s\"]\n    audiences: [%s]\n", i, ed25519PEM, many(64, "\""+long(290)+"%03d\", "))
	}
	for _, tt := range []struct{ rule, field, at, text string }{
		{"size", "", "", "# " + long(config.MaxText)},
		{"size", "", "1:1", large},
		{"characters", "", "1:8", "kind: q\u200bos\n"},
		{"characters", "", "2:8", "kind: qos\nname: q\u3164\n"},
		{"characters", "", "2:7", `kind: qos
name: "q\u3164"
`},
		{"too-many", "", "", "# " + strings.Repeat("]", 200_001)},
		{"syntax", "", "", ""},
		{"syntax", "", "", "---\n---\n"},
		{"syntax", "", "1:1", "{kind: qos"},
		{"plain-yaml", "", "1:7", "kind: &a qos\nname: *a\n"},
		{"depth", "", "1:13", strings.Repeat("[", 14)},
		{"one-document", "", "768:1", many(257, "kind: qos\nname: q%d\n---\n")[:len(many(257, "kind: qos\nname: q%d\n---\n"))-4]},
		{"too-many", "", "", "[" + many(200, "{kind: qos, name: q%d}, ") + "]\n---\n[" + many(57, "{kind: qos, name: r%d}, ") + "]"},
		{"too-many", "addresses", "4:12", serviceBegin + "addresses: [" + many(65, "\"h%d.example:1\", ") + "]"},
		{"too-many", "", "", "parameters:\n" + many(130, "  p%d: x\n")},
		{"too-many", "parameters", "5:3", serviceBegin + "parameters:\n" + many(64, "  p%d: x\n") + "  last: x\n"},
		{"wrong-type", "", "1:1", "just words"},
		{"missing-field", "kind", "1:1", "name: x"},
		{"kind", "kind", "1:7", "kind: services\nname: x"},
		{"missing-field", "name", "1:1", "kind: qos"},
		{"missing-field", "type", "1:1", "kind: service\nname: web"},
		{"missing-field", "expose.protocol", "4:9", serviceBegin + "expose: {address: \"a:1\"}"},
		{"workload-anybody", "workload", "4:11", serviceBegin + "workload: {id: a}"},
		{"workload-anybody", "workload", "4:11", serviceBegin + "workload: {path: /bin/x, sha256: " + strings.Repeat("a", 64) + "}"},
		{"workload-id", "workload.id", "4:16", serviceBegin + "workload: {id: a/../b, uid: 1}"},
		{"path", "workload.path", "4:18", serviceBegin + "workload: {path: bin/x, uid: 1}"},
		{"sha256", "workload.sha256", "4:20", serviceBegin + "workload: {sha256: abc, uid: 1}"},
		{"unit", "workload.unit", "4:18", serviceBegin + "workload: {unit: billing}"},
		{"container", "workload.container", "4:23", serviceBegin + "workload: {container: abc}"},
		{"workload-twice", "parameters.spiffe:uid", "4:28", serviceBegin + "parameters: {\"spiffe:uid\": \"2\"}\nworkload: {uid: 1}"},
		{"unknown-field", "colour", "4:1", serviceBegin + "colour: red"},
		{"unknown-field", "organization", "3:1", "kind: role\nname: core\norganization: acme"},
		{"unknown-field", "roles", "3:1", "kind: organization\nname: acme\nroles: [core]"},
		{"duplicate-field", "type", "4:1", serviceBegin + "type: x"},
		{"duplicate-field", "parameters.a", "4:20", serviceBegin + "parameters: {a: x, a: y}"},
		{"duplicate-record", "name", "5:7", "kind: qos\nname: q\n---\nkind: qos\nname: q\n"},
		{"duplicate-item", "roles[1]", "3:15", "kind: qos\nname: q\nroles: [core, core]"},
		{"duplicate-item", "issuers[1].name", "8:11", issuerBegin + "    audiences: [a]\n    keys: [\"" + ed25519PEM + "\"]\n  - name: login\n    url: https://x.example\n    audiences: [a]\n    keys: [\"" + ed25519PEM + "\"]\n"},
		{"duplicate-item", "issuers[0].keys[1]", "7:0", issuerBegin + "    audiences: [a]\n    keys: [\"" + ed25519PEM + "\", \"" + ed25519PEM + "\"]\n"},
		{"missing-item", "issuers[0].keys", "7:11", issuerBegin + "    audiences: [a]\n    keys: []\n"},
		{"missing-item", "issuers[0].audiences", "6:16", issuerBegin + "    audiences: []\n    keys: [\"" + ed25519PEM + "\"]\n"},
		{"missing-item", "addresses", "4:12", strings.Replace(peerRecord, "[\"p.example:1\"]", "[]", 1)},
		{"missing-item", "families", "4:11", "kind: storage\nname: m\nurl: https://m.example\nfamilies: []"},
		{"name", "name", "2:7", "kind: qos\nname: Gold"},
		{"name", "name", "2:7", "kind: qos\nname: -gold"},
		{"name", "name", "2:7", "kind: qos\nname: gold."},
		{"name", "name", "2:7", "kind: qos\nname: " + long(64)},
		{"name", "name", "2:7", "kind: role\nname: boss"},
		{"name", "name", "2:7", "kind: organization\nname: ../acme"},
		{"name", "qos", "4:6", serviceBegin + "qos: a/b"},
		{"wrong-type", "name", "2:7", "kind: qos\nname: 7"},
		{"word", "type", "3:7", "kind: service\nname: web\ntype: two words"},
		{"word", "parameters", "4:14", serviceBegin + "parameters: {\"a b\": x}"},
		{"line", "address", "4:10", "kind: resource\nname: db\ntype: x\naddress: \"a b\""},
		{"text", "parameters.a", "4:17", serviceBegin + "parameters: {a: " + long(1025) + "}"},
		{"address", "addresses[0]", "4:13", serviceBegin + "addresses: [web.example]"},
		{"address", "addresses[0]", "4:13", serviceBegin + "addresses: [\"web.example:0\"]"},
		{"address", "addresses[0]", "4:13", serviceBegin + "addresses: [\"web.example:080\"]"},
		{"address", "addresses[0]", "4:13", serviceBegin + "addresses: [\"web..example:80\"]"},
		{"url", "url", "3:6", "kind: storage\nname: m\nurl: http://m.example\nfamilies: [trust_bundle]"},
		{"url", "url", "3:6", "kind: storage\nname: m\nurl: https://user@m.example\nfamilies: [trust_bundle]"},
		{"url", "url", "3:6", "kind: storage\nname: m\nurl: https://m.example/?sig=abc\nfamilies: [trust_bundle]"},
		{"member", "members[0]", "4:11", serviceBegin + "members: [admin/alice]"},
		{"member", "member", "3:9", strings.Replace(peerRecord, "data/p", "p", 1)},
		{"role", "roles[0]", "3:9", "kind: qos\nname: q\nroles: [boss]"},
		{"class", "class", "5:8", strings.Replace(peerRecord, "class: active", "class: hot", 1)},
		{"scope", "families[0]", "4:12", "kind: storage\nname: m\nurl: https://m.example\nfamilies: [everything]"},
		{"permission", "allow[0]", "3:9", "kind: degraded\nname: d\nallow: [everything]"},
		{"unknown-field", "trials.everything", "3:10", "kind: degraded\nname: d\ntrials: {everything: 1m}"},
		{"duration", "trials.trust_bundle", "3:24", "kind: degraded\nname: d\ntrials: {trust_bundle: 25h}"},
		{"duration", "max", "3:6", "kind: degraded\nname: d\nmax: 7"},
		{"duration", "max", "3:6", "kind: degraded\nname: d\nmax: 366d"},
		{"number-range", "priority", "3:11", "kind: qos\nname: q\npriority: -1"},
		{"number-range", "max_kbps", "3:11", "kind: qos\nname: q\nmax_kbps: 0"},
		{"wrong-type", "priority", "3:11", "kind: qos\nname: q\npriority: 1.5"},
		{"public-key", "issuers[0].keys[0]", "7:0", issuerBegin + "    audiences: [a]\n    keys: [\"-----BEGIN CERTIFICATE-----\\nAAAA\\n-----END CERTIFICATE-----\\n\"]\n"},
		{"public-key", "issuers[0].keys[0]", "7:0", issuerBegin + "    audiences: [a]\n    keys: [\"" + ed25519PEM + ed25519PEM + "\"]\n"},
		{"idle-above-ttl", "sessions.idle", "3:27", "kind: role\nname: core\nsessions: {ttl: 1h, idle: 2h}"},
		{"deny-leads-on", "to", "4:5", "kind: route\nname: r\ndeny: true\nto: [p]"},
		{"deny-leads-on", "via", "4:6", "kind: route\nname: r\ndeny: true\nvia: [p]"},
		{"max-below-min", "max_kbps", "4:11", "kind: qos\nname: q\nmin_kbps: 10\nmax_kbps: 9"},
		{"factor-above-replicas", "shard.factor", "5:32", "kind: storage\nname: m\nurl: https://m.example\nfamilies: [trust_bundle]\nshard: {replicas: [p], factor: 2}"},
		{"raw-secret", "parameters.db_password", "5:3", serviceBegin + "parameters:\n  db_password: hunter2\n"},
		{"raw-secret", "parameters.db_pass", "5:3", serviceBegin + "parameters:\n  db_pass: hunter2\n"},
		{"raw-secret", "parameters.psk", "5:3", serviceBegin + "parameters:\n  psk: x\n"},
		{"raw-secret", "", "4:1", serviceBegin + "password=hunter2: x"},
	} {
		_, err := config.Decode([]byte(tt.text))
		invalid, ok := errors.AsType[*config.InvalidError](err)
		if !ok {
			t.Errorf("%s %s: %v, want a refusal of %.60q", tt.rule, tt.field, err, tt.text)
			continue
		}
		i := slices.IndexFunc(invalid.Problems, func(p *config.Problem) bool {
			at := fmt.Sprintf("%d:%d", p.Line, p.Column)
			return p.Rule == tt.rule && p.Field == tt.field && (at == tt.at || tt.at == "" || strings.HasSuffix(tt.at, ":0") && strings.HasPrefix(at, tt.at[:len(tt.at)-1]))
		})
		if i < 0 || invalid.Problems[i].What == "" || invalid.Problems[i].Do == "" {
			t.Errorf("%s %q at %s: %v", tt.rule, tt.field, tt.at, invalid.Problems[0])
		}
		if len(err.Error()) > 1000 || !errors.Is(err, config.ErrInvalid) {
			t.Errorf("%s: %d bytes of message: %.200v", tt.rule, len(err.Error()), err)
		}
	}
}

// A number that is just as large as another one allows is taken.
func TestBoundsAreTaken(t *testing.T) {
	for _, text := range []string{
		"kind: qos\nname: q\nmin_kbps: 10\nmax_kbps: 10",
		"kind: qos\nname: q\nmin_kbps: 0\nmax_kbps: 1",
		"kind: qos\nname: q\nmin_kbps: 10", // no bound
		"kind: role\nname: core\nsessions: {ttl: 1h, idle: 1h}",
		"kind: storage\nname: m\nurl: https://m.example\nfamilies: [trust_bundle]\nshard: {replicas: [p, q], factor: 2}",
	} {
		if _, err := config.Decode([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Every way in which a set is refused whose records are each right.
func TestSetRefuses(t *testing.T) {
	acme, globex := "kind: organization\nname: acme\n", "kind: organization\nname: globex\n"
	join := func(texts ...string) string { return strings.Join(texts, "---\n") }
	for _, tt := range []struct {
		rule, record, field string
		text                string
	}{
		{"unknown-reference", "qos/q", "organization", "kind: qos\nname: q\norganization: acme\n"},
		{"unknown-reference", "service/web", "qos", serviceBegin + "qos: gold\n"},
		{"unknown-reference", "service/web", "resources", serviceBegin + "resources: [db]\n"},
		{"unknown-reference", "service/web", "secrets", serviceBegin + "secrets: [s]\n"},
		{"unknown-reference", "resource/db", "secrets", resourceBegin + "secrets: [s]\n"},
		{"unknown-reference", "route/r", "service", "kind: route\nname: r\nservice: web\n"},
		{"unknown-reference", "route/r", "to", "kind: route\nname: r\nto: [p]\n"},
		{"unknown-reference", "route/r", "via", "kind: route\nname: r\nvia: [p]\n"},
		{"unknown-reference", "storage/m", "shard.replicas", "kind: storage\nname: m\nurl: https://m.example\nfamilies: [trust_bundle]\nshard: {replicas: [p], factor: 1}\n"},
		{"other-organization", "service/web", "secrets", join(acme, globex, secretRecord+"organization: globex\n", serviceBegin+"organization: acme\nsecrets: [s]\n")},
		{"other-organization", "service/web", "resources", join(acme, resourceBegin+"organization: acme\n", serviceBegin+"resources: [db]\n")},
		{"other-organization", "route/r", "to", join(acme, globex, peerRecord+"organization: globex\n", "kind: route\nname: r\norganization: acme\nto: [p]\n")},
		{"fewer-roles", "service/web", "secrets", join(secretRecord+"roles: [core]\n", serviceBegin+"secrets: [s]\n")},
		{"fewer-roles", "service/web", "resources", join(resourceBegin+"roles: [core]\n", serviceBegin+"roles: [core, egress]\nresources: [db]\n")},
	} {
		_, err := config.NewSet(records(t, tt.text)...)
		invalid, ok := errors.AsType[*config.InvalidError](err)
		if !ok {
			t.Errorf("%s of %s %s: %v", tt.rule, tt.record, tt.field, err)
			continue
		}
		if p := invalid.Problems[0]; p.Rule != tt.rule || p.Record.String() != tt.record || p.Field != tt.field || p.What == "" || p.Do == "" {
			t.Errorf("%s of %s %s: %v", tt.rule, tt.record, tt.field, p)
		}
		if strings.Contains(err.Error(), "globex") {
			t.Errorf("%s: one organization is told of another: %v", tt.record, err)
		}
	}
	set, err := config.NewSet(records(t, config.Example)...)
	if err != nil {
		t.Fatal(err)
	}
	gold := config.Key{Kind: config.KindQoS, Name: "gold"}
	quality, _ := set.Get(gold)
	for name, tt := range map[string]struct {
		rule   string
		put    []config.Record
		delete []config.Key
	}{
		"put twice":          {"duplicate-record", []config.Record{quality, quality}, nil},
		"put and deleted":    {"duplicate-record", []config.Record{quality}, []config.Key{gold}},
		"deleted twice":      {"duplicate-record", nil, []config.Key{{Kind: config.KindStorage, Name: "mirror"}, {Kind: config.KindStorage, Name: "mirror"}}},
		"deleted, not there": {"no-such-record", nil, []config.Key{{Kind: config.KindStorage, Name: "nope"}}},
		"in use":             {config.RuleInUse, nil, []config.Key{gold}},
		"not valid":          {"max-below-min", []config.Record{&config.QoS{Common: config.Common{Name: "q"}, MinKbps: 2, MaxKbps: 1}}, nil},
		"not UTF-8":          {"word", []config.Record{&config.Service{Common: config.Common{Name: "q"}, Type: "a\xffb"}}, nil},
	} {
		before := set.Digest()
		_, err := set.With(tt.put, tt.delete)
		if invalid, ok := errors.AsType[*config.InvalidError](err); !ok || invalid.Problems[0].Rule != tt.rule {
			t.Errorf("%s: %v, want %s", name, err, tt.rule)
		}
		if set.Digest() != before {
			t.Errorf("%s: the set changed", name)
		}
	}
}

// Each limit on a set, at it and beyond it.
func TestSetLimits(t *testing.T) {
	records := func(n int) []config.Record {
		out := make([]config.Record, n)
		for i := range out {
			out[i] = &config.QoS{Common: config.Common{Name: fmt.Sprintf("q-%d", i)}}
		}
		return out
	}
	full, err := config.NewSet(records(config.MaxOfKind)...)
	if err != nil {
		t.Fatal(err)
	}
	one := &config.QoS{Common: config.Common{Name: "one-more"}}
	if _, err := full.With([]config.Record{one}, nil); !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), "records of kind qos") {
		t.Errorf("one more: %v", err)
	}
	if _, err := full.With([]config.Record{one}, []config.Key{{Kind: config.KindQoS, Name: "q-0"}}); err != nil {
		t.Errorf("one more for one less: %v", err)
	}
}

// secrets are raw ones of several forms. None is ever shown.
var secrets = []string{
	"AKIAIOSFODNN7EXAMPLE",
	"fealty1_abcdefghijklmnop",
	"ghp_abcdefghijklmnopqrstuvwxyz0123456789",
	"Bearer abcdefghijklmnopqrstuvwx",
	"-----BEGIN PRIVATE KEY-----",
	"postgres://shop:hunter2@db.example/orders",
	"password=hunter2",
	"sshpass -p hunter2 ssh gw",
	`{"password":"hunter2"}`,
	"PrivateKey = hunter2hunter2hunter2hunter2hunter2hunter2h=",
}

// Every text of every kind is looked at for raw secrets: all string fields that there
// are are found by reflection, so that none can be forgotten, and a secret is put
// into each.
func TestRawSecretsAreRefusedEverywhere(t *testing.T) {
	fields := 0
	for _, r := range records(t, config.Example) {
		n := texts(reflect.ValueOf(r).Elem())
		fields += n
		for i := range n {
			for _, secret := range secrets {
				fresh, err := config.DecodeCanonical(config.Encode(r))
				if err != nil {
					t.Fatal(err)
				}
				name := setText(reflect.ValueOf(fresh).Elem(), i, secret)
				_, err = config.NewSet(fresh)
				invalid, ok := errors.AsType[*config.InvalidError](err)
				if !ok {
					t.Errorf("%s %s: %v", config.KeyOf(r), name, err)
					continue
				}
				if p := invalid.Problems[0]; p.Rule != "raw-secret" {
					t.Errorf("%s %s: %v, want it refused as a secret", config.KeyOf(r), name, p)
				}
				if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("%s %s: the secret is shown: %v", config.KeyOf(r), name, err)
				}
			}
		}
	}
	if fields < 50 {
		t.Errorf("%d texts were found: this test looks at nothing", fields)
	}
}

// A text that looks like no secret and stands where the name of one is expected is
// not shown either.
func TestMisplacedSecretsAreNotShown(t *testing.T) {
	for _, text := range []string{
		serviceBegin + "secrets: hunter2", serviceBegin + "secrets: [Hunter2!]", serviceBegin + "secrets: [hunter2]", serviceBegin + "secrets: {a: hunter2}", serviceBegin + "parameters: {token: hunter2}",
		serviceBegin + "parameters: {token: {a: hunter2}}",
		strings.Replace(secretRecord, "kv/s", "hunter2 with spaces", 1), strings.Replace(secretRecord, "vault", "hunter2 hunter2", 1), secretRecord + "version: hunter2 hunter2", secretRecord + "version: [hunter2]",
	} {
		docs, err := config.Decode([]byte(text))
		if err == nil {
			_, err = config.NewSet(docs[0].Record)
		}
		if err == nil || strings.Contains(strings.ToLower(err.Error()), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// texts counts the strings in v.
func texts(v reflect.Value) int {
	n := 0
	eachText(v, "", func(string, reflect.Value) { n++ })
	return n
}

// setText sets the i-th string in v, and returns where it stands.
func setText(v reflect.Value, i int, s string) (name string) {
	n := 0
	eachText(v, "", func(at string, text reflect.Value) {
		if n == i {
			text.SetString(s)
			name = at
		}
		n++
	})
	return name
}

func eachText(v reflect.Value, at string, f func(string, reflect.Value)) {
	switch v.Kind() {
	case reflect.String:
		f(at, v)
	case reflect.Pointer:
		if !v.IsNil() {
			eachText(v.Elem(), at, f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			eachText(v.Field(i), at+"."+v.Type().Field(i).Name, f)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			for i := range v.Len() {
				eachText(v.Index(i), fmt.Sprintf("%s[%d]", at, i), f)
			}
		}
	}
}

// The example sets every field of every kind, so that the tests that walk it leave
// none out.
func TestExampleIsWhole(t *testing.T) {
	var walk func(v reflect.Value, at string)
	walk = func(v reflect.Value, at string) {
		switch v.Kind() {
		case reflect.Pointer:
			if v.IsNil() {
				t.Errorf("%s is not set", at)
				return
			}
			walk(v.Elem(), at)
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i), at+"."+v.Type().Field(i).Name)
			}
		case reflect.Slice:
			if v.Len() == 0 {
				t.Errorf("%s is empty", at)
			}
			if v.Type().Elem().Kind() == reflect.Uint8 {
				return
			}
			for i := range v.Len() {
				walk(v.Index(i), at)
			}
		default:
			if v.IsZero() {
				t.Errorf("%s is not set", at)
			}
		}
	}
	for _, r := range records(t, config.Example) {
		v := reflect.ValueOf(r).Elem()
		for i := range v.NumField() {
			// A route that denies leads nowhere, and not every record has an owner.
			if name := v.Type().Field(i).Name; name != "Common" && name != "Deny" {
				walk(v.Field(i), string(r.Kind())+"."+name)
			}
		}
	}
}
