// Package domains decides and keeps which member owns which domain, so that at most one does (I7).
//
// A domain is a name under which resources stand together, such as a shard of a database or the
// machines of a region. It passes from one owner to the next in two steps: the owner is asked to
// let go, and the next one owns it once that is acknowledged. Each owner has an ownership, a number
// that only grows and that receivers of fenced requests compare. A member learns what it owns by
// asking, and acts once the receivers of the domain have promised its ownership: see
// docs/explanation/fencing.md.
//
// [Domain] decides, without a store, a clock or a member. The rest says what is stored, who may
// ask, and what is signed after it is durable.
package domains

import (
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/grants"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/member"
)

// Prefix is where the record of each domain stands, by its name.
const Prefix = "domain/"

// Limits of domains. A member's are within its own record, and one answer holds them all.
const (
	MaxDomains = 10_000
	MaxOwned   = 500
	maxPage    = 1000
	page       = 100
)

// KeyOf is where the record of a domain stands.
func KeyOf(name string) string { return Prefix + name }

// Record is what is stored of a domain.
type Record struct {
	Domain
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	// Lease is how long the owner owns it after it was told so last. It is fixed when the owner
	// gets it, as whoever waits for its end has to know the longest that was given.
	Lease time.Duration `json:"lease"`
}

// Config is what Domains are made of.
type Config struct {
	Head     *authority.Head
	Bundle   *current.Current
	Election *election.Election
	Asking   member.Asking
	Grants   *grants.Grants // which process of a member is served
	Log      *slog.Logger
	Now      func() time.Time
	Elapsed  func() time.Duration // a clock that nobody sets, and that goes on in suspend
}

// Domains serve DomainService. Make them with [New].
type Domains struct {
	cfg   Config
	noted atomic.Pointer[attention] // by the leader; nil: nothing yet
}

// New returns Domains of which none was read.
func New(cfg Config) *Domains { return &Domains{cfg: cfg} }

// RegisterServices registers the service over domains.
func (d *Domains) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterDomainServiceServer(to, domainServer{d: d})
}
