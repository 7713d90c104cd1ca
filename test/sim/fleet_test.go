package sim_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/storetest"
	"github.com/fealty-io/fealty/mesh"
)

// keeperFile is where each machine has the key of the keeper.
const keeperFile = "/keeper.key"

// counts is what a fleet came by.
type counts struct {
	mu sync.Mutex
	of map[string]int // guarded by mu
}

func (c *counts) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[string]int)
	}
	c.of[what]++
}

func (c *counts) addAll(other *counts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[string]int)
	}
	for what, n := range other.of {
		c.of[what] += n
	}
}

// fleet is a few coordinators in memory on one store. Its methods but of checks are for one
// goroutine, the driver's, unless they say so.
type fleet struct {
	rng   *mathrand.Rand
	began time.Time
	mem   *storetest.Memory
	truth store.Store // a handle of mem without faults
	net   coordinatortest.Network
	coord []*coord
	saw   *counts
	bug   func(tx *store.Tx, all store.Listing) (written bool) // alters what is written; nil: none

	admin ed25519.PrivateKey
	owner *age.X25519Identity // of a share of the seed, who can bring it back alone

	mu    sync.Mutex
	log   strings.Builder // what happened; guarded by mu
	wrong []string        // what must not be; guarded by mu
}

// coord is one coordinator: its disk, and the process that runs on it, or none.
type coord struct {
	*coordinatortest.Fleet
	f *fleet
	n int

	c       *coordinator.Coordinator                // nil while it is down
	running atomic.Pointer[coordinator.Coordinator] // c, for other goroutines
	link    *link

	mu     sync.Mutex
	login  *mesh.Conn   // of the admin, to here; nil: none; guarded by mu
	former []*mesh.Conn // of before; guarded by mu
	fell   int          // how often it went from ready to recovery; guarded by mu
	phase  string       // as its log said last; guarded by mu
	why    string       // guarded by mu
}

func (f *fleet) say(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(&f.log, "%12v  "+format+"\n", append([]any{time.Since(f.began)}, args...)...)
}

// violated notes what must not be. Any goroutine may.
func (f *fleet) violated(format string, args ...any) {
	f.say("VIOLATED: "+format, args...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
}

func (f *fleet) broken() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.wrong) == 0 {
		return ""
	}
	return f.wrong[0]
}

// need ends a schedule that cannot go on.
func need[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("the schedule cannot go on: %v", err))
	}
	return v
}

func newFleet(t *testing.T, seed uint64, n int, bug func(*store.Tx, store.Listing) bool) *fleet {
	f := &fleet{rng: mathrand.New(mathrand.NewPCG(seed, 17)), began: time.Now(), mem: storetest.NewMemory(0), saw: new(counts), bug: bug}
	f.truth = f.mem.Open()
	_, f.admin, _ = ed25519.GenerateKey(rand.Reader)
	f.owner = need(age.GenerateX25519Identity())
	for i := range n {
		x := &coord{f: f, n: i}
		f.coord = append(f.coord, x)
		if i == 0 {
			x.Fleet = coordinatortest.NewFleetIn(t, &f.net, f.mem.Open)
			x.Seed = fmt.Sprintf("seed:\n  threshold: 1\n  owners: [{name: host, keeper: \"file:%s\"}, {name: carol, recipient: \"%s\"}]\n",
				keeperFile, f.owner.Recipient())
		} else {
			x.Fleet = coordinatortest.NewReplica(t, f.coord[0].Fleet)
		}
		x.Config = x.config
		x.start()
	}
	token, _ := f.coord[0].SetupToken()
	need(0, f.coord[0].FirstSet(token, f.manifest(""), nil))
	return f
}

// config is what is special about a coordinator here.
func (x *coord) config(cfg *coordinator.Config) {
	f := x.f
	x.link = &link{Store: f.mem.Open(), of: x.Process, rng: mathrand.New(mathrand.NewPCG(f.rng.Uint64(), 1)), saw: f.saw, bug: f.bug}
	x.mu.Lock()
	x.phase = ""
	x.mu.Unlock()
	cfg.Store, cfg.StoreName, cfg.Log = x.link, "memory", slog.New(phases{x, nil})
	cfg.Timing = coordinator.Timing{Lease: 4 * time.Second, Beat: time.Second, SelfHealAfter: 5 * time.Second}
	cfg.Gate = mesh.GateConfig{HandshakeRate: 1e6, HandshakeBurst: 1e6}
}

// start starts the coordinator on what its disk and the store hold.
func (x *coord) start() {
	x.Start()
	x.c = x.C
	x.running.Store(x.c)
}

// stop ends the coordinator. After a kill nothing that it does reaches the store.
func (x *coord) stop(kill bool) {
	if x.c == nil {
		return
	}
	x.running.Store(nil)
	x.hangUp()
	if kill {
		x.link.setCut(true)
	}
	x.Process.Thaw()
	x.Stop()
	x.c = nil
}

func (f *fleet) stop() {
	for _, x := range f.coord {
		x.stop(true)
	}
	f.truth.Close()
}

// phases is a log handler that knows the phase of a coordinator.
type phases struct {
	x     *coord
	attrs []slog.Attr
}

func (p phases) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (p phases) WithAttrs(a []slog.Attr) slog.Handler {
	return phases{p.x, append(p.attrs[:len(p.attrs):len(p.attrs)], a...)}
}
func (p phases) WithGroup(string) slog.Handler { return p }

func (p phases) Handle(_ context.Context, r slog.Record) error {
	var phase, reason, all string
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "phase":
			phase = a.Value.String()
		case "reason":
			reason = a.Value.String()
		}
		all += fmt.Sprintf(" %s=%.300v", a.Key, a.Value)
		return true
	})
	p.x.f.say("  %d: %s%s", p.x.n, r.Message, all)
	if r.Message != "coordinator state" {
		return nil
	}
	p.x.mu.Lock()
	defer p.x.mu.Unlock()
	if p.x.phase == "ready" && phase == "recovery" {
		p.x.fell++
		p.x.why = reason
	}
	p.x.phase = phase
	return nil
}

// fallen returns how often the coordinator went from ready to recovery, and why last.
func (x *coord) fallen() (int, string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.fell, x.why
}

// manifest returns a manifest that admits all coordinators, with extra entries.
func (f *fleet) manifest(extra string) []byte {
	return f.coord[0].Manifest(fmt.Sprintf("  - {name: people, kind: admin, match: [%q]}\n", "key:"+proof.KeyClaim(f.admin.Public().(ed25519.PublicKey))) + extra)
}

// call is how long one call may take.
const call = 30 * time.Second

// join joins somebody over a connection of its own, and returns one with its identity.
func (x *coord) join(ctx context.Context, kind identity.Kind, p proof.Prover) (*coordinatortest.Node, error) {
	conn, err := x.DialPinned(pinned.Unproven())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	n := x.Node()
	if err := n.JoinOver(ctx, conn, kind, p); err != nil {
		return nil, err
	}
	return n, n.BelieveGrant()
}

// renews has a member ask coordinator x for another certificate.
func (x *coord) renews(n *coordinatortest.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), call)
	defer cancel()
	conn, err := n.Dial(x.Fleet)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = fealtyv1.NewAdmissionServiceClient(conn).Renew(ctx, &fealtyv1.RenewRequest{Name: n.ID.Name(), Csr: need(coordinatortest.NewTestCSR())})
	return err
}

// asAdmin calls do with a connection of an admin, which it keeps until one of them
// fails. Any goroutine may.
func (x *coord) asAdmin(do func(ctx context.Context, conn grpc.ClientConnInterface) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), call)
	defer cancel()
	if x.c == nil {
		return errDown
	}
	x.mu.Lock()
	conn := x.login
	x.mu.Unlock()
	if conn == nil {
		j, err := x.join(ctx, identity.Admin, proof.NewKeyProver(x.f.admin))
		if err != nil {
			return &loginError{err}
		}
		if conn, err = j.Dial(x.Fleet); err != nil {
			return &loginError{err}
		}
		x.mu.Lock()
		if x.login == nil {
			x.login = conn
		} else {
			defer conn.Close() // another goroutine was first
		}
		x.mu.Unlock()
	}
	err := do(ctx, conn)
	if err != nil {
		x.logout(conn)
	}
	return err
}

// logout has the admin log in anew, if the connection is conn still. Others may be in the
// middle of calls over it.
func (x *coord) logout(conn *mesh.Conn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.login == conn {
		x.login = nil
	}
	x.former = append(x.former, conn)
}

// hangUp closes what an admin used, when nobody is in the middle of a call.
func (x *coord) hangUp() {
	x.mu.Lock()
	conns := x.former
	if x.login != nil {
		conns = append(conns, x.login)
	}
	x.login, x.former = nil, nil
	x.mu.Unlock()
	for _, conn := range conns {
		conn.Close() // twice is harmless
	}
}

var errDown = errors.New("the coordinator is down")

// loginError says that nothing was asked yet.
type loginError struct{ error }

func (e *loginError) Unwrap() error { return e.error }

// refused reports whether err says that nothing was changed.
func refused(err error) bool {
	if errors.Is(err, errDown) || errors.As(err, new(*loginError)) {
		return true
	}
	e, ok := errcode.FromStatus(err)
	if !ok {
		return false
	}
	switch e.Code {
	case errcode.StoreOutcomeUnknown, errcode.DoneNotInForce, errcode.Internal, errcode.StoreUnreachable:
		return false
	}
	return true
}

// links returns the history as the store holds it.
func (f *fleet) links() (out []history.Link) {
	h := need(history.New(f.truth).Load(context.Background()))
	for _, raw := range h.Links {
		out = append(out, history.Link{Transition: *need(history.Decode(raw)), Hash: sha256.Sum256(raw)})
	}
	return out
}

// head returns the head of the history as the store holds it.
func (f *fleet) head() history.Link {
	links := f.links()
	return links[len(links)-1]
}

// set asks the coordinator to set a manifest in place of the one after head.
func (x *coord) set(m []byte, head history.Hash) (out *fealtyv1.SetManifestResponse, err error) {
	req := &fealtyv1.SetManifestRequest{Manifest: m, Reason: "test"}
	x.Sign(req, head)
	err = x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
		out, err = fealtyv1.NewManifestServiceClient(conn).SetManifest(ctx, req)
		return err
	})
	return out, err
}

// reseed asks the coordinator for a new seed.
func (x *coord) reseed() (out *fealtyv1.CommitReseedResponse, err error) {
	var change []byte
	err = x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
		p, err := fealtyv1.NewReseedServiceClient(conn).PrepareReseed(ctx, &fealtyv1.PrepareReseedRequest{})
		change = p.GetChange()
		return err
	})
	if err != nil {
		return nil, &loginError{err} // nothing is in force
	}
	err = x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
		out, err = fealtyv1.NewReseedServiceClient(conn).CommitReseed(ctx, &fealtyv1.CommitReseedRequest{
			Change: change, Reason: "test", Signatures: coordinatortest.SignChange(x.T, change, x.Signer),
		})
		return err
	})
	return out, err
}

// bring brings the owner's share of the seed to the coordinator: each of those that the
// store has for her, as one may be of a seed that never came into force.
func (x *coord) bring() (err error) {
	for _, e := range need(x.f.truth.List(context.Background(), "seed/share/")).Entries {
		if !strings.HasSuffix(e.Key, "/carol") {
			continue
		}
		if err = x.bringOne(need(keyring.OpenShare([]age.Identity{x.f.owner}, e.Value))); err == nil {
			return nil
		}
	}
	return err
}

func (x *coord) bringOne(file keyring.ShareFile) error {
	conn, err := x.DialPinned(pinned.Unproven())
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), call)
	defer cancel()
	_, err = recovery.Bring(ctx, conn, file, recovery.Options{Endpoint: x.Addr})
	return err
}
