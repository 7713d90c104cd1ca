package template_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/manifest/template"
)

func templateOptions(t testing.TB) template.Options {
	return template.Options{
		Cluster:      "dev.example",
		Signers:      []manifest.Signer{{Name: "alice", Key: newKey(t)}},
		Owners:       []manifest.Owner{{Name: "alice", Recipient: newRecipient(t)}, {Name: "kms", Keeper: `file:/etc/fealty/seed \x41" key`}},
		Coordinators: []template.Enrolled{{Name: "c0", Key: newKey(t)}, {Name: "c1", Key: newKey(t)}},
	}
}

func TestTemplate(t *testing.T) {
	opts := templateOptions(t)
	text, err := template.Write(opts)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if m.Cluster != opts.Cluster || m.Signers.Keys[0] != opts.Signers[0] || m.Seed.Owners[1] != opts.Owners[1] {
		t.Errorf("options did not come through:\n%s", text)
	}
	if match, ok := m.Match(identity.Coordinator, []string{"key:" + opts.Coordinators[1].Key.String()}); !ok || match.Name != "c1" {
		t.Errorf("coordinator c1 matches %+v, %v", match, ok)
	}
	if _, ok := m.Match(identity.Data, []string{"token:nodes"}); !ok {
		t.Error("no node can join with a token")
	}
	// The template writes out exactly what a manifest means without it.
	for _, line := range []string{"trust: root", "  max: 24h", "  route_ttl: 1h", "rejoin_grace: 7d"} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
	// Taking a comment sign away must leave YAML: the example entry is valid.
	if _, err := manifest.Parse([]byte(strings.Replace(string(text), "  # - {name: kms", "  - {name: kms2", 1))); err != nil {
		t.Errorf("the example owner, uncommented: %v", err)
	}
}

func TestTemplateRefuses(t *testing.T) {
	for name, spoil := range map[string]func(o *template.Options){
		"no signer":      func(o *template.Options) { o.Signers = nil },
		"no owner":       func(o *template.Options) { o.Owners = nil },
		"no coordinator": func(o *template.Options) { o.Coordinators = nil },
		"no cluster":     func(o *template.Options) { o.Cluster = "" },
		"injection": func(o *template.Options) {
			o.Cluster = "dev.example\"\nadmit: [{name: evil, kind: admin, match: [\"token:evil\"]}] #"
		},
		"backslash":         func(o *template.Options) { o.Owners[1].Name = `\` },
		"threshold":         func(o *template.Options) { o.SeedThreshold = 3 },
		"name of an entry":  func(o *template.Options) { o.Coordinators[0].Name = "nodes" },
		"one key for two":   func(o *template.Options) { o.Coordinators[1].Key = o.Coordinators[0].Key },
		"signer without it": func(o *template.Options) { o.Signers[0].Key = manifest.Key{} },
	} {
		t.Run(name, func(t *testing.T) {
			opts := templateOptions(t)
			spoil(&opts)
			if text, err := template.Write(opts); !errors.Is(err, manifest.ErrInvalid) || text != nil {
				t.Errorf("Template = %v\n%s", err, text)
			}
		})
	}
}

func newKey(t testing.TB) manifest.Key {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k, err := manifest.NewKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newRecipient(t testing.TB) string {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id.Recipient().String()
}
