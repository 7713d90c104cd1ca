package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/fealty-io/fealty/provider"
)

// Labels of a container. They say which order it was made for, and never change: what was
// accepted is what podman has.
const (
	labelProvider  = "io.fealty.provider"
	labelMachine   = "io.fealty.machine"
	labelNumber    = "io.fealty.number" // 1 for the first order of a machine, and one more for each after it
	labelVerb      = "io.fealty.verb"
	labelOperation = "io.fealty.operation"
	labelTenant    = "io.fealty.tenant"
	labelPriority  = "io.fealty.priority"
)

// The machine that an order asks for.
const (
	verbCreate    = "create"
	verbConfigure = "configure"
	verbDrain     = "drain"
	verbDelete    = "delete"
)

// container is one of podman's, with the order that it was made for.
type container struct {
	id        string
	state     string // podman's word, such as running
	exitCode  int
	machine   string
	number    int
	verb      string
	operation string
	tenant    string
	priority  int32
}

// listed is a container as podman ps --format json has it.
type listed struct {
	ID       string `json:"Id"`
	Names    []string
	State    string
	ExitCode int
	Labels   map[string]string
}

// nameOf is what the container of an order is called. Of two that are made for one number podman
// refuses the second: that is so also when a podman that a killed provider left is at work still.
func nameOf(provider, machine string, number int) string {
	return fmt.Sprintf("fealty-%s-%s-%d", provider, machine, number)
}

// own returns the containers that this provider made, by machine, each in the order in which they
// were made. An image can bring labels with it: they count only under the name that goes with them.
func own(all []listed, name string) map[string][]container {
	machines := make(map[string][]container)
	for _, l := range all {
		number, err := strconv.Atoi(l.Labels[labelNumber])
		machine := l.Labels[labelMachine]
		if err != nil || l.Labels[labelProvider] != name ||
			!slices.Equal(l.Names, []string{nameOf(name, machine, number)}) {
			continue
		}
		priority, _ := strconv.ParseInt(l.Labels[labelPriority], 10, 32) // none is 0
		machines[machine] = append(machines[machine], container{id: l.ID, state: l.State, exitCode: l.ExitCode,
			machine: machine, number: number, verb: l.Labels[labelVerb], operation: l.Labels[labelOperation],
			tenant: l.Labels[labelTenant], priority: int32(priority)})
	}
	for _, have := range machines {
		slices.SortFunc(have, func(a, b container) int { return cmp.Compare(a.number, b.number) })
	}
	return machines
}

// machineOf says how far a machine is: its newest container is what was ordered last, and those
// before it are what has to go first. why says what the work on it failed with, or is empty.
func machineOf(m provider.Machine, have []container, why string) provider.Machine {
	if len(have) == 0 {
		m.State = provider.Speculative
		return m
	}
	newest, before := have[len(have)-1], len(have) > 1
	m.Operation = newest.operation
	switch newest.verb {
	case verbCreate:
		m.State = provider.Idle
	case verbConfigure:
		switch newest.state {
		case "created", "configured", "initialized":
			m.State = provider.Configuring
		case "running", "paused", "stopping":
			m.State = provider.Configured
		case "exited", "stopped":
			m.State, m.LastError = provider.Failed, fmt.Sprintf("its container ended with status %d", newest.exitCode)
		default:
			m.State, m.LastError = provider.Failed, "podman says that its container is "+newest.state
		}
	case verbDrain:
		if m.State = provider.Idle; before {
			m.State = provider.Draining
		}
	case verbDelete:
		m.State = provider.Deleting
	default:
		m.State, m.LastError = provider.Failed, "another release made its container"
	}
	if why != "" {
		m.State, m.LastError = provider.Failed, why
	}
	switch m.State {
	case provider.Configuring, provider.Configured, provider.Draining, provider.Failed:
		m.Tenant, m.Priority = newest.tenant, newest.priority
	}
	return m
}
