package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/fealty-io/fealty/internal/document"
)

// Limits of what a provider lists.
const (
	MaxMachines      = 1_000_000             // of one provider
	MaxNameBytes     = document.MaxNameBytes // of an id, a provider, a profile, a domain, a tenant, an operation
	MaxErrorBytes    = 1 << 10               // of the last error of a machine
	MaxRevisionBytes = 1 << 10               // of the revision of a listing
)

// State is where a machine is in its life.
//
//	speculative → creating → idle → configuring → configured → draining → idle → deleting
//
// A machine whose operation failed is failed, from wherever it was.
type State string

// The states.
const (
	Speculative State = "speculative" // it could be made
	Creating    State = "creating"
	Idle        State = "idle" // it is there and nobody's
	Configuring State = "configuring"
	Configured  State = "configured" // it works for its tenant
	Draining    State = "draining"
	Deleting    State = "deleting"
	Failed      State = "failed" // see its last error
)

// Transitional reports whether an operation is under way in the state: nothing else is
// begun with the machine until it is over.
func (s State) Transitional() bool {
	return s == Creating || s == Configuring || s == Draining || s == Deleting
}

// tenancy says of each state whether a machine in it has a tenant.
var tenancy = map[State]struct{ must, may bool }{
	Speculative: {}, Creating: {}, Idle: {}, Deleting: {},
	Configuring: {must: true, may: true}, Configured: {must: true, may: true}, Draining: {must: true, may: true},
	Failed: {may: true},
}

// MachineKey names a machine: its provider, and its id there.
type MachineKey struct{ Provider, ID string }

func (k MachineKey) String() string { return k.Provider + "/" + k.ID }

// Compare orders keys by provider, then by id.
func (k MachineKey) Compare(other MachineKey) int {
	return cmp.Or(cmp.Compare(k.Provider, other.Provider), cmp.Compare(k.ID, other.ID))
}

// Machine is what a provider says of a machine. One in an [Inventory] is never changed.
type Machine struct {
	MachineKey
	// Profile is what it can be used for: demand names a profile.
	Profile string
	// Domain is what has to be owned for the machine to be acted on; "" if nobody assigns it.
	Domain string
	State  State

	// Tenant is for whom it works, with the priority of the demand that it was configured for.
	Tenant   string
	Priority int32

	// Price is what it costs in an hour, in whatever unit all providers of a shard share.
	// It is finite and not negative.
	Price float64
	// Interruption is the probability that its provider takes it away within a day: 0 to 1.
	Interruption float64

	// Operation is the id of the operation that was accepted last.
	Operation string
	LastError string
}

// ErrInvalid is matched by every [*InvalidError].
var ErrInvalid = errors.New("invalid listing")

// InvalidError says what of a listing cannot be. Nothing of the listing was taken.
type InvalidError struct {
	Machine MachineKey // ID is "" where it is about the whole listing
	Field   string     // "id", "profile", "state", "price" …
	Problem string
}

func (e *InvalidError) Error() string {
	what := "the listing of provider " + fmt.Sprintf("%.*q", MaxNameBytes, e.Machine.Provider)
	if e.Machine.ID != "" {
		what += fmt.Sprintf(": machine %.*q", MaxNameBytes, e.Machine.ID)
	}
	return fmt.Sprintf("scheduler: %s: its %s %s: nothing of it was taken, and nothing is decided about the "+
		"machines of this provider until it lists them right: mend the provider", what, e.Field, e.Problem)
}

// Is reports that an InvalidError matches [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Check returns an [*InvalidError] if the machine cannot be.
func (m *Machine) Check() error {
	wrong := func(field, problem string, args ...any) error {
		return &InvalidError{m.MachineKey, field, fmt.Sprintf(problem, args...)}
	}
	for _, name := range []struct {
		field, value string
		empty        bool
	}{
		{"provider", m.Provider, false}, {"id", m.ID, false}, {"profile", m.Profile, false}, {"domain", m.Domain, true},
		{"tenant", m.Tenant, true}, {"operation", m.Operation, true},
	} {
		if problem := document.NameProblem(name.value); problem != "" && (name.value != "" || !name.empty) {
			return wrong(name.field, "%s", problem)
		}
	}
	has, known := tenancy[m.State]
	switch {
	case !known:
		return wrong("state", "is %.40q, and no state that this release knows", m.State)
	case has.must && m.Tenant == "":
		return wrong("tenant", "is missing, and it is %s", m.State)
	case !has.may && m.Tenant != "":
		return wrong("tenant", "is %q, and it is %s, which is nobody's", m.Tenant, m.State)
	case math.IsNaN(m.Price) || math.IsInf(m.Price, 0) || m.Price < 0:
		return wrong("price", "is %v, want a finite number that is not negative", m.Price)
	case math.IsNaN(m.Interruption) || m.Interruption < 0 || m.Interruption > 1:
		return wrong("interruption", "is %v, want a probability, 0 to 1", m.Interruption)
	case len(m.LastError) > MaxErrorBytes:
		return wrong("last error", "has %d bytes, above %d", len(m.LastError), MaxErrorBytes)
	}
	return nil
}

// ValidName reports whether name may be that of a provider, a profile, a domain or a
// tenant: see package internal/document.
func ValidName(name string) bool { return document.NameProblem(name) == "" }
