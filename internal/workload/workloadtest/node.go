// Package workloadtest is a node that registers and certifies workloads as a test says, behind a
// real socket.
package workloadtest

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/workload"
	"github.com/fealty-io/fealty/internal/workload/attest"
)

// Node is a [attest.Source] of cluster test.example. Make it with [New].
type Node struct {
	Auth *pkitest.Authority
	// Callers of the node. They log to Log.
	Callers *attest.Callers
	// Asked has an element once a certificate was asked for that there is not.
	Asked chan struct{}

	t       testing.TB
	changed watch.Signal
	issued  watch.Signal
	looks   atomic.Int64 // at a certificate
	waits   atomic.Int64 // for a change

	mu    sync.Mutex
	set   *attest.Set               // guarded by mu
	svid  map[identity.ID]*dir.SVID // guarded by mu
	roots *attest.Roots             // guarded by mu
}

// New returns a node with a bundle of one root, where nothing is registered.
func New(t testing.TB, log *slog.Logger) *Node {
	n := &Node{t: t, Auth: pkitest.NewAuthority(t, "test.example"), Asked: make(chan struct{}, 1),
		svid: make(map[identity.ID]*dir.SVID)}
	n.Callers = attest.NewCallers(attest.Config{Source: n, Log: log, Refused: func(string) {}})
	n.SetRoots(true)
	return n
}

// Set is what is registered.
func (n *Node) Set() *attest.Set {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.set
}

// SVID is the certificate that [Node.Certify] made.
func (n *Node) SVID(id identity.ID) (*dir.SVID, error) {
	n.looks.Add(1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.svid[id]; s != nil {
		return s, nil
	}
	select {
	case n.Asked <- struct{}{}:
	default:
	}
	return nil, errors.New("none yet")
}

// Roots are those of the last [Node.SetRoots].
func (n *Node) Roots() *attest.Roots {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.roots
}

// Changed is closed by each change.
func (n *Node) Changed() <-chan struct{} {
	n.waits.Add(1)
	return n.changed.Wait()
}

// Issued is closed by each [Node.Certify].
func (n *Node) Issued() <-chan struct{} { return n.issued.Wait() }

// Looks returns how often a certificate was asked for.
func (n *Node) Looks() int64 { return n.looks.Load() }

// Woken is [Node.Touch], and waits until somebody waits for a change again: all that this one did before
// the last call is done.
func (n *Node) Woken() {
	before := n.waits.Load()
	n.Touch()
	for n.waits.Load() == before {
		runtime.Gosched()
	}
}

// Touch says that something changed, though nothing did.
func (n *Node) Touch() { n.changed.Notify() }

func (n *Node) change(f func()) {
	n.mu.Lock()
	f()
	n.mu.Unlock()
	n.changed.Notify()
}

// ID is that of a workload.
func (n *Node) ID(name string) identity.ID { return n.Auth.ID(n.t, identity.Workload, name) }

// Register makes this process the workloads of names, and no others.
func (n *Node) Register(names ...string) {
	uid := uint32(os.Getuid())
	var all []workload.Registration
	for _, name := range names {
		all = append(all, workload.Registration{Service: "of-" + name, ID: n.ID(name),
			Selector: workload.Selector{UID: &uid}})
	}
	n.change(func() { n.set = attest.NewSet(all) })
}

// Certify gives a workload another certificate, with a new key.
func (n *Node) Certify(name string) *dir.SVID {
	n.t.Helper()
	key, err := dir.NewKeyPair()
	if err != nil {
		n.t.Fatal(err)
	}
	chain, _ := n.Auth.Issue(n.t, n.ID(name), pkitest.WithKey(key.Signer()))
	svid := &dir.SVID{Key: key, Chain: append(chain, n.Auth.Root().Cert)}
	n.change(func() { n.svid[n.ID(name)] = svid; n.issued.Notify() })
	return svid
}

// SetRoots makes the node's bundle another one, or takes it away.
func (n *Node) SetRoots(usable bool) {
	var roots *attest.Roots
	if usable {
		roots = &attest.Roots{Cluster: "test.example"}
		roots.Certificates = append(roots.Certificates, n.Auth.Root().Cert)
	}
	n.change(func() { n.roots = roots })
}

// Serve serves what register registers to the callers of the node, and returns a connection to
// it. It ends with the test.
func (n *Node) Serve(register func(*grpc.Server), options ...grpc.ServerOption) *grpc.ClientConn {
	n.t.Helper()
	folder, err := os.MkdirTemp("", "w") // the path of a socket is short
	if err != nil {
		n.t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(folder, "s"))
	if err != nil {
		n.t.Fatal(err)
	}
	server := grpc.NewServer(append(options, grpc.Creds(n.Callers))...)
	register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		conn.Close()
		server.Stop()
		<-done
		os.RemoveAll(folder)
	})
	return conn
}
