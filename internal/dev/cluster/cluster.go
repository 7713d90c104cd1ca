// Package cluster runs a whole cluster on one machine, in one process, for `fealty dev` and for
// tests of the whole.
//
// Nothing in it is pretended. Coordinators are values that share one opened store,
// each with its own folder, memory of secrets, listeners and TLS; members join with
// tokens and keep their state on disk; and all of them meet over the API alone. It
// listens on loopback only, and its cluster id begins with "dev.", so that nothing it
// signs verifies elsewhere.
package cluster

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/dev/shard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// Names of what a dev cluster is made of.
const (
	membersDir   = "members"
	tokenSuffix  = ".token" // behind the folder of a member that is joining
	storeFile    = "store/fealty.db"
	signerFile   = "signer.key"
	keeperFile   = "keeper.key"
	manifestFile = "manifest.yaml"

	defaultCoordinators = 3

	// PoolEntry is the entry of the manifest that admits data members.
	PoolEntry = "pool"

	// AddressFile is where a coordinator's folder has the addresses that it served at.
	AddressFile = "address"

	// RouteTTL and DegradedMax are what the manifest allows members without a coordinator: routes for the one, and
	// anything at all for the other.
	RouteTTL    = 3 * time.Hour
	DegradedMax = 24 * time.Hour
)

// Options say what cluster to run.
type Options struct {
	// DataDir keeps the cluster, so that it can be started again. Empty means a
	// temporary directory that goes with the cluster.
	DataDir string

	// Store is the URL of a PostgreSQL database or of an etcd cluster that keeps the
	// cluster's store. Empty means SQLite, in the data directory.
	Store string

	// EmptyStore is the URL of another one, which holds nothing: a restore goes there,
	// and the cluster with it. Where Store is empty the SQLite file is replaced instead.
	EmptyStore string

	// Coordinators is how many there are. Zero means three.
	Coordinators int

	// Members are the names of the data members. Nil means node-a, node-b, node-c.
	Members []string

	// Rates limit joins. Its zero fields mean the coordinator's defaults.
	Rates coordinator.Rates

	// Program is the path of fealty, which is started for what has to be a process of its own:
	// shards and their provider. Empty: none runs, and the story fails where it needs one.
	Program string

	// Release is what the parts report.
	Release string

	// Locks are those of the process. Nil: nobody looks after those of the cluster.
	Locks *durable.Locks

	// Log is where the parts say what happens. Required.
	Log *slog.Logger

	// Progress is told each thing that happened, for a person. Nil means nobody.
	Progress func(text string)

	// Published is a folder in which each coordinator publishes, in one of its own. Empty means that none does.
	Published string

	// MadeToken is told each join token, and Heard what people are told: errors and backups. Nil means nobody.
	MadeToken func(proof.JoinToken)
	Heard     func(what string, data []byte)
}

// Cluster is a running cluster.
type Cluster struct {
	opts      Options
	dir       string
	temp      bool      // dir is ours to remove
	lock      io.Closer // of dir
	id        string
	signer    ed25519.PrivateKey
	store     store.Store // that the coordinators share
	storeName string
	cancel    context.CancelFunc
	group     *errgroup.Group
	ctx       context.Context
	clock     movedClock
	means     Means
	shards    *shard.Beside // before the cluster

	coordinators []*replica // as many as there are, in order; what runs of them is guarded by mu

	mu       sync.Mutex
	members  map[string]*part      // guarded by mu
	networks map[string]*network   // of the members; guarded by mu
	clocks   map[string]*partClock // of all parts; guarded by mu
	harming  chan struct{}         // held by who does harm; capacity 1
}

// part is one coordinator or member that runs.
type part struct {
	coordinator *coordinator.Coordinator
	agent       *agent.Agent
	metrics     string      // where the agent shows its metrics
	wire        *wire       // of the coordinator
	ending      atomic.Bool // somebody ends it: however it ends, that is no failure of the cluster
	cancel      context.CancelFunc
	done        chan struct{}
	err         error // set before done is closed
}

// stop ends the part and waits for it.
func (p *part) stop() error {
	p.ending.Store(true)
	p.cancel()
	<-p.done
	if errors.Is(p.err, context.Canceled) || p.wire.isCut() {
		return nil
	}
	return p.err
}

// Prepare makes a cluster whose coordinators run and have no manifest, unless the
// data directory holds one. Close it.
func Prepare(ctx context.Context, opts Options) (*Cluster, error) {
	return begin(ctx, opts, func(c *Cluster) error { return c.prepare(ctx) })
}

// Start is Prepare, the first set if there was none, and the members.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	return begin(ctx, opts, func(c *Cluster) error {
		if err := c.prepare(ctx); err != nil {
			return err
		}
		return c.bringUp(ctx)
	})
}

// begin makes a cluster, and has up start what runs.
func begin(ctx context.Context, opts Options, up func(*Cluster) error) (*Cluster, error) {
	if opts.Log == nil {
		return nil, errors.New("cluster: Options.Log is missing")
	}
	if opts.Members == nil {
		opts.Members = []string{"node-a", "node-b", "node-c"}
	}
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	if opts.Coordinators == 0 {
		opts.Coordinators = defaultCoordinators
	}
	c := &Cluster{opts: opts, dir: opts.DataDir, members: make(map[string]*part), networks: make(map[string]*network), clocks: make(map[string]*partClock), harming: make(chan struct{}, 1)}
	for _, name := range coordinatorNames(opts.Coordinators) {
		c.coordinators = append(c.coordinators, &replica{name: name})
	}
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "fealty-dev-")
		if err != nil {
			return nil, err
		}
		c.dir, c.temp = dir, true
	}
	abs, err := filepath.Abs(c.dir)
	if err != nil {
		return nil, err
	}
	c.dir = abs
	if err := c.own(); err != nil {
		return nil, err
	}
	c.shards = shard.New(c.Programs())
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	c.group, c.ctx = errgroup.WithContext(runCtx)
	if err := up(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// own makes the folder, unless it is one of an older release, and keeps every other dev cluster away from it before
// anything there is read or written.
func (c *Cluster) own() (err error) {
	if err := c.oldLayout(); err != nil {
		return err
	}
	if err := durable.OS().MkdirAll(c.dir); err != nil {
		return fmt.Errorf("make %s: %w", c.dir, err)
	}
	c.lock, err = c.opts.Locks.OS().Lock(filepath.Join(c.dir, "dev.lock"))
	if held, ok := errors.AsType[*durable.LockedError](err); ok {
		return errcode.Wrap(err, errcode.NodeLocked, "dir", c.dir, "pid", held.PID)
	}
	return err
}

func (c *Cluster) prepare(ctx context.Context) error {
	var err error
	if c.signer, err = c.signerKey(); err != nil {
		return err
	}
	if c.store, c.storeName, err = c.openStore(ctx); err != nil {
		return err
	}
	return c.StartCoordinators(ctx)
}

func (c *Cluster) bringUp(ctx context.Context) error {
	if err := c.SetFirstManifest(ctx); err != nil {
		return err
	}
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	var wanted []string
	g, joining := errgroup.WithContext(ctx)
	for _, name := range c.opts.Members {
		out, err := leftOut(st, name, c.MemberDir(name))
		if err != nil {
			return err
		}
		if out != "" {
			c.opts.Progress(name + " " + out + ": it is not waited for")
		} else {
			wanted = append(wanted, name)
		}
		g.Go(func() error {
			if _, err := c.Join(joining, name); err != nil && out == "" {
				return fmt.Errorf("member %s: %w", name, err)
			} else if err != nil {
				return nil // whom an admin keeps out does not keep the cluster from starting
			}
			if err := c.RunMember(joining, name); err != nil {
				return fmt.Errorf("member %s: %w", name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := c.awaitConnected(ctx, wanted); err != nil {
		return err
	}
	return c.shards.Show(ctx, c.opts.Progress)
}

// Dir is where the cluster keeps its state.
func (c *Cluster) Dir() string { return c.dir }

// KeeperFile is the file of the keeper, whose key opens the seed.
func (c *Cluster) KeeperFile() string { return filepath.Join(c.dir, keeperFile) }

// Store is the store that the coordinators share.
func (c *Cluster) Store() store.Store { return c.store }

// Log is where the parts of the cluster log.
func (c *Cluster) Log() *slog.Logger { return c.opts.Log }

// Means is what notes what is done in place of what happens to machines.
func (c *Cluster) Means() *Means { return &c.means }

// ID is the cluster id, once a manifest is set.
func (c *Cluster) ID() string { return c.id }

// Done is closed when a part failed, and with it the cluster.
func (c *Cluster) Done() <-chan struct{} { return c.ctx.Done() }

// Close ends every part, waits for them, and removes a temporary directory. It
// returns what the parts failed with.
func (c *Cluster) Close() error {
	c.mu.Lock()
	var parts []*part
	for _, p := range c.members {
		parts = append(parts, p)
	}
	for _, r := range c.coordinators {
		if r.run != nil {
			parts = append(parts, r.run)
		}
		r.run = nil
	}
	c.members = map[string]*part{}
	c.mu.Unlock()
	for _, p := range parts {
		p.ending.Store(true)
	}
	c.cancel()
	var errs []error
	for _, p := range parts {
		errs = append(errs, p.stop())
	}
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	if err := c.group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		errs = append(errs, err)
	}
	errs = append(errs, c.shards.Close()) // nobody does harm any more
	if c.temp {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	errs = append(errs, c.lock.Close())
	return errors.Join(errs...)
}

// run runs f as a part until it is stopped. A part that ends by itself with an
// error ends the cluster.
func (c *Cluster) run(p *part, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(c.ctx)
	p.cancel, p.done = cancel, make(chan struct{})
	c.group.Go(func() error {
		defer close(p.done)
		p.err = f(ctx)
		if ctx.Err() != nil || p.ending.Load() || p.wire.isCut() || p.err == nil {
			return nil // it was stopped, or left
		}
		return p.err
	})
}

// SetFirstManifest sets the manifest of a cluster that has none.
func (c *Cluster) SetFirstManifest(ctx context.Context) error {
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if st.GetPhase() == "uninitialized" {
		if err := c.firstSet(ctx); err != nil {
			return err
		}
	}
	// Those that did not set it see that it is there, and get its keys.
	if err := c.AwaitReady(ctx); err != nil {
		return err
	}
	if st, err = c.Status(ctx); err != nil {
		return err
	}
	c.id = st.GetClusterId()
	return nil
}

func (c *Cluster) firstSet(ctx context.Context) error {
	b := make([]byte, 4)
	rand.Read(b)
	key, err := manifest.NewKey(c.signer.Public().(ed25519.PublicKey))
	if err != nil {
		return err
	}
	var admitted strings.Builder
	for _, name := range c.CoordinatorNames() {
		st, err := c.StatusOf(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(&admitted, "  - {name: %s, kind: coordinator, match: [\"key:%s\"]}\n", name, st.GetEnrolmentKey())
	}
	var people strings.Builder
	for _, name := range Owners() {
		recipient, err := c.ownerRecipient(name)
		if err != nil {
			return fmt.Errorf("the key of owner %s: %w", name, err)
		}
		fmt.Fprintf(&people, "    - {name: %s, recipient: %s}\n", name, recipient)
	}
	text := fmt.Appendf(nil, `# The trust policy of a cluster for trying things out on one machine.
cluster: dev.%s
seed:
  threshold: %d
  owners:
    - {name: this-machine, keeper: "file:%s"}
%sdegraded: {max: %s, route_ttl: %s}
signers:
  threshold: 1
  keys: [{name: developer, key: "%s"}]
admit:
%s  - {name: %s, kind: data, match: ["token:%s"], organizations: [acme, globex]}
  - {name: witnesses, kind: witness, match: ["token:witnesses"]}
  - {name: shards, kind: shard, match: ["token:shards"]}
  - {name: providers, kind: provider, match: ["token:providers"]}
  - {name: operators, kind: operator, match: ["token:operators"]}
  - {name: hosts, kind: data, match: ["token:hosts"], roles: [egress]}
  - {name: developers, kind: admin, match: ["token:developers"]}
`, hex.EncodeToString(b), ownersThreshold, c.KeeperFile(), people.String(), DegradedMax, RouteTTL, key, admitted.String(), PoolEntry, PoolEntry)
	if err := durable.OS().WriteFile(filepath.Join(c.dir, manifestFile), text); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return c.WithAdmin(func(conn *grpc.ClientConn) error {
		resp, err := fealtyv1.NewManifestServiceClient(conn).SetManifest(ctx, &fealtyv1.SetManifestRequest{Manifest: text, Reason: "first set of a dev cluster"})
		if err != nil {
			return err
		}
		return c.handOut(resp.GetShares())
	})
}

// SignSet signs a manifest for the head that is in force.
func (c *Cluster) SignSet(text []byte, head []byte) (*fealtyv1.SetManifestRequest, error) {
	m, err := manifest.Parse(text)
	if err != nil {
		return nil, err
	}
	key, err := manifest.NewKey(c.signer.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, err
	}
	if len(head) != len(history.Hash{}) {
		return nil, fmt.Errorf("a head of %d bytes", len(head))
	}
	return &fealtyv1.SetManifestRequest{
		Manifest: text, CurrentTransition: head,
		Signatures: []*fealtyv1.ManifestSignature{{Key: key.String(), Signature: ed25519.Sign(c.signer, history.SetStatement(m.Hash(), history.Hash(head)))}},
	}, nil
}

// signerKey reads the signer's key, or makes it.
func (c *Cluster) signerKey() (ed25519.PrivateKey, error) {
	path := filepath.Join(c.dir, signerFile)
	raw, err := durable.OS().ReadSecret(path, 4<<10)
	if errors.Is(err, fs.ErrNotExist) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		return key, durable.OS().WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("%s holds no key: remove %s to start a new dev cluster", path, c.dir)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an Ed25519 key: remove %s to start a new dev cluster", path, c.dir)
	}
	return key, nil
}

// Token makes a join token.
func (c *Cluster) Token(ctx context.Context, req *fealtyv1.CreateTokenRequest) (tok proof.JoinToken, err error) {
	err = c.WithAdmin(func(conn *grpc.ClientConn) error {
		resp, err := fealtyv1.NewTokenServiceClient(conn).CreateToken(ctx, req)
		if err != nil {
			return err
		}
		if tok, err = proof.ParseJoinToken(resp.GetLine()); err == nil && c.opts.MadeToken != nil {
			c.opts.MadeToken(tok)
		}
		return err
	})
	return tok, err
}

// MemberDir is the data directory of a member.
func (c *Cluster) MemberDir(name string) string { return filepath.Join(c.dir, membersDir, name) }

// Join makes name a data member by a token of one use, unless its directory holds
// an identity already. It reports whether it joined now. A join that was cut off goes on
// with the token that it began with: it may have been admitted, and another token would
// be that of somebody else who wants its name.
func (c *Cluster) Join(ctx context.Context, name string) (joined bool, err error) {
	return c.joinAs(ctx, identity.Data, name)
}

// joinAs is Join for a kind.
func (c *Cluster) joinAs(ctx context.Context, kind identity.Kind, name string) (joined bool, err error) {
	if joined, err := hasIdentity(c.MemberDir(name)); joined || err != nil {
		return false, err
	}
	begun := c.MemberDir(name) + tokenSuffix
	if kept, ok := keptToken(begun); ok {
		// Another start listens at another port.
		p, err := enroll.ByToken(kept).At(c.Addresses(), "fealty dev")
		if err == nil {
			err = c.joinBy(ctx, kind, name, p)
		}
		switch {
		case err == nil:
			return true, forgetToken(begun)
		case ctx.Err() != nil:
			return false, err
		}
		c.opts.Log.LogAttrs(ctx, slog.LevelWarn, "a join that was cut off begins again", slog.String("part", name), slog.Any("err", err))
	}
	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: entryOf(kind), Name: name, Organizations: organizationsOf(name)})
	if err != nil {
		return false, err
	}
	if err := keepToken(begun, tok); err != nil {
		return false, err
	}
	if err := c.joinBy(ctx, kind, name, enroll.ByToken(tok)); err != nil {
		return false, err
	}
	return true, forgetToken(begun)
}

func (c *Cluster) joinBy(ctx context.Context, kind identity.Kind, name string, p enroll.Proof) error {
	_, err := enroll.Join(ctx, enroll.JoinConfig{
		DataDir: c.MemberDir(name), Proof: p, Kind: kind,
		Log: c.opts.Log.With("part", name), Release: c.opts.Release, Now: c.clock.now,
	})
	return err
}

// entryOf is the entry of the manifest that admits members of a kind.
func entryOf(kind identity.Kind) string {
	if kind == identity.Data {
		return PoolEntry
	}
	return string(kind) + "s"
}

// keptToken returns the token of a join that was cut off.
func keptToken(path string) (proof.JoinToken, bool) {
	raw, err := durable.OS().ReadSecret(path, 4<<10)
	if err != nil {
		return proof.JoinToken{}, false
	}
	tok, err := proof.ParseJoinToken(string(raw))
	return tok, err == nil
}

// keepToken keeps the token of a join that begins.
func keepToken(path string, tok proof.JoinToken) error {
	err := durable.OS().MkdirAll(filepath.Dir(path))
	if err == nil {
		err = durable.OS().WriteFile(path, []byte(tok.Line()))
	}
	if err != nil {
		return fmt.Errorf("keep the token of a join that begins: %w", err)
	}
	return nil
}

// forgetToken removes the token of a join that is done.
func forgetToken(path string) error {
	if err := durable.OS().Remove(path); err != nil {
		return fmt.Errorf("remove a token that was used: %w", err)
	}
	return nil
}

// organizationsOf returns whom a member serves: node-a and node-b acme, node-c and
// node-d globex, any other one all that its entry has.
func organizationsOf(name string) []string {
	switch name {
	case "node-a", "node-b":
		return []string{"acme"}
	case "node-c", "node-d":
		return []string{"globex"}
	}
	return nil
}

// RunMember runs the agent of a member that joined.
func (c *Cluster) RunMember(ctx context.Context, name string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen on loopback: %w", err)
	}
	a, err := agent.Open(ctx, agent.Config{
		DataDir: c.MemberDir(name), Locks: c.opts.Locks, Dial: c.networkOf(name).dial, Metrics: l,
		Log: c.opts.Log.With("part", name), Release: c.opts.Release, Now: c.clockOf(name).now,
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	p := &part{agent: a, metrics: l.Addr().String()}
	c.run(p, a.Run)
	c.mu.Lock()
	c.members[name] = p
	c.mu.Unlock()
	return nil
}

// StopMember ends the agent of a member.
func (c *Cluster) StopMember(name string) error {
	c.mu.Lock()
	p := c.members[name]
	delete(c.members, name)
	c.mu.Unlock()
	if p == nil {
		return fmt.Errorf("member %s does not run", name)
	}
	return p.stop()
}

// runningMember returns the part that is a member, which has to run.
func (c *Cluster) runningMember(name string) (*part, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.members[name]
	if p == nil {
		return nil, fmt.Errorf("member %s does not run", name)
	}
	return p, nil
}

// MemberMetrics is where the agent of a member shows its metrics.
func (c *Cluster) MemberMetrics(name string) (string, error) {
	p, err := c.runningMember(name)
	if err != nil {
		return "", err
	}
	return p.metrics, nil
}

// Material is the identity that a member presents now.
func (c *Cluster) Material(ctx context.Context, name string) (*credential.Material, error) {
	p, err := c.runningMember(name)
	if err != nil {
		return nil, err
	}
	return p.agent.Source().Current(ctx)
}

// Node asks a member's agent over its own socket.
func (c *Cluster) Node(ctx context.Context, name string) (n *fealtyv1.GetNodeResponse, err error) {
	err = c.WithNode(name, func(node fealtyv1.NodeServiceClient) error {
		n, err = node.GetNode(ctx, &fealtyv1.GetNodeRequest{})
		return err
	})
	return n, err
}

// WithNode calls f with a connection to the socket of a member's agent.
func (c *Cluster) WithNode(name string, f func(fealtyv1.NodeServiceClient) error) error {
	conn, err := mesh.DialLocal(filepath.Join(c.MemberDir(name), "agent.sock"))
	if err != nil {
		return err
	}
	defer conn.Close()
	return c.Tell(f(fealtyv1.NewNodeServiceClient(conn)))
}

// Tell makes known what somebody is told, and returns it.
func (c *Cluster) Tell(err error) error {
	if e := errcode.Of(err); e != nil && c.opts.Heard != nil {
		c.opts.Heard("error", fmt.Appendf(nil, "%v; %s; %s; %s; %v", err, e.What, e.Why, e.Do, e.Fields))
	}
	return err
}

// AwaitConnected waits until some coordinator has a stream of each member.
func (c *Cluster) AwaitConnected(ctx context.Context, names ...string) error {
	return c.Await(ctx, "members to connect", func(ctx context.Context) (bool, error) {
		missing, err := c.unconnected(ctx, names)
		return err == nil && len(missing) == 0, errors.Join(err, notConnected(missing))
	})
}

// AwaitLimit bounds every wait of a dev cluster, on a machine that does other work.
const AwaitLimit = 2 * time.Minute

// Await asks ok until it says yes, a part fails, or the time is over.
func (c *Cluster) Await(ctx context.Context, what string, ok func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(fmt.Errorf("a part of the cluster ended: %w", context.Cause(c.ctx))) })()
	late := time.AfterFunc(silence, func() { c.opts.Progress("waiting for " + what + " …") })
	defer late.Stop()
	return await(ctx, what, ok)
}

// UntilNext is how long who waits for something leaves the cluster alone, after a question
// that began at asked: at least 20 ms, and twice as long as the answer took. Where the
// machine is busy, most of its time is for what is waited for.
func UntilNext(asked time.Time) time.Duration {
	return max(20*time.Millisecond, 2*time.Since(asked))
}

// await asks ok until it says yes, ctx ends, or the time is over.
func await(ctx context.Context, what string, ok func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, AwaitLimit)
	defer cancel()
	var last error
	for {
		asked := time.Now()
		yes, err := ok(ctx)
		if yes {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-time.After(UntilNext(asked)):
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(context.Cause(ctx), last))
		}
	}
}
