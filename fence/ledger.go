package fence

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Claim is one attempt to act on a resource, as its receiver knows it.
type Claim struct {
	// Holder is who sent it, as the sender's certificate says, never as the message does.
	// It and Resource have 1 to [MaxName] bytes of printable ASCII without blanks.
	Holder   string
	Resource string

	// Domain is the domain that the resource is in, if the attempt says so. The first one
	// that is admitted of a resource puts it there for ever.
	Domain string

	Token   Token
	Lineage Lineage // what the sender says of its lives before this one

	// Grant is the grant that the sender presents, if any. It is needed when the receiver
	// first hears of it.
	Grant Verified[Grant]
}

// Mark is the newest attempt that was admitted of a pair of holder and resource.
type Mark struct {
	Epoch    Epoch
	Sequence uint64
	Digest   Digest
}

// Pair is whose mark it is.
type Pair struct{ Holder, Resource string }

// Process is the newest process of a holder that a receiver has obeyed. Nothing of one
// before it is admitted any more, whatever it acts on.
type Process struct {
	Epoch       Epoch
	Incarnation Incarnation

	// Floor is the highest sequence of this epoch that was admitted for a resource that is
	// gone: what is below it may be a late copy of an attempt for that.
	Floor uint64
}

// Assigned is what a receiver has promised of a domain: to let nobody act in it but this
// holder, under this ownership.
type Assigned struct {
	Ownership uint64
	Holder    string // "": nobody
}

// Change is what an admitted claim, or a promise, changes in a ledger. A ledger on disk
// saves it before anything can be seen of it. Parts that are zero change nothing.
type Change struct {
	Pair    Pair
	Mark    Mark
	Process Process // the newest of Pair.Holder

	Domain   string // that of Pair.Resource, from now on and for ever; or that of Assigned
	Assigned Assigned
}

// LedgerOptions say how strict a ledger is. The zero value is the strictest.
type LedgerOptions struct {
	// Cluster is whose statements count; those of another one are as none. Empty: none do,
	// so that there are neither domains nor grants.
	Cluster string

	// BelieveEpochs admits a holder's processes under epochs that no authority granted, as
	// the holder counts them. A thief of a holder's certificate can then lock out its
	// processes with one huge epoch.
	BelieveEpochs bool

	// RequireDomain admits the first attempt for a resource only if it says in which domain
	// that is. Without it a receiver that lost its memory of a resource takes it for one of
	// no domain, which anybody may act on.
	RequireDomain bool

	// MaxPairs bounds the pairs of holder and resource that are remembered, MaxOfHolder those
	// of one holder. Zero means 10,000,000 and 1,000,000. Concurrent first contacts may go
	// past them by their number.
	MaxPairs, MaxOfHolder int
}

const (
	defaultMaxPairs    = 10_000_000
	defaultMaxOfHolder = 1_000_000
)

// Ledger is what a receiver remembers, in memory. It may be used by several goroutines.
//
// It forgets with its process, and a receiver that forgot admits a zombie. Whoever keeps
// it on disk saves the [Change] of Check before Set, and before the attempt acts.
type Ledger struct {
	options LedgerOptions
	seed    maphash.Seed
	shards  [64]shard // by resource
	pairs   atomic.Int64

	mu      sync.RWMutex // taken under a shard's mutex, and never the other way round
	domains map[string]Assigned
	holders map[string]holder
}

// holder is what is known of one.
type holder struct {
	process Process
	pairs   int
}

type shard struct {
	mu        sync.Mutex
	marks     map[Pair]Mark       // guarded by mu
	resources map[string]resource // those with marks; guarded by mu
}

type resource struct {
	domain  string
	holders []string // that have a mark of it
}

// NewLedger returns an empty ledger.
func NewLedger(options LedgerOptions) *Ledger {
	if options.MaxPairs <= 0 {
		options.MaxPairs = defaultMaxPairs
	}
	if options.MaxOfHolder <= 0 {
		options.MaxOfHolder = defaultMaxOfHolder
	}
	l := &Ledger{options: options, seed: maphash.MakeSeed(), domains: make(map[string]Assigned), holders: make(map[string]holder)}
	for i := range l.shards {
		l.shards[i].marks, l.shards[i].resources = make(map[Pair]Mark), make(map[string]resource)
	}
	return l
}

// Admit answers nil if the attempt may be made, and remembers it: it is never admitted
// again, whatever becomes of it. Otherwise it returns a [*RefusedError], and nothing has
// changed.
//
// Admit does not wait for the effect of an earlier attempt: see [Gate].
func (l *Ledger) Admit(c Claim) error {
	s := l.shard(c.Resource)
	s.mu.Lock()
	defer s.mu.Unlock()
	l.mu.RLock()
	change, err := l.check(s, &c)
	if err != nil || !l.setLater(s, change) {
		l.mu.RUnlock()
		return err
	}
	l.mu.RUnlock()
	// It is the first of something of its holder. That is decided and noted under one lock:
	// of two copies that come at once, to different resources, the second is refused.
	l.mu.Lock()
	defer l.mu.Unlock()
	if change, err = l.check(s, &c); err != nil {
		return err
	}
	l.set(s, change)
	return nil
}

// setLater makes a change that is of its pair alone, or reports that it is of its holder
// too. The shard's mutex is held, and l.mu for reading.
func (l *Ledger) setLater(s *shard, c Change) bool {
	if _, known := s.marks[c.Pair]; !known || c.Process.Epoch != 0 {
		return true
	}
	s.marks[c.Pair] = c.Mark
	return false
}

// Check is the decision of [Ledger.Admit] alone: what it would change. Between it and Set
// the caller keeps other claims of the same resource away, and of the same holder if the
// change has a Process; and a promise of its domain is not answered before the attempt is
// over.
func (l *Ledger) Check(c Claim) (Change, error) {
	s := l.shard(c.Resource)
	s.mu.Lock()
	defer s.mu.Unlock()
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.check(s, &c)
}

// Set makes a change, of Check, CheckPromise or All. It never takes a mark, a process or a
// promise down.
func (l *Ledger) Set(c Change) {
	if c.Assigned.Ownership != 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c.Assigned.Ownership > l.domains[c.Domain].Ownership {
			l.domains[c.Domain] = c.Assigned
		}
		return
	}
	s := l.shard(c.Pair.Resource)
	s.mu.Lock()
	defer s.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(s, c)
}

// Promise remembers that a domain belongs to a holder, so that no attempt under an older
// ownership is admitted any more. It may be called again with the same assignment. A
// refusal is a [*PromiseError], and changes nothing.
//
// Attempts that were admitted before may still be under way: see [Gate.Promise].
func (l *Ledger) Promise(a Verified[Assignment]) error {
	// One lock over both: of two holders with one ownership the second is told.
	l.mu.Lock()
	defer l.mu.Unlock()
	change, err := l.checkPromise(a)
	if err != nil {
		return err
	}
	l.domains[change.Domain] = change.Assigned
	return nil
}

// CheckPromise is the decision of [Ledger.Promise] alone. The caller keeps other promises
// away until it has called Set.
func (l *Ledger) CheckPromise(a Verified[Assignment]) (Change, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.checkPromise(a)
}

func (l *Ledger) checkPromise(a Verified[Assignment]) (Change, error) {
	assignment, ok := a.Get()
	if !ok || assignment.Cluster != l.options.Cluster {
		return Change{}, &PromiseError{Reason: ReasonMalformed, Assignment: assignment,
			Detail: fmt.Sprintf("there is no verified statement of cluster %q", l.options.Cluster)}
	}
	mark := l.domains[assignment.Domain]
	refused := func(reason Reason, detail string) (Change, error) {
		return Change{}, &PromiseError{Reason: reason, Assignment: assignment, Mark: mark, Detail: detail}
	}
	switch {
	case assignment.Ownership < mark.Ownership:
		return refused(ReasonMoved, fmt.Sprintf("ownership %d was promised already", mark.Ownership))
	case assignment.Ownership == mark.Ownership && assignment.Holder != mark.Holder:
		return refused(ReasonOwner, fmt.Sprintf("the same ownership was promised to %q", mark.Holder))
	}
	assigned := Assigned{Ownership: assignment.Ownership, Holder: assignment.Holder}
	return Change{Domain: assignment.Domain, Assigned: assigned}, nil
}

// PromiseError says which assignment was refused, and what was promised before. It
// matches what [Reason.Matches] says.
type PromiseError struct {
	Reason     Reason
	Assignment Assignment
	Mark       Assigned
	Detail     string
}

func (e *PromiseError) Error() string {
	return fmt.Sprintf("fence: ownership %d of domain %.80q for %.80q was refused as %s, %s: "+
		"ask the coordinator whose the domain is now",
		e.Assignment.Ownership, e.Assignment.Domain, e.Assignment.Holder, e.Reason, e.Detail)
}

// Is reports what a refusal matches.
func (e *PromiseError) Is(target error) bool { return e.Reason.Matches(target) }

// Forget drops the marks of a resource that is gone for good, and its domain. Nobody acts
// on it meanwhile: [Gate.Remove] does it in the turn of the attempt that removed it. A late
// copy of an attempt for it is [ReasonLate], or of a process of before.
func (l *Ledger) Forget(name string) {
	s := l.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, of := range s.resources[name].holders {
		pair := Pair{of, name}
		mark, h := s.marks[pair], l.holders[of]
		if h.pairs--; h.process.Epoch == mark.Epoch {
			h.process.Floor = max(h.process.Floor, mark.Sequence)
		}
		l.holders[of] = h
		delete(s.marks, pair)
		l.pairs.Add(-1)
	}
	delete(s.resources, name)
}

// Mark returns the mark of a pair; the zero Mark if it has none.
func (l *Ledger) Mark(p Pair) Mark {
	s := l.shard(p.Resource)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.marks[p]
}

// DomainOf returns the domain in which a resource is, or "".
func (l *Ledger) DomainOf(name string) string {
	s := l.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resources[name].domain
}

// Promised returns what was promised of a domain.
func (l *Ledger) Promised(domain string) Assigned {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.domains[domain]
}

// ProcessOf returns the newest process of a holder that was obeyed; the zero Process if
// none was.
func (l *Ledger) ProcessOf(name string) Process {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.holders[name].process
}

// All returns changes that make an empty ledger remember what l does, in no order. Nobody
// may change l meanwhile.
func (l *Ledger) All() iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for domain, assigned := range l.domains {
			if !yield(Change{Domain: domain, Assigned: assigned}) {
				return
			}
		}
		for name, h := range l.holders {
			if !yield(Change{Pair: Pair{Holder: name}, Process: h.process}) {
				return
			}
		}
		for i := range l.shards {
			s := &l.shards[i]
			for pair, mark := range s.marks {
				if !yield(Change{Pair: pair, Mark: mark, Domain: s.resources[pair.Resource].domain}) {
					return
				}
			}
		}
	}
}

func (l *Ledger) shard(resource string) *shard {
	return &l.shards[maphash.String(l.seed, resource)%uint64(len(l.shards))]
}

// check decides. The shard's mutex and l.mu are held. The order is the argument: whose process it is comes first, as nothing
// that an old one says counts; whose domain it is comes before the mark, as a holder that
// owns it no more has the newest mark of its own.
func (l *Ledger) check(s *shard, c *Claim) (Change, error) {
	if why := c.fault(); why != "" {
		return Change{}, c.refused(ReasonMalformed, Mark{}, why)
	}
	pair := Pair{c.Holder, c.Resource}
	mark, known := s.marks[pair]
	change := Change{Pair: pair, Mark: Mark{c.Token.Epoch, c.Token.Sequence, c.Token.Digest}, Domain: c.Domain}
	is, exists := s.resources[c.Resource]

	h, promised := l.holders[c.Holder], l.domains[cmp.Or(is.domain, c.Domain)]
	reason, why := l.checkProcess(c, h.process, &change)
	if reason == "" {
		reason, why = l.checkDomain(c, is.domain, exists, promised)
	}
	switch {
	case reason != "":
	case known:
		reason, why = checkMark(c.Token, mark)
	case c.Token.Epoch == h.process.Epoch && c.Token.Sequence <= h.process.Floor:
		reason, why = ReasonLate, fmt.Sprintf("sequence %d was for a resource that is gone", h.process.Floor)
	case l.pairs.Load() >= int64(l.options.MaxPairs):
		reason, why = ReasonFull, fmt.Sprintf("there are marks of %d pairs already", l.options.MaxPairs)
	case h.pairs >= l.options.MaxOfHolder:
		reason, why = ReasonFull, fmt.Sprintf("there are marks of %d resources of this holder already", l.options.MaxOfHolder)
	}
	if reason != "" {
		return Change{}, c.refused(reason, mark, why)
	}
	return change, nil
}

// checkProcess compares the process of a claim with the newest that was obeyed of its
// holder. A newer one takes its place, if it is one that the authority, or the former
// process' own state, leads to.
func (l *Ledger) checkProcess(c *Claim, newest Process, change *Change) (Reason, string) {
	epoch := c.Token.Epoch
	switch {
	case epoch < newest.Epoch:
		return ReasonStale, fmt.Sprintf("a process of epoch %v was obeyed", newest.Epoch)
	case epoch == newest.Epoch && c.Token.Incarnation != newest.Incarnation:
		return ReasonClone, fmt.Sprintf("process %v has the same epoch", newest.Incarnation)
	case epoch == newest.Epoch:
		return "", ""
	}
	change.Process = Process{Epoch: epoch, Incarnation: c.Token.Incarnation}
	if newest.Epoch != 0 && epoch.Grant() == newest.Epoch.Grant() {
		// The lives of a lineage follow one another, so that nobody skips any.
		between := uint64(epoch - newest.Epoch)
		switch {
		case between <= uint64(len(c.Lineage)) && c.Lineage[uint64(len(c.Lineage))-between] == newest.Incarnation:
			return "", ""
		case len(c.Lineage) == MaxLineage && between > MaxLineage:
			return ReasonUngranted, fmt.Sprintf("it has had %d lives since process %v", MaxLineage, newest.Incarnation)
		}
		return ReasonClone, fmt.Sprintf("process %v acted under the same grant, and is not among the lives before this one", newest.Incarnation)
	}
	if l.options.BelieveEpochs {
		return "", ""
	}
	grant, ok := c.Grant.Get()
	if !ok || grant.Cluster != l.options.Cluster || grant.Holder != c.Holder || grant.Number != epoch.Grant() {
		return ReasonUngranted, fmt.Sprintf("no statement came with it that gives the holder grant %d", epoch.Grant())
	}
	return "", ""
}

// checkDomain compares where a claim says that its resource is, and under which ownership,
// with what is known and was promised.
func (l *Ledger) checkDomain(c *Claim, domain string, exists bool, promised Assigned) (Reason, string) {
	if !exists {
		domain = c.Domain
	}
	if domain == "" {
		switch {
		case c.Domain != "":
			return ReasonDomain, "it is in no domain"
		case c.Token.Ownership != 0:
			return ReasonDomain, "it is in no domain, so that nobody can own it"
		case !exists && l.options.RequireDomain:
			return ReasonDomain, "it has to be in one"
		}
		return "", ""
	}
	switch {
	case c.Domain != "" && c.Domain != domain:
		// Its ownership is of another domain, and says nothing of this one.
		return ReasonDomain, fmt.Sprintf("it is in domain %q", domain)
	case promised.Ownership == 0 || c.Token.Ownership > promised.Ownership:
		return ReasonUnpromised, fmt.Sprintf("of domain %q ownership %d is the newest that was promised", domain, promised.Ownership)
	case c.Token.Ownership < promised.Ownership:
		return ReasonMoved, fmt.Sprintf("ownership %d of domain %q was promised to %q", promised.Ownership, domain, promised.Holder)
	case promised.Holder == "":
		return ReasonMoved, fmt.Sprintf("domain %q was taken from everybody", domain)
	case promised.Holder != c.Holder && c.Domain == "":
		// Perhaps it is the ownership of another domain that the sender means.
		return ReasonMoved, fmt.Sprintf("domain %q was promised to %q", domain, promised.Holder)
	case promised.Holder != c.Holder:
		return ReasonOwner, fmt.Sprintf("the same ownership of domain %q was promised to %q", domain, promised.Holder)
	}
	return "", ""
}

// checkMark compares a token with the newest of its pair. It is of the same process, or of
// one after it.
func checkMark(t Token, mark Mark) (Reason, string) {
	newer := t.Compare(Token{Epoch: mark.Epoch, Sequence: mark.Sequence})
	switch {
	case newer == 0 && t.Digest == mark.Digest:
		return ReasonDuplicate, "this attempt was admitted before"
	case newer == 0:
		return ReasonClone, "another request was admitted under the same number"
	case newer < 0:
		return ReasonStale, fmt.Sprintf("epoch %v, sequence %d was admitted", mark.Epoch, mark.Sequence)
	}
	return "", ""
}

// set makes a change of a pair. The shard's mutex and l.mu are held.
func (l *Ledger) set(s *shard, c Change) {
	first := false
	if c.Mark.Sequence != 0 {
		before, known := s.marks[c.Pair]
		first = !known
		if !known || (Token{Epoch: c.Mark.Epoch, Sequence: c.Mark.Sequence}).Compare(Token{Epoch: before.Epoch, Sequence: before.Sequence}) > 0 {
			s.marks[c.Pair] = c.Mark
		}
		if first {
			is, exists := s.resources[c.Pair.Resource]
			if is.holders = append(is.holders, c.Pair.Holder); !exists {
				is.domain = c.Domain
			}
			s.resources[c.Pair.Resource] = is
			l.pairs.Add(1)
		}
	}
	if !first && c.Process.Epoch == 0 {
		return
	}
	h := l.holders[c.Pair.Holder]
	if first {
		h.pairs++
	}
	if c.Process.Epoch > h.process.Epoch {
		h.process = c.Process
	} else if c.Process.Epoch == h.process.Epoch {
		h.process.Floor = max(h.process.Floor, c.Process.Floor)
	}
	l.holders[c.Pair.Holder] = h
}

// Read sets token, lineage and grant to what came with a request: the values of each, of
// which there is at most one. The token has to be there. An error matches [ErrMalformed];
// a grant that a did not sign is as none, as a claim is refused if it needs one. The zero
// Authority signs nothing.
func (c *Claim) Read(a Authority, token, lineage, grant []string) error {
	for what, values := range map[string][]string{"token": token, "lineage": lineage, "grant": grant} {
		if len(values) > 1 {
			return fmt.Errorf("fence: %d values of a %s, want one: %w", len(values), what, ErrMalformed)
		}
	}
	var err error
	if c.Token, err = ParseToken(strings.Join(token, "")); err != nil {
		return err
	}
	if c.Lineage, err = ParseLineage(strings.Join(lineage, "")); err != nil {
		return err
	}
	if len(grant) == 1 && a.Key != nil {
		c.Grant, _ = a.OpenGrant(grant[0])
	}
	return nil
}

// fault says why c is no claim, or "".
func (c *Claim) fault() string {
	switch {
	case len(c.Lineage) > MaxLineage:
		return fmt.Sprintf("a lineage of %d lives, limit %d", len(c.Lineage), MaxLineage)
	case slices.Contains(c.Lineage, c.Token.Incarnation):
		return "a process among its own lives before"
	}
	if why := c.Token.fault(); why != "" {
		return why
	}
	if why := nameFault("holder", c.Holder, false); why != "" {
		return why
	}
	if why := nameFault("resource", c.Resource, false); why != "" {
		return why
	}
	return nameFault("domain", c.Domain, true)
}

func (c *Claim) refused(reason Reason, mark Mark, detail string) error {
	return &RefusedError{Reason: reason, Holder: c.Holder, Resource: c.Resource, Got: c.Token, Mark: mark,
		Detail: detail}
}
