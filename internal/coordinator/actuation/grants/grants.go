// Package grants gives a sender of fenced commands (a holder) a number for each new epoch, and no number twice (I6).
//
// An epoch needs a part that a copied disk or a restored image cannot make by itself. A grant is
// that part: a number that the store counts for one holder, and a statement over it that the
// cluster signed after the count was durable. See docs/explanation/fencing.md.
package grants

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/signed"
)

// Prefix is where the newest grant of each holder stands, by its kind and name. A record
// stays when its member is removed: a member of the same name that joins later is given
// what is newer than all that the name had.
const Prefix = "grant/"

// KeyOf is where the newest grant of a holder stands.
func KeyOf(kind identity.Kind, name string) string { return Prefix + string(kind) + "/" + name }

// Record is the newest grant of a holder.
type Record struct {
	Number uint32    `json:"number"`
	At     time.Time `json:"at"`
	// Incarnation is the process that asked for it, or of Life.
	Incarnation string `json:"incarnation,omitempty"`
	// Life is the newest life under it whose process was served. Zero: none was that said so, or
	// it is of an earlier release, which says nothing of itself.
	Life uint32 `json:"life,omitempty"`
}

// Config is what Grants are made of.
type Config struct {
	Head   *authority.Head
	Bundle *current.Current
	Asking member.Asking
	Log    *slog.Logger
	Now    func() time.Time
}

// Grants serve GrantService, and tell the newest process of a member from all others. Make them
// with [New].
type Grants struct {
	cfg     Config
	refused *prometheus.CounterVec
}

// New returns Grants that gave none yet.
func New(cfg Config) *Grants {
	g := &Grants{cfg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_fenced_calls_total",
		Help: "Calls of members' processes that this coordinator refused, by reason (stale, clone, ungranted): " +
			"another process of the member is in charge.",
	}, []string{"reason"})}
	for _, reason := range []fence.Reason{fence.ReasonStale, fence.ReasonClone, fence.ReasonUngranted} {
		g.refused.WithLabelValues(string(reason))
	}
	return g
}

// RegisterMetrics registers what is counted.
func (g *Grants) RegisterMetrics(reg prometheus.Registerer) { reg.MustRegister(g.refused) }

// RegisterServices registers the service that gives grants.
func (g *Grants) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterGrantServiceServer(to, grantServer{g: g})
}

type grantServer struct {
	fealtyv1.UnimplementedGrantServiceServer
	g *Grants
}

// Grant gives the caller its next grant.
func (r grantServer) Grant(ctx context.Context, req *fealtyv1.GrantRequest) (*fealtyv1.GrantResponse, error) {
	g, id := r.g, identity.FromContext(ctx).ID
	if _, err := g.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	incarnation, err := fence.ParseIncarnation(req.GetIncarnation())
	if err != nil {
		return nil, errcode.New(errcode.RequestField, "field", "incarnation",
			"problem", "it is not 32 hexadecimal digits of which one is not 0")
	}
	if len(req.GetNewest()) > signed.MaxStatement {
		return nil, errcode.New(errcode.RequestField, "field", "newest",
			"problem", fmt.Sprintf("it has %d bytes, limit %d", len(req.GetNewest()), signed.MaxStatement))
	}
	if _, err := g.cfg.Asking.Allow(ctx); err != nil {
		return nil, err
	}
	var out *fealtyv1.GrantResponse
	err = g.cfg.Head.Transact(ctx, "the grant", func(s *authority.State) (err error) {
		out, err = g.give(ctx, s, id, incarnation, req.GetNewest())
		return err
	})
	if err != nil {
		return nil, err
	}
	g.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a grant was given", slog.String("member", record.PathOf(id)),
		slog.Uint64("grant", uint64(out.GetNumber())), slog.String("incarnation", incarnation.String()))
	return out, nil
}

// give counts one on, and signs what is then durable. The order is the argument: a number
// that is signed first could be given again after a crash.
func (g *Grants) give(ctx context.Context, s *authority.State, id identity.ID, incarnation fence.Incarnation,
	newest string) (*fealtyv1.GrantResponse, error) {
	shown, err := g.shown(s, id, newest)
	if err != nil {
		return nil, err
	}
	member, err := record.Get[record.Member](ctx, s.Records, record.MemberKey(id.Kind(), id.Name()))
	if err != nil {
		return nil, g.cfg.Head.StoreError("read the member", err)
	}
	if !member.Exists() || !member.Value.Held() {
		return nil, errcode.New(errcode.RenewEntryGone, "identity", id.String())
	}
	have, err := record.Get[Record](ctx, s.Records, KeyOf(id.Kind(), id.Name()))
	if err != nil {
		return nil, g.cfg.Head.StoreError("read the newest grant", err)
	}
	last := max(have.Value.Number, shown)
	if last == math.MaxUint32 {
		return nil, errcode.New(errcode.GrantsExhausted, "member", record.PathOf(id))
	}
	// A key first: a grant that nobody can sign is not counted.
	key, err := g.cfg.Bundle.StatementSigner(s)
	if err != nil {
		return nil, err
	}
	if g.cfg.Bundle.Bans(id, identity.FromContext(ctx).Key) {
		return nil, errcode.New(errcode.JoinBanned, "identity", id.String())
	}
	next := Record{Number: last + 1, At: g.cfg.Now().UTC(), Incarnation: incarnation.String()}
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(KeyOf(id.Kind(), id.Name()), have.Version, next)
	ch.Require(record.MemberKey(id.Kind(), id.Name()), member.Version)
	ch.Require(record.BanIDKey(id.Kind(), id.Name()), 0)
	ch.Audit(g.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "grant.give", Target: record.PathOf(id),
		Fields: map[string]string{"grant": fmt.Sprint(next.Number), "incarnation": next.Incarnation}})
	if _, err := ch.Commit(ctx); err != nil {
		return nil, g.cfg.Head.CommitError("record the grant", err)
	}
	text, err := fence.Grant{Cluster: s.Manifest.Cluster, Holder: id.String(), Number: next.Number,
		AuthorityEpoch: s.Head.AuthorityEpoch}.Sign(key)
	if err != nil {
		return nil, fmt.Errorf("sign grant %d of %s: %w", next.Number, id, err)
	}
	return &fealtyv1.GrantResponse{Grant: text, Number: next.Number}, nil
}

// shown is the number of the grant that a holder shows; 0 if it shows none. A number that
// a key of the bundle in force did not sign holds nothing back: anybody can say one.
func (g *Grants) shown(s *authority.State, id identity.ID, text string) (uint32, error) {
	if text == "" {
		return 0, nil
	}
	verified, err := g.authority(s).OpenGrant(text)
	grant, ok := verified.Get()
	switch {
	case errors.Is(err, fence.ErrUntrusted):
		return 0, nil
	case err != nil:
		return 0, errcode.New(errcode.RequestField, "field", "newest", "problem", "it is no signed grant")
	case ok && grant.Holder != id.String():
		return 0, errcode.New(errcode.RequestField, "field", "newest", "problem", "it is the grant of another holder")
	}
	return grant.Number, nil
}

// authority is whose grants count: the keys of the bundle in force sign for it.
func (g *Grants) authority(s *authority.State) fence.Authority {
	keys := make(map[string]ed25519.PublicKey)
	if view := g.cfg.Bundle.View(); view != nil {
		for _, k := range view.AuditKeys(s.Bundle) {
			keys[k.ID()] = k.Key
		}
	}
	return fence.Authority{Cluster: s.Manifest.Cluster, Key: func(id string) (ed25519.PublicKey, bool) {
		key, ok := keys[id]
		return key, ok
	}}
}
