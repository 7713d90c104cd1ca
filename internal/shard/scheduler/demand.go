package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/fealty-io/fealty/internal/quarantine"
)

// Limits of what operators report.
const (
	MaxTenants = 10_000
	MaxRows    = 4096      // of one roll-up
	MaxCount   = 1_000_000 // machines of one roll-up
)

// DemandRow is a part of a tenant's demand: so many machines of a profile, with a priority. More
// is more important.
type DemandRow struct {
	Profile  string
	Priority int32
	Count    int // 1 to MaxCount: what is not wanted has no row
}

// DemandKey orders the roll-ups of a tenant: by Run, then by Number. Neither is 0.
type DemandKey struct {
	// Run is the life of the operator's process. It grows with each start and is counted on
	// disk, as package fence/durable does: clocks go back.
	Run uint64
	// Number counts the roll-ups of the run.
	Number uint64
}

// Compare orders keys.
func (k DemandKey) Compare(other DemandKey) int {
	return cmp.Or(cmp.Compare(k.Run, other.Run), cmp.Compare(k.Number, other.Number))
}

func (k DemandKey) String() string { return fmt.Sprintf("%d.%d", k.Run, k.Number) }

// RollUp is the complete demand of a tenant.
type RollUp struct {
	Tenant string // as the certificate of its operator says, never as a message does
	Key    DemandKey
	Rows   []DemandRow // of one profile and priority there is one at most
}

// ErrDemandInvalid is matched by every [*DemandInvalidError].
var ErrDemandInvalid = errors.New("invalid roll-up")

// DemandInvalidError says what of a roll-up cannot be. Nothing of it counts.
type DemandInvalidError struct {
	Tenant  string
	Row     int // from 0; -1 if it is about no row
	Field   string
	Problem string
}

func (e *DemandInvalidError) Error() string {
	where := ""
	if e.Row >= 0 {
		where = fmt.Sprintf(" in row %d", e.Row)
	}
	return fmt.Sprintf("scheduler: the roll-up of tenant %.*q: its %s%s %s: what was reported before stands: mend the "+
		"operator",
		MaxNameBytes, e.Tenant, e.Field, where, e.Problem)
}

// Is reports that an InvalidError matches [ErrDemandInvalid].
func (e *DemandInvalidError) Is(target error) bool { return target == ErrDemandInvalid }

// ErrUnready is matched where nobody knows yet what a tenant has: its operator sends the
// roll-up again in a moment.
var ErrUnready = errors.New("not ready to take demand")

// ErrFull is matched where one more tenant reports than [MaxTenants].
var ErrFull = errors.New("too many tenants")

// Outcome is what became of a roll-up.
type Outcome string

// The outcomes.
const (
	Taken     Outcome = "taken"
	Repeated  Outcome = "repeated"  // it has the key and the rows of the one that was reported last
	Overtaken Outcome = "overtaken" // a newer one was reported: it changes nothing
	Held      Outcome = "held"      // it drops almost everything, and has to be confirmed
)

// Check says what of a roll-up cannot be, as an [*DemandInvalidError], and sorts its rows: by profile, then
// the highest priority first. Report does so too.
func (r *RollUp) Check() error {
	wrong := func(row int, field, problem string, args ...any) error {
		return &DemandInvalidError{r.Tenant, row, field, fmt.Sprintf(problem, args...)}
	}
	switch {
	case !ValidName(r.Tenant):
		return wrong(-1, "tenant", "is no name: want 1 to %d bytes of printable ASCII without blanks",
			MaxNameBytes)
	case r.Key.Run == 0 || r.Key.Number == 0:
		return wrong(-1, "key", "is %v, and neither number may be 0", r.Key)
	case len(r.Rows) > MaxRows:
		return wrong(-1, "demand", "has %d rows, above %d", len(r.Rows), MaxRows)
	}
	total := 0
	for i, row := range r.Rows {
		switch {
		case !ValidName(row.Profile):
			return wrong(i, "profile", "is no name: want 1 to %d bytes of printable ASCII without blanks",
				MaxNameBytes)
		case row.Count < 1 || row.Count > MaxCount:
			return wrong(i, "count", "is %d, want 1 to %d", row.Count, MaxCount)
		}
		if total += row.Count; total > MaxCount {
			return wrong(i, "count", "makes it more than %d machines", MaxCount)
		}
	}
	r.Rows = slices.Clone(r.Rows)
	slices.SortFunc(r.Rows, DemandRow.compare)
	for i := 1; i < len(r.Rows); i++ {
		if r.Rows[i-1].compare(r.Rows[i]) == 0 {
			return wrong(-1, "demand", "has two rows for profile %q and priority %d", r.Rows[i].Profile,
				r.Rows[i].Priority)
		}
	}
	return nil
}

func (r DemandRow) compare(other DemandRow) int {
	return cmp.Or(cmp.Compare(r.Profile, other.Profile), cmp.Compare(other.Priority, r.Priority))
}

// DemandOptions say how a book believes what it is told.
type DemandOptions struct {
	// Quarantine holds a roll-up that drops almost everything until three in a row say so: see
	// package quarantine. The zero value believes each at once.
	Quarantine bool
}

// DemandBook is what is known of the demand of all tenants. It may be used by several
// goroutines.
type DemandBook struct {
	options DemandOptions

	mu      sync.Mutex
	tenants map[string]*demandTenant // guarded by mu
	cycle   uint64                   // guarded by mu
}

type demandTenant struct {
	key   DemandKey   // of the newest roll-up, held or not
	last  []DemandRow // of that one
	known bool        // one was taken since the process started
	rows  []DemandRow // of the newest that was taken; never changed
	guard quarantine.Guard
	held  uint64 // the cycle after that in which one was held last; 0: none was
	waits bool   // the newest roll-up is held
}

// NewDemandBook returns a book in which nobody has reported.
func NewDemandBook(options DemandOptions) *DemandBook {
	return &DemandBook{options: options, tenants: make(map[string]*demandTenant)}
}

// Report takes a roll-up. running is what works for the tenant now: what a first roll-up is
// compared with, as nobody remembers what was reported to the process of before.
//
// Errors: an [*DemandInvalidError], or one that matches [ErrFull]; nothing is changed by it.
func (b *DemandBook) Report(r RollUp, running []DemandRow) (Outcome, error) {
	if err := r.Check(); err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tenants[r.Tenant]
	if t == nil {
		if len(b.tenants) >= MaxTenants {
			return "", fmt.Errorf("scheduler: tenant %q is one more than %d: run another shard for it: %w", r.Tenant,
				MaxTenants, ErrFull)
		}
		t = &demandTenant{}
		b.tenants[r.Tenant] = t
	}
	switch order := r.Key.Compare(t.key); {
	case order == 0 && slices.Equal(r.Rows, t.last):
		return Repeated, nil
	case order == 0:
		return "", &DemandInvalidError{r.Tenant, -1, "key", fmt.Sprintf("is %v, and another roll-up had it: "+
			"two operators may run as this tenant", r.Key)}
	case order < 0:
		return Overtaken, nil
	}
	before := t.rows
	if !t.known {
		before = running
	}
	t.key, t.last, t.waits = r.Key, r.Rows, true
	if drop := drops(before, r.Rows); b.options.Quarantine {
		// A second one within a cycle confirms nothing, over however many sessions.
		if drop && t.held == b.cycle+1 {
			return Held, nil
		}
		if !t.guard.Judge(drop) {
			t.held = b.cycle + 1
			return Held, nil
		}
	}
	t.known, t.rows, t.waits = true, r.Rows, false
	return Taken, nil
}

// Cycle begins a cycle: a roll-up that drops almost everything counts once in each.
func (b *DemandBook) Cycle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cycle++
}

// drops reports whether next keeps less than a tenth of the rows of before, or of its
// machines: one row of a thousand machines is as much to lose as a thousand rows. Machines
// are kept by their profile, so that another priority alone drops none.
func drops(before, next []DemandRow) bool {
	type name struct {
		profile  string
		priority int32
	}
	there := make(map[name]bool, len(next))
	machines := make(map[string]int)
	for _, row := range next {
		there[name{row.Profile, row.Priority}] = true
		machines[row.Profile] += row.Count
	}
	rows, kept, had := 0, 0, 0
	for _, row := range before {
		if there[name{row.Profile, row.Priority}] {
			rows++
		}
		n := min(machines[row.Profile], row.Count)
		machines[row.Profile] -= n
		kept += n
		had += row.Count
	}
	return quarantine.Drops(len(before), rows) || quarantine.Drops(had, kept)
}

// Rows returns the demand of each tenant that reported since the process started: its rows,
// by profile and the highest priority first. A tenant that is not there did not report;
// one that wants nothing has no rows. The rows are shared: nobody changes them.
func (b *DemandBook) Rows() map[string][]DemandRow {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string][]DemandRow, len(b.tenants))
	for name, t := range b.tenants {
		if t.known {
			out[name] = t.rows
		}
	}
	return out
}

// Of returns the demand of one tenant, and whether it is known: see [DemandBook.Rows].
func (b *DemandBook) Of(name string) (rows []DemandRow, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.tenants[name]; t != nil {
		return t.rows, t.known
	}
	return nil, false
}

// Holding returns the tenants whose newest roll-up is held, in no order.
func (b *DemandBook) Holding() (tenants []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, t := range b.tenants {
		if t.waits {
			tenants = append(tenants, name)
		}
	}
	return tenants
}

// Standing is what is known of one tenant.
type Standing struct {
	// Key is that of the newest roll-up, held or not; zero if there was none since the process
	// started.
	Key DemandKey
	// Known: one was taken. Rows are those of the newest that was; nobody changes them.
	Known bool
	Rows  []DemandRow
	// Held: the newest one is held, and what was taken before it counts.
	Held bool
}

// Standing returns what is known of a tenant; the zero Standing if it did not report.
func (b *DemandBook) Standing(tenant string) Standing {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tenants[tenant]
	if t == nil {
		return Standing{}
	}
	return Standing{Key: t.key, Known: t.known, Rows: t.rows, Held: t.waits}
}
