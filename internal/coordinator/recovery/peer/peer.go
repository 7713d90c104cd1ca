// Package peer hands the secrets of the head from one coordinator to another
// (docs/explanation/recovery.md).
//
// A coordinator that has lost them asks each other one over a TLS 1.3 connection on which neither side is
// known yet. Both prove that they are coordinators of the manifest by signatures over the channel binding
// of that connection (a TLS exporter, RFC 8446 §7.5), the head that is asked for, and an X25519 recipient made for
// this exchange alone. The seed and the mesh CA key are sealed to that recipient (age-encryption.org/v1),
// and written into the audit log before they leave. A seed that comes is believed only if the whole
// history verifies under it.
//
// Before a head moves that has another mesh CA key, that key is brought in the same way to the
// coordinators that are ready, so that none of them has to ask for it.
package peer

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// Config is what a PeerRecovery is made of.
type Config struct {
	Self     *authority.Enrolment
	Head     *authority.Head
	Replicas *peer.Directory
	Keys     *keychain.Keychain
	Faults   *failpoint.Points
	Readers  *ratelimit.Readers
	Refusals *ratelimit.LogSampler
	Failures *ratelimit.LogSampler
	Log      *slog.Logger
	Now      func() time.Time

	Addresses []string // where others reach this coordinator; shared
	ListensAt string   // its own address, which it never asks
	// Peers are where other coordinators are, beside those that the store tells of: each is
	// one for which [CheckPeer] finds nothing wrong, and there are at most [MaxPeers].
	Peers      []string
	LookupHost func(ctx context.Context, name string) ([]string, error)
	Dial       func(ctx context.Context, addr string) (net.Conn, error) // nil: TCP
	// MaxAsking bounds the exchanges under way with callers who have proven nothing yet. Zero means
	// the constant of that name: a test cannot make as many.
	MaxAsking int
	// HeadIfFree returns the state to answer a peer with that is at another head. It does not
	// wait for who changes the head: two coordinators that prepare each other would wait for
	// each other.
	HeadIfFree func(ctx context.Context) (*authority.State, error)
}

// PeerRecovery asks the other coordinators for secrets, and gives them what they may have.
type PeerRecovery struct {
	cfg     Config
	metrics *metrics

	peerCalls *ratelimit.Limiter
	heard     atomic.Pointer[map[string]answered] // peers by address
}

// New returns a PeerRecovery. It asks nobody yet.
func New(cfg Config) *PeerRecovery {
	return &PeerRecovery{cfg: cfg, peerCalls: newPeerCalls(cmp.Or(cfg.MaxAsking, MaxAsking))}
}
