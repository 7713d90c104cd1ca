package manifest_test

import (
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/manifest"
)

const exampleText = `
cluster: prod.example
seed:
  threshold: 1
  owners: [{name: kms, keeper: "exec:/usr/local/bin/unwrap-seed"}]
signers:
  threshold: 1
  keys: [{name: alice, key: "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="}]
admit:
  - {name: c0, kind: coordinator, match: ["key:ed25519:PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw="]}
  - {name: nodes, kind: data, match: ["token:nodes"]}
trust: root
`

// Parse refuses whatever it does not know, and says all that is wrong, with places.
func ExampleParse() {
	m, err := manifest.Parse([]byte(exampleText))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Cluster)

	_, err = manifest.Parse([]byte(exampleText + "trusts: mesh\n"))
	if invalid, ok := errors.AsType[*manifest.InvalidError](err); ok {
		for _, p := range invalid.Problems {
			fmt.Println(p.Line, p.Field, p.What)
		}
	}
	// Output:
	// prod.example
	// 13 trusts no such field
}

// A candidate that shows a selector joins by the entry that it matches, or not at all.
func ExampleManifest_Match() {
	m, err := manifest.Parse([]byte(exampleText))
	if err != nil {
		fmt.Println(err)
		return
	}
	match, ok := m.Match(identity.Data, []string{"token:nodes"})
	fmt.Println(match.Entry.Name, ok)
	_, ok = m.Match(identity.Admin, []string{"token:nodes"})
	fmt.Println(ok)
	// Output:
	// nodes true
	// false
}
