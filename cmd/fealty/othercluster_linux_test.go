package main

import (
	"encoding/json"
	"testing"
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
