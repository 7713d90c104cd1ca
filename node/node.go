// Package node gives a program on a member who it is, whom it believes and what is configured.
//
// An agent runs on each member: it joins, renews, fetches and verifies. A program beside it
// opens the agent's folder with [Open], and from then on
//
//   - is that member to others: [Node.Source] follows each renewal, and each ban that the agent
//     accepted, within [LookEvery];
//   - calls and serves by identity: [Node.Dial], [Node.NewServer], [Node.NewHTTPTransport] and
//     [Node.ServeHTTP];
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
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/beside"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// LookEvery is how often the folder is looked at.
const LookEvery = beside.LookEvery

// Options are what a program may say of itself. The zero value is good.
type Options struct {
	// ConfigSocket is where the agent serves LocalConfigService. Empty: config.sock in the
	// folder, which is where it does so unless it was told otherwise.
	ConfigSocket string

	// Now is the clock that certificates are compared with. Nil: time.Now.
	Now func() time.Time

	// Log is told, once for each reason, that what the agent keeps cannot be taken over. Nil:
	// slog.Default().
	Log *slog.Logger
}

// Node is a member, as a program beside its agent sees it. It may be used by several
// goroutines.
type Node struct {
	dir    string
	now    func() time.Time
	beside *beside.Agent
	config *grpc.ClientConn
	socket string

	stop  context.CancelFunc
	ended sync.WaitGroup
}

// Open reads the folder of an agent, which need not run. It fails unless the agent has joined,
// has a trust bundle, and has a certificate that is good now. Close the node when done: a
// goroutine follows the folder.
func Open(dir string, options Options) (*Node, error) {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	if options.ConfigSocket == "" {
		options.ConfigSocket = filepath.Join(dir, agent.ConfigSocketName)
	}
	who, err := beside.Open(beside.Config{Dir: dir, Now: options.Now, Log: options.Log})
	if err != nil {
		return nil, fmt.Errorf("node: open %s: %w", dir, err)
	}
	config, err := mesh.DialLocal(options.ConfigSocket,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(snapshotform.MaxContent+64<<10)))
	if err != nil {
		return nil, fmt.Errorf("node: open %s: %w", dir, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	n := &Node{dir: dir, now: options.Now, beside: who, config: config, socket: options.ConfigSocket, stop: stop}
	n.ended.Go(func() { _ = who.Run(ctx) }) // ends with ctx
	return n, nil
}

// Close ends what follows the folder, and calls to the agent. Servers and clients that were made of the node go on
// with the identity of now until that ends.
func (n *Node) Close() error {
	n.stop()
	n.ended.Wait()
	return n.config.Close()
}

// ID is the member's identity, which stays the same until it leaves the cluster.
func (n *Node) ID() identity.ID { return n.beside.ID() }

// Source is the member's identity and whom it believes, as of the last look at the folder.
func (n *Node) Source() credential.Source { return n.beside.Source() }

// Authority is whose signed grants and assignments count for a fenced receiver on this member:
// see package fence.
func (n *Node) Authority() fence.Authority { return n.beside.Authority() }

// Look looks at the folder now, for a program that was told of a change.
func (n *Node) Look() { n.beside.Look() }

// errLost is of a node that may believe nothing before a coordinator has answered it.
var errLost = errors.New("the agent has lost its marks, and believes nothing before a coordinator has answered it: " +
	"let it reach one")

// Verify verifies signed content, in its encoded form, from wherever it came: a file, a mirror, another node. It
// needs no agent and nobody else, and decides by what is in the folder: whom the node believes, for
// whom content has to be, and below which version it is too old. Nothing is accepted by it: the
// agent's marks stay.
//
// A refusal is a [*snapshot.RejectedError] and matches [snapshot.ErrRejected].
func (n *Node) Verify(encoded []byte) (*snapshot.Verified, error) {
	signed, err := snapshot.Unmarshal(encoded)
	if err != nil {
		return nil, err
	}
	now := n.now()
	out, err := state.ReadOutlook(durable.OS(), n.dir, now)
	if err != nil {
		return nil, fmt.Errorf("node: verify by %s: %w", n.dir, err)
	}
	if out.Lost {
		return nil, fmt.Errorf("node: verify by %s: %w", n.dir, errLost)
	}
	v, err := snapshot.Verify(signed, out.Trust, out.Marks, now)
	if e, ok := errors.AsType[*snapshot.RejectedError](err); ok && e.Reason == snapshot.ReasonUnchanged {
		// It is what was accepted last, to the byte: only to accept it once more is refused.
		return snapshot.Recheck(signed, out.Trust, out.Marks, now)
	}
	return v, err
}
