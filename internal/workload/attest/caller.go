// Package attest identifies the process that calls on a local socket, by its user and group
// (caller.go) and by what /proc says of it (process_linux.go), and tells which workloads it is.
//
// A connection is held to the process that opened it. The kernel is asked about it at every call,
// and again before everything that a stream sends: a process that ended, or became another program,
// gets nothing more, whoever else holds its connection.
//
// User and group are those of the moment of connecting, and cannot be forged. The rest is read from
// /proc, of the very process that connected: a handle on it (pidfd_open(2)) tells when it has
// ended, so that a number that another process took over is noticed. Programs of one user can trace
// each other, so that a path tells them apart by mistake only, and not under attack: see
// docs/explanation/workloads.md.
package attest

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/workload"
)

// Limits of the socket.
const (
	// MaxConnections are open at a time, and MaxUserConnections of one user: fewer where the
	// process may have few files open, of which each takes two, and half are for others.
	MaxConnections     = 8192
	MaxUserConnections = 4096
	// MaxStreams are the calls under way on one connection.
	MaxStreams = 128
	// MaxUserCalls are the calls under way of one user, on all of its connections.
	MaxUserCalls = 16384
	// MaxMessage bounds what a caller sends at a time, in bytes.
	MaxMessage = 64 << 10
)

// IDFault says why text, which a caller asks for, is no SPIFFE ID; nil: it is one. It tells of the text alone,
// so that who sent it may hear it: a well-formed id of somebody else is another matter.
func IDFault(text string) error {
	const most = 2048 // bytes: SPIFFE-ID, section 2.3
	if len(text) > most {
		return fmt.Errorf("an id of %d bytes, at most %d are possible (SPIFFE-ID, section 2.3)", len(text), most)
	}
	if _, err := spiffeid.FromString(text); err != nil {
		return fmt.Errorf("%.128q is no SPIFFE ID: %w", text, err)
	}
	return nil
}

// Set is what is registered on a node. It is immutable.
type Set struct {
	Registrations []workload.Registration
	looks         workload.Want    // what one of them looks at
	ofUser        map[uint32][]int // those that are of one user alone, by their place, sorted
	ofUsers       []int            // the others
}

// NewSet returns the set of registrations, which it keeps.
func NewSet(registrations []workload.Registration) *Set {
	s := &Set{Registrations: registrations, ofUser: make(map[uint32][]int, len(registrations))}
	for i := range registrations {
		r := &registrations[i].Selector
		if r.UID != nil {
			s.ofUser[*r.UID] = append(s.ofUser[*r.UID], i)
		} else {
			s.ofUsers = append(s.ofUsers, i)
		}
		s.looks = s.looks.Or(r.Looks())
	}
	return s
}

// Roots are what certificates of the cluster are verified by. They are immutable.
type Roots struct {
	Cluster      string
	Certificates []*x509.Certificate
}

// Source is what a node knows of its workloads. It may be asked concurrently.
type Source interface {
	// Set is what is registered now; nil: nothing may be used of it.
	Set() *Set
	// SVID certifies a workload, in date. The error says why it has none yet.
	SVID(identity.ID) (*dir.SVID, error)
	// Issued returns a channel that is closed when SVID may answer otherwise, for whichever workload:
	// while it is the same, what SVID answered is known.
	Issued() <-chan struct{}
	// Roots are those of the trust bundle in use. The same roots are the same pointer.
	Roots() *Roots
	// Changed returns a channel that is closed when one of the others may answer otherwise.
	Changed() <-chan struct{}
}

// Reasons why a caller gets nothing: labels of a metric.
const (
	ReasonCrowded      = "too_many"
	ReasonHeader       = "no_header"
	ReasonGone         = "process_gone"
	ReasonOther        = "other_program"
	ReasonUnregistered = "unregistered"
	ReasonPending      = "not_certified"
	ReasonRequest      = "bad_request"
)

// Config is what Callers are made of. All fields are required.
type Config struct {
	Source Source
	Log    *slog.Logger
	// Refused counts a refusal by its reason.
	Refused func(reason string)
}

// Callers tell who calls. They are the transport credentials of a server on a unix socket. Make
// them with [NewCallers].
type Callers struct {
	cfg    Config
	hashes Hashes
	log    *ratelimit.LogSampler

	most, mostOfUser int // connections

	mu     sync.Mutex
	taken  map[uint32]int           // open connections by user; guarded by mu
	calls  map[uint32]int           // calls under way by user; guarded by mu
	open   map[*connection]struct{} // guarded by mu
	closed bool                     // guarded by mu
}

// NewCallers returns Callers of cfg.Source.
func NewCallers(cfg Config) *Callers {
	c := &Callers{cfg: cfg, log: ratelimit.NewLogSampler(), taken: make(map[uint32]int), calls: make(map[uint32]int),
		open: make(map[*connection]struct{}), most: MaxConnections}
	if files := MaxFiles(); files > 0 {
		c.most = min(c.most, max(files/4, 2))
	}
	c.mostOfUser = min(MaxUserConnections, c.most/2)
	return c
}

// Close closes all connections, and those that come later. A server waits for one that says
// nothing when it stops.
func (c *Callers) Close() {
	c.mu.Lock()
	open := slices.Collect(maps.Keys(c.open))
	c.closed = true
	c.mu.Unlock()
	for _, conn := range open {
		conn.Close()
	}
}

// Source is what they were made with.
func (c *Callers) Source() Source { return c.cfg.Source }

// info is what is known of a connection.
type info struct {
	credentials.CommonAuthInfo
	process *Process
}

// AuthType names how a caller is known.
func (info) AuthType() string { return "local-process" }

// connection gives the process and its place back when it closes.
type connection struct {
	net.Conn
	process *Process
	close   func() error
}

func (c *connection) Close() error { return errors.Join(c.Conn.Close(), c.close()) }

// ServerHandshake shakes no hands: the kernel says who is on the other end.
func (c *Callers) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	p, err := OpenProcess(raw, &c.hashes)
	if err != nil {
		c.refuse(ReasonGone, 0, err)
		raw.Close()
		return nil, nil, err
	}
	conn := &connection{Conn: raw, process: p}
	conn.close = sync.OnceValue(func() error {
		c.free(conn)
		return p.Close()
	})
	if err := c.take(conn); err != nil {
		c.refuse(ReasonCrowded, p.PID(), err)
		raw.Close()
		p.Close()
		return nil, nil, err
	}
	return conn, info{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, process: p,
	}, nil
}

func (c *Callers) take(conn *connection) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	uid := conn.process.UID()
	if c.closed {
		return errors.New("attest: the agent is stopping")
	}
	if len(c.open) >= c.most || c.taken[uid] >= c.mostOfUser {
		return fmt.Errorf("attest: %d connections are open, %d of user %d; at most %d and %d may be", len(c.open),
			c.taken[uid], uid, c.most, c.mostOfUser)
	}
	c.open[conn] = struct{}{}
	c.taken[uid]++
	return nil
}

// Begin counts a call of a stream or an answer that is under way, and returns what ends it. A user
// has at most [MaxUserCalls], over all of its connections.
func (c *Callers) Begin(ctx context.Context) (end func(), err error) {
	p, err := processOf(ctx)
	if err != nil {
		return nil, err
	}
	uid := p.UID()
	if !c.enter(uid) {
		err := status.Errorf(codes.ResourceExhausted, "user %d has %d calls under way, and that is the limit", uid,
			MaxUserCalls)
		c.refuse(ReasonCrowded, p.PID(), err)
		return nil, err
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.calls[uid]--; c.calls[uid] == 0 {
			delete(c.calls, uid)
		}
	}, nil
}

func (c *Callers) enter(uid uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[uid] >= MaxUserCalls {
		return false
	}
	c.calls[uid]++
	return true
}

var errNobody = status.Error(codes.Unauthenticated, "nobody is known on this connection")

func (c *Callers) free(conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
	uid := conn.process.UID()
	if c.taken[uid]--; c.taken[uid] == 0 {
		delete(c.taken, uid)
	}
}

// ClientHandshake refuses: these are a server's.
func (c *Callers) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("attest: these credentials are for a server")
}

// Info says that nothing is encrypted, as nothing leaves the kernel.
func (c *Callers) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "local"}
}

// Clone returns c, which holds nothing that a server changes.
func (c *Callers) Clone() credentials.TransportCredentials { return c }

// OverrideServerName does nothing.
func (c *Callers) OverrideServerName(string) error { return nil }

// Identity is one workload that a caller is, certified.
type Identity struct {
	ID      identity.ID
	Service string // that registers it
	SVID    *dir.SVID
}

// Caller is who calls, as far as it is known now.
type Caller struct {
	Facts workload.Facts
	// IDs are the workloads that it is, each once, sorted; at least one. Services are those that
	// register them, in the same order.
	IDs      []identity.ID
	Services []string

	set *Set // that it was found in
}

// Stands reports whether the caller would be found to be the same in set, whatever the kernel says of
// it now: what is registered for its user is the same. Nothing stands on what could not be read of it. It
// belongs to one goroutine.
func (w *Caller) Stands(set *Set) bool {
	switch {
	case len(w.Facts.Unread) > 0:
		return false
	case set == w.set:
		return true
	case set == nil || !set.alike(w.set, w.Facts.UID):
		return false
	}
	w.set = set // the other one is kept by nobody, and compared no more
	return true
}

// Identify asks the kernel, and returns the caller. The error is for the caller: it says nothing of what is registered.
func (c *Callers) Identify(ctx context.Context) (*Caller, error) {
	set := c.cfg.Source.Set()
	p, err := processOf(ctx)
	if err != nil {
		return nil, err
	}
	want := set.wants(p)
	facts, err := c.facts(ctx, p, want)
	if err == nil && set.wantsHash(facts) {
		// Of those alone whom it could make a workload: nobody else has the agent read a gigabyte.
		want.SHA256 = true
		facts, err = c.facts(ctx, p, want)
	}
	if err != nil {
		return nil, err
	}
	out := &Caller{Facts: facts, set: set}
	if set != nil {
		out.IDs, out.Services = set.Of(facts)
	}
	if len(out.IDs) == 0 {
		if !want.Path { // for people
			if facts, err = c.facts(ctx, p, workload.Want{Path: true}); err != nil {
				return nil, err
			}
		}
		c.refuse(ReasonUnregistered, facts.PID, fmt.Errorf("no service of this node registers it: fealty "+
			"workload test --pid %d says why", facts.PID), slog.Uint64("uid", uint64(facts.UID)),
			slog.String("path", facts.Path))
		// As go-spiffe and others expect it of an agent that has none for them.
		return nil, status.Error(codes.PermissionDenied, "no identity issued")
	}
	return out, nil
}

// wants returns what is looked at of a process first: for a thousand workloads that are users, no
// more than that it is still there.
func (s *Set) wants(p *Process) (want workload.Want) {
	if s == nil || !s.looks.Path && !s.looks.Placed {
		return want
	}
	for r := range s.of(p.UID()) {
		want = r.Adds(want, p.UID(), p.GID())
	}
	return want
}

// of yields what is registered for a user, in its order.
func (s *Set) of(uid uint32) iter.Seq[*workload.Registration] {
	return func(yield func(*workload.Registration) bool) {
		one, all := s.ofUser[uid], s.ofUsers
		for len(one)+len(all) > 0 {
			next := &all
			if len(all) == 0 || len(one) > 0 && one[0] < all[0] {
				next = &one
			}
			if !yield(&s.Registrations[(*next)[0]]) {
				return
			}
			*next = (*next)[1:]
		}
	}
}

// alike reports whether two sets say the same of a user. Each is sorted, so that they do if what is for
// this user alone and what is for any are the same.
func (s *Set) alike(other *Set, uid uint32) bool {
	same := func(mine, theirs []int) bool {
		return slices.EqualFunc(mine, theirs, func(i, j int) bool {
			r, o := &s.Registrations[i], &other.Registrations[j]
			return r.ID == o.ID && r.Service == o.Service && r.Selector.Equal(&o.Selector)
		})
	}
	return same(s.ofUser[uid], other.ofUser[uid]) && same(s.ofUsers, other.ofUsers)
}

// wantsHash reports whether the hash of a process could make it one of the workloads.
func (s *Set) wantsHash(f workload.Facts) bool {
	if s == nil || !s.looks.SHA256 {
		return false
	}
	for r := range s.of(f.UID) {
		if r.NeedsHash(&f) {
			return true
		}
	}
	return false
}

// Of returns the workloads that a process is, each once, sorted, and the services that register
// them.
func (s *Set) Of(f workload.Facts) (ids []identity.ID, services []string) {
	for r := range s.of(f.UID) {
		if !r.Fits(&f) || len(ids) > 0 && ids[len(ids)-1] == r.ID {
			continue
		}
		ids, services = append(ids, r.ID), append(services, r.Service)
	}
	return ids, services
}

// processOf returns the process that calls.
func processOf(ctx context.Context) (*Process, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if i, ok := p.AuthInfo.(info); ok {
			return i.process, nil
		}
	}
	return nil, errNobody
}

// facts returns what the kernel says now of a process that calls.
func (c *Callers) facts(ctx context.Context, p *Process, want workload.Want) (workload.Facts, error) {
	facts, err := p.Facts(ctx, want)
	switch {
	case err == nil:
		return facts, nil
	case errors.Is(err, ErrGone):
		c.refuse(ReasonGone, p.PID(), err)
		return facts, status.Error(codes.PermissionDenied, ErrGone.Error())
	case errors.Is(err, ErrOther):
		c.refuse(ReasonOther, p.PID(), err)
		return facts, status.Error(codes.PermissionDenied, ErrOther.Error()+": connect again")
	}
	return facts, status.FromContextError(err).Err()
}

// Identities returns what certifies the caller now. Those without a certificate are left out; if
// none has one, the error says so to the caller, and pending is set.
func (c *Callers) Identities(who *Caller) (all []Identity, pending bool, err error) {
	var why error
	for n, id := range who.IDs {
		svid, err := c.cfg.Source.SVID(id)
		if err != nil {
			why = err
			continue
		}
		all = append(all, Identity{id, who.Services[n], svid})
	}
	if len(all) == 0 {
		return nil, true, status.Error(codes.Unavailable, why.Error())
	}
	return all, false, nil
}

// Refuse counts and logs that a caller got nothing.
func (c *Callers) Refuse(ctx context.Context, reason string, err error) {
	pid := int32(0)
	if p, err := processOf(ctx); err == nil {
		pid = p.PID()
	}
	c.refuse(reason, pid, err)
}

func (c *Callers) refuse(reason string, pid int32, err error, more ...slog.Attr) {
	c.cfg.Refused(reason)
	c.log.Log(context.Background(), c.cfg.Log, slog.LevelWarn, "a local process gets no identity", append([]slog.Attr{
		slog.String("reason", reason), slog.Int64("pid", int64(pid)), slog.String("err", err.Error())}, more...)...)
}

// Look returns what the kernel says of a running process, with the hash of its executable. Errors
// are those of [Process].
func (c *Callers) Look(ctx context.Context, pid int32) (workload.Facts, error) {
	p, err := FindProcess(pid, &c.hashes)
	if err != nil {
		return workload.Facts{}, err
	}
	defer p.Close()
	return p.Facts(ctx, workload.Everything)
}
