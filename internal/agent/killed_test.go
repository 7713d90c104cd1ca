package agent_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

// The test binary serves as the process that is killed: a real one, with real files,
// that gets no chance to clean up.
const (
	activatorDir     = "FEALTY_TEST_ACTIVATOR_DIR"
	activatorBatches = "FEALTY_TEST_ACTIVATOR_BATCHES"
)

// sentOffer is an offer in a file.
type sentOffer struct {
	Scope string
	Raw   []byte
}

// TestActivator is the process that is killed: it activates one batch after the other,
// and says so after each. Without its environment it is nothing.
func TestActivator(t *testing.T) {
	folder := os.Getenv(activatorDir)
	if folder == "" {
		return
	}
	a, err := agent.Open(t.Context(), agent.Config{DataDir: folder, FS: durable.OS(), Log: nodetest.Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		data, err := os.ReadFile(filepath.Join(os.Getenv(activatorBatches), strconv.Itoa(i)))
		if err != nil {
			break // there are no more: wait for the end
		}
		var sent []sentOffer
		if err := json.Unmarshal(data, &sent); err != nil {
			t.Fatal(err)
		}
		var batch []state.Offer
		for _, s := range sent {
			batch = append(batch, state.Offer{Scope: s.Scope, Raw: s.Raw})
		}
		if err := a.Contact().Take(t.Context(), state.ByCoordinator, batch...); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("\nactivated %d\n", i)
	}
	<-t.Context().Done()
}

// Killed at any instant of an activation, a node comes back with the old snapshot or the
// new one of each scope, whole, and with nothing lost that it had activated (I13).
func TestKilledActivation(t *testing.T) {
	cycles, random := testlane.Rounds(10, 1000), rand.New(rand.NewPCG(testlane.Seed(t), 1))
	f := nodetest.New(t)
	n, m := companionNode(f)
	folder := n.realDir()
	look := func() map[snapshot.Scope]uint64 {
		t.Helper()
		a, err := agent.Open(t.Context(), agent.Config{DataDir: folder, FS: durable.OS(), Log: nodetest.Quiet()})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if got := a.Node().Status().Refusals(); len(got) != 0 || a.Unready() != "" {
			t.Fatalf("refusals %v, unready: %q", got, a.Unready())
		}
		for scope, h := range a.Node().TrustState().Active {
			if data, err := os.ReadFile(filepath.Join(folder, dir.SnapshotName(scope, dir.Active))); err != nil ||
				string(data) != string(h.Raw) {
				t.Fatalf("%s.active is not what is in use: %v", scope, err)
			}
		}
		return inUse(a)
	}
	was := look()
	cut, activated := 0, 0
	for cycle := range cycles {
		// The process is to activate these: new versions, and now and then a node_runtime
		// that takes a scope away or gives it again.
		batches := t.TempDir()
		var plan []map[snapshot.Scope]uint64 // what is in use after each batch
		f.Do(func() {
			after := was
			for i := range 30 {
				next := make(map[snapshot.Scope]uint64, len(after))
				for scope, v := range after {
					next[scope] = v
				}
				lists := nodetest.AllCompanions
				if i%4 == 1 || i%4 == 2 {
					lists = []snapshot.Scope{snapshot.ScopeDegradedModePolicy, snapshot.ScopePeerDirectory,
						snapshot.ScopeRoutePolicy, snapshot.ScopeStorageDirectory}
				}
				var all []*fealtyv1.SignedSnapshot
				if i%2 == 1 {
					all = append(all, f.Gives(&m, lists))
					next[snapshot.ScopeNodeRuntime] = f.Next
					if i%4 == 1 {
						delete(next, snapshot.ScopeQoSPolicy)
						delete(next, snapshot.ScopeServiceAssignment)
					}
				}
				for _, scope := range lists {
					if i%2 == 0 || i%4 == 3 {
						all = append(all, f.OfGroup(&m, signedtest.ContentOf(scope, i+1)))
						next[scope] = f.Next
					}
				}
				var sent []sentOffer
				for _, s := range all {
					sent = append(sent, sentOffer{s.GetScope(), s.GetEnvelope()})
				}
				data, err := json.Marshal(sent)
				f.Must(err)
				f.Must(os.WriteFile(filepath.Join(batches, strconv.Itoa(i)), data, 0o600))
				plan, after = append(plan, next), next
			}
		})
		done := killDuring(t, folder, batches, cycle, time.Duration(random.IntN(80_000))*time.Microsecond)
		activated += done + 1
		got := look()
		// Of each scope what the last finished batch left, or what the next one brings.
		before := was
		if done >= 0 {
			before = plan[done]
		}
		next := before
		if done+1 < len(plan) {
			next = plan[done+1]
		}
		for _, scope := range state.Scopes {
			if got[scope] != before[scope] && got[scope] != next[scope] {
				t.Fatalf("cycle %d: killed after batch %d, %s is at version %d, want %d or %d", cycle, done, scope,
					got[scope], before[scope], next[scope])
			}
			if got[scope] != before[scope] {
				cut++
			}
		}
		was = got
		// The next cycle starts from everything given.
		if len(was) != len(state.Scopes) {
			a, err := agent.Open(t.Context(), agent.Config{DataDir: folder, FS: durable.OS(), Log: nodetest.Quiet()})
			f.Must(err)
			var all []*fealtyv1.SignedSnapshot
			f.Do(func() {
				all = append(all, f.Gives(&m, nodetest.AllCompanions))
				for _, scope := range nodetest.AllCompanions {
					all = append(all, f.OfGroup(&m, signedtest.ContentOf(scope, 1)))
				}
			})
			f.Must(a.Contact().Take(t.Context(), state.ByCoordinator, offers(all...)...))
			was = inUse(a)
			a.Close()
		}
	}
	t.Logf("%d kills after %d activated batches, %d scopes of a batch that was cut off were new", cycles, activated,
		cut)
}

// killDuring runs the process on batches, kills it a while after the first that it
// activated, and returns the last that it said it had; -1: none.
func killDuring(t *testing.T, folder, batches string, cycle int, after time.Duration) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestActivator$")
	cmd.Env = append(os.Environ(), activatorDir+"="+folder, activatorBatches+"="+batches)
	var problem strings.Builder
	cmd.Stderr = &problem
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := -1
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var i int
		if _, err := fmt.Sscanf(lines.Text(), "activated %d", &i); err != nil {
			if strings.Contains(lines.Text(), "FAIL") {
				problem.WriteString(lines.Text())
			}
			continue
		}
		if last < 0 {
			// The moment may be any; nothing is waited for.
			time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
		last = i
	}
	_ = cmd.Wait() // it was killed
	if last < 0 || problem.Len() > 0 {
		t.Fatalf("cycle %d: the process ended by itself: %s", cycle, problem.String())
	}
	return last
}
