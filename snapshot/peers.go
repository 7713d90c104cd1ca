package snapshot

import (
	"fmt"
	"slices"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// PeerDirectory is the content of scope peer_directory: the members that a group
// may talk to. Lists are sorted by name; no name is in a list twice.
type PeerDirectory struct {
	Active    []Peer // to work with
	Bootstrap []Peer // to find the fleet by when no coordinator answers
	Warm      []Peer // to keep in reserve
}

// Peer is one member of the cluster, and where it is reached.
type Peer struct {
	Name         string
	ID           identity.ID
	Addresses    []string // in the order to try them
	State        MemberState
	Organization string // "": the whole cluster's
}

func (d *PeerDirectory) scope() Scope { return ScopePeerDirectory }

func (d *PeerDirectory) walk(c *codec) {
	c.Begin()
	c.Member(snapshot.SectionActive)
	dict(c, &d.Active, snapshot.MaxPeers, validRecordName)
	c.Member(snapshot.SectionBootstrap)
	dict(c, &d.Bootstrap, snapshot.MaxPeers, validRecordName)
	c.Member(snapshot.SectionWarm)
	dict(c, &d.Warm, snapshot.MaxPeers, validRecordName)
	c.End()
}

func (p *Peer) key() *string  { return &p.Name }
func (p *Peer) owner() string { return p.Organization }

func (p *Peer) walk(c *codec) {
	c.Begin()
	c.Member("addresses")
	c.Names(&p.Addresses, snapshot.MaxReferences, maxAddress)
	c.Member("id")
	canonical.ID(c, &p.ID)
	c.Member("organization")
	c.Text(&p.Organization, maxName)
	c.Member("state")
	c.Text((*string)(&p.State), maxName)
	c.End()
}

func (d *PeerDirectory) grants(h *Header) string {
	if msg := grantsOf(h, snapshot.SectionActive, d.Active); msg != "" {
		return msg
	}
	if msg := grantsOf(h, snapshot.SectionBootstrap, d.Bootstrap); msg != "" {
		return msg
	}
	return grantsOf(h, snapshot.SectionWarm, d.Warm)
}

func (d *PeerDirectory) fault(h *Header) string {
	for section, peers := range d.sections() {
		for i := range peers {
			if msg := peers[i].fault(h); msg != "" {
				return about(section, peers[i].Name, msg)
			}
		}
	}
	return ""
}

// sections yields the lists in the order of their names.
func (d *PeerDirectory) sections() func(yield func(string, []Peer) bool) {
	return func(yield func(string, []Peer) bool) {
		_ = yield(snapshot.SectionActive, d.Active) && yield(snapshot.SectionBootstrap, d.Bootstrap) && yield(snapshot.SectionWarm, d.Warm)
	}
}

func (p *Peer) fault(h *Header) string {
	switch {
	case p.ID.Cluster() != h.ClusterID:
		return fmt.Sprintf("%.80q is of another cluster", p.ID)
	case p.State != MemberActive && p.State != MemberDraining:
		return fmt.Sprintf("state %.40q is not known", p.State)
	}
	return faultOfAddresses(p.Addresses)
}

// clone returns a copy that shares nothing that can be written.
func (d *PeerDirectory) clone() PeerDirectory {
	copied := func(peers []Peer) []Peer {
		peers = slices.Clone(peers)
		for i := range peers {
			peers[i].Addresses = slices.Clone(peers[i].Addresses)
		}
		return peers
	}
	return PeerDirectory{copied(d.Active), copied(d.Bootstrap), copied(d.Warm)}
}
