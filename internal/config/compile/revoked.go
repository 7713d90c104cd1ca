package compile

import (
	"fmt"
	"slices"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/config"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// withdraw returns what is left of a group's content without what is revoked by name,
// as each of its members would leave it out itself, and says what that was.
func (c *Compiler) withdraw(s *subject, content snapshot.Content) snapshot.Content {
	if !c.revokes {
		return content
	}
	left := snapshot.WithoutRevoked(content, c.in.Revoked, identity.ID{})
	switch was := content.(type) {
	case *snapshot.PeerDirectory:
		is := left.(*snapshot.PeerDirectory)
		name := func(p snapshot.Peer) (string, int) { return p.Name, 0 }
		withdrawn(s, config.KindPeer, was.Active, is.Active, name)
		withdrawn(s, config.KindPeer, was.Bootstrap, is.Bootstrap, name)
		withdrawn(s, config.KindPeer, was.Warm, is.Warm, name)
	case *snapshot.RoutePolicy:
		is := left.(*snapshot.RoutePolicy)
		name := func(r snapshot.Route) (string, int) { return r.Name, len(r.To) }
		withdrawn(s, config.KindRoute, was.Entry, is.Entry, name)
		withdrawn(s, config.KindRoute, was.Routes, is.Routes, name)
	case *snapshot.StorageDirectory:
		is := left.(*snapshot.StorageDirectory)
		withdrawn(s, config.KindStorage, was.Endpoints, is.Endpoints, func(e snapshot.StorageEndpoint) (string, int) { return e.Name, 0 })
		withdrawn(s, config.KindStorage, was.Shards, is.Shards, func(r snapshot.StorageShard) (string, int) { return r.Name, len(r.Replicas) })
	case *snapshot.DegradedModePolicy:
		for _, r := range c.degraded {
			for _, a := range r.Allow {
				if s.group.has(r.Base()) && c.in.Revoked.Revokes(internalsnapshot.RevokedPermission, a) {
					s.remove(r, Revoked, fmt.Sprintf("the permission %s is revoked", a))
				}
			}
		}
	}
	return left
}

// withdrawn notes the records of a list that is does not have any more, and those of
// which it has less. describe returns the name of one, and how many others it names.
func withdrawn[T any](s *subject, kind config.Kind, was, is []T, describe func(T) (name string, names int)) {
	left := make(map[string]int, len(is))
	for _, r := range is {
		name, names := describe(r)
		left[name] = names
	}
	for _, r := range was {
		name, names := describe(r)
		detail := "a peer that it names is revoked"
		if n, ok := left[name]; !ok {
			detail = "it, or what it stands for or leads to, is revoked"
		} else if n == names {
			continue
		}
		s.removed = append(s.removed, Removed{s.scope, config.Key{Kind: kind, Name: name}, Revoked, detail})
	}
}

// entrusted takes from what a member is assigned the services that are revoked, and
// all of it if one of its roles is.
func (c *Compiler) entrusted(s *subject, m Member, services []*config.Service, endpoints []snapshot.Endpoint, entry *snapshot.EntryPolicy) ([]*config.Service, []snapshot.Endpoint, *snapshot.EntryPolicy) {
	if !c.revokes {
		return services, endpoints, entry
	}
	gone := c.in.Revoked.Withdraws(m.ID, m.Roles)
	revoked := func(r *config.Service) bool {
		switch {
		case c.in.Revoked.RevokesService(m.ID, r.Name):
			s.remove(r, Revoked, "it is revoked")
		case gone:
			s.remove(r, Revoked, fmt.Sprintf("a role of member %s is revoked", m.path()))
		default:
			return false
		}
		return true
	}
	services = slices.DeleteFunc(slices.Clone(services), revoked)
	endpoints = slices.DeleteFunc(slices.Clone(endpoints), func(e snapshot.Endpoint) bool {
		r, ok := c.in.Config.Get(config.Key{Kind: config.KindService, Name: e.Name})
		return !ok || revoked(r.(*config.Service))
	})
	if entry != nil && gone {
		for _, r := range c.rolesOf(m.Group) {
			s.remove(r, Revoked, fmt.Sprintf("the role is revoked for member %s", m.path()))
		}
		entry = nil
	}
	return services, endpoints, entry
}
