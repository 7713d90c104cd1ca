package cluster

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/test/testlane"
)

// The test binary serves as the processes that are killed: real ones, with real
// files and sockets, that get no chance to clean up.
const (
	roleVariable    = "FEALTY_TEST_ROLE"
	dirVariable     = "FEALTY_TEST_DIR"
	addressVariable = "FEALTY_TEST_ADDRESS"
)

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(roleVariable) {
	case "":
		os.Exit(m.Run())
	case "coordinator":
		err = coordinatorProcess(os.Getenv(dirVariable), os.Getenv(addressVariable))
	case "member":
		err = memberProcess(os.Getenv(dirVariable), os.Getenv(addressVariable))
	}
	fmt.Fprintln(os.Stderr, "process ended:", err)
	os.Exit(1)
}

func coordinatorProcess(dir, address string) error {
	ctx := context.Background()
	st, err := sqlite.Open(ctx, filepath.Join(dir, storeFile), sqlite.Options{})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	c, err := coordinator.New(ctx, coordinator.Config{
		DataDir: filepath.Join(dir, coordinatorNames(1)[0]), Store: st, Listener: l, Release: "test",
		Rates: coordinator.Rates{PerSource: 1e9, SourceBurst: 1e9, Overall: 1e9, OverallBurst: 1e9, PerMember: 1e9, MemberBurst: 1e9},
		Log:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// memberProcess joins with the token in the file "token" until that succeeds,
// and then runs.
func memberProcess(dir, address string) error {
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	raw, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil {
		return err
	}
	tok, err := proof.ParseJoinToken(string(raw))
	if err != nil {
		return err
	}
	state := filepath.Join(dir, "state")
	for {
		if _, err := os.Stat(filepath.Join(state, "identity", "anchor.json")); err == nil {
			break
		}
		if _, err := enroll.Join(ctx, enroll.JoinConfig{DataDir: state, Proof: enroll.ByToken(tok), Kind: identity.Data, Log: log}); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond) // the coordinator is being killed meanwhile
	}
	a, err := agent.Open(ctx, agent.Config{DataDir: state, Log: log, Release: "test"})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// process is one child that can be killed and started again.
type process struct {
	t         *testing.T
	role, dir string
	address   string
	cmd       *exec.Cmd
	stderr    bytes.Buffer
	exited    chan struct{}
}

func (p *process) start() {
	p.t.Helper()
	p.stderr.Reset()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), roleVariable+"="+p.role, dirVariable+"="+p.dir, addressVariable+"="+p.address)
	p.cmd.Stderr = &p.stderr
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	exited := make(chan struct{})
	p.exited = exited
	go func() { p.cmd.Wait(); close(exited) }()
}

// kill ends the process with SIGKILL, and fails the test if it had ended itself.
func (p *process) kill() {
	p.t.Helper()
	select {
	case <-p.exited:
		p.t.Errorf("%s %s ended by itself: %s", p.role, p.dir, p.stderr.String())
		return
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	<-p.exited
}

// ledger is what was acknowledged to candidates: the truth that no crash may
// change.
type ledger struct {
	mu    sync.Mutex
	acked map[string]identity.KeyID // last acknowledged key; guarded by mu
	sent  map[string]identity.KeyID // key of the request under way; guarded by mu
	certs [][][]byte                // every chain that was handed out; guarded by mu
}

// joiner joins one candidate after another, and renews each once, for as long as
// ctx lasts, whatever happens to the coordinator meanwhile.
func (l *ledger) joiner(ctx context.Context, c *Cluster, tok proof.JoinToken, first *Candidate) error {
	for ctx.Err() == nil {
		n, err := first.Again()
		if err != nil {
			return err
		}
		key, err := identity.KeyOfPublic(n.Key.Public())
		if err != nil {
			return err
		}
		var grant *fealtyv1.JoinGrant
		for ctx.Err() == nil && grant == nil {
			try, cancel := context.WithTimeout(ctx, 2*time.Second)
			grant, _ = n.Join(try, identity.Data, proof.NewTokenProver(tok)) // the same key until it is answered
			cancel()
		}
		if grant == nil {
			return nil
		}
		leaf, err := x509.ParseCertificate(grant.GetChain()[0])
		if err != nil {
			return err
		}
		id, err := identity.FromCertificate(leaf)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.acked[id.Name()] = key
		l.certs = append(l.certs, grant.GetChain())
		l.mu.Unlock()
		conn, _, err := n.DialAs(grant.GetChain())
		if err != nil {
			return err
		}
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		chain, err := n.renewOnce(try, conn, id, func(k identity.KeyID) {
			l.mu.Lock()
			l.sent[id.Name()] = k
			l.mu.Unlock()
		})
		cancel()
		conn.Close()
		if err == nil {
			l.mu.Lock()
			l.acked[id.Name()] = l.sent[id.Name()]
			l.certs = append(l.certs, chain)
			l.mu.Unlock()
		}
	}
	return nil
}

// renewOnce is Renew that says which key it sends before it does.
func (n *Candidate) renewOnce(ctx context.Context, conn grpc.ClientConnInterface, id identity.ID, sends func(identity.KeyID)) ([][]byte, error) {
	fresh, err := n.Again()
	if err != nil {
		return nil, err
	}
	key, err := identity.KeyOfPublic(fresh.Key.Public())
	if err != nil {
		return nil, err
	}
	sends(key)
	return n.renewTo(ctx, conn, id, fresh.Key)
}

// TestKillLoop kills the coordinator and members with SIGKILL at random moments
// while candidates join and renew. After every kill the cluster comes back as the
// same one; at the end nothing acknowledged is lost, nothing was certified
// without a record, every chain verifies, and the authority epoch has not moved.
func TestKillLoop(t *testing.T) {
	kills := testlane.Rounds(10, 100)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	// A cluster that is set up in this process, and then handed to the children.
	dir := t.TempDir()
	settle(t, dir)
	setup, err := Start(ctx, Options{DataDir: dir, Coordinators: 1, Members: []string{}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Release: "test"})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := setup.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: PoolEntry, Uses: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	first, err := setup.Candidate(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const members = 3
	procs := []*process{{t: t, role: "coordinator", dir: dir, address: setup.Address()}}
	for i := range members {
		name := fmt.Sprintf("member-%d", i)
		home := filepath.Join(t.TempDir(), name)
		own, err := setup.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: PoolEntry, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(home, 0o700), os.WriteFile(filepath.Join(home, "token"), []byte(own.Line()), 0o600)); err != nil {
			t.Fatal(err)
		}
		procs = append(procs, &process{t: t, role: "member", dir: home, address: setup.Address()})
	}
	if err := setup.Close(); err != nil {
		t.Fatal(err)
	}

	for _, p := range procs {
		p.start()
	}
	defer func() {
		for _, p := range procs {
			p.kill()
		}
	}()
	l := &ledger{acked: make(map[string]identity.KeyID), sent: make(map[string]identity.KeyID)}
	joining, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := l.joiner(joining, setup, tok, first); err != nil {
				t.Error(err)
			}
		})
	}
	rng := rand.New(rand.NewPCG(testlane.Seed(t), 1))
	for range kills {
		victim := procs[0]
		if rng.IntN(3) == 0 {
			victim = procs[1+rng.IntN(members)]
		}
		// The moment is random on purpose; nothing is waited for.
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		victim.kill()
		victim.start()
	}
	// Everybody comes back without a human.
	err = await(ctx, "the cluster to come back", func(ctx context.Context) (bool, error) {
		st, err := setup.Status(ctx)
		if err != nil {
			return false, err
		}
		connected := 0
		for _, m := range st.GetMembers() {
			if m.GetLive().GetConnected() {
				connected++
			}
		}
		return connected == members, fmt.Errorf("%d of %d members are connected", connected, members)
	})
	if err != nil {
		for _, p := range procs {
			t.Logf("%s %s: %s", p.role, p.dir, p.stderr.String())
		}
		t.Fatal(err)
	}
	stop()
	wg.Wait()

	st, err := setup.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l.check(ctx, t, setup, tok, st)
	t.Logf("%d kills, %d candidates admitted, %d certificates", kills, len(l.acked), len(l.certs))
}

// check compares what is recorded with what was acknowledged: nothing is lost,
// nobody is there twice, nothing was certified without a record, every chain
// verifies, and the authority epoch has not moved.
func (l *ledger) check(ctx context.Context, t *testing.T, c *Cluster, tok proof.JoinToken, st *fealtyv1.GetStatusResponse) {
	t.Helper()
	if st.GetAuthorityEpoch() != 1 || st.GetHistoryIndex() != 1 {
		t.Errorf("epoch %d, index %d; want 1, 1", st.GetAuthorityEpoch(), st.GetHistoryIndex())
	}
	records, holders := make(map[string]string), make(map[string]string)
	for _, m := range st.GetMembers() {
		records[m.GetName()] = m.GetKeyId()
		if first := holders[m.GetKeyId()]; first != "" {
			t.Errorf("one candidate is both %s and %s", first, m.GetName())
		}
		holders[m.GetKeyId()] = m.GetName()
	}
	for name, key := range l.acked {
		switch got := records[name]; got {
		case key.String(), l.sent[name].String():
		case "":
			t.Errorf("%s was admitted, and has no record", name)
		default:
			t.Errorf("%s has key %s on record, and was certified for %s", name, got, key)
		}
	}
	// A join whose candidate went away at the end may be committed a little later.
	err := await(ctx, "a use of the token for each who came with it", func(ctx context.Context) (bool, error) {
		used, admitted := uint32(0), uint32(0)
		err := c.WithAdmin(func(conn *grpc.ClientConn) error {
			resp, err := fealtyv1.NewTokenServiceClient(conn).GetToken(ctx, &fealtyv1.GetTokenRequest{Id: tok.ID})
			used = resp.GetToken().GetUsed()
			return err
		})
		if err != nil {
			return false, err
		}
		st, err := c.Status(ctx)
		for _, m := range st.GetMembers() {
			if strings.HasPrefix(m.GetName(), PoolEntry+"-") { // others have tokens of their own
				admitted++
			}
		}
		return err == nil && used == admitted, errors.Join(err, fmt.Errorf("%d uses, %d members", used, admitted))
	})
	if err != nil {
		t.Error(err)
	}
	if len(l.acked) == 0 {
		t.Fatal("nobody was admitted: the test proves nothing")
	}
	roots, bundle := chainTrust(t, l.certs)
	for _, chain := range l.certs {
		if _, err := bundle.Verify(parse(t, chain), time.Now()); err != nil {
			t.Errorf("a chain does not verify: %v", err)
		}
	}
	if roots != 1 {
		t.Errorf("%d roots were handed out, want 1", roots)
	}
}

func parse(t *testing.T, der [][]byte) []*x509.Certificate {
	t.Helper()
	var chain []*x509.Certificate
	for _, d := range der {
		c, err := x509.ParseCertificate(d)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, c)
	}
	return chain
}

// chainTrust returns how many roots the chains have, and a bundle of the first
// chain's root and mesh CA key: all chains must verify under it.
func chainTrust(t *testing.T, chains [][][]byte) (int, *identity.Bundle) {
	t.Helper()
	roots := make(map[identity.KeyID]bool)
	for _, c := range chains {
		roots[identity.KeyOf(parse(t, c)[2])] = true
	}
	first := parse(t, chains[0])
	id, err := identity.FromCertificate(first[0])
	if err != nil {
		t.Fatal(err)
	}
	b, err := identity.NewBundle(identity.BundleConfig{Cluster: id.Cluster(), Roots: first[2:], MeshKeys: []identity.KeyID{identity.KeyOf(first[1])}})
	if err != nil {
		t.Fatal(err)
	}
	return len(roots), b
}

// A cluster that is started again in the same directory is the same cluster at
// the same epoch, with the same members.
func TestStartAgain(t *testing.T) { testStartAgain(t, "") }

func testStartAgain(t *testing.T, store string) {
	opts := Options{DataDir: t.TempDir(), Store: store, Release: "test", Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	var cluster string
	var root []byte
	for round := range 2 {
		c, err := Start(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		var st *fealtyv1.GetStatusResponse
		// A coordinator that does not answer in time leaves its members unknown for a moment.
		err = c.Await(t.Context(), "the baseline", func(ctx context.Context) (ok bool, err error) {
			st, err = c.Status(ctx)
			return err == nil && st.GetBaseline().GetMet(), errors.Join(err, fmt.Errorf("baseline %v", st.GetBaseline()))
		})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if len(st.GetMembers()) != 3 {
			t.Errorf("round %d: %d members", round, len(st.GetMembers()))
		}
		if st.GetAuthorityEpoch() != 1 {
			t.Errorf("round %d: epoch %d, want 1", round, st.GetAuthorityEpoch())
		}
		if round > 0 && (st.GetClusterId() != cluster || !bytes.Equal(st.GetRootPin(), root)) {
			t.Errorf("another cluster: %s, was %s", st.GetClusterId(), cluster)
		}
		cluster, root = st.GetClusterId(), st.GetRootPin()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
