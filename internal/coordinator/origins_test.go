package coordinator_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

// The second coordinator sets the first manifest, all start anew with their keeper, the
// mesh CA key is rotated, and the seed replaced: after each the audit log shows whence
// every secret is.
func TestOriginsOfKeepersRotationsAndReseeds(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	r := coordinatortest.NewReplica(t, f)
	r.Start()
	owners := coordinatortest.NewPeople(t, "alice", "bob")
	if err := r.Set(coordinatortest.WithSeed(f.Manifest(""), owners.Seed(1,
		"file:"+filepath.Join(f.Dir, "keeper.key")))); err != nil {
		t.Fatal(err)
	}
	names := []string{"coordinator-1", "coordinator-2"}
	r.Await(authority.Ready)
	f.AwaitHead(r)
	coordinatortest.WantOrigins(t, f, names...)
	if e := coordinatortest.Audited(f, transition.ActionSeedCreated); len(e) != 1 || !strings.HasSuffix(e[0].Actor,
		"/coordinator-2") {
		t.Errorf("the seed was made by %+v", e)
	}

	f.Kill()
	r.Kill()
	f.Start()
	f.Await(authority.Ready)
	r.Start()
	r.AwaitHead(f)
	coordinatortest.WantOrigins(t, f, names...)
	if !slices.ContainsFunc(coordinatortest.Audited(f, transition.ActionSeedReceived), func(e record.AuditEntry) bool {
		return e.Fields["via"] == "keeper" && e.Fields["from"] == "host" && strings.HasSuffix(e.Actor, "/coordinator-1")
	}) {
		t.Error("nothing shows that the keeper opened the seed")
	}

	before := f.State().MeshKey
	if _, err := (coordinatortest.Served[fealtyv1.TrustServiceServer](
		f.C.Parts().Trust.RegisterServices)).RotateMeshKey(
		f.Context(),
		&fealtyv1.RotateMeshKeyRequest{}); err != nil {
		t.Fatal(err)
	}
	r.AwaitHead(f)
	coordinatortest.WantOrigins(t, f, names...)
	if f.State().MeshKey == before {
		t.Error("the mesh CA key is the one of before")
	}

	coordinatortest.ReseedIn(f)
	f.Await(authority.Ready)
	r.AwaitHead(f)
	coordinatortest.WantOrigins(t, f, names...)
	if e := coordinatortest.Audited(f, transition.ActionSeedCreated); len(e) != 2 || !strings.HasSuffix(e[1].Actor,
		"/coordinator-1") {
		t.Errorf("the seeds were made by %+v", e)
	}
}

// Where the seed came from is written down also if the store is away, or somebody moves
// the head, in the very moment of the adoption.
func TestOriginsWaitForTheStore(t *testing.T) {
	for name, harm := range map[string]func(d *coordinatortest.Desk){
		"the store is away": func(d *coordinatortest.Desk) { d.Store.SetDown(coordinatortest.ErrDown) },
		"the answer is lost": func(d *coordinatortest.Desk) {
			d.Store.Lose(coordinatortest.LostForGood, coordinatortest.Answered, coordinatortest.Answered,
				coordinatortest.Answered)
		},
		"the head is " +
			"moving": func(d *coordinatortest.Desk) {
			d.Store.Write(history.HeadKey, d.Store.Snapshot()[history.HeadKey].Value)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := coordinatortest.NewDesk(t)
			done := false
			d.Store.Intercept(func(tx store.Tx) {
				if !done && slices.ContainsFunc(tx.Put,
					func(w store.Write) bool {
						return strings.Contains(string(w.Value),
							transition.ActionSeedCreated)
					}) {
					done = true
					harm(d)
				}
			})
			_ = d.Set("") // whose answer says what it knows
			if !done {
				t.Fatal("nothing was to be written")
			}
			d.Store.SetDown(nil)
			d.Store.Lose()
			d.LookAgain()
			coordinatortest.WantPhase(d, "ready", "")
			coordinatortest.WantOnly(t, "write what waits", d.C.Parts().Auditing.Write(t.Context()), "")
			for _, action := range []string{transition.ActionSeedCreated, transition.ActionMeshMade} {
				if found, _ := coordinatortest.Audits(d, action); len(found) != 1 ||
					found[0].Fields["head"] != d.State().Head.Hash.String() || found[0].Actor == "" ||
					found[0].At.IsZero() {
					t.Errorf("%s: %+v", action, found)
				}
			}
		})
	}
}
