// Package postgres keeps a cluster's store in a PostgreSQL database: rows in a
// table, with any number of coordinators as clients.
//
// One row holds the newest revision, and whoever commits locks it first. So
// conditions are compared with a state that nobody else can change before the
// commit, and revisions become visible in their order. All writes of a [Store]
// pass through one goroutine, which commits whatever has queued up meanwhile as
// one PostgreSQL transaction (group commit), in two round trips. A Tx that
// conflicts fails alone.
//
// Changes stand in a log in the database. LISTEN/NOTIFY only says when to
// read it: one notice for each group, with nothing but the revision. A
// connection of its own listens, reads the log after each LISTEN, and is given up
// when it does not answer a heartbeat, so that neither a lost notice nor a half
// open connection loses a change or delays it by more than Options.Heartbeat and
// Options.Timeout.
//
// # Failure
//
// The transaction of a commit is sent in two parts. Until the second part, which
// ends in COMMIT, has been sent, an error means that nothing was written, and a
// call can be given up without leaving doubt. Afterwards only the server's own
// answer decides; if it is lost, the error is [store.ErrUnknownOutcome]. The
// server cannot forget such a transaction halfway: it holds the revision row
// until it ended, so that [Store.Outcome] waits for it and its answer is final.
//
// A server that answers reads and takes no writes is full ([store.ErrFull]), for want of
// space or because it was made read-only. The only one that the URL names is read all the
// same; of several, another one may be the primary by now.
//
// After a failover the URL leads to the standby that was promoted: of the servers that it names, the
// driver takes the first that takes writes (primary.go). A connection that was found dead is replaced
// at once where nothing was written. A server that cannot be reached makes calls fail with the reason
// (outage.go).
//
// # What is trusted
//
// That the server keeps what it confirmed. It does not where a failover goes to
// a replica that lags behind (asynchronous replication), or with fsync off; Open
// says so in the log where it can see it. A replica or a read-only server is
// refused ([engine.ServerError]), and so is a pooler that drops LISTEN: connect to the
// server itself, or through a pooler in session mode. synchronous_commit is
// raised to on where it is lower.
//
// TLS is as the URL says (sslmode, sslrootcert, sslcert, sslkey); without them the
// driver's default is used, which does not verify the server, and the log says
// so. The password in the URL, or in PGPASSWORD or a passfile, appears in no
// error and no log. All files are read again for each connection.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// Bounds that no option changes.
const (
	maxGroupBytes = 16 << 20 // of keys and values in one PostgreSQL transaction, but for those of a single Tx
)

// anew is what a backup is restored into that cannot be restored here.
const anew = "into a new database"

// Options adjust a store. The zero value is right for production.
type Options struct {
	// Retention is how long changes and outcomes are kept at least, if the bounds
	// below allow it. Every process that has the database open measures on its own
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

	// Readers is how many connections reads share; two more are for commits and
	// for listening. Zero means 8.
	Readers int

	// Timeout is the longest wait for one answer of the server; of a List, six
	// times as much. Half of it is how long a commit waits for those of other
	// processes. Zero means 10 seconds.
	Timeout time.Duration

	// Heartbeat is how often the listening connection is tried, and the log read,
	// without a notice. Zero means 2 seconds.
	Heartbeat time.Duration

	// Reload has the files of the login read when somebody says so, beside each connection, and says what
	// changed. It may be nil.
	Reload *reload.Parts

	// Log gets what is wrong with the server, and failures of background work. Nil
	// means slog.Default().
	Log *slog.Logger
}

func (o Options) filled() (Options, error) {
	if o.Retention < 0 || o.RetainCommits < 0 || o.RetainBytes < 0 || o.Queue < 0 || o.Readers < 0 ||
		o.Timeout < 0 || o.Heartbeat < 0 {
		return o, errors.New("store: postgres.Options has a negative value: use 0 for the default")
	}
	o.Readers = cmp.Or(o.Readers, 8)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.Heartbeat = cmp.Or(o.Heartbeat, 2*time.Second)
	o.Log = cmp.Or(o.Log, slog.Default())
	return o, nil
}

// Store is an open database. It is safe for concurrent use.
type Store struct {
	*engine.Store
	db *database
}

// database is how to reach the database, and who reads it.
type database struct {
	opts    Options
	login   *login
	name    string // of the database, without user and password
	schema  string // where the tables are; set by Open
	channel string // of notices; set by Open

	readers *pgxpool.Pool
	hub     *engine.Hub
}

var (
	_ store.Store  = (*Store)(nil)
	_ store.Lifter = (*Store)(nil)
)

// Open opens the database that url names, and creates what it needs there if it
// is not there yet, in the schema that comes first in the search_path.
//
//	postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full&sslrootcert=FILE
//
// Several hosts, separated by commas, are tried in turn until one is a primary.
//
// Errors: *[AddressError] if url cannot be used; otherwise an *[engine.OpenError], which
// wraps a *[engine.ServerError] if the server cannot hold a store, a *[engine.LoginError] if it
// does not let the user in, and a *[engine.SchemaError] if the database's schema is newer
// than this program.
func Open(ctx context.Context, url string, opts Options) (_ *Store, err error) {
	opts, err = opts.filled()
	if err != nil {
		return nil, err
	}
	login, err := newLogin(url, opts.Log)
	if err != nil {
		return nil, err
	}
	db := &database{opts: opts, login: login, name: login.name, hub: engine.NewHub()}
	s, err := db.open(ctx)
	if err != nil {
		return nil, db.openError(err)
	}
	opts.Reload.Add(login.part())
	return s, nil
}

func (db *database) open(ctx context.Context) (_ *Store, err error) {
	w := &writer{db: db}
	l := &listener{db: db}
	defer func() {
		if err != nil {
			w.drop()
			l.drop()
			if db.readers != nil {
				db.readers.Close()
			}
		}
	}()
	conn, err := db.connect(ctx, bare, nil)
	if err != nil {
		return nil, err
	}
	defer drop(conn)
	if db.schema, err = findSchema(ctx, conn); err != nil {
		return nil, err
	}
	db.channel = channelOf(db.schema)
	known, err := engine.ReadMigrations(migrationFiles)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, conn, db.name, db.schema, known); err != nil {
		return nil, err
	}
	for _, p := range inspect(ctx, conn) {
		db.opts.Log.Warn(p.What+"; "+p.Do, "store", db.name)
	}
	found, err := w.start(ctx)
	if err != nil {
		return nil, err
	}
	if db.readers, err = db.connectReaders(ctx); err != nil {
		return nil, err
	}
	if err := l.start(ctx, conn); err != nil {
		return nil, err
	}
	listening, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { l.run(listening) })
	return &Store{db: db, Store: engine.Start(engine.Config{
		Name: db.name, Anew: anew, Reader: db, Writer: w, Hub: db.hub, Found: found,
		Retain: engine.RetentionLimits{Age: db.opts.Retention, Commits: db.opts.RetainCommits, Bytes: db.opts.RetainBytes},
		Queue:  db.opts.Queue, Most: engine.Cost{Bytes: maxGroupBytes}, Log: db.opts.Log,
		Close: func() error {
			w.drop()
			stop()
			running.Wait()
			db.readers.Close()
			return nil
		},
	})}, nil
}

// Name names the database for people: postgres://HOST:PORT/DATABASE.
func (s *Store) Name() string { return s.db.name }
