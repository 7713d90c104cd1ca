package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// The floods: strangers at addresses of their own do to the program, as it is built for
// use and with little memory, what the network lets them do. Members, owners and
// newcomers are at 127.0.0.1, and strangers in other networks of 127.0.0.0/16.

// floodMemory is what the program may have of memory, and floodGrowth what strangers may
// make it take.
const (
	floodMemory = 512 << 20
	floodGrowth = 64 << 20
)

// flooded is one coordinator on a store of its own.
type flooded struct {
	t      testing.TB
	exe    string
	dir    string
	addr   string
	args   []string // of the coordinator, beside those that it always has
	cmd    *exec.Cmd
	ended  chan struct{}   // closed when cmd ended
	token  proof.JoinToken // admits everybody
	member *cluster.Candidate
	chain  [][]byte // its certificates
}

func startFlooded(t testing.TB, args ...string) *flooded {
	t.Helper()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	f := &flooded{t: t, exe: exe, dir: t.TempDir(), addr: addr, args: args}
	t.Cleanup(func() {
		if f.cmd != nil {
			f.kill()
		}
	})
	owner, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, "alice.age"), []byte(owner.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.start()
	key := regexp.MustCompile(`ed25519:[A-Za-z0-9+/=_-]{40,}`).FindString(f.must("status", "-o", "json"))
	f.must("manifest", "init", "--cluster", "prod.example", "--owner", "alice="+owner.Recipient().String(), "--coordinator-key", key,
		"--signer-key-out", "alice.key", "--out", "m.yaml")
	f.must("manifest", "set", "m.yaml", "--shares-out", "shares")
	if f.token, err = proof.ParseJoinToken(strings.TrimSpace(f.must("token", "create", "--entry", "nodes", "--uses", "100000"))); err != nil {
		t.Fatal(err)
	}
	if f.member, f.chain, err = f.join("127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	return f
}

// run runs the program with arguments, as the coordinator's own user.
func (f *flooded) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	cmd := f.fealty(ctx, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("fealty %s: %w\n%s", strings.Join(args, " "), err, &said)
	}
	return out.String(), nil
}

func (f *flooded) fealty(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, f.exe, args...)
	cmd.Dir = f.dir
	cmd.Env = []string{"HOME=" + f.dir, "TMPDIR=" + f.dir, "PATH=" + os.Getenv("PATH"), "FEALTY_SOCKET=c/admin.sock"}
	return cmd
}

func (f *flooded) must(args ...string) string {
	f.t.Helper()
	out, err := f.run(args...)
	if err != nil {
		f.t.Fatal(err, f.log())
	}
	return out
}

// start starts the coordinator, with little memory, and waits until it answers.
func (f *flooded) start() {
	f.t.Helper()
	f.cmd = f.fealty(context.WithoutCancel(f.t.Context()), append([]string{"coordinator", "--data", "c", "--listen", f.addr, "--log-level", "error"}, f.args...)...)
	log, err := os.OpenFile(filepath.Join(f.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer log.Close()
	f.cmd.Stdout, f.cmd.Stderr = log, log
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := f.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	cmd, ended := f.cmd, make(chan struct{})
	f.ended = ended
	go func() {
		_ = cmd.Wait() // that it ended is what counts
		close(ended)
	}()
	limit := unix.Rlimit{Cur: floodMemory, Max: floodMemory}
	if err := unix.Prlimit(f.cmd.Process.Pid, unix.RLIMIT_DATA, &limit, nil); err != nil {
		f.t.Fatal(err)
	}
	wait.Until(f.t, "the coordinator", func() bool {
		_, err := f.run("status", "-o", "json")
		return err == nil
	})
}

func (f *flooded) kill() {
	_ = f.cmd.Process.Kill() // it may have ended
	<-f.ended
	f.cmd = nil
}

// lives fails if the coordinator died.
func (f *flooded) lives() {
	f.t.Helper()
	select {
	case <-f.ended:
		f.t.Fatal("the coordinator died", f.log())
	default:
	}
}

func (f *flooded) log() string {
	log, _ := os.ReadFile(filepath.Join(f.dir, "log"))
	return "\n" + string(log[max(0, len(log)-3000):])
}

// peak returns the most memory that the coordinator had since it started.
func (f *flooded) peak() int64 {
	f.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.cmd.Process.Pid))
	if err != nil {
		f.t.Fatal(err, f.log())
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	if found == nil {
		f.t.Fatalf("no peak in:\n%s%s", text, f.log())
	}
	kb, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		f.t.Fatal(err)
	}
	return kb << 10
}

type dialer = func(ctx context.Context, addr string) (net.Conn, error)

// from returns a dialer at an address.
func from(address string) dialer {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
}

// join has a machine at an address join, which tries again for as long as an agent that
// is in a hurry.
func (f *flooded) join(address string) (*cluster.Candidate, [][]byte, error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	n, err := cluster.NewCandidate(f.token)
	if err != nil {
		return nil, nil, err
	}
	for { // with one key: who does not hear that it was admitted is not admitted twice
		chain, err := f.joinOnce(ctx, n, from(address), 10*time.Second)
		if err == nil || ctx.Err() != nil {
			return n, chain, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-f.ended:
			return nil, nil, errors.New("the coordinator died")
		case <-ctx.Done():
		}
	}
}

func (f *flooded) joinOnce(ctx context.Context, n *cluster.Candidate, dial dialer, within time.Duration) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := mesh.DialPinned(f.addr, pinned.Root(f.token.Cluster, f.token.Pin), mesh.Options{Dialer: dial})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	grant, err := n.JoinOver(ctx, conn, identity.Data, proof.NewTokenProver(f.token))
	return grant.GetChain(), err
}

// calls has the member make one call over a new connection from an address.
func (f *flooded) calls(address string) error {
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	var chain []*x509.Certificate
	for _, der := range f.chain {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		chain = append(chain, cert)
	}
	bundle, err := identity.NewBundle(identity.BundleConfig{Cluster: f.token.Cluster, Roots: chain[2:], MeshKeys: []identity.KeyID{identity.KeyOf(chain[1])}})
	if err != nil {
		return err
	}
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain[:2], Key: f.member.Key, Bundle: bundle})
	if err != nil {
		return err
	}
	conn, err := mesh.Dial(f.addr, credential.Static(m), credential.AnyOfKind(identity.Coordinator), mesh.Options{Dialer: from(address)})
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := fealtyv1.NewAgentServiceClient(conn).Connect(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: m.ID().Name()}); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// tries has the member make one call from an address, with so many tries.
func (f *flooded) tries(address string, tries int) (err error) {
	for range tries {
		if err = f.calls(address); err == nil {
			return nil
		}
	}
	return err
}

// A stranger speaks HTTP/2 over a connection of its own, by hand.
type stranger struct {
	conn   *tls.Conn
	framer *http2.Framer
	head   bytes.Buffer
	enc    *hpack.Encoder
	addr   string
	next   uint32
	ended  atomic.Bool // the other end said that it is over
}

// computing is held by strangers that shake hands.
var computing = make(chan struct{}, 32)

// newStranger connects from an address.
func newStranger(ctx context.Context, address, addr string) (*stranger, error) {
	raw, err := from(address)(ctx, addr)
	if err != nil {
		return nil, err
	}
	s := &stranger{conn: tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}), addr: addr, next: 1}
	if err := s.conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	// Strangers have processors of their own, and members of this process too.
	computing <- struct{}{}
	err = s.conn.HandshakeContext(ctx)
	<-computing
	if err != nil {
		raw.Close()
		return nil, err
	}
	s.enc = hpack.NewEncoder(&s.head)
	s.framer = http2.NewFramer(s.conn, bufio.NewReader(s.conn))
	if _, err := s.conn.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	if err := s.framer.WriteSettings(); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	go func() { // what the other end says is of no interest but for its end
		for {
			if _, err := s.framer.ReadFrame(); err != nil {
				s.ended.Store(true)
				raw.Close()
				return
			}
		}
	}()
	return s, nil
}

// begin begins a call, and returns its stream.
func (s *stranger) begin(method string) (uint32, error) {
	s.head.Reset()
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", s.addr}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		if err := s.enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			return 0, err
		}
	}
	id := s.next
	s.next += 2
	return id, s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.head.Bytes(), EndHeaders: true})
}

const (
	verifyMethod = "/fealty.v1.VerifyService/Verify"
	joinMethod   = "/fealty.v1.AdmissionService/Join"
	shareMethod  = "/fealty.v1.RecoveryService/Recover"
)

// fill begins as many calls as it may and sends each a request that never ends.
func (s *stranger) fill(ctx context.Context, method string, streams int) {
	chunk := make([]byte, 16<<10)
	var ids []uint32
	for range streams {
		id, err := s.begin(method)
		if err != nil {
			return
		}
		ids = append(ids, id)
		// A message of a megabyte, of which the last byte does not come.
		if s.framer.WriteData(id, false, []byte{0, 0, 15, 255, 255}) != nil {
			return
		}
	}
	for range 60 { // a megabyte each; the windows of this hand are not looked at
		for _, id := range ids {
			if ctx.Err() != nil || s.framer.WriteData(id, false, chunk) != nil {
				return
			}
		}
	}
}

// flood has strangers from addresses do something over connections of theirs, again and
// again, until the test says stop, or for long enough. It waits until each has done what
// it does, or could not.
func (f *flooded) flood(addresses, connections int, do func(ctx context.Context, address string, did func())) (stop func()) {
	return f.floodFor(20*time.Second, addresses, connections, do)
}

func (f *flooded) floodFor(most time.Duration, addresses, connections int, do func(ctx context.Context, address string, did func())) (stop func()) {
	ctx, cancel := context.WithTimeout(f.t.Context(), most)
	var all, first sync.WaitGroup
	for a := range addresses {
		for range connections {
			first.Add(1)
			did := sync.OnceFunc(first.Done)
			all.Go(func() {
				defer did()
				for ctx.Err() == nil {
					do(ctx, fmt.Sprintf("127.0.%d.1", a+1), did)
					did()
					select { // a stranger has to breathe too, on a machine with two cores
					case <-time.After(300 * time.Millisecond):
					case <-ctx.Done():
					}
				}
			})
		}
	}
	first.Wait()
	return func() { cancel(); all.Wait() }
}

// filling is a stranger that fills memory.
func (f *flooded) filling(method string) func(context.Context, string, func()) {
	return func(ctx context.Context, address string, did func()) {
		s, err := newStranger(ctx, address, f.addr)
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { s.conn.NetConn().Close() })
		defer stop()
		s.fill(ctx, method, 64)
		did()
		for range 20 { // it holds what it has
			if s.ended.Load() || ctx.Err() != nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		s.conn.NetConn().Close()
	}
}

// saying is a stranger that says something, and then nothing more.
func (f *flooded) saying(text []byte) func(context.Context, string, func()) {
	return func(ctx context.Context, address string, did func()) {
		conn, err := from(address)(ctx, f.addr)
		if err != nil {
			return
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		if _, err := conn.Write(text); err != nil {
			return
		}
		did()
		_, _ = conn.Read(make([]byte, 1)) // until the other end has had enough
	}
}

// served fails unless a member and a newcomer are served, and the owners' tool answered.
func (f *flooded) served(what string) {
	f.t.Helper()
	f.lives()
	// On a machine with other work a call may run out of its time. Nobody is kept out by that.
	if err := f.tries("127.0.0.1", 3); err != nil {
		f.t.Errorf("%s: a member is not served: %v", what, err)
	}
	began := time.Now()
	if _, _, err := f.join("127.0.0.1"); err != nil {
		f.t.Errorf("%s: a newcomer does not get in: %v", what, err)
	}
	f.t.Logf("%s: a newcomer was in after %v", what, time.Since(began).Round(time.Millisecond))
}

// Strangers make the program take little memory, whatever they send: one address, and 16.
func TestStrangersFillNoMemory(t *testing.T) {
	testlane.Nightly(t)
	f := startFlooded(t)
	f.served("without strangers")
	for _, crowd := range []struct {
		method    string
		addresses int
	}{{verifyMethod, 1}, {verifyMethod, 16}, {joinMethod, 16}} {
		what := fmt.Sprintf("%s from %d addresses", crowd.method, crowd.addresses)
		before := f.peak()
		stop := f.flood(crowd.addresses, 64, f.filling(crowd.method))
		f.served(what)
		stop()
		f.lives()
		grew := f.peak() - before
		t.Logf("%s: %d KiB before, %d KiB more at the peak", what, before>>10, grew>>10)
		if grew >= floodGrowth {
			t.Errorf("%s: it took %d MiB more, want less than %d", what, grew>>20, floodGrowth>>20)
		}
	}
}

// helloOf is what a client of TLS says first.
func helloOf(t *testing.T) []byte {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}).Handshake() // it has no answer
	}()
	defer near.Close()
	hello := make([]byte, 16<<10)
	n, err := far.Read(hello)
	if err != nil {
		t.Fatal(err)
	}
	return hello[:n]
}

// 1,024 connections on which no handshake comes to its end, from 16 addresses, keep out
// nobody of another network, and at most half of the members of an address of their own.
func TestHalfOpenConnectionsKeepNobodyOut(t *testing.T) {
	testlane.Nightly(t)
	f := startFlooded(t)
	hello := helloOf(t)
	for what, text := range map[string][]byte{"nothing": nil, "the beginning of a hello": hello[:5], "a whole hello": hello} {
		before := f.peak()
		stop := f.flood(16, 64, f.saying(text))
		f.served("among those who say " + what)
		in := 0
		const members = 10
		for range members {
			if err := f.tries("127.0.1.1", 3); err == nil {
				in++
			}
		}
		stop()
		f.lives()
		t.Logf("among those who say %s: %d of %d members at an address of theirs are in; %d KiB more at the peak", what, in, members, (f.peak()-before)>>10)
		if in < members/2 {
			t.Errorf("among those who say %s only %d of %d members at an address of theirs are in", what, in, members)
		}
	}
}

// An owner whose coordinator has lost the seed brings it back among strangers.
func TestOwnersGetInAmongStrangers(t *testing.T) {
	testlane.Nightly(t)
	f := startFlooded(t)
	share := filepath.Join("shares", "alice.share")
	f.kill()
	f.start()
	if out := f.must("status", "-o", "json"); !strings.Contains(out, "recovery") {
		t.Fatalf("it is not in recovery mode: %s", out)
	}
	halfOpen := f.flood(16, 32, f.saying(nil))
	filling := f.flood(8, 8, f.filling(shareMethod))
	out, err := f.run("recover", "--coordinator", f.addr, "--share", share, "--share-key", "alice.age")
	if err != nil {
		t.Error(err)
	}
	halfOpen()
	filling()
	f.lives()
	t.Log(out)
	f.served("after the recovery")
}

// A client that gives up call after call is cut off before it costs much.
func TestRapidResetsAreCutOff(t *testing.T) {
	testlane.Nightly(t)
	f := startFlooded(t)
	wait := f.reset()
	if err := f.tries("127.0.0.1", 3); err != nil {
		t.Errorf("a member is not served: %v", err)
	}
	stand := wait()
	f.lives()
	if stand > 0 {
		t.Errorf("%d connections stand after the calls that were given up", stand)
	}
}

// BenchmarkCallBesideResets has a member make a call over a new connection, alone and
// while strangers give up call after call. The ratio is of the median of these to that
// of those.
func BenchmarkCallBesideResets(b *testing.B) {
	f := startFlooded(b)
	call := func() time.Duration {
		began := time.Now()
		if err := f.tries("127.0.0.1", 3); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	var alone, beside []time.Duration
	for b.Loop() {
		alone = append(alone, call())
		wait := f.reset()
		beside = append(beside, call())
		wait()
	}
	slices.Sort(alone)
	slices.Sort(beside)
	b.ReportMetric(0, "ns/op") // of both
	b.ReportMetric(float64(alone[len(alone)/2].Microseconds())/1000, "alone-ms")
	b.ReportMetric(float64(beside[len(beside)/2].Microseconds())/1000, "beside-ms")
	b.ReportMetric(float64(beside[len(beside)/2])/float64(alone[len(alone)/2]), "beside/alone")
}

// reset has four strangers begin 20,000 calls each, and give up each at once. Wait returns
// how many of their connections stood until the last of them.
func (f *flooded) reset() (wait func() (stand int64)) {
	f.t.Helper()
	const connections, calls = 4, 20000
	var all sync.WaitGroup
	var begun, stands atomic.Int64
	for i := range connections {
		s, err := newStranger(f.t.Context(), fmt.Sprintf("127.0.%d.1", i+1), f.addr)
		if err != nil {
			f.t.Fatal(err)
		}
		all.Go(func() {
			defer s.conn.NetConn().Close()
			for range calls {
				id, err := s.begin(verifyMethod)
				if err == nil {
					err = s.framer.WriteRSTStream(id, http2.ErrCodeCancel)
				}
				if err != nil {
					return
				}
				begun.Add(1)
			}
			stands.Add(1)
		})
	}
	return func() int64 {
		all.Wait()
		f.t.Logf("%d of %d calls could be begun", begun.Load(), connections*calls)
		return stands.Load()
	}
}

// Many machines behind one address, with its rate set for that, join at once, among
// others of the same address that only begin to. All of them are members in the end: each
// tries again as an agent does, with pauses that grow.
func TestJoinsAtOnceFromOneAddress(t *testing.T) {
	testlane.Nightly(t)
	joins, seed := testlane.Rounds(300, 10_000), testlane.Seed(t)
	// Handshakes that are made faster than joins would push one another out.
	f := startFlooded(t, "--join-rate", "100000", "--join-burst", "100000", "--handshake-rate", "300", "--handshake-burst", "300")
	for _, what := range []string{"alone", "beside a flood"} {
		stop := func() {}
		if what != "alone" {
			stop = f.floodFor(time.Hour, 1, 256, f.saying(nil))
		}
		began, ours, theirs := time.Now(), usedCPU(t, os.Getpid()), usedCPU(t, f.cmd.Process.Pid)
		var all sync.WaitGroup
		var tries atomic.Int64
		for i := range joins {
			all.Go(func() {
				random := mathrand.New(mathrand.NewPCG(seed, uint64(i)))
				if err := f.joinInTheEnd("127.0.1.1", &tries, random); err != nil {
					t.Errorf("a machine is no member, %s: %v", what, err)
				}
			})
		}
		all.Wait()
		stop()
		f.lives()
		t.Logf("%d joins at once, %s: all are members after %v and %d tries; CPU of the coordinator %v, of the machines %v", joins, what,
			time.Since(began).Round(time.Millisecond), tries.Load(), usedCPU(t, f.cmd.Process.Pid)-theirs, usedCPU(t, os.Getpid())-ours)
	}
	if got, want := strings.Count(f.must("member", "list", "-o", "json"), `"spiffe_id"`), 2*joins+1; got != want {
		t.Errorf("%d members, want %d", got, want)
	}
}

// joinInTheEnd has a machine join, which tries until it is a member, with random pauses.
func (f *flooded) joinInTheEnd(address string, tries *atomic.Int64, random *mathrand.Rand) error {
	n, err := cluster.NewCandidate(f.token)
	if err != nil {
		return err
	}
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, 30*time.Second) {
		tries.Add(1)
		err := f.joinInTurn(n, address)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(time.Duration(random.Int64N(int64(pause)))):
		case <-f.ended:
			return errors.New("the coordinator died")
		case <-f.t.Context().Done():
			return err
		}
	}
}

// joining is held by machines that compute: each has a processor of its own, and all of
// them have those of this process. Their connections are there all at once.
var joining = make(chan struct{}, 64)

// joinInTurn connects, and joins when it is its turn to compute. If the other end has closed
// the connection by then it connects again.
func (f *flooded) joinInTurn(n *cluster.Candidate, address string) error {
	first, err := from(address)(f.t.Context(), f.addr)
	if err != nil {
		return err
	}
	defer first.Close()
	select {
	case joining <- struct{}{}:
		defer func() { <-joining }()
	case <-f.t.Context().Done():
		return f.t.Context().Err()
	}
	if err := first.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return err
	}
	_, err = first.Read(make([]byte, 1))
	there := errors.Is(err, os.ErrDeadlineExceeded) && first.SetReadDeadline(time.Time{}) == nil
	var used atomic.Bool
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		if there && !used.Swap(true) {
			return first, nil
		}
		return from(address)(ctx, addr)
	}
	_, err = f.joinOnce(f.t.Context(), n, dial, 30*time.Second)
	return err
}

// usedCPU returns the CPU time that a process has used.
func usedCPU(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
	ticks := 0
	for _, field := range fields[12:14] { // utime and stime, after the name and its state
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
