// Package node gives a program on a member who it is, whom it believes and what is configured.
//
// An agent runs on each member: it joins, renews, fetches and verifies. A program beside it
// opens the agent's folder with [Open], and from then on
//
//   - is that member to others: [Node.Source] follows each renewal, and each ban that the agent
//     accepted, within five seconds;
//   - calls and serves by identity: [Node.Dial], [Node.NewPool], [Node.NewServer],
//     [Node.NewHTTPTransport] and [Node.ServeHTTP];
//   - reads config that the agent verified, and asks whether an action is permitted while the
//     node has no news: [Node.Snapshot], [Node.Watch], [Node.Permit];
//   - verifies signed content itself, from wherever it came, without anybody: [Node.Verify].
//
// The folder is for the agent's user, so that the program runs as that user. Programs of other
// users read config alone, on the socket of LocalConfigService.
//
// The last good identity and trust stay in use while newer ones cannot be read (I14). Only what
// needs the agent's clock or its judgement of the moment, which is config in use and permission, needs the
// agent to run.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// Options are what a program may say of itself. The zero value is good.
type Options struct {
	// ConfigSocket is where the agent serves LocalConfigService. Empty: config.sock in the
	// folder, which is where it does so unless it was told otherwise.
	ConfigSocket string

	// Now is the clock that certificates are compared with. Nil: time.Now.
	Now func() time.Time

	// Log gets a line, once for each reason, when what the agent keeps cannot be taken over, and for
	// endpoints of a pool or an HTTP transport that are rejected. Nil: slog.Default().
	Log *slog.Logger
}

// Node is a member, as a program beside its agent sees it. It may be used by several
// goroutines.
type Node struct {
	dir    string
	now    func() time.Time
	log    *slog.Logger
	beside *client.Agent
	config *grpc.ClientConn
	socket string

	ctx   context.Context // ends with Close
	close func() error    // once
}

// defaultDir is where an agent keeps its folder unless it was told otherwise; the settings of fealty agent have it too.
const defaultDir = "/var/lib/fealty/agent"

// Open reads the folder of an agent, which need not run. An empty dir is the folder that the
// environment names in FEALTY_DATA, as for fealty's commands, or else /var/lib/fealty/agent. It fails unless the agent has joined,
// has a trust bundle, and has a certificate that is good now. Close the node when done: a
// goroutine follows the folder.
func Open(dir string, options Options) (*Node, error) {
	if dir == "" {
		dir = cmp.Or(os.Getenv("FEALTY_DATA"), defaultDir)
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	if options.ConfigSocket == "" {
		options.ConfigSocket = filepath.Join(dir, agent.ConfigSocketName)
	}
	who, err := client.Open(client.Config{Dir: dir, Now: options.Now, Log: options.Log})
	if err != nil {
		return nil, fmt.Errorf("node: open %s: %w", dir, advise(err))
	}
	config, err := mesh.DialLocal(options.ConfigSocket,
		// An agent that was started again is asked at once.
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second, Backoff: backoff.Config{
			BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(internalsnapshot.MaxContent+64<<10)))
	if err != nil {
		return nil, fmt.Errorf("node: open %s: %w", dir, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { _ = who.Run(ctx) }) // ends with ctx
	return &Node{dir: dir, now: options.Now, log: options.Log, beside: who, config: config,
		socket: options.ConfigSocket, ctx: ctx, close: sync.OnceValue(func() error {
			stop()
			ended.Wait()
			return config.Close()
		})}, nil
}

// Close ends what follows the folder, calls to the agent and watches, with [ErrClosed]. Servers and clients that
// were made of the node go on with the identity of now until that ends.
func (n *Node) Close() error { return n.close() }

// ErrClosed is what a call to the agent gets after [Node.Close].
var ErrClosed = errors.New("node: it was closed")

// ID is the member's identity, which stays the same until it leaves the cluster.
func (n *Node) ID() identity.ID { return n.beside.ID() }

// Source is the member's identity and its trust in others, as of the last look at the folder.
func (n *Node) Source() credential.Source { return n.beside.Source() }

// Authority is whose signed grants and assignments count for a fenced receiver on this member:
// see package fence.
func (n *Node) Authority() fence.Authority { return n.beside.Authority() }

// Failure returns why what is in the folder now is not in use, or nil: a
// [*credential.MaterialError] where it is the certificate.
func (n *Node) Failure() error { return advise(n.beside.Failure()) }

// Look looks at the folder now, for a program that was told of a change.
func (n *Node) Look() { n.beside.Look() }

// errLost is of a node that may believe nothing before a coordinator has answered it.
var errLost = errors.New("the agent has lost its marks, and believes nothing before a coordinator has answered it: " +
	"let it reach one")

var (
	errStale = errors.New("the trust bundle of the agent is out of use, and vouches for nothing but a newer one: " +
		"let the agent reach a coordinator")
	errQuarantined = errors.New("this content failed its trial on this node")
)

// Verify verifies signed content, in its encoded form, from wherever it came: a file, a mirror, another node. It
// needs no agent and no network, and decides by what is in the folder: whose signatures count, for
// which subjects content has to be, and below which version it is too old. It accepts nothing: the
// agent's marks stay as they are.
//
// A refusal is a [*snapshot.RejectedError] and matches [snapshot.ErrRejected].
func (n *Node) Verify(encoded []byte) (*snapshot.Verified, error) {
	signed, err := snapshot.Unmarshal(encoded)
	if err != nil {
		return nil, err
	}
	now := n.now()
	out, err := state.ReadTrustView(durable.OS(), n.dir, now)
	if err != nil {
		return nil, fmt.Errorf("node: verify by %s: %w", n.dir, err)
	}
	if out.Lost {
		return nil, fmt.Errorf("node: verify by %s: %w", n.dir, errLost)
	}
	v, err := snapshot.Verify(signed, out.Trust, out.Marks, now)
	if e, ok := errors.AsType[*snapshot.RejectedError](err); ok && e.Reason == snapshot.ReasonUnchanged {
		// It is what was accepted last, to the byte: only to accept it once more is refused.
		v, err = snapshot.Recheck(signed, out.Trust, out.Marks, now)
	}
	if err != nil {
		return nil, err
	}
	switch h := v.Header(); {
	case out.Stale && h.ScopeType != snapshot.ScopeTrustBundle:
		return nil, fmt.Errorf("node: verify by %s: %w", n.dir, errStale)
	case out.Quarantined(h.ScopeType, h.ContentHash):
		return nil, fmt.Errorf("node: verify by %s: %w", n.dir, errQuarantined)
	}
	return v, nil
}
