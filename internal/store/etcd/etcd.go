// Package etcd keeps a cluster's store under a prefix of an etcd cluster, with
// any number of coordinators as clients.
//
// One key, the head, holds the newest revision. Every commit replaces it, in an
// etcd transaction whose condition is that it is still the very head on which the
// commit was decided. So commits have one order, whatever else is in etcd, and
// conditions of a Tx need no room in etcd's own transaction. All writes of a
// [Store] pass through one goroutine, which commits whatever has queued up
// meanwhile as one transaction (group commit), in two round trips. A Tx that
// conflicts fails alone. Revisions are counted in the head: etcd's own begin anew
// in every new etcd cluster, and key versions with every key that is deleted.
//
// # Large commits
//
// etcd takes 128 operations and 1.5 MiB in a request unless its operator says
// otherwise, and a Tx may have more. Such a Tx is first written aside in chunks,
// on a lease, so that one that was given up goes away by itself. Then a small
// transaction decides it: it puts the next revision and the name of the stage into
// the head, if the head and all chunks are still there. From then on it has
// happened, for every reader: who sees such a head looks at the stage first. The
// writer then moves all of it to its place, step by step, each on the condition
// of that head; if it dies, the next writer goes on, because no commit begins
// before that. Values of more than 4 KiB stand in records of their own.
//
// # Failure
//
// A commit whose answer is lost is settled by reading: the head carries a random
// name of the write that made it, and so does the log. If the head did not change,
// the writer replaces it by one that says the same, after which the lost
// transaction cannot happen any more. Only when no server answers within
// Options.Timeout and some is the error [store.ErrUnknownOutcome].
//
// Calls go to one member at a time, and to the next when it does not answer. A
// watch on the head says when to read; it is a hint, since a member that is dead
// or cut off sends neither events nor errors. So the head is read every
// Options.Heartbeat as well, through the majority, and a watch that has not told
// by then what was read is given up.
//
// # What is kept
//
// The log of changes is the store's own, under its prefix, and is pruned by age,
// number and bytes. The old revisions that etcd keeps are not needed: compaction may
// happen at any time, and is left to etcd's operator (--auto-compaction-retention),
// unless the URL says compaction=everything. Without any, etcd's database grows
// until it is full ([store.ErrFull]).
package etcd

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// anew is where a backup is restored that cannot be restored here.
const anew = "under a new prefix"

// Options adjust a store. The zero value is right for production.
type Options struct {
	// Retention is how long changes and outcomes are kept at least, if the bounds
	// below allow it. Every process that has the store open measures on its own
	// monotonic clock, so a change is kept that long after the first of them saw it.
	// Zero means 1 hour.
	Retention time.Duration

	// RetainCommits bounds how many commits' changes are kept. Zero means
	// 1,000,000.
	RetainCommits int

	// RetainBytes bounds the keys and values among the kept changes. Zero means
	// 256 MiB.
	RetainBytes int64

	// Queue is how many writes may wait, each of up to store.MaxTxBytes; more wait
	// outside, in their callers. Zero means 1024.
	Queue int

	// Timeout is the longest wait for one answer of one member, before the next
	// member is asked. Zero means 3 seconds.
	Timeout time.Duration

	// Heartbeat is how often the head is read without an event. Zero means 2
	// seconds.
	Heartbeat time.Duration

	// Password is that of the user in the URL, where it names no password-file.
	Password string

	// Reload has the files of the login read when somebody says so, beside each connection, and says what
	// changed. It may be nil.
	Reload *reload.Parts

	// Log gets what is wrong with the servers, and failures of background work. Nil
	// means slog.Default().
	Log *slog.Logger

	// Known says what else is known of why no server answers, for one that this process started itself: it goes into what is
	// told of an outage. "" is nothing. It may be nil.
	Known func() string

	history time.Duration // that etcd keeps of its own old revisions, with compaction=everything
}

func (o Options) filled() (Options, error) {
	if o.Retention < 0 || o.RetainCommits < 0 || o.RetainBytes < 0 || o.Queue < 0 ||
		o.Timeout < 0 || o.Heartbeat < 0 {
		return o, errors.New("store: etcd.Options has a negative value: use 0 for the default")
	}
	o.Timeout = cmp.Or(o.Timeout, 3*time.Second)
	o.Heartbeat = cmp.Or(o.Heartbeat, 2*time.Second)
	o.history = cmp.Or(o.history, 5*time.Minute)
	o.Log = cmp.Or(o.Log, slog.Default())
	return o, nil
}

// Store is an open store. It is safe for concurrent use.
type Store struct {
	*engine.Store
	db *database
}

// database is what is under the prefix, and how to reach it.
type database struct {
	opts   Options
	addr   address
	dialer *dialer
	id     string // the head's Store; set by Open
	hub    *engine.Hub

	mu     sync.Mutex
	staged *staged // the last stage that was read; guarded by mu
}

// staged is a large commit that was read, under the head that has it pending.
type staged struct {
	by     string
	change *change
}

var (
	_ store.Store  = (*Store)(nil)
	_ store.Lifter = (*Store)(nil)
)

// Open opens the store that url names, and makes it if there is nothing under the
// prefix yet.
//
//	etcd://USER@HOST:PORT,HOST:PORT/PREFIX?ca=FILE&cert=FILE&key=FILE&password-file=FILE
//
// The prefix tells several stores in one etcd apart; without one it is /fealty.
// Connections are TLS, verified with the system's roots or those in ca, unless the
// URL says tls=off. A user's password is in the file password-file, or in
// Options.Password, and never in the URL.
//
// Errors: *[AddressError] if url cannot be used; otherwise an *[engine.OpenError], which
// wraps a *[engine.ServerError] if the servers cannot hold a store or the prefix holds
// something else, a *[engine.LoginError] if they do not let the user in, and a
// *[engine.SchemaError] if the store is of a newer program.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	opts, err := opts.filled()
	if err != nil {
		return nil, err
	}
	db, err := prepare(url, opts)
	if err != nil {
		return nil, err
	}
	return db.opened(ctx)
}

// OpenSocket opens the store of a server that serves at the unix socket of that path, and that is for this store alone. It
// asks for no login: who can open the socket may use it. The store is called name. Its errors are those of [Open].
func OpenSocket(ctx context.Context, path, name string, opts Options) (*Store, error) {
	opts, err := opts.filled()
	if err != nil {
		return nil, err
	}
	db, err := prepareAt(address{endpoints: []string{path}, prefix: defaultPrefix + "/", plain: true, onlyThisDevice: true,
		socket: true, named: name}, opts)
	if err != nil {
		return nil, err
	}
	return db.opened(ctx)
}

func (db *database) opened(ctx context.Context) (*Store, error) {
	s, err := db.open(ctx)
	if err != nil {
		db.dialer.close()
		return nil, db.openError(err)
	}
	db.opts.Reload.Add(db.dialer.login.part())
	return s, nil
}

func prepare(url string, opts Options) (*database, error) {
	addr, err := parse(url)
	if err != nil {
		return nil, err
	}
	return prepareAt(addr, opts)
}

func prepareAt(addr address, opts Options) (*database, error) {
	addr.given, opts.Password = opts.Password, ""
	login, err := newLogin(addr, opts.Log)
	if err != nil {
		return nil, err
	}
	d := newDialer(login, addr.endpoints, opts.Timeout)
	d.known = opts.Known
	return &database{opts: opts, addr: addr, dialer: d, hub: engine.NewHub()}, nil
}

func (db *database) openError(err error) error {
	if _, ok := errors.AsType[*AddressError](err); ok {
		return err
	}
	return &engine.OpenError{Name: db.name(), Err: err}
}

func (db *database) open(ctx context.Context) (*Store, error) {
	if err := db.ready(ctx); err != nil {
		return nil, err
	}
	if db.addr.plain && !db.addr.onlyThisDevice {
		db.opts.Log.Warn("the connection to etcd is not protected by TLS: "+
			"whoever gets in between reads and alters it; leave tls=off out of the URL", "store", db.name())
	}
	w := &writer{db: db}
	found, err := w.start(ctx)
	if err != nil {
		return nil, err
	}
	following, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { db.follow(following) })
	o := db.opts
	return &Store{db: db, Store: engine.Start(engine.Config{
		Name: db.name(), Anew: anew, Reader: db, Writer: w, Hub: db.hub, Found: found,
		Retain: engine.RetentionLimits{Age: o.Retention, Commits: o.RetainCommits, Bytes: o.RetainBytes},
		Queue:  o.Queue, Most: most, Look: look, Cost: costOf, Patience: db.patience(),
		Settled: true, // a read is through the majority, which has what it tells
		Log:     o.Log,
		Close: func() error {
			stop()
			running.Wait()
			db.dialer.close()
			return nil
		},
	})}, nil
}

// Name names the store for people: etcd://HOST:PORT,…/PREFIX.
func (s *Store) Name() string { return s.db.name() }

func (db *database) name() string { return db.addr.name() }

// key returns the key in etcd of one of ours.
func (db *database) key(name string) []byte { return []byte(db.addr.prefix + name) }
