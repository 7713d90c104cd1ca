package snapshot

import (
	"fmt"
	"github.com/fealty-io/fealty/internal/canonical"
	"github.com/fealty-io/fealty/internal/snapshot"
	"slices"
)

// StorageDirectory is the content of scope storage_directory: where snapshots are
// kept beside the coordinators, and who keeps which shard of them. Lists are
// sorted by name or, of names, as strings, without duplicates.
type StorageDirectory struct {
	Endpoints []StorageEndpoint
	Shards    []StorageShard
}

// StorageEndpoint is a place to get snapshots from. Content from there is
// verified as if anybody had brought it.
type StorageEndpoint struct {
	Name         string
	Organization string // "": the whole cluster's
	URL          string
	Families     []Scope // the scopes that are there; at least one
	Priority     int     // the highest one first
}

// StorageShard is a part of the stored snapshots, and the members that keep it.
type StorageShard struct {
	Name         string
	Organization string   // "": the whole cluster's
	Families     []Scope  // the scopes in it; at least one
	Replicas     []string // peers
	Factor       int      // of them, how many are to have it; at least 1
}

func (d *StorageDirectory) scope() Scope { return ScopeStorageDirectory }

func (d *StorageDirectory) walk(c *codec) {
	c.Begin()
	c.Member(snapshot.SectionEndpoints)
	dict(c, &d.Endpoints, snapshot.MaxRecords, validRecordName)
	c.Member(snapshot.SectionShards)
	dict(c, &d.Shards, snapshot.MaxRecords, validRecordName)
	c.End()
}

func (e *StorageEndpoint) key() *string  { return &e.Name }
func (e *StorageEndpoint) owner() string { return e.Organization }

func (e *StorageEndpoint) walk(c *codec) {
	c.Begin()
	c.Member("families")
	walkScopes(c, &e.Families)
	c.Member("organization")
	c.Text(&e.Organization, maxName)
	c.Member("priority")
	c.Number(&e.Priority, canonical.MaxSeconds)
	c.Member("url")
	c.Text(&e.URL, snapshot.MaxText)
	c.End()
}

func (s *StorageShard) key() *string  { return &s.Name }
func (s *StorageShard) owner() string { return s.Organization }

func (s *StorageShard) walk(c *codec) {
	c.Begin()
	c.Member("factor")
	c.Number(&s.Factor, snapshot.MaxReferences)
	c.Member("families")
	walkScopes(c, &s.Families)
	c.Member("organization")
	c.Text(&s.Organization, maxName)
	c.Member("replicas")
	c.Names(&s.Replicas, snapshot.MaxReferences, maxRecordName)
	c.End()
}

func (d *StorageDirectory) grants(h *Header) string {
	if msg := grantsOf(h, snapshot.SectionEndpoints, d.Endpoints); msg != "" {
		return msg
	}
	return grantsOf(h, snapshot.SectionShards, d.Shards)
}

func (d *StorageDirectory) fault(*Header) string {
	for i := range d.Endpoints {
		e := &d.Endpoints[i]
		msg := faultOfFamilies(e.Families)
		if !validLine(e.URL, snapshot.MaxText) {
			msg = fmt.Sprintf("%.80q is no URL", e.URL)
		}
		if msg != "" {
			return about(snapshot.SectionEndpoints, e.Name, msg)
		}
	}
	for i := range d.Shards {
		s := &d.Shards[i]
		msg := faultOfFamilies(s.Families)
		if msg == "" {
			msg = faultOfReferences(s.Replicas)
		}
		if s.Factor < 1 {
			msg = "a factor of 0"
		}
		if msg != "" {
			return about(snapshot.SectionShards, s.Name, msg)
		}
	}
	return ""
}

func faultOfFamilies(families []Scope) string {
	if len(families) == 0 {
		return "no families"
	}
	return faultOfScopes(families)
}

// clone returns a copy that shares nothing that can be written.
func (d *StorageDirectory) clone() StorageDirectory {
	n := StorageDirectory{slices.Clone(d.Endpoints), slices.Clone(d.Shards)}
	for i := range n.Endpoints {
		n.Endpoints[i].Families = slices.Clone(n.Endpoints[i].Families)
	}
	for i := range n.Shards {
		n.Shards[i].Families, n.Shards[i].Replicas = slices.Clone(n.Shards[i].Families), slices.Clone(n.Shards[i].Replicas)
	}
	return n
}
