// Package sqlite keeps a cluster's store in one SQLite file, in pure Go. It is
// the engine for exactly one process; the parts of that process share one
// opened [Store].
//
// All writes pass through one goroutine, which commits whatever has queued up
// meanwhile as one SQLite transaction (group commit): each write is durable
// before its answer, and a busy store pays for one sync for many writes. A Tx
// that conflicts fails alone. Readers have connections of their own, see
// committed state only, and do not wait for writers.
//
// A second process is kept out by a lock on a file beside the database, held
// for life ([LockedError]). The lock does not reach over network file systems,
// so those are refused ([FilesystemError]).
//
// When the disk is full or fails, the commits concerned fail, the state stays
// as it was, and the store can be used again once the cause is gone. A commit
// whose own sync failed is reported as [store.ErrUnknownOutcome]: it is not
// visible, but a crash right then could bring it back. These are trusted: that
// the disk keeps what it confirmed to have synced.
//
// Commits to a file that was moved, removed or replaced while it is open fail until
// it has its name again. The outcome of one that met this right then is unknown.
package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver that sql.Open names

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// Bounds that no option changes.
const (
	pageBytes     = 4096
	maxGroupBytes = 16 << 20 // of keys and values in one SQLite transaction, but for those of a single Tx
)

// anew is what a backup is restored into that cannot be restored here.
const anew = "into a new file"

// Options adjust a store. The zero value is right for production.
type Options struct {
	// Retention is how long changes and outcomes are kept at least, in time that
	// this process ran, if the bounds below allow it. Zero means 1 hour.
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

	// MaxBytes bounds the database file, without its log; a commit that would
	// grow it further fails as on a full disk. Zero means no bound but SQLite's.
	MaxBytes int64

	// Locks are those of the process, of which the database's is one. Nil: nobody looks after it.
	Locks *durable.Locks

	// Log gets failures of background work. Nil means slog.Default().
	Log *slog.Logger
}

func (o Options) filled() (Options, error) {
	if o.Retention < 0 || o.RetainCommits < 0 || o.RetainBytes < 0 || o.Queue < 0 || o.MaxBytes < 0 {
		return o, errors.New("store: sqlite.Options has a negative value: use 0 for the default")
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	return o, nil
}

// Store is an open database. It is safe for concurrent use.
type Store struct {
	*engine.Store
	db *database
}

// database is the open file: the connections to it, and what stands beside it.
type database struct {
	path  string
	file  fs.FileInfo // of path, when it was opened
	spare spare
	opts  Options
	lock  io.Closer

	readers  *sql.DB   // query_only connections
	getEntry *sql.Stmt // of readers
	writes   *sql.DB   // exactly two connections: the writer's and the checkpointer's

	closing chan struct{} // closed after the writer's last turn
	running sync.WaitGroup
	copying chan struct{} // held by who copies the log; capacity 1
}

var (
	_ store.Store  = (*Store)(nil)
	_ store.Lifter = (*Store)(nil)
)

// Open opens the database at path, and creates it, with mode 0600 in a
// directory of mode 0700, if it does not exist. The file path+".lock" beside it
// is held until Close.
//
// Errors: *[LockedError] if another process has it open, *[engine.SchemaError] if its
// schema is newer than this program, *[ForeignError] if it is not a store,
// *[FilesystemError] on a network file system.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	p, err := prepare(ctx, path, opts)
	if err != nil {
		return nil, err
	}
	p.db.running.Go(func() { p.db.checkpointer(p.checkpoints, p.w) })
	return p.start(), nil
}

// prepared is an open database without the two that run beside its callers: the writer,
// and the checkpointer with its connection.
type prepared struct {
	db          *database
	w           *writer
	found       engine.Found
	checkpoints *sql.Conn
}

// start starts the writer.
func (p *prepared) start() *Store {
	db := p.db
	return &Store{db: db, Store: engine.Start(engine.Config{
		Name: db.path, Anew: anew, Reader: db, Writer: p.w, Hub: engine.NewHub(), Found: p.found,
		Retain: engine.RetentionLimits{Age: db.opts.Retention, Commits: db.opts.RetainCommits, Bytes: db.opts.RetainBytes},
		Queue:  db.opts.Queue, Most: engine.Cost{Bytes: maxGroupBytes}, Wake: p.w.logLong, Log: db.opts.Log,
		Close: func() error { return db.close(p.w) },
	})}
}

func prepare(ctx context.Context, path string, opts Options) (_ *prepared, err error) {
	opts, err = opts.filled()
	if err != nil {
		return nil, err
	}
	path, err = preparePath(path)
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(path, opts.Locks)
	if err != nil {
		return nil, err
	}
	db := &database{
		path:    path,
		spare:   spare(path + ".spare"),
		opts:    opts,
		lock:    lock,
		closing: make(chan struct{}),
		copying: make(chan struct{}, 1),
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("store: open %s: %w", path, err)
			if db.readers != nil {
				db.readers.Close()
			}
			if db.writes != nil {
				db.writes.Close()
			}
			lock.Close()
		}
	}()
	if err := protectFile(path); err != nil {
		return nil, err
	}
	if db.file, err = os.Stat(path); err != nil {
		return nil, err
	}
	// Opening takes some space for a while, and it is to be opened on a full disk too.
	if err := db.spare.release(); err != nil {
		return nil, err
	}
	if db.file.Size() == 0 {
		if err := create(ctx, path); err != nil {
			return nil, err
		}
	}
	if db.writes, err = db.connect(2, nil); err != nil {
		return nil, err
	}
	if db.readers, err = db.connect(readerConns, url.Values{"_query_only": {"1"}}); err != nil {
		return nil, err
	}
	conn, err := db.writes.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	// SQLite falls back silently where it cannot have a write-ahead log.
	var mode string
	if err := conn.QueryRowContext(ctx, "pragma journal_mode").Scan(&mode); err != nil {
		return nil, err
	}
	if mode != "wal" {
		return nil, fmt.Errorf("journal mode is %q, want wal: the file system lacks shared memory maps; "+
			"move the database to a local disk", mode)
	}
	known, err := engine.ReadMigrations(migrationFiles)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, conn, path, known); err != nil {
		return nil, err
	}
	switch done, err := rewrite(ctx, conn); {
	case err != nil:
		opts.Log.Warn("a database of an earlier release could not be written anew to give space back to the disk, "+
			"and is used as it is", "store", path, "err", err)
	case done:
		opts.Log.Info("a database of an earlier release was written anew, which gave space back to the disk", "store", path)
	}
	w, found, err := newWriter(ctx, db, conn)
	if err != nil {
		return nil, err
	}
	db.getEntry, err = db.readers.PrepareContext(ctx, "select version, value from entries where key = ?")
	if err != nil {
		return nil, err
	}
	checkpoints, err := db.writes.Conn(ctx)
	if err != nil {
		return nil, err
	}
	w.shrinkLog() // what a process before left long, however it ended
	w.keepSpare()
	return &prepared{db, w, found, checkpoints}, nil
}

// close ends what runs beside the callers, and closes the file.
func (db *database) close(w *writer) error {
	close(db.closing)
	db.running.Wait()
	w.close()
	// SQLite copies the log when its last connection is closed, which takes room.
	released := db.spare.release()
	// The lock goes last: until then nobody else may open the file.
	err := errors.Join(released, db.readers.Close(), db.writes.Close(), db.lock.Close())
	if err != nil {
		err = fmt.Errorf("store: close %s: %w", db.path, err)
	}
	return err
}

const readerConns = 8

// connect opens a pool of at most n connections. Pragmas are part of the name
// because they belong to a connection, and the pool makes new ones as it likes.
func (db *database) connect(n int, more url.Values) (*sql.DB, error) {
	const writerCache, readerCache = "cache_size(-16384)", "cache_size(-2048)" // KiB
	q := url.Values{
		"_txlock": {"immediate"},
		"_pragma": {
			"busy_timeout(10000)",
			"journal_mode(wal)",
			"synchronous(full)",
			"wal_autocheckpoint(0)", // the checkpointer's task
			"journal_size_limit(" + strconv.Itoa(keptLogBytes) + ")",
			"trusted_schema(0)",
		},
	}
	if db.opts.MaxBytes > 0 {
		pages := strconv.FormatInt(max(1, db.opts.MaxBytes/pageBytes), 10)
		q["_pragma"] = append(q["_pragma"], "max_page_count("+pages+")")
	}
	if more == nil {
		q["_pragma"] = append(q["_pragma"], writerCache)
	} else {
		q["_pragma"] = append(q["_pragma"], readerCache)
		// Readers never upgrade, so they begin without taking the write lock.
		q["_txlock"] = []string{"deferred"}
		for k, v := range more {
			q[k] = v
		}
	}
	name := url.URL{Scheme: "file", OmitHost: true, Path: db.path, RawQuery: q.Encode()}
	pool, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(n)
	pool.SetMaxIdleConns(n)
	return pool, nil
}

// preparePath creates the database file and its directory, if they do not
// exist, and returns the one name of the file, so that two paths to one
// database meet at one lock.
//
// A file that exists it does not open: whoever closes a file gives up all locks
// that the process has on it (fcntl(2)), and this process may have it open as a
// store already.
func preparePath(path string) (string, error) {
	if path == "" {
		return "", errors.New("store: path of the database is empty: name a file")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	if err := durable.OS().MkdirAll(filepath.Dir(path)); err != nil {
		return "", fmt.Errorf("store: create the directory of the database: %w", err)
	}
	if err := checkFilesystem(filepath.Dir(path)); err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		// A dangling link cannot be created exclusively, and is created through.
		f, createErr := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if createErr != nil {
			return "", fmt.Errorf("store: create the database: %w", createErr)
		}
		info, err = f.Stat()
		f.Close()
	}
	if err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("store: %s is not a regular file: name another", path)
	}
	// Only now, because a link can point to a file that did not exist.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	return path, checkFilesystem(filepath.Dir(path))
}

// protectFile makes sure that only its owner can read the file, if it is new or
// a store; SQLite gives its other files the same mode. It needs the lock.
func protectFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	// Someone else's file will be refused, and keeps its mode.
	var id [4]byte
	if info.Size() > 0 {
		_, err := f.ReadAt(id[:], applicationIDOffset)
		if err != nil || binary.BigEndian.Uint32(id[:]) != applicationID {
			return nil
		}
	}
	return f.Chmod(0o600)
}

// inPlace returns an error unless the file that is open still has its name. Writes to
// one that lost it would be acknowledged, and gone with this process.
//
// It asks by name and opens nothing: see [preparePath].
func (db *database) inPlace() error {
	gone := func(what string) error {
		return &store.RefusedError{Reason: store.FileGone, Err: errors.New(what)}
	}
	switch info, err := os.Stat(db.path); {
	case errors.Is(err, fs.ErrNotExist):
		return gone("the file was moved or removed while it was open: put it back under its name, " +
			"or restart to begin with what is there")
	case err != nil:
		return err
	case !os.SameFile(db.file, info):
		return gone("the file was replaced while it was open: put back the one that was there, " +
			"or restart to open the other one")
	}
	return nil
}

// Path returns the absolute path of the database.
func (s *Store) Path() string { return s.db.path }
