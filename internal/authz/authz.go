// Package authz decides which role may call which method of the API.
//
// Every method declares its callers in the .proto file, with the option of
// authorization.proto. A [Table] is read from these options when a server starts;
// a method that declares nothing stops it (I3). An [Authorizer] enforces the table
// in front of every handler:
//
//   - no handler runs for a caller that the method's rule does not admit;
//   - no message reaches a handler if the field that names the caller holds
//     another name than the caller's certificate (I2), on streams neither;
//   - a method without a rule is refused, whoever calls;
//   - a refusal is logged, counted, and told without a hint of what exists.
//
// Pure functions (decide.go) say what a rule means. The package relies on an
// interceptor before it that puts the verified [identity.Peer] into the context,
// and refuses the peers whose certificates ended or are banned; a context without a
// peer is that of a stranger.
package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Bounds on what refusals can cause.
const (
	// maxLogged is how much of a text that a caller chose is logged, in bytes.
	maxLogged = 256
	// For each reason, the first logBurst refusals are logged, and then logPerSecond;
	// all are counted. Each reason has its own share, so that strangers who knock
	// cannot hide who was refused as somebody.
	logPerSecond = 10
	logBurst     = 100
)

// Options says what an Authorizer needs beside its table.
type Options struct {
	// ClusterID returns the id of the cluster that the server serves, or "" while
	// it serves none. It is asked on every call and must not block. Required.
	ClusterID func() string
	// Logger takes the refusals. Nil: slog.Default().
	Logger *slog.Logger
	// Registerer takes the counter fealty_authz_denied_total. Nil: it is counted,
	// and shown nowhere. Several authorizers may share one.
	Registerer prometheus.Registerer
	// Consumer reports whether the settings name a local process as a consumer. Nil:
	// there are none.
	Consumer func(identity.Local) bool
	// Now is the clock that limits logging. Nil: time.Now.
	Now func() time.Time
}

// Authorizer enforces a table.
type Authorizer struct {
	table  *Table
	opts   Options
	uid    uint32
	denied *prometheus.CounterVec
	logs   map[Reason]*logShare // never changes
}

// logShare limits the log lines of one reason.
type logShare struct {
	limit      *rate.Limiter
	suppressed atomic.Int64 // since the last line
}

// New returns an authorizer for table, which it requires. Local callers pass as
// the process's effective user, or as root.
func New(table *Table, opts Options) (*Authorizer, error) {
	if table == nil || len(table.rules) == 0 {
		return nil, errors.New("authz: a table without methods: it would refuse every call")
	}
	if opts.ClusterID == nil {
		return nil, errors.New("authz: Options.ClusterID is missing: identities of any cluster would look alike")
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	a := &Authorizer{
		table: table,
		opts:  opts,
		uid:   uint32(os.Geteuid()),
		denied: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_authz_denied_total",
			Help: "Calls that were refused, by method and by reason.",
		}, []string{"method", "reason"}),
		logs: make(map[Reason]*logShare),
	}
	for _, r := range Reasons() {
		a.logs[r] = &logShare{limit: rate.NewLimiter(logPerSecond, logBurst)}
	}
	if opts.Registerer != nil {
		if err := opts.Registerer.Register(a.denied); err != nil {
			already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err)
			if !ok {
				return nil, fmt.Errorf("authz: register the counter of refusals: %w", err)
			}
			a.denied, ok = already.ExistingCollector.(*prometheus.CounterVec)
			if !ok {
				return nil, fmt.Errorf("authz: register the counter of refusals: %w", err)
			}
		}
	}
	return a, nil
}

// Table returns the table that is enforced.
func (a *Authorizer) Table() *Table { return a.table }

func (a *Authorizer) self() Self {
	return Self{Cluster: a.opts.ClusterID(), UID: a.uid, Consumer: a.opts.Consumer}
}

// Unary returns the interceptor of unary calls.
func (a *Authorizer) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		c, err := a.admit(ctx, info.FullMethod, req)
		if err != nil {
			return nil, err
		}
		if err := c.message(ctx, req); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

// Stream returns the interceptor of streaming calls.
func (a *Authorizer) Stream() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		s, err := a.bind(stream, info.FullMethod)
		if err != nil {
			return err
		}
		if s == nil {
			return handler(srv, stream)
		}
		defer s.cancel()
		err = handler(srv, s)
		// A handler that swallows the refusal must not make the call a success.
		if refused := s.refused.Load(); refused != nil {
			return *refused
		}
		return err
	}
}

// bind admits a streaming call, and returns its stream as the handler is to have it, or nil if its
// messages name nobody. It is no part of [Authorizer.Stream], whose frame stands on a stack for as long
// as the stream does.
func (a *Authorizer) bind(stream grpc.ServerStream, method string) (*boundStream, error) {
	c, err := a.admit(stream.Context(), method, nil)
	if err != nil || !c.bound {
		return nil, err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	return &boundStream{ServerStream: stream, ctx: ctx, cancel: cancel, call: c}, nil
}

// Admits decides on the caller of method alone, for a server that does so before
// it reads the request. The interceptors decide again, and on what it says.
func (a *Authorizer) Admits(ctx context.Context, method string) error {
	_, err := a.admit(ctx, method, nil)
	return err
}

// UnknownService handles the calls of methods that no service has: they are
// refused, logged and counted. Give it to the server with
// grpc.UnknownServiceHandler; without it gRPC answers Unimplemented by itself.
func (a *Authorizer) UnknownService(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	ctx := stream.Context()
	return a.refuse(ctx, call{method: method, peer: identity.FromContext(ctx)}, UnknownMethod, "")
}

// call is one call whose caller was admitted.
type call struct {
	a      *Authorizer
	method string
	rule   Rule
	peer   identity.Peer
	bound  bool // each message must name the caller
}

// admit decides on all but the messages. req is the request if it is there
// already, and nil otherwise: a refusal logs the name in it.
func (a *Authorizer) admit(ctx context.Context, method string, req any) (call, error) {
	self := a.self()
	c := call{a: a, method: method, peer: identity.FromContext(ctx)}
	rule, ok := a.table.rule(method)
	if !ok {
		return call{}, a.refuse(ctx, c, UnknownMethod, "")
	}
	c.rule, c.bound = rule, bound(rule, self, c.peer)
	if d := decideCaller(rule, self, c.peer); !d.Allowed {
		asserted, _ := c.asserted(req)
		return call{}, a.refuse(ctx, c, d.Reason, asserted)
	}
	return c, nil
}

// message decides on one message.
func (c *call) message(ctx context.Context, m any) error {
	if !c.bound {
		return nil
	}
	asserted, ok := c.asserted(m)
	if !ok {
		return errcode.Wrap(fmt.Errorf("a message of type %T came for %s", m, c.method), errcode.Internal, "what", clip(c.method))
	}
	if d := decideName(c.peer, asserted); !d.Allowed {
		return c.a.refuse(ctx, *c, d.Reason, asserted)
	}
	return nil
}

// asserted returns the name in a message, and false for one that is not of the
// method's type.
func (c *call) asserted(m any) (string, bool) {
	msg, ok := m.(proto.Message)
	if !ok {
		return "", false
	}
	r := msg.ProtoReflect()
	field := r.Descriptor().Fields().ByName(protoreflect.Name(c.rule.Bind))
	if r.Descriptor().FullName() != c.rule.request || field == nil || field.Kind() != protoreflect.StringKind || field.IsList() {
		return "", false
	}
	return r.Get(field).String(), true
}

// boundStream lets only those messages through that name the caller.
type boundStream struct {
	grpc.ServerStream
	ctx     context.Context // ends with the stream, and when a message is refused
	cancel  context.CancelFunc
	call    call
	named   atomic.Bool           // a message was let through
	refused atomic.Pointer[error] // the refusal that ended the stream
}

func (s *boundStream) Context() context.Context { return s.ctx }

func (s *boundStream) RecvMsg(m any) error {
	if refused := s.refused.Load(); refused != nil {
		return *refused
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if err := s.call.message(s.ctx, m); err != nil {
		if msg, ok := m.(proto.Message); ok {
			proto.Reset(msg) // nothing of it stays with the handler
		}
		s.refused.CompareAndSwap(nil, &err)
		s.cancel() // a handler may be waiting for something else
		return err
	}
	s.named.Store(true)
	return nil
}

// SendMsg sends nothing before the caller named itself, and nothing after it
// named another.
func (s *boundStream) SendMsg(m any) error {
	if refused := s.refused.Load(); refused != nil {
		return *refused
	}
	if !s.named.Load() {
		return errcode.Wrap(fmt.Errorf("the handler of %s answers before its caller named itself", s.call.method), errcode.Internal, "what", clip(s.call.method))
	}
	return s.ServerStream.SendMsg(m)
}

// refuse logs and counts a refusal, and returns what the caller is told.
func (a *Authorizer) refuse(ctx context.Context, c call, reason Reason, asserted string) error {
	label := c.method
	if _, ok := a.table.rule(c.method); !ok {
		label = "unknown" // what a caller makes up must not become a time series
	}
	a.denied.WithLabelValues(label, string(reason)).Inc()
	share := a.logs[reason]
	if share.limit.AllowN(a.opts.Now(), 1) {
		attrs := []slog.Attr{
			slog.String("method", clip(c.method)),
			slog.String("reason", string(reason)),
			slog.String("asserted", clip(asserted)),
			slog.Any("peer", c.peer),
		}
		if n := share.suppressed.Swap(0); n > 0 {
			attrs = append(attrs, slog.Int64("not_logged", n))
		}
		a.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "call refused", attrs...)
	} else {
		share.suppressed.Add(1)
	}
	return refusal(c, reason, asserted)
}

// refusal words a refusal for its caller: from what the caller showed and said,
// and from the public table, never from what the server holds.
func refusal(c call, reason Reason, asserted string) error {
	method := clip(c.method)
	who := "the caller"
	switch {
	case !c.peer.ID.IsZero():
		who = c.peer.ID.String()
	case c.peer.Local != nil:
		who = fmt.Sprintf("local user %d", c.peer.Local.UID)
	}
	denied := func(why string) error {
		return errcode.New(errcode.Denied, "method", method, "identity", who, "reason", why, "denied", string(reason))
	}
	switch reason {
	case Unauthenticated:
		return errcode.New(errcode.Unauthenticated, "method", method, "denied", string(reason))
	case Unidentified:
		return errcode.New(errcode.CallerNoIdentity, "method", method, "denied", string(reason))
	case NotItsName:
		if asserted == "" {
			asserted = "nobody"
		}
		return errcode.New(errcode.CallerMismatch, "method", method, "asserted", clip(asserted), "identity", who, "denied", string(reason))
	case OtherCluster:
		return denied("the caller's identity is one of another cluster")
	case NotLocal:
		return denied("the method is not served on the local socket")
	case OtherUser:
		return denied("on the local socket it is served to the server's own user and to root")
	case UnknownMethod:
		return denied("it is not a method of this server")
	}
	return denied("the method is for other kinds of caller")
}

// clip bounds a text that a caller chose.
func clip(s string) string {
	if len(s) <= maxLogged {
		return s
	}
	return strings.ToValidUTF8(s[:maxLogged], "") + "…"
}
