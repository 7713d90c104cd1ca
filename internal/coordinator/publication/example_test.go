package publication_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/desktest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/explain"
)

// exampleEntries admit the members that the example of the reference speaks of.
const exampleEntries = `  - {name: racks, kind: data, match: ["token:racks"], roles: [core, storage]}
  - {name: shops, kind: data, match: ["token:shops"], roles: [egress], organizations: [acme]}
  - {name: edge, kind: data, match: ["token:edge"], roles: [ingress], organizations: [acme]}
`

// The example that docs/reference/config.md shows asks for nothing that is not given to members that are as it says.
func TestExampleOfTheReferenceIsGivenWhole(t *testing.T) {
	d := coordinatortest.ReadyDesk(t, exampleEntries)
	desktest.JoinedAs(d, "racks", "db-1")
	desktest.JoinedAs(d, "shops", "node-c")
	desktest.JoinedAs(d, "edge", "edge-1")
	desktest.MustPut(d, config.Example)
	desktest.MustPublish(d, publication.NewPublisher())
	for _, code := range []explain.Code{explain.ConfigNotGiven, explain.SnapshotUncompiled, explain.AssignmentHeld} {
		for _, f := range desktest.FindingsAt(d, t, code) {
			t.Errorf("%s: %s; %s", f.GetCode(), f.GetSummary(), f.GetRemedy())
		}
	}
}
