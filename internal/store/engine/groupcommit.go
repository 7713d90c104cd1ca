// Package engine implements [store.Store] over a database: it queues writes, decides each of them,
// commits all that queued up meanwhile as one transaction (group commit), answers the callers, and
// hands out what changed.
//
// # What it promises
//
// One goroutine makes turns, one after the other. In each it collects a group of jobs from the
// queue, reads what they are decided on ([Writer.Read]), decides them one after the other as if
// each were alone, and writes what they come to ([Writer.Write]). So with a database that keeps the
// promises of Writer:
//
//   - A job is answered only after what it came to is durable, and so is all that it rests on.
//   - A job that conflicts, or that the database cannot store, fails alone.
//   - A caller who gives up before its group was read is told that nothing was written, and nothing
//     is; afterwards, that the outcome is unknown.
//   - When the answer of the database is lost, those whose writes were on their way are told that
//     the outcome is unknown; who has no part in what was written is answered.
//   - Close commits what is in the queue, and answers it.
//
// The queue is bounded; who finds it full waits for room, and can give up.
//
// # Watching
//
// [Hub] says when to read, and never what: who watches reads the database after each commit that it
// is woken for. So neither a wake too many nor one for several commits does harm, and changes are
// told in the order of their revisions. [RetentionWindow] decides how long the log of changes is
// kept, by age, number and bytes.
//
// # What is left to the engine of a database
//
// Connections, statements, what its errors mean, and, where other processes write to the database
// too, to tell the hub what they commit.
package engine

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// Reader reads what is committed. It is called by many goroutines. An error is wrapped
// with what was asked for; it is ctx's if ctx ended.
type Reader interface {
	// Entry returns the entry of key; of version 0 if it does not exist.
	Entry(ctx context.Context, key string) (store.Entry, error)

	// Entries returns all entries under prefix, as [store.Store] has it.
	Entries(ctx context.Context, prefix string) (store.Listing, error)

	// Page returns the first commits after a revision that touched prefix. A
	// *[store.CompactedError] is passed on as it is.
	Page(ctx context.Context, prefix string, after store.Revision) (Page, error)
}

// Page is some of the changes after a revision.
type Page struct {
	Changes []store.Change
	Seen    store.Revision // the answer is complete up to here
	More    bool           // there are more
}

// Writer decides nothing: it reads what a group is decided on, and writes what was
// decided. It is called by one goroutine.
type Writer interface {
	// Read returns what a group is decided on. If anybody else writes between it and the
	// Write after it, that Write fails; or they have to wait until then.
	//
	// An error means that nothing was written; see Mend.
	Read(ctx context.Context, ask Ask) (State, error)

	// Write does all that p says, durably, or nothing. It may put p.Prune back to
	// p.Compacted to leave pruning for another time.
	//
	// An error made by [Unknown] means that p may have been written, or may be yet. Any
	// other means that nothing was, and never will be; see Mend.
	Write(ctx context.Context, p *Plan) error

	// Leave ends what Read began, when there is nothing to write.
	Leave()

	// Mend gets the error of an attempt that wrote nothing, and how many there were in
	// this turn. It returns nil if another may do better, and otherwise the error for the
	// callers: a *[RejectedError] if another group may do better.
	Mend(ctx context.Context, err error, tries int) error

	// Upkeep does a part of what can wait. It reports whether there is more to do when
	// nobody waits.
	Upkeep(when Occasion) bool
}

// Occasion is when something can be done that nobody waits for.
type Occasion int

const (
	Answered Occasion = iota // a group was answered; the next may be waiting
	Ticked                   // some time passed, or Config.Wake woke; the next group may be waiting
	Idle                     // nobody waits
)

// Cost is what a job takes of a group.
type Cost struct {
	Ops, Bytes int
	Keys       int // to read before
}

func (c Cost) add(d Cost) Cost { return Cost{c.Ops + d.Ops, c.Bytes + d.Bytes, c.Keys + d.Keys} }

// Within reports whether c is no more than most, of which 0 is no bound.
func (c Cost) Within(most Cost) bool {
	within := func(n, most int) bool { return most == 0 || n <= most }
	return within(c.Ops, most.Ops) && within(c.Bytes, most.Bytes) && within(c.Keys, most.Keys)
}

// maxGroup bounds the jobs in one group, whatever they cost.
const maxGroup = 512

// RowsPerRevision is how many changes a revision has room for in the numbers of rows
// ([Row.Seq]). Databases hold such numbers, so it stays whatever store.MaxTxOps becomes.
const RowsPerRevision = 1024

// Config says what a store is made of. A field that says nothing of zero is required.
type Config struct {
	Name string // of the database, for people
	Anew string // continues "restore": into what instead of this database

	Reader Reader
	Writer Writer

	// Hub is told here what this process commits. The engine tells it what others do.
	Hub *Hub

	// Found is what the database held when it was opened, and Retain what is to be kept. Zero
	// means 1 hour, 1,000,000 commits and 256 MiB.
	Found  Found
	Retain RetentionLimits

	// Queue is how many jobs may wait; more wait outside, in their callers. Zero means 1024.
	Queue int

	// Most is what the jobs of a group may cost: of one that costs more, a group of its own
	// is made. Cost says what a commit costs; nil: the bytes of its keys and values. All
	// other jobs cost Look.
	Most, Look Cost
	Cost       func(tx store.Tx) Cost

	// Patience bounds the ctx that a turn's calls of Writer get. Zero: the engine bounds
	// them itself.
	Patience time.Duration

	// Settled: what Read returns is durable always. Otherwise it may be what a Write of unknown
	// outcome left, and until another one was confirmed, no answer is given that was not
	// written itself.
	Settled bool

	// Wake makes an occasion to do something, Ticked. Nil: only time does.
	Wake <-chan struct{}

	Log *slog.Logger

	// Close frees what the engine holds, after the last call of Reader and Writer.
	Close func() error
}

// Found is what a database held when it was opened.
type Found struct {
	Compacted, Revision store.Revision
	Logged              int64  // bytes of changes ever written, as far as is known
	Parts               []Part // of the changes that are kept, oldest first
}

// Store is an open database. It is safe for concurrent use.
type Store struct {
	cfg Config

	queue   chan *job     // to the writer; closed by Close after the last caller left
	closing chan struct{} // closed when Close begins
	running sync.WaitGroup
	taken   atomic.Int32 // jobs that can no longer be given up without doubt

	w writer // owned by its goroutine; no lock

	mu      sync.Mutex
	closed  bool           // guarded by mu
	callers sync.WaitGroup // calls under way; Add only under mu and while !closed

	closeOnce sync.Once
	closeErr  error // written within closeOnce
}

var _ store.Lifter = (*Store)(nil)

// Start makes a store of an engine, and starts the goroutine that writes. It ends with
// Close.
func Start(cfg Config) *Store {
	f := cfg.Found
	cfg.Retain.Age = cmp.Or(cfg.Retain.Age, time.Hour)
	cfg.Retain.Commits = cmp.Or(cfg.Retain.Commits, 1_000_000)
	cfg.Retain.Bytes = cmp.Or(cfg.Retain.Bytes, 256<<20)
	cfg.Queue = cmp.Or(cfg.Queue, 1024)
	s := &Store{cfg: cfg, queue: make(chan *job, cfg.Queue), closing: make(chan struct{})}
	s.w.keep = NewRetentionWindow(cfg.Retain, time.Now(), f.Compacted, f.Revision, f.Logged, f.Parts)
	s.w.untidy = true // whatever was left the last time
	if seen, _ := cfg.Hub.State(); seen < f.Revision {
		cfg.Hub.Notify(f.Revision, f.Logged, nil, true)
	}
	s.running.Go(s.run)
	return s
}

// Queued returns how many writes wait that no group has.
func (s *Store) Queued() int { return len(s.queue) }

// Taken returns how many writes can no longer be given up without doubt, because their
// group is being written.
func (s *Store) Taken() int { return int(s.taken.Load()) }

// enter begins a call, unless the store is closed; leave ends it.
func (s *Store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	s.callers.Add(1)
	return nil
}

func (s *Store) leave() { s.callers.Done() }

// Close implements [store.Store]. Jobs that were handed over are committed first.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		close(s.closing)
		s.callers.Wait()
		close(s.queue)
		s.running.Wait()
		s.closeErr = s.cfg.Close()
	})
	return s.closeErr
}
