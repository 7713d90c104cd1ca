package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fealty-io/fealty/provider"
)

// Bounds of what podman is asked for.
const (
	maxSlots  = 1000
	maxCall   = 2 * time.Minute // for one call of podman that is not an order's
	lookEvery = 5 * time.Second // for what is under way
	again     = time.Second     // before podman is asked again
	grace     = 10              // seconds that a container has after SIGTERM, before it gets SIGKILL
	maxLog    = "8mb"           // of what a container prints; podman keeps to it while the provider is down too
)

// fleet are machines that are containers. It implements [provider.Machines].
//
// An order is accepted by making a container whose labels say it, and carried out by ending those
// that the machine had before. So what was accepted is in one place, podman's, and no tenant
// finds anything of the one before it.
type fleet struct {
	podman []string // the program, and its own flags
	create []string // more flags for a container: its networks, its limits
	image  string
	name   string // of this provider, which may be one of several before one podman
	domain string // of all machines; "": none
	slots  []string
	turns  map[string]*sync.Mutex // of all machines: held by the work on one

	// listing is held to read, and alone to remove: a list that podman makes while containers go may
	// lack the newest of a machine and have the one before it.
	listing sync.RWMutex

	over context.Context // of [fleet.begin]: ends what waits for podman
	work sync.WaitGroup

	mu     sync.Mutex
	failed map[string]string // by a container's id: what the work on it failed with; guarded by mu
}

// begin goes on with what was under way when the provider ended, and looks for more of it until ctx
// ends: a podman that a killed provider left at work may make a container later. Work that is begun
// goes on to its end; wait for work.
func (f *fleet) begin(ctx context.Context) error {
	f.over, f.failed, f.turns = ctx, make(map[string]string), make(map[string]*sync.Mutex)
	machines, err := f.containers(ctx, "")
	if err != nil {
		return err
	}
	for _, id := range slices.Concat(f.slots, slices.Collect(maps.Keys(machines))) {
		f.turns[id] = new(sync.Mutex)
	}
	f.work.Go(func() {
		for look := time.NewTicker(lookEvery); ; {
			for id, have := range machines {
				f.goesOn(id, have)
			}
			select {
			case <-look.C:
			case <-ctx.Done():
				look.Stop()
				return
			}
			if machines, err = f.containers(ctx, ""); err != nil && ctx.Err() == nil {
				log.Printf("what is under way is not looked at: %v", err)
			}
		}
	})
	return nil
}

// goesOn has work on a machine done that is on its way, where nobody does it.
func (f *fleet) goesOn(id string, have []container) {
	turn := f.turns[id]
	switch f.machine(id, have).State {
	case provider.Configuring, provider.Draining, provider.Deleting:
		if turn != nil && turn.TryLock() {
			f.work.Go(func() { defer turn.Unlock(); f.settle(id) })
		}
	}
}

// call runs podman and returns what it printed.
func (f *fleet) call(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, maxCall)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.podman[0], append(slices.Clone(f.podman[1:]), args...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("podman %s: %w: %.500s", args[0], err, bytes.TrimSpace(said.Bytes()))
	}
	return out, nil
}

// containers returns those of one machine, or with "" of all.
func (f *fleet) containers(ctx context.Context, id string) (map[string][]container, error) {
	args := []string{"ps", "--all", "--format", "json", "--filter", "label=" + labelProvider + "=" + f.name}
	if id != "" {
		args = append(args, "--filter", "label="+labelMachine+"="+id)
	}
	f.listing.RLock()
	out, err := f.call(ctx, args...)
	f.listing.RUnlock()
	var all []listed
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", provider.ErrUnavailable, err)
	}
	return own(all, f.name), nil
}

// machine is what others see of one.
func (f *fleet) machine(id string, have []container) provider.Machine {
	why := ""
	if len(have) > 0 {
		f.mu.Lock()
		why = f.failed[have[len(have)-1].id]
		f.mu.Unlock()
	}
	return machineOf(provider.Machine{ID: id, Profile: "container", Domain: f.domain}, have, why)
}

func (f *fleet) Get(ctx context.Context, id string) (provider.Machine, error) {
	if f.turns[id] == nil {
		return provider.Machine{}, fmt.Errorf("there is no machine %q: %w", id, provider.ErrNotFound)
	}
	machines, err := f.containers(ctx, id)
	switch {
	case err != nil:
		return provider.Machine{}, err
	case len(machines[id]) == 0 && !slices.Contains(f.slots, id):
		return provider.Machine{}, fmt.Errorf("machine %q is gone, and so is its slot: %w", id, provider.ErrNotFound)
	}
	return f.machine(id, machines[id]), nil
}

func (f *fleet) List(ctx context.Context) ([]provider.Machine, error) {
	machines, err := f.containers(ctx, "")
	if err != nil {
		return nil, err
	}
	var all []provider.Machine
	for id := range f.turns {
		if len(machines[id]) > 0 || slices.Contains(f.slots, id) {
			all = append(all, f.machine(id, machines[id]))
		}
	}
	return all, nil
}

func (f *fleet) Create(ctx context.Context, o provider.Order) error {
	return f.accept(ctx, o, verbCreate)
}
func (f *fleet) Configure(ctx context.Context, o provider.Order) error {
	return f.accept(ctx, o, verbConfigure)
}
func (f *fleet) Drain(ctx context.Context, o provider.Order) error {
	return f.accept(ctx, o, verbDrain)
}
func (f *fleet) Delete(ctx context.Context, o provider.Order) error {
	return f.accept(ctx, o, verbDelete)
}

// accept makes the container of an order. Once podman has it, the order is accepted.
func (f *fleet) accept(ctx context.Context, o provider.Order, verb string) error {
	machines, err := f.containers(ctx, o.Machine)
	if err != nil {
		return err
	}
	number := 1
	if have := machines[o.Machine]; len(have) > 0 {
		newest := have[len(have)-1]
		if number = newest.number + 1; verb == verbDrain {
			o.Tenant, o.Priority = newest.tenant, newest.priority // who has it until it is drained
		}
	}
	args := []string{"create", "--pull", "never", "--name", nameOf(f.name, o.Machine, number),
		"--log-driver", "k8s-file", "--log-opt", "max-size=" + maxLog}
	for label, value := range map[string]string{labelProvider: f.name, labelMachine: o.Machine, labelVerb: verb,
		labelNumber: strconv.Itoa(number), labelOperation: o.Operation, labelTenant: o.Tenant,
		labelPriority: strconv.Itoa(int(o.Priority))} {
		args = append(args, "--label", label+"="+value)
	}
	if verb == verbConfigure {
		args = append(args, "--env", "FEALTY_MACHINE="+o.Machine, "--env", "FEALTY_TENANT="+o.Tenant)
	}
	// It may have been made when podman was ended for taking too long: a repetition finds it.
	if _, err := f.call(ctx, slices.Concat(args, f.create, []string{f.image})...); err != nil {
		return fmt.Errorf("%w: %w", provider.ErrUnavailable, err)
	}
	f.resume(o.Machine)
	return nil
}

// resume has carried out what a machine's containers say, in the background.
func (f *fleet) resume(id string) {
	f.work.Go(func() {
		f.turns[id].Lock()
		defer f.turns[id].Unlock()
		f.settle(id)
	})
}

// settle carries out what a machine's containers say. The turn is held.
func (f *fleet) settle(id string) {
	machines, err := f.containers(context.Background(), id)
	for ; err != nil; machines, err = f.containers(context.Background(), id) {
		log.Printf("machine %s stays as it is until podman answers: %v", id, err)
		select {
		case <-time.After(again):
		case <-f.over.Done():
			return // the next start goes on with it
		}
	}
	have := machines[id]
	if len(have) == 0 {
		return // it was deleted meanwhile
	}
	newest := have[len(have)-1]
	err = f.carryOut(newest, have[:len(have)-1])
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.failed, newest.id)
		return
	}
	log.Printf("machine %s failed: %v", id, err)
	f.failed[newest.id] = err.Error()
}

// carryOut ends what a machine was, and begins what it is.
func (f *fleet) carryOut(newest container, before []container) error {
	var failed error
	for _, c := range before {
		failed = errors.Join(failed, f.remove(c))
	}
	switch {
	case failed != nil:
		return failed
	case newest.verb == verbDelete:
		return f.remove(newest)
	case newest.verb == verbConfigure && newest.state == "created":
		// One that ran is never started again for the same order.
		_, err := f.call(context.Background(), "start", newest.id)
		return err
	}
	return nil
}

// remove ends a container and removes it, and what it alone used.
func (f *fleet) remove(c container) error {
	if c.state != "created" {
		// One that ended meanwhile is no error; what went wrong is seen when it is removed.
		_, _ = f.call(context.Background(), "stop", "--ignore", "--time", strconv.Itoa(grace), c.id)
	}
	f.listing.Lock()
	_, err := f.call(context.Background(), "rm", "--force", "--ignore", "--volumes", "--time", "0", c.id)
	f.listing.Unlock()
	if err == nil {
		f.mu.Lock()
		delete(f.failed, c.id)
		f.mu.Unlock()
	}
	return err
}
