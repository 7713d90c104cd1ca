package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/platform/clock"
)

const (
	// DefaultEvery is how often a member asks what it owns.
	DefaultEvery = 2 * time.Second
	// MaxDomains bounds how many domains a member owns.
	MaxDomains = 500
	// MaxLease bounds what is believed of a lease.
	MaxLease = 366 * 24 * time.Hour

	// keepEvery is how often the end of a lease is written down that another answer made later.
	keepEvery = 20 * time.Second
	// promiseEvery is how often a receiver is shown what it promised already: one that was
	// restored forgot it.
	promiseEvery   = 30 * time.Second
	askTimeout     = 10 * time.Second
	promiseTimeout = 5 * time.Second
)

// DomainReceiver is where the member's fenced requests go. It is comparable, as a pointer is.
type DomainReceiver interface {
	// Promise shows it the signed assignment of a domain. When it returns nil it obeys no owner
	// of before any more.
	Promise(ctx context.Context, assignment string) error
}

// Term is the highest term of a leader that the member heard of: durable.Term of package
// fence/durable.
type Term interface{ Check(term int64) error }

// HolderConfig is what a holder is made of. A field without another word is required.
type HolderConfig struct {
	ID        identity.ID
	Conn      grpc.ClientConnInterface
	Authority fence.Authority
	Term      Term
	// Receivers returns those there are now, by their names. Nobody changes what it returned, and
	// it calls nothing of the holder.
	Receivers func() map[string]DomainReceiver
	Clock     clock.BootClock
	File      File

	// Quiet returns a channel that is closed when nothing is under way any more that was begun
	// while the member still owned what it does not own now.
	Quiet func() <-chan struct{}

	// Owned is told that a domain is the member's, under an ownership that a receiver promised.
	Owned func(domain string)

	// Every is how often it asks. Zero means two seconds.
	Every time.Duration
	Log   *slog.Logger
}

// Holder is a member as the owner of domains. It may be used by several goroutines.
type Holder struct {
	cfg HolderConfig

	asking sync.Mutex // held by Step
	told   string     // what was logged last of an answer that did not come; guarded by asking

	kept   []Held        // on disk; guarded by asking
	keptAt time.Duration // by the clock; guarded by asking

	mu      sync.Mutex
	domains map[string]*domain // guarded by mu
}

// domain is one that the member was told to own.
type domain struct {
	held     Held
	releases bool                     // it is to let go, and acts no more
	over     bool                     // that its lease is over was told
	promised map[string]time.Duration // receivers, and when each promised last
}

// Held is what a member was told of a domain that it owns.
type Held struct {
	Domain     string `json:"domain"`
	Ownership  uint64 `json:"ownership"`
	Assignment string `json:"assignment"` // as it was signed
	// Start and Until are when its lease ends, by [clock.BootClock].
	Start string        `json:"start"`
	Until time.Duration `json:"until"`
}

// NewHolder returns a holder of what the file has. An error is the file's: a member that forgot what it
// owns is told again.
func NewHolder(cfg HolderConfig) (*Holder, error) {
	if cfg.Every == 0 {
		cfg.Every = DefaultEvery
	}
	h := &Holder{cfg: cfg, domains: make(map[string]*domain)}
	kept, err := cfg.File.Read()
	if err != nil {
		return nil, err
	}
	for _, k := range kept {
		if _, err := h.verify(k.Domain, k.Ownership, k.Assignment); err != nil {
			cfg.Log.Warn("what was kept of a domain does not count any more", "domain", k.Domain, "err", err)
			continue
		}
		h.domains[k.Domain] = &domain{held: k, promised: make(map[string]time.Duration)}
	}
	return h, nil
}

// verify opens the assignment of a domain to this member.
func (h *Holder) verify(name string, ownership uint64, text string) (fence.Assignment, error) {
	verified, err := h.cfg.Authority.OpenAssignment(text)
	if err != nil {
		return fence.Assignment{}, err
	}
	a, _ := verified.Get()
	if a.Domain != name || a.Holder != h.cfg.ID.String() || a.Ownership != ownership {
		return fence.Assignment{},
			fmt.Errorf("the assignment of %s to %s under ownership %d stands for %s, ownership %d, "+
				"of %s", a.Domain, a.Holder, a.Ownership, name, ownership, h.cfg.ID)
	}
	return a, nil
}

// Owns reports whether the member may act in a domain at a receiver. Everybody may where there
// is no domain.
func (h *Holder) Owns(receiver, name string) bool {
	return name == "" || h.Ownership(receiver, name) != 0
}

// Ownership is what requests to a receiver in a domain carry: 0 if the member does not own it
// now, or the receiver did not promise.
func (h *Holder) Ownership(receiver, name string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.domains[name]
	if d == nil || d.releases || h.lapsed(d) {
		return 0
	}
	if _, promised := d.promised[receiver]; !promised {
		return 0
	}
	return d.held.Ownership
}

// lapsed reports whether the lease of a domain is over, or nobody knows. The caller holds h.mu.
func (h *Holder) lapsed(d *domain) bool {
	start, now := h.cfg.Clock()
	return start == "" || start != d.held.Start || now >= d.held.Until
}

// State is what the member has of a domain.
type State struct {
	Domain    string
	Ownership uint64
	Releases  bool     // it was asked to let go, and waits until it may say so
	Lapsed    bool     // its lease is over: it acts no more before it is told
	Promised  []string // receivers, sorted
}

// States returns what the member has, by domain.
func (h *Holder) States() []State {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]State, 0, len(h.domains))
	for _, name := range slices.Sorted(maps.Keys(h.domains)) {
		d := h.domains[name]
		out = append(out, State{Domain: name, Ownership: d.held.Ownership, Releases: d.releases, Lapsed: h.lapsed(d),
			Promised: slices.Sorted(maps.Keys(d.promised))})
	}
	return out
}

// Run asks until ctx ends, and returns its error.
func (h *Holder) Run(ctx context.Context) error {
	every := time.NewTicker(h.cfg.Every)
	defer every.Stop()
	for {
		h.Step(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
		}
	}
}

// Step asks once, and does what the answer says: that is logged when it goes wrong, and the next
// step tries again.
func (h *Holder) Step(ctx context.Context) {
	h.asking.Lock()
	defer h.asking.Unlock()
	// Before the call: the lease that is given counts from when it was asked for.
	start, now := h.cfg.Clock()
	answer, err := h.ask(ctx)
	if err == nil {
		err = h.hear(answer, start, now)
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != h.told && ctx.Err() == nil {
		if err != nil {
			h.cfg.Log.Warn("the member was not told what it owns: it goes on until its leases are over",
				"err", err)
		} else {
			h.cfg.Log.Info("the member is told again what it owns")
		}
		h.told = text
	}
	h.tellLapsed()
	h.promise(ctx)
	h.release(ctx)
}

// tellLapsed tells, once, of leases that are over.
func (h *Holder) tellLapsed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, d := range h.domains {
		if !d.releases && !d.over && h.lapsed(d) {
			d.over = true
			h.cfg.Log.Error("the lease of a domain is over, as no coordinator said again that it is this member's: "+
				"nothing is done in it until one does", "domain", name, "ownership", d.held.Ownership)
		}
	}
}

func (h *Holder) ask(ctx context.Context) (*fealtyv1.PollAssignmentsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return fealtyv1.NewDomainServiceClient(h.cfg.Conn).PollAssignments(ctx,
		&fealtyv1.PollAssignmentsRequest{Name: h.cfg.ID.Name()})
}

// hear takes an answer, whole or not at all. A domain that it does not name is not the member's
// any more, from now on.
func (h *Holder) hear(answer *fealtyv1.PollAssignmentsResponse, start string, asked time.Duration) error {
	if len(answer.GetDomains()) > MaxDomains {
		return fmt.Errorf("an answer with %d domains, limit %d", len(answer.GetDomains()), MaxDomains)
	}
	if text := answer.GetTerm(); text != "" {
		verified, err := h.cfg.Authority.OpenTerm(text)
		if err != nil {
			return fmt.Errorf("the term of the answer: %w", err)
		}
		term, _ := verified.Get()
		if err := h.cfg.Term.Check(term.Term); err != nil {
			return err // a leader that was deposed says what was
		}
	}
	next := make(map[string]*domain, len(answer.GetDomains()))
	for _, o := range answer.GetDomains() {
		if _, err := h.verify(o.GetName(), o.GetOwnership(), o.GetAssignment()); err != nil {
			return fmt.Errorf("domain %.128q: %w", o.GetName(), err)
		}
		lease := o.GetLease().AsDuration()
		if lease < 0 || lease > MaxLease || o.GetLease() != nil && o.GetLease().CheckValid() != nil {
			return fmt.Errorf("domain %s has a lease of %v, limit %v", o.GetName(), lease, MaxLease)
		}
		next[o.GetName()] = &domain{releases: o.GetRelease(), promised: make(map[string]time.Duration),
			held: Held{Domain: o.GetName(), Ownership: o.GetOwnership(), Assignment: o.GetAssignment(), Start: start,
				Until: asked + lease}}
	}
	h.mu.Lock()
	var gone []string
	for name, had := range h.domains {
		d := next[name]
		if d == nil || d.held.Ownership != had.held.Ownership {
			gone = append(gone, name)
			continue
		}
		d.promised = had.promised
	}
	h.domains = next
	h.mu.Unlock()
	for _, name := range slices.Sorted(slices.Values(gone)) {
		h.cfg.Log.Info("a domain is not this member's any more, or under another ownership", "domain", name)
	}
	// The file counts at the next start alone: a process that cannot write it goes on.
	if err := h.keep(asked); err != nil {
		return fmt.Errorf("keep what the member owns: %w", err)
	}
	return nil
}

// keep writes down what the member owns when that changed, and now and then how long: a process
// that starts with an older end has less time, and no more.
func (h *Holder) keep(now time.Duration) error {
	h.mu.Lock()
	var owned []Held
	for _, name := range slices.Sorted(maps.Keys(h.domains)) {
		owned = append(owned, h.domains[name].held) // without a lease if it is to let go
	}
	h.mu.Unlock()
	same := slices.EqualFunc(owned, h.kept, func(a, b Held) bool {
		shorter := a.Until < b.Until
		a.Until = b.Until
		return a == b && !shorter
	})
	if same && now-h.keptAt < keepEvery {
		return nil
	}
	if err := h.cfg.File.Write(owned); err != nil {
		h.kept = nil
		return err
	}
	h.kept, h.keptAt = owned, now
	return nil
}

// promise has the receivers promise what they did not promise yet, each on its own: one that
// does not answer holds up no other.
func (h *Holder) promise(ctx context.Context) {
	type owed struct {
		receiver string
		held     Held
	}
	byReceiver, receivers := make(map[string][]owed), h.cfg.Receivers()
	_, now := h.cfg.Clock()
	h.mu.Lock()
	for _, d := range h.domains {
		for r := range receivers {
			last, promised := d.promised[r]
			if !d.releases && !h.lapsed(d) && (!promised || now-last >= promiseEvery) {
				byReceiver[r] = append(byReceiver[r], owed{r, d.held})
			}
		}
	}
	h.mu.Unlock()
	var asking sync.WaitGroup
	for r, all := range byReceiver {
		asking.Go(func() {
			slices.SortFunc(all, func(a, b owed) int { return cmp.Compare(a.held.Domain, b.held.Domain) })
			for _, o := range all {
				ctx, cancel := context.WithTimeout(ctx, promiseTimeout)
				err := receivers[r].Promise(ctx, o.held.Assignment)
				cancel()
				if err != nil && h.cfg.Receivers()[r] != receivers[r] {
					return // it is not there any more, or another one is
				}
				if err != nil {
					h.cfg.Log.Warn("a receiver did not promise, and nothing is done there in the domain", "receiver", r,
						"domain", o.held.Domain, "ownership", o.held.Ownership, "err", err)
					if errors.Is(err, context.DeadlineExceeded) {
						return // the others of it in the next step
					}
					continue
				}
				h.hasPromised(r, receivers[r], o.held)
			}
		})
	}
	asking.Wait()
}

// Forget says that a receiver is not what it was: what Receivers returns by that name promised
// nothing.
func (h *Holder) Forget(receiver string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.domains {
		delete(d.promised, receiver)
	}
}

func (h *Holder) hasPromised(receiver string, by DomainReceiver, held Held) {
	h.mu.Lock()
	d := h.domains[held.Domain]
	_, now := h.cfg.Clock()
	// Another receiver that got the name meanwhile promised nothing.
	first, still := false, d != nil && d.held.Ownership == held.Ownership && h.cfg.Receivers()[receiver] == by
	if still {
		_, before := d.promised[receiver]
		d.promised[receiver], first = now, !before
	}
	h.mu.Unlock()
	if !still {
		return
	}
	// Each time: what was refused under an ownership of before may have been heard since.
	h.cfg.Owned(held.Domain)
	if !first {
		return
	}
	h.cfg.Log.Info("a receiver promised a domain, and this member acts there", "receiver", receiver, "domain",
		held.Domain,
		"ownership", held.Ownership)
}

// release lets go of what the member was asked to let go, once nothing is under way there.
func (h *Holder) release(ctx context.Context) {
	h.mu.Lock()
	var going []Held
	for _, name := range slices.Sorted(maps.Keys(h.domains)) {
		if d := h.domains[name]; d.releases {
			going = append(going, d.held)
		}
	}
	h.mu.Unlock()
	if len(going) == 0 {
		return
	}
	select {
	case <-h.cfg.Quiet():
	case <-ctx.Done():
		return
	}
	for _, held := range going {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		_, err := fealtyv1.NewDomainServiceClient(h.cfg.Conn).ReleaseDomain(ctx, &fealtyv1.ReleaseDomainRequest{
			Name: h.cfg.ID.Name(), Domain: held.Domain, Ownership: held.Ownership})
		cancel()
		if err != nil {
			h.cfg.Log.Warn("a domain was let go here, and no coordinator heard so yet", "domain", held.Domain, "err",
				err)
			continue
		}
		h.cfg.Log.Info("a domain was let go", "domain", held.Domain, "ownership", held.Ownership)
		h.forget(held)
	}
}

func (h *Holder) forget(held Held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.domains[held.Domain]; d != nil && d.held.Ownership == held.Ownership {
		delete(h.domains, held.Domain)
	}
}
