// What tests outside of the package reach for, and no program does.
package peer

import (
	"context"
	"crypto/ed25519"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
)

type (
	Asking  = asking
	Greeted = greeted
)

const (
	PeerBurst   = peerBurst
	PeersDialed = peersDialed
)

func FirstOf[A, R any](ctx context.Context, atOnce int, all []A, do func(context.Context, A) (R, bool)) ([]R, int) {
	return firstOf(ctx, atOnce, all, do)
}

// WithPeers returns a recovery like c, with other peers.
func (c *PeerRecovery) WithPeers(addrs ...string) *PeerRecovery {
	cfg := c.cfg
	cfg.Peers = addrs
	p := New(cfg)
	p.metrics = c.metrics
	return p
}

func (c *PeerRecovery) Cfg() *Config { return &c.cfg }

// SetLimits exchanges the limits of coordinators that come back.
func (c *PeerRecovery) SetLimits(alter func(*ratelimit.Limits)) {
	limits := c.peerCalls.Limits()
	alter(&limits)
	c.peerCalls = ratelimit.New(limits)
}

func (c *PeerRecovery) Peers(ctx context.Context, m *manifest.Manifest) ([]string, Errors) {
	return c.peers(ctx, m)
}

func (c *PeerRecovery) TakeKey(g *greeted, p *fealtyv1.PeerCandidate,
	recipient *keyring.EphemeralRecipient) (keychain.Prepared, error) {
	return c.takeKey(g, p, recipient)
}

// Bring brings the key of mv to the peer at addr.
func (c *PeerRecovery) Bring(ctx context.Context, mv *transition.Move, addr string) error {
	return (&preparing{c: c, move: mv}).bring(ctx, addr)
}

// NewAsking is about to ask the peer at addr for the secrets of head, the last of h, of which m is the manifest.
func NewAsking(c *PeerRecovery, h *history.History, head history.Link, m *manifest.Manifest, addr string) *Asking {
	return &asking{c: c, head: &claimedHead{h, head, m}, peer: addr, turn: make(chan struct{}, 1)}
}

func (a *asking) Ask(ctx context.Context) (*Received, error) { return a.ask(ctx) }

func (a *asking) Verify(ctx context.Context, r *Received, mesh *authority.MeshKey, given *fealtyv1.PeerSecrets) error {
	return a.verify(ctx, r, mesh, given)
}

// By exchanges who asks.
func (a *asking) By(self *authority.Enrolment) { a.c.cfg.Self = self }

// At exchanges the clock of who asks.
func (a *asking) At(now func() time.Time) { a.c.cfg.Now = now }

// Key is that of who asks.
func (a *asking) Key() ed25519.PrivateKey { return a.c.cfg.Self.PrivateKey() }

// Step is the step that is under way.
func (a *asking) Step() Step { return a.step }

// Of exchanges who is asked.
func (a *asking) Of(addr string) { a.peer = addr }

// For alters what is asked for.
func (a *asking) For(alter func(*history.Link, *manifest.Manifest)) {
	m := *a.head.manifest
	alter(&a.head.link, &m)
	a.head.manifest = &m
}

// NewGreeted was answered under s, and showed what it is.
func NewGreeted(s *authority.State, key string, shown proof.Coordinator) *Greeted {
	return &greeted{state: s, key: key, shown: shown, transcript: proof.PeerTranscript{Cluster: s.Manifest.Cluster}}
}

// Limits are those of coordinators that come back.
func (c *PeerRecovery) Limits() ratelimit.Limits { return c.peerCalls.Limits() }
