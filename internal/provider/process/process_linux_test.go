package process_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/provider/conformance"
	"github.com/fealty-io/fealty/internal/provider/process"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/provider"
	"github.com/fealty-io/fealty/test/wait"
)

const cluster = "prod.example"

// site is a process provider that is served over mTLS, in the cluster of its authority.
type site struct {
	t         *testing.T
	authority *pkitest.Authority
	key       ed25519.PrivateKey
	dir       string
	grace     time.Duration
	marks     fence.Marks
	addr      string
	machines  *process.Provider
	stop      func()

	mu      sync.Mutex
	refused []error // guarded by mu
}

// openUnlocked opens machines. A process that another test starts at this moment has the lock too, until it
// runs its program.
func openUnlocked(t testing.TB, cfg process.Config) (machines *process.Provider, err error) {
	t.Helper()
	wait.Until(t, "nobody has the lock", func() bool {
		machines, err = process.Open(cfg)
		return !errors.Is(err, durable.ErrLocked)
	})
	return machines, err
}

func (s *site) statements() fence.Authority {
	public := s.key.Public().(ed25519.PublicKey)
	return fence.Authority{Cluster: cluster, Key: func(id string) (ed25519.PublicKey, bool) { return public, id == fence.KeyID(public) }}
}

func newSite(t *testing.T) *site { return newSiteWithGrace(t, 500*time.Millisecond) }

// newSiteWithGrace has a provider that gives a process so long to end by itself.
func newSiteWithGrace(t *testing.T, grace time.Duration) *site {
	s := &site{t: t, authority: pkitest.NewAuthority(t, cluster), key: pkitest.NewEd25519Key(t), dir: t.TempDir(), grace: grace,
		marks: fence.InMemory(fence.NewLedger(fence.LedgerOptions{Cluster: cluster, BelieveEpochs: true}))}
	s.start()
	t.Cleanup(func() { s.stop(); endMachines(t, s.dir) })
	return s
}

func (s *site) source(kind identity.Kind, name string) credential.Source {
	chain, key := s.authority.Issue(s.t, s.authority.ID(s.t, kind, name))
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: s.authority.Bundle()})
	if err != nil {
		s.t.Fatal(err)
	}
	return credential.Static(m)
}

// start opens the folder and serves it.
func (s *site) start() {
	s.t.Helper()
	cfg := process.Config{Dir: s.dir, Grace: s.grace, Log: slog.New(slog.DiscardHandler), Profiles: []process.Profile{
		{Name: "sleeper", Command: []string{"sleep", "600"}, Slots: 12, Domain: "rack-1", PricePerHour: 0.25, InterruptionProbability: 0.01},
		{Name: "short", Command: []string{"sh", "-c", "exit 7"}, Slots: 1, Domain: "rack-1"},
		{Name: "deaf", Command: []string{"sh", "-c", `trap "" TERM; echo deaf; while :; do sleep 600 & wait; done`}, Slots: 1, Domain: "rack-1"},
		{Name: "loud", Command: []string{"sh", "-c", "head -c 9000000 /dev/zero; echo $?; while [ ! -e on ]; do sleep 0.05; done; echo on; exec sleep 600"},
			Slots: 1, Domain: "rack-1"},
		// It prints when it is told to, and ends or goes on.
		{Name: "later", Command: []string{"sh", "-c", "while [ ! -e on ]; do sleep 0.02; done; head -c 20000000 /dev/zero; [ ! -e end ] && exec sleep 600"},
			Slots: 2, Domain: "rack-1"},
		{Name: "endless", Command: []string{"sh", "-c", "while [ ! -e on ]; do sleep 0.02; done; exec cat /dev/zero"}, Slots: 1, Domain: "rack-1",
			MaxFileBytes: process.LeastFile},
		{Name: "hoarder", Command: []string{"sh", "-c", "exec cat /dev/zero >hoard"}, Slots: 1, Domain: "rack-1", MaxFileBytes: process.LeastFile},
		// It prints when it is to end, and ends when it is told to.
		{Name: "stubborn", Command: []string{"sh", "-c",
			`trap 'head -c 20000000 /dev/zero; while [ ! -e end ]; do sleep 0.02; done; exit' TERM; echo ready; while :; do sleep 0.02; done`},
			Slots: 1, Domain: "rack-1"},
	}}
	machines, err := openUnlocked(s.t, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.addr == "" { // it starts again there
		if s.addr, err = freeport.Addr(); err != nil {
			s.t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- provider.Serve(ctx, l, provider.Config{Machines: machines, Marks: s.marks, Authority: s.statements(),
			Source: s.source(identity.Provider, "laptop"), Log: slog.New(slog.DiscardHandler), Refused: func(err error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.refused = append(s.refused, err)
			}})
	}()
	s.machines = machines
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, machines.Close()); err != nil {
			s.t.Error(err)
		}
	})
}

// shard returns the client of one life of a shard.
func (s *site) shard(kind identity.Kind, name string, life fence.Life, ownership uint64) *provider.Client {
	s.t.Helper()
	sender, err := fence.NewSender(life)
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := provider.Dial(provider.ClientConfig{Target: s.addr, Sender: sender, Source: s.source(kind, name),
		Expect: credential.AnyOfKind(identity.Provider), Ownership: func(string) uint64 { return ownership }})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func (s *site) assignment(name string, ownership uint64) string {
	s.t.Helper()
	text, err := fence.Assignment{Cluster: cluster, Domain: "rack-1", Holder: s.authority.ID(s.t, identity.Shard, name).String(),
		Ownership: ownership, AuthorityEpoch: 1}.Sign(s.key)
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

func life(n uint32, before ...fence.Life) fence.Life {
	l := fence.Life{Epoch: fence.NewEpoch(0, n), Incarnation: fence.NewIncarnation()}
	for _, b := range before {
		l.Lineage = append(l.Lineage, b.Incarnation)
	}
	return l
}

// until waits until a machine is in a state, and returns it.
func until(t *testing.T, c *provider.Client, id string, want provider.State) provider.Machine {
	t.Helper()
	var m provider.Machine
	wait.UntilNil(t, "machine "+id+" is "+string(want), func() error {
		var err error
		if m, err = c.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if m.State != want {
			return fmt.Errorf("it is %s (%s)", m.State, m.LastError)
		}
		return nil
	})
	return m
}

// pidOf returns the pid that the machine's file names; 0 without one.
func (s *site) pidOf(id string) int {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "machines", id))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), `"pid": `)
	if !ok {
		return 0
	}
	digits, _, _ := strings.Cut(rest, ",")
	pid, err := strconv.Atoi(digits)
	if err != nil {
		s.t.Fatal(err)
	}
	return pid
}

// runs reports whether a pid is of a process that is no zombie.
func runs(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func must(t *testing.T) func(string, error) string {
	return func(operation string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return operation
	}
}

// A machine goes round, over mTLS and behind the fence; a restart of the provider finds its
// process again; and a zombie is refused before it learns anything.
func TestAMachineGoesRound(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ok := must(t)
	first := life(1)
	a := s.shard(identity.Shard, "a", first, 1)
	o := provider.Order{Machine: "sleeper-1", Domain: "rack-1", Tenant: "acme"}

	if _, err := a.Create(t.Context(), o); !errors.Is(err, provider.ErrRejected) {
		t.Fatalf("before the promise: %v, want ErrRejected", err)
	}
	if err := a.Promise(t.Context(), s.assignment("a", 1)); err != nil {
		t.Fatal(err)
	}
	created := ok(a.Create(t.Context(), o))
	if again := ok(a.Create(t.Context(), o)); again != created {
		t.Errorf("created again: operation %s, want %s", again, created)
	}
	until(t, a, o.Machine, provider.Idle)
	configured := ok(a.Configure(t.Context(), o))
	m := until(t, a, o.Machine, provider.Configured)
	want := provider.Machine{ID: "sleeper-1", Profile: "sleeper", Domain: "rack-1", State: provider.Configured, Tenant: "acme",
		Operation: configured, PricePerHour: 0.25, InterruptionProbability: 0.01}
	if m != want {
		t.Errorf("machine %+v, want %+v", m, want)
	}
	pid := s.pidOf(o.Machine)
	if !runs(pid) {
		t.Fatalf("process %d of the machine does not run", pid)
	}

	s.stop()
	if !runs(pid) {
		t.Fatalf("process %d ended with its provider", pid)
	}
	s.start()
	second := life(2, first)
	b := s.shard(identity.Shard, "a", second, 1)
	if m := until(t, b, o.Machine, provider.Configured); m != want {
		t.Errorf("after a restart: %+v, want %+v", m, want)
	}
	if again := ok(b.Configure(t.Context(), o)); again != configured {
		t.Errorf("configured again: operation %s, want %s", again, configured)
	}
	// The first life is a zombie now. The machine exists, another does not: it hears the same.
	zombie := s.shard(identity.Shard, "a", first, 1)
	for _, machine := range []string{"sleeper-1", "sleeper-9"} {
		_, err := zombie.Drain(t.Context(), provider.Order{Machine: machine, Domain: "rack-1"})
		if !errors.Is(err, provider.ErrFenced) || !errors.Is(err, fence.ErrEnded) {
			t.Errorf("a zombie at %s: %v, want ErrFenced", machine, err)
		}
	}
	if m, err := zombie.Get(t.Context(), o.Machine); err != nil || m != want {
		t.Errorf("a zombie reads %+v, %v: want the machine as it was", m, err)
	}
	ok(b.Drain(t.Context(), o))
	until(t, b, o.Machine, provider.Idle)
	if runs(pid) {
		t.Errorf("process %d runs after it was drained", pid)
	}
	ok(b.Delete(t.Context(), o))
	until(t, b, o.Machine, provider.Speculative)
	ok(b.Create(t.Context(), o))
	until(t, b, o.Machine, provider.Idle)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.refused) != 2 { // the second of the zombie was not sent; before the promise there was one
		t.Errorf("refusals that the provider heard of: %v", s.refused)
	}
}

// A domain that moved is its new owner's alone.
func TestADomainMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ok := must(t)
	a, b := s.shard(identity.Shard, "a", life(1), 1), s.shard(identity.Shard, "b", life(1), 2)
	o := provider.Order{Machine: "sleeper-1", Domain: "rack-1"}
	if err := a.Promise(t.Context(), s.assignment("a", 1)); err != nil {
		t.Fatal(err)
	}
	ok(a.Create(t.Context(), o))
	if err := b.Promise(t.Context(), s.assignment("b", 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Delete(t.Context(), o); !errors.Is(err, provider.ErrFenced) || errors.Is(err, fence.ErrEnded) {
		t.Errorf("the owner of before: %v, want ErrFenced in this domain alone", err)
	}
	if err := a.Promise(t.Context(), s.assignment("a", 1)); !errors.Is(err, provider.ErrFenced) {
		t.Errorf("an assignment of before: %v, want ErrFenced", err)
	}
	until(t, b, o.Machine, provider.Idle)
	ok(b.Delete(t.Context(), o))
	// A name that nobody has leaves no mark, and a machine is in the domain that its provider
	// declares.
	if _, err := b.Create(t.Context(), provider.Order{Machine: "nobody-1", Domain: "rack-1"}); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("a machine that is not there: %v, want ErrNotFound", err)
	}
	if _, err := b.Create(t.Context(), provider.Order{Machine: "sleeper-2", Domain: "rack-2"}); !errors.Is(err, provider.ErrRejected) {
		t.Errorf("a machine in another domain: %v, want ErrRejected", err)
	}
	// The owner of another domain, under the same number, neither gets at a machine of this one
	// by calling it one of its own, nor is it taken for a zombie, nor does it leave a mark there.
	c := s.shard(identity.Shard, "c", life(1), 2)
	other, err := fence.Assignment{Cluster: cluster, Domain: "rack-2", Holder: s.authority.ID(t, identity.Shard, "c").String(),
		Ownership: 2, AuthorityEpoch: 1}.Sign(s.key)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Promise(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), provider.Order{Machine: "sleeper-2", Domain: "rack-2"}); !errors.Is(err, provider.ErrRejected) {
		t.Errorf("the owner of another domain: %v, want ErrRejected", err)
	}
	ok(b.Create(t.Context(), provider.Order{Machine: "sleeper-2", Domain: "rack-1"}))
}

// Shards alone are served, for reading too.
func TestOthersAreTurnedAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, kind := range []identity.Kind{identity.Data, identity.Provider, identity.Admin} {
		c := s.shard(kind, "x", life(1), 0)
		if _, err := c.List(t.Context(), ""); !errors.Is(err, provider.ErrRejected) {
			t.Errorf("%s lists: %v, want ErrRejected", kind, err)
		}
		if _, err := c.Create(t.Context(), provider.Order{Machine: "sleeper-1"}); !errors.Is(err, provider.ErrRejected) {
			t.Errorf("%s creates: %v, want ErrRejected", kind, err)
		}
	}
}

// Whom a provider does not serve it counts, by why: a certificate of no shard, of nobody, or of two at once, none at
// all, one of another cluster, and what is no TLS.
func TestThoseTurnedAwayAreCounted(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	foreign := pkitest.NewAuthority(t, cluster)
	p, err := process.Open(process.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Profiles: []process.Profile{{Name: "sleeper", Command: []string{"sleep", "600"}, Slots: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	chain, key := a.Issue(t, a.ID(t, identity.Provider, "laptop"))
	self, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: a.Bundle()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counts := process.NewCounts(nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- p.Run(ctx, process.RunConfig{Listener: l, Counts: counts, Source: credential.Static(self),
			Follow: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			Marks:  fence.InMemory(fence.NewLedger(fence.LedgerOptions{Cluster: cluster, BelieveEpochs: true}))})
	}()
	named := func(from *pkitest.Authority, names ...string) []tls.Certificate {
		chain, key := from.IssueRaw(t, func(c *x509.Certificate) {
			for _, name := range names {
				c.URIs = append(c.URIs, from.ID(t, identity.Shard, name).URL())
			}
		})
		return []tls.Certificate{pkitest.TLS(chain, key)}
	}
	other, otherKey := a.Issue(t, a.ID(t, identity.Data, "x"))
	for _, row := range []struct {
		name  string
		certs []tls.Certificate
		want  codes.Code
	}{
		{"a shard", named(a, "eu-1"), codes.OK},
		{"no shard", []tls.Certificate{pkitest.TLS(other, otherKey)}, codes.PermissionDenied},
		{"no name", named(a), codes.PermissionDenied},
		{"two names", named(a, "eu-1", "eu-2"), codes.PermissionDenied},
		{"no certificate", nil, codes.Unavailable}, // it is closed
		{"another cluster", named(foreign, "eu-1"), codes.Unavailable},
	} {
		conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(
			&tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: row.certs})))
		if err != nil {
			t.Fatal(err)
		}
		_, err = fealtyv1.NewProviderServiceClient(conn).ListMachines(t.Context(), &fealtyv1.ListMachinesRequest{})
		conn.Close()
		if status.Code(err) != row.want {
			t.Errorf("%s: %v, want %v", row.name, err, row.want)
		}
	}
	const garbage = 20
	for range garbage {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn) // until it is closed
		if err != nil {
			t.Error(err)
		}
		conn.Close()
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := counts.TurnedAway()["handshake"]; n < garbage {
		t.Errorf("%v handshakes that failed were counted, after %d that were none", n, garbage)
	}
	// A client that is closed may connect again by itself, so that these are one or more.
	got := counts.TurnedAway()
	for _, again := range []string{"handshake", "no_certificate"} {
		if got[again] < 1 {
			t.Errorf("no %s was counted: %v", again, got)
		}
		delete(got, again)
	}
	if want := map[string]float64{"not_a_shard": 3, "busy": 0}; !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// A process that ends by itself is a machine that failed, which says how; one that does not
// listen to SIGTERM is killed after its grace; one whose pid is somebody else's now is left
// alone.
func TestProcessesThatMisbehave(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ok := must(t)
	a := s.shard(identity.Shard, "a", life(1), 1)
	if err := a.Promise(t.Context(), s.assignment("a", 1)); err != nil {
		t.Fatal(err)
	}
	at := func(id string) provider.Order { return provider.Order{Machine: id, Domain: "rack-1", Tenant: "acme"} }
	for _, id := range []string{"short-1", "deaf-1", "sleeper-1"} {
		ok(a.Create(t.Context(), at(id)))
		until(t, a, id, provider.Idle)
		ok(a.Configure(t.Context(), at(id)))
	}
	if m := until(t, a, "short-1", provider.Failed); !strings.Contains(m.LastError, "exit status 7") || m.Tenant != "acme" {
		t.Errorf("a process that ended: %+v", m)
	}
	ok(a.Delete(t.Context(), at("short-1")))
	until(t, a, "short-1", provider.Speculative)

	until(t, a, "deaf-1", provider.Configured)
	deaf := s.pidOf("deaf-1")
	wait.UntilNil(t, "deaf-1 says that it is deaf", func() error {
		if text, err := os.ReadFile(filepath.Join(s.dir, "work", "deaf-1", "output")); err != nil || string(text) != "deaf\n" {
			return fmt.Errorf("it says %q, %v", text, err)
		}
		return nil
	})
	ok(a.Drain(t.Context(), at("deaf-1")))
	until(t, a, "deaf-1", provider.Idle)
	if runs(deaf) {
		t.Errorf("process %d runs after its grace", deaf)
	}

	until(t, a, "sleeper-1", provider.Configured)
	s.stop()
	// The file names a process that is there, and that began at another time.
	file := filepath.Join(s.dir, "machines", "sleeper-1")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	own := s.pidOf("sleeper-1")
	defer syscall.Kill(own, syscall.SIGKILL)
	other := os.Getpid()
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), `"pid": `+strconv.Itoa(own), `"pid": `+strconv.Itoa(other), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	a = s.shard(identity.Shard, "a", life(2, life(1)), 1)
	until(t, a, "sleeper-1", provider.Failed) // and this process still runs
}

// A machine's output is bounded: of a lot of it the end is kept aside, and what follows is in
// an empty file.
func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ok := must(t)
	a := s.shard(identity.Shard, "a", life(1), 1)
	if err := a.Promise(t.Context(), s.assignment("a", 1)); err != nil {
		t.Fatal(err)
	}
	o := provider.Order{Machine: "loud-1", Domain: "rack-1", Tenant: "acme"}
	ok(a.Create(t.Context(), o))
	until(t, a, o.Machine, provider.Idle)
	ok(a.Configure(t.Context(), o))
	wait.Until(t, "the end of it is put aside", func() bool { return s.cut(o.Machine) })
	s.put(o.Machine, "on")
	wait.Until(t, "what follows", func() bool {
		text, err := os.ReadFile(filepath.Join(s.dir, "work", o.Machine, "output"))
		return err == nil && len(text) < process.MaxOutput/2 && strings.HasSuffix(string(text), "on\n")
	})
	until(t, a, o.Machine, provider.Configured)
	ok(a.Drain(t.Context(), o))
	until(t, a, o.Machine, provider.Idle)
}

// put puts a file into the folder of a machine.
func (s *site) put(machine, name string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "work", machine, name), nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// size is that of a file in the folder of a machine; -1: there is none.
func (s *site) size(machine, name string) int64 {
	info, err := os.Stat(filepath.Join(s.dir, "work", machine, name))
	if err != nil {
		return -1
	}
	return info.Size()
}

// cut reports whether the output of a machine was cut to its bound.
func (s *site) cut(machine string) bool {
	return s.size(machine, "output.1") == process.KeptOutput && s.size(machine, "output") < process.MaxOutput/2
}

// Output of machines while their provider was away is cut as soon as it is back, also where they
// ended meanwhile; and while one is drained.
func TestOutputWhileTheProviderIsAway(t *testing.T) {
	t.Parallel()
	// A machine that slowly writes is not killed before it has written.
	s := newSiteWithGrace(t, 5*time.Minute)
	ok := must(t)
	first := life(1)
	a := s.shard(identity.Shard, "a", first, 1)
	if err := a.Promise(t.Context(), s.assignment("a", 1)); err != nil {
		t.Fatal(err)
	}
	at := func(id string) provider.Order { return provider.Order{Machine: id, Domain: "rack-1", Tenant: "acme"} }
	pids := make(map[string]int)
	for _, id := range []string{"later-1", "later-2", "stubborn-1"} {
		ok(a.Create(t.Context(), at(id)))
		until(t, a, id, provider.Idle)
		ok(a.Configure(t.Context(), at(id)))
		until(t, a, id, provider.Configured)
		pids[id] = s.pidOf(id)
	}
	s.stop()
	s.put("later-2", "end")
	for _, id := range []string{"later-1", "later-2"} {
		s.put(id, "on")
		wait.Until(t, id+" wrote all of it", func() bool { return s.size(id, "output") == 20_000_000 })
	}
	wait.Until(t, "later-2 ended", func() bool { return !runs(pids["later-2"]) })
	s.start()
	a = s.shard(identity.Shard, "a", life(2, first), 1)
	wait.Until(t, "the output of later-1 is cut", func() bool { return s.cut("later-1") })
	until(t, a, "later-2", provider.Failed)
	if !s.cut("later-2") {
		t.Errorf("the output of a machine that ended has %d bytes, and %d beside", s.size("later-2", "output"),
			s.size("later-2", "output.1"))
	}
	if m := until(t, a, "later-1", provider.Configured); !runs(pids["later-1"]) {
		t.Errorf("%+v: its process %d does not run", m, pids["later-1"])
	}
	wait.Until(t, "stubborn-1 listens", func() bool { return s.size("stubborn-1", "output") > 0 })
	ok(a.Drain(t.Context(), at("stubborn-1")))
	// It may be cut before all is written: what follows then stays, up to the bound.
	wait.Until(t, "the output of stubborn-1 is cut while it is drained", func() bool { return s.size("stubborn-1", "output.1") == process.KeptOutput })
	if !runs(pids["stubborn-1"]) {
		t.Error("stubborn-1 ended before it was told to")
	}
	s.put("stubborn-1", "end")
	until(t, a, "stubborn-1", provider.Idle)
	if n := s.size("stubborn-1", "output"); n < 0 || n > process.MaxOutput {
		t.Errorf("the output of a machine that was drained has %d bytes, limit %d", n, process.MaxOutput)
	}
	ok(a.Drain(t.Context(), at("later-1")))
	until(t, a, "later-1", provider.Idle)
}

// A profile can bound the files of its machines. The system keeps to it: with no provider too, and
// for files of the command's own.
func TestFilesAreBounded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ok := must(t)
	first := life(1)
	a := s.shard(identity.Shard, "a", first, 1)
	if err := a.Promise(t.Context(), s.assignment("a", 1)); err != nil {
		t.Fatal(err)
	}
	at := func(id string) provider.Order { return provider.Order{Machine: id, Domain: "rack-1", Tenant: "acme"} }
	for _, id := range []string{"endless-1", "hoarder-1"} {
		ok(a.Create(t.Context(), at(id)))
		until(t, a, id, provider.Idle)
		ok(a.Configure(t.Context(), at(id)))
	}
	if m := until(t, a, "hoarder-1", provider.Failed); !strings.Contains(m.LastError, "file size limit exceeded") ||
		s.size("hoarder-1", "hoard") != process.LeastFile {
		t.Errorf("it has a file of %d bytes, limit %d: %+v", s.size("hoarder-1", "hoard"), process.LeastFile, m)
	}
	until(t, a, "endless-1", provider.Configured)
	pid := s.pidOf("endless-1")
	s.stop()
	s.put("endless-1", "on")
	wait.Until(t, "endless-1 ends", func() bool { return !runs(pid) })
	if n := s.size("endless-1", "output"); n != process.LeastFile {
		t.Errorf("it wrote %d bytes, limit %d", n, process.LeastFile)
	}
	s.start()
	a = s.shard(identity.Shard, "a", life(2, first), 1)
	until(t, a, "endless-1", provider.Failed)
	if !s.cut("endless-1") {
		t.Errorf("its output has %d bytes", s.size("endless-1", "output"))
	}
}

// The process provider keeps the contract, over mTLS, with domains and restarts.
func TestConformance(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	conn, err := mesh.Dial(s.addr, s.source(identity.Shard, "conformance"), credential.AnyOfKind(identity.Provider), mesh.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	run := 0
	err = conformance.Check(t.Context(), conformance.Target{Conn: conn, Key: s.key, Cluster: cluster,
		Holder:  s.authority.ID(t, identity.Shard, "conformance").String(),
		Restart: func(context.Context) error { s.stop(); s.start(); return nil }},
		func(r conformance.Result) {
			run++
			if r.Outcome != conformance.Kept {
				t.Errorf("%s: %s: %s", r.Case, r.Outcome, r.Why)
			}
		})
	if err != nil || run != len(conformance.Cases()) {
		t.Errorf("%d cases of %d, %v", run, len(conformance.Cases()), err)
	}
}

// A file that is not this provider's stops it, and is not overwritten.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ok := must(t)
	a := s.shard(identity.Shard, "a", life(1), 1)
	if err := a.Promise(t.Context(), s.assignment("a", 1)); err != nil {
		t.Fatal(err)
	}
	ok(a.Create(t.Context(), provider.Order{Machine: "sleeper-1", Domain: "rack-1"}))
	until(t, a, "sleeper-1", provider.Idle)
	s.stop()
	file := filepath.Join(s.dir, "machines", "sleeper-1")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string]string{
		"cut":           string(text[:len(text)-3]),
		"empty":         "",
		"unknown state": strings.Replace(string(text), `"idle"`, `"resting"`, 1),
		"unknown field": strings.Replace(string(text), `"state"`, `"more": 1, "state"`, 1),
		"later version": strings.Replace(string(text), `"version": 1`, `"version": 2`, 1),
		"other machine": strings.Replace(string(text), `"sleeper-1"`, `"sleeper-2"`, 1),
		"longer":        string(text) + "\n",
	} {
		if err := os.WriteFile(file, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := openUnlocked(t, process.Config{Dir: s.dir, Profiles: []process.Profile{{Name: "sleeper", Command: []string{"true"}, Slots: 1}}})
		if err == nil {
			p.Close()
			t.Errorf("%s: the file was believed", name)
		} else if !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v does not name the file", name, err)
		}
	}
}

// A lock that Open is given is free again if Open refuses the config.
func TestLockOfARefusedConfigIsFree(t *testing.T) {
	dir := t.TempDir()
	lock, err := process.Lock(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.Open(process.Config{Dir: dir, Grace: -1, Lock: lock}); err == nil {
		t.Fatal("a provider without a profile was opened")
	}
	again, err := process.Lock(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
