package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	internalprovider "github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/provider"
)

// DefaultGrace is how long a process has after SIGTERM.
const DefaultGrace = 10 * time.Second

// MaxSlots bounds the machines of one provider.
const MaxSlots = 1000

// Bounds on what a machine's command writes to its standard output and error, in bytes. It is in
// the file output in the machine's folder; of more than MaxOutput the last KeptOutput are put
// aside in output.1, and the file begins anew.
const (
	MaxOutput  = 8 << 20
	KeptOutput = 1 << 20
)

// LeastFile is the lowest bound on files that a profile may have, in bytes: what a command prints
// between two looks of the provider is below it.
const LeastFile = 4 * MaxOutput

const (
	outputFile = "output"
	keptFile   = "output.1"
)

// again is the pause before something that failed is tried again.
const again = time.Second

// Profile is one kind of machine.
type Profile struct {
	// Name is how machines begin: that of profile web with two slots are web-1 and web-2. It
	// has lower case letters, digits and dashes, at most 63.
	Name string

	// Command is what a machine runs while it is configured: a program, and its arguments.
	// No shell reads it.
	Command []string

	// Slots is how many machines there are.
	Slots int

	// Domain is where they are; "": in no domain.
	Domain string

	// MaxFileBytes bounds each file that the command writes, its output and those of its own: one
	// that goes on gets SIGXFSZ, which ends it (setrlimit(2), RLIMIT_FSIZE). The system holds it to
	// that while no provider runs, too. At least [LeastFile]; 0: no bound.
	MaxFileBytes int64

	// PricePerHour and InterruptionProbability are what the provider declares of them.
	PricePerHour, InterruptionProbability float64
}

// Config is what [Open] needs.
type Config struct {
	// Dir is the provider's own folder, which belongs to one process. Required.
	Dir string

	// Profiles say which machines there are. Required.
	Profiles []Profile

	// Grace is how long a process has after SIGTERM before it gets SIGKILL. Zero means
	// [DefaultGrace].
	Grace time.Duration

	// Lock is that of Dir, taken with [Lock] before something else is opened in it. It is released by [Provider.Close],
	// and if Open fails. Nil: Open takes it.
	Lock io.Closer

	// Log is told what processes and the disk do. Nil: slog.Default().
	Log *slog.Logger

	// Faults are points at which a test ends the process. Nil outside tests.
	Faults *failpoint.Points
}

// Provider implements [provider.Machines].
type Provider struct {
	cfg  Config
	disk durable.FS
	lock io.Closer

	over context.Context // ends the work that goes on
	end  context.CancelFunc
	work sync.WaitGroup

	mu       sync.Mutex
	machines map[string]*machine // by id; never changes
}

// machine is one slot.
type machine struct {
	profile Profile
	turn    chan struct{} // buffered, 1: held by the work on it, one order after the other
	child   *child        // that this process started; guarded by turn

	record record        // guarded by Provider.mu
	moved  chan struct{} // closed, and made anew, when record changes; guarded by Provider.mu
}

var profileName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (c Config) check() error {
	if c.Dir == "" || len(c.Profiles) == 0 {
		return errors.New("process: a folder and at least one profile are needed")
	}
	slots := 0
	for i, p := range c.Profiles {
		switch {
		case !profileName.MatchString(p.Name):
			return fmt.Errorf("process: %.80q is no name of a profile: want lower case letters, digits and dashes, "+
				"at most 63", p.Name)
		case slices.ContainsFunc(c.Profiles[:i], func(o Profile) bool { return o.Name == p.Name }):
			return fmt.Errorf("process: there are two profiles %s", p.Name)
		case len(p.Command) == 0 || p.Command[0] == "" || strings.ContainsRune(strings.Join(p.Command, ""), 0):
			return fmt.Errorf("process: profile %s has no command", p.Name)
		case p.MaxFileBytes != 0 && p.MaxFileBytes < LeastFile:
			return fmt.Errorf("process: profile %s bounds files to %d bytes, want 0 for no bound, or at least %d",
				p.Name, p.MaxFileBytes, LeastFile)
		case p.Slots < 1:
			return fmt.Errorf("process: profile %s has %d slots, want at least 1", p.Name, p.Slots)
		}
		m := record{Machine: p.Name + "-1", Profile: p.Name, State: provider.Speculative}.machine(p)
		if err := m.Validate(); err != nil {
			return err
		}
		slots += min(p.Slots, MaxSlots+1)
	}
	if slots > MaxSlots {
		return fmt.Errorf("process: the profiles have more than %d slots, which is the limit", MaxSlots)
	}
	return nil
}

// Lock takes the folder of a provider, among locks, which may be nil. An error that matches durable.ErrLocked says
// that another process has it.
func Lock(dir string, locks *durable.Locks) (io.Closer, error) {
	files := locks.OS()
	if err := files.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("process: make %s: %w", dir, err)
	}
	return files.Lock(filepath.Join(dir, "provider.lock"))
}

// Open takes the folder, finds the machines of before in it, and goes on with what was under
// way. The folder is held until [Provider.Close].
//
// Errors: of the config; one that matches durable.ErrLocked; a file that is not what was
// written, which names it; those of the disk.
func Open(cfg Config) (_ *Provider, err error) {
	defer func() {
		if err != nil && cfg.Lock != nil {
			err = errors.Join(err, cfg.Lock.Close())
		}
	}()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if err := supported(); err != nil {
		return nil, err
	}
	// Commands run in folders of their own.
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	if cfg.Lock == nil {
		if cfg.Lock, err = Lock(cfg.Dir, nil); err != nil {
			return nil, err
		}
	}
	p := &Provider{cfg: cfg, disk: durable.OS(), lock: cfg.Lock, machines: make(map[string]*machine)}
	for _, dir := range []string{p.dir("machines"), p.dir("work")} {
		if err := p.disk.MkdirAll(dir); err != nil {
			return nil, fmt.Errorf("process: make %s: %w", dir, err)
		}
	}
	if err := p.load(); err != nil {
		return nil, err
	}
	for _, profile := range cfg.Profiles {
		// No reason not to start: machines that run need nobody who starts them, and a program may be installed later.
		if _, err := exec.LookPath(profile.Command[0]); err != nil {
			cfg.Log.Warn("the command of a profile cannot be run here: its machines fail when they are configured",
				"profile", profile.Name, "command", profile.Command[0], "err", err)
		}
	}
	p.over, p.end = context.WithCancel(context.Background())
	for _, m := range p.machines {
		p.resume(m)
	}
	return p, nil
}

// Close ends what goes on here, and gives the folder back. Processes run on, and are found
// again.
func (p *Provider) Close() error {
	// No order is accepted while the end is told, so that none begins work behind the wait.
	p.mu.Lock()
	p.end()
	p.mu.Unlock()
	p.work.Wait()
	return p.lock.Close()
}

// at is a point between two steps whose order matters.
func (p *Provider) at(point string) { _ = p.cfg.Faults.Hit("process." + point) }

func (p *Provider) dir(elements ...string) string {
	return filepath.Join(append([]string{p.cfg.Dir}, elements...)...)
}

// load makes the machines of the profiles, and of the files of before.
func (p *Provider) load() error {
	for _, profile := range p.cfg.Profiles {
		for n := range profile.Slots {
			id := profile.Name + "-" + strconv.Itoa(n+1)
			p.machines[id] = &machine{profile: profile, record: record{Version: 1, Machine: id, Profile: profile.Name,
				State: provider.Speculative}}
		}
	}
	// The last words of a dead process must not be undone by a power cut once it was acted on.
	if err := p.disk.Settle(p.dir("machines")); err != nil {
		return fmt.Errorf("process: read %s: %w", p.dir("machines"), err)
	}
	names, err := p.disk.ReadDir(p.dir("machines"))
	if err != nil {
		return fmt.Errorf("process: read %s: %w", p.dir("machines"), err)
	}
	for _, name := range names {
		file := p.dir("machines", name)
		text, err := p.disk.ReadFile(file, maxRecord)
		if err != nil {
			return fmt.Errorf("process: read %s: %w", file, err)
		}
		r, err := decode(text)
		if err == nil && r.Machine != name {
			err = fmt.Errorf("it is of machine %q", r.Machine)
		}
		if err != nil {
			return fmt.Errorf("process: %s is damaged, %w: end its process, if there is one, and remove the file: "+
				"the machine is speculative then", file, err)
		}
		m := p.machines[name]
		switch {
		case m == nil && (r.State == provider.Speculative || len(p.machines) >= 2*MaxSlots):
			continue // a slot that the profiles no longer have
		case m == nil:
			// It stays until it is deleted: somebody may be using it.
			m = &machine{profile: Profile{Name: r.Profile}}
			p.machines[name] = m
		}
		m.record = r
	}
	for _, m := range p.machines {
		m.turn, m.moved = make(chan struct{}, 1), make(chan struct{})
	}
	return nil
}

// Get returns one machine.
func (p *Provider) Get(_ context.Context, id string) (provider.Machine, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.machines[id]
	if !ok || m.gone() {
		return provider.Machine{}, fmt.Errorf("process: there is no machine %.80q: %w", id, provider.ErrNotFound)
	}
	return m.record.machine(m.profile), nil
}

// List returns all machines.
func (p *Provider) List(context.Context) ([]provider.Machine, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []provider.Machine
	for _, m := range p.machines {
		if !m.gone() {
			all = append(all, m.record.machine(m.profile))
		}
	}
	return all, nil
}

// gone reports whether it was a slot that the profiles no longer have, and is released.
func (m *machine) gone() bool {
	return len(m.profile.Command) == 0 && m.record.State == provider.Speculative
}

// Create reserves a slot.
func (p *Provider) Create(_ context.Context, o provider.Order) error {
	return p.accept(o, func(r *record) { r.State = provider.Creating })
}

// Configure starts the command of the machine's profile for a tenant.
func (p *Provider) Configure(_ context.Context, o provider.Order) error {
	if m := p.machines[o.Machine]; m != nil && len(m.profile.Command) == 0 {
		return fmt.Errorf("process: machine %s is of profile %s, which is no longer there: delete it: %w", o.Machine,
			m.profile.Name, provider.ErrRejected)
	}
	return p.accept(o, func(r *record) { r.State, r.Tenant, r.Priority = provider.Configuring, o.Tenant, o.Priority })
}

// Drain ends the command: SIGTERM, and SIGKILL after the grace.
func (p *Provider) Drain(_ context.Context, o provider.Order) error {
	return p.accept(o, func(r *record) { r.State = provider.Draining })
}

// Delete releases the slot.
func (p *Provider) Delete(_ context.Context, o provider.Order) error {
	return p.accept(o, func(r *record) { r.State, r.Tenant, r.Priority = provider.Deleting, "", 0 })
}

// accept makes an order durable, and leaves the rest to the machine's work.
func (p *Provider) accept(o provider.Order, change func(*record)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.machines[o.Machine]
	if !ok || m.gone() {
		return fmt.Errorf("process: there is no machine %.80q: %w", o.Machine, provider.ErrNotFound)
	}
	if p.over.Err() != nil {
		return fmt.Errorf("process: the provider ends: %w", provider.ErrUnavailable)
	}
	next := m.record
	next.Operation, next.LastError = o.Operation, ""
	change(&next)
	if err := p.saveLocked(m, next); err != nil {
		return fmt.Errorf("%w: %w", err, provider.ErrUnavailable)
	}
	p.cfg.Log.Info("an order was accepted", "machine", o.Machine, "state", next.State, "tenant", next.Tenant,
		"operation", o.Operation)
	p.resume(m)
	return nil
}

// saveLocked makes a record durable, and then the machine's. Provider.mu is held.
func (p *Provider) saveLocked(m *machine, next record) error {
	file := p.dir("machines", next.Machine)
	p.at("before-record")
	if err := p.disk.WriteFile(file, next.encode()); err != nil {
		return fmt.Errorf("process: write %s: make it writable, with room: %w", file, err)
	}
	p.at("after-record")
	m.record = next
	close(m.moved)
	m.moved = make(chan struct{})
	return nil
}

// resume has the work on a machine done that its record says, in the background.
func (p *Provider) resume(m *machine) {
	p.work.Go(func() {
		select {
		case m.turn <- struct{}{}:
			defer func() { <-m.turn }()
		case <-p.over.Done():
			return
		}
		p.drive(m)
	})
}

// drive brings a machine to the end of its operation. The turn is held: nobody else starts or
// ends its process.
func (p *Provider) drive(m *machine) {
	for p.over.Err() == nil {
		r := p.now(m)
		var done bool
		switch r.State {
		case provider.Creating:
			done = p.created(m, r)
		case provider.Configuring:
			done = p.configured(m, r)
		case provider.Configured:
			done = p.watched(m, r)
		case provider.Draining:
			done = p.ended(m, r, provider.Idle)
		case provider.Deleting:
			done = p.ended(m, r, provider.Speculative)
		default:
			return
		}
		if !done {
			return
		}
	}
}

func (p *Provider) now(m *machine) record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return m.record
}

// move makes the record of a machine durable, with a change, for as long as the operation is
// the one that the work began for: false once it is another one. Where the disk takes
// nothing it tries on: the machine stays in the state in which it is until it does.
func (p *Provider) move(m *machine, operation string, change func(*record)) bool {
	for {
		p.mu.Lock()
		if m.record.Operation != operation {
			p.mu.Unlock()
			return false
		}
		next := m.record
		change(&next)
		err := p.saveLocked(m, next)
		p.mu.Unlock()
		if err == nil {
			p.cfg.Log.Info("a machine went on", "machine", next.Machine, "state", next.State, "last_error",
				next.LastError)
			return true
		}
		p.cfg.Log.Error("a machine cannot go on", "machine", next.Machine, "err", err)
		if !p.pause(again) {
			return false
		}
	}
}

// pause waits, and reports whether the provider goes on.
func (p *Provider) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-p.over.Done():
		return false
	}
}

// fail ends an operation that did not get where it was going.
func (p *Provider) fail(m *machine, operation, why string) bool {
	return p.move(m, operation, func(r *record) {
		r.State, r.LastError = provider.Failed, strings.ToValidUTF8(why[:min(len(why), internalprovider.MaxLastError)], "")
	})
}

// workDir is where the command of a machine runs.
func (p *Provider) workDir(r record) string { return p.dir("work", r.Machine) }

func (p *Provider) created(m *machine, r record) bool {
	if err := p.disk.MkdirAll(p.workDir(r)); err != nil {
		return p.fail(m, r.Operation, err.Error())
	}
	return p.move(m, r.Operation, func(r *record) { r.State = provider.Idle })
}

// configured starts the command, unless the process of a provider of before runs it.
func (p *Provider) configured(m *machine, r record) bool {
	if alive(r.Process) {
		return p.move(m, r.Operation, func(r *record) { r.State = provider.Configured })
	}
	p.at("before-start")
	c, err := start(m.profile, p.workDir(r), []string{"FEALTY_MACHINE=" + r.Machine,
		"FEALTY_PROFILE=" + r.Profile, "FEALTY_TENANT=" + r.Tenant})
	if err != nil {
		return p.fail(m, r.Operation, err.Error())
	}
	// The pid is on disk before the command begins: a provider that is killed here leaves no
	// process that nobody knows of. So is that it was begun: one that ended meanwhile failed,
	// and is not run a second time for one order.
	if !p.move(m, r.Operation, func(r *record) { r.State, r.Process = provider.Configured, c.running }) {
		c.abandon()
		return true
	}
	m.child = c
	p.at("before-begin")
	c.begin()
	p.at("after-begin")
	return true
}

// watched waits until the process ends, or another order comes.
func (p *Provider) watched(m *machine, r record) bool {
	p.mu.Lock()
	moved := m.moved
	changed := m.record != r
	p.mu.Unlock()
	if changed {
		return true
	}
	var ended <-chan struct{}
	poll := time.NewTicker(lookEvery)
	defer poll.Stop()
	if m.child != nil && m.child.running == r.Process {
		ended = m.child.ended
	}
	cut := p.cutter(r)
	for alive(r.Process) {
		cut()
		select {
		case <-ended:
		case <-poll.C:
		case <-moved:
			return true
		case <-p.over.Done():
			return false
		}
	}
	cut() // its last words are nobody's to cut later
	why := "its process ended"
	if m.child != nil && m.child.running == r.Process {
		<-m.child.ended
		why += ": " + m.child.how
	}
	m.child = nil
	return p.move(m, r.Operation, func(r *record) { r.State, r.LastError, r.Process = provider.Failed, why, running{} })
}

// ended ends the process, if there is one, and goes to the state after it.
func (p *Provider) ended(m *machine, r record, next provider.State) bool {
	if err := p.stop(r, m.child); err != nil {
		return p.fail(m, r.Operation, err.Error())
	}
	if p.over.Err() != nil {
		return false
	}
	m.child = nil
	p.at("after-end")
	if next == provider.Speculative {
		if err := removeAll(p.workDir(r)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return p.fail(m, r.Operation, err.Error())
		}
	}
	return p.move(m, r.Operation, func(r *record) { r.State, r.Tenant, r.Priority, r.Process = next, "", 0, running{} })
}

// cutter returns what bounds a machine's output, and says once that it cannot.
func (p *Provider) cutter(r record) func() {
	told := false
	return func() {
		if err := cutOutput(p.workDir(r)); err != nil && !told {
			p.cfg.Log.Warn("what a machine writes cannot be bounded", "machine", r.Machine, "err", err)
			told = true
		}
	}
}

// stop ends the process of a machine: SIGTERM, and SIGKILL after the grace. It returns when it is gone, or
// the provider ends.
func (p *Provider) stop(of record, c *child) error {
	r := of.Process
	if r == (running{}) {
		return nil
	}
	cut := p.cutter(of)
	defer cut()
	var ended <-chan struct{}
	if c != nil && c.running == r {
		ended = c.ended
	}
	kill := time.NewTimer(p.cfg.Grace)
	defer kill.Stop()
	poll := time.NewTicker(lookEvery)
	defer poll.Stop()
	if err := signal(r, false); err != nil {
		return err
	}
	p.at("after-signal")
	var given <-chan time.Time // after SIGKILL
	for alive(r) {
		cut() // who is told to end may print on
		select {
		case <-ended:
			ended = nil // alive tells the rest
		case <-poll.C:
		case <-kill.C:
			p.cfg.Log.Warn("a process did not end in its grace, and is killed", "pid", r.PID, "grace", p.cfg.Grace)
			if err := signal(r, true); err != nil {
				return err
			}
			p.at("after-kill")
			given = time.After(max(p.cfg.Grace, DefaultGrace)) // the system's time, not the command's
		case <-given:
			return fmt.Errorf("process: pid %d does not end, not by SIGKILL either", r.PID)
		case <-p.over.Done():
			return nil
		}
	}
	return nil
}
