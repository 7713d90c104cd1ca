package node

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/resolver"

	"github.com/fealty-io/fealty/internal/mesh/balancer"
	"github.com/fealty-io/fealty/snapshot"
)

// PeerDirectory resolves gRPC targets by the peer_directory that is in use on the node, for a client
// of your own; those of [Node.Dial] and [Node.NewPool] have it:
//
//	peers:///             each active peer
//	peers:///eu-1,eu-2    peers by their names, in whichever list of the directory
//	peers://bootstrap/    each peer of another list
//
// The node itself is none of them, and neither is a draining member, unless it is named. Addresses
// change when the directory does; the last known ones stay in use while it cannot be read. They are
// hints: each peer has to prove the identity that the client expects.
func (n *Node) PeerDirectory() resolver.Builder {
	return balancer.Directory{Name: "peers", Follow: n.peers}
}

// peers yields the endpoints of a target, and each change of them.
func (n *Node) peers(ctx context.Context, target resolver.Target) iter.Seq2[[]resolver.Endpoint, error] {
	return func(yield func([]resolver.Endpoint, error) bool) {
		for content, err := range n.Watch(ctx, snapshot.ScopePeerDirectory) {
			var set []resolver.Endpoint
			if err == nil {
				set, err = n.peersOf(content.JSON, target.URL.Host, target.Endpoint())
			}
			if !yield(set, err) {
				return
			}
		}
	}
}

// peer is a [snapshot.Peer] as its content is written.
type peer struct {
	ID        string               `json:"id"`
	Addresses []string             `json:"addresses"`
	State     snapshot.MemberState `json:"state"`
}

// peersOf reads from a directory the peers of a list, or those of some names.
func (n *Node) peersOf(directory []byte, list, names string) ([]resolver.Endpoint, error) {
	var lists map[string]map[string]peer
	if err := json.Unmarshal(directory, &lists); err != nil {
		return nil, fmt.Errorf("node: read the peer_directory: %w", err)
	}
	if list == "" {
		list = "active"
	}
	wanted := lists[list]
	if wanted == nil {
		return nil, fmt.Errorf("node: the peer_directory has no list %q: use %s", list,
			strings.Join(slices.Sorted(maps.Keys(lists)), ", "))
	}
	if names != "" {
		wanted = make(map[string]peer)
		for name := range strings.SplitSeq(names, ",") {
			for _, l := range lists {
				if p, ok := l[name]; ok {
					wanted[name] = p
				}
			}
		}
	}
	var set []resolver.Endpoint
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		p := wanted[name]
		if p.ID == n.ID().String() || names == "" && p.State != snapshot.MemberActive {
			continue
		}
		var e resolver.Endpoint
		for _, a := range p.Addresses {
			e.Addresses = append(e.Addresses, resolver.Address{Addr: a})
		}
		set = append(set, e)
	}
	return set, nil
}
