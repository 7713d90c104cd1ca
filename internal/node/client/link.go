package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/mesh"
)

// attempt is how long one coordinator is waited for: one that was cut off says nothing.
const attempt = 5 * time.Second

// maxResponse bounds an answer, in bytes: that of PollAssignments for 500 domains.
const maxResponse = 4 << 20

// ErrNobody is matched when no coordinator is known, or none answered.
var ErrNobody = errors.New("no coordinator answers")

// LinkConfig is what a link needs. All of it is required.
type LinkConfig struct {
	Source credential.Source
	// Addresses returns where coordinators are now, as host:port.
	Addresses func() []string
	// Log is told which coordinators do not prove what they have to, and why. It is the log of the process: without
	// it that line would be in another form than the others.
	Log *slog.Logger
}

// Link makes unary calls at one coordinator, and goes on to the next one when it does not
// answer. It is a [grpc.ClientConnInterface], and may be used by several goroutines.
type Link struct {
	cfg LinkConfig

	mu     sync.Mutex
	at     string     // guarded by mu
	conn   *mesh.Conn // to at; nil before the first call; guarded by mu
	pool   *mesh.Pool // has conn alone: closing it ends the calls of one that says nothing; guarded by mu
	closed bool       // guarded by mu
}

// New returns a link. It connects with the first call; close it when done.
func New(cfg LinkConfig) *Link { return &Link{cfg: cfg} }

// Close ends all calls.
func (l *Link) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.pool == nil {
		return nil
	}
	return l.pool.Close()
}

// Invoke calls a method at the coordinator that answered last, and at each other one once
// while the call finds none. Another one is asked when one is unavailable, or says nothing for
// five seconds: a call may then be made twice. When none answers the error matches [ErrNobody].
func (l *Link) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	tried := make(map[string]bool)
	var last error
	for {
		conn, at, err := l.next(tried)
		if older(last) && err != nil {
			return last // and so are all of them
		}
		if err != nil {
			return nobody(errors.Join(err, last))
		}
		tried[at] = true
		limited, cancel := context.WithTimeout(ctx, attempt)
		last = conn.Invoke(limited, method, args, reply, opts...)
		silent := limited.Err() != nil
		cancel()
		// Canceled, and not by who calls: another call left this coordinator.
		code := status.Code(last)
		again := code == codes.Unavailable || code == codes.Canceled || silent || older(last)
		if last == nil || ctx.Err() != nil || !again {
			return last
		}
	}
}

// older reports whether a coordinator does not know the method, as one of an earlier release: in
// the middle of an upgrade the next one may.
func older(err error) bool {
	e, ok := errcode.FromStatus(err)
	return ok && e.Code == errcode.Denied && e.Fields["denied"] == string(authz.UnknownMethod)
}

// NewStream is not for links: nothing that is asked over one is a stream.
func (l *Link) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "client: a link makes unary calls alone")
}

// next returns the connection to use: that of now, unless it was tried, and then that to an
// address which was not.
func (l *Link) next(tried map[string]bool) (*mesh.Conn, string, error) {
	known := l.cfg.Addresses()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, "", mesh.ErrClosed
	}
	if l.conn != nil && !tried[l.at] && slices.Contains(known, l.at) {
		return l.conn, l.at, nil
	}
	for _, address := range known {
		if tried[address] {
			continue
		}
		pool := &mesh.Pool{Options: mesh.Options{Log: l.cfg.Log, GRPC: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse))}}}
		conn, err := pool.Dial("passthrough:///"+address, l.cfg.Source, credential.AnyOfKind(identity.Coordinator))
		if err != nil {
			return nil, "", err
		}
		if l.pool != nil {
			l.pool.Close() // calls under way on it are made again: it did not answer, or is an older one
		}
		l.conn, l.pool, l.at = conn, pool, address
		return conn, address, nil
	}
	return nil, "", fmt.Errorf("%d are known", len(known))
}

// nobodyError is unavailable to whoever asks for a code.
type nobodyError struct{ err error }

func nobody(err error) error { return &nobodyError{err} }

func (e *nobodyError) Error() string        { return fmt.Sprintf("client: %v: %v", ErrNobody, e.err) }
func (e *nobodyError) Unwrap() error        { return e.err }
func (e *nobodyError) Is(target error) bool { return target == ErrNobody }

// GRPCStatus is that of a call that found nobody.
func (e *nobodyError) GRPCStatus() *status.Status { return status.New(codes.Unavailable, e.Error()) }
