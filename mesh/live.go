package mesh

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reasons for which a connection was ended that stood: those of a [CutError].
const (
	// CertificateExpired: a certificate of the peer's chain ended.
	CertificateExpired Reason = "CertificateExpired"
	// PeerBanned: the bundle bans the peer's identity or a key of its chain.
	PeerBanned Reason = "PeerBanned"
	// RootRetired: another root took the place of the peer's, which vouches for none of
	// its kind any more.
	RootRetired Reason = "RootRetired"
)

// CutError says that a connection is no longer served. It is the cause of the
// contexts of its calls, and what those calls return.
type CutError struct {
	Reason   Reason
	ID       identity.ID // zero if the peer is not identified
	NotAfter time.Time   // for CertificateExpired
}

func (e *CutError) Error() string {
	who := "the certificate"
	if !e.ID.IsZero() {
		who += " of " + e.ID.String()
	}
	switch e.Reason {
	case PeerBanned:
		return fmt.Sprintf("mesh: %s is banned: it stays refused until the ban is lifted", who)
	case RootRetired:
		return fmt.Sprintf("mesh: %s ended with its root, which another one took the place of: log in again", who)
	}
	return fmt.Sprintf("mesh: %s ended at %s: renew it and connect again", who, e.NotAfter.UTC().Format(time.RFC3339))
}

// GRPCStatus is Unauthenticated for an expired certificate, PermissionDenied for
// a banned one.
func (e *CutError) GRPCStatus() *status.Status {
	code := codes.Unauthenticated
	if e.Reason == PeerBanned {
		code = codes.PermissionDenied
	}
	return errorinfo.With(status.New(code, e.Error()), &errdetails.ErrorInfo{Reason: string(e.Reason), Domain: domain})
}

// liveConn is one connection that stands, with the calls that run on it.
type liveConn struct {
	net.Conn          // what gRPC reads and writes
	raw      net.Conn // beneath it; closing it never blocks on the peer
	set      *liveSet
	peer     identity.Peer
	issuers  []identity.KeyID  // keys of the chain above the leaf
	meshCA   *x509.Certificate // of an accepted connection's chain; nil: it has none
	expires  time.Time         // of the peer's chain; zero: never
	idle     time.Duration     // how long it stands without a call; zero: for ever
	free     func()            // gives the connection's slot back; idempotent; nil: has none
	seq      uint64            // order of registration; set by liveSet.add
	since    time.Time         // of registration; set by liveSet.add
	read     atomic.Bool       // gRPC has taken the connection over

	quota *quota // of a connection that came through a gate; else nil

	cleared atomic.Pointer[identity.Bundle] // the last that was found to say nothing against the peer

	mu      sync.Mutex
	cut     atomic.Pointer[CutError] // set once, under mu
	closeAt time.Time                // when a cut connection is closed; guarded by mu
	answers time.Duration            // how long it stands after the last answer that it waits for; zero: for none; guarded by mu
	calls   calls                    // guarded by mu
	retired bool                     // closed for having been idle; guarded by mu
}

// answerTime is how long a connection whose root was retired stands for the answers of
// unary calls: one of them may be what retired it, and its caller has to learn that
// it is done. These calls were let in under the earlier root; no new call is.
const answerTime = 10 * time.Second

// Read notes that gRPC reads.
func (c *liveConn) Read(p []byte) (int, error) {
	if !c.read.Load() {
		c.read.Store(true)
	}
	n, err := c.Conn.Read(p)
	if n > 0 && c.quota != nil {
		if over := c.quota.count(p[:n]); over != nil {
			c.sever()
			return 0, over
		}
	}
	return n, err
}

// Write notes which calls are over.
func (c *liveConn) Write(p []byte) (int, error) {
	if c.quota != nil {
		c.quota.wrote(p)
	}
	return c.Conn.Write(p)
}

// Close forgets the connection and closes it.
func (c *liveConn) Close() error {
	c.forget()
	return c.Conn.Close()
}

// forget takes c out of its set and gives its slot back.
func (c *liveConn) forget() {
	c.set.remove(c)
	if c.free != nil {
		c.free()
	}
}

// sever forgets c and closes the raw connection: closing TLS would write to a
// peer that may not read. gRPC sees the end and closes the rest.
func (c *liveConn) sever() {
	c.forget()
	c.raw.Close()
}

// takeover bounds the time from the end of the handshake to gRPC's first read.
// Where gRPC gives up in between it closes only the raw connection, and nothing
// else would tell us.
const takeover = 10 * time.Second

// verdict returns why c may not be served at now under bundle, or nil. Nil bans nobody.
func (c *liveConn) verdict(now time.Time, bundle *identity.Bundle) *CutError {
	if c.peer.Leaf == nil {
		return nil
	}
	// Neither a connection nor a bundle changes: what was looked at once is so for each call.
	cleared := bundle == nil || bundle == c.cleared.Load()
	switch {
	case !cleared && c.banned(bundle): // outweighs expiry, as in identity.Bundle.Verify
		return &CutError{Reason: PeerBanned, ID: c.peer.ID}
	case !c.expires.IsZero() && now.After(c.expires): // RFC 5280 §4.1.2.5: NotAfter is included
		return &CutError{Reason: CertificateExpired, ID: c.peer.ID, NotAfter: c.expires}
	case !cleared && c.meshCA != nil && bundle.Outlived(c.peer.ID, c.meshCA):
		return &CutError{Reason: RootRetired, ID: c.peer.ID}
	}
	if !cleared {
		c.cleared.Store(bundle)
	}
	return nil
}

// banned reports whether bundle bans the peer, who vouches for it, or a key of its chain.
func (c *liveConn) banned(bundle *identity.Bundle) bool {
	banned := bundle.Banned(c.peer.ID, c.peer.Key)
	for _, key := range c.issuers {
		banned = banned || bundle.Banned(identity.ID{}, key)
	}
	if c.peer.ID.Kind() == identity.Workload {
		// A workload goes with the member that vouches for it.
		member, key, err := identity.VoucherOf(c.peer.Leaf)
		if err != nil {
			// A PKI that somebody else runs has no vouchers, and its bundle no mesh keys.
			return banned || len(bundle.MeshKeys()) > 0
		}
		return banned || bundle.Banned(member, key)
	}
	return banned
}

// because makes what failed after a cut say so. A call that succeeded did: its caller must not
// think otherwise.
func (c *liveConn) because(err error) error {
	if cut := c.cut.Load(); err != nil && cut != nil {
		return cut
	}
	return err
}

// begin registers a call, unless the connection is cut.
func (c *liveConn) begin(call *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cut := c.cut.Load(); cut != nil {
		return cut
	}
	if c.retired {
		return errRetired
	}
	c.calls.all++
	if call.unary {
		c.calls.unary++
	}
	return nil
}

// end ends a call.
func (c *liveConn) end(call *call, now func() time.Time) {
	c.mu.Lock()
	call.over = true
	c.calls.all--
	if call.unary {
		c.calls.unary--
	}
	own := call.own.Load()
	if own != nil {
		delete(c.calls.waited, call)
	}
	if c.calls.all == 0 {
		c.calls.rested = now()
		if c.quota != nil {
			c.quota.rested()
		}
	}
	var due time.Time
	if c.answers > 0 && c.calls.unary == 0 {
		c.closeAt = sooner(c.closeAt, now().Add(c.answers))
		due = c.closeAt
	}
	c.mu.Unlock()
	if own != nil {
		own.cancel(nil)
	}
	if !due.IsZero() {
		c.set.due(due)
	}
}

// errRetired is for a call that meets the closing of an idle connection.
var errRetired = status.Error(codes.Unavailable, "mesh: the connection was closed, because no call ran on it for long: call again")

// retire reports whether c was idle for too long at now; it then takes no more
// calls. If not, the earliest moment at which it can be is returned; zero: never.
func (c *liveConn) retire(now time.Time) (retired bool, due time.Time) {
	if c.idle == 0 {
		return false, time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.calls.all > 0:
		due = now.Add(c.idle)
	case c.calls.rested.IsZero():
		due = c.since.Add(c.idle)
	default:
		due = c.calls.rested.Add(c.idle)
	}
	c.retired = c.retired || now.After(due)
	return c.retired, due
}

// strike marks c cut for why and cancels its calls. It reports whether this was
// the first time. The connection is to be closed at the later of now and, if
// calls were running, now+grace: they may still say why. If the last one ended just
// before, its answer may not be written yet, and has as long.
func (c *liveConn) strike(why *CutError, now time.Time, grace time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.cut.CompareAndSwap(nil, why) {
		return false
	}
	c.closeAt = now
	switch last := c.calls.rested.Add(grace); {
	case c.calls.unary > 0 && why.Reason == RootRetired:
		c.closeAt, c.answers = now.Add(max(grace, answerTime)), grace
	case c.calls.all > 0:
		c.closeAt = now.Add(grace)
	case !c.calls.rested.IsZero() && last.After(now):
		c.closeAt = sooner(last, now.Add(grace)) // the clock may have been put back
	}
	for call := range c.calls.waited {
		call.own.Load().cancel(why)
	}
	return true
}

// state returns when a cut connection is to be closed.
func (c *liveConn) state() (cut bool, closeAt time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut.Load() != nil, c.closeAt
}

// liveSet is the connections that stand at one end.
type liveSet struct {
	notify chan struct{} // buffered, 1: wait no longer, something may be due

	mu      sync.Mutex
	conns   map[*liveConn]struct{} // guarded by mu
	watched bool                   // somebody watches the connections, or is about to; guarded by mu
	seq     uint64                 // guarded by mu
	next    time.Time              // no sweep is needed before it for time alone; zero: never; guarded by mu
}

func newLiveSet() *liveSet {
	return &liveSet{notify: make(chan struct{}, 1), conns: make(map[*liveConn]struct{})}
}

// add registers a connection. It reports whether nobody watched the set before: now its
// caller has to, until [liveSet.unwatched] says that it may stop.
func (s *liveSet) add(c *liveConn, now time.Time) (watch bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	c.set, c.seq, c.since = s, s.seq, now
	s.conns[c] = struct{}{}
	unbounded := s.next.IsZero() // such as a set of none, or of connections that never end
	s.next = sooner(s.next, sooner(c.expires, now.Add(min(takeover, cmp.Or(c.idle, takeover)))))
	if unbounded || len(s.conns) == 1 {
		s.wake() // it is waited on without a limit
	}
	watch, s.watched = !s.watched, true
	return watch
}

// unwatched reports whether no connection stands; then the next one that does needs a new
// watch.
func (s *liveSet) unwatched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) == 0 {
		s.watched = false
	}
	return !s.watched
}

func (s *liveSet) remove(c *liveConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.conns, c); len(s.conns) == 0 {
		s.wake() // its watch may end
	}
}

func (s *liveSet) wake() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

// settle has a connection that is already cut closed at the given time.
func (s *liveSet) settle(c *liveConn, at time.Time) {
	c.mu.Lock()
	if c.closeAt.Before(at) {
		c.closeAt = at
	}
	at = c.closeAt
	c.mu.Unlock()
	s.due(at)
}

// due has a sweep at the given time at the latest.
func (s *liveSet) due(at time.Time) {
	s.mu.Lock()
	s.next = sooner(s.next, at)
	s.mu.Unlock()
	s.wake()
}

// cutConn is one connection that a sweep cut.
type cutConn struct {
	conn *liveConn
	why  *CutError
}

// sweep cuts what may not be served at now under bundle, closes what was cut and
// has had its grace, and returns the new cuts in order of registration.
func (s *liveSet) sweep(now time.Time, bundle *identity.Bundle, grace time.Duration) []cutConn {
	s.mu.Lock()
	conns := make([]*liveConn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.next = time.Time{} // a connection added from here on lowers it again
	s.mu.Unlock()
	slices.SortFunc(conns, func(a, b *liveConn) int { return cmp.Compare(a.seq, b.seq) })

	var cuts []cutConn
	var next time.Time
	for _, c := range conns {
		if why := c.verdict(now, bundle); why != nil && c.strike(why, now, grace) {
			cuts = append(cuts, cutConn{c, why})
		}
		cut, closeAt := c.state()
		retired, due := c.retire(now)
		switch {
		case cut && closeAt.After(now):
			next = sooner(next, closeAt)
		case cut:
			c.sever()
		case retired:
			c.sever()
		case c.read.Load():
			next = sooner(next, sooner(c.expires, due))
		case now.After(c.since.Add(takeover)):
			c.sever()
		default:
			next = sooner(next, sooner(sooner(c.expires, due), c.since.Add(takeover)))
		}
	}
	s.mu.Lock()
	s.next = sooner(s.next, next)
	s.mu.Unlock()
	return cuts
}

// follow ends connections when their time comes or src changes, until none stands.
func (s *liveSet) follow(src credential.Source, now func() time.Time) {
	ctx := context.Background() // connections end it, and nothing else may
	var bundle *identity.Bundle
	for {
		changed := src.Changed() // before the source is asked
		if m, err := src.Current(ctx); err == nil {
			bundle = m.Bundle() // else the last good one
		}
		s.sweep(now(), bundle, 0)
		if s.unwatched() {
			return
		}
		s.nap(ctx, now, changed)
	}
}

// longestNap bounds how long a sweep that is due by the wall clock can be late
// after the machine was suspended, during which timers stand still.
const longestNap = 500 * time.Millisecond

// nap waits until ctx ends, other is closed, or a sweep may be due: by time,
// which now tells, or by a notification. It reports whether ctx still stands.
func (s *liveSet) nap(ctx context.Context, now func() time.Time, other <-chan struct{}) bool {
	for {
		s.mu.Lock()
		next, empty := s.next, len(s.conns) == 0
		s.mu.Unlock()
		var timer <-chan time.Time
		if !empty && !next.IsZero() {
			left := next.Sub(now())
			if left < 0 {
				return ctx.Err() == nil
			}
			// One nanosecond more: a certificate is good at its very end, which may be as far as a
			// duration goes.
			timer = time.After(min(left, longestNap) + 1)
		}
		select {
		case <-ctx.Done():
			return false
		case <-other:
			return ctx.Err() == nil
		case <-s.notify:
			return ctx.Err() == nil
		case <-timer:
		}
	}
}
