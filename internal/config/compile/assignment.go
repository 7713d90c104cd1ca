package compile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/config"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// assignment is what a group is assigned: its members have this, and what names
// them.
type assignment struct {
	services  []*config.Service
	endpoints []snapshot.Endpoint
	entry     *snapshot.EntryPolicy
	removed   []Removed
}

// ForMember returns the service_assignment of a member, or nil if it is assigned
// nothing: who is banned never is. Resources and secrets are those that its services need.
func (c *Compiler) ForMember(m Member) (*snapshot.ServiceAssignment, []Removed) {
	if c.in.Banned(m.ID) {
		return nil, nil
	}
	base := c.groupAssignment(m.Group)
	s := &subject{group: m.Group, scope: snapshot.ScopeServiceAssignment}
	services := slices.Clone(base.services)
	for _, r := range c.placed[m.path()] {
		switch {
		case !m.serves(r.Organization):
			s.remove(r, LacksOrganization, fmt.Sprintf("member %s, on which it is placed, does not serve it", m.path()))
		case !m.plays(r.Roles):
			s.remove(r, LacksRole, fmt.Sprintf("member %s, on which it is placed, has none of its roles %s", m.path(), strings.Join(r.Roles, ", ")))
		case !s.scope.MayHold(internalsnapshot.SectionServices, m.Roles):
			s.remove(r, NotForRole, fmt.Sprintf("member %s, on which it is placed, has roles %s, and those may not hold services", m.path(), strings.Join(m.Roles, ", ")))
		default:
			services = append(services, r)
		}
	}
	services, endpoints, entry := c.entrusted(s, m, services, base.endpoints, base.entry)
	removed := slices.Concat(base.removed, s.removed)
	if len(services) == 0 && len(endpoints) == 0 && entry == nil {
		return nil, removed
	}
	slices.SortFunc(services, func(a, b *config.Service) int { return cmp.Compare(a.Name, b.Name) })
	return c.assign(services, endpoints, entry), removed
}

// groupAssignment returns what the members of a group are assigned without being
// named.
func (c *Compiler) groupAssignment(g Group) assignment {
	key := g.Subject()
	if a, ok := c.assigned[key]; ok {
		return a
	}
	s := &subject{group: g, scope: snapshot.ScopeServiceAssignment}
	var a assignment
	for _, r := range c.spread {
		if s.takes(r, internalsnapshot.SectionServices) {
			a.services = append(a.services, r)
		}
	}
	for _, r := range c.services {
		if r.Expose == nil || !s.scope.MayHold(internalsnapshot.SectionEndpoints, g.Roles) || !g.serves(r.Organization) {
			continue
		}
		if !g.plays(r.Roles) {
			s.remove(r, LacksRole, fmt.Sprintf("it is exposed, and members with role %s, which would forward to it, have none of its roles %s", strings.Join(g.Roles, ", "), strings.Join(r.Roles, ", ")))
			continue
		}
		a.endpoints = append(a.endpoints, snapshot.Endpoint{Name: r.Name, Organization: r.Organization, Address: r.Expose.Address, Protocol: r.Expose.Protocol})
	}
	for _, r := range c.rolesOf(g) {
		if len(r.Issuers) == 0 && r.MaxSessions == 0 || !s.holds(r, []string{r.Name}, internalsnapshot.SectionEntry) {
			continue
		}
		// One role alone may hold an entry, and it has one record.
		a.entry = &snapshot.EntryPolicy{MaxSessions: r.MaxSessions}
		for _, i := range r.Issuers {
			a.entry.Issuers = append(a.entry.Issuers, snapshot.Issuer{Name: i.Name, URL: i.URL, Audiences: i.Audiences, Keys: i.Keys})
		}
	}
	a.removed = s.removed
	c.assigned[key] = a
	return a
}

// assign makes the content of services, and of what they need.
func (c *Compiler) assign(services []*config.Service, endpoints []snapshot.Endpoint, entry *snapshot.EntryPolicy) *snapshot.ServiceAssignment {
	a := &snapshot.ServiceAssignment{Endpoints: endpoints, Entry: entry}
	resources, secrets := c.needs(services)
	for _, s := range services {
		a.Services = append(a.Services, snapshot.Service{
			Name: s.Name, Organization: s.Organization, Type: s.Type, Addresses: s.Addresses, QoS: s.QoS,
			Resources: s.Resources, Secrets: s.Secrets, Parameters: settings(s),
		})
	}
	for _, r := range resources {
		a.Resources = append(a.Resources, snapshot.Resource{
			Name: r.Name, Organization: r.Organization, Type: r.Type, Address: r.Address, Connector: r.Connector,
			Parameters: parameters(r.Parameters), Secrets: r.Secrets,
		})
	}
	for _, s := range secrets {
		a.Secrets = append(a.Secrets, snapshot.SecretRef{Name: s.Name, Organization: s.Organization, Resolver: s.Resolver, Path: s.Path, Version: s.Version})
	}
	return a
}

// needs returns what services refer to, sorted. A set has no reference that leads
// nowhere, nor to what is not for all who get the service.
func (c *Compiler) needs(services []*config.Service) (resources []*config.Resource, secrets []*config.Secret) {
	seen := make(map[config.Key]bool)
	need := func(kind config.Kind, names []string, found func(config.Record)) {
		for _, name := range names {
			k := config.Key{Kind: kind, Name: name}
			if r, ok := c.in.Config.Get(k); ok && !seen[k] {
				seen[k] = true
				found(r)
			}
		}
	}
	secret := func(r config.Record) { secrets = append(secrets, r.(*config.Secret)) }
	for _, s := range services {
		need(config.KindSecret, s.Secrets, secret)
		need(config.KindResource, s.Resources, func(r config.Record) {
			resources = append(resources, r.(*config.Resource))
			need(config.KindSecret, r.(*config.Resource).Secrets, secret)
		})
	}
	slices.SortFunc(resources, func(a, b *config.Resource) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(secrets, func(a, b *config.Secret) int { return cmp.Compare(a.Name, b.Name) })
	return resources, secrets
}

// settings are the parameters of a service, with what registers its workload.
func settings(s *config.Service) []snapshot.Parameter {
	out := parameters(s.Parameters)
	if s.Workload != nil {
		out = append(out, parameters(s.Workload.Settings())...)
		slices.SortFunc(out, func(a, b snapshot.Parameter) int { return cmp.Compare(a.Name, b.Name) })
	}
	return out
}

func parameters(in []config.Parameter) []snapshot.Parameter {
	var out []snapshot.Parameter
	for _, p := range in {
		out = append(out, snapshot.Parameter{Name: p.Name, Value: p.Value})
	}
	return out
}

// Unplaced returns the services that are placed on members that there are not. No
// member is compiled that could tell.
func (c *Compiler) Unplaced() []Removed {
	s := &subject{scope: snapshot.ScopeServiceAssignment}
	for _, r := range c.services {
		for _, path := range r.Members {
			m, known := c.in.Member(path)
			switch {
			case !known:
				s.remove(r, UnknownMember, fmt.Sprintf("it is placed on %s, and there is no such member", path))
			case c.in.Banned(m.ID):
				s.remove(r, BannedMember, fmt.Sprintf("it is placed on %s, which is banned", path))
			}
		}
	}
	return s.removed
}
