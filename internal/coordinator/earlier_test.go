package coordinator_test

import (
	"crypto/ed25519"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/proof"
)

// A field that a coordinator of an earlier release cannot read is refused by its name
// while that one is heard, and only where it is new.
func TestSetWaitsForEarlierReleases(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	r := coordinatortest.NewReplica(t, f)
	coordinatortest.WantOnly(t, "set", f.Set(f.Manifest("")), "")
	r.Config = func(cfg *coordinator.Config) { cfg.Earlier("0.1.0") }
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(r, func(x replicas.Record) bool { return x.Phase == "ready" })
	with := f.Manifest("  - {name: racks, kind: data, match: [\"token:racks\"], labels: [rack=r2]}\n")
	before := f.C.Rooms().Head.State().Head.Hash
	err := f.Set(with)
	e := explain.Of(err)
	if e == nil || e.Code != explain.ManifestFieldUnread {
		t.Fatalf("set: %v, want %s", err, explain.ManifestFieldUnread)
	}
	for field, want := range map[string]string{"field": "admit.labels", "coordinator": "coordinator-2",
		"release": "0.1.0"} {
		if e.Fields[field] != want {
			t.Errorf("%s is %q, want %q", field, e.Fields[field], want)
		}
	}
	if f.C.Rooms().Head.State().Head.Hash != before {
		t.Error("the head moved")
	}
	// A manifest that it can read is set.
	coordinatortest.WantOnly(t, "without the field",
		f.Set(f.Manifest("  - {name: racks, kind: data, match: [\"token:racks\"]}\n")), "")
	r.AwaitHead(f)
	dismissed := strings.Replace(string(with), "name: coordinator-2, kind: coordinator, match: [\"key:"+r.Enrolment,
		"name: coordinator-2, kind: coordinator, match: [\""+"key:"+newClaim(t), 1)
	if dismissed == string(with) {
		t.Fatal("the manifest admits it still")
	}
	r.Kill()
	// Upgraded, it holds up nothing.
	r.Config = nil
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(r, func(x replicas.Record) bool { return x.Phase == "ready" && len(x.Reads) > 0 })
	coordinatortest.WantOnly(t, "after the upgrade", f.Set(with), "")
	r.AwaitHead(f)
	// The field is there already: an earlier one that comes is not what a set waits for.
	r.Kill()
	r.Config = func(cfg *coordinator.Config) { cfg.Earlier("test") }
	r.Start()
	coordinatortest.AwaitReplica(r, func(x replicas.Record) bool { return len(x.Reads) == 0 })
	coordinatortest.WantOnly(t, "another entry", f.Set(append(with,
		"  - {name: more, kind: data, match: [\"token:more\"], labels: [a=b]}\n"...)), "")
	// Without labels again, and then it is no coordinator of the manifest that has them.
	coordinatortest.WantOnly(t, "without again", f.Set(f.Manifest("")), "")
	coordinatortest.WantCode(t, f.Set(with), explain.ManifestFieldUnread)
	coordinatortest.WantOnly(t, "without that coordinator", f.Set([]byte(dismissed)), "")
	// One that is admitted and was stopped in order is not waited for.
	coordinatortest.WantOnly(t, "with it again", f.Set(f.Manifest("")), "")
	r.AwaitHead(f)
	r.Stop()
	coordinatortest.AwaitReplica(f, func(x replicas.Record) bool { return x.Phase == "ready" })
	coordinatortest.WantOnly(t, "after it stopped", f.Set(with), "")
}

func newClaim(t *testing.T) string {
	t.Helper()
	return proof.KeyClaim(coordinatortest.NewTestKey(t).Public().(ed25519.PublicKey))
}
