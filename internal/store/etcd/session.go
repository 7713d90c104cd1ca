package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/store"
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
	address address
	timeout time.Duration

	mu      sync.Mutex
	current *session // nil until it is needed; guarded by mu
	next    int      // index of the endpoint to try; guarded by mu
	closed  bool     // guarded by mu
}

// session returns the current one, or makes one with the next member.
func (d *dialer) session(ctx context.Context) (*session, error) {
	d.mu.Lock()
	x, endpoint, closed := d.current, d.address.endpoints[d.next%len(d.address.endpoints)], d.closed
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
		if d.address.endpoints[d.next%len(d.address.endpoints)] == endpoint {
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
	text   string
	secure bool
}

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{rpctypes.TokenFieldNameGRPC: t.text}, nil
}

func (t token) RequireTransportSecurity() bool { return t.secure }

// maxAnswer bounds what one answer of a server may hold: a page of records, each
// of at most maxRequest.
const maxAnswer = 96 << 20

func (d *dialer) dial(ctx context.Context, endpoint string) (*session, error) {
	creds := insecure.NewCredentials()
	config, err := d.address.tlsConfig(endpoint)
	if err != nil {
		return nil, err
	}
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: d.timeout}),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	}
	target := "passthrough:///" + endpoint
	if d.address.user != "" {
		text, err := d.login(ctx, target, options)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithPerRPCCredentials(token{text, config != nil}))
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, err
	}
	return &session{
		endpoint, d.timeout, conn,
		pb.NewKVClient(conn), pb.NewLeaseClient(conn), pb.NewWatchClient(conn), pb.NewMaintenanceClient(conn),
	}, nil
}

// login returns a token for the user. A server forgets it after minutes without
// use; then the session is given up, and the next one logs in again.
func (d *dialer) login(ctx context.Context, target string, options []grpc.DialOption) (string, error) {
	password, err := d.address.password()
	if err != nil {
		return "", err
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	user := &pb.AuthenticateRequest{Name: d.address.user, Password: password}
	answer, err := pb.NewAuthClient(conn).Authenticate(ctx, user)
	if err != nil {
		return "", err
	}
	return answer.Token, nil
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
	_, login := errors.AsType[*LoginError](err)
	_, server := errors.AsType[*ServerError](err)
	address, files := errors.AsType[*AddressError](err)
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
	case files: // what the URL names cannot be read any more
		o, err = store.LoginRefused, fmt.Errorf("log in to etcd: %w", address)
	default:
		return err
	}
	if st, ok := status.FromError(err); ok {
		return store.NewOutage(o, st.Message(), err, d.secrets()...)
	}
	return store.NewOutage(o, err.Error(), err, d.secrets()...)
}

// secrets returns what nobody may be told.
func (d *dialer) secrets() []string {
	if d.address.user == "" {
		return nil
	}
	password, err := d.address.password()
	if err != nil {
		return nil
	}
	return []string{password}
}

// ask calls f with a session until it gets an answer: f only reads, or does what
// may be done twice. Each member gets at least one try. Its errors are outages where that is known.
func (d *dialer) ask(ctx context.Context, f func(context.Context, *session) error) error {
	return d.outage(d.tryEach(ctx, f))
}

func (d *dialer) tryEach(ctx context.Context, f func(context.Context, *session) error) error {
	var last error
	moved, closed := 0, 0
	for tries := 0; tries <= len(d.address.endpoints); tries++ {
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
