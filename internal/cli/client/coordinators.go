// Package client calls the coordinators of a cluster for a command: it tries one after the other
// until one answers, for as long as the command waits.
package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
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
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	"github.com/fealty-io/fealty/mesh"
)

// maxAnswerBytes bounds an answer: a long history is the largest.
const maxAnswerBytes = 512 << 20

// Services are the clients of a coordinator.
type Services struct {
	Line     *Line
	Audit    fealtyv1.AuditServiceClient
	Backup   fealtyv1.BackupServiceClient
	Config   fealtyv1.ConfigServiceClient
	Leader   fealtyv1.LeaderServiceClient
	Peers    fealtyv1.CoordinatorServiceClient
	Manifest fealtyv1.ManifestServiceClient
	Members  fealtyv1.MemberServiceClient
	Reseed   fealtyv1.ReseedServiceClient
	Signed   fealtyv1.SnapshotServiceClient
	Status   fealtyv1.StatusServiceClient
	Tokens   fealtyv1.TokenServiceClient
	Trust    fealtyv1.TrustServiceClient
}

func (s *Services) Close() { s.Line.Close() }

// ServicesOf are the clients of who is reached over l.
func ServicesOf(l *Line) *Services {
	return &Services{
		Line:     l,
		Audit:    fealtyv1.NewAuditServiceClient(l),
		Backup:   fealtyv1.NewBackupServiceClient(l),
		Config:   fealtyv1.NewConfigServiceClient(l),
		Leader:   fealtyv1.NewLeaderServiceClient(l),
		Peers:    fealtyv1.NewCoordinatorServiceClient(l),
		Manifest: fealtyv1.NewManifestServiceClient(l),
		Members:  fealtyv1.NewMemberServiceClient(l),
		Reseed:   fealtyv1.NewReseedServiceClient(l),
		Signed:   fealtyv1.NewSnapshotServiceClient(l),
		Status:   fealtyv1.NewStatusServiceClient(l),
		Tokens:   fealtyv1.NewTokenServiceClient(l),
		Trust:    fealtyv1.NewTrustServiceClient(l),
	}
}

// Dial opens the way to a process of this machine.
func Dial(path string, timeout time.Duration) (*Line, error) {
	if err := localsocket.CheckPath(path); err != nil {
		return nil, errcode.Wrap(err, errcode.BadValue, "name", "the path of the socket", "value", path,
			"problem", strings.TrimPrefix(err.Error(), "mesh: "), "want", "a shorter path")
	}
	// What connect says of a folder and of a plain file is that nobody listens there.
	if info, err := os.Stat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		what := "it is a file and no socket"
		if info.IsDir() {
			what = "it is a folder and no socket"
		}
		return nil, errcode.New(errcode.BadValue, "name", "the path of the socket", "value", path, "problem", what, "want",
			"the socket of a process that runs, such as admin.sock in the folder of a coordinator")
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
	return &Line{endpoints: []*endpoint{e}, timeout: timeout}, nil
}

// DialAll opens the way to several processes of this machine.
func DialAll(paths []string, timeout time.Duration) (*Line, error) {
	all := &Line{timeout: timeout}
	for _, path := range paths {
		next, err := Dial(path, timeout)
		if err != nil {
			return nil, err
		}
		all.endpoints = append(all.endpoints, next.endpoints...)
	}
	return all, nil
}

func answerSize() grpc.DialOption {
	return grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes))
}

// DialAs opens the way to coordinators elsewhere, as somebody who logged in.
func DialAs(login enroll.LoginIdentity, addresses []string, now func() time.Time, timeout time.Duration) (*Line,
	error) {
	l := &Line{timeout: timeout, login: &login}
	for _, addr := range addresses {
		conn, err := mesh.Dial(addr, login.Source, credential.AnyOfKind(identity.Coordinator),
			mesh.Options{Now: now, GRPC: []grpc.DialOption{answerSize()}})
		if err != nil {
			l.Close()
			return nil, errcode.Wrap(err, errcode.BadValue, "name", "--coordinator", "value", addr, "problem",
				err.Error())
		}
		l.endpoints = append(l.endpoints, &endpoint{name: addr, conn: conn, close: conn.Close})
	}
	return l, nil
}

// A Line is the way to one of several endpoints: calls try them in turn until one
// answers, beginning with the one that did last. It is a grpc.ClientConnInterface.
type Line struct {
	endpoints []*endpoint
	timeout   time.Duration // of one call
	answered  atomic.Int64  // index of the endpoint that answered last

	login *enroll.LoginIdentity // who asks; nil over a socket
}

// refused gives a certificate that a coordinator did not accept, which it does not
// explain, the words that a person needs: it was valid here when it was loaded.
func (l *Line) refused(err error) error {
	e, ok := errors.AsType[*errcode.Error](err)
	if !ok || e.Code != errcode.PeerRejectedUs || l.login == nil {
		return err
	}
	id := l.login.ID
	return errcode.Wrap(err, errcode.LoginRefused, "endpoint", e.Fields["endpoint"], "identity", id,
		"until", l.login.NotAfter, "member", string(id.Kind())+"/"+id.Name())
}

// inTurn returns the endpoints in the order in which they are asked.
func (l *Line) inTurn() []*endpoint {
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
func (l *Line) Close() {
	for _, e := range l.endpoints {
		e.close()
	}
}

// Invoke runs a unary call on the first endpoint that is reached and can serve it. Its
// errors are worded: a change whose answer was lost is of unknown outcome.
func (l *Line) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	var first error
	var unready *fealtyv1.GetStatusResponse // what one that is not ready says, in case none is
	for i, e := range l.inTurn() {
		sent, err := l.call(ctx, e, method, args, reply, opts)
		if st, ok := reply.(*fealtyv1.GetStatusResponse); ok && err == nil && st.GetPhase() != "ready" &&
			len(l.endpoints) > 1 {
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
func (l *Line) elsewhere(sent, changes bool, err error) bool {
	e := errcode.Of(err)
	return !sent || errors.Is(e, errcode.RecoveryMode) || errors.Is(e, errcode.HeadNotFollowed) ||
		!changes && (errors.Is(e, errcode.Unreachable) || errors.Is(e, errcode.StoreUnreachable))
}

func (l *Line) call(ctx context.Context, e *endpoint, method string, args, reply any,
	opts []grpc.CallOption) (sent bool, err error) {
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
		return false, render.Unreachable(err, e.name, dial)
	}
	return sent, l.refused(render.OverNetwork(err, e.name, shortMethod(method), sent, changes(method, args),
		l.timeout.String()))
}

// NewStream opens a stream on the endpoint that answered last; see firstOf.
func (l *Line) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return l.inTurn()[0].conn.NewStream(ctx, desc, method, opts...)
}

// FirstOf opens a stream that changes nothing, and returns it with its first message:
// from the first endpoint that sends one, each within the time of a call. The caller
// calls end when it is done with the stream.
func FirstOf[T any](ctx context.Context, l *Line, method string,
	open func(context.Context) (grpc.ServerStreamingClient[T], error)) (_ grpc.ServerStreamingClient[T], _ *T,
	end context.CancelFunc, _ error) {
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
		err = l.OfStream(ctx, err, method)
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

// OfStream words what ended a stream of the endpoint that answered last.
func (l *Line) OfStream(ctx context.Context, err error, method string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e := l.inTurn()[0]
	if dial := e.lastFailure(); dial != nil {
		return render.Unreachable(err, e.name, dial)
	}
	if e, ok := errcode.FromStatus(err); ok {
		return e // the other side says what happened
	}
	return l.refused(render.OverNetwork(err, e.name, method, true, false, l.timeout.String()))
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
