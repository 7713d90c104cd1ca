package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/workload"
	"github.com/fealty-io/fealty/snapshot"
)

// Kind is what a record is about. The set is closed.
type Kind string

// The kinds.
const (
	KindDegraded     Kind = "degraded"
	KindOrganization Kind = "organization"
	KindPeer         Kind = "peer"
	KindQoS          Kind = "qos"
	KindResource     Kind = "resource"
	KindRole         Kind = "role"
	KindRoute        Kind = "route"
	KindSecret       Kind = "secret"
	KindService      Kind = "service"
	KindStorage      Kind = "storage"
)

// Kinds returns all kinds, sorted.
func Kinds() []Kind {
	return []Kind{KindDegraded, KindOrganization, KindPeer, KindQoS, KindResource, KindRole, KindRoute, KindSecret, KindService, KindStorage}
}

// newRecord returns an empty record of a kind, or nil if there is no such kind.
func newRecord(kind Kind) Record {
	switch kind {
	case KindDegraded:
		return new(Degraded)
	case KindOrganization:
		return new(Organization)
	case KindPeer:
		return new(Peer)
	case KindQoS:
		return new(QoS)
	case KindResource:
		return new(Resource)
	case KindRole:
		return new(Role)
	case KindRoute:
		return new(Route)
	case KindSecret:
		return new(Secret)
	case KindService:
		return new(Service)
	case KindStorage:
		return new(Storage)
	}
	return nil
}

// Key names a record: names are unique among the records of a kind.
type Key struct {
	Kind Kind
	Name string
}

// String returns kind/name.
func (k Key) String() string { return string(k.Kind) + "/" + k.Name }

// Compare orders keys by kind and name.
func (k Key) Compare(other Key) int {
	if c := strings.Compare(string(k.Kind), string(other.Kind)); c != 0 {
		return c
	}
	return strings.Compare(k.Name, other.Name)
}

// KeyOf returns the key of a record.
func KeyOf(r Record) Key { return Key{r.Kind(), r.Base().Name} }

// CheckKey says why no record can have the key, or "".
func CheckKey(k Key) string {
	if newRecord(k.Kind) == nil {
		return fmt.Sprintf("%.40q is no kind of record", k.Kind)
	}
	if what, _ := nameFault(k.Kind, k.Name); what != "" {
		return what
	}
	return ""
}

// Record is one of the ten kinds: a pointer to a struct of this package. Lists of
// names are sorted, without duplicates, unless their order is said to mean something.
type Record interface {
	Kind() Kind
	Base() Common

	common() *Common
	fields() []field
	// faults reports what is wrong with fields together.
	faults(d *decoder)
}

// Common is what all records have.
type Common struct {
	Name string
	// Organization owns the record; "" means the whole cluster.
	Organization string
	// Roles narrow who gets the record to members with at least one of them. Empty
	// means all whose roles may hold it.
	Roles []string
}

// Base returns what a record has in common with all others.
func (c *Common) Base() Common    { return *c }
func (c *Common) common() *Common { return c }
func (c *Common) faults(*decoder) {}

// Organization is a tenant: a name that records can belong to. Members get theirs
// from the manifest.
type Organization struct {
	Common      // no Organization, no Roles
	Description string
}

// Role says what is offered under a role, which its name is.
type Role struct {
	Common      // no Organization, no Roles
	Sessions    *Sessions
	Issuers     []Issuer // sorted by name
	MaxSessions int      // 0: as many as it can
}

// Sessions bound sessions. A field of 0 has no bound of its own.
type Sessions struct {
	TTL, Idle time.Duration
	Max       int
}

// Issuer is somebody whose tokens an ingress accepts.
type Issuer struct {
	Name      string
	URL       string
	Audiences []string // at least one
	Keys      [][]byte // PKIX DER of public keys, sorted by their bytes; at least one
}

// Service is a workload.
type Service struct {
	Common
	Type      string
	Addresses []string // in the order to try them
	// Members, as kind/name, are those that run it. Empty: every member with the
	// record's roles and organization.
	Members    []string
	QoS        string   // a qos; "": none
	Resources  []string // resources
	Secrets    []string // secrets
	Parameters []Parameter
	Expose     *Endpoint // what an ingress forwards to; nil: nothing
	// Workload says which processes get an identity of their own; nil: none.
	Workload *Workload
}

// Workload says which processes of the members that run a service get the identity of a
// workload, and for how long. A process is one if it fits all that is set.
type Workload struct {
	ID        string  // of the identity, behind its kind; "": the name of the service
	UID, GID  *uint32 // that it runs as
	Path      string  // of its executable
	SHA256    string  // of its executable, in lower-case hexadecimal digits
	Unit      string  // the systemd unit that it runs in
	Container string  // the id of the container that it runs in
	TTL       time.Duration
}

// Selector is what w says of processes.
func (w *Workload) Selector() workload.Selector {
	return workload.Selector{UID: w.UID, GID: w.GID, Path: w.Path, SHA256: w.SHA256, Unit: w.Unit, Container: w.Container}
}

// Settings are w as parameters of its service, which nodes read.
func (w *Workload) Settings() []Parameter {
	var out []Parameter
	for _, p := range w.Selector().Settings(w.ID, w.TTL) {
		out = append(out, Parameter{p.Name, p.Value})
	}
	return out
}

// Endpoint is where something is reached, and how it is spoken to.
type Endpoint struct{ Address, Protocol string }

// Parameter is one setting; no place for a secret.
type Parameter struct{ Name, Value string }

// Resource is something outside of the fleet that services reach through a connector.
type Resource struct {
	Common
	Type       string
	Address    string
	Connector  string // "": none
	Parameters []Parameter
	Secrets    []string // secrets
}

// Classes of peers.
const (
	PeerActive    = "active"    // to work with
	PeerWarm      = "warm"      // to keep in reserve
	PeerBootstrap = "bootstrap" // to find the fleet by when no coordinator answers
)

// Peer is a member that others may talk to, and where.
type Peer struct {
	Common
	Member    string   // kind/name
	Addresses []string // in the order to try them; at least one
	Class     string   // PeerActive, PeerWarm or PeerBootstrap
}

// Route says where traffic goes.
type Route struct {
	Common
	Service  string        // a service; "": any
	Match    string        // what the traffic looks like; "": all of it
	To       []string      // peers, in the order of preference
	Via      []string      // peers to pass, in this order
	Priority int           // the highest one that matches counts
	TTL      time.Duration // how long a decision may be kept; 0: not
	Deny     bool          // it goes nowhere; To and Via are empty then
	Entry    bool          // it is about what comes in from outside
}

// QoS is a share of the network. Services name theirs.
type QoS struct {
	Common
	Priority int // the highest one goes first
	MinKbps  uint64
	MaxKbps  uint64 // 0: no bound
}

// Storage is a place to get snapshots from.
type Storage struct {
	Common
	URL      string
	Families []snapshot.Scope // the scopes that are there; at least one
	Priority int              // the highest one first
	Shard    *Shard           // nil: it is not divided
}

// Shard says who keeps the families of a storage.
type Shard struct {
	Replicas []string // peers; at least one
	Factor   int      // of them, how many are to have it
}

// Secret says where a secret is kept, and has no place for the secret.
type Secret struct {
	Common
	Resolver string // who is asked for it
	Path     string // what the resolver is asked for
	Version  string // "": the newest
}

// Degraded narrows what members may do out of reach: the least of all that are
// for a member counts, and the manifest is the ceiling of each.
type Degraded struct {
	Common
	Allow      []string       // permissions; nil: all that the manifest allows; empty: none
	Max        *time.Duration // nil: the manifest's
	RouteTTL   *time.Duration // nil: the manifest's
	SessionTTL *time.Duration // nil: Max
	Trials     []Trial        // sorted by scope
}

// Trial says how long a new snapshot of a scope is on trial after its activation.
type Trial struct {
	Scope    snapshot.Scope
	Duration time.Duration
}

func (*Degraded) Kind() Kind     { return KindDegraded }
func (*Organization) Kind() Kind { return KindOrganization }
func (*Peer) Kind() Kind         { return KindPeer }
func (*QoS) Kind() Kind          { return KindQoS }
func (*Resource) Kind() Kind     { return KindResource }
func (*Role) Kind() Kind         { return KindRole }
func (*Route) Kind() Kind        { return KindRoute }
func (*Secret) Kind() Kind       { return KindSecret }
func (*Service) Kind() Kind      { return KindService }
func (*Storage) Kind() Kind      { return KindStorage }
