package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/recovery"
)

// wantOrigins shows from audit entries and history alone that every coordinator with a
// name made the seed, or received it from owners of the manifest, or from a coordinator
// that held it (manifest.md, "Seed share owner security"); and that each mesh CA key in
// the history was made once, by one of them.
func wantOrigins(t *testing.T, f *fleet, names ...string) {
	t.Helper()
	s := f.c.state.Load()
	v, _, err := f.c.verifiedHistory(t.Context(), s)
	wantOnly(t, "history", err, "")
	people := make(map[string]bool)
	for _, o := range s.manifest.Seed.People() {
		people[o.Name] = true
	}
	nameOf := func(key string) string {
		found, _ := s.manifest.Match(identity.Coordinator, []string{"key:" + key})
		return found.Name
	}
	holds := make(map[string]bool)
	for _, e := range f.audited(actionSeedCreated, actionSeedReceived) {
		// Who made it may be known by the transition alone: it had no identity yet.
		name := e.Actor[strings.LastIndexByte(e.Actor, '/')+1:]
		switch via := e.Fields["via"]; {
		case e.Action == actionSeedCreated:
			holds["coordinator-1"] = true // which the tests have set the first manifest
		case via == "owners":
			from := strings.Split(e.Fields["from"], ", ")
			if len(from) < s.manifest.Seed.Threshold || slices.ContainsFunc(from, func(o string) bool { return !people[o] }) {
				t.Errorf("%s received the seed from %v", name, from)
			}
			holds[name] = true
		case via == "peer":
			if giver := nameOf(e.Fields["key"]); !holds[giver] {
				t.Errorf("%s received the seed from %q, who did not hold it: %+v", name, giver, e)
			}
			holds[name] = true
		default:
			t.Errorf("an origin that is none: %+v", e)
		}
	}
	for _, name := range names {
		if !holds[name] {
			t.Errorf("nothing shows where %s has the seed from", name)
		}
	}
	made := make(map[string]int)
	for _, e := range f.audited(actionMeshMade) {
		made[e.Fields["mesh_ca_key"]]++
	}
	for _, k := range v.MeshCAKeys() {
		if made[k.Key.String()] != 1 {
			t.Errorf("the mesh CA key of epoch %d was made %d times", k.AuthorityEpoch, made[k.Key.String()])
		}
	}
}

// All coordinators stop, and no keeper is there: owners whose shares reach different
// ones bring all of them back, one epoch further, once, and the audit log shows of each
// where it has the seed from.
func TestOwnersBringAllReplicasBack(t *testing.T) {
	f := newFleet(t, nil)
	p := newPeople(t, "carol", "alice", "bob")
	all := []*fleet{f, newReplica(t, f), newReplica(t, f)}
	if err := f.set(withSeed(f.manifest(""), p.seed(2, ""))); err != nil {
		t.Fatal(err)
	}
	for _, r := range all[1:] {
		r.start()
		r.awaitHead(f)
	}
	names := []string{"coordinator-1", "coordinator-2", "coordinator-3"}
	wantOrigins(t, f, names...)
	files := map[string]keyring.ShareFile{}
	for _, n := range p.names {
		files[n] = p.shareFile(f.store, n)
	}
	for round, pair := range [][2]string{{"alice", "bob"}, {"carol", "alice"}} {
		epoch := f.c.state.Load().head.AuthorityEpoch
		for _, r := range all {
			r.kill()
		}
		for _, r := range all {
			r.start()
			r.await(phaseRecovery)
		}
		// Both at once, at two different ones.
		var wg sync.WaitGroup
		for i, owner := range pair {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, err := bringTo(t, all[i+round].addr, files[owner], recovery.Options{})
				if err != nil && !errors.Is(explain.Of(err), explain.RecoveryOver) && !errors.Is(explain.Of(err), explain.RecoveryNotNeeded) {
					t.Errorf("round %d: the share of %s: %v", round, owner, err)
				}
			}()
		}
		wg.Wait()
		for _, r := range all {
			r.await(phaseReady)
		}
		for _, r := range all[1:] {
			r.awaitHead(f)
		}
		s := f.c.state.Load()
		slices.Sort(pair[:])
		if s.head.AuthorityEpoch != epoch+1 || s.head.Reason != fmt.Sprintf("recovered by %s, %s", pair[0], pair[1]) {
			t.Fatalf("round %d: epoch %d after %d: %s", round, s.head.AuthorityEpoch, epoch, s.head.Reason)
		}
		wantOrigins(t, f, names...)
	}
}
