package provider

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/fealty-io/fealty/internal/provider"
)

// State says how far a machine is. The zero State is none.
type State string

// The states, in the order in which a machine comes through them.
const (
	Speculative State = "speculative" // the provider could make it
	Creating    State = "creating"
	Idle        State = "idle" // it is there, and nobody's
	Configuring State = "configuring"
	Configured  State = "configured" // its tenant has it
	Draining    State = "draining"
	Deleting    State = "deleting"
	Failed      State = "failed" // the last operation did not get where it was going
)

// Machine is a machine as its provider declares it.
type Machine struct {
	ID      string // 1 to 128 bytes of printable ASCII without blanks, as are the next two
	Profile string // what kind of machine it is
	Domain  string // where it is, for as long as it is there; "": in no domain
	State   State

	// Tenant is the tenant for which it is configured: set while it is Configuring, Configured and
	// Draining, and allowed while it is Failed.
	Tenant string

	// Priority is the [Order.Priority] of the order that configured it; 0 without a Tenant.
	Priority int32

	// Operation is the [Order.Operation] of the last order that was accepted for it, at most
	// 128 bytes; "" if none was.
	Operation string

	// LastError says for people why it is Failed, in at most 1024 bytes.
	LastError string

	// PricePerHour is in the currency that the fleet counts in: finite, not negative.
	PricePerHour float64

	// InterruptionProbability is how likely it is that the machine is taken away within an
	// hour: 0 to 1.
	InterruptionProbability float64
}

// The outcomes of an operation, by their kind. Errors of a [Client] match exactly one of
// them; so do those of [Machines], where none means [ErrInternal].
var (
	// ErrFenced: the sender is not in charge. It is final, and never tried again: see
	// [fence.ErrFenced], which it matches too.
	ErrFenced = errors.New("fenced by the provider")

	// ErrNotFound: the provider has no such machine.
	ErrNotFound = errors.New("no such machine")

	// ErrUnavailable: it may have been done or not, and can be tried again after a while.
	ErrUnavailable = errors.New("provider is not available")

	// ErrRejected: it was not done, and trying the same again does not help.
	ErrRejected = errors.New("rejected by the provider")

	// ErrInternal: the provider failed, and says no more.
	ErrInternal = errors.New("provider failed")
)

// ErrListAnew is matched where a revision is too old, or of another life of the provider:
// list again from the revision "".
var ErrListAnew = errors.New("list anew")

// ErrInvalid is matched by every [*InvalidError].
var ErrInvalid = errors.New("invalid machine")

// InvalidError says what is wrong with a machine as it was declared. The whole list is
// refused: half of an inventory would be decided upon as if it were all.
type InvalidError struct {
	Machine string // its id, as far as it has one
	Field   string // as in [Machine], in lower case
	Problem string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("provider: machine %.80q has an invalid %s, %s: the provider has to be corrected",
		e.Machine, e.Field, e.Problem)
}

// Is reports that an InvalidError matches [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Validate returns an [*InvalidError] if the machine is declared wrongly.
func (m Machine) Validate() error {
	for _, c := range machineChecks {
		if problem := c.check(m); problem != "" {
			return &InvalidError{Machine: m.ID, Field: c.field, Problem: problem}
		}
	}
	return nil
}

var machineChecks = []struct {
	field string
	check func(Machine) string
}{
	{"id", func(m Machine) string { return nameFault(m.ID, false) }},
	{"profile", func(m Machine) string { return nameFault(m.Profile, false) }},
	{"domain", func(m Machine) string { return nameFault(m.Domain, true) }},
	{"state", func(m Machine) string {
		if _, ok := wireStates[m.State]; !ok {
			return fmt.Sprintf("%.40q is no state", string(m.State))
		}
		return ""
	}},
	{"tenant", func(m Machine) string {
		switch m.State {
		case Configuring, Configured, Draining:
			return nameFault(m.Tenant, false)
		case Failed:
			return nameFault(m.Tenant, true)
		}
		if m.Tenant != "" {
			return "it is " + string(m.State) + ", and so nobody's"
		}
		return ""
	}},
	{"priority", func(m Machine) string {
		if m.Tenant == "" && m.Priority != 0 {
			return "it is nobody's, and so not urgent"
		}
		return ""
	}},
	{"operation", func(m Machine) string {
		if len(m.Operation) > provider.MaxOperation {
			return fmt.Sprintf("it has %d bytes, limit %d", len(m.Operation), provider.MaxOperation)
		}
		return nameFault(m.Operation, true)
	}},
	{"last error", func(m Machine) string {
		switch {
		case len(m.LastError) > provider.MaxLastError:
			return fmt.Sprintf("it has %d bytes, limit %d", len(m.LastError), provider.MaxLastError)
		case !utf8.ValidString(m.LastError):
			return "it is not UTF-8"
		case m.LastError != "" && m.State != Failed:
			return "it is " + string(m.State) + ", and not failed"
		}
		return ""
	}},
	{"price", func(m Machine) string {
		if math.IsNaN(m.PricePerHour) || math.IsInf(m.PricePerHour, 0) || m.PricePerHour < 0 {
			return fmt.Sprintf("%v is no price: want a number that is finite and not negative", m.PricePerHour)
		}
		return ""
	}},
	{"interruption probability", func(m Machine) string {
		// Not the other way round: NaN compares as false.
		if p := m.InterruptionProbability; !(p >= 0 && p <= 1) {
			return fmt.Sprintf("%v is no probability: want 0 to 1", p)
		}
		return ""
	}},
}

// nameFault says why s names nothing, or "".
func nameFault(s string, mayBeEmpty bool) string {
	switch {
	case s == "" && !mayBeEmpty:
		return "it is empty"
	case len(s) > provider.MaxName:
		return fmt.Sprintf("it has %d bytes, limit %d", len(s), provider.MaxName)
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "it has a character that is not printable ASCII, or a blank"
	}
	return ""
}

// ingest checks a list, in which each id stands once.
func ingest(machines []Machine) error {
	seen := make(map[string]struct{}, len(machines))
	for _, m := range machines {
		if err := m.Validate(); err != nil {
			return err
		}
		if _, twice := seen[m.ID]; twice {
			return &InvalidError{Machine: m.ID, Field: "id", Problem: "two machines have it"}
		}
		seen[m.ID] = struct{}{}
	}
	return nil
}
