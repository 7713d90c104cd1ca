package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/shell"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/failure"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/mesh"
)

// devFolder is where a local cluster is kept, below the folder in which it was
// started, and devSockets where its coordinators have their admin sockets.
const (
	devFolder  = ".fealty-dev"
	devSockets = devFolder + "/coordinator-*/admin.sock"
)

// maxAnswerBytes bounds an answer: a long history is the largest.
const maxAnswerBytes = 512 << 20

// services are the clients of a coordinator.
type services struct {
	line     *line
	audit    fealtyv1.AuditServiceClient
	backup   fealtyv1.BackupServiceClient
	config   fealtyv1.ConfigServiceClient
	leader   fealtyv1.LeaderServiceClient
	peers    fealtyv1.CoordinatorServiceClient
	manifest fealtyv1.ManifestServiceClient
	members  fealtyv1.MemberServiceClient
	reseed   fealtyv1.ReseedServiceClient
	signed   fealtyv1.SnapshotServiceClient
	status   fealtyv1.StatusServiceClient
	tokens   fealtyv1.TokenServiceClient
	trust    fealtyv1.TrustServiceClient
	local    bool // over the admin socket
}

func (s *services) Close() { s.line.Close() }

// asking runs f with a connection to the coordinator that the settings name.
func (c *CLI) asking(cfg *settings.Values, f func(*services) error) error {
	l, local, err := c.dial(cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	return f(&services{
		line:     l,
		audit:    fealtyv1.NewAuditServiceClient(l),
		backup:   fealtyv1.NewBackupServiceClient(l),
		config:   fealtyv1.NewConfigServiceClient(l),
		leader:   fealtyv1.NewLeaderServiceClient(l),
		peers:    fealtyv1.NewCoordinatorServiceClient(l),
		manifest: fealtyv1.NewManifestServiceClient(l),
		members:  fealtyv1.NewMemberServiceClient(l),
		reseed:   fealtyv1.NewReseedServiceClient(l),
		signed:   fealtyv1.NewSnapshotServiceClient(l),
		status:   fealtyv1.NewStatusServiceClient(l),
		tokens:   fealtyv1.NewTokenServiceClient(l),
		trust:    fealtyv1.NewTrustServiceClient(l),
		local:    local,
	})
}

// dial opens the way to the coordinators that the settings name, or else to those of
// the current context. It connects on the first call.
func (c *CLI) dial(cfg *settings.Values) (_ *line, local bool, err error) {
	socket, coordinators, who := cfg.Find("socket"), cfg.Find("coordinator"), max2(cfg.Find("identity"), cfg.Find("context"))
	remote := max(coordinators.Rank, who.Rank)
	timeout := cfg.Duration("timeout")
	switch {
	case socket.Text != "" && socket.Rank == remote:
		return nil, false, explain.New(explain.BadValue, "name", "--socket", "value", "given together with "+max2(coordinators, who).From,
			"problem", "they name two ways to a coordinator", "want", "one of them")
	case socket.Text != "" && socket.Rank > remote:
		l, err := dialSocket(cfg.Path("socket"), timeout)
		return l, true, err
	}
	p, err := c.person(cfg)
	if err != nil {
		return nil, false, err
	}
	// The pattern is a good one; what it finds is sorted.
	found, _ := filepath.Glob(cfg.Within(devSockets))
	switch {
	case p.dir != "" || remote > settings.FromDefault:
		if p.rank == settings.FromDefault && remote == settings.FromDefault && len(found) > 0 {
			c.talk("asking with the login of context %s; for the local cluster in %s name its socket, --socket %s", p.context, devFolder, shell.Word(found[0]))
		}
		l, err := c.dialRemote(cfg, p, timeout)
		return l, false, err
	case len(found) > 0:
		c.talk("no coordinator is named: asking the local cluster in %s", devFolder)
		l, err := dialSocket(found[0], timeout)
		for _, path := range found[1:] {
			if err != nil {
				break
			}
			var next *line
			if next, err = dialSocket(path, timeout); err == nil {
				l.endpoints = append(l.endpoints, next.endpoints...)
			}
		}
		return l, true, err
	}
	return nil, false, explain.New(explain.NoCoordinatorConfigured,
		"looked", "flags, environment, configuration file, logins of this user and ./.fealty-dev",
		"ways", "on a coordinator's machine --socket PATH; elsewhere fealty login --token-file FILE once, or --identity DIR of such a login, with --coordinator HOST:PORT for another address; "+
			"or FEALTY_SOCKET, FEALTY_CONTEXT, FEALTY_IDENTITY, FEALTY_COORDINATOR, or a file with --config")
}

func max2(a, b settings.Value) settings.Value {
	if a.Rank >= b.Rank {
		return a
	}
	return b
}

// dialSocket opens the way to a process of this machine.
func dialSocket(path string, timeout time.Duration) (*line, error) {
	if err := mesh.CheckSocketPath(path); err != nil {
		return nil, explain.Wrap(err, explain.BadValue, "name", "the path of the socket", "value", path,
			"problem", strings.TrimPrefix(err.Error(), "mesh: "), "want", "a shorter path")
	}
	e := &endpoint{name: path}
	conn, err := mesh.DialLocal(path, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		raw, err := d.DialContext(ctx, "unix", path)
		e.failed(err)
		return raw, err
	}), answerSize())
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", path, err)
	}
	e.conn, e.close = conn, conn.Close
	return &line{endpoints: []*endpoint{e}, timeout: timeout}, nil
}

func answerSize() grpc.DialOption {
	return grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes))
}

// dialRemote opens the way to coordinators elsewhere, as the person that logged in.
func (c *CLI) dialRemote(cfg *settings.Values, p person, timeout time.Duration) (*line, error) {
	if p.dir == "" {
		return nil, explain.New(explain.BadValue, "name", "--coordinator", "value", "given alone",
			"problem", "a coordinator elsewhere has to know who asks", "want", "a login too: fealty login --token-file FILE, or --identity DIR of one")
	}
	login, err := p.load(c)
	if err != nil {
		return nil, err
	}
	source, addresses := login.Source, login.Addresses
	if named := cfg.List("coordinator"); len(named) > 0 {
		addresses = named
	}
	l := &line{timeout: timeout, login: &login}
	for _, addr := range addresses {
		conn, err := mesh.Dial(addr, source, credential.AnyOfKind(identity.Coordinator), mesh.Options{Now: c.env.Now, GRPC: []grpc.DialOption{answerSize()}})
		if err != nil {
			l.Close()
			return nil, explain.Wrap(err, explain.BadValue, "name", "--coordinator", "value", addr, "problem", err.Error())
		}
		l.endpoints = append(l.endpoints, &endpoint{name: addr, conn: conn, close: conn.Close})
	}
	if len(l.endpoints) == 0 {
		return nil, explain.New(explain.NoCoordinatorConfigured, "looked", "the identity in "+p.dir)
	}
	return l, nil
}

// A line is the way to one of several endpoints: calls try them in turn until one
// answers, beginning with the one that did last. It is a grpc.ClientConnInterface.
type line struct {
	endpoints []*endpoint
	timeout   time.Duration // of one call
	answered  atomic.Int64  // index of the endpoint that answered last

	login *enroll.LoginIdentity // who asks; nil over a socket
}

// refused gives a certificate that a coordinator did not accept, which it does not
// explain, the words that a person needs: it was valid here when it was loaded.
func (l *line) refused(err error) error {
	e, ok := errors.AsType[*explain.Error](err)
	if !ok || e.Code != explain.PeerRejectedUs || l.login == nil {
		return err
	}
	id := l.login.ID
	return explain.Wrap(err, explain.LoginRefused, "endpoint", e.Fields["endpoint"], "identity", id,
		"until", l.login.NotAfter, "member", string(id.Kind())+"/"+id.Name())
}

// inTurn returns the endpoints in the order in which they are asked.
func (l *line) inTurn() []*endpoint {
	at := int(l.answered.Load())
	return slices.Concat(l.endpoints[at:], l.endpoints[:at])
}

type endpoint struct {
	name  string
	conn  grpc.ClientConnInterface
	close func() error

	mu   sync.Mutex
	dial error // why the last attempt to connect failed; guarded by mu
}

func (e *endpoint) failed(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dial = err
}

func (e *endpoint) lastFailure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dial
}

// Close ends all connections.
func (l *line) Close() {
	for _, e := range l.endpoints {
		e.close()
	}
}

// Invoke runs a unary call on the first endpoint that is reached and can serve it. Its
// errors are worded: a change whose answer was lost is of unknown outcome.
func (l *line) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	var first error
	var unready *fealtyv1.GetStatusResponse // what one that is not ready says, in case none is
	for i, e := range l.inTurn() {
		sent, err := l.call(ctx, e, method, args, reply, opts)
		if st, ok := reply.(*fealtyv1.GetStatusResponse); ok && err == nil && st.GetPhase() != "ready" && len(l.endpoints) > 1 {
			if unready == nil {
				unready = proto.CloneOf(st)
			}
			continue
		}
		if err == nil {
			l.answered.Store((l.answered.Load() + int64(i)) % int64(len(l.endpoints)))
			return nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil || !l.elsewhere(sent, changes(method, args), err) {
			return err
		}
	}
	if st, ok := reply.(*fealtyv1.GetStatusResponse); ok && unready != nil {
		proto.Reset(st)
		proto.Merge(st, unready)
		return nil
	}
	return first
}

// elsewhere reports whether another endpoint may be asked: nothing can have happened
// at this one, or nothing that counts.
func (l *line) elsewhere(sent, changes bool, err error) bool {
	e := explain.Of(err)
	return !sent || errors.Is(e, explain.RecoveryMode) || errors.Is(e, explain.HeadNotFollowed) || !changes && (errors.Is(e, explain.Unreachable) || errors.Is(e, explain.StoreUnreachable))
}

func (l *line) call(ctx context.Context, e *endpoint, method string, args, reply any, opts []grpc.CallOption) (sent bool, err error) {
	call, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	var p peer.Peer
	err = e.conn.Invoke(call, method, args, reply, append(opts, grpc.Peer(&p))...)
	if err == nil {
		return true, nil
	}
	if ctx.Err() != nil {
		return p.Addr != nil, context.Cause(ctx)
	}
	sent = p.Addr != nil
	if dial := e.lastFailure(); dial != nil && !sent {
		return false, failure.Unreachable(err, e.name, dial)
	}
	return sent, l.refused(failure.OverNetwork(err, e.name, shortMethod(method), sent, changes(method, args), l.timeout.String()))
}

// NewStream opens a stream on the endpoint that answered last; see firstOf.
func (l *line) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return l.inTurn()[0].conn.NewStream(ctx, desc, method, opts...)
}

// firstOf opens a stream that changes nothing, and returns it with its first message:
// from the first endpoint that sends one, each within the time of a call. The caller
// calls end when it is done with the stream.
func firstOf[T any](ctx context.Context, l *line, method string, open func(context.Context) (grpc.ServerStreamingClient[T], error)) (_ grpc.ServerStreamingClient[T], _ *T, end context.CancelFunc, _ error) {
	var worded error
	for range l.endpoints {
		within, cancel := context.WithCancel(ctx)
		late := time.AfterFunc(l.timeout, cancel)
		stream, err := open(within)
		var first *T
		if err == nil {
			first, err = stream.Recv()
		}
		intime := late.Stop()
		if err == nil && intime {
			return stream, first, cancel, nil
		}
		cancel()
		if !intime {
			err = status.FromContextError(context.DeadlineExceeded).Err()
		}
		err = l.ofStream(ctx, err, method)
		if worded == nil {
			worded = err
		}
		if ctx.Err() != nil || !l.elsewhere(true, false, err) {
			return nil, nil, nil, err
		}
		l.answered.Store((l.answered.Load() + 1) % int64(len(l.endpoints)))
	}
	return nil, nil, nil, worded
}

// ofStream words what ended a stream of the endpoint that answered last.
func (l *line) ofStream(ctx context.Context, err error, method string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e := l.inTurn()[0]
	if dial := e.lastFailure(); dial != nil {
		return failure.Unreachable(err, e.name, dial)
	}
	if e, ok := explain.FromStatus(err); ok {
		return e // the other side says what happened
	}
	return l.refused(failure.OverNetwork(err, e.name, method, true, false, l.timeout.String()))
}

// changes reports whether a call can change something.
func changes(method string, args any) bool {
	name := shortMethod(method)
	if strings.HasPrefix(name, "Get") || strings.HasPrefix(name, "List") {
		return false
	}
	dry, ok := args.(interface{ GetDryRun() bool })
	return !ok || !dry.GetDryRun()
}

// shortMethod returns the last part of a method's full name.
func shortMethod(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }
