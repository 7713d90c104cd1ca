package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/internal/store/storetest"
	"github.com/fealty-io/fealty/test/wait"
)

func openAt(t testing.TB, path string, o sqlite.Options) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func put(key, value string) store.Tx {
	return store.Tx{Put: []store.Write{{Key: key, Value: []byte(value)}}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustCommit(t testing.TB, s store.Store, tx store.Tx) store.Revision {
	t.Helper()
	r, err := s.Commit(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// raw opens the file behind a closed store, or beside an open one.
func raw(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Engine{New: func(t testing.TB, retain int) conformance.Database {
		path := filepath.Join(t.TempDir(), "store.db")
		maxBytes := int64(0)
		open := func() (store.Store, error) {
			s, err := sqlite.Open(context.Background(), path, sqlite.Options{RetainCommits: retain, MaxBytes: maxBytes})
			return &killable{Store: s}, err
		}
		return conformance.Database{Open: open, Kill: func(s store.Store) (store.Store, error) {
			s.(*killable).kill()
			// A killed process leaves what the kernel holds of the files at some
			// instant amid commits. It is taken over by a new file name, because
			// this process keeps the lock of the old one.
			image := filepath.Join(t.TempDir(), "image.db")
			crashImage(t, path, image)
			if err := s.Close(); err != nil {
				return nil, err
			}
			path = image
			return open()
		}, Full: func(s store.Store, full bool) (store.Store, error) {
			if err := s.Close(); err != nil {
				return nil, err
			}
			if maxBytes = 0; full {
				maxBytes = 2 << 20 // of SQLite's own max_page_count
			}
			return open()
		}}
	}})
}

// killable is a store whose process can die: from then on nobody hears it.
type killable struct {
	*sqlite.Store
	dead atomic.Bool
}

func (k *killable) kill() { k.dead.Store(true) }

// CompareAndSwap is what the suite calls while it kills.
func (k *killable) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	r, err := k.Store.CompareAndSwap(ctx, key, old, value)
	if k.dead.Load() {
		return 0, fmt.Errorf("%w: killed", store.ErrUnknownOutcome)
	}
	return r, err
}

// crashImage copies a database in use: first the file, then the log, which still
// holds every page that a checkpoint wrote to the file meanwhile, unless it was
// started anew; then the copy is made again.
func crashImage(t testing.TB, from, to string) {
	t.Helper()
	for {
		before := walHeader(t, from)
		for _, suffix := range []string{"", "-wal"} {
			data, err := os.ReadFile(from + suffix)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to+suffix, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if before == walHeader(t, from) {
			return
		}
	}
}

func walHeader(t testing.TB, path string) string {
	f, err := os.Open(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	header := make([]byte, 32)
	if _, err := f.ReadAt(header, 0); err != nil {
		t.Fatal(err)
	}
	return string(header)
}

// walCommits counts the SQLite transactions in the log: the frames that complete
// one carry the database's size in their header
// (https://sqlite.org/fileformat2.html#walformat).
func walCommits(t testing.TB, path string) int {
	t.Helper()
	wal, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	const walHeader, frameHeader, page = 32, 24, 4096
	salt := wal[16:24]
	n := 0
	for frame := wal[walHeader:]; len(frame) >= frameHeader+page; frame = frame[frameHeader+page:] {
		if bytes.Equal(frame[8:16], salt) && binary.BigEndian.Uint32(frame[4:8]) != 0 {
			n++
		}
	}
	return n
}

func TestFilesArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(dir, "store ?&#%41.db") // a name that a URI could mistake
	s := openAt(t, path, sqlite.Options{})
	mustCommit(t, s, put("k", "v"))
	for name, want := range map[string]fs.FileMode{
		filepath.Dir(dir): 0o700, dir: 0o700, path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600, path + ".lock": 0o600,
	} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Closing leaves no log behind, and nothing open.
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if f.Name() != filepath.Base(path) && f.Name() != filepath.Base(path)+".lock" {
			t.Errorf("%s is left after Close", f.Name())
		}
	}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil { // Linux
		for _, fd := range open {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, dir) {
				t.Errorf("%s is open after Close", to)
			}
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	openAt(t, path, sqlite.Options{})
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("a database with mode 644 was opened and has mode %o, want 600", info.Mode().Perm())
	}

	// Someone else's file keeps its mode.
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, bytes.Repeat([]byte("not a database "), 100), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.Open(t.Context(), other, sqlite.Options{}); err == nil {
		t.Fatal("opened")
	}
	if info, _ := os.Stat(other); info.Mode().Perm() != 0o644 {
		t.Errorf("a file that was refused has mode %o, had 644", info.Mode().Perm())
	}
}

func TestOpenTwiceInOneProcess(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "store.db")
	s := openAt(t, path, sqlite.Options{})
	link := filepath.Join(dir, "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	linkDir := filepath.Join(t.TempDir(), "dir")
	if err := os.Symlink(dir, linkDir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, link, filepath.Join(linkDir, "store.db"), filepath.Join(linkDir, "link.db")} {
		_, err := sqlite.Open(t.Context(), name, sqlite.Options{})
		locked, ok := errors.AsType[*sqlite.LockedError](err)
		if !ok || !errors.Is(err, sqlite.ErrLocked) || locked.PID != os.Getpid() || locked.Path != s.Path() {
			t.Errorf("Open(%s) = %v, want a LockedError of this process", name, err)
		}
	}
	mustCommit(t, s, put("k", "v")) // the holder is unharmed
	s.Close()
	openAt(t, link, sqlite.Options{})

	// A link to a file that does not exist yet.
	dangling := filepath.Join(dir, "dangling.db")
	if err := os.Symlink(filepath.Join(dir, "new.db"), dangling); err != nil {
		t.Fatal(err)
	}
	openAt(t, dangling, sqlite.Options{})
	for _, name := range []string{dangling, filepath.Join(dir, "new.db")} {
		if _, err := sqlite.Open(t.Context(), name, sqlite.Options{}); !errors.Is(err, sqlite.ErrLocked) {
			t.Errorf("Open(%s) = %v, want a LockedError", name, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Run("newer schema", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store.db")
		s := openAt(t, path, sqlite.Options{})
		r := mustCommit(t, s, put("k", "v"))
		s.Close()
		db := raw(t, path)
		if _, err := db.Exec("insert into migrations values (1000, '0099_from_the_future')"); err != nil {
			t.Fatal(err)
		}
		db.Close()
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = sqlite.Open(t.Context(), path, sqlite.Options{})
		schema, ok := errors.AsType[*engine.SchemaError](err)
		if !ok || !errors.Is(err, engine.ErrSchema) || schema.Found != "0099_from_the_future" || !strings.Contains(err.Error(), schema.Found) {
			t.Fatalf("Open = %v, want a SchemaError that names the schema", err)
		}
		if after, _ := os.ReadFile(path); string(after) != string(before) {
			t.Fatal("a refused database was changed")
		}
		db = raw(t, path)
		if _, err := db.Exec("delete from migrations where n = 1000"); err != nil {
			t.Fatal(err)
		}
		db.Close()
		if e, err := openAt(t, path, sqlite.Options{}).Get(t.Context(), "k"); err != nil || e.Version != r {
			t.Fatalf("Get = %+v, %v", e, err)
		}
	})
	t.Run("another program's database", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "other.db")
		db := raw(t, path)
		if _, err := db.Exec("create table theirs (x)"); err != nil {
			t.Fatal(err)
		}
		db.Close()
		_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if foreign, ok := errors.AsType[*sqlite.ForeignError](err); !ok || foreign.Path != path || errors.Is(err, engine.ErrSchema) {
			t.Fatalf("Open = %v, want a ForeignError that names the file", err)
		}
		db = raw(t, path)
		var n int
		if err := db.QueryRow("select count(*) from sqlite_schema").Scan(&n); err != nil || n != 1 {
			t.Fatalf("%d tables in the refused database, %v", n, err)
		}
	})
	for name, content := range map[string]string{
		"no database": strings.Repeat("this is not a database\n", 100),
		"torn header": "SQLite format 3\x00",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if s, err := sqlite.Open(t.Context(), path, sqlite.Options{}); err == nil {
				s.Close()
				t.Fatal("opened")
			}
			if after, _ := os.ReadFile(path); string(after) != content {
				t.Fatal("a refused file was changed")
			}
		})
	}
	t.Run("directory", func(t *testing.T) {
		if s, err := sqlite.Open(t.Context(), t.TempDir(), sqlite.Options{}); err == nil {
			s.Close()
			t.Fatal("opened")
		}
	})
	t.Run("empty path", func(t *testing.T) {
		if s, err := sqlite.Open(t.Context(), "", sqlite.Options{}); err == nil {
			s.Close()
			t.Fatal("opened")
		}
	})
	t.Run("negative option", func(t *testing.T) {
		if s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "s.db"), sqlite.Options{Queue: -1}); err == nil {
			s.Close()
			t.Fatal("opened")
		}
	})
	t.Run("ended context", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s.db")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if s, err := sqlite.Open(ctx, path, sqlite.Options{}); !errors.Is(err, context.Canceled) {
			s.Close()
			t.Fatalf("Open = %v", err)
		}
		openAt(t, path, sqlite.Options{}) // and holds no lock
	})
}

// hold takes SQLite's write lock, so that the writer has to wait for release.
func hold(t *testing.T, s *sqlite.Store) (release func()) {
	t.Helper()
	conn, err := raw(t, s.Path()).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "begin immediate"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := conn.ExecContext(t.Context(), "rollback"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCancelAtEachStage gives up commits that wait outside of the queue, in it,
// and in the writer's hands.
func TestCancelAtEachStage(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "store.db"), sqlite.Options{Queue: 1})
	base := mustCommit(t, s, put("k", "base"))
	release := hold(t, s)
	type call struct {
		*sqlite.Pending
		tx     store.Tx
		id     string
		cancel context.CancelFunc
	}
	begin := func(id string) call {
		ctx, cancel := context.WithCancel(t.Context())
		tx := put("stage/"+id, id)
		tx.ID = id
		return call{s.Begin(ctx, tx), tx, id, cancel}
	}
	taken := begin("taken")
	wait.Until(t, "the writer", taken.Taken)
	queued := begin("queued")
	wait.Until(t, "a full queue", func() bool { return s.Queued() == 1 })
	outside := begin("outside")
	for _, c := range []call{outside, queued, taken} {
		c.cancel()
		_, err := c.Wait()
		if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnknownOutcome) != (c.id == "taken") {
			t.Fatalf("%s: %v", c.id, err)
		}
		clear(c.tx.Put[0].Value) // the caller's again
	}
	// Readers do not wait for any of this.
	if e, err := s.Get(t.Context(), "k"); err != nil || e.Version != base {
		t.Fatalf("Get while the writer waits: %+v, %v", e, err)
	}
	release()
	for _, c := range []call{taken, queued, outside} {
		_, err := s.Outcome(t.Context(), c.id)
		if (err == nil) != (c.id == "taken") {
			t.Errorf("Outcome(%s) = %v", c.id, err)
		}
		e, err := s.Get(t.Context(), "stage/"+c.id)
		if (err == nil) != (c.id == "taken") || err == nil && string(e.Value) != c.id {
			t.Errorf("Get(%s) = %q, %v", c.id, e.Value, err)
		}
	}
}

// TestGroup makes one group of many jobs: some conflict, some depend on each
// other, one is a repetition.
func TestGroup(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "store.db"), sqlite.Options{})
	base := mustCommit(t, s, put("k", "base"))
	release := hold(t, s)
	// It keeps the writer busy until the group has gathered.
	first := s.Begin(t.Context(), put("first", ""))
	wait.Until(t, "the writer", first.Taken)
	var wg sync.WaitGroup
	before := walCommits(t, s.Path())
	const n = 60
	revisions := make([]store.Revision, n)
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			tx := put(fmt.Sprintf("group/%02d", i), "x")
			switch i % 3 {
			case 1: // one of these wins
				tx.If = []store.Condition{{Key: "k", Version: base}}
				tx.Put = append(tx.Put, store.Write{Key: "k", Value: fmt.Append(nil, i)})
			case 2: // all of these are one
				tx = put("group/same", "x")
				tx.ID = "same"
			}
			revisions[i], errs[i] = s.Commit(t.Context(), tx)
		})
	}
	wait.Until(t, "the group to gather", func() bool { return s.Queued() == n })
	release()
	wg.Wait()
	if got := walCommits(t, s.Path()) - before; got != 2 {
		t.Errorf("%d SQLite transactions for the first commit and the group, want 2", got)
	}
	won := 0
	seen := map[store.Revision]int{}
	for i := range n {
		switch {
		case i%3 == 1 && errs[i] == nil:
			won++
			fallthrough
		case i%3 == 0 && errs[i] == nil:
			seen[revisions[i]]++
		case i%3 == 1 && errors.Is(errs[i], store.ErrConflict):
		case i%3 == 2 && errs[i] == nil && revisions[i] == revisions[2]:
		default:
			t.Errorf("job %d: %d, %v", i, revisions[i], errs[i])
		}
	}
	if won != 1 || len(seen) != n/3+1 {
		t.Fatalf("%d winners, %d revisions", won, len(seen))
	}
	l, err := s.List(t.Context(), "group/")
	if err != nil || len(l.Entries) != n/3+2 {
		t.Fatalf("%d entries, %v", len(l.Entries), err)
	}
	// base, first, and each that was applied: nobody else took a revision.
	if want := base + 1 + store.Revision(n/3) + 1 + 1; l.Revision != want {
		t.Fatalf("revision %d, want %d", l.Revision, want)
	}
}

// TestDiskFull fills a database up to its bound and frees it again.
// A file that was moved, removed or replaced while it is open takes no writes: they
// would be acknowledged, and gone with the process. Under its name again, it does.
func TestFileMoved(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, path, aside string){
		"moved":   func(*testing.T, string, string) {},
		"removed": func(t *testing.T, _, aside string) { must(t, os.Remove(aside)) },
		"replaced": func(t *testing.T, path, _ string) {
			must(t, os.WriteFile(path, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.db")
			s := openAt(t, path, sqlite.Options{})
			mustCommit(t, s, put("before", "x"))
			aside := path + ".aside"
			must(t, os.Rename(path, aside))
			harm(t, path, aside)
			for range 2 {
				if _, err := s.Commit(t.Context(), put("meanwhile", "x")); store.ReasonOf(err) != store.FileGone || errors.Is(err, store.ErrUnknownOutcome) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "while it was open") {
					t.Fatalf("Commit: %v", err)
				}
			}
			if _, err := s.Get(t.Context(), "meanwhile"); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("Get: %v", err)
			}
			if name == "removed" {
				return
			}
			must(t, os.Rename(aside, path))
			mustCommit(t, s, put("after", "x"))
			s.Close()
			s = openAt(t, path, sqlite.Options{})
			for _, key := range []string{"before", "after"} {
				if _, err := s.Get(t.Context(), key); err != nil {
					t.Errorf("Get %s: %v", key, err)
				}
			}
		})
	}
}

func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, sqlite.Options{MaxBytes: 4 << 20, RetainCommits: 1})
	big := make([]byte, 256<<10)
	var kept []store.Revision
	var full error
	for i := 0; full == nil; i++ {
		if i > 1000 {
			t.Fatal("the bound does not hold")
		}
		tx := store.Tx{ID: fmt.Sprint("big/", i), Put: []store.Write{{Key: fmt.Sprint("big/", i), Value: big}}}
		r, err := s.Commit(t.Context(), tx)
		if full = err; err == nil {
			kept = append(kept, r)
		}
	}
	if errors.Is(full, store.ErrUnknownOutcome) || !strings.Contains(full.Error(), path) {
		t.Fatalf("full disk: %v, want an error that names the database and a known outcome", full)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 4<<20 {
		t.Fatalf("the file has %d bytes, %v", info.Size(), err)
	}
	check := func() {
		t.Helper()
		l, err := s.List(t.Context(), "big/")
		if err != nil || len(l.Entries) != len(kept) || l.Revision != kept[len(kept)-1] {
			t.Fatalf("%d entries at %d, %v; want %d at %d", len(l.Entries), l.Revision, err, len(kept), kept[len(kept)-1])
		}
	}
	check()

	// In one group with others, only the one that does not fit fails.
	release := hold(t, s)
	first := s.Begin(t.Context(), put("first", ""))
	wait.Until(t, "the writer", first.Taken)
	var wg sync.WaitGroup
	var tooBig error
	small := make([]error, 8)
	wg.Go(func() { _, tooBig = s.Commit(t.Context(), store.Tx{Put: []store.Write{{Key: "too-big", Value: big}}}) })
	for i := range small {
		wg.Go(func() { _, small[i] = s.Commit(t.Context(), put(fmt.Sprint("small/", i), "x")) })
	}
	wait.Until(t, "the group to gather", func() bool { return s.Queued() == len(small)+1 })
	release()
	wg.Wait()
	if tooBig == nil || errors.Is(tooBig, store.ErrUnknownOutcome) {
		t.Errorf("too big for the disk: %v", tooBig)
	}
	if err := errors.Join(small...); err != nil {
		t.Errorf("small ones beside it: %v", err)
	}
	if _, err := s.Get(t.Context(), "too-big"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get: %v", err)
	}

	// Room again, and it is used. The changes go in the background.
	for i := range kept[:len(kept)/2] {
		mustCommit(t, s, store.Tx{Delete: []string{fmt.Sprint("big/", i)}})
	}
	kept = kept[len(kept)/2:]
	wait.Until(t, "room", func() bool {
		r, err := s.Commit(t.Context(), store.Tx{Put: []store.Write{{Key: "big/again", Value: big}}})
		kept = append(kept, r)
		if err != nil {
			kept = kept[:len(kept)-1]
		}
		return err == nil
	})
	check()
	s.Close()
	s = openAt(t, path, sqlite.Options{})
	check()
}

// TestRetentionByAge lets virtual hours pass.
func TestRetentionByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		tx := put("k", "1")
		tx.ID = "old"
		first := mustCommit(t, s, tx)
		last := mustCommit(t, s, put("k", "2"))
		follow := func() error {
			for _, err := range s.Changes(t.Context(), "", first-1) {
				return err
			}
			return nil
		}
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if err := follow(); err != nil {
			t.Fatalf("after 59 minutes: %v", err)
		}
		if r, err := s.Outcome(t.Context(), "old"); err != nil || r != first {
			t.Fatalf("Outcome after 59 minutes: %d, %v", r, err)
		}
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		compacted, ok := errors.AsType[*store.CompactedError](follow())
		if !ok || compacted.Oldest != last {
			t.Fatalf("after 63 minutes: %v, want compaction up to %d", compacted, last)
		}
		if e, err := s.Get(t.Context(), "k"); err != nil || e.Version != last {
			t.Fatalf("Get: %+v, %v", e, err)
		}
		mustCommit(t, s, put("k", "3"))
		for c, err := range s.Changes(t.Context(), "", last) {
			if err != nil || c.Revision != last+1 {
				t.Fatalf("%+v, %v", c, err)
			}
			break
		}
	})
}

// TestPruningFreesSpace overwrites one key for long: the file stays small.
func TestPruningFreesSpace(t *testing.T) {
	for name, o := range map[string]sqlite.Options{"by commits": {RetainCommits: 8}, "by bytes": {RetainBytes: 2 << 20}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.db")
			s := openAt(t, path, o)
			value := make([]byte, 256<<10)
			for range 80 { // 20 MiB
				mustCommit(t, s, store.Tx{ID: store.NewTxID(), Put: []store.Write{{Key: "k", Value: value}}})
			}
			s.Close()
			if info, err := os.Stat(path); err != nil || info.Size() > 12<<20 {
				t.Fatalf("the file has %d bytes, %v", info.Size(), err)
			}
			var changes, outcomes int
			db := raw(t, path)
			if err := db.QueryRow("select (select count(*) from changes), (select count(*) from outcomes)").Scan(&changes, &outcomes); err != nil {
				t.Fatal(err)
			}
			if changes > 32 || outcomes != changes {
				t.Fatalf("%d changes and %d outcomes kept", changes, outcomes)
			}
		})
	}
}

// TestLogIsBounded writes more than the longest log without a pause.
func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, sqlite.Options{RetainBytes: 1 << 20})
	value := make([]byte, 1<<20)
	longest := int64(0)
	for i := range 100 {
		for j := range value {
			value[j] = byte(i + j) // SQLite does not write a page again that stays the same
		}
		mustCommit(t, s, store.Tx{Put: []store.Write{{Key: fmt.Sprint(i % 4), Value: value}}})
		if info, err := os.Stat(path + "-wal"); err == nil {
			longest = max(longest, info.Size())
		}
	}
	t.Logf("200 MiB written, longest log %d MiB", longest>>20)
	if longest > 24<<20 {
		t.Fatalf("the log grew to %d bytes", longest)
	}
}

// TestReadersDoNotWait reads while a writer is in the middle of its
// transaction.
func TestReadersDoNotWait(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "store.db"), sqlite.Options{})
	r := mustCommit(t, s, put("k", "1"))
	release := hold(t, s)
	second := s.Begin(t.Context(), put("k", "2"))
	wait.Until(t, "the writer", second.Taken)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if e, err := s.Get(ctx, "k"); err != nil || e.Version != r {
		t.Errorf("Get: %+v, %v", e, err)
	}
	if l, err := s.List(ctx, ""); err != nil || l.Revision != r {
		t.Errorf("List: %+v, %v", l, err)
	}
	for c, err := range s.Changes(ctx, "", r-1) {
		if err != nil || c.Revision != r {
			t.Errorf("Changes: %+v, %v", c, err)
		}
		break
	}
	release()
	if _, err := second.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestCloseWaits closes while commits are in the writer's hands, in the queue
// and outside of it.
func TestCloseWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openAt(t, path, sqlite.Options{Queue: 1})
	release := hold(t, s)
	begin := func(i int) *sqlite.Pending { return s.Begin(t.Context(), put(fmt.Sprint("k/", i), "x")) }
	pending := []*sqlite.Pending{begin(0)}
	wait.Until(t, "the writer", pending[0].Taken)
	pending = append(pending, begin(1))
	wait.Until(t, "a full queue", func() bool { return s.Queued() == 1 })
	for i := range 20 {
		pending = append(pending, begin(2+i))
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	wait.Until(t, "the store to be closing", func() bool {
		_, err := s.Get(t.Context(), "k/0")
		return errors.Is(err, store.ErrClosed)
	})
	select {
	case err := <-closed:
		t.Fatalf("Close = %v while commits are under way", err)
	default:
	}
	release()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	s = openAt(t, path, sqlite.Options{})
	for i, p := range pending {
		r, err := p.Wait()
		if err != nil && (i < 2 || !errors.Is(err, store.ErrClosed)) {
			t.Fatalf("commit %d: %v", i, err)
		}
		if e, _ := s.Get(t.Context(), fmt.Sprint("k/", i)); e.Version != r {
			t.Fatalf("commit %d answered %d, %v, and is at %d", i, r, err, e.Version)
		}
	}
}

// Holder tells who has a database open, through a link too, and makes nothing.
func TestHolder(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "s.db"), filepath.Join(dir, "link.db")
	want := func(when string, pid int) {
		t.Helper()
		for _, p := range []string{path, link} {
			held, err := sqlite.Holder(p)
			if err != nil || (held != nil) != (pid != 0) || held != nil && held.PID != pid {
				t.Errorf("%s, %s: %v, %v, want pid %d", when, p, held, err, pid)
			}
		}
	}
	want("before it is there", 0)
	if all, err := os.ReadDir(dir); err != nil || len(all) != 0 {
		t.Fatalf("looking made %v, %v", all, err)
	}
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	want("while it is open", os.Getpid())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	want("after it was closed", 0)
}
