package publication_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/errcode"
)

// exampleEntries admit the members that the example of the reference speaks of.
const exampleEntries = `  - {name: racks, kind: data, match: ["token:racks"], roles: [core, storage]}
  - {name: shops, kind: data, match: ["token:shops"], roles: [egress], organizations: [acme]}
  - {name: edge, kind: data, match: ["token:edge"], roles: [ingress], organizations: [acme]}
`

// The example that docs/reference/config.md shows asks for nothing that is not given to members that are as it says.
func TestExampleOfTheReferenceIsGivenWhole(t *testing.T) {
	d := coordinatortest.ReadyDesk(t, exampleEntries)
	coordinatortest.JoinedAs(d, "racks", "db-1")
	coordinatortest.JoinedAs(d, "shops", "node-c")
	coordinatortest.JoinedAs(d, "edge", "edge-1")
	coordinatortest.MustPut(d, config.Example)
	coordinatortest.MustPublish(d, publication.NewPublisher())
	for _, code := range []errcode.Code{errcode.ConfigNotGiven, errcode.SnapshotUncompiled, errcode.AssignmentHeld} {
		for _, f := range coordinatortest.FindingsAt(d, t, code) {
			t.Errorf("%s: %s; %s", f.GetCode(), f.GetSummary(), f.GetRemedy())
		}
	}
}
