package etcd

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// Answers of a server, by their words.
var (
	errAuthFailed       = rpctypes.ErrGRPCAuthFailed
	errUserEmpty        = rpctypes.ErrGRPCUserEmpty
	errInvalidToken     = rpctypes.ErrGRPCInvalidAuthToken
	errOldAuth          = rpctypes.ErrGRPCAuthOldRevision
	errAuthNotEnabled   = rpctypes.ErrGRPCAuthNotEnabled
	errPermissionDenied = rpctypes.ErrGRPCPermissionDenied
	errTooManyOps       = rpctypes.ErrGRPCTooManyOps
	errTooLarge         = rpctypes.ErrGRPCRequestTooLarge
	errTooMany          = rpctypes.ErrGRPCRequestTooManyRequests
	errNoSpace          = rpctypes.ErrGRPCNoSpace
	errCompacted        = rpctypes.ErrGRPCCompacted
	errCorrupt          = rpctypes.ErrGRPCCorrupt
)

// isAnswer reports whether err is this answer of a server.
func isAnswer(err, answer error) bool {
	a, ok := status.FromError(err)
	return ok && a.Message() == status.Convert(answer).Message()
}

// session is a connection to one member.
type session struct {
	endpoint    string
	timeout     time.Duration
	conn        *grpc.ClientConn
	kv          pb.KVClient
	lease       pb.LeaseClient
	watch       pb.WatchClient
	maintenance pb.MaintenanceClient
}

// txn makes a transaction, or a number of reads at one moment.
func (x *session) txn(ctx context.Context, request *pb.TxnRequest) (*pb.TxnResponse, error) {
	return call(ctx, x, func(ctx context.Context) (*pb.TxnResponse, error) { return x.kv.Txn(ctx, request) })
}

// call waits for one answer, and no longer than that may take.
func call[A any](ctx context.Context, x *session, f func(context.Context) (A, error)) (A, error) {
	within, cancel := context.WithTimeout(ctx, x.timeout)
	defer cancel()
	a, err := f(within)
	if err != nil && ctx.Err() == nil && within.Err() != nil && status.Code(err) == codes.DeadlineExceeded {
		err = status.Errorf(codes.Unavailable, "%s did not answer within %v", x.endpoint, x.timeout)
	}
	return a, err
}

// dialer hands out one session to all, and another one to the next member when
// it is given up. One connection at a time, chosen here: a balancer over all
// members goes on asking one that swallows what it is asked.
type dialer struct {
	login     *login
	endpoints []string // those of the URL, or one of them
	timeout   time.Duration
	known     func() string // Options.Known

	mu      sync.Mutex
	current *session // nil until it is needed; guarded by mu
	next    int      // index of the endpoint to try; guarded by mu
	closed  bool     // guarded by mu
}

func newDialer(l *login, endpoints []string, timeout time.Duration) *dialer {
	return &dialer{login: l, endpoints: endpoints, timeout: timeout}
}

// session returns the current one, or makes one with the next member.
func (d *dialer) session(ctx context.Context) (*session, error) {
	d.mu.Lock()
	x, endpoint, closed := d.current, d.endpoints[d.next%len(d.endpoints)], d.closed
	d.mu.Unlock()
	if x != nil {
		return x, nil
	}
	if closed {
		return nil, errors.New("no more connections are made")
	}
	x, err := d.dial(ctx, endpoint)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err != nil:
		if d.endpoints[d.next%len(d.endpoints)] == endpoint {
			d.next++
		}
		return nil, err
	case d.closed:
		x.conn.Close()
		return nil, errors.New("no more connections are made")
	case d.current != nil: // someone else was faster
		x.conn.Close()
		return d.current, nil
	}
	d.current = x
	return x, nil
}

// giveUp ends x: calls on it fail, and who comes next gets another member.
func (d *dialer) giveUp(x *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current != x {
		return
	}
	d.current = nil
	d.next++
	x.conn.Close()
}

// close ends the current session, and allows no other.
func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.current != nil {
		d.current.conn.Close()
		d.current = nil
	}
}

// token shows a server who calls.
type token struct {
	text   string // "" until somebody logged in; then it stays
	secure bool
}

func (t *token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if t.text == "" {
		return nil, nil
	}
	return map[string]string{rpctypes.TokenFieldNameGRPC: t.text}, nil
}

func (t *token) RequireTransportSecurity() bool { return t.secure }

// maxAnswer bounds what one answer of a server may hold: a page of records, each
// of at most maxRequest.
const maxAnswer = 96 << 20

// dial connects to a member and logs in, with what the files hold now. If that is refused, it tries what
// was let in before.
func (d *dialer) dial(ctx context.Context, endpoint string) (*session, error) {
	m := d.login.now()
	for tries := 1; ; tries++ {
		x, err := d.dialWith(ctx, endpoint, m)
		if err == nil {
			d.login.letIn(m.credential)
			return x, nil
		}
		next, ok := d.login.instead(m, err)
		if !ok || tries == trying || ctx.Err() != nil {
			return nil, err
		}
		m = next
	}
}

func (d *dialer) dialWith(ctx context.Context, endpoint string, m material) (_ *session, err error) {
	config, err := d.login.tlsConfig(endpoint, m)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	made := &connection{TransportCredentials: creds, network: "tcp"}
	var named grpc.DialOption = grpc.EmptyDialOption{} // by the certificate, or by the address
	if d.login.address.socket {
		made.network, named = "unix", grpc.WithAuthority("localhost") // a path is no name
	}
	t := &token{secure: config != nil}
	conn, err := grpc.NewClient("passthrough:///"+endpoint, named,
		grpc.WithTransportCredentials(made), grpc.WithContextDialer(made.dial), grpc.WithPerRPCCredentials(t),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: d.timeout}),
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	within, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if err := made.ready(within, conn); err != nil {
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case within.Err() != nil:
			return nil, status.Errorf(codes.Unavailable, "%s did not answer within %v", endpoint, d.timeout)
		}
		return nil, notMade(err, config != nil)
	}
	x := &session{
		endpoint, d.timeout, conn,
		pb.NewKVClient(conn), pb.NewLeaseClient(conn), pb.NewWatchClient(conn), pb.NewMaintenanceClient(conn),
	}
	if user := d.login.address.user; user != "" {
		// A server forgets it after minutes without use, and when the password is replaced; then the session is given up,
		// and the next one logs in again.
		answer, err := call(ctx, x, func(ctx context.Context) (*pb.AuthenticateResponse, error) {
			return pb.NewAuthClient(conn).Authenticate(ctx, &pb.AuthenticateRequest{Name: user, Password: m.password})
		})
		if err != nil {
			return nil, err
		}
		t.text = answer.Token
	}
	return x, nil
}

// connection is the one connection of a session. gRPC would make the next one with what it got for the first; so
// it gets none, the session is given up, and another one reads the files again.
type connection struct {
	credentials.TransportCredentials
	network string // of net.Dial

	mu     sync.Mutex
	dialed bool  // guarded by mu
	err    error // the first; guarded by mu
}

var errEnded = errors.New("the connection to etcd has ended")

// failed notes why it was not made, or ended.
func (c *connection) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

func (c *connection) dial(ctx context.Context, address string) (net.Conn, error) {
	c.mu.Lock()
	again := c.dialed
	c.dialed = true
	c.mu.Unlock()
	if again {
		return nil, errEnded
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, c.network, address)
	if err != nil {
		c.failed(err)
	}
	return conn, err
}

func (c *connection) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		c.failed(err)
		return conn, info, err
	}
	return &noted{conn, c}, info, nil
}

// Clone is of no use to a connection that is made once.
func (c *connection) Clone() credentials.TransportCredentials { return c }

// noted notes why it ended: what a server says of a certificate may come after the handshake.
type noted struct {
	net.Conn
	c *connection
}

func (n *noted) Read(b []byte) (int, error) {
	read, err := n.Conn.Read(b)
	if err != nil {
		n.c.failed(err)
	}
	return read, err
}

// ready waits until the server has answered, and returns why it did not: ctx's error, or that of the connection.
func (c *connection) ready(ctx context.Context, conn *grpc.ClientConn) error {
	conn.Connect()
	begun := false
	for {
		state := conn.GetState()
		switch {
		case state == connectivity.Ready:
			return nil
		case state == connectivity.TransientFailure, state == connectivity.Shutdown, state == connectivity.Idle && begun:
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.err == nil {
				return errors.New("it does not speak as etcd does (is TLS on there, and does the URL say tls=off?)")
			}
			return c.err
		}
		begun = begun || state == connectivity.Connecting
		if !conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
}

// unreachableError: no member answered.
type unreachableError struct{ err error }

func (e *unreachableError) Error() string { return "no etcd server answers: " + plain(e.err) }
func (e *unreachableError) Unwrap() error { return e.err }

// plain returns err's own words, without gRPC's frame around them.
func plain(err error) string {
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

// elsewhere reports whether another member, or a new session, may do better.
func elsewhere(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled,
		codes.Unauthenticated, codes.Internal, codes.Unknown:
		return !isAnswer(err, errCorrupt)
	case codes.FailedPrecondition: // a learner, say
		return !isAnswer(err, errAuthNotEnabled)
	}
	return isAnswer(err, errOldAuth)
}

// outage returns err as a [store.OutageError], with the words of the servers, if it is known why they did
// not do what was asked; err itself if not.
func (d *dialer) outage(err error) error {
	if err == nil || errors.Is(err, store.ErrUnknownOutcome) || errors.Is(err, context.Canceled) {
		return err
	}
	o := store.Outage(0)
	_, unreachable := errors.AsType[*unreachableError](err)
	_, login := errors.AsType[*engine.LoginError](err)
	_, server := errors.AsType[*engine.ServerError](err)
	switch {
	case login:
		o = store.LoginRefused
	case server:
		o = store.Unsuitable
	case isAnswer(err, errTooMany):
		o = store.Overloaded
	case errors.Is(err, context.DeadlineExceeded): // the caller's: there are none of our own
		return err
	case unreachable, status.Code(err) == codes.Unavailable:
		o = store.Unreachable
	default:
		return err
	}
	said := err.Error()
	if st, ok := status.FromError(err); ok {
		said = st.Message()
	}
	if problem := d.login.problem(); problem != nil && (o == store.LoginRefused || o == store.Unreachable) {
		said += "; " + problem.Error()
	}
	if d.known != nil && o == store.Unreachable {
		if why := d.known(); why != "" {
			said = why
		}
	}
	return store.NewOutage(o, said, err, d.login.secrets()...)
}

// ask calls f with a session until it gets an answer: f only reads, or does what
// may be done twice. Each member gets at least one try. Its errors are outages where that is known.
func (d *dialer) ask(ctx context.Context, f func(context.Context, *session) error) error {
	return d.outage(d.tryEach(ctx, f))
}

func (d *dialer) tryEach(ctx context.Context, f func(context.Context, *session) error) error {
	var last error
	moved, closed := 0, 0
	for tries := 0; tries <= len(d.endpoints); tries++ {
		x, err := d.session(ctx)
		if err == nil {
			if err = f(ctx, x); err == nil {
				return nil
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, answered := status.FromError(err); !answered {
			return err // of our own
		}
		last = err
		switch {
		case isAnswer(err, errCompacted) && moved < maxMoved:
			// Someone compacted between two reads at one revision.
			moved++
			tries--
		case !elsewhere(err):
			return typed(err)
		case x != nil && status.Code(err) == codes.Canceled && closed < maxMoved:
			// Someone else gave the session up: that says nothing about the next.
			closed++
			tries--
			d.giveUp(x)
		case x != nil:
			d.giveUp(x)
		}
	}
	if t := typed(last); t != last {
		return t
	}
	return &unreachableError{last}
}

// maxMoved is how often a read begins anew because what it read was compacted
// meanwhile, or its connection closed by somebody else.
const maxMoved = 3

// withLeader makes a server end a watch when it loses its leader, as a member
// does that is cut off from the others: it would be silent for ever.
func withLeader(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
}
