package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/admission/batch"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// Joins at rate: joins that wait for one entry are decided on what memory says and
// committed together, in one transaction whose conditions hold memory to the store.
// A join that fails there, or is refused, leaves the others and is decided by what the
// store holds. Keys are signed afterwards, by each join for itself.

const (
	// MaxJoinOps is how many operations a transaction has that admits several: what
	// every engine commits in one request.
	MaxJoinOps = 96
	// fixedJoinOps are those that it has whoever is admitted: the head of the history
	// and the record lock, with room for what the audit log may ask for as a whole.
	fixedJoinOps = 4
	// maxKnown bounds the tokens and the counts that are kept in memory.
	maxKnown = 1024
)

// A joiner is a candidate on its way into the catalog: first what it showed, then what
// was read for it, then what it was admitted as.
type joiner struct {
	s         *authority.State
	cand      candidate
	publicKey any   // to certify
	csrErr    error // what is wrong with its request for a certificate
	turn      func(identity.Kind, string) error

	own  *ownRecords // what the store held; nil: what memory says
	lost int         // how often another coordinator was first with what it shares

	match match
	adm   admission
	now   time.Time
	rev   store.Revision // of the transaction that admitted it
}

// ownRecords are what a join is decided on and shares with no other.
type ownRecords struct {
	use    record.Versioned[TokenUse]
	proven record.Versioned[record.Member] // that an svid proof speaks for
	view   admissionView                   // without members
	name   string                          // that was generated for it
}

// errLookAgain says that memory refuses a join: the store is asked before anybody is
// told so. It is a conflict: all of it is decided again, under the head that is in force then.
var errLookAgain = fmt.Errorf("decide the join by what the store holds: %w", store.ErrConflict)

// A joinLine is of joins that are decided together.
type joinLine struct {
	s     *authority.State
	entry string
}

// Waiting returns how many joins by an entry of s wait to be written together.
func (a *Admission) Waiting(s *authority.State, entry string) int {
	return a.joins.Waiting(joinLine{s, entry})
}

// lineOf returns the line in which a join waits: most often that of its entry. The
// store's conditions, not the lines, decide who wins.
func (a *Admission) lineOf(j *joiner) joinLine {
	if j.cand.proven.Type() == proof.TypeSVID {
		kind, name := j.cand.proven.Member()
		return joinLine{j.s, a.cfg.Membership.Roster().Get(string(kind) + "/" + name).Value.Entry}
	}
	if found, ok := j.s.Manifest.Match(j.cand.kind, j.cand.proven.Selectors()); ok {
		return joinLine{j.s, found.Entry.Name}
	}
	return joinLine{s: j.s}
}

// known are records that many joins share, as this coordinator read or wrote them last.
// Every decision on one has its version as a condition.
type known struct {
	mu     sync.Mutex
	tokens map[string]record.Versioned[Token]             // by id; guarded by mu
	counts map[string]record.Versioned[record.EntryCount] // by entry; guarded by mu
}

func newKnown() *known {
	return &known{tokens: make(map[string]record.Versioned[Token]),
		counts: make(map[string]record.Versioned[record.EntryCount])}
}

// token returns a token, from the store if it is not known. One that does not exist has
// version 0 and no error.
func (k *known) token(ctx context.Context, r record.Records, id string) (record.Versioned[Token], error) {
	k.mu.Lock()
	tok, ok := k.tokens[id]
	k.mu.Unlock()
	if ok {
		return tok, nil
	}
	return k.readToken(ctx, r, id)
}

// readToken is token by what the store holds now.
func (k *known) readToken(ctx context.Context, r record.Records, id string) (record.Versioned[Token], error) {
	tok, err := record.Get[Token](ctx, r, TokenKey(id))
	if err == nil {
		learn(k, k.tokens, id, tok)
	}
	return tok, err
}

// count returns the count of an entry, as token does.
func (k *known) count(ctx context.Context, r record.Records, entry string) (record.Versioned[record.EntryCount],
	error) {
	k.mu.Lock()
	n, ok := k.counts[entry]
	k.mu.Unlock()
	if ok {
		return n, nil
	}
	return k.readCount(ctx, r, entry)
}

func (k *known) readCount(ctx context.Context, r record.Records, entry string) (record.Versioned[record.EntryCount],
	error) {
	n, err := record.Get[record.EntryCount](ctx, r, record.CountKey(entry))
	if err == nil {
		learn(k, k.counts, entry, n)
	}
	return n, err
}

// learn keeps a record of a map of k, unless a newer one is known. One that is not
// there is known to nobody.
func learn[T any](k *known, m map[string]record.Versioned[T], name string, v record.Versioned[T]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old, ok := m[name]
	switch {
	case !v.Exists():
		delete(m, name)
		return
	case ok && old.Version > v.Version:
		return
	case !ok && len(m) >= maxKnown:
		clear(m)
	}
	m[name] = v
}

// forget drops what is known of a token and of an entry's count.
func (k *known) forget(token, entry string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tokens, token)
	delete(k.counts, entry)
}

// look reads what j is decided on from the store, and says why it is refused if it is.
func (a *Admission) look(ctx context.Context, j *joiner) error {
	s, cand := j.s, j.cand
	own := &ownRecords{}
	var err error
	if id := cand.proven.TokenID(); id != "" {
		tok, err := a.known.readToken(ctx, s.Records, id)
		if err != nil {
			return a.cfg.Head.StoreError("read the token", err)
		}
		if !tok.Exists() || voids(s, tok.Value) {
			return unknownToken()
		}
		if own.use, err = record.Get[TokenUse](ctx, s.Records, TokenUseKey(id, cand.key)); err != nil {
			return a.cfg.Head.StoreError("read the use of the token", err)
		}
		cand.token = &versionedToken{Versioned: tok, use: own.use}
		own.name = generatedName(tok.Value)
	}
	now := a.cfg.Now()
	if cand.proven.Type() == proof.TypeSVID {
		kind, name := cand.proven.Member()
		if own.proven, err = record.Get[record.Member](ctx, s.Records, record.MemberKey(kind, name)); err != nil {
			return a.cfg.Head.StoreError("read the member", err)
		}
		if err := inGrace(s, own.proven.Value, now); err != nil {
			return err
		}
	}
	m, err := identify(s.Manifest, cand, own.proven, own.name)
	if err != nil {
		return err
	}
	if own.view, err = a.ownView(ctx, s, m, cand); err != nil {
		return err
	}
	v := own.view
	if m.entry.MaxMembers > 0 && !v.member.Exists() {
		count, err := a.known.readCount(ctx, s.Records, m.entry.Name)
		if err != nil {
			return a.cfg.Head.StoreError("read the count of an entry", err)
		}
		if v.members, err = a.counted(ctx, s, m.entry, count); err != nil {
			return err
		}
	}
	if _, err := admit(m, cand, v, j.csrErr, now); err != nil {
		if errors.Is(err, errcode.JoinClone) {
			a.cfg.Membership.OlderKey(ctx, m.id.Kind(), m.id.Name(), err.Error())
		}
		return err
	}
	j.own = own
	return nil
}

// ownView reads what the store holds of one candidate alone.
func (a *Admission) ownView(ctx context.Context, s *authority.State, m match, cand candidate) (v admissionView,
	err error) {
	if v.member, err = record.Get[record.Member](ctx, s.Records,
		record.MemberKey(m.id.Kind(), m.id.Name())); err != nil {
		return v, a.cfg.Head.StoreError("read the member", err)
	}
	if v.bannedID, err = record.Get[record.Ban](ctx, s.Records, record.BanIDKey(m.id.Kind(), m.id.Name())); err != nil {
		return v, a.cfg.Head.StoreError("read a ban", err)
	}
	if v.bannedKey, err = record.Get[record.Ban](ctx, s.Records, record.BanKeyKey(cand.key)); err != nil {
		return v, a.cfg.Head.StoreError("read a ban", err)
	}
	if key, ok := cand.provingKey(); ok {
		if v.bannedProof, err = record.Get[record.Ban](ctx, s.Records, record.BanKeyKey(key)); err != nil {
			return v, a.cfg.Head.StoreError("read a ban", err)
		}
	}
	v.bundleBanned = a.bundleBans(m, cand)
	return v, nil
}

// bundleBans reports whether the bundle in force bans the name or a key of cand.
func (a *Admission) bundleBans(m match, cand candidate) bool {
	key, ok := cand.provingKey()
	return a.cfg.Bundle.Bans(m.id, cand.key) || ok && a.cfg.Bundle.Bans(m.id, key)
}

// counted returns the members under an entry: those of its count, if that is of the
// head in force.
func (a *Admission) counted(ctx context.Context, s *authority.State, entry *manifest.Entry,
	count record.Versioned[record.EntryCount]) (int, error) {
	if count.Exists() && count.Value.Head == s.Head.Hash {
		return count.Value.Members, nil
	}
	n, err := a.countMembers(ctx, s, entry)
	if err != nil {
		return 0, a.cfg.Head.StoreError("count the members under an entry", err)
	}
	return n, nil
}

// A roll is a transaction that admits several. It counts the uses of tokens and the
// members under its entry as they are with those that are on it.
type roll struct {
	c      *Admission
	s      *authority.State
	now    time.Time
	change *record.Change
	room   *batch.Room
	on     int
	alone  bool // whoever is on it shares it with nobody

	tokens map[string]*record.Versioned[Token]
	used   map[string]bool // of which a use is new
	counts map[string]*rollCount
	// recounted are the entries whose counts it writes for one that moves between them.
	recounted []string
}

type rollCount struct {
	record.Versioned[record.EntryCount]
	members int
	grew    bool
}

func (a *Admission) newRoll(s *authority.State) *roll {
	return &roll{
		c: a, s: s, now: a.cfg.Now(), change: s.Records.NewChange(s.HeadVersion),
		room:   batch.NewRoom(MaxJoinOps - fixedJoinOps),
		tokens: make(map[string]*record.Versioned[Token]), used: make(map[string]bool),
		counts: make(map[string]*rollCount),
	}
}

// errNoRoom says that a join goes with a later roll.
var errNoRoom = errors.New("no room on this roll")

// add decides j and enters it. The error matches errNoRoom, or errLookAgain for who is
// refused, or is the answer.
func (r *roll) add(ctx context.Context, j *joiner) error {
	if r.alone {
		return errNoRoom
	}
	s, cand, own := r.s, j.cand, j.own
	if own == nil {
		own = &ownRecords{}
	}
	var tok *record.Versioned[Token]
	id := cand.proven.TokenID()
	if id != "" {
		var err error
		if tok, err = r.token(ctx, id); err != nil {
			return err
		}
		if !tok.Exists() || voids(s, tok.Value) {
			return errLookAgain
		}
		cand.token = &versionedToken{Versioned: *tok, use: own.use}
		if own.name == "" {
			own.name = generatedName(tok.Value)
		}
	}
	proven := own.proven
	if j.own == nil && cand.proven.Type() == proof.TypeSVID {
		kind, name := cand.proven.Member()
		proven = r.c.cfg.Membership.Roster().Get(string(kind) + "/" + name)
	}
	if inGrace(s, proven.Value, r.now) != nil {
		return errLookAgain
	}
	m, err := identify(s.Manifest, cand, proven, own.name)
	if err != nil {
		return errLookAgain
	}
	v := own.view
	if j.own == nil {
		v = admissionView{member: r.c.cfg.Membership.Roster().Get(string(m.id.Kind()) + "/" + m.id.Name())}
	}
	v.bundleBanned = r.c.bundleBans(m, cand)
	var count *rollCount
	if m.entry.MaxMembers > 0 && !v.member.Exists() {
		if count, err = r.count(ctx, m.entry); err != nil {
			return err
		}
		v.members = count.members
	}
	adm, err := admit(m, cand, v, j.csrErr, r.now)
	if err != nil {
		return errLookAgain
	}
	moves := adm.already && adm.from != m.entry.Name
	if moves && r.on > 0 {
		return errNoRoom
	}
	adm.record.MeshKey = s.MeshKey
	part := r.part(cand, m, v, adm)
	if moves {
		if err := r.c.cfg.Membership.Recount(ctx, s, part, adm.from, m.entry.Name); err != nil {
			return err
		}
	}
	if part.Err != nil {
		return part.Err
	}
	var keys []string
	for _, cond := range part.Tx.If {
		keys = append(keys, cond.Key)
	}
	ops := len(part.Tx.If) + len(part.Tx.Put) + 1 // the entry of the audit log
	if id != "" && r.tokens[id] == nil {
		ops += 2
	}
	if count != nil && r.counts[m.entry.Name] == nil {
		ops += 2
	}
	if !r.room.Take(r.on, ops, keys) {
		return errNoRoom
	}
	if adm.already {
		if err := j.turn(m.id.Kind(), m.id.Name()); err != nil {
			return err // what it took of the room is left empty
		}
	}
	if moves {
		r.alone, r.recounted = true, []string{adm.from, m.entry.Name}
	}
	r.change.Tx.If = append(r.change.Tx.If, part.Tx.If...)
	r.change.Tx.Put = append(r.change.Tx.Put, part.Tx.Put...)
	action := "member.admit"
	if adm.already {
		action = "member.rejoin"
	}
	r.change.Audit(r.now, record.AuditEntry{Actor: m.id.String(), Action: action, Target: m.id.String(),
		Fields: map[string]string{"proof": adm.record.ProofType, "selector": m.selector, "entry": m.entry.Name,
			"key": cand.key.String()}})
	if tok != nil {
		r.tokens[id] = tok
		if adm.token != nil {
			tok.Value, r.used[id] = *adm.token, true
		}
	}
	if count != nil {
		r.counts[m.entry.Name] = count
		count.members, count.grew = count.members+1, true
	}
	j.match, j.adm, j.now = m, adm, r.now
	r.on++
	return nil
}

// part is what one admission writes and requires for itself alone.
func (r *roll) part(cand candidate, m match, v admissionView, adm admission) *record.Change {
	part := r.s.Records.Part()
	part.Put(record.MemberKey(m.id.Kind(), m.id.Name()), v.member.Version, adm.record)
	part.Require(record.BanIDKey(m.id.Kind(), m.id.Name()), 0)
	part.Require(record.BanKeyKey(cand.key), 0)
	if key, ok := cand.provingKey(); ok {
		part.Require(record.BanKeyKey(key), 0)
	}
	if adm.tokenUse != nil {
		part.Put(TokenUseKey(adm.token.ID, cand.key), 0, *adm.tokenUse)
	}
	return part
}

// token returns a token as it is with those that are on the roll.
func (r *roll) token(ctx context.Context, id string) (*record.Versioned[Token], error) {
	if tok := r.tokens[id]; tok != nil {
		return tok, nil
	}
	tok, err := r.c.known.token(ctx, r.s.Records, id)
	if err != nil {
		return nil, r.c.cfg.Head.StoreError("read the token", err)
	}
	return &tok, nil
}

// count returns the members under an entry with those that are on the roll.
func (r *roll) count(ctx context.Context, entry *manifest.Entry) (*rollCount, error) {
	if n := r.counts[entry.Name]; n != nil {
		return n, nil
	}
	count, err := r.c.known.count(ctx, r.s.Records, entry.Name)
	if err != nil {
		return nil, r.c.cfg.Head.StoreError("read the count of an entry", err)
	}
	n := &rollCount{Versioned: count}
	n.members, err = r.c.counted(ctx, r.s, entry, count)
	return n, err
}

// commit applies the roll.
func (r *roll) commit(ctx context.Context) (store.Revision, error) {
	for id, tok := range r.tokens {
		if r.used[id] {
			r.change.Put(TokenKey(id), tok.Version, tok.Value)
		} else {
			r.change.Require(TokenKey(id), tok.Version)
		}
	}
	for entry, n := range r.counts {
		n.Value = record.EntryCount{Members: n.members, Head: r.s.Head.Hash}
		r.change.Put(record.CountKey(entry), n.Version, n.Value)
	}
	if err := r.c.cfg.Faults.Hit("join.before-commit"); err != nil {
		return 0, err
	}
	rev, err := r.change.Commit(ctx)
	known := r.c.known
	if err != nil {
		r.forget()
		return 0, err
	}
	for id, tok := range r.tokens {
		if r.used[id] {
			learn(known, known.tokens, id, record.Versioned[Token]{Value: tok.Value, Version: rev})
		}
	}
	for entry, n := range r.counts {
		learn(known, known.counts, entry, record.Versioned[record.EntryCount]{Value: n.Value, Version: rev})
	}
	for _, entry := range r.recounted {
		known.forget("", entry)
	}
	return rev, nil
}

// forget has the shared records of the roll read again.
func (r *roll) forget() {
	for id := range r.tokens {
		r.c.known.forget(id, "")
	}
	for entry := range r.counts {
		r.c.known.forget("", entry)
	}
	for _, entry := range r.recounted {
		r.c.known.forget("", entry)
	}
}

// shares reports whether a key is of a record that those on the roll share.
func (r *roll) shares(key string) bool {
	for id := range r.tokens {
		if key == TokenKey(id) {
			return true
		}
	}
	for entry := range r.counts {
		if key == record.CountKey(entry) {
			return true
		}
	}
	return false
}

// admitTogether decides the joins of a batch, and commits as many of them as go into
// one transaction. It reads nothing that memory knows, and signs nothing.
func (a *Admission) admitTogether(ctx context.Context, line joinLine,
	calls []*batch.Call[*joiner]) (again []*batch.Call[*joiner], halve bool) {
	defer func() {
		if p := recover(); p != nil {
			err := ratelimit.Panicked(ctx, a.cfg.Log, "admission of several", p)
			for _, call := range calls {
				call.Answer(err)
			}
			again, halve = nil, false
		}
	}()
	ctx = authority.Granted(ctx) // a batch waits for a silent store no longer than one call
	r := a.newRoll(line.s)
	var on, refused []*batch.Call[*joiner]
	for _, call := range calls {
		switch err := r.add(ctx, call.Item); {
		case err == nil:
			on = append(on, call)
		case errors.Is(err, errNoRoom):
			again = append(again, call)
		case errors.Is(err, errLookAgain):
			refused = append(refused, call)
		default:
			call.Answer(err)
		}
	}
	// A join that is refused because of others on the roll looks once these are in the store.
	defer func() {
		for _, call := range refused {
			call.Answer(errLookAgain)
		}
	}()
	if len(on) == 0 {
		return again, false
	}
	answer := func(err error) {
		for _, call := range on {
			call.Answer(err)
		}
	}
	rev, err := r.commit(ctx)
	if err == nil {
		for _, call := range on {
			call.Item.rev = rev
			a.cfg.Membership.Roster().Put(call.Item.adm.record, rev)
		}
		answer(nil)
		return again, false
	}
	var conflict *store.ConflictError
	if !errors.Is(err, store.ErrConflict) {
		answer(a.cfg.Head.StoreError("admit the member", err))
		return again, false
	}
	if !errors.As(err, &conflict) {
		if len(on) == 1 {
			answer(err)
			return again, false
		}
		return append(on, again...), true
	}
	switch who, own := r.room.Owner(conflict.Key); {
	case own && len(on) > 1: // the others have nothing to do with it
		on[who].Answer(err)
		on = append(on[:who:who], on[who+1:]...)
		return append(on, again...), false
	case r.shares(conflict.Key) && watch.Sleep(ctx, mathrand.N(record.ConflictPause)) == nil:
		// Another coordinator was first. Each of these has so many tries.
		for _, call := range on {
			if call.Item.lost++; call.Item.lost < record.CommitTries {
				again = append(again, call)
			} else {
				call.Answer(record.Busy("the join"))
			}
		}
		return again, false
	case own, conflict.Key == history.HeadKey, conflict.Key == record.LockKey, len(on) == 1:
		answer(err)
		return again, false
	}
	return append(on, again...), true
}

// grant certifies who was admitted. From here on its record exists; the certificate
// follows the record, never the other way round. A candidate that loses the grant asks
// again with the same key.
func (a *Admission) grant(ctx context.Context, j *joiner) (*fealtyv1.JoinGrant, error) {
	if err := a.cfg.Faults.Hit("join.after-commit"); err != nil {
		return nil, err
	}
	s, m, adm := j.s, j.match, j.adm
	outcome := fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED
	if adm.already {
		outcome = fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER
	}
	chain, err := s.Issue(j.publicKey, m.id, m.entry, adm.record.NotAfter, j.now)
	if err != nil {
		return nil, fmt.Errorf("certify %s: %w", m.id, err)
	}
	grant := &fealtyv1.JoinGrant{Outcome: outcome, Chain: chain, RootStatement: s.RootStatement,
		TrustBundle: a.cfg.Bundle.View().Message()}
	if !record.IsSession(m.id.Kind()) {
		if grant.NodeBootstrap, err = a.Bootstrap(s, adm.record, j.rev, j.now); err != nil {
			return nil, fmt.Errorf("sign the node_bootstrap of %s: %w", m.id, err)
		}
	}
	a.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "member admitted", slog.String("member", m.id.String()),
		slog.String("outcome", outcome.String()),
		slog.String("entry", m.entry.Name), slog.String("proof", adm.record.ProofType),
		slog.String("remote", adm.record.SeenAddress), slog.String("reported_host", adm.record.Machine.Host))
	return grant, nil
}
