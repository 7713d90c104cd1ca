package compile

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/snapshot"
)

// Fit leaves out of a content that is too large as little as it takes for fits to
// hold: of peers those in reserve first and those to find the fleet by last, of
// routes those of the lowest priority, of everything else the last by name. Routes
// that deny, bounds of sessions and what an ingress lets in stay, as to leave them
// out would allow what they forbid. False: not even without all the others it fits.
func (c *Compiler) Fit(content snapshot.Content, fits func(snapshot.Content) bool) (snapshot.Content, []Removed, bool) {
	var all []part
	var with func(kept []part) snapshot.Content
	var scope snapshot.Scope
	switch v := content.(type) {
	case *snapshot.PeerDirectory:
		scope = snapshot.ScopePeerDirectory
		all = slices.Concat(partsOf(0, config.KindPeer, v.Bootstrap, func(p snapshot.Peer) string { return p.Name }),
			partsOf(1, config.KindPeer, v.Active, func(p snapshot.Peer) string { return p.Name }),
			partsOf(2, config.KindPeer, v.Warm, func(p snapshot.Peer) string { return p.Name }))
		with = func(kept []part) snapshot.Content {
			return &snapshot.PeerDirectory{Bootstrap: pick(0, kept, v.Bootstrap), Active: pick(1, kept, v.Active), Warm: pick(2, kept, v.Warm)}
		}
	case *snapshot.RoutePolicy:
		scope = snapshot.ScopeRoutePolicy
		for list, routes := range [][]snapshot.Route{v.Entry, v.Routes} {
			for i, r := range routes {
				all = append(all, part{list, i, config.Key{Kind: config.KindRoute, Name: r.Name}, -r.Priority, r.Deny})
			}
		}
		slices.SortStableFunc(all, func(a, b part) int { return cmp.Compare(a.rank, b.rank) })
		with = func(kept []part) snapshot.Content {
			return &snapshot.RoutePolicy{Entry: pick(0, kept, v.Entry), Routes: pick(1, kept, v.Routes)}
		}
	case *snapshot.QoSPolicy:
		scope = snapshot.ScopeQoSPolicy
		all = partsOf(0, config.KindQoS, v.Classes, func(q snapshot.QoSClass) string { return q.Name })
		with = func(kept []part) snapshot.Content {
			return &snapshot.QoSPolicy{Classes: pick(0, kept, v.Classes), Sessions: v.Sessions}
		}
	case *snapshot.StorageDirectory:
		scope = snapshot.ScopeStorageDirectory
		all = slices.Concat(partsOf(0, config.KindStorage, v.Endpoints, func(e snapshot.StorageEndpoint) string { return e.Name }),
			partsOf(1, config.KindStorage, v.Shards, func(s snapshot.StorageShard) string { return s.Name }))
		with = func(kept []part) snapshot.Content {
			return &snapshot.StorageDirectory{Endpoints: pick(0, kept, v.Endpoints), Shards: pick(1, kept, v.Shards)}
		}
	case *snapshot.ServiceAssignment:
		scope = snapshot.ScopeServiceAssignment
		all = slices.Concat(partsOf(0, config.KindService, v.Services, func(s snapshot.Service) string { return s.Name }),
			partsOf(1, config.KindService, v.Endpoints, func(e snapshot.Endpoint) string { return e.Name }))
		with = func(kept []part) snapshot.Content {
			var services []*config.Service
			for _, s := range pick(0, kept, v.Services) {
				if r, ok := c.in.Config.Get(config.Key{Kind: config.KindService, Name: s.Name}); ok {
					services = append(services, r.(*config.Service))
				}
			}
			return c.assign(services, pick(1, kept, v.Endpoints), v.Entry)
		}
	default:
		return nil, nil, false
	}
	var stay, rest []part
	for _, p := range all {
		if p.stays {
			stay = append(stay, p)
		} else {
			rest = append(rest, p)
		}
	}
	// The largest count that fits: more never fits where less does not.
	n := sort.Search(len(rest)+1, func(n int) bool { return !fits(with(slices.Concat(stay, rest[:n]))) }) - 1
	if n < 0 {
		return nil, nil, false
	}
	var removed []Removed
	for _, p := range rest[n:] {
		removed = append(removed, Removed{scope, p.record, TooLarge, fmt.Sprintf("the content is too large with it: %d of %d records are left out", len(rest)-n, len(all))})
	}
	return with(slices.Concat(stay, rest[:n])), removed, true
}

// part is one record of one list of a content.
type part struct {
	list, index int
	record      config.Key
	rank        int // the lowest first
	stays       bool
}

func partsOf[T any](list int, kind config.Kind, items []T, name func(T) string) []part {
	out := make([]part, len(items))
	for i, item := range items {
		out[i] = part{list: list, index: i, record: config.Key{Kind: kind, Name: name(item)}}
	}
	return out
}

// pick returns the items of a list that are kept, in their order.
func pick[T any](list int, kept []part, items []T) []T {
	keep := make([]bool, len(items))
	for _, p := range kept {
		if p.list == list {
			keep[p.index] = true
		}
	}
	var out []T
	for i, item := range items {
		if keep[i] {
			out = append(out, item)
		}
	}
	return out
}
