// Package shard runs shards, and a provider of processes, as separate programs for `fealty dev`,
// and shows what becomes of a shard process that was replaced and does not know it.
package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	devprocess "github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/provider/process"
	"github.com/fealty-io/fealty/provider"
)

// Names of what a fleet is made of, and its sizes.
const (
	First  = "eu-1" // a shard
	Second = "eu-2" // another one, which the story starts
	Domain = "eu"   // of all machines

	laptop  = "laptop" // the provider
	tenant  = "acme"
	profile = "web"
	slots   = 12

	cycle      = "200ms"
	killAfter  = time.Second // a machine's process gets SIGKILL
	lookEvery  = 20 * time.Millisecond
	maxMachine = 8 << 10 // bytes of a machine's file
	maxStopped = 4       // shards that are stopped, or were fenced, and stay
)

// Config is what a fleet needs. All of it is required, but Program for one that is never started.
type Config struct {
	Dir     string // its folder, which is made
	Program string // the path of fealty

	// Join makes a member of a kind, has its agent run, and returns the agent's folder.
	Join func(ctx context.Context, kind identity.Kind, name string) (dir string, err error)
	// Admin calls f with a connection to a coordinator, as an admin.
	Admin func(f func(*grpc.ClientConn) error) error
	// Metrics returns where coordinators show theirs.
	Metrics func() []string
	// Await asks ok until it says yes, for a bounded time.
	Await func(ctx context.Context, what string, ok func(context.Context) (bool, error)) error
	Log   *slog.Logger
}

// Fleet are the programs. It belongs to one goroutine.
type Fleet struct {
	cfg      Config
	agents   map[string]string // folders of agents, by the members' names
	operator *client.Agent

	provider *devprocess.Program
	programs []*devprocess.Program
	lives    map[string]int                 // how many processes each shard had
	shards   map[string]*devprocess.Program // which process of each is in charge
	stopped  []*devprocess.Program          // of shards: zombies, in the order in which they were stopped
	sessions []*Session
	runs     uint64 // of the operator
	wanted   int    // machines, of [Beside.Show]
}

// Start starts a provider and the shard [First], which owns [Domain]. Close it, also after an
// error of another method.
func Start(ctx context.Context, cfg Config) (_ *Fleet, err error) {
	f := &Fleet{cfg: cfg, agents: make(map[string]string), lives: make(map[string]int),
		shards: make(map[string]*devprocess.Program)}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := f.makeFolder(); err != nil {
		return nil, err
	}
	for _, m := range []struct {
		kind identity.Kind
		name string
	}{{identity.Provider, laptop}, {identity.Shard, First}, {identity.Operator, tenant}} {
		if f.agents[m.name], err = cfg.Join(ctx, m.kind, m.name); err != nil {
			return nil, fmt.Errorf("%s/%s joins: %w", m.kind, m.name, err)
		}
	}
	if f.operator, err = client.Open(client.Config{Dir: f.agents[tenant], Log: cfg.Log}); err != nil {
		return nil, err
	}
	// A machine ends within a second of this process, however that ends.
	text := fmt.Sprintf("profiles:\n  - name: %s\n    domain: %s\n    slots: %d\n"+
		"    command: [sh, -c, \"while kill -0 %d; do sleep 1; done\"]\n", profile, Domain, slots, os.Getpid())
	if err := durable.OS().WriteFile(f.profiles(), []byte(text)); err != nil {
		return nil, fmt.Errorf("write the profiles of machines: %w", err)
	}
	f.provider, err = f.start(laptop, "provider", "process", "--agent", f.agents[laptop], "--profiles", f.profiles(),
		"--grace", "1s")
	if err != nil {
		return nil, err
	}
	if err := f.serves(ctx, f.provider); err != nil {
		return nil, err
	}
	if err := f.Assign(ctx, First, false); err != nil {
		return nil, err
	}
	_, err = f.Succeed(ctx, First)
	return f, err
}

// makeFolder makes the folder. Of shards of before nothing is kept: each process gets a grant of
// its own. The state of the provider is kept, its marks above all.
func (f *Fleet) makeFolder() error {
	if err := durable.OS().MkdirAll(f.cfg.Dir); err != nil {
		return fmt.Errorf("make the folder of the shards: %w", err)
	}
	for _, shard := range []string{First, Second} {
		old, err := filepath.Glob(filepath.Join(f.cfg.Dir, shard+".*"))
		for _, name := range old {
			err = errors.Join(err, os.RemoveAll(name))
		}
		if err != nil {
			return fmt.Errorf("remove the folders of shards of before: %w", err)
		}
	}
	return nil
}

func (f *Fleet) profiles() string { return filepath.Join(f.cfg.Dir, "profiles.yaml") }

// Succeed starts another process of a shard, with a folder of its own: the cluster gives it the
// next grant, and it is in charge.
func (f *Fleet) Succeed(ctx context.Context, shard string, flags ...string) (*devprocess.Program, error) {
	f.lives[shard]++
	p, err := f.start(shard+"."+strconv.Itoa(f.lives[shard]), append([]string{"shard", "--agent", f.agents[shard],
		"--provider", laptop + "=" + f.provider.At, "--enrol", "--cycle", cycle}, flags...)...)
	if err != nil {
		return nil, err
	}
	f.shards[shard] = p
	return p, f.serves(ctx, p)
}

// start starts a program that serves, with a folder of its own.
func (f *Fleet) start(name string, args ...string) (*devprocess.Program, error) {
	p, err := devprocess.Serve(devprocess.Config{Dir: f.cfg.Dir, Name: name, Program: f.cfg.Program, Args: args})
	if err == nil {
		f.programs = append(f.programs, p)
	}
	return p, err
}

// serves waits until a program shows its metrics.
func (f *Fleet) serves(ctx context.Context, p *devprocess.Program) error {
	return f.cfg.Await(ctx, p.Name+" to serve", p.Serves)
}

// Assign has a shard own the domain.
func (f *Fleet) Assign(ctx context.Context, shard string, force bool) error {
	return f.cfg.Admin(func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewDomainServiceClient(conn).AssignDomain(ctx, &fealtyv1.AssignDomainRequest{Name: Domain,
			To: string(identity.Shard) + "/" + shard, Reason: "shown by fealty dev", Force: force})
		return err
	})
}

// Close ends all programs, and then all machines.
func (f *Fleet) Close() error {
	for _, s := range f.sessions {
		s.close()
	}
	for _, p := range f.programs {
		p.Kill()
	}
	if f.provider == nil {
		return nil
	}
	return f.endMachines()
}

// endMachines ends the processes of the machines, as their provider does: it alone can tell them
// from others that have their pids now.
func (f *Fleet) endMachines() error {
	text, err := durable.OS().ReadFile(f.profiles(), process.MaxProfilesFile)
	if err != nil {
		return err
	}
	profiles, err := process.ReadProfiles(text)
	if err != nil {
		return err
	}
	p, err := process.Open(process.Config{Dir: filepath.Join(f.cfg.Dir, laptop), Profiles: profiles, Grace: killAfter,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return fmt.Errorf("end the machines of %s: %w", laptop, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), devprocess.EndAfter)
	defer cancel()
	for err == nil {
		var all []provider.Machine
		if all, err = p.List(ctx); err != nil {
			break
		}
		busy := 0
		for _, m := range all {
			switch m.State {
			case provider.Configured:
				busy++
				err = errors.Join(err, p.Drain(ctx, provider.Order{Machine: m.ID, Operation: "fealty-dev-ends"}))
			case provider.Draining, provider.Configuring:
				busy++
			}
		}
		if busy == 0 {
			break
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			err = errors.Join(err, ctx.Err())
		}
	}
	if err != nil {
		err = fmt.Errorf("end the machines of %s: %w", laptop, err)
	}
	return errors.Join(err, p.Close())
}

// Machines are the processes of machines, by the machines' names.
type Machines map[string]int

// PIDs are the processes, sorted.
func (m Machines) PIDs() []int { return slices.Sorted(maps.Values(m)) }

// KeptIn fails unless all machines are the very same processes in now still.
func (m Machines) KeptIn(now Machines) error {
	for machine, pid := range m {
		if now[machine] != pid {
			return fmt.Errorf("machine %s is process %d, and was %d", machine, now[machine], pid)
		}
	}
	return nil
}

// Dir is the folder of the fleet: each program has one of its own there, by its name.
func (f *Fleet) Dir() string { return f.cfg.Dir }

// Provider is the provider.
func (f *Fleet) Provider() *devprocess.Program { return f.provider }

// InCharge is the process of a shard that was started last.
func (f *Fleet) InCharge(shard string) *devprocess.Program { return f.shards[shard] }

// Enlist has another shard join, and returns the folder of its agent.
func (f *Fleet) Enlist(ctx context.Context, shard string) (dir string, err error) {
	dir, err = f.cfg.Join(ctx, identity.Shard, shard)
	if err == nil {
		f.agents[shard] = dir
	}
	return dir, err
}

// Members are the names of the members that the fleet made. Their agents are not its own.
func (f *Fleet) Members() []string { return slices.Sorted(maps.Keys(f.agents)) }

// Working are the processes of the machines that the tenant has, as the
// provider has them on disk.
func (f *Fleet) Working() (Machines, error) {
	files, err := filepath.Glob(filepath.Join(f.cfg.Dir, laptop, "machines", profile+"-*"))
	if err != nil {
		return nil, err
	}
	out := make(Machines)
	for _, file := range files {
		var m struct {
			Machine, State string
			Process        struct{ PID int }
		}
		text, err := durable.OS().ReadFile(file, maxMachine)
		if err == nil {
			err = json.Unmarshal(text, &m)
		}
		if err != nil {
			return nil, fmt.Errorf("read the machine in %s: %w", file, err)
		}
		if m.State == string(provider.Configured) && devprocess.Alive(m.Process.PID) {
			out[m.Machine] = m.Process.PID
		}
	}
	return out, nil
}

// Has waits until so many machines work, and returns their processes.
func (f *Fleet) Has(ctx context.Context, n int) (Machines, error) {
	var now Machines
	err := f.cfg.Await(ctx, fmt.Sprintf("%d machines to work", n), func(context.Context) (_ bool, err error) {
		if now, err = f.Working(); err == nil && len(now) != n {
			err = fmt.Errorf("%d do", len(now))
		}
		return err == nil, err
	})
	return now, err
}

// Unchanged fails unless the very same processes work as before.
func (f *Fleet) Unchanged(before Machines) error {
	now, err := f.Working()
	if err == nil && !maps.Equal(now, before) {
		err = fmt.Errorf("the machines are processes %v, and were %v", now.PIDs(), before.PIDs())
	}
	return err
}
