package agent

import (
	"errors"
	"slices"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
)

func TestJoin(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	var steps []StepName
	cfg := n.joinConfig(ByToken(f.token()))
	cfg.Progress = func(s Step) {
		if s.Err != nil {
			t.Errorf("step %s: %v", s.Name, s.Err)
		}
		steps = append(steps, s.Name)
	}
	r, err := Join(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if want := []StepName{StepToken, StepReach, StepTrust, StepClock, StepProof, StepIdentity, StepSnapshot}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
	if r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED || r.ID.Kind() != identity.Data || r.Coordinator != coordinator || !slices.Equal(r.Coordinators, []string{coordinator}) {
		t.Errorf("result %+v", r)
	}
	if r.Autonomy != 24*time.Hour {
		t.Errorf("autonomy %v, want what the policy allows", r.Autonomy)
	}
	if n.has(nextName) || n.has(journalName) {
		t.Error("a key or a journal is left behind")
	}
	a := n.mustOpen()
	defer a.Close()
	if a.me.ID != r.ID || trustVersion(a) != 10 || bootVersion(a) == 0 || a.unready() != "" {
		t.Errorf("opened as %v with trust %d, bootstrap %d, unready %q", a.me.ID, trustVersion(a), bootVersion(a), a.unready())
	}
	if _, err := n.open(); !errors.Is(err, explain.NodeLocked) {
		t.Errorf("a second process: %v", err)
	}
}
