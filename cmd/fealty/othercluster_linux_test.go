package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
)

// A command that reaches a coordinator of another cluster than is meant names both, and says
// whether anything vouches for the name.
func TestAnotherClusterAnswers(t *testing.T) {
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	const name = "coordinator-1"
	there, here := startOneOf(t, exe, "there.example"), startOneOf(t, exe, "here.example")
	pin := func(f *fleet) string {
		var status struct {
			RootPin string `json:"root_pin"`
		}
		if err := json.Unmarshal([]byte(f.must("status", "-o", "json", "--socket", f.socket(name))), &status); err != nil {
			t.Fatal(err)
		}
		return status.RootPin
	}
	at := there.listens[name]
	join := func(cluster, pin string) []string {
		return []string{"join", "--data", t.TempDir(), "--key", "alice.key", "--cluster", cluster, "--coordinator", at, "--pin", pin}
	}
	here.must("login", here.must("token", "create", "--entry", "admins", "--name", "alice", "--socket", here.socket(name)))
	const unproven = "its certificate names that cluster, and nothing that is known here vouches for it"
	for _, row := range []mistake{
		{
			"join another cluster than that of the pin", join("here.example", pin(there)), 5,
			[]string{"FE-X112: " + at + " belongs to there.example, not here.example",
				"the root that vouches for its certificate is the one that is meant"},
			[]string{"mesh-ca-accepted", "identity ok"},
		},
		{
			"join with cluster and pin of another", join("here.example", pin(here)), 5,
			[]string{"FE-X112: " + at + " belongs to there.example, not here.example", unproven, "the server has root key " + pin(there)},
			[]string{"identity ok"},
		},
		{
			"the address of another cluster, with a login", []string{"status", "--coordinator", at}, 5,
			[]string{"FE-X112: " + at + " belongs to there.example, not here.example", unproven},
			[]string{"root-known"},
		},
		{
			"the same pin, of another root of the same name", join("there.example", pin(here)), 5,
			[]string{"FE-X105: " + at + " was not trusted"},
			[]string{"belongs to"},
		},
	} {
		here.wrong(t, row)
	}
}

// Who verifies a cluster or brings a share, and reaches a coordinator of another one or gives what is of another one, is told
// which of them is of which.
func TestAnotherClusterIsVerified(t *testing.T) {
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	const name = "coordinator-1"
	owner, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	alice := "alice=" + owner.Recipient().String()
	there, here := startOneOf(t, exe, "there.example", alice), startOneOf(t, exe, "here.example", alice)
	for file, text := range map[string]string{
		"alice.age":  owner.String() + "\n",
		"there.yaml": there.must("manifest", "get", "--socket", there.socket(name)),
		"there.json": there.must("manifest", "history", "-o", "json", "--socket", there.socket(name)),
	} {
		if err := os.WriteFile(filepath.Join(here.dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := there.listens[name]
	bring := func(args ...string) []string {
		return append([]string{"recover", "--share", filepath.Join("shares", "alice.share"), "--share-key", "alice.age"}, args...)
	}
	other := "FE-X112: " + at + " belongs to there.example, not here.example"
	for _, row := range []mistake{
		{
			"verify at an address of another cluster", []string{"verify", "--manifest", "m.yaml", "--coordinator", at}, 5,
			[]string{other, "it says so itself", "name a coordinator of here.example with --coordinator"}, []string{"did not prove"},
		},
		{
			"verify against the manifest of another cluster",
			[]string{"verify", "--manifest", "there.yaml", "--coordinator", here.listens[name]}, 5,
			[]string{"FE-X112: " + here.listens[name] + " belongs to here.example, not there.example", "or give the manifest of here.example"},
			[]string{"did not prove"},
		},
		{
			"a share for a ready coordinator of another cluster", bring("--coordinator", at), 5,
			[]string{other, "its certificate names that cluster", "nothing was sent", "or bring a share of there.example"},
			[]string{"it is ready", "another day"},
		},
		{
			"a share with the manifest of another cluster", bring("--coordinator", here.listens[name], "--manifest", "there.yaml"), 5,
			[]string{"FE-X112: the manifest there.yaml belongs to there.example, not here.example", "nobody was asked"},
			[]string{"manifest history"},
		},
		{
			"a drill against a coordinator of another cluster", bring("--drill", "--socket", filepath.Join(there.dir, there.socket(name))), 5,
			[]string{"FE-X112: the coordinator that was asked belongs to there.example, not here.example"}, []string{"FE-R110"},
		},
		{
			"a drill against the history of another cluster", bring("--drill", "--history", "there.json"), 5,
			[]string{"FE-X112: the history in there.json belongs to there.example, not here.example"}, []string{"FE-R110"},
		},
	} {
		here.wrong(t, row)
	}
	// In recovery mode a coordinator shows a certificate that names nobody, and its offer says of which cluster it is.
	there.kill(name)
	if err := os.Remove(filepath.Join(there.dir, "keeper.key")); err != nil {
		t.Fatal(err)
	}
	there.start(name)
	there.until("it asks for shares", func(out string) bool { return strings.Contains(out, "recovery") },
		"status", "-o", "json", "--socket", there.socket(name))
	for _, row := range []mistake{
		{
			"a share for another cluster that asks for one", bring("--coordinator", at), 5,
			[]string{other, "the share of alice is of here.example", "nothing was sent"}, []string{"brought"},
		},
		{
			"verify a cluster that asks for shares", []string{"verify", "--manifest", "m.yaml", "--coordinator", at}, 5,
			[]string{other, "it says so itself"}, []string{"did not prove"},
		},
	} {
		here.wrong(t, row)
	}
}
