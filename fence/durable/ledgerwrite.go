package durable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/fealty-io/fealty/fence"
	files "github.com/fealty-io/fealty/internal/platform/durable"
)

// request is one call that waits to be saved. Its caller has it again once it was answered,
// and a later call uses it: nobody else looks at it after that, and it is answered once.
type request struct {
	kind    byte // of the record: recordPair, recordPromise or recordForget
	claim   fence.Claim
	promise fence.Verified[fence.Assignment]
	forget  string

	change fence.Change
	done   chan error // has room for one: errLead, or the answer
	over   bool       // guarded by Ledger.mu; its caller has gone
}

// newRequest returns an empty one.
func (l *Ledger) newRequest() *request {
	if r, ok := l.requests.Get().(*request); ok {
		return r
	}
	return &request{done: make(chan error, 1)}
}

// release gives a request back that nobody else has in hand. It keeps nothing of its caller.
func (l *Ledger) release(r *request) {
	*r = request{done: r.done}
	l.requests.Put(r)
}

// save waits until a request is on disk, or makes it and all that wait with it so. The
// request is the ledger's from here on.
func (l *Ledger) save(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		l.release(r)
		return fmt.Errorf("fence: %s: nothing was asked of it: %w", l.name, context.Cause(ctx))
	}
	l.mu.Lock()
	switch {
	case l.broken != nil:
		defer l.mu.Unlock()
		l.release(r)
		return l.broken
	case len(l.waiting) >= l.queue:
		l.mu.Unlock()
		l.release(r)
		return fmt.Errorf("fence: %s: %d attempts wait for its disk: send fewer at a time: %w", l.name, l.queue, fence.ErrBusy)
	}
	l.waiting = append(l.waiting, r)
	lead := !l.led
	l.led = true
	l.mu.Unlock()
	for {
		if lead {
			l.commit()
		}
		select {
		case err := <-r.done:
			if lead = errors.Is(err, errLead); !lead {
				l.release(r)
				return err
			}
		case <-ctx.Done():
			if lead, err := l.giveUp(ctx, r); !lead {
				return err
			}
			lead = true
		}
	}
}

// errLead is sent to a request that waits: its caller makes the next batch.
var errLead = errors.New("make the next batch")

// handOn has the first of those who wait make the next batch, or notes that nobody does.
func (l *Ledger) handOn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.led = len(l.waiting) > 0; l.led {
		l.waiting[0].done <- errLead
	}
}

// giveUp takes back a request, if nobody has taken it to the disk. One that was to make the
// next batch makes it all the same: its own request is among those that wait.
func (l *Ledger) giveUp(ctx context.Context, r *request) (lead bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case err := <-r.done:
		return errors.Is(err, errLead), err
	default:
	}
	if i := slices.Index(l.waiting, r); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		return false, fmt.Errorf("fence: %s: it was given up before it was looked at: %w", l.name, context.Cause(ctx))
	}
	r.over = true
	return false, fmt.Errorf("fence: %s: it was given up while it was saved, so that it may be there or not: %w", l.name,
		context.Cause(ctx))
}

// batch is what goes to the disk together. Its requests are apart: none changes what
// another one is decided by, so that each is decided by what is on disk.
type batch struct {
	taken     []*request      // those that are not answered yet; nil in the place of one that is
	going     []*request      // those of taken that go
	later     []*request      // those of taken that wait for the next batch
	resources map[string]bool // that are acted on or forgotten
	holders   map[string]bool // whose newest process changes
	floors    map[string]bool // holders whose floor may: a resource of theirs is forgotten
	domains   map[string]bool // that are promised
}

func (b *batch) clear() {
	for _, of := range []*[]*request{&b.taken, &b.going, &b.later} {
		clear(*of)
		*of = (*of)[:0]
	}
	for _, m := range []*map[string]bool{&b.resources, &b.holders, &b.floors, &b.domains} {
		if *m == nil {
			*m = make(map[string]bool)
		}
		clear(*m)
	}
}

// commit makes one batch of those that wait, saves it and answers them.
func (l *Ledger) commit() {
	l.turn <- struct{}{}
	over := false
	defer func() {
		if !over { // a panic must not leave others waiting for ever
			err := l.fail(errors.New("it stopped in the middle"))
			l.mu.Lock()
			all := append(l.batch.taken, l.waiting...)
			l.batch.taken, l.waiting = nil, nil
			l.mu.Unlock()
			for _, r := range all {
				if r != nil {
					r.done <- err
				}
			}
		}
		<-l.turn
		l.handOn()
	}()
	l.gather()
	l.batch.clear()
	if !l.choose() {
		over = true
		return
	}
	err := l.append()
	for i, r := range l.batch.taken {
		if err == nil {
			l.apply(r)
		}
		l.batch.answer(i, err)
	}
	if err == nil && l.size > 2*l.live+l.slack && l.size > l.rewriting.next {
		if l.rewriting.failed = l.rewrite(); l.rewriting.failed != nil {
			l.rewriting.next = l.size + l.slack // not with every attempt
		}
		if errors.Is(l.rewriting.failed, files.ErrUnknownOutcome) {
			_ = l.fail(l.rewriting.failed)
		}
	}
	l.note()
	over = true
}

// answer answers one of those that were taken: from then on it is its caller's.
func (b *batch) answer(i int, err error) {
	r := b.taken[i]
	b.taken[i] = nil
	r.done <- err
}

// gather lets those who were answered just now come back with their next attempt, until
// nobody comes any more. Without it they would miss this batch, and every second one would
// be nearly empty.
func (l *Ledger) gather() {
	const looks = 4 // another processor may have somebody on its way whom this one does not see
	for before, alone := 0, 0; alone < looks; alone++ {
		runtime.Gosched()
		l.mu.Lock()
		n := len(l.waiting)
		l.mu.Unlock()
		if n > before {
			before, alone = n, 0
		}
	}
}

// choose decides those that wait, answers those that are refused or change nothing, and
// makes a frame of the others. Those that are not apart, or find the frame full, go on
// waiting. It reports whether there is anything to write.
func (l *Ledger) choose() bool {
	b := &l.batch
	l.mu.Lock()
	broken := l.broken
	l.waiting, b.taken = b.taken, l.waiting
	l.mu.Unlock()
	if broken != nil {
		for i := range b.taken {
			b.answer(i, broken)
		}
		return false
	}
	l.frames.begin()
	for i, r := range b.taken {
		if l.frames.body() >= fullBody {
			b.later = append(b.later, b.taken[i:]...)
			break
		}
		if !l.apart(r) {
			b.later = append(b.later, r)
			continue
		}
		if changes, err := l.decide(r); err != nil || !changes {
			b.answer(i, err)
			continue
		}
		b.going = append(b.going, r)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Nobody would make the next batch if one whose caller has gone were told to.
	b.later = slices.DeleteFunc(b.later, func(r *request) bool { return r.over })
	l.waiting = slices.Insert(l.waiting, 0, b.later...)
	b.taken, b.going = b.going, b.taken
	return len(b.taken) > 0
}

// apart reports whether nothing in the batch changes what r is decided by.
func (l *Ledger) apart(r *request) bool {
	b := &l.batch
	switch r.kind {
	case recordPair:
		c := &r.claim
		switch {
		case b.resources[c.Resource], b.holders[c.Holder]:
			return false
		case b.floors[c.Holder] && l.memory.Mark(fence.Pair{Holder: c.Holder, Resource: c.Resource}).Sequence == 0:
			return false
		}
		return len(b.domains) == 0 || !b.domains[cmp.Or(l.memory.DomainOf(c.Resource), c.Domain)]
	case recordPromise:
		a, _ := r.promise.Get()
		return !b.domains[a.Domain]
	}
	return !b.resources[r.forget]
}

// decide makes the records of r, and notes what it changes, unless it is refused or
// changes nothing.
func (l *Ledger) decide(r *request) (changes bool, err error) {
	b := &l.batch
	switch r.kind {
	case recordPair:
		if r.change, err = l.check(&r.claim); err != nil {
			return false, err
		}
		b.resources[r.claim.Resource] = true
		if r.change.Process.Epoch != 0 {
			b.holders[r.claim.Holder] = true
		}
		l.frames.change(r.change)
	case recordPromise:
		if a, ok := r.promise.Get(); ok && a.AuthorityEpoch < l.header.since {
			return false, &fence.PromiseError{Reason: fence.ReasonMoved, Assignment: a, Mark: l.memory.Promised(a.Domain),
				Detail: fmt.Sprintf("it is of authority epoch %d, and this receiver was mended since %d", a.AuthorityEpoch,
					l.header.since)}
		}
		if r.change, err = l.memory.CheckPromise(r.promise); err != nil {
			return false, err
		}
		if l.memory.Promised(r.change.Domain) == r.change.Assigned {
			return false, nil
		}
		b.domains[r.change.Domain] = true
		l.frames.change(r.change)
	case recordForget:
		holders := l.memory.HoldersOf(r.forget)
		for _, holder := range holders {
			b.floors[holder] = true
		}
		if b.resources[r.forget] = true; len(holders) == 0 {
			return false, nil
		}
		l.frames.forget(r.forget)
	}
	return true, nil
}

// append writes and syncs the frame. After an error the ledger is broken: part of the frame
// may be in the file, and a sync that is tried again says nothing of what the first one
// lost.
func (l *Ledger) append() error {
	frame := l.frames.end()
	n, err := l.log.Write(frame)
	if err == nil && n < len(frame) {
		err = io.ErrShortWrite
	}
	if err == nil {
		err = l.log.Sync()
	}
	if err != nil {
		return l.fail(err)
	}
	l.size += int64(len(frame))
	return nil
}

// fail breaks the ledger, and returns what everybody gets from now on.
func (l *Ledger) fail(cause error) error {
	if l.log != nil {
		_ = l.log.Close() // nothing is believed of it
		l.log = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = fmt.Errorf("fence: %s could not be saved, and nothing is admitted until it was written anew: "+
		"make the directory writable, with room, then start again or call Rewrite: %w: %w", l.name, ErrBroken, cause)
	return l.broken
}

// apply notes in memory what is on disk.
func (l *Ledger) apply(r *request) {
	if r.kind != recordForget {
		l.live += l.grows(r.change)
		l.memory.Set(r.change)
		return
	}
	domain := l.memory.DomainOf(r.forget)
	for _, holder := range l.memory.HoldersOf(r.forget) {
		l.live -= pairBytes(holder, r.forget, domain)
	}
	l.memory.Forget(r.forget)
}

// grows returns by how many bytes a change makes a file longer that is written anew.
func (l *Ledger) grows(c fence.Change) (n int64) {
	if c.Assigned.Ownership != 0 {
		n = promiseBytes(c.Domain, c.Assigned.Holder)
		if before := l.memory.Promised(c.Domain); before.Ownership != 0 {
			n -= promiseBytes(c.Domain, before.Holder)
		}
		return n
	}
	if c.Process.Epoch != 0 && l.memory.ProcessOf(c.Pair.Holder).Epoch == 0 {
		n += holderBytes(c.Pair.Holder)
	}
	if c.First {
		domain := l.memory.DomainOf(c.Pair.Resource)
		if len(l.memory.HoldersOf(c.Pair.Resource)) == 0 {
			domain = c.Domain
		}
		n += pairBytes(c.Pair.Holder, c.Pair.Resource, domain)
	}
	return n
}

// rewrite puts a file in the place of the one that is there, with what memory holds. After
// an error that matches [files.ErrUnknownOutcome] nobody knows which of them a power cut
// leaves, and nothing may be appended to either; after any other the old one stands.
func (l *Ledger) rewrite() error {
	var is written
	log, err := l.disk.WriteLog(l.name, func(w io.Writer) (err error) {
		is, err = writeLedger(w, l.header, l.memory)
		return err
	})
	if err != nil {
		return err
	}
	if l.log != nil {
		_ = l.log.Close() // it has no name any more
	}
	l.log, l.frames, l.size, l.live, l.rewriting.next = log, is.frames, is.size, is.live, 0
	return nil
}

// note tells Status.
func (l *Ledger) note() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status = LedgerStatus{Size: l.size, Live: l.live, Since: l.header.since, Rewriting: l.rewriting.failed}
}
