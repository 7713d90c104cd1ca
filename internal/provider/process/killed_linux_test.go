package process_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fealty-io/fealty/fence"
	marks "github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/provider/process"
	"github.com/fealty-io/fealty/provider"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// The test binary serves as the provider that is killed: a real process, with real machines, that
// gets no chance to clean up.
const (
	servedDir  = "FEALTY_TEST_PROVIDER_DIR"
	servedAddr = "FEALTY_TEST_PROVIDER_ADDR"
	servedKill = "FEALTY_TEST_PROVIDER_KILL" // at which of the points that it passes it kills itself
)

// points are where the provider can be killed between two steps.
var points = []string{"process.before-record", "process.after-record", "process.before-start", "process.before-begin",
	"process.after-begin", "process.after-signal", "process.after-kill", "process.after-end"}

// TestServed is the provider that is killed. Without its environment it is nothing.
func TestServed(t *testing.T) {
	dir := os.Getenv(servedDir)
	if dir == "" {
		return
	}
	go func() { // it ends with who started it, also when that was killed
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	last, err := strconv.Atoi(os.Getenv(servedKill))
	if err != nil {
		t.Fatal(err)
	}
	var passed atomic.Int64
	faults := new(failpoint.Points)
	faults.Watch(func(name string) {
		if passed.Add(1) == int64(last) {
			fmt.Printf("\nkilled at %s\n", name)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	// One that only machines have besides their provider.
	command := func(program string) []string {
		return []string{"sh", "-c", `exec 9>>"` + dir + `/lock-$FEALTY_MACHINE"; flock -n 9 || echo "$FEALTY_MACHINE" >>` +
			dir + `/doubled; echo "$FEALTY_MACHINE $FEALTY_TENANT" >>` + dir + `/begun; ` + program}
	}
	cfg := process.Config{Dir: filepath.Join(dir, "data"), Grace: 50 * time.Millisecond, Faults: faults,
		Log: slog.New(slog.DiscardHandler), Profiles: []process.Profile{
			{Name: "web", Command: command("exec sleep 600"), Slots: 4},
			{Name: "deaf", Command: command(`trap "" TERM; exec sleep 600`), Slots: 1},
		}}
	options := fence.LedgerOptions{BelieveEpochs: true}
	if err := os.MkdirAll(filepath.Join(dir, "fence"), 0o700); err != nil {
		t.Fatal(err)
	}
	ledger, err := marks.EnrolLedger(filepath.Join(dir, "fence"), options)
	if errors.Is(err, marks.ErrEnrolled) {
		ledger, err = marks.OpenLedger(filepath.Join(dir, "fence"), options)
	}
	if err != nil {
		t.Fatal(err)
	}
	machines, err := process.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", os.Getenv(servedAddr))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\nserving %s\n", l.Addr())
	t.Fatal(provider.Serve(t.Context(), l, provider.Config{Machines: machines, Marks: ledger, Insecure: true,
		Log: slog.New(slog.DiscardHandler)}))
}

// served is a provider as a process, which is killed and started again.
type served struct {
	t      *testing.T
	dir    string
	zombie fence.Life // ended before all that is sent here
	sender *fence.Sender

	mu     sync.Mutex
	addr   string               // guarded by mu
	run    *run                 // nil: none; guarded by mu
	client *provider.Client     // of run; guarded by mu
	obeyed bool                 // it obeyed the sender, and so refuses the zombie; guarded by mu
	killAt int                  // at which point the next run is killed; 0: at none; guarded by mu
	after  func() time.Duration // from its start until the next run is killed; nil: never; guarded by mu
	killed []string             // where runs were; guarded by mu
}

// run is one run of the provider.
type run struct {
	cmd    *exec.Cmd
	serves chan string   // where it serves; closed when it said its last
	ended  chan struct{} // closed when it is gone
	at     string        // where it was killed; written before ended is closed
}

func newServed(t *testing.T) *served {
	dir := t.TempDir()
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	s := &served{t: t, dir: dir, zombie: life(1), addr: addr}
	if s.sender, err = fence.NewSender(life(2, s.zombie)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kill()
		endMachines(t, filepath.Join(dir, "data"))
	})
	return s
}

// kill kills the provider, if it runs.
func (s *served) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		_ = s.run.cmd.Process.Kill()
		s.overLocked()
	}
}

// overLocked waits for the end of a run, and notes where it was killed.
func (s *served) overLocked() {
	<-s.run.ended
	if s.run.at != "" {
		s.killed = append(s.killed, s.run.at)
	}
	s.client.Close()
	s.run = nil
}

// where returns where runs were killed.
func (s *served) where() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.killed)
}

// up returns a client of a provider that runs: it is started if it is gone.
func (s *served) up() *provider.Client {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		select {
		case <-s.run.ended:
			s.overLocked()
		default:
			return s.client
		}
	}
	wait.Until(s.t, "the provider starts", func() bool {
		if s.run == nil {
			s.startLocked()
		}
		return s.run != nil
	})
	s.refusesLocked()
	return s.client
}

// refusesLocked has a zombie try its luck: each run refuses it, whatever became of the one before.
func (s *served) refusesLocked() {
	s.t.Helper()
	sender, err := fence.NewSender(s.zombie)
	if err != nil {
		s.t.Fatal(err)
	}
	old, err := provider.Dial(provider.ClientConfig{Target: s.addr, Sender: sender, Insecure: true})
	if err != nil {
		s.t.Fatal(err)
	}
	defer old.Close()
	if !s.obeyed {
		return
	}
	_, err = old.Drain(s.t.Context(), provider.Order{Machine: "web-4"})
	if !errors.Is(err, provider.ErrFenced) && !errors.Is(err, provider.ErrUnavailable) {
		s.t.Errorf("a zombie, after %v: %v, want ErrFenced", s.killed, err)
	}
}

// startLocked starts the provider. It may be killed before it serves.
func (s *served) startLocked() {
	cmd := exec.Command(os.Args[0], "-test.run=^TestServed$")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + s.dir, servedDir + "=" + s.dir,
		servedAddr + "=" + s.addr, servedKill + "=" + strconv.Itoa(s.killAt)}
	in, inErr := cmd.StdinPipe()
	out, err := cmd.StdoutPipe()
	if err = errors.Join(inErr, err, cmd.Start()); err != nil {
		s.t.Fatal(err)
	}
	r := &run{cmd: cmd, serves: make(chan string, 1), ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if addr, ok := strings.CutPrefix(lines.Text(), "serving "); ok {
				r.serves <- addr
			} else if at, ok := strings.CutPrefix(lines.Text(), "killed at "); ok {
				r.at = at
			} else if text := lines.Text(); strings.Contains(text, "_test.go:") {
				s.t.Logf("the provider says: %s", text)
			}
		}
		close(r.serves)
		_ = cmd.Wait() // it was killed
		in.Close()
	}()
	if s.after != nil {
		wait := s.after()
		s.killed = append(s.killed, "after "+wait.String())
		timer := time.AfterFunc(wait, func() { _ = cmd.Process.Kill() })
		go func() { <-r.ended; timer.Stop() }()
	}
	addr, ok := <-r.serves
	if !ok {
		// It was killed, or a process that the one before was about to start has its lock for a
		// moment.
		if <-r.ended; r.at != "" {
			s.killed, s.killAt = append(s.killed, r.at), 0
		}
		return
	}
	client, err := provider.Dial(provider.ClientConfig{Target: addr, Sender: s.sender, Insecure: true})
	if err != nil {
		s.t.Fatal(err)
	}
	s.addr, s.run, s.client, s.killAt = addr, r, client, 0
}

// answered calls a provider that runs until it answers.
func answered[R any](s *served, call func(*provider.Client) (R, error)) (r R) {
	s.t.Helper()
	wait.UntilNil(s.t, "an answer", func() (err error) {
		if r, err = call(s.up()); err != nil && !errors.Is(err, provider.ErrUnavailable) {
			s.t.Fatalf("after %v: %v", s.where(), err)
		}
		return err
	})
	return r
}

// act is what is done with a machine.
type act struct {
	name string
	call func(*provider.Client, context.Context, provider.Order) (string, error)
	want provider.State
}

var (
	creates    = act{"create", (*provider.Client).Create, provider.Idle}
	configures = act{"configure", (*provider.Client).Configure, provider.Configured}
	drains     = act{"drain", (*provider.Client).Drain, provider.Idle}
	deletes    = act{"delete", (*provider.Client).Delete, provider.Speculative}
)

// bring has one thing done with a machine, whatever happens to the provider meanwhile, and returns
// how many orders that took: one whose process ended with the provider that started it is given
// again.
func (s *served) bring(machine, tenant string, a act) (orders int) {
	s.t.Helper()
	o := provider.Order{Machine: machine, Tenant: tenant}
	order := func() string {
		return answered(s, func(c *provider.Client) (string, error) { return a.call(c, s.t.Context(), o) })
	}
	operation := order()
	orders = 1
	wait.UntilNil(s.t, a.name+" of "+machine, func() error {
		m := answered(s, func(c *provider.Client) (provider.Machine, error) { return c.Get(s.t.Context(), machine) })
		switch {
		case m.Operation != operation:
			s.t.Fatalf("%s of %s is operation %s, and it shows %s (%s)", a.name, machine, operation, m.Operation, m.State)
		case m.State == provider.Failed && a.name == configures.name && m.LastError == "its process ended":
			operation = order()
			orders++
		case m.State == provider.Failed:
			s.t.Fatalf("%s of %s, which was killed %v: it is %s (%s)", a.name, machine, s.where(), m.State, m.LastError)
		case m.State == a.want && (m.State != provider.Configured || s.works(machine)):
			return nil // otherwise it may fail yet: its process never became its command
		}
		return fmt.Errorf("it was killed %v, and is %s (%s)", s.where(), m.State, m.LastError)
	})
	if again := order(); again != operation {
		s.t.Errorf("%s of %s again, after %v: operation %s, want %s", a.name, machine, s.where(), again, operation)
	}
	want := 0
	if a.want == provider.Configured {
		want = 1
	}
	var found map[int]string
	wait.UntilNil(s.t, "its processes after "+a.name, func() error {
		found = running(s.t, filepath.Join(s.dir, "data"))
		maps.DeleteFunc(found, func(_ int, who string) bool { return !strings.HasPrefix(who, machine+" ") })
		if len(found) != want {
			return fmt.Errorf("%s has %v, killed %v: want %d", machine, found, s.where(), want)
		}
		return nil
	})
	for pid, who := range found {
		if who != machine+" "+tenant || pid != s.pidOf(machine) {
			s.t.Errorf("pid %d works for %q, and the machine %s of %s has pid %d", pid, who, machine, tenant, s.pidOf(machine))
		}
	}
	return orders
}

// round brings a machine through all states, for two tenants, and returns how often its command may
// have begun.
func (s *served) round(machine string) (orders int) {
	s.t.Helper()
	s.bring(machine, "", creates)
	for _, tenant := range []string{"acme", "emca"} {
		orders += s.bring(machine, tenant, configures)
		s.bring(machine, "", drains)
	}
	s.bring(machine, "", deletes)
	return orders
}

func (s *served) pidOf(machine string) int {
	s.t.Helper()
	return (&site{t: s.t, dir: filepath.Join(s.dir, "data")}).pidOf(machine)
}

// running returns the processes of machines of the provider in a folder, by what their environment
// says of machine and tenant. A process is one of them by its folder, which it cannot have from
// anywhere else.
func running(t *testing.T, dir string) map[int]string {
	t.Helper()
	found := make(map[int]string)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cwd, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		if err != nil || !strings.HasPrefix(cwd, filepath.Join(dir, "work")+"/") || !runs(pid) {
			continue
		}
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")) // it may be gone
		var machine, tenant string
		for v := range strings.SplitSeq(string(environ), "\x00") {
			if m, ok := strings.CutPrefix(v, "FEALTY_MACHINE="); ok {
				machine = m
			} else if t, ok := strings.CutPrefix(v, "FEALTY_TENANT="); ok {
				tenant = t
			}
		}
		if machine != "" {
			found[pid] = machine + " " + tenant
		}
	}
	return found
}

// endMachines ends the machines of a provider, which outlive it, and what they started.
func endMachines(t *testing.T, dir string) {
	for pid := range running(t, dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// works reports whether a machine's process became the last of its command: one that is to be deaf
// hears until then, and would not have to be killed.
func (s *served) works(machine string) bool {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.pidOf(machine)))
	return err == nil && strings.HasPrefix(string(text), "sleep\x00")
}

// begun returns how often the command of a machine began, and whether any began twice at once.
func (s *served) begun(machine string) int {
	s.t.Helper()
	if text, err := os.ReadFile(filepath.Join(s.dir, "doubled")); err == nil {
		s.t.Errorf("killed %v, two processes were one machine at once: %s", s.where(), text)
	}
	text, err := os.ReadFile(filepath.Join(s.dir, "begun"))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Count("\n"+string(text), "\n"+machine+" ")
}

// stays configures a machine that nobody is to touch, and returns what checks that nobody did.
func (s *served) stays(machine string) (check func()) {
	s.t.Helper()
	s.bring(machine, "", creates)
	s.bring(machine, "keeper", configures)
	s.mu.Lock()
	s.obeyed = true
	s.mu.Unlock()
	pid := s.pidOf(machine)
	stranger := exec.Command("sleep", "600")
	if err := stranger.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = stranger.Process.Kill(); _ = stranger.Wait() })
	return func() {
		s.t.Helper()
		m := answered(s, func(c *provider.Client) (provider.Machine, error) { return c.Get(s.t.Context(), machine) })
		if m.State != provider.Configured || s.pidOf(machine) != pid || !runs(pid) || s.begun(machine) != 1 {
			s.t.Errorf("killed %v, %s is %s (%s) with pid %d, want pid %d, which runs: %t", s.where(), machine, m.State,
				m.LastError, s.pidOf(machine), pid, runs(pid))
		}
		if !runs(stranger.Process.Pid) {
			s.t.Errorf("killed %v, it ended a process that is not its own", s.where())
		}
	}
}

// Killed at any of its steps, the provider goes on from there: no machine is lost and none is two,
// no process but its own is touched, an order that is repeated is the same one, and whom it refused
// it refuses.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	check := s.stays("web-4")
	most, where := 0, make(map[string]int)
	for n := 1; ; n++ {
		s.kill()
		s.mu.Lock()
		s.killed, s.killAt = nil, n
		s.mu.Unlock()
		most += s.round("deaf-1")
		check()
		if begun := s.begun("deaf-1"); begun > most {
			t.Fatalf("killed %v, its command began %d times for %d orders", s.where(), begun, most)
		}
		if t.Failed() {
			return
		}
		killed := s.where()
		if len(killed) == 0 {
			break // it has no more than n-1 steps
		}
		where[killed[0]]++
	}
	for _, point := range points {
		if where[point] == 0 {
			t.Errorf("it was never %s: %v", point, where)
		}
	}
	t.Logf("killed %v", where)
}

// Killed at any moment while several machines go round, it is as in [TestKilledAtEachStep].
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	kills := testlane.Rounds(12, 500)
	s := newServed(t)
	check := s.stays("web-4")
	random := rand.New(rand.NewPCG(testlane.Seed(t), 0))
	var left atomic.Int64
	left.Store(int64(kills))
	s.kill()
	s.mu.Lock()
	s.after = func() time.Duration {
		if left.Add(-1) < 0 {
			return time.Hour
		}
		return time.Duration(random.Int64N(int64(400 * time.Millisecond)))
	}
	s.mu.Unlock()
	var wg sync.WaitGroup
	most := make([]int, 3)
	for i := range most {
		wg.Go(func() {
			for left.Load() > 0 && !t.Failed() {
				most[i] += s.round(fmt.Sprintf("web-%d", i+1))
			}
		})
	}
	wg.Wait()
	check()
	for i, orders := range most {
		if begun := s.begun(fmt.Sprintf("web-%d", i+1)); begun > orders {
			t.Errorf("the command of web-%d began %d times for %d orders", i+1, begun, orders)
		}
	}
	t.Logf("%d kills, %v orders", kills, most)
}
