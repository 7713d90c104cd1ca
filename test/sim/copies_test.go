package sim_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/test/testlane"
)

const agentDir = "/var/lib/fealty"

// agentMachine is a machine with an agent: its disk, its way to the coordinators, and the
// process that runs on it, or none.
type agentMachine struct {
	f    *fleet
	t    *testing.T
	disk *durabletest.Disk
	end  func()

	mu    sync.Mutex
	only  string              // the one coordinator that it reaches; "": all; guarded by mu
	conns map[net.Conn]string // open ones, with their address; guarded by mu
	at    map[string]int      // how many streams stood at each coordinator; guarded by mu
}

// copyFleet runs fn with two coordinators in a bubble and a machine that joined.
func copyFleet(t *testing.T, fn func(t *testing.T, s *schedule, a *agentMachine)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &schedule{fleet: newFleet(t, 1, 2, nil), m: newModel()}
		defer func() {
			s.stop()
			synctest.Wait()
			if t.Failed() {
				t.Log(s.log.String())
			}
		}()
		// A short certificate is renewed every few minutes.
		const short = "  - {name: short, kind: data, match: [\"token:short\"], svid_ttl: 4m}\n"
		if !s.settle() {
			t.Fatal("the coordinators are not ready")
		}
		next := strings.Replace(string(s.manifest(short)), "signers:", "degraded: {max: 1m}\nsigners:", 1)
		if _, err := s.coord[0].set([]byte(next), s.head().Hash); err != nil {
			t.Fatal(err)
		}
		if !s.settle() {
			t.Fatal("the coordinators did not follow a manifest")
		}
		a := &agentMachine{f: s.fleet, t: t, disk: durabletest.NewDisk(), at: make(map[string]int)}
		a.join("short", "a")
		fn(t, s, a)
	})
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// join makes the machine the member name.
func (a *agentMachine) join(entry, name string) {
	a.t.Helper()
	var tok proof.JoinToken
	err := a.f.coord[0].asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
		req := &fealtyv1.CreateTokenRequest{Entry: entry, Name: name}
		resp, err := fealtyv1.NewTokenServiceClient(conn).CreateToken(ctx, req)
		if err == nil {
			tok, err = proof.ParseJoinToken(resp.GetLine())
		}
		return err
	})
	var p enroll.Proof
	if err == nil {
		p, err = enroll.ByToken(tok).At([]string{a.f.coord[0].Addr, a.f.coord[1].Addr}, "the test")
	}
	if err == nil {
		_, err = enroll.Join(context.Background(), enroll.JoinConfig{
			DataDir: agentDir, Proof: p, Kind: identity.Data, Log: quiet(), FS: a.disk.FS(), Dial: a.dial,
		})
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// copied returns another machine with all that is on this one's disk.
func (a *agentMachine) copied() *agentMachine {
	a.t.Helper()
	c := &agentMachine{f: a.f, t: a.t, disk: durabletest.NewDisk(), at: make(map[string]int)}
	var walk func(dir string)
	walk = func(dir string) {
		for _, name := range need(a.disk.List(dir)) {
			name = path.Join(dir, name)
			if mode := need(a.disk.Stat(name)); mode.IsDir() {
				walk(name)
				continue
			}
			data, mode, err := a.disk.Read(name, 1<<24)
			if err != nil {
				a.t.Fatal(err)
			}
			c.disk.Put(name, data)
			c.disk.Chmod(name, mode)
		}
	}
	walk(agentDir)
	return c
}

// start runs the agent that is on the machine's disk, as a new process.
func (a *agentMachine) start() {
	a.t.Helper()
	boot, began := make([]byte, 8), time.Now()
	rand.Read(boot)
	p, err := agent.Open(context.Background(), agent.Config{
		DataDir: agentDir, FS: a.disk.FS(), Dial: a.dial, Log: slog.New(streams{slog.DiscardHandler, a}), Release: "test",
		Local: coordinatortest.NewNobody(), LocalConfig: coordinatortest.NewNobody(),
		Elapsed: func() (string, time.Duration) { return hex.EncodeToString(boot), time.Since(began) },
	})
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	a.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			a.t.Errorf("the agent ended with %v", err)
		}
	})
}

// streams is a log handler that counts the streams of a machine.
type streams struct {
	slog.Handler
	a *agentMachine
}

func (s streams) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (s streams) WithAttrs([]slog.Attr) slog.Handler           { return s }

func (s streams) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "stream to a coordinator" {
		return nil
	}
	r.Attrs(func(at slog.Attr) bool {
		if at.Key == "coordinator" {
			s.a.mu.Lock()
			defer s.a.mu.Unlock()
			s.a.at[at.Value.String()]++
		}
		return true
	})
	return nil
}

// stood returns how many streams stood at each coordinator.
func (a *agentMachine) stood() (at map[string]int, all int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.at {
		all += n
	}
	return maps.Clone(a.at), all
}

// key returns the key that the machine is certified over.
func (a *agentMachine) key() string {
	return string(need(a.disk.FS().ReadSecret(path.Join(agentDir, dir.SVIDName), 1<<20)))
}

// dial connects the machine to a coordinator that it reaches.
func (a *agentMachine) dial(ctx context.Context, addr string) (net.Conn, error) {
	a.mu.Lock()
	only := a.only
	a.mu.Unlock()
	if only != "" && only != addr {
		return nil, fmt.Errorf("connect to %s: no route to host", addr)
	}
	raw, err := a.f.net.Dial(nil)(ctx, addr)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conns == nil {
		a.conns = make(map[net.Conn]string)
	}
	a.conns[raw] = addr
	return raw, nil
}

// cut ends the connections of the machine, and has it reach one coordinator alone; "" for
// all of them.
func (a *agentMachine) cut(only string) {
	a.mu.Lock()
	conns := a.conns
	a.conns, a.only = nil, only
	a.mu.Unlock()
	for c := range conns {
		c.Close()
	}
}

// alarms returns what status of each coordinator says of members that run twice, and of
// their earlier keys.
func (s *schedule) alarms() (out [][]string) {
	for _, x := range s.coord {
		var found []string
		err := x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
			st, err := fealtyv1.NewStatusServiceClient(conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
			for _, f := range st.GetFindings() {
				if f.GetCode() == string(errcode.MemberCopied) || f.GetCode() == string(errcode.MemberOlderKey) {
					found = append(found, f.GetCode()+" "+f.GetSummary()+" "+f.GetRemedy())
				}
			}
			return err
		})
		if err != nil {
			found = append(found, "no answer: "+short(err))
		}
		out = append(out, found)
	}
	return out
}

// Two machines with one data folder, each of which reaches a coordinator of its own: the
// coordinators tell each other of the streams that take turns, and within a minute status
// says on both of them who was copied. The member is served all the while.
func TestCopiedAgentAlarms(t *testing.T) {
	copyFleet(t, func(t *testing.T, s *schedule, a *agentMachine) {
		a.only = s.coord[0].Addr
		a.start()
		defer func() { a.end() }()
		time.Sleep(10 * time.Second)
		if got := s.alarms(); len(got[0])+len(got[1]) > 0 {
			t.Fatalf("before there is a copy: %v", got)
		}
		b := a.copied()
		b.only = s.coord[1].Addr
		b.start()
		defer func() { b.end() }()
		time.Sleep(time.Minute)
		s.wantAlarm(t, errcode.MemberCopied)
		if !s.connected() {
			t.Error("the member is served no more")
		}
	})
}

// wantAlarm wants every coordinator to find this of the member, and of no other.
func (s *schedule) wantAlarm(t *testing.T, code errcode.Code) {
	t.Helper()
	for i, found := range s.alarms() {
		if len(found) != 1 || !strings.HasPrefix(found[0], string(code)) || !strings.Contains(found[0], "data/a") {
			t.Errorf("coordinator %d finds %q, want %s of data/a", i, found, code)
		}
	}
}

// connected reports whether some coordinator has a stream of the member.
func (s *schedule) connected() (is bool) {
	for _, x := range s.coord {
		need(0, x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
			st, err := fealtyv1.NewStatusServiceClient(conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
			for _, m := range st.GetMembers() {
				is = is || m.GetName() == "a" && m.GetLive().GetConnected()
			}
			return err
		}))
	}
	return is
}

// A copy of the data folder from before the member's last renewals is refused by the
// coordinator that it reaches, and each of them says so within a minute. The machine that
// renewed keeps its one stream.
func TestOlderCopyAlarms(t *testing.T) {
	copyFleet(t, func(t *testing.T, s *schedule, a *agentMachine) {
		a.only = s.coord[0].Addr
		b := a.copied()
		b.only = s.coord[1].Addr
		a.start()
		defer func() { a.end() }()
		// Twice: the one before the newest may be that of a renewal whose answer is lost.
		for range 2 {
			for was := a.key(); a.key() == was; {
				time.Sleep(time.Second)
			}
		}
		time.Sleep(time.Minute) // the stream under the newer key
		if got := s.alarms(); len(got[0])+len(got[1]) > 0 {
			t.Fatalf("before the copy runs: %v", got)
		}
		_, before := a.stood()
		b.start()
		defer func() { b.end() }()
		time.Sleep(time.Minute)
		s.wantAlarm(t, errcode.MemberOlderKey)
		if _, now := a.stood(); now > before+1 || !s.connected() {
			t.Errorf("the machine that renewed opened %d streams meanwhile; connected: %v", now-before, s.connected())
		}
	})
}

// One machine whose connections end again and again, which goes to another coordinator
// each fourth time, renews its key every few minutes, and whose process is started again now
// and then, is not taken for two.
func TestOneAgentRaisesNoAlarm(t *testing.T) {
	copyFleet(t, func(t *testing.T, s *schedule, a *agentMachine) {
		a.start()
		defer func() { a.end() }()
		keys, reconnects := make(map[string]bool), testlane.Rounds(40, 200)
		for n := range reconnects {
			_, before := a.stood()
			switch {
			case n%25 == 24: // its process
				a.end()
				a.start()
			case n%4 == 3: // to the coordinator that it is told
				a.cut(s.coord[n/4%2].Addr)
			default:
				a.cut("")
			}
			for waited := time.Duration(0); ; waited += 50 * time.Millisecond {
				if _, now := a.stood(); now > before {
					break
				}
				if waited > time.Minute {
					t.Fatalf("no stream %d within a minute", n)
				}
				time.Sleep(50 * time.Millisecond)
			}
			time.Sleep(3500 * time.Millisecond) // it stands: the next end of it is the first of its kind
			keys[a.key()] = true
		}
		at, all := a.stood()
		if len(at) != 2 || all < reconnects || len(keys) < 2+reconnects/100 {
			t.Errorf("it was connected to %v, with %d keys", at, len(keys))
		}
		for i, found := range s.alarms() {
			if len(found) > 0 {
				t.Errorf("coordinator %d finds %q", i, found)
			}
		}
		if log := s.log.String(); strings.Contains(log, "clone alarm") {
			t.Errorf("an alarm of one machine:\n%s", log)
		}
	})
}
