package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/dev/shard"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
)

// Kinds of harm that can be done to a dev cluster, and how to undo it.
const (
	BreakLeader      = "leader"
	BreakCoordinator = "coordinator"
	BreakNetwork     = "network"
	BreakClock       = "clock"
	BreakShard       = "shard"
	Heal             = "heal"
)

// Harm is what to do to a running dev cluster.
type Harm struct {
	Kind string        `json:"kind"`
	Name string        `json:"name,omitempty"` // of a coordinator, or of a member
	By   time.Duration `json:"by,omitempty"`   // how far to set a clock on
	Dry  bool          `json:"dry,omitempty"`  // only say what would be done
}

// Harmed is what was done, and what to watch: texts for a person.
type Harmed struct {
	Did     string   `json:"did"`
	Watch   []string `json:"watch"`
	Problem string   `json:"problem,omitempty"` // why it was not done, or not to its end
	// Name and Value are what of the harm asked for is no harm that can be done.
	Name  string `json:"name,omitempty"`
	Value string `json:"value,omitempty"`
}

// noHarmError says that what was asked for cannot be done.
type noHarmError struct{ name, value, problem string }

func (e *noHarmError) Error() string { return e.problem }

// Bounds of the control socket.
const (
	controlName     = "dev.sock"
	maxControlBytes = 16 << 10
	controlTimeout  = 2 * AwaitLimit
	maxSetOn        = 48 * time.Hour
)

// ControlSocket is where the cluster in dir takes harm from its own user.
func ControlSocket(dir string) string { return filepath.Join(dir, controlName) }

// Ask has the cluster behind a control socket do h.
func Ask(ctx context.Context, socket string, h Harm) (Harmed, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return Harmed{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewEncoder(conn).Encode(h); err != nil {
		return Harmed{}, err
	}
	var out Harmed
	err = json.NewDecoder(io.LimitReader(conn, maxControlBytes)).Decode(&out)
	return out, err
}

// TakeHarm serves the control socket from now on, until the cluster ends. It has mode 0600: only the user who runs
// the cluster gets at it. Call it once, when whoever started the cluster needs no part of it any more: each part can
// be gone at any moment after that.
func (c *Cluster) TakeHarm() error {
	l, err := localsocket.Listen(ControlSocket(c.dir), 0o600, c.opts.Locks, c.opts.Log)
	if err != nil {
		return err
	}
	c.group.Go(func() error {
		var serving sync.WaitGroup
		defer serving.Wait()
		defer context.AfterFunc(c.ctx, func() { l.Close() })()
		for {
			conn, err := l.Accept()
			if err != nil {
				return nil // closed, as the cluster ends
			}
			serving.Go(func() { c.obey(conn) })
		}
	})
	return nil
}

// obey does what one caller asks for.
func (c *Cluster) obey(conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithTimeout(c.ctx, controlTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var h Harm
	if err := json.NewDecoder(io.LimitReader(conn, maxControlBytes)).Decode(&h); err != nil {
		return
	}
	done, err := c.Do(ctx, h)
	if err != nil {
		done.Problem = err.Error()
		if no, ok := errors.AsType[*noHarmError](err); ok {
			done.Name, done.Value = no.name, no.value
		}
	}
	_ = json.NewEncoder(conn).Encode(done) // who asked may be gone
}

// Do does harm on purpose, one at a time, or undoes it.
func (c *Cluster) Do(ctx context.Context, h Harm) (Harmed, error) {
	select {
	case c.harming <- struct{}{}:
		defer func() { <-c.harming }()
	case <-ctx.Done():
		return Harmed{}, ctx.Err()
	}
	switch h.Kind {
	case BreakLeader:
		if len(c.running()) == 0 {
			return Harmed{}, &noHarmError{"what to break", "the leader", "no coordinator runs: fealty dev heal starts them again"}
		}
		name, term, err := c.Leader(ctx)
		if err != nil {
			return Harmed{}, err
		}
		return c.harmCoordinator(name, fmt.Sprintf("killed %s, which led in term %d: no leave was taken, its memory is gone", name, term), h.Dry,
			"fealty leader show: in about a second another coordinator leads, in a later term",
			"fealty status: the members of "+name+" are connected elsewhere")
	case BreakCoordinator:
		return c.harmCoordinator(h.Name, fmt.Sprintf("killed %s: no leave was taken, its memory is gone", h.Name), h.Dry,
			"fealty status: the others serve, and its members are connected to them",
			"fealty dev heal: it comes back, and gets its secrets from another one")
	case BreakNetwork:
		if !slices.Contains(c.RunningMembers(), h.Name) {
			return Harmed{}, &noHarmError{"--member", cmp.Or(h.Name, "left out"), "the members that run are " + cmp.Or(strings.Join(c.RunningMembers(), ", "), "none")}
		}
		if !h.Dry {
			c.networkOf(h.Name).setDown(true)
		}
		return Harmed{Did: fmt.Sprintf("cut the network of %s: no coordinator is in its reach", h.Name), Watch: []string{
			"fealty status --data " + c.MemberDir(h.Name) + ": it works on its own, and says for how long it can",
			"fealty status: it is away, which becomes a finding after two minutes",
		}}, nil
	case BreakClock:
		return c.harmClock(h)
	case BreakShard:
		did, watch, err := c.shards.Zombie(ctx, h.Dry)
		if errors.Is(err, shard.ErrNone) {
			err = &noHarmError{"what to break", "the shard", err.Error()}
		}
		return Harmed{Did: did, Watch: watch}, err
	case Heal:
		return c.heal(ctx, h.Dry)
	}
	return Harmed{}, &noHarmError{"what to break", h.Kind, "no such harm is known"}
}

func (c *Cluster) harmCoordinator(name, did string, dry bool, watch ...string) (Harmed, error) {
	running := c.running()
	if !slices.ContainsFunc(running, func(r *replica) bool { return r.name == name }) {
		problem := "it does not run: fealty dev heal starts it again"
		if _, err := c.replica(name); err != nil {
			problem = err.Error()
		}
		return Harmed{}, &noHarmError{"NAME", name, problem}
	}
	if len(running) == 1 {
		watch = []string{
			"fealty status --data " + filepath.Join(c.dir, "members", "NAME") + ": no coordinator is left, each member works on its own",
			"fealty dev heal: all come back, and get their secrets from the keeper",
		}
	}
	if !dry {
		if err := c.KillCoordinator(name); err != nil {
			return Harmed{}, err
		}
	}
	return Harmed{Did: did, Watch: watch}, nil
}

func (c *Cluster) harmClock(h Harm) (Harmed, error) {
	if h.By == 0 || h.By.Abs() > maxSetOn {
		return Harmed{}, &noHarmError{"--by", h.By.String(), fmt.Sprintf("a clock is set by more than nothing and at most %v", maxSetOn)}
	}
	if _, err := c.replica(h.Name); err != nil && !slices.Contains(c.RunningMembers(), h.Name) {
		return Harmed{}, &noHarmError{"NAME", h.Name, "there are " + strings.Join(slices.Concat(c.CoordinatorNames(), c.RunningMembers()), ", ")}
	}
	if !h.Dry {
		c.clockOf(h.Name).set(h.By)
	}
	watch := "fealty status --data " + c.MemberDir(h.Name) + ": what it holds, and whether that is fresh by its clock"
	if !slices.Contains(c.RunningMembers(), h.Name) {
		watch = "fealty status: who leads does not change, for no clock decides that; certificates that it issues may not be in date elsewhere"
	}
	return Harmed{Did: fmt.Sprintf("set the clock of %s by %v", h.Name, h.By), Watch: []string{watch}}, nil
}

// heal undoes all harm.
func (c *Cluster) heal(ctx context.Context, dry bool) (Harmed, error) {
	var done []string
	c.mu.Lock()
	for _, r := range c.coordinators {
		if r.run == nil {
			done = append(done, r.name+" runs again")
		}
	}
	for _, name := range c.memberNamesLocked() {
		if n := c.networks[name]; n != nil && n.isDown() {
			done = append(done, name+" reaches the coordinators again")
		}
	}
	for name, clock := range c.clocks {
		if clock.skew.Load() != 0 {
			done = append(done, "the clock of "+name+" is right again")
		}
	}
	networks, clocks := c.networks, c.clocks
	if !dry {
		for _, n := range networks {
			n.setDown(false)
		}
		for _, clock := range clocks {
			clock.set(0)
		}
	}
	c.mu.Unlock()
	slices.Sort(done)
	if !dry && len(done) > 0 {
		if err := c.StartCoordinators(ctx); err != nil {
			return Harmed{}, err
		}
		if err := c.AwaitReady(ctx); err != nil {
			return Harmed{}, err
		}
	}
	woken, watch, err := c.shards.Wake(ctx, dry)
	switch {
	case err != nil:
		return Harmed{}, err
	case len(done)+len(woken) == 0:
		return Harmed{Did: "nothing was broken"}, nil
	case woken == nil:
		watch = []string{"fealty status: nothing needs attention, in a while"}
	}
	return Harmed{Did: strings.Join(append(done, woken...), "; "), Watch: watch}, nil
}

// RunningMembers are the members that run, sorted.
func (c *Cluster) RunningMembers() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memberNamesLocked()
}

func (c *Cluster) memberNamesLocked() []string {
	var out []string
	for name := range c.members {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
