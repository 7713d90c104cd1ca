package domains

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
)

type domainServer struct {
	fealtyv1.UnimplementedDomainServiceServer
	d *Domains
}

// message is what is told of a domain. By when it passes on is told for people: the leader began
// to wait when the owner was asked, or when it began to lead.
func (d *Domains) message(r Record) *fealtyv1.Domain {
	out := &fealtyv1.Domain{Name: r.Name, Owner: r.Owner, Ownership: r.Ownership, Moving: r.Moving, Next: r.Next,
		ChangedAt: timestamppb.New(r.At), ChangedBy: r.By, Reason: r.Reason}
	s := d.cfg.Head.State()
	if s.Manifest == nil {
		return out
	}
	out.OwnerProblem = d.ownerAt(s, r.Owner).gone
	if r.Moving {
		since := record.Later(r.At, d.cfg.Election.Message().GetSince().AsTime())
		out.WaitsUntil = timestamppb.New(since.Add(Wait(r.lease(s.Manifest)) + LookEvery))
	}
	return out
}

// seen is message with whether its owner is heard, once the other coordinators were asked.
func (d *Domains) seen(s *authority.State, r Record) *fealtyv1.Domain {
	out := d.message(r)
	out.OwnerProblem = d.ownerAt(s, r.Owner).problem()
	return out
}

// ListDomains returns a page of the domains.
func (r domainServer) ListDomains(ctx context.Context,
	req *fealtyv1.ListDomainsRequest) (*fealtyv1.ListDomainsResponse, error) {
	s, err := r.d.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	size := int(req.GetPageSize())
	switch {
	case size == 0:
		size = page
	case size < 0 || size > maxPage:
		return nil, errcode.New(errcode.RequestField, "field", "page_size",
			"problem", fmt.Sprintf("%d is not from 1 to %d", size, maxPage))
	}
	all, altered, err := authority.ListGenuine[Record](ctx, r.d.cfg.Head, s, Prefix)
	if err != nil {
		return nil, r.d.cfg.Head.StoreError("list the domains", err)
	}
	r.d.cfg.Asking.Membership.Hear(ctx, s)
	out := &fealtyv1.ListDomainsResponse{}
	for _, key := range altered {
		if req.GetAfter() == "" {
			out.Altered = record.AddAltered(out.Altered, key[len(Prefix):])
		}
	}
	for _, v := range all {
		switch of := req.GetMember(); {
		case v.Value.Name <= req.GetAfter(), of != "" && of != v.Value.Owner && of != v.Value.Next:
			continue
		case len(out.GetDomains()) == size:
			out.More = true
			return out, nil
		}
		out.Domains = append(out.Domains, r.d.seen(s, v.Value))
	}
	return out, nil
}

// Unknown is what is not known of a member where [Domains.AboutMember] fails.
func (d *Domains) Unknown() string { return "which domains it owns or is to own" }

// AboutMember adds to out the domains that a member owns or is to own. The error is that of [authority.Head.StoreError].
func (d *Domains) AboutMember(ctx context.Context, s *authority.State, id identity.ID, out *fealtyv1.GetMemberResponse) error {
	all, _, err := authority.ListGenuine[Record](ctx, d.cfg.Head, s, Prefix)
	if err != nil {
		return d.cfg.Head.StoreError("list the domains", err)
	}
	path := record.PathOf(id)
	for _, v := range all {
		if v.Value.Owner == path || v.Value.Next == path {
			out.Domains = append(out.Domains, d.seen(s, v.Value))
		}
	}
	return nil
}

// GetDomain returns one.
func (r domainServer) GetDomain(ctx context.Context,
	req *fealtyv1.GetDomainRequest) (*fealtyv1.GetDomainResponse, error) {
	s, err := r.d.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	if err := checkName(req.GetName()); err != nil {
		return nil, err
	}
	rec, err := record.Get[Record](ctx, s.Records, KeyOf(req.GetName()))
	switch {
	case err != nil:
		return nil, r.d.cfg.Head.StoreError("read the domain", err)
	case !rec.Exists():
		return nil, errcode.New(errcode.NotFound, "what", "domain", "name", req.GetName())
	}
	r.d.cfg.Asking.Membership.Hear(ctx, s)
	return &fealtyv1.GetDomainResponse{Domain: r.d.seen(s, rec.Value)}, nil
}

// AssignDomain gives a domain to a member.
func (r domainServer) AssignDomain(ctx context.Context,
	req *fealtyv1.AssignDomainRequest) (*fealtyv1.AssignDomainResponse, error) {
	if _, err := r.d.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if kind, name, ok := strings.Cut(req.GetTo(), "/"); !ok || name == "" || !identity.Kind(kind).Valid() ||
		len(req.GetTo()) > internalidentity.MaxIDBytes {
		return nil, errcode.New(errcode.RequestField, "field", "to", "problem", "it is no KIND/NAME of a member")
	}
	got, over, changed, err := r.move(ctx, req, req.GetTo(), "domain.assign", false)
	if err != nil {
		return nil, err
	}
	return &fealtyv1.AssignDomainResponse{Domain: r.d.message(got), Changed: changed, PassedOver: over}, nil
}

// UnassignDomain takes a domain from its owner.
func (r domainServer) UnassignDomain(ctx context.Context,
	req *fealtyv1.UnassignDomainRequest) (*fealtyv1.UnassignDomainResponse, error) {
	got, over, changed, err := r.move(ctx, req, "", "domain.unassign", true)
	if err != nil {
		return nil, err
	}
	return &fealtyv1.UnassignDomainResponse{Domain: r.d.message(got), Changed: changed, PassedOver: over}, nil
}

// moveRequest is a request to assign a domain, or to take it from its owner.
type moveRequest interface {
	GetName() string
	GetReason() string
	GetForce() bool
	GetDryRun() bool
}

// move returns the domain as it is then, and of an owner that was not waited for, as it is gone,
// why.
func (r domainServer) move(ctx context.Context, req moveRequest, to, action string,
	known bool) (got Record, over string, changed bool, err error) {
	if _, err := r.d.cfg.Head.Ready(); err != nil {
		return Record{}, "", false, err
	}
	if err := checkName(req.GetName()); err != nil {
		return Record{}, "", false, err
	}
	if err := record.CheckReason(req.GetReason(), req.GetForce()); err != nil {
		return Record{}, "", false, err
	}
	got, changed, err = r.d.apply(ctx, change{name: req.GetName(), action: action, reason: req.GetReason(),
		force: req.GetForce(), dryRun: req.GetDryRun(),
		decide: func(d Domain, authorityEpoch uint64, gone string) (Domain, error) {
			over = ""
			if known && d.Ownership == 0 {
				return d, errcode.New(errcode.NotFound, "what", "domain", "name", d.Name)
			}
			if gone != "" && d.Owner == to && to != "" {
				return d, errcode.New(errcode.DomainUnfit, "member", to, "problem", gone)
			}
			if gone != "" && !req.GetForce() {
				over = d.Owner + ": " + gone
			}
			// Whoever is gone lets nothing go: it is passed over as by force. What keeps it out of the
			// domain is what keeps out every owner of before, the promise of the domain's receivers.
			return d.Assign(to, authorityEpoch, req.GetForce() || gone != "")
		}})
	return got, over, changed, err
}

func checkName(name string) error {
	if problem := CheckName(name); problem != "" {
		return errcode.New(errcode.RequestField, "field", "name", "problem", problem)
	}
	return nil
}

// ReleaseDomain is its owner's word that it acts no more.
func (r domainServer) ReleaseDomain(ctx context.Context,
	req *fealtyv1.ReleaseDomainRequest) (*fealtyv1.ReleaseDomainResponse, error) {
	if _, err := r.d.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if err := checkName(req.GetDomain()); err != nil {
		return nil, err
	}
	by, err := r.d.cfg.Asking.Allow(ctx)
	if err != nil {
		return nil, err
	}
	changed, err := r.d.letGo(ctx, change{name: req.GetDomain(), action: "domain.release", process: true,
		decide: func(d Domain, authorityEpoch uint64, _ string) (Domain, error) {
			return d.Release(by, req.GetOwnership(), authorityEpoch)
		}})
	if err != nil {
		return nil, err
	}
	return &fealtyv1.ReleaseDomainResponse{Changed: changed}, nil
}

// PollAssignments tells a member what it owns.
func (r domainServer) PollAssignments(ctx context.Context,
	_ *fealtyv1.PollAssignmentsRequest) (*fealtyv1.PollAssignmentsResponse, error) {
	path, err := r.d.cfg.Asking.Allow(ctx)
	if err != nil {
		return nil, err
	}
	s, err := r.d.cfg.Head.InForce(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := r.d.cfg.Grants.Serve(ctx, s); err != nil {
		return nil, err
	}
	key, err := r.d.cfg.Bundle.StatementSigner(s)
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.PollAssignmentsResponse{}
	// The term first: an answer that was decided under an older leader has no newer term.
	if out.Term, err = r.d.cfg.Bundle.SignTerm(s, r.d.cfg.Election.Message().GetTerm()); err != nil {
		return nil, err
	}
	member, err := r.d.member(ctx, s, path, false)
	if err != nil {
		return nil, err
	}
	for _, name := range member.Value.Domains {
		rec, err := record.Get[Record](ctx, s.Records, KeyOf(name))
		if err != nil {
			return nil, r.d.cfg.Head.StoreError("read a domain", err)
		}
		if rec.Value.Owner != path {
			continue // it passed on since the member was read
		}
		// Nobody signs for a member that was deposed while it is read: the record is durable.
		text, err := fence.Assignment{Cluster: s.Manifest.Cluster, Domain: name,
			Holder: identity.FromContext(ctx).ID.String(), Ownership: rec.Value.Ownership,
			AuthorityEpoch: s.Head.AuthorityEpoch}.Sign(key)
		if err != nil {
			return nil, fmt.Errorf("sign the assignment of %s: %w", name, err)
		}
		owned := &fealtyv1.OwnedDomain{Name: name, Ownership: rec.Value.Ownership, Assignment: text,
			Release: rec.Value.Moving}
		if !owned.Release {
			// An owner that is asked to let go is given no more time: the end of what it has is
			// waited for.
			owned.Lease = durationpb.New(rec.Value.lease(s.Manifest))
		}
		out.Domains = append(out.Domains, owned)
	}
	return out, nil
}
