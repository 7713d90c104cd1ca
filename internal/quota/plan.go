// Package quota defines the plan that coordinators send to all shards, and follows it on a shard:
// how many machines a tenant may have, and which providers there are.
//
// A [Plan] is small, and travels whole: a shard has one version of it or another, and never a part
// of two. See docs/explanation/actuation.md.
//
// A [Follower] keeps the newest plan on disk, so that a shard which starts while no coordinator
// answers keeps to it. A shard that was never told a plan knows no bound, and so nothing is known
// to it: it has to wait.
package quota

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/document"
)

// Kind is that of a plan as a signed document: see package order.
const Kind = "shard-plan"

// Limits of a plan.
const (
	MaxQuotas    = 1000
	MaxProviders = 200
	MaxMachines  = 1_000_000_000 // of one quota
	MaxAddress   = 260           // bytes: a name of 253, and a port
	MaxBytes     = 1 << 20       // of a plan as it travels
)

// Quota bounds how many machines of a profile a tenant has.
type Quota struct {
	Tenant   string `json:"tenant"` // without a slash
	Profile  string `json:"profile"`
	Machines int    `json:"machines"` // 0: none
}

// Name is "<tenant>/<profile>".
func (q Quota) Name() string { return q.Tenant + "/" + q.Profile }

// Provider is one that all shards know.
type Provider struct {
	// Name is that in its certificate: spiffe://CLUSTER/provider/NAME.
	Name string `json:"name"`
	// Address is HOST:PORT.
	Address string `json:"address"`
	// Price is what each of its machines costs in an hour, whatever the provider says; nil: what
	// it says.
	Price *float64 `json:"price,omitempty"`
}

// Plan is what shards are told. The zero Plan bounds nobody, and names no provider.
type Plan struct {
	Quotas    []Quota    `json:"quotas,omitempty"`    // sorted by [Quota.Name]
	Providers []Provider `json:"providers,omitempty"` // sorted by name
}

// ErrInvalid is matched by every refusal of a plan, or of a part of one.
var ErrInvalid = errors.New("invalid plan")

// FieldError says what of a plan cannot be.
type FieldError struct {
	Of      string // quota "acme/web", provider "laptop", or nothing of the whole plan
	Field   string // "tenant", "profile", "machines", "name", "address", "price", "place", "quotas", "providers"
	Problem string
}

func (e *FieldError) Error() string {
	of := "a plan"
	if e.Of != "" {
		of = e.Of
	}
	return "quota: " + of + ": its " + e.Field + " " + e.Problem
}

// Is reports that a FieldError matches [ErrInvalid].
func (e *FieldError) Is(target error) bool { return target == ErrInvalid }

// Check returns a [*FieldError] for a quota that cannot be.
func (q Quota) Check() error {
	wrong := func(field, problem string) error {
		return &FieldError{fmt.Sprintf("quota %.*q", 2*document.MaxNameBytes+1, q.Name()), field, problem}
	}
	if problem := document.NameProblem(q.Tenant); problem != "" {
		return wrong("tenant", problem)
	}
	if problem := document.NameProblem(q.Profile); problem != "" {
		return wrong("profile", problem)
	}
	switch {
	case strings.Contains(q.Tenant, "/"):
		return wrong("tenant", "has a slash, which stands between the tenant and the profile")
	case q.Machines < 0 || q.Machines > MaxMachines:
		return wrong("machines", fmt.Sprintf("is %d, want 0 to %d", q.Machines, MaxMachines))
	}
	return nil
}

// Check returns a [*FieldError] for a provider that cannot be.
func (p Provider) Check() error {
	wrong := func(field, problem string) error {
		return &FieldError{fmt.Sprintf("provider %.*q", document.MaxNameBytes, p.Name), field, problem}
	}
	if err := CheckProvider(p.Name); err != nil {
		return err
	}
	if problem := addressProblem(p.Address); problem != "" {
		return wrong("address", problem)
	}
	if p.Price != nil && (math.IsNaN(*p.Price) || math.IsInf(*p.Price, 0) || *p.Price < 0) {
		return wrong("price", fmt.Sprintf("is %v, want a finite number that is not negative", *p.Price))
	}
	return nil
}

// Same reports whether two say the same.
func (p Provider) Same(other Provider) bool {
	price := (p.Price == nil) == (other.Price == nil) && (p.Price == nil || *p.Price == *other.Price)
	return p.Name == other.Name && p.Address == other.Address && price
}

// CheckProvider returns a [*FieldError] for what is no name of a provider.
func CheckProvider(name string) error {
	problem := document.NameProblem(name)
	if problem == "" {
		// Of whatever cluster: the name alone is looked at.
		if _, err := identity.New("any.example", identity.Provider, name); err != nil {
			problem = "is none of a member: " + err.Error()
		}
	}
	if problem == "" {
		return nil
	}
	return &FieldError{fmt.Sprintf("provider %.*q", document.MaxNameBytes, name), "name", problem}
}

func addressProblem(address string) string {
	if len(address) > MaxAddress {
		return fmt.Sprintf("has %d bytes, above %d", len(address), MaxAddress)
	}
	host, port, err := net.SplitHostPort(address)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || n == 0 || strconv.FormatUint(n, 10) != port || !isHost(host) {
		return fmt.Sprintf("is %q, want HOST:PORT", address)
	}
	return ""
}

// isHost reports whether host is an IP address without a zone, or made of what names of DNS are.
func isHost(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Zone() == ""
	}
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"
	return host != "" && strings.Trim(host, allowed) == ""
}

// Check returns a [*FieldError] for a plan that cannot be.
func (p Plan) Check() error {
	switch {
	case len(p.Quotas) > MaxQuotas:
		return &FieldError{"", "quotas", fmt.Sprintf("are %d, above %d", len(p.Quotas), MaxQuotas)}
	case len(p.Providers) > MaxProviders:
		return &FieldError{"", "providers", fmt.Sprintf("are %d, above %d", len(p.Providers), MaxProviders)}
	}
	for i, q := range p.Quotas {
		if err := q.Check(); err != nil {
			return err
		}
		if i > 0 && p.Quotas[i-1].Name() >= q.Name() {
			return &FieldError{fmt.Sprintf("quota %q", q.Name()), "place",
				"is not after the one before, or it is there twice"}
		}
	}
	for i, v := range p.Providers {
		if err := v.Check(); err != nil {
			return err
		}
		if i > 0 && p.Providers[i-1].Name >= v.Name {
			return &FieldError{fmt.Sprintf("provider %q", v.Name), "place",
				"is not after the one before, or it is there twice"}
		}
	}
	return nil
}

// Encode returns a plan as it travels, in any order of its parts. The error is that of [Plan.Check].
func (p Plan) Encode() ([]byte, error) {
	byQuota := func(a, b Quota) int { return cmp.Compare(a.Name(), b.Name()) }
	byProvider := func(a, b Provider) int { return cmp.Compare(a.Name, b.Name) }
	p = Plan{Quotas: slices.SortedFunc(slices.Values(p.Quotas), byQuota),
		Providers: slices.SortedFunc(slices.Values(p.Providers), byProvider)}
	if err := p.Check(); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	to := json.NewEncoder(&out)
	to.SetEscapeHTML(false) // six bytes for one would pass the bound
	if err := to.Encode(p); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// DecodePlan reads a plan as [Plan.Encode] writes it, and nothing that says the same in other words:
// two readers could take it for two plans. A part that it does not know is refused, as it could be a
// bound: the shard keeps the plan of before. Errors match [ErrInvalid].
func DecodePlan(text []byte) (Plan, error) {
	if len(text) > MaxBytes {
		return Plan{}, fmt.Errorf("%w: it has %d bytes, limit %d", ErrInvalid, len(text), MaxBytes)
	}
	var p Plan
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	if err := in.Decode(&p); err != nil {
		return Plan{}, fmt.Errorf("%w: %v", ErrInvalid, err)
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return Plan{}, fmt.Errorf("%w: there is more after it", ErrInvalid)
	}
	if err := p.Check(); err != nil {
		return Plan{}, err
	}
	if again, err := p.Encode(); err != nil || !bytes.Equal(again, text) {
		return Plan{}, fmt.Errorf("%w: it is spelled in another way than its own", ErrInvalid)
	}
	return p, nil
}

// DigestOf is the digest by which a signed document names a plan as it travels.
func DigestOf(text []byte) [sha256.Size]byte { return sha256.Sum256(text) }
