package manifest_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/manifest"
)

func templateOptions(t testing.TB) manifest.TemplateOptions {
	return manifest.TemplateOptions{
		Cluster:      "dev.example",
		Signers:      []manifest.Signer{{Name: "alice", Key: newKey(t)}},
		Owners:       []manifest.Owner{{Name: "alice", Recipient: newRecipient(t)}, {Name: "kms", Keeper: `file:/etc/fealty/seed \x41" key`}},
		Coordinators: []manifest.Enrolled{{Name: "c0", Key: newKey(t)}, {Name: "c1", Key: newKey(t)}},
	}
}

func TestTemplate(t *testing.T) {
	opts := templateOptions(t)
	text, err := manifest.Template(opts)
	if err != nil {
		t.Fatal(err)
	}
	m := mustParse(t, string(text))
	if m.Cluster != opts.Cluster || m.Signers.Keys[0] != opts.Signers[0] || m.Seed.Owners[1] != opts.Owners[1] {
		t.Errorf("options did not come through:\n%s", text)
	}
	if match, ok := m.Match(identity.Coordinator, []string{"key:" + opts.Coordinators[1].Key.String()}); !ok || match.Name != "c1" {
		t.Errorf("coordinator c1 matches %+v, %v", match, ok)
	}
	if _, ok := m.Match(identity.Data, []string{"token:nodes"}); !ok {
		t.Error("no node can join with a token")
	}
	// What the template writes out must be what a manifest means without it.
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
	for name, spoil := range map[string]func(o *manifest.TemplateOptions){
		"no signer":      func(o *manifest.TemplateOptions) { o.Signers = nil },
		"no owner":       func(o *manifest.TemplateOptions) { o.Owners = nil },
		"no coordinator": func(o *manifest.TemplateOptions) { o.Coordinators = nil },
		"no cluster":     func(o *manifest.TemplateOptions) { o.Cluster = "" },
		"injection": func(o *manifest.TemplateOptions) {
			o.Cluster = "dev.example\"\nadmit: [{name: evil, kind: admin, match: [\"token:evil\"]}] #"
		},
		"backslash":         func(o *manifest.TemplateOptions) { o.Owners[1].Name = `\` },
		"threshold":         func(o *manifest.TemplateOptions) { o.SeedThreshold = 3 },
		"name of an entry":  func(o *manifest.TemplateOptions) { o.Coordinators[0].Name = "nodes" },
		"one key for two":   func(o *manifest.TemplateOptions) { o.Coordinators[1].Key = o.Coordinators[0].Key },
		"signer without it": func(o *manifest.TemplateOptions) { o.Signers[0].Key = manifest.Key{} },
	} {
		t.Run(name, func(t *testing.T) {
			opts := templateOptions(t)
			spoil(&opts)
			if text, err := manifest.Template(opts); !errors.Is(err, manifest.ErrInvalid) || text != nil {
				t.Errorf("Template = %v\n%s", err, text)
			}
		})
	}
}

func TestRecipientsOfAgeAreTaken(t *testing.T) {
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for _, recipient := range []string{newRecipient(t), hybrid.Recipient().String(),
		"ssh-ed25519 " + sshBlob("ssh-ed25519", 32) + " alice@laptop", "ssh-rsa " + sshBlob("ssh-rsa", 3, 257)} {
		d := newDoc(t)
		d.seed = fmt.Sprintf("seed: {threshold: 1, owners: [{name: a, recipient: %q}]}\n", recipient)
		mustParse(t, d.String())
	}
}

func Example() {
	public, _, _ := ed25519.GenerateKey(rand.Reader) // kept by alice
	enrolment, _, _ := ed25519.GenerateKey(rand.Reader)
	signer, _ := manifest.NewKey(public)
	coordinator, _ := manifest.NewKey(enrolment)

	text, err := manifest.Template(manifest.TemplateOptions{
		Cluster:      "prod.example",
		Signers:      []manifest.Signer{{Name: "alice", Key: signer}},
		Owners:       []manifest.Owner{{Name: "kms", Keeper: "exec:/usr/local/bin/unwrap-seed"}},
		Coordinators: []manifest.Enrolled{{Name: "c0", Key: coordinator}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	m, _ := manifest.Parse(text)
	match, ok := m.Match(identity.Data, []string{"token:nodes"})
	fmt.Println(match.Entry.Name, ok)
	_, ok = m.Match(identity.Admin, []string{"token:nodes"})
	fmt.Println(ok)

	_, err = manifest.Parse(append(text, "trusts: mesh\n"...))
	problem, _ := errors.AsType[*manifest.Problem](err)
	fmt.Println(problem.Field, problem.What)
	// Output:
	// nodes true
	// false
	// trusts no such field
}
