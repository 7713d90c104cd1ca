// Package registry keeps the quotas of tenants and the list of providers, and sends both, signed,
// to shards.
//
// They are one record, as a shard takes them whole. Package internal/quota says what can be in it;
// see docs/explanation/actuation.md.
package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/grants"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/quota"
	"github.com/fealty-io/fealty/internal/signed/order"
)

// Key is where the record stands.
const Key = "registry/shards"

// Record is what is stored.
type Record struct {
	// Version grows with every change. It begins above the authority epoch, shifted: what was
	// restored from a backup is newer than all that shards were told before.
	Version   uint64     `json:"version"`
	Quotas    []Quota    `json:"quotas,omitempty"`    // sorted by name
	Providers []Provider `json:"providers,omitempty"` // sorted by name
}

// Change says when something was changed last, by whom and why.
type Change struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
}

// Quota is one, with its last change.
type Quota struct {
	quota.Quota
	Change
}

// Provider is one, with its last change.
type Provider struct {
	quota.Provider
	Change
}

// Config is what a Registry is made of.
type Config struct {
	Head   *authority.Head
	Bundle *current.Current
	Asking member.Asking
	Grants *grants.Grants // which process of a member is served
	Log    *slog.Logger
	Now    func() time.Time
}

// Registry serves RegistryService. Make it with [New].
type Registry struct{ cfg Config }

// New returns a Registry of which nothing was read.
func New(cfg Config) *Registry { return &Registry{cfg} }

// RegisterServices registers the service.
func (r *Registry) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterRegistryServiceServer(to, server{r: r})
}

// plan is what shards are told of a record.
func (r Record) plan() (p quota.Plan) {
	for _, q := range r.Quotas {
		p.Quotas = append(p.Quotas, q.Quota)
	}
	for _, v := range r.Providers {
		p.Providers = append(p.Providers, v.Provider)
	}
	return p
}

// floor is the lowest version of an authority epoch.
func floor(s *authority.State) uint64 { return s.Head.AuthorityEpoch << 32 }

// read reads the record; a zero one if nothing was ever put.
func (r *Registry) read(ctx context.Context, s *authority.State) (record.Versioned[Record], error) {
	rec, err := record.Get[Record](ctx, s.Records, Key)
	if err != nil {
		return rec, r.cfg.Head.StoreError("read the registry", err)
	}
	return rec, nil
}

// errSame says that nothing is to be changed.
var errSame = errors.New("it is so already")

// edit is what somebody wants changed.
type edit struct {
	check                  error // of what it is made of: from package internal/quota
	action, target, reason string
	fields                 map[string]string
	dryRun                 bool
	// do changes a copy of the record, or says why not: errSame, or what the caller is told.
	do func(r *Record, c Change) error
}

// apply makes a change in one transaction, or nothing of it, and reports whether there was one.
func (r *Registry) apply(ctx context.Context, e edit) (changed bool, err error) {
	if _, err := r.cfg.Head.Ready(); err != nil {
		return false, err
	}
	if e.check != nil {
		return false, field(e.check)
	}
	if err := record.CheckReason(e.reason, false); err != nil {
		return false, err
	}
	err = r.cfg.Head.Transact(ctx, "the registry", func(s *authority.State) error {
		have, err := r.read(ctx, s)
		if err != nil {
			return err
		}
		next := have.Value
		next.Quotas, next.Providers = slices.Clone(next.Quotas), slices.Clone(next.Providers)
		by := Change{At: r.cfg.Now().UTC(), By: record.Actor(ctx), Reason: e.reason}
		switch err := e.do(&next, by); {
		case errors.Is(err, errSame):
			changed = false
			return nil
		case err != nil:
			return err
		}
		next.Version = max(have.Value.Version, floor(s)) + 1
		changed = true
		if e.dryRun {
			return nil
		}
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(Key, have.Version, next)
		ch.Audit(r.cfg.Now(), record.AuditEntry{Actor: by.By, Action: e.action, Target: e.target, Reason: e.reason,
			Fields: e.fields})
		if _, err := ch.Commit(ctx); err != nil {
			return r.cfg.Head.CommitError("record the registry", err)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	if changed && !e.dryRun {
		r.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "the registry was changed", slog.String("action", e.action),
			slog.String("target", e.target), slog.String("by", record.Actor(ctx)))
	}
	return changed, nil
}

type server struct {
	fealtyv1.UnimplementedRegistryServiceServer
	r *Registry
}

// field is what a caller is told of a part that cannot be.
func field(err error) error {
	if e, ok := errors.AsType[*quota.FieldError](err); ok {
		return errcode.New(errcode.RequestField, "field", e.Field, "problem", "it "+e.Problem)
	}
	return err
}

func full(what string, limit int) error {
	return errcode.New(errcode.RequestField, "field", what,
		"problem", fmt.Sprintf("it is one above the %d that a cluster has: delete one first", limit))
}

func byQuota(q Quota, name string) int       { return cmp.Compare(q.Name(), name) }
func byProvider(p Provider, name string) int { return cmp.Compare(p.Name, name) }

func quotaMessage(q Quota) *fealtyv1.Quota {
	return &fealtyv1.Quota{Tenant: q.Tenant, Profile: q.Profile, Machines: int32(q.Machines),
		ChangedAt: timestamppb.New(q.At), ChangedBy: q.By, Reason: q.Reason}
}

func providerMessage(p Provider) *fealtyv1.RegisteredProvider {
	return &fealtyv1.RegisteredProvider{Name: p.Name, Address: p.Address, PricePerHour: p.Price,
		ChangedAt: timestamppb.New(p.At), ChangedBy: p.By, Reason: p.Reason}
}

// ListQuotas returns all of them: there are at most [quota.MaxQuotas].
func (v server) ListQuotas(ctx context.Context, _ *fealtyv1.ListQuotasRequest) (*fealtyv1.ListQuotasResponse, error) {
	s, err := v.r.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	rec, err := v.r.read(ctx, s)
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.ListQuotasResponse{}
	for _, q := range rec.Value.Quotas {
		out.Quotas = append(out.Quotas, quotaMessage(q))
	}
	return out, nil
}

// put puts e into a list that by keeps sorted, in place of the one with the same key, and returns what is there then: with
// errSame the one that was, if same says that it is no other. There are at most so many in it.
func put[E any](list *[]E, e E, key string, by func(E, string) int, same func(was E) bool, what string, most int) (E, error) {
	i, found := slices.BinarySearchFunc(*list, key, by)
	switch {
	case found && same((*list)[i]):
		return (*list)[i], errSame
	case found:
		(*list)[i] = e
	case len(*list) >= most:
		return e, full(what, most)
	default:
		*list = slices.Insert(*list, i, e)
	}
	return e, nil
}

// remove takes the one with a key out of a list that by keeps sorted, and returns it.
func remove[E any](list *[]E, key string, by func(E, string) int, what string) (gone E, err error) {
	i, found := slices.BinarySearchFunc(*list, key, by)
	if !found {
		return gone, errcode.New(errcode.NotFound, "what", what, "name", key)
	}
	gone = (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return gone, nil
}

// PutQuota bounds a tenant.
func (v server) PutQuota(ctx context.Context, req *fealtyv1.PutQuotaRequest) (*fealtyv1.PutQuotaResponse, error) {
	q := quota.Quota{Tenant: req.GetTenant(), Profile: req.GetProfile(), Machines: int(req.GetMachines())}
	var after Quota
	changed, err := v.r.apply(ctx, edit{check: q.Check(), action: "quota.put", target: q.Name(),
		reason: req.GetReason(), fields: map[string]string{"machines": fmt.Sprint(q.Machines)}, dryRun: req.GetDryRun(),
		do: func(r *Record, c Change) (err error) {
			after, err = put(&r.Quotas, Quota{q, c}, q.Name(), byQuota, func(was Quota) bool { return was.Quota == q }, "quota", quota.MaxQuotas)
			return err
		}})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.PutQuotaResponse{Quota: quotaMessage(after), Changed: changed}, nil
}

// DeleteQuota takes a bound away.
func (v server) DeleteQuota(ctx context.Context,
	req *fealtyv1.DeleteQuotaRequest) (*fealtyv1.DeleteQuotaResponse, error) {
	q := quota.Quota{Tenant: req.GetTenant(), Profile: req.GetProfile()}
	var gone Quota
	_, err := v.r.apply(ctx, edit{check: q.Check(), action: "quota.delete", target: q.Name(), reason: req.GetReason(),
		dryRun: req.GetDryRun(), do: func(r *Record, _ Change) (err error) {
			gone, err = remove(&r.Quotas, q.Name(), byQuota, "quota")
			return err
		}})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.DeleteQuotaResponse{Quota: quotaMessage(gone)}, nil
}

// ListProviders returns all of them: there are at most [quota.MaxProviders].
func (v server) ListProviders(ctx context.Context,
	_ *fealtyv1.ListProvidersRequest) (*fealtyv1.ListProvidersResponse, error) {
	s, err := v.r.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	rec, err := v.r.read(ctx, s)
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.ListProvidersResponse{}
	for _, p := range rec.Value.Providers {
		out.Providers = append(out.Providers, providerMessage(p))
	}
	return out, nil
}

// PutProvider registers a provider.
func (v server) PutProvider(ctx context.Context,
	req *fealtyv1.PutProviderRequest) (*fealtyv1.PutProviderResponse, error) {
	p := quota.Provider{Name: req.GetName(), Address: req.GetAddress(), Price: req.PricePerHour}
	fields := map[string]string{"address": p.Address}
	if p.Price != nil {
		fields["price_per_hour"] = fmt.Sprint(*p.Price)
	}
	var after Provider
	changed, err := v.r.apply(ctx, edit{check: p.Check(), action: "provider.put", target: p.Name,
		reason: req.GetReason(), fields: fields, dryRun: req.GetDryRun(), do: func(r *Record, c Change) (err error) {
			after, err = put(&r.Providers, Provider{p, c}, p.Name, byProvider,
				func(was Provider) bool { return was.Provider.Same(p) }, "provider", quota.MaxProviders)
			return err
		}})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.PutProviderResponse{Provider: providerMessage(after), Changed: changed}, nil
}

// DeleteProvider takes a provider out.
func (v server) DeleteProvider(ctx context.Context,
	req *fealtyv1.DeleteProviderRequest) (*fealtyv1.DeleteProviderResponse, error) {
	name := req.GetName()
	var gone Provider
	_, err := v.r.apply(ctx, edit{check: quota.CheckProvider(name), action: "provider.delete", target: name,
		reason: req.GetReason(),
		dryRun: req.GetDryRun(), do: func(r *Record, _ Change) (err error) {
			gone, err = remove(&r.Providers, name, byProvider, "provider")
			return err
		}})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.DeleteProviderResponse{Provider: providerMessage(gone)}, nil
}

// PollPlan tells a shard of all quotas and providers.
func (v server) PollPlan(ctx context.Context, req *fealtyv1.PollPlanRequest) (*fealtyv1.PollPlanResponse, error) {
	if _, err := v.r.cfg.Asking.Allow(ctx); err != nil {
		return nil, err
	}
	s, err := v.r.cfg.Head.InForce(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := v.r.cfg.Grants.Serve(ctx, s); err != nil {
		return nil, err
	}
	key, err := v.r.cfg.Bundle.StatementSigner(s)
	if err != nil {
		return nil, err
	}
	rec, err := v.r.read(ctx, s)
	if err != nil {
		return nil, err
	}
	text, err := rec.Value.plan().Encode()
	if err != nil {
		return nil, fmt.Errorf("encode the plan of shards: %w", err)
	}
	version := max(rec.Value.Version, floor(s))
	out := &fealtyv1.PollPlanResponse{}
	if out.Statement, err = (order.Document{Cluster: s.Manifest.Cluster, Kind: quota.Kind, Version: version,
		Digest: quota.DigestOf(text), AuthorityEpoch: s.Head.AuthorityEpoch}).Sign(key); err != nil {
		return nil, fmt.Errorf("sign the plan of shards: %w", err)
	}
	if req.GetHave() != version {
		out.Plan = string(text)
	}
	return out, nil
}
