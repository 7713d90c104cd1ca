package fence

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fealty-io/fealty/internal/signed"
)

// Claim is one attempt to act on a resource, as its receiver knows it.
type Claim struct {
	// Holder is who sent it, as the sender's certificate says, never as the message does.
	// It and Resource have 1 to 320 bytes of printable ASCII without blanks.
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
	First   bool    // Check says so of a Pair that has no mark yet; Set does not ask
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
// It forgets with its process, and a receiver that forgot admits a zombie. A caller that
// keeps it on disk saves the [Change] of Check before Set, and before the attempt acts:
// package fence/durable does.
type Ledger struct {
	options LedgerOptions
	hashing hashing
	shards  [1 << shardBits]shard // by resource
	pairs   atomic.Int64

	// mu is taken under a shard's mutex, and never the other way round. It is held to change
	// what is below, and to look something up in it by its name.
	mu      sync.RWMutex
	domains names[domain]
	holders names[holder]
}

// holder is what is known of one.
type holder struct {
	process atomic.Pointer[Process]
	pairs   int // guarded by Ledger.mu
}

// newest returns the newest process of a holder, which may be nil or unknown. The result is
// not changed.
func (h *holder) newest() *Process {
	if h != nil {
		if p := h.process.Load(); p != nil {
			return p
		}
	}
	return &noProcess
}

var (
	noProcess Process
	noPromise Assigned
)

// domain is what is known of one.
type domain struct{ promise atomic.Pointer[Assigned] }

// promised returns what was promised of a domain, of which nothing may be known. Nobody
// changes it.
func (d *domain) promised() *Assigned {
	if d != nil {
		if a := d.promise.Load(); a != nil {
			return a
		}
	}
	return &noPromise
}

// NewLedger returns an empty ledger.
func NewLedger(options LedgerOptions) *Ledger {
	if options.MaxPairs <= 0 {
		options.MaxPairs = defaultMaxPairs
	}
	if options.MaxOfHolder <= 0 {
		options.MaxOfHolder = defaultMaxOfHolder
	}
	l := &Ledger{options: options, hashing: newHashing()}
	for i := range l.shards {
		l.shards[i].secret = &l.hashing
	}
	return l
}

// Admit answers nil if the attempt may be made, and remembers it: it is never admitted
// again, whatever becomes of it. Otherwise it returns a [*RefusedError], and nothing has
// changed.
//
// Admit does not wait for the effect of an earlier attempt: see [Gate].
func (l *Ledger) Admit(c Claim) error {
	var w wanted
	s := l.want(&w, c.Resource)
	s.mu.Lock()
	var v view
	if l.lookPair(s, &w, &c, &v) {
		// Its holder and domain may move on from here: this came before that.
		err := l.decide(&c, &v)
		if err == nil && !v.newer {
			v.pair.admitted(&c.Token)
		}
		if err != nil || !v.newer {
			s.mu.Unlock()
			return err
		}
	}
	err := l.admitFirst(s, &w, &c)
	s.mu.Unlock() // not deferred, which takes longer
	return err
}

// admitFirst is Admit of the first of something of its holder. That is decided and noted
// under one lock: of two copies that come at once, to different resources, the second is
// refused. The shard's mutex is held.
func (l *Ledger) admitFirst(s *shard, w *wanted, c *Claim) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var v view
	l.look(s, w, c, &v)
	if err := l.decide(c, &v); err != nil {
		return err
	}
	l.set(s, w, v.change(c))
	return nil
}

// Check is the decision of [Ledger.Admit] alone: what it would change. Between it and Set
// the caller keeps other claims of the same resource away, and of the same holder if the
// change has a Process; and a promise of its domain is not answered before the attempt is
// over.
func (l *Ledger) Check(c Claim) (Change, error) {
	var w wanted
	s := l.want(&w, c.Resource)
	s.mu.Lock()
	defer s.mu.Unlock()
	var v view
	if !l.lookPair(s, &w, &c, &v) {
		l.mu.RLock()
		defer l.mu.RUnlock()
		l.look(s, &w, &c, &v)
	}
	if err := l.decide(&c, &v); err != nil {
		return Change{}, err
	}
	return v.change(&c), nil
}

// Set makes a change, of Check, CheckPromise or All. It never takes a mark, a process or a
// promise down.
func (l *Ledger) Set(c Change) {
	if c.Assigned.Ownership != 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		if d := l.domains.at(l.domains.add(c.Domain)); c.Assigned.Ownership > d.promised().Ownership {
			assigned := c.Assigned
			d.promise.Store(&assigned)
		}
		return
	}
	var w wanted
	s := l.want(&w, c.Pair.Resource)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Process.Epoch == 0 {
		if m := l.mark(s, s.find(&w), c.Pair); m != nil {
			m.raise(c.Mark)
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(s, &w, c)
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
	l.domains.at(l.domains.add(change.Domain)).promise.Store(&change.Assigned)
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
	mark := l.domains.at(l.domains.number(assignment.Domain)).promised()
	refused := func(reason Reason, detail string) (Change, error) {
		return Change{}, &PromiseError{Reason: reason, Assignment: assignment, Mark: *mark, Detail: detail}
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
// copy of an attempt for it is refused as [ReasonLate], or as one of an earlier process.
func (l *Ledger) Forget(name string) {
	var w wanted
	s := l.want(&w, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(&w)
	if r == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for m := range s.marks(r, name) {
		h := l.holders.at(m.holder)
		h.pairs--
		l.pairs.Add(-1)
		if p := *h.newest(); p.Epoch == m.epoch {
			p.Floor = max(p.Floor, m.sequence)
			h.process.Store(&p)
		}
	}
	s.remove(&w)
}

// Mark returns the mark of a pair; the zero Mark if it has none.
func (l *Ledger) Mark(p Pair) Mark {
	var w wanted
	s := l.want(&w, p.Resource)
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := l.mark(s, s.find(&w), p); m != nil {
		return m.mark()
	}
	return Mark{}
}

// DomainOf returns the domain in which a resource is, or "".
func (l *Ledger) DomainOf(name string) string {
	var w wanted
	s := l.want(&w, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.find(&w); r != nil {
		return l.domains.nameOf(r.first.domain)
	}
	return ""
}

// HoldersOf returns the holders that have a mark of a resource, in no order.
func (l *Ledger) HoldersOf(name string) []string {
	var w wanted
	s := l.want(&w, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(&w)
	if r == nil {
		return nil
	}
	var holders []string
	for m := range s.marks(r, name) {
		holders = append(holders, l.holders.nameOf(m.holder))
	}
	return holders
}

// Promised returns what was promised of a domain.
func (l *Ledger) Promised(domain string) Assigned {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return *l.domains.at(l.domains.number(domain)).promised()
}

// ProcessOf returns the newest process of a holder that was obeyed; the zero Process if
// none was.
func (l *Ledger) ProcessOf(name string) Process {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return *l.holders.at(l.holders.number(name)).newest()
}

// All returns changes that make an empty ledger remember what l does, in no order. Nobody
// may change l meanwhile.
func (l *Ledger) All() iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for name, d := range l.domains.all() {
			if a := *d.promised(); a.Ownership != 0 && !yield(Change{Domain: name, Assigned: a}) {
				return
			}
		}
		for name, h := range l.holders.all() {
			if p := *h.newest(); p.Epoch != 0 && !yield(Change{Pair: Pair{Holder: name}, Process: p}) {
				return
			}
		}
		for i := range l.shards {
			s := &l.shards[i]
			for r := range s.all() {
				name, domain := s.name(r), l.domains.nameOf(r.first.domain)
				for m := range s.marks(r, name) {
					pair := Pair{l.holders.nameOf(m.holder), name}
					if !yield(Change{Pair: pair, Mark: m.mark(), Domain: domain}) {
						return
					}
				}
			}
		}
	}
}

// want returns where a resource is, and notes what it is found by there.
func (l *Ledger) want(w *wanted, name string) *shard {
	l.hashing.want(w, name)
	return &l.shards[w.hash>>(64-shardBits)]
}

// mark returns the mark of a pair, whose resource is r; nil if it has none, or there is no such
// resource. The shard's mutex is held.
func (l *Ledger) mark(s *shard, r *resource, p Pair) *mark {
	if r == nil {
		return nil
	}
	// Holders are few, and their names are compared where they are: that is sooner done than
	// looking one up.
	for m := range s.marks(r, p.Resource) {
		if l.holders.nameOf(m.holder) == p.Holder {
			return m
		}
	}
	return nil
}

// view is what a ledger knows of a claim.
type view struct {
	pair    *mark // nil: it is the first of its pair
	exists  bool  // the resource
	domain  string
	process *Process // the newest of its holder
	of      int      // resources that the holder has marks of, if this is the first of its pair

	promised *Assigned // of the domain

	newer bool // the process of the claim takes the place of the newest
}

// change returns what an admitted claim changes.
func (v *view) change(c *Claim) Change {
	change := Change{Pair: Pair{c.Holder, c.Resource}, Mark: markOf(c), First: v.pair == nil, Domain: c.Domain}
	if v.newer {
		change.Process = Process{Epoch: c.Token.Epoch, Incarnation: c.Token.Incarnation}
	}
	return change
}

func markOf(c *Claim) Mark { return Mark{c.Token.Epoch, c.Token.Sequence, c.Token.Digest} }

// lookPair looks at a claim of a pair that has a mark, which is nearly all, without l.mu;
// it reports whether it is one, and everything in v was so at one instant. The shard's
// mutex is held.
func (l *Ledger) lookPair(s *shard, w *wanted, c *Claim, v *view) bool {
	r := s.find(w)
	if r == nil {
		return false
	}
	m := &r.first
	h := l.holders.named(m.holder)
	if h.name != c.Holder {
		if m = l.mark(s, r, Pair{c.Holder, c.Resource}); m == nil {
			return false
		}
		h = l.holders.named(m.holder)
	}
	process := h.is.newest()
	v.pair, v.exists, v.process = m, true, process
	if r.first.domain == 0 {
		return true
	}
	domain := l.domains.named(r.first.domain)
	v.domain, v.promised = domain.name, domain.is.promised()
	return h.is.newest() == process
}

// look looks at any claim. The shard's mutex and l.mu are held.
func (l *Ledger) look(s *shard, w *wanted, c *Claim, v *view) {
	if l.lookPair(s, w, c, v) {
		return
	}
	*v = view{}
	if r := s.find(w); r != nil {
		v.exists, v.domain = true, l.domains.nameOf(r.first.domain)
	}
	h := l.holders.at(l.holders.number(c.Holder))
	if v.process = h.newest(); h != nil {
		v.of = h.pairs
	}
	v.promised = l.domains.at(l.domains.number(cmp.Or(v.domain, c.Domain))).promised()
}

// decide says whether a claim is admitted, and whether its process is a newer one. The
// order is the argument: whose process it is comes first, as nothing that an old one says
// counts; whose domain it is comes before the mark, as a holder that owns it no more has
// the newest mark of its own.
func (l *Ledger) decide(c *Claim, v *view) error {
	why := c.Token.fault()
	if why == "" && (v.pair == nil || c.Domain != "" || len(c.Lineage) > 0) {
		why = c.fault(v.pair != nil)
	}
	if why != "" {
		return c.refused(ReasonMalformed, nil, why)
	}
	var reason Reason
	if c.Token.Epoch != v.process.Epoch || c.Token.Incarnation != v.process.Incarnation { // which few are
		reason, why = l.checkProcess(c, v)
	}
	domain := v.domain
	if !v.exists {
		domain = c.Domain
	}
	switch {
	case reason != "":
	case domain != "":
		reason, why = checkDomain(c, domain, v.promised)
	case c.Domain != "":
		reason, why = ReasonDomain, "it is in no domain"
	case c.Token.Ownership != 0:
		reason, why = ReasonDomain, "it is in no domain, so that nobody can own it"
	case !v.exists && l.options.RequireDomain:
		reason, why = ReasonDomain, "it has to be in one"
	}
	switch {
	case reason != "":
	case v.pair != nil:
		if v.pair.below(c.Token.Epoch, c.Token.Sequence) {
			return nil
		}
		reason, why = checkMark(&c.Token, v.pair)
	case c.Token.Epoch == v.process.Epoch && c.Token.Sequence <= v.process.Floor:
		reason, why = ReasonLate, fmt.Sprintf("sequence %d was for a resource that is gone", v.process.Floor)
	case l.pairs.Load() >= int64(l.options.MaxPairs):
		reason, why = ReasonFull, fmt.Sprintf("there are marks of %d pairs already", l.options.MaxPairs)
	case v.of >= l.options.MaxOfHolder:
		reason, why = ReasonFull, fmt.Sprintf("there are marks of %d resources of this holder already", l.options.MaxOfHolder)
	}
	if reason == "" {
		return nil
	}
	return c.refused(reason, v.pair, why)
}

// checkProcess compares the process of a claim with another one, the newest that was obeyed
// of its holder. A newer one takes its place, if it is one that the authority, or the former
// process' own state, leads to.
func (l *Ledger) checkProcess(c *Claim, v *view) (Reason, string) {
	epoch, newest := c.Token.Epoch, v.process
	switch {
	case epoch < newest.Epoch:
		return ReasonStale, fmt.Sprintf("a process of epoch %v was obeyed", newest.Epoch)
	case epoch == newest.Epoch:
		return ReasonClone, fmt.Sprintf("process %v has the same epoch", newest.Incarnation)
	}
	v.newer = true
	if newest.Epoch != 0 && epoch.Grant() == newest.Epoch.Grant() {
		// The lives of a lineage follow one another, so that nobody skips any.
		between := uint64(epoch - newest.Epoch)
		switch {
		case between <= uint64(len(c.Lineage)) && c.Lineage[uint64(len(c.Lineage))-between] == newest.Incarnation:
			return "", ""
		case len(c.Lineage) == signed.MaxLineage && between > signed.MaxLineage:
			return ReasonUngranted, fmt.Sprintf("it has had %d lives since process %v", signed.MaxLineage, newest.Incarnation)
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

// checkDomain compares what a claim says of the domain that its resource is in, or will be,
// with what was promised of it.
func checkDomain(c *Claim, domain string, promised *Assigned) (Reason, string) {
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

// checkMark says why a token that the mark of its pair is not below is refused. It is of the
// same process, or of one after it.
func checkMark(t *Token, m *mark) (Reason, string) {
	switch {
	case t.Epoch != m.epoch || t.Sequence != m.sequence:
		return ReasonStale, fmt.Sprintf("epoch %v, sequence %d was admitted", m.epoch, m.sequence)
	case t.Digest == m.digest:
		return ReasonDuplicate, "this attempt was admitted before"
	}
	return ReasonClone, "another request was admitted under the same number"
}

// set makes a change of a pair. The shard's mutex and l.mu are held.
func (l *Ledger) set(s *shard, w *wanted, c Change) {
	if c.Mark.Sequence != 0 {
		r := s.find(w)
		if m := l.mark(s, r, c.Pair); m != nil {
			m.raise(c.Mark)
		} else {
			m := mark{holder: l.holders.add(c.Pair.Holder)}
			m.set(c.Mark)
			if r == nil {
				m.domain = l.domains.add(c.Domain)
				s.add(w, m)
			} else {
				s.addMark(c.Pair.Resource, m)
			}
			l.holders.at(m.holder).pairs++
			l.pairs.Add(1)
		}
	}
	if c.Process.Epoch == 0 {
		return
	}
	h := l.holders.at(l.holders.add(c.Pair.Holder))
	newest, is := *h.newest(), c.Process
	if is.Epoch == newest.Epoch {
		is.Incarnation, is.Floor = newest.Incarnation, max(newest.Floor, is.Floor)
	}
	if is.Epoch >= newest.Epoch {
		h.process.Store(&is)
	}
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
	if c.Token, err = parseToken(strings.Join(token, "")); err != nil {
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

// fault says why c, whose token is one, is no claim, or "". The names of a known pair were
// looked at before.
func (c *Claim) fault(known bool) string {
	switch {
	case len(c.Lineage) > signed.MaxLineage:
		return fmt.Sprintf("a lineage of %d lives, limit %d", len(c.Lineage), signed.MaxLineage)
	case slices.Contains(c.Lineage, c.Token.Incarnation):
		return "a process among its own lives before"
	}
	if !known {
		if why := nameFault("holder", c.Holder, false); why != "" {
			return why
		}
		if why := nameFault("resource", c.Resource, false); why != "" {
			return why
		}
	}
	if c.Domain == "" {
		return ""
	}
	return nameFault("domain", c.Domain, true)
}

func (c *Claim) refused(reason Reason, m *mark, detail string) error {
	var before Mark
	if m != nil {
		before = m.mark()
	}
	return &RefusedError{Reason: reason, Holder: c.Holder, Resource: c.Resource, Got: c.Token, Mark: before,
		Detail: detail}
}
