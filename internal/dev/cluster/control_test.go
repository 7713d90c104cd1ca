package cluster

import "testing"

// A cluster takes harm when whoever started it says so, and not before: fealty dev asks each part what it is after they
// run, and a part that is killed meanwhile ended it.
func TestHarmIsTakenWhenItIsSaid(t *testing.T) {
	c := started(t, Options{Coordinators: 1, Members: []string{}})
	heal := Harm{Kind: Heal}
	if done, err := Ask(t.Context(), ControlSocket(c.Dir()), heal); err == nil {
		t.Errorf("harm is taken before it is said: %+v", done)
	}
	if err := c.TakeHarm(); err != nil {
		t.Fatal(err)
	}
	if done, err := Ask(t.Context(), ControlSocket(c.Dir()), heal); err != nil || done.Problem != "" {
		t.Errorf("harm is not taken: %+v, %v", done, err)
	}
}
