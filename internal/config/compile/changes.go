package compile

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/config"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Changes says whom the step from one config to another can concern. It errs on
// one side alone: whoever is not among them gets equal contents from both.
type Changes struct {
	groups   []config.Common // who has one of them is concerned; of groups
	roles    map[string]bool // who has one of these roles is
	assigned []config.Common // as groups, of members' assignments
	exposed  []config.Common // as assigned, of those that forward
	named    map[string]bool // members by path
}

// ChangesSince returns the step from old to c.
func (c *Compiler) ChangesSince(old *Compiler) *Changes {
	ch := &Changes{roles: make(map[string]bool), named: make(map[string]bool)}
	changed := make(map[config.Key]bool)
	for _, x := range []struct{ this, other *Compiler }{{old, c}, {c, old}} {
		for k := range x.this.in.Config.All() {
			_, now, _ := x.this.in.Config.Canonical(k)
			if _, was, ok := x.other.in.Config.Canonical(k); !ok || was != now {
				changed[k] = true
			}
		}
	}
	for k := range changed {
		switch k.Kind {
		case config.KindRole:
			ch.roles[k.Name] = true
		case config.KindDegraded, config.KindPeer, config.KindQoS, config.KindRoute, config.KindStorage:
			for _, x := range []*Compiler{old, c} {
				if r, ok := x.in.Config.Get(k); ok {
					ch.groups = append(ch.groups, r.Base())
				}
			}
		}
	}
	ch.groups = distinct(ch.groups)
	for _, x := range []*Compiler{old, c} {
		for _, s := range x.services {
			if !x.concerns(s, changed) {
				continue
			}
			if len(s.Members) == 0 {
				ch.assigned = append(ch.assigned, s.Base())
			}
			if s.Expose != nil {
				// For any roles: that a service leaves them out is reported.
				ch.exposed = append(ch.exposed, config.Common{Organization: s.Organization})
			}
			for _, path := range s.Members {
				ch.named[path] = true
			}
		}
	}
	ch.assigned, ch.exposed = distinct(ch.assigned), distinct(ch.exposed)
	return ch
}

// concerns reports whether a service, or what it needs, is among changed.
func (c *Compiler) concerns(s *config.Service, changed map[config.Key]bool) bool {
	if changed[config.KeyOf(s)] {
		return true
	}
	resources, secrets := c.needs([]*config.Service{s})
	return slices.ContainsFunc(resources, func(r *config.Resource) bool { return changed[config.KeyOf(r)] }) ||
		slices.ContainsFunc(secrets, func(r *config.Secret) bool { return changed[config.KeyOf(r)] })
}

// distinct drops names, and what is then there twice.
func distinct(in []config.Common) []config.Common {
	seen := make(map[string]bool)
	return slices.DeleteFunc(in, func(r config.Common) bool {
		key := r.Organization + " " + strings.Join(r.Roles, " ")
		defer func() { seen[key] = true }()
		return seen[key]
	})
}

// Group reports whether the contents of a group can be concerned.
func (ch *Changes) Group(g Group) bool {
	return slices.ContainsFunc(g.Roles, func(role string) bool { return ch.roles[role] }) || slices.ContainsFunc(ch.groups, g.has)
}

// Member reports whether the service_assignment of a member can be concerned.
func (ch *Changes) Member(path string, g Group) bool { return ch.named[path] || ch.Members(g) }

// Named yields the members, by path, whose service_assignment can be concerned because a record names them.
func (ch *Changes) Named() iter.Seq[string] { return maps.Keys(ch.named) }

// Members reports whether the service_assignments of all members of a group can be concerned.
func (ch *Changes) Members(g Group) bool {
	return slices.ContainsFunc(g.Roles, func(role string) bool { return ch.roles[role] }) || slices.ContainsFunc(ch.assigned, g.has) ||
		snapshot.ScopeServiceAssignment.MayHold(internalsnapshot.SectionEndpoints, g.Roles) &&
			slices.ContainsFunc(ch.exposed, g.has)
}

// Sees reports whether what a group gets can depend on the member of a path: a
// peer of it names the member.
func (c *Compiler) Sees(g Group, path string) bool {
	return slices.ContainsFunc(c.named[path], func(p *config.Peer) bool { return g.has(p.Base()) })
}

// Names reports whether a record names the member of a path.
func (c *Compiler) Names(path string) bool { return len(c.named[path])+len(c.placed[path]) > 0 }
