// Inside, as a program has no names to enter by.
package main

import (
	"strings"
	"testing"

	"github.com/fealty-io/fealty/provider"
)

// A machine is what its newest container was made for, as far as podman brought that; and it is
// declared so that the contract takes it.
func TestMachineOf(t *testing.T) {
	t.Parallel()
	created := container{id: "1", number: 1, state: "created", verb: verbCreate, operation: "create-1"}
	works := func(state string) container {
		return container{id: "2", number: 2, state: state, exitCode: 7, verb: verbConfigure, operation: "configure-1",
			tenant: "acme", priority: 5}
	}
	drained := container{id: "3", number: 3, state: "created", verb: verbDrain, operation: "drain-1", tenant: "acme",
		priority: 5}
	deleted := container{id: "4", number: 4, state: "created", verb: verbDelete, operation: "delete-1"}
	for name, c := range map[string]struct {
		have []container
		why  string
		want provider.Machine
	}{
		"none":                       {nil, "", provider.Machine{State: provider.Speculative}},
		"created":                    {[]container{created}, "", provider.Machine{State: provider.Idle, Operation: "create-1"}},
		"not started yet":            {[]container{created, works("created")}, "", machine(provider.Configuring, "configure-1", "")},
		"works":                      {[]container{works("running")}, "", machine(provider.Configured, "configure-1", "")},
		"held by somebody":           {[]container{works("paused")}, "", machine(provider.Configured, "configure-1", "")},
		"ended by itself":            {[]container{works("exited")}, "", machine(provider.Failed, "configure-1", "its container ended with status 7")},
		"cannot start":               {[]container{works("created")}, "no room", machine(provider.Failed, "configure-1", "no room")},
		"in a state that is new":     {[]container{works("asleep")}, "", machine(provider.Failed, "configure-1", "podman says that its container is asleep")},
		"on its way out":             {[]container{works("running"), drained}, "", machine(provider.Draining, "drain-1", "")},
		"drained":                    {[]container{drained}, "", provider.Machine{State: provider.Idle, Operation: "drain-1"}},
		"does not end":               {[]container{works("running"), drained}, "it hangs", machine(provider.Failed, "drain-1", "it hangs")},
		"about to be gone":           {[]container{drained, deleted}, "", provider.Machine{State: provider.Deleting, Operation: "delete-1"}},
		"of a release that is newer": {[]container{{verb: "move", state: "created"}}, "", provider.Machine{State: provider.Failed, LastError: "another release made its container"}},
	} {
		got := machineOf(provider.Machine{ID: "container-1", Profile: "container"}, c.have, c.why)
		c.want.ID, c.want.Profile = "container-1", "container"
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func machine(state provider.State, operation, why string) provider.Machine {
	return provider.Machine{State: state, Operation: operation, Tenant: "acme", Priority: 5, LastError: why}
}

// Containers of others are left alone, also where their image brings the labels of a machine; and
// the newest is the one with the highest number, however many there are.
func TestOwn(t *testing.T) {
	t.Parallel()
	labels := func(provider, number string) map[string]string {
		return map[string]string{labelProvider: provider, labelMachine: "container-1", labelNumber: number,
			labelVerb: verbConfigure, labelTenant: "acme", labelPriority: "-3"}
	}
	all := []listed{
		{ID: "b", Names: []string{"fealty-mine-container-1-10"}, State: "created", Labels: labels("mine", "10")},
		{ID: "a", Names: []string{"fealty-mine-container-1-9"}, State: "running", Labels: labels("mine", "9")},
		{ID: "stranger", Names: []string{"web"}, State: "running", Labels: labels("mine", "11")},
		{ID: "neighbour", Names: []string{"fealty-other-container-1-12"}, State: "running", Labels: labels("other", "12")},
		{ID: "unnumbered", Names: []string{"fealty-mine-container-1-0"}, State: "running", Labels: labels("mine", "")},
		{ID: "unlabelled", Names: []string{"fealty-mine-container-1-13"}, State: "running"},
	}
	machines := own(all, "mine")
	have := machines["container-1"]
	if len(machines) != 1 || len(have) != 2 || have[0].id != "a" || have[1].id != "b" || have[1].priority != -3 {
		t.Errorf("own containers: %+v", machines)
	}
}

// A flag that cannot be is refused before podman is asked for anything.
func TestSettings(t *testing.T) {
	t.Parallel()
	good := settings{name: "podman", image: "localhost/machine", slots: 2, podman: "go"}
	for want, change := range map[string]func(*settings){
		"-name":                      func(s *settings) { s.name = "a b" },
		"-image":                     func(s *settings) { s.image = "" },
		"-image is missing":          func(s *settings) { s.image = "--privileged" },
		"-slots":                     func(s *settings) { s.slots = maxSlots + 1 },
		"-podman":                    func(s *settings) { s.podman = " " },
		"install the package podman": func(s *settings) { s.podman = "no-such-podman" },
	} {
		s := good
		change(&s)
		if _, err := s.fleet(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want one about %s", err, want)
		}
	}
	if f, err := good.fleet(); err != nil || len(f.slots) != 2 {
		t.Errorf("%+v, %v: want two machines", f, err)
	}
}
